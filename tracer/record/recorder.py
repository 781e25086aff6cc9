"""Record a call: ops run eagerly and are added to the trace.

Tensors produced while recording hide their arrays, so that reading a value, or accessing an array other than through ops, is
detected here exactly as it will be during replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from ...eager.arrays.deferred import DeferredArray, form_of, resolve_array
from ...eager.arrays.devices import device_of
from ...eager.arrays.exported_memory import is_exported
from ...eager.core.dispatch import execute
from ...eager.core.op import Op
from ...eager.core.tape.gradient_rules import INPUT, INPUTS
from ...eager.core.tape.node import edge_of
from ...eager.core.tensor import Tensor
from ...eager.nn.module import Module
from ...eager.ops.convert import TRANSFER
from ...eager.ops.create import ARANGE
from ...eager.ops.shape.reshape import RESHAPED
from ...eager.ops.shape.views import CLONE
from ...eager.optim.optimizer import Optimizer
from ..guards.code_observer import CodeObserver
from ..regions.function_region import CallRegion
from ..regions.module_region import ModuleRegion, is_library_layer
from ..regions.optimizer_region import OptimizerRegion
from ..regions.region import NoRegionError, Region, RegionStart
from ..trace.call_frame import (
    SCALAR_GRADIENT_OPS,
    SCALAR_KINDS,
    calls_library,
    can_reject_values,
    is_decomposed,
    is_input_transfer,
    run_decomposed,
)
from ..trace.tape_plan import TapePlan, TapePlanner
from ..trace.trace import WRITTEN, Alias, Break, Call, Constant, End, NewInput, Number, Value, user_line
from .backward_recorder import BackwardRecorder
from .index_checks import INDEX_CHECKS
from .moving_slices import MOVES, MOVING, is_there
from .release_memory import release_unreferenced, should_release

MAX_BREAKS = 200  # per call: a function that reads values so often gains nothing from being compiled


class Recorder(BackwardRecorder):
    """Handler of `apply` that runs ops and records them."""

    owners: dict[int, int]  # for each slot from outside: the value that introduced it
    first: int = 0  # the first value since the last graph break
    breaks: int = 0
    depth: int = 0  # nesting depth of calls into library code
    moving: Collection[str] = ()  # user lines of slices that start elsewhere in each call: see record/moving_slices.py
    concealed: list[Tensor]  # tensors that hide their arrays
    rewritten: list[int]  # values written by in-place ops since the last graph break
    number_ids: dict[int, int]  # id of a runtime scalar -> its position
    showing: dict[int, list[int]]  # slot -> the values that show it
    counter_slots: dict[int, int]  # id of a version counter -> the first slot from outside whose tensor has it
    bytes: int = 0  # allocated since the last scan for arrays to release
    gone: Counter[int]  # value -> number of its views whose arrays were released

    def prepare(self, moving: Collection[str] = ()) -> Recorder:
        """Initialise the recorder's own fields; a replayer that becomes a recorder has its tensors already."""
        self.moving = moving
        self.slot_of = {id(a): slot for slot, a in enumerate(self.arrays) if a is not None}
        self.counter_slots = {id(box): slot for slot, box in reversed(self.boxes.items()) if slot in self.trace.outside}
        self.number_ids = {id(x): place for place, x in enumerate(self.scalars) if type(x) is float}
        self.unseen = {}
        self.gone = Counter()
        self.owners = {v.slot: v.index for v in reversed(self.trace.values) if v.slot in self.trace.outside}
        self.showing = {}
        for v in self.trace.values:
            self.showing.setdefault(v.slot, []).append(v.index)
        self.concealed, self.rewritten, self.breaks = [], [], len(self.trace.breaks())
        self.tape_planner = TapePlanner(self)
        self.code_observer = CodeObserver()
        return self

    # ---- tensors and numbers

    def value(self, t: Tensor, slot: int, array: Any, viewed: int | None = None) -> Value:
        view = None
        if t.tj_base is not None and viewed is not None:
            view = (viewed, t.tj_view_chain[-1], t.tj_made_without_grad)
        found = Value(len(self.trace.values), slot, t, form_of(array, device_of(array)), view)
        self.trace.values.append(found)
        self.showing.setdefault(slot, []).append(found.index)
        self.tensors.append(t)
        self.number[id(t)] = found.index
        return found

    def new_slot(self, array: Any, root: int | None) -> int:
        slot = len(self.trace.roots)
        self.trace.roots.append(slot if root is None else root)
        self.arrays.append(array)
        self.slot_of[id(array)] = slot
        return slot

    def see(self, t: Tensor) -> tuple[Any, int]:
        """Return the guard for this tensor in the next call, and the index of its value."""
        known, array = self.number.get(id(t)), t.tj_array
        if isinstance(array, DeferredArray) and array.frame is not self:
            array = t.tj_array = resolve_array(array)
        slot = array.slot if isinstance(array, DeferredArray) else self.slot_of.get(id(array))
        if known is not None:
            if slot == self.trace.values[known].slot:
                return known, known
            self.shows_another(known)
        if slot is not None:
            value = self.value(t, slot, self.arrays[slot])
            if slot in self.trace.outside and t.tj_versions is not self.boxes.get(slot):
                value.own_version_counter = True
            if isinstance(array, DeferredArray):
                self.concealed.append(t)
            return Alias(value), value.index
        value = self.outside_value(t, array)
        if self.region is not None:
            leaf = self.unseen.get(id(t))
            if leaf is None:
                self.failed = self.failed or "a tensor from outside appears in it"
            else:
                self.region.firsts.append((leaf, value))
        return NewInput(value), value.index

    def shows_another(self, n: int) -> None:
        """Note that a tensor no longer shows the array of its value: `x.data = y`, `x.t_()`."""
        self.tensors[n] = None
        self.moved[n] = -1

    def outside_value(self, t: Tensor, array: Any) -> Value:
        slot = self.new_slot(array, None)
        self.trace.outside.add(slot)
        if t.tj_versions is None:
            t.tj_versions = [0]
        first = self.counter_slots.setdefault(id(t.tj_versions), slot)
        if first != slot:
            self.trace.counters[slot] = first
        self.boxes[slot] = t.tj_versions
        self.owners[slot] = len(self.trace.values)
        if is_exported(t.tj_versions):
            self.trace.shared.add(slot)
        value = self.value(t, slot, array)
        if t.tj_node is not None:
            self.outer_nodes[value.index] = edge_of(t)
        return value

    def see_number(self, x: Any, op: Op, saved: bool) -> tuple[Any, Any]:
        """Return a runtime scalar or a constant for a number, and the object to pass to the op, which `is` tells from all
        others."""
        fixed = type(x) not in (int, float) or (saved and not (op.name in SCALAR_GRADIENT_OPS and type(x) is float))
        if fixed or (op.kind not in SCALAR_KINDS and op.name != "full"):
            return Constant(x), x
        if self.region is not None:
            place = self.number_ids.get(id(x)) if type(x) is float else None
            return (Constant(x) if place is None else Number(place, type(x))), x
        if type(x) is float:
            x = x * 1.0  # a distinct object
        place = self.trace.numbers
        self.trace.numbers += 1
        self.scalars.append(x)
        if type(x) is float:
            self.number_ids[id(x)] = place
        return Number(place, type(x)), x

    # ---- ops

    def __call__(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        state = self.state
        if is_decomposed(op, inputs, state):
            return run_decomposed(op, inputs, attrs, out)
        if op in MOVES and self.moving and self.region is None and out is None and user_line() in self.moving:
            return self.take(op, inputs, attrs)
        if should_release(self):
            release_unreferenced(self, self.gone)
            self.bytes = 0
        check = None
        if out is not None and self.region is None and self.rewrites_history(inputs, out):
            return self.graph_break(execute, f"{op.name} writes a view that has a history", op, inputs, attrs, out, state)
        if self.region is None and is_input_transfer(op, inputs, state):
            return self.bring(inputs, attrs)
        if self.region is None and can_reject_values(op, inputs):
            if op is TRANSFER:
                return self.graph_break(execute, "a value moves to another device", op, inputs, attrs, out, state)
            check = None if op.data_dependent else INDEX_CHECKS.get(op.name)
            if check is None:
                return self.graph_break(execute, f"{op.name} depends on values", op, inputs, attrs, out, state)
            if not check.settled(self, inputs, attrs):
                self.stop(f"{op.name} checks its indices")
                check.settled(self, inputs, attrs)
        wants, refs, flags, given = self.see_all(op, inputs)
        target = None
        if out is not None:
            want, target = self.see(out)
            if self.region is None:
                self.rewritten.append(target)
            wants.append(want)
            flags.append(out.tj_requires_grad)
        result = self.run(op, tuple(given), attrs, out)
        several = type(result) is tuple
        made = () if op.mutates or out is not None else result if several else (result,)
        written = [refs[i] for i in op.mutates if isinstance(inputs[i], Tensor)] if op.mutates else [target] * (out is not None)
        values = tuple(self.made_value(t, refs[0] if op.view else None) for t in made)
        if op is CLONE and values:
            self.trace.sources[values[0].slot] = self.trace.values[refs[0]].slot
        if op is ARANGE and values and all(isinstance(r, Constant) for r in refs):
            self.trace.constants[values[0].slot] = self.arrays[values[0].slot]
        mutated = self.outside_written(written)
        call = Call(
            op, tuple(wants), tuple(refs), tuple(flags), attrs, target, values, several, state.grad, mutated, user_line()
        )
        call.check = check
        call.turned = out is not None and out.tj_requires_grad and not flags[-1]
        if self.region is not None:
            self.region.calls.append(call)
            return result
        self.trace.entries.append(call)
        if mutated and not self.hide(mutated):
            self.stop(WRITTEN)
        return result

    def take(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Run a slice that starts elsewhere in each call."""
        self.trace.impure = MOVING
        self.trace.moving.add(len(self.trace.entries))
        if is_there(inputs, self.state):
            with self.eagerly():
                return execute(op, inputs, attrs, None, self.state)
        self.stop(MOVING)
        self.trace.moving.add(len(self.trace.entries))
        return self.run_untraced(execute, op, inputs, attrs, None, self.state)

    def rewrites_history(self, inputs: tuple[Any, ...], out: Tensor) -> bool:
        """True if an in-place op changes the history of more than a tensor that was produced here and has no views."""
        if not self.state.grad or not any(isinstance(x, Tensor) and x.tj_requires_grad for x in (*inputs, out)):
            return False
        n = self.number.get(id(out))
        if n is None or out.tj_base is not None or self.trace.values[n].slot in self.trace.outside:
            return True
        return any(v.view is not None and self.trace.base(v) == n for v in self.trace.values)

    def see_all(self, op: Op, inputs: tuple[Any, ...]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """Return four lists over the inputs: guards, value indices, requires_grad flags, and the arguments for the op."""
        saved = saved_inputs(op, inputs) if self.state.grad else ()
        wants: list[Any] = []
        refs: list[Any] = []
        flags: list[Any] = []
        given: list[Any] = []
        for i, x in enumerate(inputs):
            if isinstance(x, Tensor):
                want, ref = self.see(x)
                flags.append(x.tj_requires_grad)
            else:
                want, x = self.see_number(x, op, i in saved)
                ref = want
                flags.append(None)
            wants.append(want)
            refs.append(ref)
            given.append(x)
        return wants, refs, flags, given

    def run(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        """Run an op eagerly; its tensors show their arrays meanwhile."""
        hidden = []
        for x in (*inputs, out):
            if isinstance(x, Tensor):
                for t in (x, x.tj_base):
                    if t is not None and isinstance(t.tj_array, DeferredArray):
                        hidden.append((t, t.tj_array))
                        t.tj_array = t.tj_array.real
        try:
            with self.eagerly():
                return self.perform(op, inputs, attrs, out)
        finally:
            for t, pending in hidden:
                t.tj_array = pending

    def perform(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        """Run an op on tensors that show their arrays."""
        return execute(op, inputs, attrs, out, self.state)

    def made_value(self, t: Tensor, viewed: int | None) -> Value:
        """Add a result to the trace as a value, and hide its array."""
        array = t.tj_array
        root = None if viewed is None else self.trace.roots[self.trace.values[viewed].slot]
        value = self.value(t, self.new_slot(array, root), array, viewed)
        t.tj_array = value.form(self, value.slot, array)
        self.concealed.append(t)
        if viewed is None:
            self.bytes += array.nbytes
        return value

    def outside_written(self, written: list[Any]) -> tuple[int, ...]:
        """Select the values from outside whose memory is written."""
        roots = {self.trace.roots[self.trace.values[n].slot] for n in written}
        for root in roots:
            self.trace.constants.pop(root, None)
            self.trace.sources.pop(root, None)
        roots = {r for r in roots if r in self.trace.outside or r < self.handed_out}
        values = self.trace.values  # the last ones may have been removed, and others put in their place
        shown = {n for r in roots for n in self.showing[r] if n < len(values) and values[n].slot == r}
        return tuple(n for n in sorted(shown) if self.visible(n))

    def visible(self, n: int) -> bool:
        """True if Python can see a value, False if it is internal to a backward pass."""
        if self.tensors[n] is None:
            return n in self.moved
        return self.region is None or n < self.inner or any(v.index == n for _, v in self.region.firsts)

    def hide(self, mutated: tuple[int, ...]) -> bool:
        """Hide the memory of tensors that a replay will write later; False if other code can see that memory."""
        for n in mutated:
            t, value = self.tensors[n], self.trace.values[n]
            if t is None:
                return False  # some tensor now shows this memory in another way
            if isinstance(t.tj_array, DeferredArray):
                continue
            if not self.sole(value.slot):
                return False
            t.tj_array = value.form(self, value.slot, self.arrays[value.slot])
            self.concealed.append(t)
        return True

    def owner(self, slot: int) -> int | None:
        return self.owners.get(slot)

    def hidden_views(self, array: Any) -> int:
        made = (a for slot, a in enumerate(self.arrays) if slot >= self.handed_out and slot not in self.trace.outside)
        return sum(a is not None and a.base is array for a in made)

    views_made = hidden_views

    # ---- graph breaks

    def read(self, pending: DeferredArray) -> None:
        self.stop("a value is read")
        pending.frame = None

    def flush(self, reason: str) -> None:
        """End the segment: work that a replay would still have pending must run now."""
        if self.trace.entries and self.region is None:
            self.stop(reason)

    def tape_read(self, t: Tensor) -> None:
        """End the segment because the tape is read: a replay must build it at this point."""
        if isinstance(t.tj_array, DeferredArray) and t.tj_array.frame is self and self.region is None:
            self.stop("the tape is read")

    def stop(self, reason: str, kind: type[Break] = Break) -> None:
        """Add a graph break (or the end) to the trace: Python continues with values, so all arrays are revealed."""
        if kind is End or not self.trace.entries or not isinstance(self.trace.entries[-1], Break):
            self.trace.entries.append(kind(reason, user_line(), self.snapshot()))
            self.breaks += 1
        self.handed_out = len(self.trace.roots)
        self.first = len(self.trace.values)
        self.rewritten.clear()
        self.reveal()
        if self.breaks >= MAX_BREAKS:
            self.stop_recording()

    def stop_recording(self) -> None:
        """Stop recording: the rest of the call runs eagerly and untraced, because nothing would be gained."""
        state = self.state
        state.tracer = None
        if state.autocast is None:
            state.handler = None
        else:
            state.autocast.below = None

    def snapshot(self) -> TapePlan | None:
        """Plan the tape of values produced or written since the last graph break: earlier values have their nodes already."""
        return self.tape_planner.snapshot((*self.rewritten, *range(self.first, len(self.trace.values))))

    def reveal(self) -> None:
        for t in self.concealed:
            if isinstance(t.tj_array, DeferredArray) and t.tj_array.real is not None:
                t.tj_array.frame = None
                t.tj_array = t.tj_array.real
        self.concealed.clear()

    def conceal(self, first: int) -> None:
        """Hide the arrays of unread values again, from the first value of a segment on."""
        for n in range(first, len(self.tensors)):
            t, value = self.tensors[n], self.trace.values[n]
            if t is not None and value.slot not in self.trace.outside and self.trace.roots[value.slot] >= self.handed_out:
                t.tj_array = value.form(self, value.slot, t.tj_array)
                self.concealed.append(t)

    def graph_break(self, function: Callable[..., Any], reason: str, *args: Any, **kwargs: Any) -> Any:
        """Run an unrecorded function with all arrays revealed."""
        self.stop(reason)
        if reason is RESHAPED:
            self.trace.reshaped = True
        return self.run_untraced(function, *args, **kwargs)

    def finish(self) -> None:
        self.stop("the end", End)

    # ---- regions

    @calls_library
    def call_module(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a module, and record the call as a region."""
        mark = RegionStart(self)
        ours = is_library_layer(module)
        if not ours:
            return module.forward(*args, **kwargs)
        self.depth += 1
        try:
            with self.code_observer.observing(self.state) as mark.ran:
                result = module.forward(*args, **kwargs)
        finally:
            self.depth -= 1
        if self.can_note(mark):
            self.note_region(lambda: ModuleRegion(self, mark, module, (args, kwargs), result))
        return result

    @calls_library
    def call_functional(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of `nn.functional`, and record the call as a region."""
        if self.depth:
            return function(*args, **kwargs)
        mark = RegionStart(self)
        self.depth = 1
        try:
            with self.code_observer.observing(self.state) as mark.ran:
                result = function(*args, **kwargs)
        finally:
            self.depth = 0
        if self.can_note(mark):
            self.note_region(lambda: CallRegion(self, mark, function, function.__name__, (args, kwargs), result))
        return result

    def replay_optimizer_step(self, optimizer: Optimizer) -> bool:
        return False

    @calls_library
    def optimizer_step(self, optimizer: Optimizer, step: Callable[..., Any]) -> Any:
        """Run an optimizer step, and record it as a region."""
        mark = RegionStart(self)
        with self.code_observer.observing(self.state) as mark.ran:
            result = step(optimizer)
        if self.can_note(mark):
            self.note_region(lambda: OptimizerRegion(self, mark, optimizer))
        return result

    def can_note(self, mark: RegionStart) -> bool:
        return self.region is None and self.state.autocast is None and len(self.trace.entries) > mark.start

    def note_region(self, make: Callable[[], Region]) -> None:
        """Make a region of the entries since a mark, if they qualify."""
        try:
            found = self.code_observer.unobserved(make)
        except NoRegionError:
            return
        self.trace.regions.setdefault(found.start, {})[found.key] = found


def saved_inputs(op: Op, inputs: tuple[Any, ...]) -> Any:
    """Return the inputs of an op that the tape will save."""
    wants = sum(1 << i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.tj_requires_grad)
    if not wants or op.grad is None:
        return ()
    plan = op.rules.plan(wants)
    if any(kind == INPUTS for _, kind, _ in plan):
        return range(len(inputs))
    return {i for _, kind, i in plan if kind == INPUT}
