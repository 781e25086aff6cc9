"""Replay a trace: Python runs again, and each op is compared with the next entry instead of being run.

A match returns a pending tensor (its array is a deferred array). At the end of a segment, when all entries have matched, the
program runs once, and tensors that are still alive get their arrays and their nodes on the tape. A mismatch is a divergence:
the entries matched since the last segment are run eagerly, from arrays that have not been written (see `bailout.py`), and the
rest of the call is recorded as another path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...eager.arrays.deferred import DeferredArray
from ...eager.core.dispatch import execute
from ...eager.core.op import Op
from ...eager.core.tape.node import PLACEHOLDER_NODE
from ...eager.core.tensor import Tensor, tensor_changed, versions_of
from ...eager.nn.module import Module
from ...eager.ops.convert import TRANSFER
from ...eager.optim.optimizer import Optimizer
from ..guards.tensor_guards import has_form
from ..record.backward_recorder import backward_pass
from ..record.index_checks import INDEX_CHECKS
from ..record.moving_slices import MOVES, MOVING, is_there, only_elsewhere
from ..record.recorder import Recorder
from ..regions.region import MISSED
from ..trace.call_frame import calls_library, can_reject_values, is_decomposed, is_input_transfer, run_decomposed
from ..trace.refcounts import references
from ..trace.specialize import LONE_HELD, general
from ..trace.trace import WRITTEN, Backward, Break, Call, Constant, End, NewInput, Trace, same_setting, user_line
from .run_segment import SegmentRunner

_new = object.__new__


class Replayer(SegmentRunner):
    """Handler of `apply` that matches ops and returns pending tensors."""

    mark: int | None = None  # the last change of a tensor, if that was the last backward pass, and a plain one

    # ---- ops

    def __call__(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        step = self.trace.steps[self.cursor]
        if step is not general:
            return step(self, op, inputs, attrs, out)
        entry = self.entries[self.cursor]
        if entry.op is op and self.matches(entry, inputs, attrs, out):
            return self.promise(entry, out)
        return self.otherwise(op, inputs, attrs, out)

    def promise(self, entry: Call, out: Tensor | None) -> Any:
        """Create the pending results of an entry that has matched."""
        self.move(self.cursor + 1)
        made = [self.promised(value) for value in entry.results]
        if out is not None and entry.grad and (entry.turned or (out.tj_requires_grad and out.tj_node is not None)):
            if out.tj_node is not PLACEHOLDER_NODE and entry.out is not None:
                self.earlier.setdefault(entry.out, (out.tj_node, out.tj_requires_grad))
            out.tj_requires_grad = True
            out.tj_node = PLACEHOLDER_NODE
        if entry.mutated:
            self.write(entry)
        if out is not None:
            return out
        return tuple(made) if entry.several else made[0] if made else None

    def write(self, entry: Any) -> None:
        """Hide memory from outside that the segment will write. If other code can see that memory, it is written now."""
        tensors, held, arrays, values = self.tensors, self.held, self.arrays, self.trace.values
        for n in entry.mutated:
            t, value = tensors[n], values[n]
            slot = value.slot
            array = arrays[slot]
            if (  # fast path: the array owns its memory, and only the tensor and this frame refer to it
                t is not None
                and t.tj_array is array
                and array is held[n]
                and type(array) is np.ndarray
                and array.base is None
                and references(array) <= LONE_HELD
                and not self.used
            ):
                pass
            elif t is not None and isinstance(t.tj_array, DeferredArray):
                continue
            else:
                held[n] = array = None
                if t is None or not self.sole(slot):
                    held[n] = None if t is None else t.tj_array
                    self.written_now(t is not None and self.is_counted_elsewhere(t, slot))
                    return
            self.hidden.append(n)
            t.tj_array = held[n] = pending = _new(value.form)
            pending.frame = self
            pending.slot = slot
        self.have_written()

    def have_written(self) -> None:
        following = self.entries[self.cursor]
        if type(following) is Break and following.reason is WRITTEN:  # other code could see it when recorded
            self.segment()

    def is_counted_elsewhere(self, t: Tensor, slot: int) -> bool:
        """True if a write of this tensor counts for another one from outside, and did not when recorded: views of one base. A
        backward pass that has saved the other one raises an error then."""
        box, trace = versions_of(t), self.trace
        mine = trace.counters.get(slot, slot)
        for n, x in enumerate(self.tensors):
            if x is not None and x is not t and x.tj_versions is box and trace.values[n].slot in trace.outside:
                other = trace.values[n].slot
                if trace.counters.get(other, other) != mine:
                    return True
        return False

    def written_now(self, counted_elsewhere: bool = False) -> None:
        if type(self.entries[self.cursor]) is Break and not counted_elsewhere:
            self.segment()
        else:
            self.diverge(WRITTEN)
            self.stop(WRITTEN)  # type: ignore[attr-defined]

    # ---- mismatches

    def otherwise(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        if is_decomposed(op, inputs, self.state):
            return run_decomposed(op, inputs, attrs, out)
        entry = self.entries[self.cursor]
        if self.copies and entry.op is op and self.matches(entry, inputs, attrs, out):
            return self.promise(entry, out)
        if out is not None and self.state.grad and any(isinstance(x, Tensor) and x.tj_requires_grad for x in (*inputs, out)):
            return self.graph_break(
                execute, f"{op.name} writes a tensor that has a history", op, inputs, attrs, out, self.state
            )
        if is_input_transfer(op, inputs, self.state):
            return self.bring(inputs, attrs)
        if can_reject_values(op, inputs):
            if op is TRANSFER:
                return self.graph_break(execute, "a value moves to another device", op, inputs, attrs, out, self.state)
            check = None if op.data_dependent else INDEX_CHECKS.get(op.name)
            if check is None:
                return self.graph_break(execute, f"{op.name} depends on values", op, inputs, attrs, out, self.state)
            if not check.settled(self, inputs, attrs):
                if type(entry) is Break:
                    self.segment()
                else:
                    self.diverge(f"{op.name} checks its indices")
                return self(op, inputs, attrs, out)
        if op in MOVES and out is None and self.moves():
            return self.take(op, inputs, attrs)
        if self.other_path(lambda e: e.op is op and self.matches(e, inputs, attrs, out)):
            return self.promise(self.entries[self.cursor], out)
        if op in MOVES and out is None and only_elsewhere(self.trace, entry, op, inputs, attrs, line := user_line()):
            self.function.has_moved(line, is_there(inputs, self.state))
        self.diverge(self.difference(entry, op, inputs, attrs))
        return self(op, inputs, attrs, out)

    def moves(self) -> bool:
        """True if Python makes slices here, in this recording or in another one with the same prefix."""
        if self.cursor in self.trace.moving:
            return True
        for other in self.function.with_same_prefix(self.trace, self.cursor, bool(self.made)):
            if self.cursor in other.moving:
                self.follow(other)
                self.move(self.cursor)
                return True
        return False

    def take(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Run a slice that starts elsewhere in each call."""
        if is_there(inputs, self.state):
            with self.eagerly():
                return execute(op, inputs, attrs, None, self.state)
        return self.graph_break(execute, MOVING, op, inputs, attrs, None, self.state)

    def difference(self, entry: Any, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> str:
        """Describe how an op differs from the recorded one."""
        if not isinstance(entry, Call):
            return f"{op.name} runs where the recording has {entry!r}"
        if entry.op is not op:
            return f"{op.name} runs where the recording has {entry.op.name}"
        if not same_setting(attrs, entry.attrs):
            return f"{op.name} gets {attrs}, recorded with {entry.attrs}"
        if self.state.grad is not entry.grad:
            return f"{op.name} runs {'with' if self.state.grad else 'without'} gradients, unlike the recording"
        for x, want in zip(inputs, entry.wants, strict=False):
            if isinstance(want, NewInput) and isinstance(x, Tensor):
                found, form = x.tj_array, want.value.form
                if found.shape != form.shape:
                    return f"{op.name} gets a tensor of shape {list(found.shape)}, recorded with {list(form.shape)}"
                if found.dtype != form.dtype:
                    return f"{op.name} gets {found.dtype}, recorded with {form.dtype}"
                if x.tj_requires_grad is not want.value.requires_grad:
                    return f"{op.name} gets a tensor with requires_grad={x.tj_requires_grad}, unlike the recording"
            if isinstance(want, Constant) and not want.is_(x):
                return f"{op.name} gets the number {x!r}, recorded with {want.value!r}"
        return f"{op.name} gets other tensors than in the recording"

    def other_path(self, fits: Callable[[Any], bool]) -> bool:
        """Switch to another recording with the same prefix whose next entry matches."""
        for other in self.function.with_same_prefix(self.trace, self.cursor, bool(self.made)):
            mine = self.trace
            self.follow(other)
            if fits(other.entries[self.cursor]):
                self.move(self.cursor)
                return True
            self.follow(mine)
        return False

    def follow(self, trace: Trace) -> None:
        """Continue with another recording: both are the same up to the cursor."""
        values, slots, numbers = trace.counts[self.cursor]
        for n in range(values, len(self.tensors)):
            if self.tensors[n] is not None and self.number.get(id(self.tensors[n])) == n:
                del self.number[id(self.tensors[n])]
        for slot in range(slots, len(self.arrays)):
            if self.arrays[slot] is not None:
                self.slots.pop(id(self.arrays[slot]), None)
        self.tensors[values:] = [None] * (len(trace.values) - values)
        self.held[values:] = [None] * (len(trace.values) - values)
        self.arrays[slots:] = [None] * (len(trace.roots) - slots)
        self.scalars[numbers:] = [None] * (trace.numbers - numbers)
        self.copies = {n: a for n, a in self.copies.items() if n < values}
        self.trace, self.entries = trace, trace.entries

    # ---- segments

    def read(self, pending: DeferredArray) -> None:
        """Compute a pending array, because its value is read."""
        self.run_now("a value is read")
        if pending.frame is self:
            raise AssertionError("a pending value was not computed")

    def run_now(self, reason: str) -> None:
        if type(self.entries[self.cursor]) is Break or self.other_path(lambda e: type(e) is Break):
            self.segment()
        else:
            self.diverge(reason)
            self.stop(reason)  # type: ignore[attr-defined]  # it is a recorder now

    def flush(self, reason: str) -> None:
        """Run the entries matched so far."""
        if self.cursor > self.start:
            self.run_now(reason)

    def tape_read(self, t: Tensor) -> None:
        """End the segment because the tape is read: its nodes must exist."""
        if isinstance(t.tj_array, DeferredArray) and t.tj_array.frame is self:
            self.read(t.tj_array)

    def settle(self, t: Tensor) -> None:
        self.tape_read(t)

    def graph_break(self, function: Callable[..., Any], reason: str, *args: Any, **kwargs: Any) -> Any:
        """Run an unrecorded function, with all pending work computed."""
        if type(self.entries[self.cursor]) is Break or self.other_path(lambda e: type(e) is Break):
            self.segment()
        elif self.cursor == 0 or not isinstance(self.entries[self.cursor - 1], Break):
            self.diverge(reason)
            return self.graph_break(function, reason, *args, **kwargs)
        return self.run_untraced(function, *args, **kwargs)

    def finish(self) -> None:
        """Finish the call, when the function has returned."""
        entry = self.entries[self.cursor]
        if isinstance(entry, End) and entry.state is not None:
            known = self.trace.segments.get((self.start, self.cursor))
            if known is not None and known.epilogue is not None and self.run_epilogue(known, known.epilogue):
                if self.late is not None:
                    self.start = self.cursor + 1
                    raise self.late
                return
        if isinstance(entry, End) or self.other_path(lambda e: isinstance(e, End)):
            self.segment()
        else:
            self.diverge("the function returns earlier")
            self.finish()

    def segment(self) -> None:
        """Compute the segment that ends with the graph break at the cursor: all its entries have matched."""
        stop = self.cursor
        snapshot = self.entries[stop].state
        if snapshot is None:
            self.interpret()
        else:
            if stop + 1 < len(self.entries):
                self.separate_numbers()
            self.compute(stop, snapshot)
        self.start = stop + 1
        if stop + 1 < len(self.entries):
            self.move(stop + 1)
        if self.late is not None:
            error, self.late = self.late, None
            raise error

    def begin_replayed(self, hidden: list[int], held: list[Any], earlier: dict[int, tuple[Any, bool]]) -> None:
        """Initialise the replayer's own fields in a recorder that becomes a replayer: all entries have matched."""
        self.entries = self.trace.entries
        self.cursor, self.start = len(self.entries), 0
        self.hidden, self.held, self.earlier = hidden, held, earlier
        self.slots = {id(a): slot for slot, a in enumerate(self.arrays) if a is not None}
        self.copies, self.used, self.boxes = {}, [], {}
        self.recorded = True

    # ---- divergence

    def diverge(self, reason: str) -> None:
        """Run the matched entries eagerly, and continue recording."""
        self.function.diverged(self, reason, user_line())
        self.interpret()
        values, slots, _ = self.begin_path()
        self.record_on(values, slots)

    def begin_path(self) -> tuple[int, int, int]:
        """Start another recording with the same entries up to the cursor. Returns how much there was before the segment."""
        trace, self.trace = self.trace, Trace()
        values, slots, numbers = trace.counts[self.cursor]
        self.trace.entries = trace.entries[: self.cursor]
        self.trace.values, self.trace.roots, self.trace.numbers = trace.values[:values], trace.roots[:slots], numbers
        self.trace.outside = {s for s in trace.outside if s < slots}
        self.trace.shared = {s for s in trace.shared if s < slots}
        self.trace.counters = {s: first for s, first in trace.counters.items() if s < slots}
        self.trace.moving = {k for k in trace.moving if k <= self.cursor}
        self.trace.impure = MOVING if self.trace.moving else None
        self.trace.sources = {s: source for s, source in trace.sources.items() if s < slots}
        self.trace.constants = {s: a for s, a in trace.constants.items() if s < slots}
        for first, regions in trace.regions.items():
            kept = {i: r for i, r in regions.items() if r.stop <= self.cursor}
            self.trace.regions.update({first: kept} if kept else {})
        del self.tensors[values:], self.arrays[slots:], self.scalars[numbers:]
        return trace.counts[self.start]

    def record_on(self, values: int, slots: int) -> None:
        """Record the rest of the call, when all pending tensors are computed. `values` and `slots` count those before the
        segment."""
        trace = self.trace
        for n, t in enumerate(self.tensors):
            if t is not None and isinstance(t.tj_array, DeferredArray):
                if t.tj_array.frame is None:
                    t.tj_array = t.tj_array.real  # a `detach()` of a tensor that is computed now
                else:
                    self.tensors[n] = None  # from an earlier segment, which it did not outlive
        self.number = {id(t): n for n, t in enumerate(self.tensors) if t is not None}
        for n, t in enumerate(self.tensors):
            if t is not None and trace.values[n].slot in trace.outside:
                self.boxes[trace.values[n].slot] = versions_of(t)
        if self.state.autocast is None and self.state.handler is not None:
            self.state.handler = self
        self.held.clear()
        self.cursor = -1  # no step's turn any more
        self.__class__ = Recorder  # type: ignore[assignment]
        self.prepare(self.function.moving)  # type: ignore[attr-defined]
        written = [e.out for e in self.trace.entries[self.start :] if isinstance(e, Call) and e.out is not None]
        self.rewritten += written  # type: ignore[attr-defined]
        self.first, self.handed_out = values, slots
        self.conceal(values)  # type: ignore[attr-defined]

    # ---- regions

    @calls_library
    def call_module(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a module: match all of its ops at once, if its guards hold."""
        regions = self.trace.regions.get(self.cursor)
        if regions is not None and self.state.autocast is None:
            region = regions.get(id(module))
            if region is not None:
                owner, enter = region.owner, region.entering
                if owner() is module:
                    result = enter(region, self, args, kwargs)
                    if result is not MISSED:
                        return result
        return module.forward(*args, **kwargs)

    @calls_library
    def call_functional(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of `nn.functional`: match all of its ops at once, if its guards hold."""
        regions = self.trace.regions.get(self.cursor)
        if regions is not None and self.state.autocast is None:
            region = regions.get(id(function))
            if region is not None:
                owner, enter = region.owner, region.entering
                if owner() is function:
                    result = enter(region, self, args, kwargs)
                    if result is not MISSED:
                        return result
        return function(*args, **kwargs)

    def replay_optimizer_step(self, optimizer: Optimizer) -> bool:
        """Match an optimizer step as a region. True if that succeeded, and the step is done."""
        region = self.trace.step_regions[self.cursor]
        enter = region.entering
        return enter(region, self, optimizer)  # type: ignore[no-any-return]

    @calls_library
    def optimizer_step(self, optimizer: Optimizer, step: Callable[..., Any]) -> Any:
        """Run an optimizer step that did not match a region."""
        return step(optimizer)

    # ---- backward

    @calls_library
    def backward(
        self, roots: Any, seeds: Any, retain_graph: bool, create_graph: bool, wanted: Any, accumulate: bool
    ) -> list[Tensor | None]:
        entry = self.entries[self.cursor]
        if seeds is None and self.plain_pass(entry, roots, retain_graph, wanted, accumulate):
            return []
        given = (roots, seeds, retain_graph, create_graph, wanted, accumulate)
        if not (isinstance(entry, Backward) and self.same_pass(entry, *given)):
            if not self.other_path(lambda e: isinstance(e, Backward) and self.same_pass(e, *given)):
                if type(entry) is Break:
                    return self.graph_break(backward_pass, "backward", *given)  # type: ignore[no-any-return]
                self.diverge("another backward pass than in the recording")
                return self.backward(*given)
            entry = self.entries[self.cursor]
        self.move(self.cursor + 1)
        self.mark = None
        values, tensors = self.trace.values, self.tensors
        for leaf, value in entry.firsts:
            g = tensors[leaf].tj_grad
            tensors[value.index] = g
            self.number[id(g)] = value.index
            self.arrays[value.slot] = self.held[value.index] = g.tj_array
            self.slots[id(g.tj_array)] = value.slot
        if self.made:
            self.used += [self.made[plan] for plan in entry.freed if plan in self.made]
        for effect in entry.effects:
            if effect.before is None:
                tensors[effect.leaf].tj_grad = self.promised(values[effect.after])
                tensor_changed()
        found: list[Tensor | None] = [None if n is None else self.promised(values[n]) for n in entry.found]
        if entry.mutated:
            self.write(entry)
        return found

    def plain_pass(self, entry: Any, roots: Any, retain_graph: bool, wanted: Any, accumulate: bool) -> bool:
        """Fast path of `loss.backward()` when it gives each leaf its first gradient."""
        if type(entry) is not Backward or not entry.plain or wanted is not None or not accumulate or self.made or self.copies:
            return False
        n = entry.roots[0]
        if len(roots) != 1 or roots[0] is not self.tensors[n] or roots[0].tj_array is not self.held[n]:
            return False
        step = entry.step
        if retain_graph is not entry.retain or not step(self):
            return False
        self.mark = tensor_changed()
        self.move(self.cursor + 1)
        return True

    def same_pass(
        self, entry: Backward, roots: Any, seeds: Any, retain_graph: bool, create_graph: bool, wanted: Any, accumulate: bool
    ) -> bool:
        """True if a backward pass matches its entry. Its effects follow from its roots, unless a hook was added, or a gradient
        or the code was changed since."""
        tensors = self.tensors
        if create_graph or retain_graph is not entry.retain or accumulate is not entry.accumulate or not entry.same_code():
            return False
        if len(roots) != len(entry.roots):
            return False
        for r, n in zip(roots, entry.roots, strict=True):
            if r is not tensors[n] or r.tj_array is not self.held[n]:
                return False
        if (seeds is None) is not entry.implicit:
            return False
        for s, want in zip(seeds or (), entry.seeds, strict=True):
            if not self.fits(want, s, s.tj_requires_grad):
                return False
        if (wanted is None) is not (entry.wanted is None):
            return False
        if wanted is not None:
            if len(wanted) != len(entry.wanted) or any(w.tj_hooks for w in wanted):
                return False
            if any(w is not tensors[n] for w, n in zip(wanted, entry.wanted, strict=True)):
                return False
        for node in self.made.values():
            if node.hooks or node.retained is not None or "gradients" in node.__dict__:
                return False
        if self.copies and not all(self.unchanged(n) for n in self.copies):
            return False
        if any(tensors[n].tj_requires_grad is not flag for n, flag in entry.flags):
            return False
        return self.same_gradients(entry)

    def same_gradients(self, entry: Backward) -> bool:
        """True if the leaves have the recorded hooks and gradients."""
        tensors = self.tensors
        firsts = dict(entry.firsts) if entry.firsts else {}
        for effect in entry.effects:
            leaf = tensors[effect.leaf]
            if leaf.tj_hooks or leaf.tj_accumulate_hooks or leaf.tj_node is not None:
                return False
            g = leaf.tj_grad
            if effect.before is None:
                if g is not None:
                    return False
            elif effect.leaf in firsts:
                if g is None or g.tj_requires_grad or id(g) in self.number or isinstance(g.tj_array, DeferredArray):
                    return False
                if id(g.tj_array) in self.slots or not has_form(g.tj_array, firsts[effect.leaf].form):
                    return False
            elif g is None or g is not tensors[effect.before] or g.tj_array is not self.held[effect.before]:
                return False
        return True
