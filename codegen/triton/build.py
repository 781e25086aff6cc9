"""Builds the executable of a GPU program: its kernels, the plan of its arena, and the table that launch parameters point into.

An op without a kernel is opaque: it is called on CuPy's arrays, and a nest that follows it reads its result from memory.
Matmuls that cuBLAS computes faster are calls among the launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...eager.arrays.devices import device
from ...tracer.graph.ir import Form, Graph, GraphError
from ...tracer.graph.passes import Pass, Pipeline, run_passes
from ...tracer.trace.logging import counted
from ..nests.kernels import Launch, has_own_kernel, make_schedule
from ..prepare.device_placement import with_device
from ..prepare.pipeline import primitive_passes
from ..program.builder import Build, OpaqueCall
from ..program.executable import encode_array
from ..schedule.memory_plan import Lifetime, MemoryPlan
from .attention.forward import keeps_halves, pass_outputs_to_backward
from .executable import GpuExecutable
from .launches.group_launches import group_launches
from .launches.launch_unit import Unit, private_name
from .launches.print_launch import LaunchPrinter
from .launches.scalars_in_memory import move_scalars_to_memory
from .printing.expr_printer import MATMUL_BUFFER
from .printing.kernel_text import Argument, Words
from .runtime.cuda_graph import MIN_GRAPH_LAUNCHES
from .runtime.kernel_cache import Binary, CompileRequest, compile_kernels
from .runtime.launcher import GEMM, KERNEL, LOOK, OP, WAIT, KernelLaunch, Launcher, LaunchPlan

TRITON_SCRATCH = "what Triton keeps of"  # a kernel


class GpuBuild(Build):
    """Lowers and schedules a graph for a GPU target, and prints its kernels."""

    unordered_threads = True

    def __init__(
        self, graph: Graph, slots: int, target: str, precision: str, deterministic: bool, library: bool = False
    ) -> None:
        super().__init__(graph, slots)
        run_passes(self.passes(), graph)
        self.target = target
        self.prints = LaunchPrinter(self.forms, self.layout, target, precision, deterministic, library)

    def passes(self) -> Pipeline:
        """Passes between a graph and its launches, in order; `launch_passes` and `assembly_passes` continue from there."""
        return (
            *primitive_passes(has_own_kernel, keeps_halves),
            Pass("share attention outputs", pass_outputs_to_backward),
            Pass("fusion", lambda work: make_schedule(work, gpu=True), "step"),
            Pass("loop nests", self.make_loop_nests, "kernel"),
        )

    def launch_passes(self, unaligned: frozenset[str]) -> Pipeline:
        return (
            Pass("horizontal fusion, launch order", lambda steps: group_launches(steps, self.prints, unaligned), "kernel"),
            Pass("scalars in memory", scalars_in_memory, "kernel"),
        )

    def units(self, unaligned: frozenset[str] = frozenset()) -> list[Unit]:
        """Kernels, in launch order."""
        found: list[Unit] = run_passes(self.launch_passes(unaligned), self.steps)
        return found

    def assembly_passes(self, unaligned: frozenset[str]) -> Pipeline:
        return (
            Pass("compile kernels", lambda units: self.compiled(units, unaligned), "kernel", Assembly.kernels_in_words),
            Pass("memory plan", Assembly.place_buffers, "kernel", lambda assembly: assembly.arena.summary()),
            Pass("launch table", Assembly.number_words, "kernel", Assembly.table_in_words),
        )

    def assembly(self, unaligned: frozenset[str]) -> Assembly:
        """Compile the kernels. The addresses of `unaligned` inputs need not be multiples of 16 bytes."""
        found: Assembly = run_passes(self.assembly_passes(unaligned), self.units(unaligned))
        return found

    def compiled(self, units: list[Unit], unaligned: frozenset[str]) -> Assembly:
        for x in units:
            words = [w for table in x.printed.tables.values() for w in table] if x.printed is not None else []
            if any(not isinstance(w, int) and w.buffer in unaligned for w in words):
                raise GraphError("a kernel takes arrays from a table, and one is at an address that is no multiple of 16")
        wanted = [
            CompileRequest(x.printed, x.kernel, unaligned) for x in units if x.printed is not None and x.kernel is not None
        ]
        return Assembly(self, units, compile_kernels(wanted, self.target))


def scalars_in_memory(units: list[Unit]) -> list[Unit]:
    """Load scalars from memory if there are many kernels, so that their launches can be captured as a CUDA graph."""
    if sum(x.printed is not None for x in units) < MIN_GRAPH_LAUNCHES:
        return units
    return [x if x.printed is None else replace(x, printed=move_scalars_to_memory(x.printed)) for x in units]


class Assembly:
    """Compiled units of a program: places their buffers, numbers the words of the launcher's table, and makes the launch
    plan. `GpuBuild.assembly_passes` has the order."""

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
                    self.tables[name], self.starts[name] = pad_table(words), size
                    size += 8 * len(pad_table(words))
        self.arena = MemoryPlan()

    def place_buffers(self) -> Assembly:
        """Plan the arena."""
        self.arena = self.build.plan(self.units, self.own_memory(), self.scratch())
        return self

    def number_words(self) -> Assembly:
        """Number the words that launches point to: addresses, scalars, integers. Needs the memory plan."""
        build = self.build
        self.bound = {**build.inputs, **{v: build.slots + i for v, i in build.outputs.items()}}
        self.kinds = build.number_kinds()
        self.numbers = sorted({a.number for a in self.arguments() if not a.buffer})
        outside = self.bound.keys() | build.constants.keys() | self.tables.keys()
        named = [a.buffer for a in self.arguments() if a.buffer and a.buffer not in outside]
        named += [name for name in self.arena.offsets if name.startswith(TRITON_SCRATCH)]
        integers = [w for words in self.tables.values() for w in words if isinstance(w, int)]
        self.places = {name: i for i, name in enumerate(dict.fromkeys(named))}
        self.integers = {n: i for i, n in enumerate(dict.fromkeys([0, *integers]))}
        kinds = (self.bound, self.numbers, self.places, self.tables, build.constants)
        self.firsts = [0, *np.cumsum([len(x) for x in kinds]).tolist()]
        return self

    def kernels_in_words(self) -> str:
        binaries = dict(self.made).values()
        found = f"{counted(len(binaries), 'kernel')}, {sum(len(b.code) for b in binaries):,} bytes"
        return found + (f", {counted(len(self.gemms), 'matmul')} by cuBLAS" if self.gemms else "")

    def table_in_words(self) -> str:
        return f"{counted(self.firsts[-1] + len(self.integers), 'word')}, {counted(len(self.tables), 'inner table')}"

    def scratch(self) -> dict[str, int]:
        """Bytes of scratch buffers, which are no values of the graph."""
        found: dict[str, int] = {}
        for x in self.units:
            for name, (dtype, size) in x.printed.scratch.items() if x.printed is not None else ():
                found[name] = max(size, 1) * (1 if dtype == "bool" else 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)
            launch = x.launches[0]
            if x.called and launch.nest is not None and launch.node is not None:
                found[private_name(MATMUL_BUFFER, launch)] = self.build.forms[launch.node.results[0]].nbytes
        return found

    def own_memory(self) -> list[Lifetime]:
        """Lifetimes in the arena of the scratch memory that Triton allocates for itself."""
        found: list[Lifetime] = []
        for k, ((i, kernel), (_, binary)) in enumerate(zip(self.kernels, self.made, strict=True)):
            if binary.scratch:
                found.append(Lifetime(f"{TRITON_SCRATCH} {k}", kernel.grid * binary.scratch, i, i))
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
        """Index in the table of an integer, a scalar or an address."""
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

    def rows(self) -> list[KernelLaunch]:
        found = []
        for k, ((_, kernel), (key, _)) in enumerate(zip(self.kernels, self.made, strict=True)):
            mine = f"{TRITON_SCRATCH} {k}"
            scratch = self.word(Argument("", "", buffer=mine)) if mine in self.places else self.word(0)
            words = [*map(self.word, kernel.arguments), scratch, self.word(0)]  # the last two are Triton's own
            found.append(KernelLaunch(key, kernel.grid, words))
        return found

    # ---- order of launches, copies and checks

    def checks(self) -> list[str]:
        return [x.check for x in self.build.steps if x.check]

    def writes(self, x: Unit) -> bool:
        """True if a unit writes an input."""
        return any(b in self.build.inputs for b in x.writes)

    def order(self) -> tuple[list[tuple[str, int]], int]:
        """Order the launches, the copies of flags and the checks. Flags are copied once they are written, and checked before
        inputs are written, or at the end. The second result is the first entry that writes an input."""
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
        """True if no later unit writes a flag."""
        return all(flag not in x.writes for x in self.units[i + 1 :])

    def fails(self) -> list[bool]:
        """For each unit, True if it may fail."""
        return [x.called or any(y.check for y in x.launches) for x in self.units]

    def plan(self) -> LaunchPlan:
        order, first_write = self.order()
        inputs = self.build.inputs
        return LaunchPlan(
            places=[self.arena.offsets[name] for name in self.places],
            starts=list(self.starts.values()),
            integers=list(self.integers),
            rows=self.rows(),
            calls=[x.call(lambda buffer: self.word(Argument("", "", buffer=buffer))) for x in self.gemms],
            order=order,
            flags=[self.arena.offsets[flag] for flag in self.checks()],
            tables=[self.word(w) for words in self.tables.values() for w in words],
            written=sorted({inputs[b] for x in self.units for b in x.writes if b in inputs}),
            first_write=first_write,
        )

    def executable(self) -> GpuExecutable:
        build = self.build
        return GpuExecutable(
            slots=build.slots,
            bound=list(self.bound.values()),
            numbers=[(n, self.kinds[n]) for n in self.numbers],
            arena=self.arena.size,
            constants=[encode_array(c) for c in build.constants.values()],
            memories=build.memories(),
            shown=build.shown(),
            danger=build.in_danger(self.units, self.fails()),
            steps=["all"],
            plan=self.plan(),
        )

    def opaque_ops(self, launcher: Launcher, xp: Any, where: device) -> dict[int, OpaqueOnDevice]:
        """Ops without a kernel, by unit, on the launcher's arena."""
        constants = {name: xp.asarray(c) for name, c in self.build.constants.items()}
        called = [(i, x.launches[0]) for i, x in enumerate(self.units) if x.called]
        return {i: OpaqueOnDevice(self, launch, launcher, constants, xp, where) for i, launch in called}


