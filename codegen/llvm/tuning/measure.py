"""Plans of a product, measured: each as a kernel on made-up operands, in one thread.

The operands lie in memory as the product's do; what it would compute while it packs is read instead, and results are stored as
they are. Plans take turns, so that whatever else the machine does falls on all of them, and the best time of each counts. There
is a limit to the seconds that a product may take: plans that there is no time left for are not run.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..runtime import jit
from ..ir.blocking import Plan
from ..ir.builder import BYTES, I64, PTR, Module
from ..gemm.problem import Gemm, Operand
from ..gemm.select_kernel import emit, store_to
from ..ir.kernel import Kernel
from ..runtime.arena import aligned
from ..ir.target import Target

SECONDS = 2.0  # for a product
SHARE = 0.1  # seconds of them that plans run which are compared with each other, about; for what decides, twice that
SAMPLE = 2e-4  # seconds that a turn takes at least
ROUNDS = 3, 12  # turns of each plan: at least, if there is time, and at most
MOST_BYTES = 1 << 28  # of operands and results, together


class Trials:
    """The race of a product's plans: `candidates.Race`."""

    def __init__(self, gemm: Gemm, target: Target, seconds: float = SECONDS) -> None:
        self.gemm = replace(gemm, a=plain(gemm.a, 0), b=plain(gemm.b, 1))
        self.target = target
        self.ends = time.perf_counter() + seconds
        self.runs: dict[Plan, Callable[[int], float]] = {}
        self.memory: list[tuple[Any, int]] = []
        self.times = 1  # runs in a turn

    def __call__(self, plans: Sequence[Plan], last: bool = False) -> list[float | None]:
        runs = {}
        for plan in plans:
            if plan in self.runs or not self.runs or time.perf_counter() < self.ends:
                with suppress(jit.CompileFailed, MemoryError):  # then it is not run
                    runs[plan] = self.run_of(plan)
        if len(runs) < 2:
            return [None] * len(plans)
        best = dict.fromkeys(runs, math.inf)
        least, most = (rounds * (2 if last else 1) for rounds in ROUNDS)
        enough = time.perf_counter() + SHARE * (2 if last else 1)
        for done in range(most):
            now = time.perf_counter()
            if done and (now > self.ends or (done >= least and now > enough)):
                break
            for plan, run in runs.items():
                best[plan] = min(best[plan], run(self.times))
        return [best.get(plan) for plan in plans]

    def run_of(self, plan: Plan) -> Callable[[int], float]:
        """What runs a plan so many times, and says how long one of them took."""
        if plan not in self.runs:
            if not self.memory:
                self.memory = made_up(self.gemm)
            run = self.runs[plan] = compiled(self.gemm, plan, self.target, [place for _, place in self.memory])
            first = run(1)
            if first < SAMPLE:
                first = run(1)  # the first finds nothing in the caches
            if len(self.runs) == 1:
                self.times = max(1, int(SAMPLE / max(first, 1e-7)))
        return self.runs[plan]


def plain(x: Operand, pointer: int) -> Operand:
    """An operand that is in memory."""
    return replace(x, pointer=pointer, load=None)


def span(x: Operand, batch: tuple[int, ...], rows: int, columns: int) -> tuple[int, int]:
    """How many elements of memory an operand lies in, and which of them is its first."""
    steps = [(n - 1) * s for n, s in zip((*batch, rows, columns), (*x.batch, x.row, x.column), strict=True)]
    return 1 + sum(map(abs, steps)), -sum(s for s in steps if s < 0)


def bytes_of(gemm: Gemm) -> int:
    """Of the memory that a trial needs."""
    a, b = span(gemm.a, gemm.batch, gemm.m, gemm.k)[0], span(gemm.b, gemm.batch, gemm.k, gemm.n)[0]
    results = math.prod(gemm.batch) * gemm.m * gemm.n
    return a * BYTES[gemm.a.scalar] + b * BYTES[gemm.b.scalar] + results * BYTES[gemm.scalar]


def made_up(gemm: Gemm) -> list[tuple[Any, int]]:
    """Memory, and where in it the left operand, the right one and the results begin. Zeros would all be one page of memory, and
    numbers that are too small are slow: these are about 1, whatever type they are read as."""
    found = []
    results = Operand(2, (), 0, 1, gemm.scalar)
    sizes = [span(gemm.a, gemm.batch, gemm.m, gemm.k), span(gemm.b, gemm.batch, gemm.k, gemm.n)]
    sizes.append((math.prod(gemm.batch) * gemm.m * gemm.n, 0))
    for x, (count, first) in zip((gemm.a, gemm.b, results), sizes, strict=True):
        memory, start = aligned(count * BYTES[x.scalar])
        memory[:] = 0x3F
        found.append((memory, start + first * BYTES[x.scalar]))
    return found


def compiled(gemm: Gemm, plan: Plan, target: Target, places: list[int]) -> Callable[[int], float]:
    """A plan's kernel on operands that are there: runs it so many times, and says how many seconds of this thread each took."""
    module = Module(target.features)
    strides = tuple(math.prod(gemm.batch[i + 1 :]) * gemm.m * gemm.n for i in range(len(gemm.batch)))
    kernel = emit(module, "product", gemm, 3, store_to(2, strides, gemm.n, 1, gemm.scalar), target, plan)
    repeat(module, kernel, 3)
    library = jit.link([jit.compile_text(str(module), target)], {}, ["repeat"])
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, ctypes.c_int64)(library["repeat"])
    own = [aligned(size) for size in (kernel.shared, kernel.scratch)]
    given = [*places, *[start for _, start in own]]

    def run(times: int, kept: Any = (library, own)) -> float:
        began = time.thread_time_ns()
        function(*given, times)
        return (time.thread_time_ns() - began) / times / 1e9

    return run


def repeat(module: Module, kernel: Kernel, pointers: int) -> None:
    """A function `repeat` that runs all pieces of a kernel, so many times."""
    names = [f"p{i}" for i in range(pointers)] + ["shared", "scratch"]
    f = module.function("repeat", [(name, PTR) for name in names] + [("times", I64)])
    with f.loop(0, f.params[-1]):
        for phase in kernel.phases:
            places = ", ".join(map(str, f.params[:-1]))
            f.emit(f"call void @{phase.function}({places}, i64 0, i64 {phase.pieces})")
    f.back()
