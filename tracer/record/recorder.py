"""Recording: ops run eagerly and are noted. Tensors made while recording hide their arrays, so that a value that is read, or
anything done to an array behind the ops' back, is noticed here exactly as it will be when the recording is replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from ...eager.autograd import _seeds as first_gradients
from ...eager.arrays.devices import device_of
from ...eager.arrays.exported_memory import exposed
from ...eager.nn.module import Module
from ...eager.core.op import Op, execute
from ...eager.ops.convert import TRANSFER
from ...eager.ops.create import ARANGE
from ...eager.ops.shape.views import CLONE
from ...eager.ops.shape.reshape import RESHAPED
from ...eager.optim.optimizer import Optimizer
from ...eager.arrays.deferred import Pending, form_of, resolved
from ...eager.core.tape.gradient_rules import INPUT, INPUTS
from ...eager.core.tape.node import FREED, Node, Pick, edge_of, run_backward
from ...eager.core.tensor import Tensor
from ..trace.tape_plan import Blueprint, Snapshot
from ..regions.function_region import CallRegion
from .index_checks import CHECKS
from ..trace.call_frame import CHANGEABLE, TRANSPARENT, Frame, expanded, only_moves, refuses, run_parts
from ..regions.module_region import ModuleRegion, is_ours
from .moving_slices import MOVES, MOVING, is_there
from ..regions.region import Mark, NoRegionError, Region
from .release_memory import is_time, let_go
from ..trace.trace import WRITTEN, Alias, Backward, Break, Call, Constant, Effect, End, First, Number, Value, users_line
from ..regions.optimizer_region import UpdateRegion
from ..guards.code_guards import Witness, same_code

MAX_BREAKS = 200  # in one call: what reads values so often gains nothing from being compiled


class NotARegionError(Exception):
    """A backward pass that has to be run by the engine each time."""


class Recorder(Frame):
    """A handler of `apply` that runs and notes."""

    region: Backward | None = None  # the backward pass being recorded
    failed: str | None = None  # why it cannot be
    inner: int = 0  # the first of the values that it makes
    owners: dict[int, int]  # of each slot from outside the value that brought it
    first: int = 0  # the first of the values since the last break
    breaks: int = 0
    depth: int = 0  # of calls of the library's code
    moving: Collection[str] = ()  # lines of slices that begin elsewhere at each call: see moving.py
    concealed: list[Tensor]  # tensors that hide their arrays
    rewritten: list[int]  # values that in-place ops have written since the last break
    handed_out: int = 0  # slots from before the last break: anybody may have their arrays
    blueprint: Blueprint
    witness: Witness
    slot_of: dict[int, int]  # id of an array -> its slot
    number_ids: dict[int, int]  # id of a number that may change -> its place
    showing: dict[int, list[int]]  # of a slot: the values that show it
    unseen: dict[int, int]  # in a backward pass: id of a gradient from before -> its leaf
    bytes: int = 0  # made since it was last looked what can be let go
    gone: Counter[int]  # of a value: how many views of it have no array any more

    def prepare(self, moving: Collection[str] = ()) -> Recorder:
        """What a recorder has beyond a frame; a replayer that turns into one has its tensors already."""
        self.moving = moving
        self.slot_of = {id(a): slot for slot, a in enumerate(self.arrays) if a is not None}
        self.number_ids = {id(x): place for place, x in enumerate(self.scalars) if type(x) is float}
        self.unseen = {}
        self.gone = Counter()
        self.owners = {v.slot: v.index for v in reversed(self.trace.values) if v.slot in self.trace.outside}
        self.showing = {}
        for v in self.trace.values:
            self.showing.setdefault(v.slot, []).append(v.index)
        self.concealed, self.rewritten, self.breaks = [], [], len(self.trace.breaks())
        self.blueprint = Blueprint(self)
        self.witness = Witness()
        return self

    # ---- tensors and numbers

    def value(self, t: Tensor, slot: int, array: Any, viewed: int | None = None) -> Value:
        view = None
        if t._base is not None and viewed is not None:
            view = (viewed, t._chain[-1], t._made_without_grad)
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
        """What the next call has to find in this tensor's place, and its number."""
        known, array = self.number.get(id(t)), t._array
        if isinstance(array, Pending) and array.frame is not self:
            array = t._array = resolved(array)
        slot = array.slot if isinstance(array, Pending) else self.slot_of.get(id(array))
        if known is not None:
            if slot == self.trace.values[known].slot:
                return known, known
            self.shows_another(known)
        if slot is not None:
            value = self.value(t, slot, self.arrays[slot])
            if isinstance(array, Pending):
                self.concealed.append(t)
            return Alias(value), value.index
        value = self.outside_value(t, array)
        if self.region is not None:
            leaf = self.unseen.get(id(t))
            if leaf is None:
                self.failed = self.failed or "a tensor from outside appears in it"
            else:
                self.region.firsts.append((leaf, value))
        return First(value), value.index

    def shows_another(self, n: int) -> None:
        """A tensor has another array than the value that it was: `x.data = y`, `x.t_()`."""
        self.tensors[n] = None
        self.moved[n] = -1

    def outside_value(self, t: Tensor, array: Any) -> Value:
        slot = self.new_slot(array, None)
        self.trace.outside.add(slot)
        if t._versions is None:
            t._versions = [0]
        self.boxes[slot] = t._versions
        self.owners[slot] = len(self.trace.values)
        if exposed(t._versions):
            self.trace.shared.add(slot)
        value = self.value(t, slot, array)
        if t._node is not None:
            self.outer_nodes[value.index] = edge_of(t)
        return value

    def see_number(self, x: Any, op: Op, saved: bool) -> tuple[Any, Any]:
        """A number that may change, or one that must not; and what to hand to the op, which can be told from others by `is`."""
        fixed = type(x) not in (int, float) or (saved and not (op.name in TRANSPARENT and type(x) is float))
        if fixed or (op.kind not in CHANGEABLE and op.name != "full"):
            return Constant(x), x
        if self.region is not None:
            place = self.number_ids.get(id(x)) if type(x) is float else None
            return (Constant(x) if place is None else Number(place, type(x))), x
        if type(x) is float:
            x = x * 1.0  # an object of its own
        place = self.trace.numbers
        self.trace.numbers += 1
        self.scalars.append(x)
        if type(x) is float:
            self.number_ids[id(x)] = place
        return Number(place, type(x)), x

    # ---- ops

    def __call__(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        state = self.state
        if expanded(op, inputs, state):
            return run_parts(op, inputs, attrs, out)
        if op in MOVES and self.moving and self.region is None and out is None and users_line() in self.moving:
            return self.take(op, inputs, attrs)
        if is_time(self):
            let_go(self, self.gone)
            self.bytes = 0
        check = None
        if out is not None and self.region is None and self.rewrites_history(inputs, out):
            return self.outside(execute, f"{op.name} writes into a view that has a history", op, inputs, attrs, out, state)
        if self.region is None and only_moves(op, inputs, state):
            return self.bring(inputs, attrs)
        if self.region is None and refuses(op, inputs):
            if op is TRANSFER:
                return self.outside(execute, "a value goes to another device", op, inputs, attrs, out, state)
            check = None if op.data_dependent else CHECKS.get(op.name)
            if check is None:
                return self.outside(execute, f"{op.name} depends on values", op, inputs, attrs, out, state)
            if not check.settled(self, inputs, attrs):
                self.stop(f"{op.name} looks at its indices")
                check.settled(self, inputs, attrs)
        wants, refs, flags, given = self.see_all(op, inputs)
        target = None
        if out is not None:
            want, target = self.see(out)
            if self.region is None:
                self.rewritten.append(target)
            wants.append(want)
            flags.append(out._requires_grad)
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
            op, tuple(wants), tuple(refs), tuple(flags), attrs, target, values, several, state.grad, mutated, users_line()
        )
        call.check = check
        call.turned = out is not None and out._requires_grad and not flags[-1]
        if self.region is not None:
            self.region.calls.append(call)
            return result
        self.trace.entries.append(call)
        if mutated and not self.hide(mutated):
            self.stop(WRITTEN)
        return result

    def take(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """A slice that begins elsewhere at each call."""
        self.trace.impure = MOVING
        self.trace.moving.add(len(self.trace.entries))
        if is_there(inputs, self.state):
            with self.eagerly():
                return execute(op, inputs, attrs, None, self.state)
        self.stop(MOVING)
        self.trace.moving.add(len(self.trace.entries))
        return self.untraced(execute, op, inputs, attrs, None, self.state)

    def rewrites_history(self, inputs: tuple[Any, ...], out: Tensor) -> bool:
        """Whether an in-place op changes the history of more than a tensor that was made here and has no views."""
        if not self.state.grad or not any(isinstance(x, Tensor) and x._requires_grad for x in (*inputs, out)):
            return False
        n = self.number.get(id(out))
        if n is None or out._base is not None or self.trace.values[n].slot in self.trace.outside:
            return True
        return any(v.view is not None and self.trace.base(v) == n for v in self.trace.values)

    def see_all(self, op: Op, inputs: tuple[Any, ...]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """Of each input: what to expect in its place, its number, whether it wants a gradient, and what to hand to the op."""
        saved = saved_inputs(op, inputs) if self.state.grad else ()
        wants: list[Any] = []
        refs: list[Any] = []
        flags: list[Any] = []
        given: list[Any] = []
        for i, x in enumerate(inputs):
            if isinstance(x, Tensor):
                want, ref = self.see(x)
                flags.append(x._requires_grad)
            else:
                want, x = self.see_number(x, op, i in saved)
                ref = want
                flags.append(None)
            wants.append(want)
            refs.append(ref)
            given.append(x)
        return wants, refs, flags, given

    def run(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        """Run an op eagerly on tensors that get their arrays for as long."""
        hidden = []
        for x in (*inputs, out):
            if isinstance(x, Tensor):
                for t in (x, x._base):
                    if t is not None and isinstance(t._array, Pending):
                        hidden.append((t, t._array))
                        t._array = t._array.real
        try:
            with self.eagerly():
                return self.perform(op, inputs, attrs, out)
        finally:
            for t, pending in hidden:
                t._array = pending

    def perform(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        """Run an op on tensors that have their arrays."""
        return execute(op, inputs, attrs, out, self.state)

    def made_value(self, t: Tensor, viewed: int | None) -> Value:
        """A result gets a number, and hides its array."""
        array = t._array
        root = None if viewed is None else self.trace.roots[self.trace.values[viewed].slot]
        value = self.value(t, self.new_slot(array, root), array, viewed)
        t._array = value.form(self, value.slot, array)
        self.concealed.append(t)
        if viewed is None:
            self.bytes += array.nbytes
        return value

    def outside_written(self, written: list[Any]) -> tuple[int, ...]:
        """Of the values written into, those from outside whose memory that is."""
        roots = {self.trace.roots[self.trace.values[n].slot] for n in written}
        for root in roots:
            self.trace.constants.pop(root, None)
            self.trace.sources.pop(root, None)
        roots = {r for r in roots if r in self.trace.outside or r < self.handed_out}
        values = self.trace.values  # the last of which may have been taken back, and others put in their place
        shown = {n for r in roots for n in self.showing[r] if n < len(values) and values[n].slot == r}
        return tuple(n for n in sorted(shown) if self.visible(n))

    def visible(self, n: int) -> bool:
        """Whether a value is one that Python can see, not one that a backward pass has made for itself."""
        if self.tensors[n] is None:
            return n in self.moved
        return self.region is None or n < self.inner or any(v.index == n for _, v in self.region.firsts)

    def hide(self, mutated: tuple[int, ...]) -> bool:
        """Let tensors whose memory will be written later, when this is replayed, hide it; False if others can see it."""
        for n in mutated:
            t, value = self.tensors[n], self.trace.values[n]
            if t is None:
                return False  # some tensor shows this memory in another way now
            if isinstance(t._array, Pending):
                continue
            if not self.sole(value.slot):
                return False
            t._array = value.form(self, value.slot, self.arrays[value.slot])
            self.concealed.append(t)
        return True

    def owner(self, slot: int) -> int | None:
        return self.owners.get(slot)

    def hidden_views(self, array: Any) -> int:
        return sum(a is not None and a.base is array for a in self.arrays[self.handed_out :])

    views_made = hidden_views

    # ---- breaks

    def read(self, pending: Pending) -> None:
        self.stop("a value is read")
        pending.frame = None

    def catch_up(self, reason: str) -> None:
        """Whatever has not run when this is replayed has to run now."""
        if self.trace.entries and self.region is None:
            self.stop(reason)

    def looked_at(self, t: Tensor) -> None:
        """Somebody looks at the tape: when this is replayed, it has to be made for him."""
        if isinstance(t._array, Pending) and t._array.frame is self and self.region is None:
            self.stop("the tape is looked at")

    def stop(self, reason: str, kind: type[Break] = Break) -> None:
        """Python goes on with values: everything is there from here on."""
        if kind is End or not self.trace.entries or not isinstance(self.trace.entries[-1], Break):
            self.trace.entries.append(kind(reason, users_line(), self.snapshot()))
            self.breaks += 1
        self.handed_out = len(self.trace.roots)
        self.first = len(self.trace.values)
        self.rewritten.clear()
        self.reveal()
        if self.breaks >= MAX_BREAKS:
            self.look_away()

    def look_away(self) -> None:
        """There is no point in going on: the rest of the call runs eagerly, unseen."""
        state = self.state
        state.tracer = None
        if state.autocast is None:
            state.handler = None
        else:
            state.autocast.below = None

    def snapshot(self) -> Snapshot | None:
        """The tape of what was made or written since the last break: what was there before has its nodes."""
        return self.blueprint.snapshot((*self.rewritten, *range(self.first, len(self.trace.values))))

    def reveal(self) -> None:
        for t in self.concealed:
            if isinstance(t._array, Pending) and t._array.real is not None:
                t._array.frame = None
                t._array = t._array.real
        self.concealed.clear()

    def conceal(self, first: int) -> None:
        """Hide the arrays of values again that nobody has read: from the first of a segment on."""
        for n in range(first, len(self.tensors)):
            t, value = self.tensors[n], self.trace.values[n]
            if t is not None and value.slot not in self.trace.outside and self.trace.roots[value.slot] >= self.handed_out:
                t._array = value.form(self, value.slot, t._array)
                self.concealed.append(t)

    def outside(self, function: Callable[..., Any], reason: str, *args: Any, **kwargs: Any) -> Any:
        """Run something that is not recorded, on tensors that are all there."""
        self.stop(reason)
        if reason is RESHAPED:
            self.trace.reshaped = True
        return self.untraced(function, *args, **kwargs)

    def finish(self) -> None:
        self.stop("the end", End)

    # ---- regions

    def module(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A module is called."""
        mark = Mark(self)
        ours = is_ours(module)
        if not ours:
            return module.forward(*args, **kwargs)
        self.depth += 1
        try:
            with self.witness.seeing(self.state) as mark.ran:
                result = module.forward(*args, **kwargs)
        finally:
            self.depth -= 1
        if self.can_note(mark):
            self.note_region(lambda: ModuleRegion(self, mark, module, (args, kwargs), result))
        return result

    def functional(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of `nn.functional` is called."""
        if self.depth:
            return function(*args, **kwargs)
        mark = Mark(self)
        self.depth = 1
        try:
            with self.witness.seeing(self.state) as mark.ran:
                result = function(*args, **kwargs)
        finally:
            self.depth = 0
        if self.can_note(mark):
            self.note_region(lambda: CallRegion(self, mark, function, function.__name__, (args, kwargs), result))
        return result

    def foresaw(self, optimizer: Optimizer) -> bool:
        return False

    def optimizer_step(self, optimizer: Optimizer, step: Callable[..., Any]) -> Any:
        """An optimizer makes a step."""
        mark = Mark(self)
        with self.witness.seeing(self.state) as mark.ran:
            result = step(optimizer)
        if self.can_note(mark):
            self.note_region(lambda: UpdateRegion(self, mark, optimizer))
        return result

    def can_note(self, mark: Mark) -> bool:
        return self.region is None and self.state.autocast is None and len(self.trace.entries) > mark.start

    def note_region(self, make: Callable[[], Region]) -> None:
        """What was recorded since a mark may be a region."""
        try:
            found = self.witness.aside(make)
        except NoRegionError:
            return
        self.trace.regions.setdefault(found.start, {})[found.key] = found

    # ---- backward

    def backward(
        self, roots: Any, seeds: Any, retain_graph: bool, create_graph: bool, wanted: Any, accumulate: bool
    ) -> list[Tensor | None]:
        given = (roots, seeds, retain_graph, create_graph, wanted, accumulate)
        try:
            if create_graph or (wanted is not None and accumulate):
                raise NotARegionError("create_graph" if create_graph else "inputs=")
            starts = tuple(self.known(r) for r in roots)
            targets = None if wanted is None else tuple(self.known(w) for w in wanted)
            leaves = self.leaves_below(roots)
        except NotARegionError as reason:
            return self.outside(backward_pass, f"backward: {reason}", *given)  # type: ignore[no-any-return]
        looked = [self.see(s) for s in seeds or ()]
        region = Backward(starts, tuple(want for want, _ in looked), retain_graph, targets, accumulate, users_line())
        region.given = tuple(n for _, n in looked)
        region.implicit = seeds is None
        region.flags = tuple((self.number[id(leaf)], leaf._requires_grad) for leaf in leaves)
        before = {id(leaf): leaf._grad for leaf in leaves}
        self.unseen = {id(g): self.number[i] for i, g in before.items() if g is not None and id(g) not in self.number}
        snapshot = self.snapshot()
        mark = len(self.trace.values), len(self.trace.roots)
        self.region, self.failed, self.inner = region, None, mark[0]
        state = self.state
        tracer, state.tracer = state.tracer, None
        try:
            with self.witness.seeing(self.state) as ran:
                found = backward_pass(*given)
        finally:
            state.tracer, self.region = tracer, None
        region.ran, region.same_code = ran, same_code([ran])
        if ran.foreign:
            self.failed = self.failed or "it runs the user's code"
        self.note_effects(region, leaves, before, found)
        if self.failed is not None:
            self.forget(mark)
            self.trace.entries.append(Break(f"backward: {self.failed}", region.line, snapshot))
            self.handed_out = mark[1]
            self.reveal()
            return found
        region.end = len(self.trace.values), len(self.trace.roots)
        region.freed = tuple(plan for node, plan in self.blueprint.kept if node.saved is FREED)
        self.let_go(region, mark)
        self.trace.entries.append(region)
        if region.mutated and not self.hide(region.mutated):
            self.stop(WRITTEN)
        return found

    def known(self, t: Tensor) -> int:
        n = self.number.get(id(t))
        if n is None:
            raise NotARegionError("it begins at a tensor that no op has seen")
        return n

    def leaves_below(self, roots: Any) -> list[Tensor]:
        """The leaves a backward pass will reach; an error if it runs the user's code or leaves this call."""
        leaves: dict[int, Tensor] = {}
        stack: list[Any] = [edge_of(r) for r in roots]
        seen = set()
        while stack:
            edge = stack.pop()
            if isinstance(edge, Tensor):
                if edge._hooks or edge._after_accumulate:
                    raise NotARegionError("a leaf has hooks")
                self.known(edge)
                if edge._grad is not None and edge._grad._requires_grad:
                    raise NotARegionError("a gradient has a history")
                leaves[id(edge)] = edge
            elif edge is not None and id(edge) not in seen:
                seen.add(id(edge))
                if self.is_outer(edge):
                    raise NotARegionError("the history goes back to what is not traced")
                if type(edge) not in (Node, Pick) or "gradients" in edge.__dict__ or edge.hooks or edge.retained is not None:
                    raise NotARegionError(f"{edge.name()} runs code of its own")
                if edge.saved is FREED:
                    raise NotARegionError("a part of the graph was used up")
                if type(edge.saved) is not dict:
                    raise NotARegionError("it runs a checkpointed function again")
                stack.extend(edge.edges)
        return list(leaves.values())

    def note_effects(self, region: Backward, leaves: list[Tensor], before: dict[int, Any], found: list[Any]) -> None:
        try:
            for leaf in leaves if region.accumulate else ():
                after, was = leaf._grad, before[id(leaf)]
                if after is None:
                    continue
                n = self.known(after)
                region.effects.append(Effect(self.number[id(leaf)], None if was is None else self.known(was), n))
            region.found = tuple(None if t is None else self.known(t) for t in found)
        except NotARegionError as reason:
            self.failed = self.failed or str(reason)
        region.mutated = tuple(sorted({n for c in region.calls for n in c.mutated}))

    def let_go(self, region: Backward, mark: tuple[int, int]) -> None:
        """Of what a backward pass made, keep only what outlives it."""
        seen = (
            {e.after for e in region.effects} | {n for n in region.found if n is not None} | {v.index for _, v in region.firsts}
        )
        slots = {self.trace.values[n].slot for n in seen}
        for n in seen:
            view = self.trace.values[n].view
            if view is not None and view[0] >= mark[0] and view[0] not in seen:
                self.trace.values[n].view = None  # of something that nobody else has
        for n in range(mark[0], region.end[0]):
            if n not in seen:
                self.number.pop(id(self.tensors[n]))
                self.tensors[n] = None
        for slot in range(mark[1], region.end[1]):
            if slot not in slots and self.arrays[slot] is not None:
                self.slot_of.pop(id(self.arrays[slot]))
                self.arrays[slot] = None

    def forget(self, mark: tuple[int, int]) -> None:
        """Take back the values and slots that came after."""
        values, slots = mark
        self.reveal()
        for t in self.tensors[values:]:
            self.number.pop(id(t), None)
        for a in self.arrays[slots:]:
            self.slot_of.pop(id(a), None)
        del self.trace.values[values:], self.tensors[values:], self.trace.roots[slots:], self.arrays[slots:]
        self.trace.outside = {s for s in self.trace.outside if s < slots}


def backward_pass(
    roots: Any, seeds: Any, retain_graph: bool, create_graph: bool, wanted: Any, accumulate: bool
) -> list[Tensor | None]:
    """The engine's walk; without seeds it begins with 1."""
    return run_backward(
        roots, first_gradients(roots, None) if seeds is None else seeds, retain_graph, create_graph, wanted, accumulate
    )


def saved_inputs(op: Op, inputs: tuple[Any, ...]) -> Any:
    """Which of an op's inputs the tape will keep."""
    wants = sum(1 << i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x._requires_grad)
    if not wants or op.grad is None:
        return ()
    plan = op.rules.plan(wants)
    if any(kind == INPUTS for _, kind, _ in plan):
        return range(len(inputs))
    return {i for _, kind, i in plan if kind == INPUT}
