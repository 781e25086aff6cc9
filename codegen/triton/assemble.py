"""From a graph to launches: the flat list of its kernels, the memory they need, and the table their parameters point into.

What no kernel is printed for is an op that is called as it is; what follows it is a kernel that reads its result from memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...eager.backends import are_deterministic_algorithms_enabled
from ...tracer.graph import Graph, GraphError
from ..build import Build
from ..kernels import Launch
from ..plan import Arena, Life
from .binaries import Binary, Wanted, binaries
from .body import PRODUCT
from .launch import KERNEL, LOOK, OP, WAIT, Recipe, Row, encoded
from .printer import kernels_of
from .text import Argument, Kernel, Printed

TABLES = "tables"  # the arena's place for tables that kernels read


@dataclass(frozen=True)
class Flat:
    """An entry of the flat list: a kernel of a step, or, without one, the step's op as it is."""

    step: int
    printed: Printed | None = None
    kernel: Kernel | None = None


class GpuBuild(Build):
    """The kernels of a graph, in the order in which they are launched, and the memory they need."""

    def __init__(self, graph: Graph, slots: int, device: str) -> None:
        super().__init__(graph, slots)
        self.target = device
        self.deterministic = are_deterministic_algorithms_enabled()
        self.flat: list[Flat] = []
        self.scratch: list[Life] = []
        self.tables: dict[str, tuple[int | Argument, ...]] = {}
        for i, launch in enumerate(self.steps):
            self.add(i, launch)

    def add(self, i: int, launch: Launch) -> None:
        """The kernels of a step; where it has none, its op as it is and what follows that."""
        found = kernels_of(launch, self.forms, self.target, self.deterministic)
        if found is None:
            self.flat.append(Flat(i))
            if launch.nest is None:
                return
            found = kernels_of(replace(launch, kind="nest"), self.forms, self.target, self.deterministic)
            assert found is not None and launch.node is not None
            size = self.forms[launch.node.results[0]].nbytes
            self.scratch.append(Life(own(PRODUCT, i), size, i, i))
        for name, (dtype, size) in found.scratch.items():
            itemsize = 1 if dtype == "bool" else 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
            self.scratch.append(Life(own(name, i), max(size, 1) * itemsize, i, i))
        names = {PRODUCT, *found.scratch, *found.tables}
        renamed = named(found, names, i)
        self.tables |= renamed.tables
        self.flat += [Flat(i, renamed, kernel) for kernel in renamed.kernels if kernel.grid]

    # ---- the recipe

    def assembly(self, unaligned: frozenset[str]) -> Assembly:
        """Its kernels, compiled. Some inputs may be at addresses that are no multiples of 16 bytes."""
        if any(not isinstance(w, int) and w.buffer in unaligned for words in self.tables.values() for w in words):
            raise GraphError("a kernel takes arrays from a table, and one is at an address that is no multiple of 16")
        kernels = [x for x in self.flat if x.kernel is not None and x.printed is not None]
        wanted = [Wanted(x.printed, x.kernel, unaligned) for x in kernels if x.printed is not None and x.kernel is not None]
        return Assembly(self, kernels, binaries(wanted, self.target))

    def fails(self) -> list[bool]:
        """Of each step: whether it may fail."""
        called = {x.step for x in self.flat if x.kernel is None}
        return [bool(launch.check) or i in called for i, launch in enumerate(self.steps)]


