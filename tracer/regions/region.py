"""Regions: parts of a function whose ops follow from one check, so that a replay skips their Python.

Calls of the library's own modules and steps of its optimizers run code that is known. If what such code depends on is what it
was (settings, the form of the tensors, who they are), it does the same ops again, and all of them have matched. The ops stay in
the recording as they are: where a check fails, Python runs and they are compared one by one. Backward passes are regions too,
but there is no other way through them: see `Backward` in `trace.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ...eager.core import errors
from ...eager.arrays.devices import device_of
from ...eager.nn.mutation_counter import COUNT
from ...eager.arrays.deferred import Pending
from ...eager.random import default_generator
from ...eager.core.tensor import Tensor, versions_of
from ..trace.specialize import Source
from ..trace.trace import Alias, Backward, Call, First, Number, Trace, Value
from ..guards.code_guards import Ran, same_code

MISSED: Any = object()  # what entering a region returns when the check fails


class NoRegionError(Exception):
    """Why a part of a recording has to be compared op by op."""


class Mark:
    """A place in a recording, where a region may begin."""

    __slots__ = ("changes", "draws", "grad", "numbers", "ran", "start", "values", "warnings")

    def __init__(self, frame: Any) -> None:
        self.start = len(frame.trace.entries)
        self.values = len(frame.trace.values)
        self.numbers = frame.trace.numbers
        self.grad = frame.state.grad
        self.changes = COUNT[0]
        self.warnings = errors.warned[0]
        self.draws = draws_so_far()
        self.ran = Ran()  # the code that made what comes after it


def draws_so_far() -> tuple[int, int]:
    """Seed and number of random calls of the default generator."""
    seed, call = default_generator.get_state()._array.view("<u8").tolist()
    return seed, call


class Fresh:
    """A tensor that a region sees first: bound as `Replayer.bind` does, but quick where its array is the one of last time."""

    __slots__ = ("form", "last", "slot")

    def __init__(self, value: Value) -> None:
        self.slot = value.slot
        self.form = value.form
        self.last: Any = _nothing  # a weak reference: others have to be able to see that nobody else has the array

    def fits(self, x: Tensor, array: Any) -> bool:
        """Whether another array than last time is of the form."""
        form = self.form
        if array.dtype is not form.dtype or array.shape != form.shape or array.strides != form.strides:
            return False
        if type(array) is not np.ndarray if form.on_cpu else isinstance(array, Pending) or device_of(array) != form.where:
            return False
        self.last = weakref.ref(array)
        # what is looked at each time is quicker to find in the tensor than in its class
        x._node, x._versions, x._requires_grad = x._node, versions_of(x), x._requires_grad
        x._hooks, x._after_accumulate = x._hooks, x._after_accumulate
        return True


def _nothing() -> None:
    return None


def at_first(region: Region, *given: Any) -> Any:
    """The entrance of a region is written when it is first needed."""
    if region.owner() is None:
        return region.missed
    region.entering = region.source().function(f"region {region.title}")
    return region.entering(region, *given)


class Nowhere:
    """Stands where no step of an optimizer begins."""

    @staticmethod
    def entering(region: Any, frame: Any, optimizer: Any) -> bool:
        return False


NOWHERE = Nowhere()


class Region:
    """Some entries of a trace, and what it takes to know that they happen again."""

    foreseen = False  # whether it is a step of an optimizer
    missed: Any = MISSED  # what entering it returns when the check fails
    holds: tuple[str, ...] = ()  # attributes with what belongs to the module or optimizer, to be let go when that is gone

    def __init__(self, frame: Any, mark: Mark, owner: Any, title: str, classes: Iterable[type] = ()) -> None:
        trace: Trace = frame.trace
        me = weakref.ref(self)
        self.key = id(owner)
        self.owner = weakref.ref(owner, lambda _: me() and me().let_go())  # type: ignore[union-attr]
        self.title = title
        self.start, self.stop = mark.start, len(trace.entries)
        self.grad = mark.grad
        self.entries: list[Call] = trace.entries[mark.start :]
        self.check_entries()
        if errors.warned[0] != mark.warnings:
            raise NoRegionError("it warns")
        if mark.ran.foreign:
            raise NoRegionError("it runs the user's code")
        self.ran, self.classes = mark.ran, tuple(classes)
        self.same_code = same_code([mark.ran], classes)
        self.line = self.entries[0].line
        self.mutated = tuple(sorted({n for call in self.entries for n in call.mutated}))
        self.fresh = {w.value.index: w for call in self.entries for w in call.wants if isinstance(w, First)}
        if any(w.value.tracked for w in self.fresh.values()):
            raise NoRegionError("it sees a history from outside")
        self.inside = {v.index: v for call in self.entries for v in call.results}
        self.values: list[Value] = trace.values
        self.kept: list[Value] = []  # what is promised
        self.entering: Callable[..., Any] = at_first  # given the region, a frame and what the call is given
        self.entered = 0

    def let_go(self) -> None:
        """Whose region this is is gone: nothing of it is kept alive."""
        for name in self.holds:
            self.__dict__.pop(name, None)
        self.entering = at_first

    def check_entries(self) -> None:
        for entry in self.entries:
            if not isinstance(entry, Call):
                raise NoRegionError(f"there is {entry!r} in it")
            if any(isinstance(w, Alias) for w in entry.wants):
                raise NoRegionError("it detaches a tensor")
            if entry.turned or (entry.out is not None and entry.flags[-1]):
                raise NoRegionError("it changes a history in place")

    def keep(self, values: Iterable[Value]) -> None:
        """Promise some of the results, and what they are views of."""
        wanted = {v.index: v for v in values}
        for value in list(wanted.values()):
            while value.view is not None and value.view[0] in self.inside:
                value = self.inside[value.view[0]]
                wanted[value.index] = value
        self.kept = [v for _, v in sorted(wanted.items())]

    def hidden(self) -> set[int]:
        """Values made inside that nobody outside can have."""
        return self.inside.keys() - {v.index for v in self.kept}

    def source(self) -> Source:
        """The function that looks, and promises: it returns what the call does, or `missed` if it is another call."""
        raise NotImplementedError

    def finished(self, source: Source, targets: dict[int, str]) -> None:
        """All has matched: go on after the region. `targets` are variables with tensors whose memory is written."""
        source.add(
            "R.entered += 1",
            f"f.cursor = {self.stop}; h = f.trace.steps[{self.stop}]",
            "f.state.handler = f if h is general else Method(h, f)",
        )
        if self.mutated and all(n in targets for n in self.mutated):
            source.hide([(targets[n], self.values[n]) for n in self.mutated], "R")
        elif self.mutated:
            source.add("f.write(R)")

    def undo(self, frame: Any) -> None:
        """Take back what was bound before the check failed."""
        for n, want in self.fresh.items():
            t = frame.tensors[n]
            if t is not None and frame.number.get(id(t)) == n:
                del frame.number[id(t)]
            array = frame.arrays[want.value.slot]
            if array is not None and n not in frame.copies:
                frame.slots.pop(id(array), None)
            frame.copies.pop(n, None)
            frame.tensors[n] = frame.held[n] = frame.arrays[want.value.slot] = None

    def __repr__(self) -> str:
        return f"{self.title}: {len(self.entries)} ops"


def settle_regions(trace: Trace) -> None:
    """The trace is complete: forget regions of which a later entry sees more than they promise, and place the others."""
    drop_leaky(trace)
    found = [r for regions in trace.regions.values() for r in regions.values() if r.foreseen]
    steps = {region.start: region for region in found}
    trace.foreseen = [steps.get(k, NOWHERE) for k in range(len(trace.entries))]


def drop_leaky(trace: Trace) -> None:
    """Forget the regions of a complete trace of which a later entry sees more than they promise."""
    found = [r for regions in trace.regions.values() for r in regions.values()]
    last = {n: k for k, entry in enumerate(trace.entries) for n in numbers_in(entry)}  # of each value: who uses it last
    for region in found:
        if any(last.get(n, -1) >= region.stop for n in region.hidden()):
            del trace.regions[region.start][region.key]


def numbers_in(entry: Any) -> Iterable[int]:
    """The values that an entry expects to know."""
    if isinstance(entry, Call):
        return [n for n in (*entry.inputs, entry.out) if isinstance(n, int)]
    if isinstance(entry, Backward):
        leaves = [n for e in entry.effects for n in (e.leaf, e.before) if n is not None]
        return [*entry.roots, *entry.given, *(entry.wanted or ()), *leaves]
    return []


def draws_of(region: Region, frame: Any, mark: Mark) -> tuple[tuple[int, int], ...]:
    """The places of seed and call number of each random op; all of them have to be the default generator's."""
    places = []
    for call in region.entries:
        if call.op.kind == "random":
            names = call.op.input_names or ()
            seed, number = (call.inputs[names.index(name)] for name in ("seed", "call"))
            if not isinstance(seed, Number) or not isinstance(number, Number):
                raise NoRegionError("a random op whose numbers are fixed")
            places.append((seed.place, number.place))
    seed_now, drawn = draws_so_far()
    if (seed_now, drawn) != (mark.draws[0], mark.draws[1] + len(places)):
        raise NoRegionError("it draws random numbers in a way of its own")
    if any(frame.scalars[seed] != seed_now for seed, _ in places):
        raise NoRegionError("random numbers come from a generator of its own")
    return tuple(places)
