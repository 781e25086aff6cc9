"""Observe a call: what the function can reach before it, and what the call has changed.

Every side effect of a step beside its ops shows here: gradients that it sets or drops, step counts of optimizers, random draws.
Any other side effect, such as an attribute that a module sets on itself, needs Python each time. So does anything that differs
between two calls without a known reason: the `CallNotes` of one call are compared with the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np

from ...eager.arrays.devices import to_numpy
from ...eager.core import errors
from ...eager.core.generator import default_generator
from ...eager.core.structure.pytree import leaves
from ...eager.core.tape.node import State
from ...eager.core.tensor import Tensor
from ..guards.code_guards import code_guard
from ..guards.code_observer import CodeObserver, ObservedCode
from ..guards.name_guards import Proof
from ..guards.plain_values import PLAIN_TYPES
from ..guards.reachable_state import ModuleStates, NotPureError, ReachableState, is_weakly_trackable
from ..trace.queries import calls_between
from ..trace.trace import Backward, Call, Number, Trace, same_setting
from .optimizer_state import OptimizerSnapshot, OptimizerStep, optimizer_step_of


class ObservedCall:
    """The state that a function can reach, noted before a call, and checked after it."""

    def __init__(
        self, state: State, function: Callable[..., Any], args: Any, kwargs: Any, proof: Proof | None, promised: bool
    ) -> None:
        self.proof = None if promised else proof  # None if the user promised that Python may be skipped
        self.read = proof  # what the function reads, if its source was analysed
        self.ran = ObservedCode()
        self.warnings = errors.warned[0]
        self.grad_mode = state.grad
        given = list(leaves((args, kwargs)))
        self.starts = [*[x for x in given if not isinstance(x, Tensor)], *(proof.found.values() if proof is not None else ())]
        self.reach = ReachableState(function, *self.starts)
        self.names = self.reach.guards() if self.proof is None else None
        held = [*[x for _, x in self.reach.cells], *[x for _, _, x in (*self.reach.names, *self.reach.fields)]]
        self.objects = [ref(x) for x in given if is_weakly_trackable(x)]
        self.given = [x if isinstance(x, PLAIN_TYPES) else None for x in (*given, *held)] + self.objects
        self.settings = ModuleStates(self.reach.modules)
        self.remembered = [OptimizerSnapshot(o) for o in self.reach.optimizers]
        self.random = default_generator.take_calls(0)
        self.tensors = {**self.reach.tensors, **{id(x): x for x in given if isinstance(x, Tensor)}}
        self.grads = {i: t.tj_grad for i, t in self.tensors.items()}
        self.flags = {i: (t.tj_requires_grad, t.tj_node is not None) for i, t in self.tensors.items()}

    def seen(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the function, and observe which of the library's code runs."""
        if self.proof is None:
            return function(*args, **kwargs)
        with CodeObserver().observing() as self.ran:
            return function(*args, **kwargs)

    def rest_on_code(self, trace: Trace) -> None:
        """Guard the library's code that ran in this call and when its regions were recorded: the proof relies on it."""
        if self.proof is None:
            return
        if self.ran.foreign:
            raise NotPureError("the library calls user code (a hook or a callback)")
        regions = [region for found in trace.regions.values() for region in found.values()]
        passes = [entry for entry in trace.entries if isinstance(entry, Backward)]
        classes = {cls for region in regions for cls in region.classes}
        self.proof.rests_on(code_guard([self.ran, *[part.ran for part in (*regions, *passes)]], classes))

    def path(self, trace: Trace) -> Any:
        """Return the key of calls that can be compared: the path, and the objects among the arguments."""
        return trace.keys, *[id(x()) for x in self.objects]

    def names_guard(self) -> Proof:
        """Return the guard on the names that the function reads: proved from its source, or found by a walk."""
        if self.names is None:
            assert self.proof is not None
            return self.proof
        self.reach.drop_changed(self.names)
        return Proof(self.names)

    def tensors_by_name(self) -> dict[int, Tensor]:
        """Return the tensors that the function may find by name."""
        if self.read is None:
            return self.reach.tensors
        return {i: x for i, x in self.read.found.items() if isinstance(x, Tensor)}

    def may_capture(self, t: Tensor) -> bool:
        """True if the function may read this tensor by name."""
        return self.reach.holds(t) if self.read is None else self.read.reads(t)

    def leaf_of(self) -> dict[int, Tensor]:
        """Map the ids of gradients before the call to their leaves."""
        return {id(g): self.tensors[i] for i, g in self.grads.items() if g is not None}

    def check(self, state: State) -> None:
        """Raise `NotPureError` for a side effect that only Python can repeat."""
        if state.grad is not self.grad_mode:
            raise NotPureError("it changes the grad mode")
        if self.proof is not None and errors.warned[0] != self.warnings:
            raise NotPureError("it warns")
        changed = self.settings.changed_by_itself()
        if changed is not None:
            raise NotPureError(f"{type(changed).__name__} sets attributes during the call")
        for i, t in self.tensors.items():
            if (t.tj_requires_grad, t.tj_node is not None) != self.flags[i]:
                raise NotPureError("it changes `requires_grad` of a tensor")

    def stepped(self, trace: Trace, tensors: list[Any], scalars: list[Any]) -> list[OptimizerStep]:
        """Return plans for the optimizers that have updated parameters."""
        ops = calls_between(trace, 0, len(trace.entries))
        written = {id(tensors[n]) for c in ops for n in c.mutated}
        found = []
        for remembered in self.remembered:
            advanced, optimizer = remembered.advanced(), remembered.optimizer
            if advanced or any(id(p) in written for g in optimizer.param_groups for p in g["params"]):
                found.append(optimizer_step_of(remembered, advanced))
        for call in ops:
            if call.op.mutates and isinstance(call.inputs[0], int) and tensors[call.inputs[0]] is not None:
                p = tensors[call.inputs[0]]
                owners = [s for s in found if s.takes(p) is not None and updates_state_of(s, p, call, tensors)]
                if len(owners) > 1:
                    raise NotPureError("several optimizers have the same parameter")
                if owners:
                    owners[0].add(call, p, scalars)
        for stepped in found:
            stepped.complete()
        return found

    def draws(self, trace: Trace, scalars: list[Any]) -> list[tuple[int, int]]:
        """Return the places of seeds and call numbers of random ops."""
        found = []
        for call in calls_between(trace, 0, len(trace.entries)):
            if call.op.kind == "random":
                names = call.op.input_names or ()
                seed, number = (call.inputs[names.index(name)] for name in ("seed", "call"))
                if not isinstance(seed, Number) or not isinstance(number, Number):
                    raise NotPureError("a random op has a fixed seed")
                found.append((seed.place, number.place))
        began, first = self.random
        numbers = [scalars[place] for _, place in found]
        after = default_generator.take_calls(0)
        if after != (began, first + len(found)) or numbers != list(range(first, first + len(found))):
            raise NotPureError("it uses a random generator other than the default, or seeds it inside")
        return found


