"""Regions: parts of a function whose ops follow from one check, so that a replay skips their Python.

Calls of the library's own modules and steps of its optimizers run code that is known. If what such code depends on is what it
was (settings, the form of the tensors, who they are), it does the same ops again, and all of them have matched. The ops stay in
the recording as they are: where a check fails, Python runs and they are compared one by one. Backward passes are regions too,
but there is no other way through them: see `Backward` in `tracer/trace/trace.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ...eager.arrays.deferred import DeferredArray
from ...eager.arrays.devices import device_of
from ...eager.core import errors
from ...eager.core.generator import default_generator
from ...eager.core.tensor import Tensor, versions_of
from ...eager.nn.mutation_counter import MUTATION_COUNT
from ..guards.code_guards import code_guard
from ..guards.code_observer import ObservedCode
from ..trace.specialize import ReplayWriter
from ..trace.trace import Alias, Backward, Call, NewInput, Number, Trace, Value

MISSED: Any = object()  # returned by a region's entry when its check fails


class NoRegionError(Exception):
    """The reason why a part of a recording has to be matched op by op."""


class RegionStart:
    """The state of a recording where a region may begin."""

    __slots__ = ("changes", "draws", "grad", "numbers", "ran", "start", "values", "warnings")

    def __init__(self, frame: Any) -> None:
        self.start = len(frame.trace.entries)
        self.values = len(frame.trace.values)
        self.numbers = frame.trace.numbers
        self.grad = frame.state.grad
        self.changes = MUTATION_COUNT[0]
        self.warnings = errors.warned[0]
        self.draws = random_state()
        self.ran = ObservedCode()  # the code that made what comes after it


def random_state() -> tuple[int, int]:
    """Return the seed and the number of random calls of the default generator."""
    seed, call = default_generator.get_state().tj_array.view("<u8").tolist()
    return seed, call


class FirstUse:
    """A tensor that a region uses first: bound as by `Replayer.bind`, but fast if its array is that of the last time."""

    __slots__ = ("form", "last", "slot")

    def __init__(self, value: Value) -> None:
        self.slot = value.slot
        self.form = value.form
        self.last: Any = _no_array  # a weak reference: others have to be able to see that nobody else has the array

    def fits(self, x: Tensor, array: Any) -> bool:
        """Check the form of an array that is not that of the last time."""
        form = self.form
        if array.dtype is not form.dtype or array.shape != form.shape or array.strides != form.strides:
            return False
        if type(array) is not np.ndarray if form.on_cpu else isinstance(array, DeferredArray) or device_of(array) != form.where:
            return False
        self.last = weakref.ref(array)
        # what is looked at each time is quicker to find in the tensor than in its class
        x.tj_node, x.tj_versions, x.tj_requires_grad = x.tj_node, versions_of(x), x.tj_requires_grad
        x.tj_hooks, x.tj_accumulate_hooks = x.tj_hooks, x.tj_accumulate_hooks
        return True


def _no_array() -> None:
    return None


def compile_entry(region: Region, *given: Any) -> Any:
    """Compile the entry of a region when it is first needed."""
    if region.owner() is None:
        return region.missed
    region.entering = region.source().function(f"region {region.title}")
    return region.entering(region, *given)


class NoRegion:
    """Placeholder for entries at which no optimizer step begins."""

    @staticmethod
    def entering(region: Any, frame: Any, optimizer: Any) -> bool:
        return False


NO_REGION = NoRegion()


class Region:
    """Entries of a trace that follow from one check, so that a replay skips the Python which leads to them."""

    is_optimizer_step = False  # True for the step of an optimizer
    missed: Any = MISSED  # what entering it returns when the check fails
    holds: tuple[str, ...] = ()  # attributes that refer to the module or optimizer, dropped when that is gone

    def __init__(self, frame: Any, mark: RegionStart, owner: Any, title: str, classes: Iterable[type] = ()) -> None:
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
            raise NoRegionError("it runs user code")
        self.ran, self.classes = mark.ran, tuple(classes)
        self.same_code = code_guard([mark.ran], classes)
        self.line = self.entries[0].line
        self.mutated = tuple(sorted({n for call in self.entries for n in call.mutated}))
        self.fresh = {w.value.index: w for call in self.entries for w in call.wants if isinstance(w, NewInput)}
        if any(w.value.tracked for w in self.fresh.values()):
            raise NoRegionError("it uses a tensor whose history begins outside")
        self.inside = {v.index: v for call in self.entries for v in call.results}
        self.values: list[Value] = trace.values
        self.kept: list[Value] = []  # what is promised
        self.entering: Callable[..., Any] = compile_entry  # given the region, a frame and what the call is given
        self.entered = 0

    def let_go(self) -> None:
        """Drop all references, as the module or optimizer of this region is gone."""
        for name in self.holds:
            self.__dict__.pop(name, None)
        self.entering = compile_entry

    def check_entries(self) -> None:
        for entry in self.entries:
            if not isinstance(entry, Call):
                raise NoRegionError(f"it contains {entry!r}")
            if any(isinstance(w, Alias) for w in entry.wants):
                raise NoRegionError("it detaches a tensor")
            if entry.turned or (entry.out is not None and entry.flags[-1]):
                raise NoRegionError("it changes the history of a tensor in place")

    def keep(self, values: Iterable[Value]) -> None:
        """Choose the results that outlive the region, with the bases of views."""
        wanted = {v.index: v for v in values}
        for value in list(wanted.values()):
            while value.view is not None and value.view[0] in self.inside:
                value = self.inside[value.view[0]]
                wanted[value.index] = value
        self.kept = [v for _, v in sorted(wanted.items())]

    def hidden(self) -> set[int]:
        """Return the values that are only visible inside the region."""
        return self.inside.keys() - {v.index for v in self.kept}

    def source(self) -> ReplayWriter:
        """Write the entry function: it checks, makes deferred results, and returns what the call returns, or `missed`."""
        raise NotImplementedError

    def finished(self, source: ReplayWriter, targets: dict[int, str]) -> None:
        """Write the lines that go on after the region. `targets` are variables with tensors whose memory is written."""
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
        """Unbind what was bound before the check failed."""
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


def finish_regions(trace: Trace) -> None:
    """Finish a complete trace: drop leaking regions, and note where optimizer steps begin."""
    drop_leaking_regions(trace)
    found = [r for regions in trace.regions.values() for r in regions.values() if r.is_optimizer_step]
    steps = {region.start: region for region in found}
    trace.step_regions = [steps.get(k, NO_REGION) for k in range(len(trace.entries))]


def drop_leaking_regions(trace: Trace) -> None:
    """Drop regions whose inner values are used by a later entry."""
    found = [r for regions in trace.regions.values() for r in regions.values()]
    last = {n: k for k, entry in enumerate(trace.entries) for n in values_used_by(entry)}  # of each value: who uses it last
    for region in found:
        if any(last.get(n, -1) >= region.stop for n in region.hidden()):
            del trace.regions[region.start][region.key]


def values_used_by(entry: Any) -> Iterable[int]:
    """Return the values that an entry uses."""
    if isinstance(entry, Call):
        return [n for n in (*entry.inputs, entry.out) if isinstance(n, int)]
    if isinstance(entry, Backward):
        leaves = [n for e in entry.effects for n in (e.leaf, e.before) if n is not None]
        return [*entry.roots, *entry.given, *(entry.wanted or ()), *leaves]
    return []


def random_draws(region: Region, frame: Any, mark: RegionStart) -> tuple[tuple[int, int], ...]:
    """Return the places of seed and call number of each random op, all of the default generator."""
    places = []
    for call in region.entries:
        if call.op.kind == "random":
            names = call.op.input_names or ()
            seed, number = (call.inputs[names.index(name)] for name in ("seed", "call"))
            if not isinstance(seed, Number) or not isinstance(number, Number):
                raise NoRegionError("a random op has a fixed seed")
            places.append((seed.place, number.place))
    seed_now, drawn = random_state()
    if (seed_now, drawn) != (mark.draws[0], mark.draws[1] + len(places)):
        raise NoRegionError("it draws random numbers without an op")
    if any(frame.scalars[seed] != seed_now for seed, _ in places):
        raise NoRegionError("it uses a random generator other than the default")
    return tuple(places)