class OpaqueOnDevice(OpaqueCall):
    """Opaque op on CuPy's arrays. If a nest follows it, its result goes to the scratch buffer which the nest reads."""

    def __init__(
        self, assembly: Assembly, launch: Launch, launcher: Launcher, constants: dict[str, Any], xp: Any, where: device
    ) -> None:
        def place(form: Form, at: int, strides: tuple[int, ...]) -> Any:
            return xp.ndarray(form.shape, form.dtype, launcher.memory + at, strides)

        super().__init__(assembly.build, launch, assembly.arena, place, xp)
        self.attrs = with_device(self.node.attrs, where)
        self.followed = launch.nest is not None
        self.result = private_name(MATMUL_BUFFER, launch)
        self.on_device = constants

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> bool:
        if not self.followed:
            return super().__call__(arrays, scalars)
        form = self.build.forms[self.node.results[0]]
        strides, step = [], form.itemsize
        for n in reversed(form.shape):
            strides.append(step)
            step *= max(n, 1)
        self.place(form, self.arena.offsets[self.result], tuple(reversed(strides)))[...] = self.computed(arrays, scalars)
        return True

    def base(self, arrays: list[Any], buffer: str) -> Any:
        return self.on_device[buffer] if buffer in self.on_device else super().base(arrays, buffer)


def pad_table(words: Words) -> Words:
    """Pad a table to an even number of words, so that the next one begins at a multiple of 16 bytes."""
    return (*words, 0) if len(words) % 2 else words
