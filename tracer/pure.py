"""`compile(pure=True)`: the user promises that the Python inside only touches tensors. Then it is skipped, and only guards run.

What a call needs beyond the recording follows from the call that was recorded: where each tensor from outside came from (a
place in the arguments, or captured: then it is kept) and what was returned. Guards are on the arguments (tensors by form, all
else by equality), on the versions of modules that the function refers to, on the captured tensors' form, on grad mode. A
function that breaks, runs a backward pass or an optimizer, or changes histories in place is replayed as any other: there Python
has something to do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ..eager.nn.module import Module
from ..eager.random import default_generator
from ..eager.tape import State
from ..eager.tensor import Tensor, wrap
from .record import Recorder
from .replay import Replayer
from .trace import Alias, Call, End, First, Number, Trace, alike

PLAIN = (int, float, bool, str, bytes, type(None))


class NotPureError(Exception):
    """Why Python cannot be skipped."""


def leaves(x: Any) -> Iterator[Any]:
    """What containers hold, in order."""
    if isinstance(x, (list, tuple)):
        for part in x:
            yield from leaves(part)
    elif isinstance(x, dict):
        for part in x.values():
            yield from leaves(part)
    else:
        yield x


def like(x: Any, parts: Iterator[Any]) -> Any:
    """A copy of nested containers with other things in them."""
    if isinstance(x, (list, tuple)):
        found = [like(part, parts) for part in x]
        return type(x)(*found) if hasattr(x, "_fields") else type(x)(found)
    return {k: like(v, parts) for k, v in x.items()} if isinstance(x, dict) else next(parts)


def shape_of(x: Any) -> Any:
    """Nested containers without what they hold."""
    if isinstance(x, (list, tuple)):
        return type(x), tuple(shape_of(part) for part in x)
    return (dict, tuple((k, shape_of(v)) for k, v in x.items())) if isinstance(x, dict) else None


def modules_of(function: Callable[..., Any], given: tuple[Any, ...]) -> list[Module]:
    """The modules that a function refers to by its closure, its globals and its arguments, and all inside them."""
    plain = inspect.unwrap(function)
    found: list[Any] = [*leaves(given), getattr(plain, "__self__", None)]
    try:
        variables = inspect.getclosurevars(plain)
    except TypeError:
        variables = None
    if variables is not None:
        found += [*leaves(tuple(variables.nonlocals.values())), *leaves(tuple(variables.globals.values()))]
    tops = [m for m in found if isinstance(m, Module)]
    return list({id(m): m for top in tops for m in top.modules()}.values())


class Pure:
    """A recording that can run without Python."""

    def __init__(self, frame: Recorder, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        trace = frame.trace
        for entry in trace.entries:
            if not isinstance(entry, (Call, End)):
                raise NotPureError(f"it has {entry!r}")
            if isinstance(entry, Call) and entry.check is not None and not self._outside(entry, trace):
                raise NotPureError(f"the indices of {entry.op.name} are computed inside")
            if isinstance(entry, Call) and (entry.turned or any(isinstance(w, Alias) for w in entry.wants)):
                raise NotPureError(f"{entry.op.name} changes a history, or takes a detached tensor")
        if trace.entries[-1].state is None:
            raise NotPureError("its tape cannot be planned")
        self.trace: Trace = trace
        given = (args, kwargs)
        self.layout = shape_of(given)
        self.modules = [(m, m._version_number) for m in modules_of(function, given)]
        self.constants = [None if isinstance(x, Tensor) else x for x in leaves(given)]
        if not all(isinstance(x, (Tensor, Module, *PLAIN)) for x in leaves(given)):
            raise NotPureError("an argument is neither a tensor nor a plain value")
        places = {id(x): i for i, x in enumerate(leaves(given)) if isinstance(x, Tensor)}
        firsts = [w for e in trace.entries if isinstance(e, Call) for w in e.wants if isinstance(w, First)]
        # (what to expect, place among the arguments or None, the captured tensor or None)
        came = [(w, frame.tensors[w.value.index]) for w in firsts]
        self.sources = [(w, places.get(id(t)), None if id(t) in places else t) for w, t in came]
        self.scalars = list(frame.scalars)
        self.draws = [self._places(e) for e in trace.entries if isinstance(e, Call) and e.op.kind == "random"]
        self.grads = {e.grad for e in trace.entries if isinstance(e, Call)} or {True, False}
        if len(self.grads) > 1 and trace.entries[:-1]:
            raise NotPureError("it switches gradients on or off")
        self.result = like(result, iter([None] * sum(1 for _ in leaves(result))))
        self.returned = [self._returned(x, frame, places) for x in leaves(result)]

    def _outside(self, entry: Call, trace: Trace) -> bool:
        """Whether an op's indices come from outside as they are."""
        check = entry.check
        return all(trace.values[n].slot in trace.outside for n in entry.inputs[check.first : check.last] if isinstance(n, int))

    def _places(self, entry: Call) -> tuple[int, int]:
        names = entry.op.input_names or ()
        seed, call = (entry.wants[names.index(name)] for name in ("seed", "call"))
        if not isinstance(seed, Number) or self.scalars[seed.place] != default_generator.initial_seed():
            raise NotPureError("random numbers come from a generator of its own")
        return seed.place, call.place

    def _returned(self, x: Any, frame: Recorder, places: dict[int, int]) -> tuple[str, Any]:
        if not isinstance(x, Tensor):
            return ("constant", x)
        n = frame.number.get(id(x))
        if n is not None:
            return ("value", n)
        return ("argument", places[id(x)]) if id(x) in places else ("constant", x)

    def run(self, state: State, function: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """Whether all guards hold, and then the result."""
        given = (args, kwargs)
        parts = list(leaves(given))
        if state.autocast is not None or state.grad not in self.grads or shape_of(given) != self.layout:
            return False, None
        if any(m._version_number != version for m, version in self.modules):
            return False, None
        for x, constant in zip(parts, self.constants, strict=True):
            if not isinstance(x, Tensor) and x is not constant and not alike(x, constant):
                return False, None
        frame = Replayer(state, self.trace, function)
        try:
            for want, place, captured in self.sources:
                if not frame.bind(want, captured if place is None else parts[place]):
                    return False, None
            frame.scalars = list(self.scalars)
            for seed, call in self.draws:
                frame.scalars[seed], frame.scalars[call] = default_generator.take_call()
            for entry in self.trace.entries:
                if isinstance(entry, Call) and entry.check is not None:
                    inputs = tuple(self._looked_at(frame, n) if isinstance(n, int) else n for n in entry.inputs)
                    entry.check.settled(frame, inputs, entry.attrs)
            found = [self._promise(frame, kind, what, parts) for kind, what in self.returned]
            frame.cursor = len(self.trace.entries) - 1
            frame.segment()
            return True, like(self.result, iter(found))
        finally:
            frame.close()

    def _looked_at(self, frame: Replayer, n: int) -> Tensor:
        """A tensor that is looked at before the program runs: indices are from outside, others only have a form."""
        t = frame.tensors[n]
        if t is None:
            value = self.trace.values[n]
            t = wrap(value.form(frame, value.slot))
        return t  # type: ignore[no-any-return]

    def _promise(self, frame: Replayer, kind: str, what: Any, parts: list[Any]) -> Any:
        if kind != "value":
            return parts[what] if kind == "argument" else what
        value = self.trace.values[what]
        if value.view is not None and frame.tensors[value.view[0]] is None:
            self._promise(frame, "value", value.view[0], parts)
        return frame.promised(value)
