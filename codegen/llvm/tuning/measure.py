"""Measures plans of a matmul: each as a kernel on synthetic operands, on one thread.

The operands have the matmul's memory layout; operands that a prologue would compute are read instead, and results are stored
as they are. Plans take turns, so that other load on the machine affects all of them alike, and each plan's best time counts.
The seconds per matmul are bounded: plans for which no time is left are not run.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..gemm.problem import GemmOperand, GemmProblem
from ..gemm.select_kernel import emit_gemm, store_epilogue
from ..ir.blocking import GemmPlan
from ..ir.builder import BYTES, I64, PTR, Module
from ..ir.kernel import NativeKernel
from ..ir.target import Target
from ..runtime import jit
from ..runtime.arena import allocate_aligned

MAX_SECONDS = 2.0  # per matmul
RACE_SECONDS = 0.1  # of one race, about; twice that for the last
MIN_TURN_SECONDS = 2e-4  # length of a turn
TURNS = 3, 12  # per plan: at least (if there is time), and at most
MAX_TRIAL_BYTES = 1 << 28  # of operands and results


class PlanRace:
    """Race of a matmul's plans: see `candidates.Race`."""

    def __init__(self, gemm: GemmProblem, target: Target, seconds: float = MAX_SECONDS) -> None:
        self.gemm = replace(gemm, a=stored_operand(gemm.a, 0), b=stored_operand(gemm.b, 1))
        self.target = target
        self.ends = time.perf_counter() + seconds
        self.runs: dict[GemmPlan, Callable[[int], float]] = {}
        self.memory: list[tuple[Any, int]] = []
        self.times = 1  # runs in a turn

    def __call__(self, plans: Sequence[GemmPlan], last: bool = False) -> list[float | None]:
        runs = {}
        for plan in plans:
            if plan in self.runs or not self.runs or time.perf_counter() < self.ends:
                with suppress(jit.CompileFailed, MemoryError):  # not run, then
                    runs[plan] = self.runner(plan)
        if len(runs) < 2:
            return [None] * len(plans)
        best = dict.fromkeys(runs, math.inf)
        least, most = (rounds * (2 if last else 1) for rounds in TURNS)
        enough = time.perf_counter() + RACE_SECONDS * (2 if last else 1)
        for done in range(most):
            now = time.perf_counter()
            if done and (now > self.ends or (done >= least and now > enough)):
                break
            for plan, run in runs.items():
                best[plan] = min(best[plan], run(self.times))
        return [best.get(plan) for plan in plans]

    def runner(self, plan: GemmPlan) -> Callable[[int], float]:
        """A function that runs a plan `times` times and returns the seconds per run."""
        if plan not in self.runs:
            if not self.memory:
                self.memory = allocate_operands(self.gemm)
            run = self.runs[plan] = compile_plan(self.gemm, plan, self.target, [place for _, place in self.memory])
            first = run(1)
            if first < MIN_TURN_SECONDS:
                first = run(1)  # the first run finds cold caches
            if len(self.runs) == 1:
                self.times = max(1, int(MIN_TURN_SECONDS / max(first, 1e-7)))
        return self.runs[plan]


def stored_operand(x: GemmOperand, pointer: int) -> GemmOperand:
    """The operand, read from memory instead of computed."""
    return replace(x, pointer=pointer, load=None)


def memory_extent(x: GemmOperand, batch: tuple[int, ...], rows: int, columns: int) -> tuple[int, int]:
    """Elements of memory that an operand spans, and the index of its first element in it."""
    steps = [(n - 1) * s for n, s in zip((*batch, rows, columns), (*x.batch, x.row, x.column), strict=True)]
    return 1 + sum(map(abs, steps)), -sum(s for s in steps if s < 0)


def trial_bytes(gemm: GemmProblem) -> int:
    """Bytes of memory that a race needs."""
    a, b = memory_extent(gemm.a, gemm.batch, gemm.m, gemm.k)[0], memory_extent(gemm.b, gemm.batch, gemm.k, gemm.n)[0]
    results = math.prod(gemm.batch) * gemm.m * gemm.n
    return a * BYTES[gemm.a.scalar] + b * BYTES[gemm.b.scalar] + results * BYTES[gemm.scalar]


def allocate_operands(gemm: GemmProblem) -> list[tuple[Any, int]]:
    """Memory and start addresses of the left operand, the right operand and the results. Zeros would all be one page of
    memory, and subnormal numbers are slow: values are about 1, whatever type they are read as."""
    found = []
    results = GemmOperand(2, (), 0, 1, gemm.scalar)
    sizes = [memory_extent(gemm.a, gemm.batch, gemm.m, gemm.k), memory_extent(gemm.b, gemm.batch, gemm.k, gemm.n)]
    sizes.append((math.prod(gemm.batch) * gemm.m * gemm.n, 0))
    for x, (count, first) in zip((gemm.a, gemm.b, results), sizes, strict=True):
        memory, start = allocate_aligned(count * BYTES[x.scalar])
        memory[:] = 0x3F
        found.append((memory, start + first * BYTES[x.scalar]))
    return found


def compile_plan(gemm: GemmProblem, plan: GemmPlan, target: Target, places: list[int]) -> Callable[[int], float]:
    """Compile a plan's kernel for given addresses: a function that runs it `times` times and returns this thread's seconds
    per run."""
    module = Module(target.features)
    strides = tuple(math.prod(gemm.batch[i + 1 :]) * gemm.m * gemm.n for i in range(len(gemm.batch)))
    kernel = emit_gemm(module, "matmul", gemm, 3, store_epilogue(2, strides, gemm.n, 1, gemm.scalar), target, plan)
    emit_repeat(module, kernel, 3)
    library = jit.link([jit.compile_text(str(module), target)], {}, ["repeat"])
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, ctypes.c_int64)(library["repeat"])
    own = [allocate_aligned(size) for size in (kernel.shared, kernel.scratch)]
    given = [*places, *[start for _, start in own]]

    def run(times: int, kept: Any = (library, own)) -> float:
        began = time.thread_time_ns()
        function(*given, times)
        return (time.thread_time_ns() - began) / times / 1e9

    return run


def emit_repeat(module: Module, kernel: NativeKernel, pointers: int) -> None:
    """Emit a function `repeat` that runs all pieces of a kernel a number of times."""
    names = [f"p{i}" for i in range(pointers)] + ["shared", "scratch"]
    f = module.function("repeat", [(name, PTR) for name in names] + [("times", I64)])
    with f.loop(0, f.params[-1]):
        for phase in kernel.phases:
            places = ", ".join(map(str, f.params[:-1]))
            f.emit(f"call void @{phase.function}({places}, i64 0, i64 {phase.pieces})")
    f.ret()
