"""Record by abstract evaluation, without running ops: the first call of a function is already compiled.

Ops are recorded as by `Recorder`, on tensors whose arrays are stand-ins of the right form (`abstract_eval.py`), with real nodes
on a tape that only this recorder sees, so that gradient rules run unchanged. Nothing is computed or written, and version
counters are restored. When the segment ends, the stand-ins are discarded, and the frame is in the state it would have after
replaying the segment: it becomes a replayer, whose program computes the segment. After a graph break the rest of the call is
recorded as it runs.

Where abstract evaluation does not know the form of a result, an op would raise, or other code can write memory that ops read,
the recorder starts running: the recorded ops are run eagerly from unchanged inputs, as in a bailout, and the frame becomes a
`Recorder`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from ...eager.arrays import dtypes
from ...eager.arrays.deferred import DeferredArray
from ...eager.arrays.exported_memory import is_exported
from ...eager.core.dispatch import STORE, check_updates, link_views, record_node
from ...eager.core.errors import in_place_name
from ...eager.core.op import Op
from ...eager.core.tape.inplace import check_target, take_history
from ...eager.core.tape.node import PLACEHOLDER_NODE, Node, State
from ...eager.core.tensor import Tensor, versions_of, wrap
from ...eager.ops.create import ARANGE
from ..record.recorder import Recorder
from ..replay.replayer import Replayer
from ..trace.call_frame import calls_library
from ..trace.tape_plan import TapePlan
from ..trace.trace import Backward, Break, Call, End, Trace, Value, user_line
from .abstract_eval import AbstractEvalError, abstract_eval, hidden_array, stand_in

NOTES = (
    "tape_planner",
    "concealed",
    "counter_slots",
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
    "code_observer",
)


class AbstractRecorder(Recorder):
    """Handler of `apply` that records ops without running them."""

    counted: list[list[int]]  # version counters that ops have incremented, once per increment
    nodes: dict[int, tuple[Tensor, Node]]  # by id: tensors that hide their node on the tape, as replayed ones do

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
        except AbstractEvalError:
            self.start_running()
            return self.run(op, inputs, attrs, out)
        for t in (out,) if out is not None else result if type(result) is tuple else (result,):
            self.hide_node(t)
        return result

    def perform(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        """Do what `execute` does to tensors and the tape, without its kernel."""
        state = self.state
        if state.inference or state.anomaly is not None:
            raise AbstractEvalError("results are marked, or errors explained")
        if any(isinstance(x, Tensor) and x.tj_base is not None and x.tj_rebased != x.tj_base.tj_rebased for x in inputs):
            raise AbstractEvalError("a view whose base has another history")
        arrays = [hidden_array(x) if isinstance(x, Tensor) else x for x in inputs]
        tracked = sum(1 << i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.tj_requires_grad) if state.grad else 0
        try:
            if op.mutates:
                return self.update(op, inputs)
            if out is not None:
                check_target(out, bool(tracked), state.grad, attrs["called"] if op is STORE else in_place_name(op))
            made, several = abstract_results(op, arrays, attrs)
            outputs = [wrap(a) for a in made]
            if out is not None:
                check_stored(outputs[0], out, state.grad)
        except Exception as reason:  # running it raises the error, if there is one
            raise AbstractEvalError(op.name) from reason
        if op.view:
            link_views(op, inputs[0], attrs, outputs, several, state.grad)
        if tracked and op.grad is not None:
            record_node(op, tracked, inputs, attrs, outputs, out, several, state)
        if out is None:
            return tuple(outputs) if several else outputs[0]
        self.count(out)
        if state.grad and (outputs[0].tj_requires_grad or out.tj_requires_grad):
            take_history(out, outputs[0])
        return out

    def hide_node(self, t: Tensor | None) -> None:
        """Hide a node that holds stand-ins: the tensor shows what a replayed one does."""
        if t is not None and t.tj_node is not None and t.tj_node is not PLACEHOLDER_NODE and not self.is_outer(t.tj_node):
            self.nodes[id(t)] = t, t.tj_node
            t.tj_node = PLACEHOLDER_NODE

    @contextmanager
    def tape_shown(self, tensors: list[Tensor]) -> Iterator[None]:
        """Context manager in which some tensors, and their bases, have their nodes."""
        found = []
        for t in [x for y in tensors for x in (y, y.tj_base) if x is not None]:
            if t.tj_node is PLACEHOLDER_NODE and id(t) in self.nodes:
                t.tj_node = self.nodes[id(t)][1]
                found.append(t)
        try:
            yield
        finally:
            for t in found if type(self) is AbstractRecorder else ():
                self.hide_node(t)

    def snapshot(self) -> TapePlan | None:
        with self.tape_shown([t for t, _ in self.nodes.values()]):
            return super().snapshot()

    def settle(self, t: Tensor) -> None:
        self.tape_read(t)

    def update(self, op: Op, inputs: tuple[Any, ...]) -> None:
        """Record an op that writes into its inputs."""
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
        self.bytes = 0  # there is nothing to release
        return found

    # ---- cases that only a recorder that runs can handle

    def outside_value(self, t: Tensor, array: Any) -> Value:
        if is_exported(t.tj_versions):  # NumPy may write it before the program runs
            self.start_running()
        return super().outside_value(t, array) if type(self) is AbstractRecorder else self.outside_value(t, array)

    def shows_another(self, n: int) -> None:
        self.start_running()
        self.shows_another(n)

    # ---- backward

    @calls_library
    def backward(
        self, roots: Any, seeds: Any, retain_graph: bool, create_graph: bool, wanted: Any, accumulate: bool
    ) -> list[Tensor | None]:
        given = (roots, seeds, retain_graph, create_graph, wanted, accumulate)
        mark = len(self.trace.values), len(self.trace.roots)
        try:
            with self.tape_shown([t for t, _ in self.nodes.values()]):
                return super().backward(*given)
        except BaseException as reason:
            if type(self) is not AbstractRecorder:
                raise
            self.take_back(*mark)
            if not isinstance(reason, (Exception, AbstractEvalError)):
                raise  # Ctrl-C; an error is raised again, at its place, when the pass runs: no user code was in it
        self.start_running()
        return self.backward(*given)

    def note_effects(self, region: Backward, leaves: list[Tensor], before: dict[int, Any], found: list[Any]) -> None:
        super().note_effects(region, leaves, before, found)
        if self.failed is not None:
            for leaf in leaves if region.accumulate else ():
                leaf.tj_grad = before[id(leaf)]
            raise AbstractEvalError(self.failed)
        for n in [n for n in region.found if n is not None]:
            t, value = self.tensors[n], self.trace.values[n]
            if not isinstance(t.tj_array, DeferredArray):  # a rule has returned a saved tensor
                t.tj_array = value.form(self, value.slot, t.tj_array)
                self.concealed.append(t)

    def take_back(self, values: int, slots: int) -> None:
        """Remove what a backward pass produced before it failed."""
        trace = self.trace
        for t in self.tensors[values:]:
            self.number.pop(id(t), None)
        del trace.values[values:], self.tensors[values:], trace.roots[slots:], self.arrays[slots:]
        trace.outside = {s for s in trace.outside if s < slots}
        trace.sources = {s: source for s, source in trace.sources.items() if s < slots}
        trace.constants = {s: a for s, a in trace.constants.items() if s < slots}

    # ---- the end of a segment

    def stop(self, reason: str, kind: type[Break] = Break) -> None:
        """End the first segment: compile its program, and compute it."""
        if self.region is not None:
            raise AbstractEvalError(reason)
        if not self.trace.entries and kind is not End:
            self.as_running()
            self.stop(reason)
            return
        self.trace.entries.append(kind(reason, user_line(), self.snapshot()))
        replayer = self.as_replayed()
        if kind is End:
            self.trace.complete()
        replayer.cursor -= 1
        replayer.segment()
        if kind is not End:
            replayer.record_on(len(self.trace.values), len(self.trace.roots))

    def read(self, pending: DeferredArray) -> None:
        self.stop("a value is read")
        if pending.frame is self:
            raise AssertionError("a pending value was not computed")

    def as_running(self) -> None:
        """Become a `Recorder`, before anything was recorded."""
        self.__class__ = Recorder  # type: ignore[assignment]

    def start_running(self) -> None:
        """Run all recorded ops, and record the rest of the call as it runs."""
        if self.region is not None:
            raise AbstractEvalError("in a backward pass")
        written = {n for entry in self.trace.entries for n in getattr(entry, "mutated", ())}
        self.run_recorded().record_on(0, 0)
        self.bytes = sum(a.nbytes for a in self.arrays if a is not None)  # unreferenced arrays are released soon
        self.hide(tuple(n for n in sorted(written) if self.tensors[n] is not None))

    def run_recorded(self) -> Replayer:
        """Run the recorded entries eagerly."""
        replayer = self.as_replayed()
        replayer.interpret()
        return replayer

    def as_replayed(self) -> Replayer:
        """Become a replayer for which all recorded entries have matched."""
        trace, tensors = self.trace, self.tensors
        for box in self.counted:
            box[0] -= 1
        written = {n for entry in trace.entries for n in getattr(entry, "mutated", ())}
        turned = [e.out for e in trace.entries if isinstance(e, Call) and e.turned and e.out is not None]
        hidden, held = [], []
        for n, t in enumerate(tensors):
            held.append(None if t is None else t.tj_array)
            if t is None:
                continue
            if isinstance(t.tj_array, DeferredArray) and t.tj_array.frame is self:
                t.tj_array.real = None
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


def abstract_results(op: Op, arrays: list[Any], attrs: dict[str, Any]) -> tuple[tuple[Any, ...], bool]:
    """Return arrays for an op's results, and whether the op returns a tuple."""
    if op.view or op is ARANGE:  # a view is real; constant indices are read
        result = op.run(np, *arrays, **attrs)  # type: ignore[misc]
        return (result, True) if type(result) is tuple else ((result,), False)
    forms, several = abstract_eval(op, arrays, attrs)
    return tuple(map(stand_in, forms)), several


def check_stored(value: Tensor, target: Tensor, grad: bool) -> None:
    """Raise AbstractEvalError unless a value can be stored in a tensor without a conversion that is taped."""
    if value.tj_array.shape != target.tj_array.shape or not dtypes.can_cast(value.dtype, target.dtype):
        raise AbstractEvalError("it does not fit")
    if value.tj_array.dtype != target.tj_array.dtype and grad and target.tj_requires_grad:
        raise AbstractEvalError("converting it has a history")
