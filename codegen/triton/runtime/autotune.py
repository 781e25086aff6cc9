"""Autotunes kernel configurations: on a real device each matmul and each attention is timed in a few, and the fastest is kept,
for this process and in the disk cache. Large matmuls are timed as cuBLAS calls too, with the kernels that they need before and
after. Without a device the first of the table is used.

    TAPEJIT_TUNE=0   the first of the table on real devices too, which compiles fewer kernels
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....eager.arrays.devices import device
from ...nests.kernels import Launch
from ...program import disk_cache as cache
from ..attention.forward import print_attention
from ..attention.problem import bind_attention
from ..attention.tile_configs import candidate_configs
from ..launches.print_launch import LaunchPrinter
from ..matmul.cublas import LibraryError, calling, version
from ..matmul.cublas_gemm import CublasPlan, Gemm
from ..matmul.from_graph import contraction_of, print_matmul
from ..matmul.tile_configs import configs
from ..printing.kernel_text import Argument, Printed
from .driver import DeviceError, load_kernel
from .kernel_cache import Binary, CompileRequest, KernelCompileError, compile_kernels, key

MAX_CONFIGS = 4  # configurations that are tried
ROUNDS, TIMES = 3, 5  # that each is run, of which the best counts, and how often in each
MIN_CUBLAS_GAIN = 1.03  # least speedup by cuBLAS: a call is part of no CUDA graph, and cuts that of others in two


@dataclass(frozen=True)
class Staged:
    """cuBLAS matmul, timed together with the kernels around the call."""

    plan: CublasPlan
    parts: list[Printed | Gemm]


Choice = Printed | Staged


def is_enabled(xp: Any) -> bool:
    """True if autotune is on: by default only on real devices."""
    setting = os.environ.get("TAPEJIT_TUNE", "")
    return setting != "0" if xp.__name__ == "cupy" else setting == "1"


class TuningPrinter(LaunchPrinter):
    """Prints launches in the configurations that are fastest on the device. Matmuls that share a launch use those of the
    table."""

    def __init__(self, prints: LaunchPrinter, tuner: Tuner) -> None:
        given = (prints.forms, prints.layout, prints.target, prints.precision, prints.deterministic, prints.library)
        super().__init__(*given)
        self.tuner = tuner

    def of(self, launch: Launch, in_parts: bool = True) -> Printed | None:
        if launch.kind != "attention" and not (launch.kind == "matmul" and in_parts):
            return super().of(launch, in_parts)
        found = self.tuner.best(self.choices(launch), self.forms)
        assert not isinstance(found, Staged), "units ask for calls first"
        return found

    def by_library(self, launch: Launch) -> CublasPlan | None:
        """Plan a launch as a cuBLAS call; None where a kernel was faster, or where there is no need to try."""
        if self.candidate(launch) is None:
            return None
        found = self.tuner.best(self.choices(launch), self.forms)
        return found.plan if isinstance(found, Staged) else None

    def choices(self, launch: Launch) -> list[Choice]:
        """Candidate configurations of a launch, the best guess first; none if there are no kernels."""
        assert launch.node is not None
        found: list[Choice | None] = []
        if launch.kind == "matmul":
            work = contraction_of(launch, self.forms)
            rows = [] if work is None else configs(work, self.target, self.precision)
            found = [print_matmul(launch, self.forms, self.target, self.precision, c) for c in rows[:MAX_CONFIGS]]
            plan = self.candidate(launch)
            found.append(None if plan is None else Staged(plan, self.stages(plan)))
        else:
            problem = bind_attention(launch, self.forms, self.layout, self.precision)
            backward = launch.node.op.name == "attention_backward"
            blocks = [] if problem is None else candidate_configs(problem, backward, self.target)
            found = [
                print_attention(launch, self.forms, self.layout, self.target, self.precision, c) for c in blocks[:MAX_CONFIGS]
            ]
        return [x for x in found if x is not None]


class Tuner:
    """Times kernels on a device."""

    def __init__(self, xp: Any, where: device, target: str) -> None:
        self.xp = xp
        self.where = where
        self.target = target
        self.known: dict[str, int] = {}

    def best(self, choices: Sequence[Choice], forms: dict[str, Any]) -> Choice | None:
        """Choose the fastest of equivalent candidates."""
        if len(choices) < 2:
            return choices[0] if choices else None
        name = cache.key("tuned", self.target, *[word for x in choices for part in parts_of(x) for word in self.words(part)])
        if name not in self.known:
            kept = cache.get(name)
            try:
                self.known[name] = int(kept) if kept is not None and kept.isdigit() else self.measured(choices, forms)
            except self.xp.cuda.memory.OutOfMemoryError:  # no room to try: the table's first, for now
                return choices[0]
            cache.put(name, str(self.known[name]).encode())
        return choices[self.known[name] % len(choices)]

    def words(self, part: Printed | Gemm) -> list[str]:
        """Cache key of a part's time: kernel keys, or the cuBLAS version and the matmul."""
        if isinstance(part, Printed):
            return [key(CompileRequest(part, k), self.target) for k in part.kernels]
        return [version(self.xp), repr(part.renamed({x.buffer: "" for x in part.matrices}))]

    def measured(self, choices: Sequence[Choice], forms: dict[str, Any]) -> int:
        """Index of the fastest candidate; those that do not compile, or that the device refuses, are skipped."""
        parts = [part for x in choices for part in parts_of(x)]
        texts = [x for x in parts if isinstance(x, Printed)]
        made = iter(self.compiled([CompileRequest(x, k) for x in texts for k in x.kernels]))
        used = {b for x in texts for k in x.kernels for b in buffers_of(k.arguments)}
        used |= {m.buffer for x in parts if isinstance(x, Gemm) for m in x.matrices}
        memory = {name: self.xp.cuda.alloc(max(forms[name].nbytes, 1)) for name in sorted(used) if name in forms}
        for place in memory.values():
            place.memset_async(0, place.mem.size)
        times = []
        for x in choices:
            own = [[next(made) for _ in part.kernels] if isinstance(part, Printed) else [] for part in parts_of(x)]
            there = [[kernel for kernel in part if kernel is not None] for part in own]
            seconds = self.time(x, there, memory) if there == own else float("inf")
            times.append(seconds * (MIN_CUBLAS_GAIN if isinstance(x, Staged) else 1))
        return times.index(min(times))

    def compiled(self, wanted: list[CompileRequest]) -> list[tuple[str, Binary] | None]:
        """Compile the candidates; None for those that do not compile."""
        try:
            return list(compile_kernels(wanted, self.target))
        except KernelCompileError:
            pass
        found: list[tuple[str, Binary] | None] = []
        for x in wanted:
            try:
                found += compile_kernels([x], self.target)
            except KernelCompileError:
                found.append(None)
        return found

    def time(self, choice: Choice, made: list[list[tuple[str, Binary]]], memory: dict[str, Any]) -> float:
        """Time a run in milliseconds, on zeros."""
        try:
            parts = parts_of(choice)
            sizes = {name: size for x in parts if isinstance(x, Printed) for name, (_, size) in x.scratch.items()}
            places = memory | {name: self.xp.cuda.alloc(8 * max(size, 1)) for name, size in sizes.items()}
            runs = [self.running(x, m, places) for x, m in zip(parts, made, strict=True)]

            def launch() -> None:
                for run in runs:
                    run()

            launch()
            self.xp.cuda.get_current_stream().synchronize()
            return min(self.sample(launch) for _ in range(ROUNDS))
        except (DeviceError, LibraryError, RuntimeError, MemoryError):  # too much shared memory, say
            return float("inf")

    def sample(self, launch: Callable[[], None]) -> float:
        cuda = self.xp.cuda
        begin, end = cuda.Event(), cuda.Event()
        begin.record()
        for _ in range(TIMES):
            launch()
        end.record()
        end.synchronize()
        return float(cuda.get_elapsed_time(begin, end)) / TIMES

    def running(self, part: Printed | Gemm, made: list[tuple[str, Binary]], memory: dict[str, Any]) -> Callable[[], None]:
        """Make a function that runs a part."""
        if isinstance(part, Printed):
            return self.launching(part, made, memory)
        buffers = [x.buffer for x in part.matrices]
        call, table = calling(self.xp, part.call(buffers.index)), [memory[b].ptr for b in buffers]
        return lambda: call(table)

    def launching(self, printed: Printed, made: list[tuple[str, Binary]], memory: dict[str, Any]) -> Callable[[], None]:
        """Make a function that launches the kernels of a part."""
        cuda = self.xp.cuda
        rows = []
        for kernel, (name, binary) in zip(printed.kernels, made, strict=True):
            own = cuda.alloc(max(kernel.grid * binary.scratch, 1))
            places = [memory[a.buffer].ptr if a.buffer else 1 for a in kernel.arguments]
            words = np.array([*places, own.ptr, 0], np.uint64)
            pointers = np.arange(len(words), dtype=np.uint64) * np.uint64(8) + np.uint64(words.ctypes.data)
            function = load_kernel(self.xp, self.where, name, binary)
            rows.append((kernel.grid, binary, function, words, pointers, own))

        def launch() -> None:
            stream = cuda.get_current_stream().ptr
            for grid, binary, function, _, pointers, _ in rows:
                given = (function.function, grid, 1, 1, binary.threads, 1, 1, binary.shared)
                cuda.driver.launchKernel(*given, stream, pointers.ctypes.data, 0)

        return launch


def parts_of(choice: Choice) -> list[Printed | Gemm]:
    return [choice] if isinstance(choice, Printed) else choice.parts


def buffers_of(arguments: Sequence[Argument]) -> list[str]:
    return [a.buffer for a in arguments if a.buffer]