class Assembly:
    """Numbers words of the table, and writes rows."""

    def __init__(self, build: GpuBuild, kernels: list[Flat], made: list[tuple[str, Binary]]) -> None:
        self.build = build
        self.kernels = kernels
        self.made = made
        own_memory = [
            Life(own("scratch", k), x.kernel.grid * b.scratch, x.step, x.step)
            for k, (x, (_, b)) in enumerate(zip(kernels, made, strict=True))
            if x.kernel is not None and b.scratch
        ]
        size = 8 * sum(map(len, build.tables.values()))
        tables = [Life(TABLES, size, 0, len(build.steps) - 1)] if size else []
        self.arena: Arena = build.plan([*build.scratch, *own_memory, *tables])
        self.bound = {**build.inputs, **{v: build.slots + i for v, i in build.outputs.items()}}
        self.kinds = build.number_kinds()
        self.numbers = sorted({a.number for a in self.arguments() if not a.buffer})
        at = 0
        self.table_offsets: dict[str, int] = {}
        for name, words in build.tables.items():
            self.table_offsets[name] = at
            at += 8 * len(words)
        self.places: dict[str, int] = {}
        self.integers: dict[int, int] = {}
        for a in self.arguments():
            if a.buffer and a.buffer not in self.bound and a.buffer not in build.constants:
                self.places.setdefault(a.buffer, len(self.places))
        for k in range(len(kernels)):
            if own("scratch", k) in self.arena.offsets:
                self.places[own("scratch", k)] = len(self.places)
        self.integers = {n: i for i, n in enumerate(dict.fromkeys([0, *self.literals()]))}

    def arguments(self) -> Iterator[Argument]:
        for x in self.kernels:
            assert x.kernel is not None
            yield from x.kernel.arguments
        for words in self.build.tables.values():
            yield from (w for w in words if not isinstance(w, int))

    def literals(self) -> Iterator[int]:
        return (w for words in self.build.tables.values() for w in words if isinstance(w, int))

    def word(self, w: int | Argument) -> int:
        """Which word of the table something is."""
        bound, numbers, places = len(self.bound), len(self.numbers), len(self.places)
        constants = list(self.build.constants)
        if isinstance(w, int):
            return bound + numbers + places + len(constants) + self.integers[w]
        if not w.buffer:
            return bound + self.numbers.index(w.number)
        if w.buffer in self.bound:
            return list(self.bound).index(w.buffer)
        if w.buffer in self.places:
            return bound + numbers + self.places[w.buffer]
        return bound + numbers + places + constants.index(w.buffer)

    def offset(self, name: str) -> int:
        if name in self.table_offsets:
            return self.arena.offsets[TABLES] + self.table_offsets[name]
        return self.arena.offsets[name]

    def rows(self) -> list[Row]:
        found = []
        for k, (x, (key, _)) in enumerate(zip(self.kernels, self.made, strict=True)):
            assert x.kernel is not None
            mine = own("scratch", k)
            last = self.word(Argument("", "", buffer=mine)) if mine in self.places else self.word(0)
            words = [*[self.word(a) for a in x.kernel.arguments], last, self.word(0)]  # Triton's own are the last two
            found.append(Row(key, x.kernel.grid, words))
        return found

    def order(self) -> list[tuple[str, int]]:
        """What is done, one thing after the other: flags are copied when they are there, and looked at before inputs are
        written, or at the end."""
        build = self.build
        found: list[tuple[str, int]] = []
        kernel = looks = 0
        open_looks = False
        last = {x.step: i for i, x in enumerate(build.flat)}
        for i, x in enumerate(build.flat):
            launch = build.steps[x.step]
            if open_looks and any(b in build.inputs for b in launch.writes):
                found.append((WAIT, 0))
                open_looks = False
            if x.kernel is None:
                found.append((OP, x.step))
            else:
                found.append((KERNEL, kernel))
                kernel += 1
            if launch.check and last[x.step] == i:
                found.append((LOOK, looks))
                looks += 1
                open_looks = True
        return [*found, (WAIT, 0)] if open_looks else found

    def recipe(self) -> Recipe:
        build = self.build
        return Recipe(
            slots=build.slots,
            bound=list(self.bound.values()),
            numbers=[(n, self.kinds[n]) for n in self.numbers],
            arena=self.arena.size,
            places=[self.offset(name) for name in self.places],
            constants=[encoded(c) for c in build.constants.values()],
            integers=list(self.integers),
            rows=self.rows(),
            order=self.order(),
            flags=[self.arena.offsets[x.check] for x in build.steps if x.check],
            tables=[self.word(w) for words in build.tables.values() for w in words],
            tables_at=self.arena.offsets.get(TABLES, 0),
            memories=build.memories(),
            shown=build.shown(),
            danger=build.in_danger(build.fails()),
            written=sorted({build.inputs[b] for x in build.steps for b in x.writes if b in build.inputs}),
        )


def own(name: str, i: int) -> str:
    """The name of something that belongs to one step alone."""
    return f"{name} of {i}"


def named(printed: Printed, names: set[str], i: int) -> Printed:
    """Kernels whose own buffers have names that no other step's have."""

    def argument(a: Argument) -> Argument:
        return replace(a, buffer=own(a.buffer, i)) if a.buffer in names else a

    return Printed(
        printed.source,
        [replace(k, arguments=tuple(map(argument, k.arguments))) for k in printed.kernels],
        {own(name, i): size for name, size in printed.scratch.items()},
        {own(t, i): tuple(w if isinstance(w, int) else argument(w) for w in ws) for t, ws in printed.tables.items()},
    )
