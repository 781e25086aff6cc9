"""From a graph to launches: the flat list of its kernels, the memory they need, and the table their parameters point into.

What no kernel is printed for is an op that is called as it is; what follows it is a kernel that reads its result from memory.
Products that cuBLAS does better are calls among the launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...tracer.graph.ir import Graph, GraphError
from ..program.builder import Build
from ..nests.kernels import scheduled
from ..schedule.memory_plan import Arena, Life
from .runtime.kernel_cache import Binary, Wanted, binaries
from .printing.expr_printer import PRODUCT
from .runtime.cuda_graph import FEWEST
from .launches.group_launches import grouped
from .runtime.launcher import GEMM, KERNEL, LOOK, OP, WAIT, Recipe, Row, encoded
from .launches.scalars_in_memory import in_memory
from .launches.print_launch import Prints, prepared_for_gpu
from .printing.kernel_text import Argument, Words
from .launches.launch_unit import Unit, own

OWN = "what Triton keeps of"  # a kernel


class GpuBuild(Build):
    """The steps of a graph, for a device."""

    apart = True

    def __init__(
        self, graph: Graph, slots: int, target: str, precision: str, deterministic: bool, library: bool = False
    ) -> None:
        work = prepared_for_gpu(graph)
        super().__init__(graph, slots, work, scheduled(work, gpu=True))
        self.target = target
        self.prints = Prints(self.forms, self.layout, target, precision, deterministic, library)

    def units(self, unaligned: frozenset[str] = frozenset()) -> list[Unit]:
        """The kernels, in the order in which they are launched. Where there are many, numbers come from memory: so their
        launches can be a CUDA graph."""
        found = grouped(self.steps, self.prints, unaligned)
        if sum(x.printed is not None for x in found) < FEWEST:
            return found
        return [x if x.printed is None else replace(x, printed=in_memory(x.printed)) for x in found]

    def assembly(self, unaligned: frozenset[str]) -> Assembly:
        """The kernels, compiled. Some inputs may be at addresses that are no multiples of 16 bytes."""
        units = self.units(unaligned)
        for x in units:
            words = [w for table in x.printed.tables.values() for w in table] if x.printed is not None else []
            if any(not isinstance(w, int) and w.buffer in unaligned for w in words):
                raise GraphError("a kernel takes arrays from a table, and one is at an address that is no multiple of 16")
        wanted = [Wanted(x.printed, x.kernel, unaligned) for x in units if x.printed is not None and x.kernel is not None]
        return Assembly(self, units, binaries(wanted, self.target))


class Assembly:
    """Numbers words of the table, and writes rows."""

    def __init__(self, build: GpuBuild, units: list[Unit], made: list[tuple[str, Binary]]) -> None:
        self.build = build
        self.units = units
        self.made = made
        self.kernels = [(i, x.kernel) for i, x in enumerate(units) if x.kernel is not None]
        self.gemms = [x.gemm for x in units if x.gemm is not None]
        self.tables: dict[str, Words] = {}
        self.starts: dict[str, int] = {}  # where each table begins among all of them
        size = 0
        for x in units:
            for name, words in x.printed.tables.items() if x.printed is not None else ():
                if name not in self.tables:
                    self.tables[name], self.starts[name] = padded(words), size
                    size += 8 * len(padded(words))
        self.arena: Arena = build.plan(units, self.own_memory(), self.scratch())
        self.bound = {**build.inputs, **{v: build.slots + i for v, i in build.outputs.items()}}
        self.kinds = build.number_kinds()
        self.numbers = sorted({a.number for a in self.arguments() if not a.buffer})
        outside = self.bound.keys() | build.constants.keys() | self.tables.keys()
        named = [a.buffer for a in self.arguments() if a.buffer and a.buffer not in outside]
        named += [name for name in self.arena.offsets if name.startswith(OWN)]
        integers = [w for words in self.tables.values() for w in words if isinstance(w, int)]
        self.places = {name: i for i, name in enumerate(dict.fromkeys(named))}
        self.integers = {n: i for i, n in enumerate(dict.fromkeys([0, *integers]))}
        kinds = (self.bound, self.numbers, self.places, self.tables, build.constants)
        self.firsts = [0, *np.cumsum([len(x) for x in kinds]).tolist()]

    def scratch(self) -> dict[str, int]:
        """The bytes of buffers that are no values."""
        found: dict[str, int] = {}
        for x in self.units:
            for name, (dtype, size) in x.printed.scratch.items() if x.printed is not None else ():
                found[name] = max(size, 1) * (1 if dtype == "bool" else 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)
            launch = x.launches[0]
            if x.called and launch.nest is not None and launch.node is not None:
                found[own(PRODUCT, launch)] = self.build.forms[launch.node.results[0]].nbytes
        return found

    def own_memory(self) -> list[Life]:
        """What is in the arena besides buffers: what Triton wants for itself."""
        found: list[Life] = []
        for k, ((i, kernel), (_, binary)) in enumerate(zip(self.kernels, self.made, strict=True)):
            if binary.scratch:
                found.append(Life(f"{OWN} {k}", kernel.grid * binary.scratch, i, i))
        return found

    def arguments(self) -> Iterator[Argument]:
        for _, kernel in self.kernels:
            yield from kernel.arguments
        for gemm in self.gemms:
            yield from (Argument("", "", buffer=x.buffer) for x in gemm.matrices)
        for words in self.tables.values():
            yield from (w for w in words if not isinstance(w, int))

    # ---- words

    def word(self, w: int | Argument) -> int:
        """Which word of the table something is."""
        bound, numbers, places, tables, constants, integers = self.firsts
        if isinstance(w, int):
            return integers + self.integers[w]
        if not w.buffer:
            return numbers + self.numbers.index(w.number)
        if w.buffer in self.bound:
            return bound + list(self.bound).index(w.buffer)
        if w.buffer in self.places:
            return places + self.places[w.buffer]
        if w.buffer in self.tables:
            return tables + list(self.tables).index(w.buffer)
        return constants + list(self.build.constants).index(w.buffer)

    def rows(self) -> list[Row]:
        found = []
        for k, ((_, kernel), (key, _)) in enumerate(zip(self.kernels, self.made, strict=True)):
            mine = f"{OWN} {k}"
            scratch = self.word(Argument("", "", buffer=mine)) if mine in self.places else self.word(0)
            words = [*map(self.word, kernel.arguments), scratch, self.word(0)]  # the last two are Triton's own
            found.append(Row(key, kernel.grid, words))
        return found

    # ---- what is done, one thing after the other

    def checks(self) -> list[str]:
        return [x.check for x in self.build.steps if x.check]

    def writes(self, x: Unit) -> bool:
        """Whether an input is written."""
        return any(b in self.build.inputs for b in x.writes)

    def order(self) -> tuple[list[tuple[str, int]], int]:
        """Flags are copied when they are there, and looked at before inputs are written, or at the end. The second result is
        the first entry that writes an input."""
        found: list[tuple[str, int]] = []
        checks, kernel, gemm, waiting, first_write = self.checks(), 0, 0, False, -1
        for i, x in enumerate(self.units):
            if self.writes(x):
                if waiting:
                    found.append((WAIT, 0))
                    waiting = False
                first_write = len(found) if first_write < 0 else first_write
            if x.called:
                found.append((OP, i))
            elif x.gemm is not None:
                found.append((GEMM, gemm))
                gemm += 1
            else:
                found.append((KERNEL, kernel))
                kernel += 1
            flags = [y.check for y in x.launches if y.check and self.is_last(i, y.check)]
            found += [(LOOK, checks.index(flag)) for flag in flags]
            waiting = waiting or bool(flags)
        found += [(WAIT, 0)] if waiting else []
        return found, len(found) if first_write < 0 else first_write

    def is_last(self, i: int, flag: str) -> bool:
        """Whether a flag is set when a unit is done."""
        return all(flag not in x.writes for x in self.units[i + 1 :])

    def fails(self) -> list[bool]:
        """Of each unit: whether it may fail."""
        return [x.called or any(y.check for y in x.launches) for x in self.units]

    def recipe(self) -> Recipe:
        build, (order, first_write) = self.build, self.order()
        return Recipe(
            slots=build.slots,
            bound=list(self.bound.values()),
            numbers=[(n, self.kinds[n]) for n in self.numbers],
            arena=self.arena.size,
            places=[self.arena.offsets[name] for name in self.places],
            starts=list(self.starts.values()),
            constants=[encoded(c) for c in build.constants.values()],
            integers=list(self.integers),
            rows=self.rows(),
            calls=[x.call(lambda buffer: self.word(Argument("", "", buffer=buffer))) for x in self.gemms],
            order=order,
            flags=[self.arena.offsets[flag] for flag in self.checks()],
            tables=[self.word(w) for words in self.tables.values() for w in words],
            memories=build.memories(),
            shown=build.shown(),
            danger=build.in_danger(self.units, self.fails()),
            written=sorted({build.inputs[b] for x in self.units for b in x.writes if b in build.inputs}),
            first_write=first_write,
        )


def padded(words: Words) -> Words:
    """A table of an even number of words: the next one begins at a multiple of 16 bytes too."""
    return (*words, 0) if len(words) % 2 else words
