"""Recording without running: the first call of a function is its first compiled one.

Ops are noted as a recorder notes them, on tensors whose arrays are stand-ins of the right form (`foresee.py`), with real nodes
on a tape that only the recorder sees, so that gradient rules run as they always do. Nothing is computed, written or counted for
good. When the segment ends, the stand-ins are forgotten, and what the call knows is what it would know had all of it been
replayed: a replayer goes on from there, whose program computes the segment. After a break the rest of the call is recorded as
it runs.

Where the form of a result cannot be foreseen, an error is in sight, or somebody else can write memory that ops read, the
recorder *wakes*: all that was noted is run eagerly from inputs that are as they were, as it is where a replay diverges, and it
goes on as a recorder that runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from ...eager.arrays import dtypes
from ...eager.core.errors import in_place_name
from ...eager.arrays.exported_memory import exposed
from ...eager.core.tape.inplace import check_target, take_history
from ...eager.core.op import STORE, Op, check_updates, link_views, tape
from ...eager.ops.create import ARANGE
from ...eager.arrays.deferred import Pending
from ...eager.core.tape.node import PENDING, Node, State
from ...eager.core.tensor import Tensor, versions_of, wrap
from ..trace.tape_plan import Snapshot
from .abstract_eval import UnforeseenError, foreseen, stand_in, there
from ..record.recorder import Recorder
from ..replay.replayer import Replayer
from ..trace.trace import Backward, Break, Call, End, Trace, Value, users_line

NOTES = (
    "blueprint",
    "concealed",
    "counted",
    "gone",
    "moving",
    "nodes",
    "number_ids",
    "owners",
    "region",
    "rewritten",
    "showing",
    "slot_of",
    "unseen",
    "witness",
)


class Dry(Recorder):
    """A handler of `apply` that notes and does not run."""

    counted: list[list[int]]  # version counters that ops have moved on, each as often as it was
    nodes: dict[int, tuple[Tensor, Node]]  # by id: tensors that hide their place on the tape, as replayed ones do

    def __init__(self, state: State, function: Any) -> None:
        super().__init__(state, Trace())
        self.function = function
        self.counted = []
        self.nodes = {}
        self.prepare()

    # ---- ops

    def run(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        try:
            with self.tape_shown([x for x in (*inputs, out) if isinstance(x, Tensor)]):
                result = super().run(op, inputs, attrs, out)
        except UnforeseenError:
            self.wake()
            return self.run(op, inputs, attrs, out)
        for t in (out,) if out is not None else result if type(result) is tuple else (result,):
            self.hide_node(t)
        return result

    def perform(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        """What `execute` does with tensors and the tape, without its kernel."""
        state = self.state
        if state.inference or state.anomaly is not None:
            raise UnforeseenError("results are marked, or errors explained")
        if any(isinstance(x, Tensor) and x._base is not None and x._rebased != x._base._rebased for x in inputs):
            raise UnforeseenError("a view whose base has another history")
        arrays = [there(x) if isinstance(x, Tensor) else x for x in inputs]
        tracked = sum(1 << i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x._requires_grad) if state.grad else 0
        try:
            if op.mutates:
                return self.update(op, inputs)
            if out is not None:
                check_target(out, bool(tracked), state.grad, attrs["called"] if op is STORE else in_place_name(op))
            made, several = imagined(op, arrays, attrs)
            outputs = [wrap(a) for a in made]
            if out is not None:
                check_stored(outputs[0], out, state.grad)
        except Exception as reason:  # running it tells the error, or there is none
            raise UnforeseenError(op.name) from reason
        if op.view:
            link_views(op, inputs[0], attrs, outputs, several, state.grad)
        if tracked and op.grad is not None:
            tape(op, tracked, inputs, attrs, outputs, out, several, state)
        if out is None:
            return tuple(outputs) if several else outputs[0]
        self.count(out)
        if state.grad and (outputs[0]._requires_grad or out._requires_grad):
            take_history(out, outputs[0])
        return out

    def hide_node(self, t: Tensor | None) -> None:
        """Nobody may find a node that holds stand-ins: a tensor shows what a replayed one does."""
        if t is not None and t._node is not None and t._node is not PENDING and not self.is_outer(t._node):
            self.nodes[id(t)] = t, t._node
            t._node = PENDING

    @contextmanager
    def tape_shown(self, tensors: list[Tensor]) -> Iterator[None]:
        """A block in which some tensors, and what they are views of, have their nodes."""
        found = []
        for t in [x for y in tensors for x in (y, y._base) if x is not None]:
            if t._node is PENDING and id(t) in self.nodes:
                t._node = self.nodes[id(t)][1]
                found.append(t)
        try:
            yield
        finally:
            for t in found if type(self) is Dry else ():
                self.hide_node(t)

    def snapshot(self) -> Snapshot | None:
        with self.tape_shown([t for t, _ in self.nodes.values()]):
            return super().snapshot()

    def settle(self, t: Tensor) -> None:
        self.looked_at(t)

    def update(self, op: Op, inputs: tuple[Any, ...]) -> None:
        """An op that writes into its inputs."""
        check_updates(op, inputs, self.state)
        for i in op.mutates:
            if isinstance(inputs[i], Tensor):
                self.count(inputs[i])

    def count(self, t: Tensor) -> None:
        box = versions_of(t)
        self.counted.append(box)
        box[0] += 1

    def made_value(self, t: Tensor, viewed: int | None) -> Value:
        found = super().made_value(t, viewed)
        self.bytes = 0  # there is nothing to let go
        return found

    # ---- what only a recorder that runs can see

    def outside_value(self, t: Tensor, array: Any) -> Value:
        if exposed(t._versions):  # NumPy may write it before the program runs
            self.wake()
        return super().outside_value(t, array) if type(self) is Dry else self.outside_value(t, array)

    def shows_another(self, n: int) -> None:
        self.wake()
        self.shows_another(n)

    # ---- backward

    def backward(
        self, roots: Any, seeds: Any, retain_graph: bool, create_graph: bool, wanted: Any, accumulate: bool
    ) -> list[Tensor | None]:
        given = (roots, seeds, retain_graph, create_graph, wanted, accumulate)
        mark = len(self.trace.values), len(self.trace.roots)
        try:
            with self.tape_shown([t for t, _ in self.nodes.values()]):
                return super().backward(*given)
        except BaseException as reason:
            if type(self) is not Dry:
                raise
            self.take_back(*mark)
            if not isinstance(reason, (Exception, UnforeseenError)):
                raise  # Ctrl-C; an error comes again, where it belongs, when the pass runs: no code of the user's was in it
        self.wake()
        return self.backward(*given)

    def note_effects(self, region: Backward, leaves: list[Tensor], before: dict[int, Any], found: list[Any]) -> None:
        super().note_effects(region, leaves, before, found)
        if self.failed is not None:
            for leaf in leaves if region.accumulate else ():
                leaf._grad = before[id(leaf)]
            raise UnforeseenError(self.failed)
        for n in [n for n in region.found if n is not None]:
            t, value = self.tensors[n], self.trace.values[n]
            if not isinstance(t._array, Pending):  # a rule has returned what was saved for it
                t._array = value.form(self, value.slot, t._array)
                self.concealed.append(t)

    def take_back(self, values: int, slots: int) -> None:
        """Forget what a backward pass has made before it failed."""
        trace = self.trace
        for t in self.tensors[values:]:
            self.number.pop(id(t), None)
        del trace.values[values:], self.tensors[values:], trace.roots[slots:], self.arrays[slots:]
        trace.outside = {s for s in trace.outside if s < slots}
        trace.sources = {s: source for s, source in trace.sources.items() if s < slots}
        trace.constants = {s: a for s, a in trace.constants.items() if s < slots}

    # ---- the end of a segment

    def stop(self, reason: str, kind: type[Break] = Break) -> None:
        """The first segment is complete: its program is made, and computes it."""
        if self.region is not None:
            raise UnforeseenError(reason)
        if not self.trace.entries and kind is not End:
            self.as_running()
            self.stop(reason)
            return
        self.trace.entries.append(kind(reason, users_line(), self.snapshot()))
        replayer = self.as_replayed()
        if kind is End:
            self.trace.complete()
        replayer.cursor -= 1
        replayer.segment()
        if kind is not End:
            replayer.record_on(len(self.trace.values), len(self.trace.roots))

    def read(self, pending: Pending) -> None:
        self.stop("a value is read")
        if pending.frame is self:
            raise AssertionError("a pending value was not computed")

    def as_running(self) -> None:
        """Nothing has been noted yet."""
        self.__class__ = Recorder  # type: ignore[assignment]

    def wake(self) -> None:
        """Run all that was noted, and record the rest as it runs."""
        if self.region is not None:
            raise UnforeseenError("in a backward pass")
        written = {n for entry in self.trace.entries for n in getattr(entry, "mutated", ())}
        self.run_noted().record_on(0, 0)
        self.bytes = sum(a.nbytes for a in self.arrays if a is not None)  # what nobody sees is let go soon
        self.hide(tuple(n for n in sorted(written) if self.tensors[n] is not None))

    def run_noted(self) -> Replayer:
        """Do eagerly what was noted."""
        replayer = self.as_replayed()
        replayer.interpret()
        return replayer

    def as_replayed(self) -> Replayer:
        """Turn into a replayer with which all that was noted has matched."""
        trace, tensors = self.trace, self.tensors
        for box in self.counted:
            box[0] -= 1
        written = {n for entry in trace.entries for n in getattr(entry, "mutated", ())}
        turned = [e.out for e in trace.entries if isinstance(e, Call) and e.turned and e.out is not None]
        hidden, held = [], []
        for n, t in enumerate(tensors):
            held.append(None if t is None else t._array)
            if t is None:
                continue
            if isinstance(t._array, Pending) and t._array.frame is self:
                t._array.real = None
                if n in written:
                    hidden.append(n)
            self.hide_node(t)
        for slot in range(len(self.arrays)):
            if slot not in trace.outside:
                self.arrays[slot] = None
        for name in NOTES:
            self.__dict__.pop(name, None)
        trace.owners = {v.slot: v.index for v in reversed(trace.values) if v.slot in trace.outside}
        self.__class__ = Replayer  # type: ignore[assignment]
        replayer = cast(Replayer, self)
        replayer.begin_replayed(hidden, held, dict.fromkeys(turned, (None, False)))
        return replayer


def imagined(op: Op, arrays: list[Any], attrs: dict[str, Any]) -> tuple[tuple[Any, ...], bool]:
    """Arrays for an op's results, and whether they are in a tuple."""
    if op.view or op is ARANGE:  # a view is real; indices that are constants are looked at
        result = op.run(np, *arrays, **attrs)  # type: ignore[misc]
        return (result, True) if type(result) is tuple else ((result,), False)
    forms, several = foreseen(op, arrays, attrs)
    return tuple(map(stand_in, forms)), several


def check_stored(value: Tensor, target: Tensor, grad: bool) -> None:
    """Whether a value can be stored in a tensor without more ado."""
    if value._array.shape != target._array.shape or not dtypes.can_cast(value.dtype, target.dtype):
        raise UnforeseenError("it does not fit")
    if value._array.dtype != target._array.dtype and grad and target._requires_grad:
        raise UnforeseenError("converting it has a history")
