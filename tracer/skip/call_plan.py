"""Turn an observed call into a plan that repeats it without Python.

The plan says where each tensor from outside comes from (an argument, a name, the gradient of a leaf), which gradients the
leaves get, what is returned, which indices have to be checked, and which program runs. If a call cannot be planned, a
`NotPureError` says why the function needs its Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any

from ...eager.arrays import devices, dtypes
from ...eager.arrays.deferred import resolve_array
from ...eager.core.structure.pytree import containers, leaves, replace_leaves
from ...eager.core.tape.node import State
from ...eager.core.tensor import Tensor
from ...eager.nn.parameter import Parameter
from ..execute.segment import Segment
from ..execute.tiering import Tiering
from ..guards.argument_guards import ArgumentGuards
from ..guards.plain_values import PLAIN_TYPES
from ..guards.reachable_state import ModuleStates, NotPureError, ReachableState, UndecidedError
from ..guards.tensor_guards import TensorGuard
from ..purity.abstract_values import SETTINGS
from ..trace.logging import display_line
from ..trace.queries import calls_between, used_slots
from ..trace.tape_plan import DeferredTape, can_defer, topological_order
from ..trace.trace import Backward, Break, Trace, Value
from .deferred_state import CapturedTensor, LeafGradient
from .observe import CallNotes, ObservedCall


class CallPlan:
    """The plan of a skipped call; `SkippedCall` runs it."""

    def __init__(
        self,
        frame: Any,
        before: ObservedCall,
        notes: CallNotes,
        compiled: Any,
        args: Any,
        kwargs: Any,
        result: Any,
        state: State,
    ) -> None:
        trace: Trace = frame.trace
        self.trace, self.compiled = trace, compiled
        self.stop = len(trace.entries) - 1
        for entry in trace.entries[:-1]:
            if isinstance(entry, Break):
                raise NotPureError(f"there is a graph break at {display_line(entry.line)}: {entry.reason}")
        self.snapshot = trace.entries[-1].state
        if self.snapshot is None:
            raise NotPureError("the tape at its end cannot be planned")
        before.check(state)
        self.proof = before.proof
        self.grad_mode, self.dtype, self.device = state.grad, dtypes.get_default_dtype(), devices._default_device
        self.reach = ReachableState(compiled.function, *before.starts)
        self.settings = ModuleStates(self.reach.modules)
        self.names = before.names_guard()
        self.scalars = list(frame.scalars)
        self.optimizers = before.stepped(trace, frame.tensors, frame.scalars)
        self.draws = before.draws(trace, frame.scalars)
        notes.compare(frame, before, self.known_places())
        self.arguments = ArgumentGuards(args, kwargs, self.reach)
        self._given(args, kwargs)
        self.number = {id(t): n for n, t in enumerate(frame.tensors) if t is not None}
        self._sources(frame, before, notes)
        self._gradients(frame, before)
        self._read_by_name(before)
        self._results(frame, result)
        self._checks()
        self._program()
        del self.reach, self.by_id, self.number

    def _given(self, args: Any, kwargs: Any) -> None:
        """Hold objects among the arguments weakly: they need not live as long as the function."""
        lone = self.arguments.lone
        self.given: list[Any] = list(lone.values())
        for x in leaves((args, kwargs)):
            if self.proof is not None and not isinstance(x, (Tensor, *PLAIN_TYPES, *SETTINGS)) and id(x) not in lone:
                raise NotPureError(f"it gets a {type(x).__name__} that other objects refer to, which a guard would keep alive")
        for optimizer in self.optimizers:
            optimizer.hold(id(optimizer.optimizer) in lone)

    def known_places(self) -> set[int]:
        """Return the places of scalars whose origin is known: random draws and hyperparameters."""
        found = {place for draw in self.draws for place in draw}
        for optimizer in self.optimizers:
            found |= optimizer.known_places()
        return found

    def _sources(self, frame: Any, before: ObservedCall, notes: CallNotes) -> None:
        """Find where tensors from outside come from: arguments, names, gradients of leaves."""
        trace, leaf_of = self.trace, before.leaf_of()
        self.captured: list[CapturedTensor] = []
        self.not_by_name: set[int] = set()  # ids of arguments that are not read by name, though they could be
        self.twins: list[tuple[Tensor, int]] = []  # a captured tensor, the slot of the array that it shows
        for slot in sorted(trace.outside):
            value = trace.values[trace.owners[slot]]
            t = frame.tensors[value.index]
            if t is None:
                raise NotPureError("a tensor changed its memory during the call")
            if id(t) not in before.tensors and id(t) not in leaf_of:
                t = self._source_of_alias(t, value, before)
            place = self.arguments.place(t)
            if place is not None:
                if before.may_capture(t) and notes.was_another(slot, place, t):
                    self.not_by_name.add(id(t))
                self.arguments.expect(t, value)
                continue
            leaf = leaf_of.get(id(t))
            if leaf is not None and self.arguments.place(leaf) is not None:
                raise NotPureError("an argument already has a gradient")
            if leaf is None and slot in trace.written and not (self.reach.holds(t) and before.reach.holds(t)):
                raise NotPureError("it writes a tensor that is not reachable by name")
            self.captured.append(CapturedTensor(self, value, t, leaf))
        self.by_id = {id(c.tensor): c for c in self.captured}
        self.twins += self._twins(frame, before, leaf_of)

    def _source_of_alias(self, t: Tensor, value: Value, before: ObservedCall) -> Tensor:
        """Return the argument or captured tensor that a tensor made inside shares its array with, as `x.detach()` does; the
        tensor itself if there is none."""
        array = resolve_array(t.tj_array)
        found = [x for x in before.tensors.values() if resolve_array(x.tj_array) is array]
        if not found:
            return t
        given = [x for x in found if self.arguments.place(x) is not None]
        if given and (len(given) < len(found) or before.may_capture(given[0])):
            raise UndecidedError("an argument shares the memory of a captured tensor")
        if not given:  # whichever of them it was
            self.twins += [(x, value.slot) for x in found[1:]]
        return found[0]

    def _twins(self, frame: Any, before: ObservedCall, leaf_of: dict[int, Tensor]) -> list[tuple[Tensor, int]]:
        """Find tensors on the same arrays as others, which are one input of the program: they have to share them at each call.

        Those among the arguments are guarded there.
        """
        twins = []
        for value in self.trace.values:
            owner, t = self.trace.owners.get(value.slot), frame.tensors[value.index]
            if owner is None or owner == value.index or t is None or (id(t) not in before.tensors and id(t) not in leaf_of):
                continue
            source = frame.tensors[owner]
            if id(source) not in before.tensors:
                source = next((x for x in before.tensors.values() if x.tj_array is source.tj_array), source)
            among = [self.arguments.place(x) is not None for x in (t, source)]
            if id(t) in leaf_of or any(among) != all(among):
                raise UndecidedError("an argument or a gradient shares the memory of a captured tensor")
            if not any(among):
                twins.append((t, value.slot))
        return twins

    def _gradients(self, frame: Any, before: ObservedCall) -> None:
        """Find which leaves get a gradient, or lose it."""
        self.leaf_gradients: list[LeafGradient] = []
        self.given_grads: list[tuple[int, Value]] = []  # place of an argument, its gradient
        ours = {id(p) for s in self.optimizers for g in s.groups for p in g["params"]}
        for n in {e.leaf for entry in self.trace.entries if isinstance(entry, Backward) for e in entry.effects}:
            leaf = frame.tensors[n]
            if self.arguments.place(leaf) is None and not (id(leaf) in before.grads and id(leaf) in self.by_id):
                raise NotPureError("it differentiates with respect to a tensor that is not reachable by name")
            ours.add(id(leaf))
        for i, was in before.grads.items():
            leaf = before.tensors[i]
            now, place = leaf.tj_grad, self.arguments.place(leaf)
            if place is not None and (i in ours or now is not was):
                if was is not None or now is None:
                    raise NotPureError("it drops the gradient of an argument")
                self.given_grads.append((place, self._made(now)))
                self.arguments.without_gradient(place)
            elif now is not was:
                self.leaf_gradients.append(LeafGradient(self, leaf, was is None, None if now is None else self._made(now)))
            elif now is None and (i in ours or self._may_drop(leaf)):
                self.leaf_gradients.append(LeafGradient(self, leaf, True, None))
        # a function that needs leaves without gradients and leaves them with some cannot run twice as it is, nor one that
        # reads gradients and leaves others, or none
        read = {id(c.leaf) for c in self.captured if c.leaf is not None}
        self.once = any((k.required and k.value is not None) or id(k.leaf) in read for k in self.leaf_gradients)

    def _read_by_name(self, before: ObservedCall) -> None:
        """Guard the tensors that Python finds by name: their forms and flags, and which arguments are one of them.

        An argument that is also found by name has to be this very tensor at each call: then it does not matter how it is read.
        """
        found = before.tensors_by_name()
        self.arguments.not_captured(found)
        for i in self.arguments.places.keys() & found.keys() - self.not_by_name:
            self.arguments.pin(found[i])
        known = {id(k.leaf) for k in self.leaf_gradients} | {id(c.leaf) for c in self.captured if c.leaf is not None}
        self.forms = [TensorGuard(t) for i, t in found.items() if i not in self.by_id]  # captured tensors are guarded anyhow
        asked = found if self.proof is None else {}  # no proof lets a function ask for gradients
        self.had_gradients = [(t, t.tj_grad is not None) for i, t in asked.items() if i not in known]

    def _may_drop(self, leaf: Tensor) -> bool:
        """True if the function may drop the gradient of a leaf that had none when it was observed.

        An optimizer leads to leaves that the function does not read; a frozen parameter may get a gradient again.
        """
        may_have = leaf.tj_requires_grad or isinstance(leaf, Parameter)
        return may_have or (self.proof is not None and self.proof.reads(leaf))

    def _made(self, t: Tensor) -> Value:
        n = self.number.get(id(t))
        if n is None or self.trace.values[n].slot in self.trace.outside or self.trace.values[n].view is not None:
            raise NotPureError("a gradient is a view, or comes from outside")
        return self.trace.values[n]

    def _results(self, frame: Any, result: Any) -> None:
        """Plan what to return."""
        shared = set(map(id, containers(self.arguments.given)))
        for x in containers(result):
            if id(x) in shared and x != ():
                raise NotPureError(f"it returns a {type(x).__name__} that it was given, or one {type(x).__name__} twice")
            shared.add(id(x))
            if id(x) in self.reach.seen or (type(x) not in (list, tuple, dict) and not hasattr(x, "_fields")):
                raise NotPureError(f"it returns a {type(x).__name__} that is kept elsewhere, or of a custom class")
        found = list(leaves(result))
        self.result = replace_leaves(result, repeat(None)) if isinstance(result, (list, tuple, dict)) else None
        slots = {id(resolve_array(frame.tensors[v.index].tj_array)): v.slot for v in self.trace.values if self._there(frame, v)}
        self.returned: list[tuple[str, Any]] = []
        first: dict[int, int] = {}
        for i, x in enumerate(found):
            kind, what = self._returned(x, slots)
            again = kind == "alias" and first.setdefault(id(x), i) != i
            self.returned.append(("again", first[id(x)]) if again else (kind, what))
        made = {what: x for (kind, what), x in zip(self.returned, found, strict=True) if kind == "value"}
        self.made = [(n, self.trace.values[n].slot, x.tj_requires_grad) for n, x in made.items()]
        if made.keys() & {k.value.index for k in self.leaf_gradients if k.value is not None}:
            raise NotPureError("it returns the gradient of a leaf")
        wanted = self._with_bases([n for n, _, wants in self.made if wants])
        self.nodes = [n for n in wanted if n in self.snapshot.nodes]
        replayed = self.trace.segments.get((0, self.stop))
        if self.proof is not None and replayed is not None and replayed.joint is not None:
            raise NotPureError("its result is differentiated later: the compiled backward pass needs the Python of the call")
        self._plan_nodes(frame)
        views = any(self.trace.values[n].view is not None for n in made)
        saved = bool(self.nodes) and any(kind == "alias" for kind, _ in self.returned)  # what is saved for a gradient is shown
        self.simple = not views and self.late is not None and not self.given_grads and not saved

    def _there(self, frame: Any, value: Value) -> bool:
        t = frame.tensors[value.index]
        return t is not None and getattr(t.tj_array, "frame", None) is None

    def _returned(self, x: Any, slots: dict[int, int]) -> tuple[str, Any]:
        if not isinstance(x, Tensor):
            if isinstance(x, (*PLAIN_TYPES, dtypes.dtype, devices.device, type)) or id(x) in self.reach.seen:
                return "constant", x
            raise NotPureError(f"it returns a {type(x).__name__}")
        place = self.arguments.place(x)
        if id(x) in self.not_by_name:
            raise UndecidedError("it returns an argument that is also found by name")
        if place is not None:
            return "argument", place
        if id(x) in self.by_id and self.reach.holds(x):
            return "constant", x
        n = self.number.get(id(x))
        if n is not None and self.trace.values[n].slot not in self.trace.outside:
            return "value", n
        slot = slots.get(id(resolve_array(x.tj_array)))
        if slot is None or slot in self.trace.outside or x.tj_requires_grad or x.tj_base is not None:
            raise NotPureError("it returns a tensor that no op made")
        return "alias", slot

    def _plan_nodes(self, frame: Any) -> None:
        """The tape of results: made when somebody looks, if it is used up; `late` is None if it has to be there at once."""
        self.late: list[tuple[int, Any]] | None = []
        for n in self.nodes:
            top = self.snapshot.nodes[n]
            plans = topological_order([top])
            later = DeferredTape(plans, top, self.snapshot)
            for leaf in later.leaves:
                t = frame.tensors[leaf]
                if t is None or (id(t) not in self.by_id and self.arguments.place(t) is None):
                    raise NotPureError("a leaf of its tape is not reachable by name")
            alone = len(self.nodes) == 1 or top in self.snapshot.freed  # no gradient will go through it again
            captured = all(id(frame.tensors[leaf]) in self.by_id for leaf in later.leaves)
            if self.late is None or not (can_defer(plans, self.snapshot) and captured and alone) or later.outer:
                self.late = None
            else:
                self.late.append((n, (later, [frame.tensors[leaf] for leaf in later.leaves], ())))

    def _checks(self) -> None:
        """Indices that have to be looked at, unless they are the same at each call."""
        self.checks: list[tuple[Any, list[Any], list[tuple[int, int]], dict[str, Any]]] = []
        values, trace = self.trace.values, self.trace
        for call in calls_between(trace, 0, self.stop):
            if call.check is None:
                continue
            arrays: list[Any] = []
            fresh: list[tuple[int, int]] = []  # which of the arrays are those of which slots
            last = len(call.inputs) if call.check.last is None else call.check.last
            for i, x in enumerate(call.inputs):
                if not isinstance(x, int):
                    arrays.append(getattr(x, "value", None))
                elif not call.check.first <= i < last:
                    arrays.append(values[x].form(None, values[x].slot))
                else:
                    root = trace.roots[values[x].slot]
                    while root in trace.sources:
                        root = trace.roots[trace.sources[root]]
                    if root not in trace.constants and root not in trace.outside:
                        raise NotPureError(f"the indices of {call.op.name} are computed inside the function")
                    arrays.append(trace.constants.get(root))
                    if root not in trace.constants:
                        fresh.append((i, root))
            if fresh:
                self.checks.append((call.check, arrays, fresh, call.attrs))

    def _program(self) -> None:
        trace = self.trace
        aliased = {what for kind, what in self.returned if kind == "alias"}
        alive = {n for n, _, _ in self.made} | {k.value.index for k in self.leaf_gradients if k.value is not None}
        alive |= {v.index for _, v in self.given_grads}
        alive |= {next(v.index for v in trace.values if v.slot == slot) for slot in aliased}
        self.segment = self._segment(sorted(self._with_bases(alive)))
        self.inside = {root: count for root, count, owner in self.segment.writes if owner is None}
        writes = {root: count for root, count, owner in self.segment.writes if owner is not None}
        self.hidden = [c for c in self.captured if c.value.slot in writes]
        for c in self.hidden:
            c.writes = writes[c.value.slot]
        for k in self.leaf_gradients:
            k.writes = 0 if k.value is None else self.inside.get(trace.roots[k.value.slot], 0)
        self.arguments.complete(writes)
        self.handed = sorted({slot for _, slot, _ in self.made} | aliased | set(self.arguments.slots))

    def _with_bases(self, numbers: Iterable[int]) -> list[int]:
        """Add the bases, made inside, of values that are views."""
        found, values = dict.fromkeys(numbers), self.trace.values
        for n in list(found):
            view = values[n].view
            while view is not None:
                if values[view[0]].slot not in self.trace.outside:
                    found[view[0]] = None
                view = values[view[0]].view
        return list(found)

    def _segment(self, alive: list[int]) -> Segment:
        """Return the segment that a replay has used, or one for the values that outlive a skipped call."""
        trace = self.trace
        found = trace.programs.get((0, self.stop, tuple(alive), tuple(self.nodes), False))
        if found is None or found.joint is not None:
            tops = [self.snapshot.nodes[n] for n in self.nodes]
            keep = frozenset(trace.values[n].slot for n in alive) | self.snapshot.slots(tops) | used_slots(trace, self.stop)
            found = Segment(trace, 0, self.stop, keep, alive, self.nodes, self.snapshot)
            Tiering(found, self.compiled, trace, 0, self.stop, keep)
        return found  # type: ignore[no-any-return]
