"""A call that is watched: what a function could reach before it, and what has become of that.

Everything that a step does beside its ops shows here: gradients that it sets or drops, counts that optimizers keep, random
numbers it draws. What is not of these kinds, such as an attribute that a module sets on itself, needs Python each time. So does
what is not the same in two calls for no reason that is known: `Notes` of one call are compared with the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np

from ...eager.core import errors
from ...eager.arrays.devices import to_numpy
from ...eager.random import default_generator
from ...eager.core.tape.node import State
from ...eager.core.tensor import Tensor
from ..execute.reference_program import calls
from ..guards.name_guards import Proof
from .pure_foretold import stepped_by
from ..guards.argument_guards import leaves
from ..guards.reachable_state import PLAIN, NotPureError, Reach, Settings, can_be_watched
from .optimizer_state import Remembered, Stepped
from ..trace.trace import Backward, Call, Number, Trace, alike
from ..guards.code_guards import Ran, Witness, same_code


class Before:
    """What a function can reach, before a call of it."""

    def __init__(
        self, state: State, function: Callable[..., Any], args: Any, kwargs: Any, proof: Proof | None, promised: bool
    ) -> None:
        self.proof = None if promised else proof  # that Python may be skipped, if nobody has promised it
        self.read = proof  # what the function reads, if its source was gone through
        self.ran = Ran()
        self.warnings = errors.warned[0]
        self.grad_mode = state.grad
        given = list(leaves((args, kwargs)))
        self.starts = [*[x for x in given if not isinstance(x, Tensor)], *(proof.found.values() if proof is not None else ())]
        self.reach = Reach(function, *self.starts)
        held = [*[x for _, x in self.reach.cells], *[x for _, _, x in self.reach.names]]
        self.objects = [ref(x) for x in given if can_be_watched(x)]
        self.given = [x if isinstance(x, PLAIN) else None for x in (*given, *held)] + self.objects
        self.settings = Settings(self.reach.modules)
        self.remembered = [Remembered(o) for o in self.reach.optimizers]
        self.random = default_generator.take_calls(0)
        self.tensors = {**self.reach.tensors, **{id(x): x for x in given if isinstance(x, Tensor)}}
        self.grads = {i: t._grad for i, t in self.tensors.items()}
        self.flags = {i: (t._requires_grad, t._node is not None) for i, t in self.tensors.items()}

    def seen(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the function, and note which of the library's code runs for it."""
        if self.proof is None:
            return function(*args, **kwargs)
        with Witness().seeing() as self.ran:
            return function(*args, **kwargs)

    def rest_on_code(self, trace: Trace) -> None:
        """What a proof says holds for the code of the library that ran in this call, or for a region when it was recorded."""
        if self.proof is None:
            return
        if self.ran.foreign:
            raise NotPureError("the library calls code of its user's")
        regions = [region for found in trace.regions.values() for region in found.values()]
        passes = [entry for entry in trace.entries if isinstance(entry, Backward)]
        classes = {cls for region in regions for cls in region.classes}
        self.proof.rests_on(same_code([self.ran, *[part.ran for part in (*regions, *passes)]], classes))

    def path(self, trace: Trace) -> Any:
        """What calls have to have in common to be compared: the path, and the objects that are given."""
        return trace.keys, *[id(x()) for x in self.objects]

    def may_capture(self, t: Tensor) -> bool:
        """Whether the function may have a tensor from elsewhere than its arguments."""
        return self.reach.holds(t) if self.read is None else self.read.reads(t)

    def leaf_of(self) -> dict[int, Tensor]:
        """Of gradients that there were: whose they were."""
        return {id(g): self.tensors[i] for i, g in self.grads.items() if g is not None}

    def check(self, state: State) -> None:
        """What has changed in a way that only Python can repeat is an error."""
        if state.grad is not self.grad_mode:
            raise NotPureError("it leaves gradients switched on or off")
        if self.proof is not None and errors.warned[0] != self.warnings:
            raise NotPureError("it warns")
        changed = self.settings.changed_by_itself()
        if changed is not None:
            raise NotPureError(f"{type(changed).__name__} sets attributes of its own")
        for i, t in self.tensors.items():
            if (t._requires_grad, t._node is not None) != self.flags[i]:
                raise NotPureError("it changes whether a tensor requires a gradient")

    def stepped(self, trace: Trace, tensors: list[Any], scalars: list[Any]) -> list[Stepped]:
        """The optimizers that have updated parameters."""
        ops = calls(trace, 0, len(trace.entries))
        written = {id(tensors[n]) for c in ops for n in c.mutated}
        found = []
        for remembered in self.remembered:
            advanced, optimizer = remembered.advanced(), remembered.optimizer
            if advanced or any(id(p) in written for g in optimizer.param_groups for p in g["params"]):
                found.append(stepped_by(remembered, advanced))
        for call in ops:
            if call.op.mutates and isinstance(call.inputs[0], int) and tensors[call.inputs[0]] is not None:
                p = tensors[call.inputs[0]]
                owners = [s for s in found if s.takes(p) is not None and has_state(s, p, call, tensors)]
                if len(owners) > 1:
                    raise NotPureError("several optimizers have the same parameter")
                if owners:
                    owners[0].add(call, p, scalars)
        for stepped in found:
            stepped.complete()
        return found

    def draws(self, trace: Trace, scalars: list[Any]) -> list[tuple[int, int]]:
        """The places of seeds and call numbers of random ops."""
        found = []
        for call in calls(trace, 0, len(trace.entries)):
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
            raise NotPureError("random numbers come from a generator of its own, or it is seeded inside")
        return found