def updates_state_of(stepped: OptimizerStep, p: Tensor, call: Call, tensors: list[Any]) -> bool:
    """True if all that an op updates besides the parameter is state of this optimizer."""
    given = [tensors[n] for n in (call.inputs[i] for i in call.op.mutates[1:]) if isinstance(n, int)]
    held = stepped.optimizer.state.get(p, {}).values() if given else ()
    return all(any(t is v for v in held) for t in given)


class CallNotes:
    """What has to be the same in the next call: scalars, and tensors that are made inside from Python values."""

    def __init__(self, frame: Any, before: ObservedCall, args: Any, kwargs: Any) -> None:
        given: dict[int, int] = {}
        for x in leaves((args, kwargs)):
            if isinstance(x, Tensor):
                given.setdefault(id(x), len(given))
        outside = [(slot, frame.tensors[frame.trace.owners[slot]]) for slot in frame.trace.outside]
        self.arguments = {slot: (given[id(t)], ref(t)) for slot, t in outside if id(t) in given}
        self.scalars = list(frame.scalars)
        self.made = {n: np.array(to_numpy(t.tj_array)) for n, t in tensors_made_inside(frame, before)}
        self.given = before.given

    def was_another(self, slot: int, place: int, t: Tensor) -> bool:
        """True if the other call used another tensor from this argument: so it is read as an argument, not by name."""
        before = self.arguments.get(slot)
        return before is not None and before[0] == place and before[1]() is not t

    def can_be_compared(self, before: ObservedCall) -> bool:
        """True if the other call got equal plain arguments; if not, its scalars may well differ."""
        return same_setting(self.given, before.given)

    def compare(self, frame: Any, before: ObservedCall, known: set[int]) -> None:
        """Raise `NotPureError` if something differs, except for scalars at `known` places."""
        for place, (a, b) in enumerate(zip(self.scalars, frame.scalars, strict=True)):
            if place not in known and not same_setting(a, b):
                raise NotPureError(f"a number is {a!r} in one call and {b!r} in the next")
        if frame.brought:
            raise NotPureError("it moves tensors to another device")
        for n, t in tensors_made_inside(frame, before):
            array, was = to_numpy(t.tj_array), self.made.get(n)
            if was is None or array.shape != was.shape or array.dtype != was.dtype or array.tobytes() != was.tobytes():
                raise NotPureError("a tensor made from Python numbers or an array differs from call to call")


def tensors_made_inside(frame: Any, before: ObservedCall) -> list[tuple[int, Tensor]]:
    """Return tensors from outside that are neither found by name nor among the arguments."""
    trace, leaf_of = frame.trace, before.leaf_of()
    found = [(n, frame.tensors[n]) for n in (trace.owners[slot] for slot in trace.outside)]
    return [(n, t) for n, t in found if t is not None and id(t) not in before.tensors and id(t) not in leaf_of]