def has_state(stepped: Stepped, p: Tensor, call: Call, tensors: list[Any]) -> bool:
    """Whether what an op updates beside a parameter is the optimizer's."""
    given = [tensors[n] for n in (call.inputs[i] for i in call.op.mutates[1:]) if isinstance(n, int)]
    held = stepped.optimizer.state.get(p, {}).values() if given else ()
    return all(any(t is v for v in held) for t in given)


class Notes:
    """What should be the same in another call: numbers, and tensors that are made inside of what is no tensor."""

    def __init__(self, frame: Any, before: Before, args: Any, kwargs: Any) -> None:
        given: dict[int, int] = {}
        for x in leaves((args, kwargs)):
            if isinstance(x, Tensor):
                given.setdefault(id(x), len(given))
        outside = [(slot, frame.tensors[frame.trace.owners[slot]]) for slot in frame.trace.outside]
        self.arguments = {slot: (given[id(t)], ref(t)) for slot, t in outside if id(t) in given}
        self.scalars = list(frame.scalars)
        self.made = {n: np.array(to_numpy(t._array)) for n, t in made_inside(frame, before)}
        self.given = before.given

    def was_another(self, slot: int, place: int, t: Tensor) -> bool:
        """Whether the other call was given another tensor in this place, and it was used: so it is used as an argument."""
        before = self.arguments.get(slot)
        return before is not None and before[0] == place and before[1]() is not t

    def can_be_compared(self, before: Before) -> bool:
        """Whether the other call was given the same numbers; if not, its own may well be others."""
        return alike(self.given, before.given)

    def compare(self, frame: Any, before: Before, known: set[int]) -> None:
        """An error if something is not, except for numbers of which it is known why."""
        for place, (a, b) in enumerate(zip(self.scalars, frame.scalars, strict=True)):
            if place not in known and not alike(a, b):
                raise NotPureError(f"a number is {a!r} in one call and {b!r} in the next")
        if frame.brought:
            raise NotPureError("it brings tensors to another device")
        for n, t in made_inside(frame, before):
            array, was = to_numpy(t._array), self.made.get(n)
            if was is None or array.shape != was.shape or array.dtype != was.dtype or array.tobytes() != was.tobytes():
                raise NotPureError("a tensor that is made of Python numbers or of an array is another at each call")


def made_inside(frame: Any, before: Before) -> list[tuple[int, Tensor]]:
    """Tensors from outside that can be found neither by name nor among the arguments."""
    trace, leaf_of = frame.trace, before.leaf_of()
    found = [(n, frame.tensors[n]) for n in (trace.owners[slot] for slot in trace.outside)]
    return [(n, t) for n, t in found if t is not None and id(t) not in before.tensors and id(t) not in leaf_of]
