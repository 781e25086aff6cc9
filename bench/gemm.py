"""Emitted matmuls against NumPy's BLAS (and PyTorch's, with --torch), in one thread.

    python bench/gemm.py [NAME ...] [--rounds 30] [--torch] [--search] [--dtype bfloat16]

A shape is "1024x512x128 NT": m, n, k, and which operands are transposed (T) in memory; "64*" before it is a batch. Times are
CPU time of this thread, best of the rounds, which take turns; packing is part of them. Matmuls may take microseconds, so
each measurement repeats them inside native code; the library's time includes its call from Python. `ms` is what compiling the
kernel took: writing its text in Python, and code generation by LLVM. With --search, a second line says what tuning makes of it
(`tj.compile(fn, tune=True)`): how much quicker the best of some plans is than the model's. With a 16-bit
--dtype, PyTorch uses it too, our own float32 matmul takes NumPy's place, and results have 16 bits.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import ctypes
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from tapejit.codegen.llvm.gemm.problem import GemmOperand, GemmProblem, with_pairs
from tapejit.codegen.llvm.gemm.select_kernel import emit_gemm, gemm_shape, store_epilogue
from tapejit.codegen.llvm.ir.blocking import GemmPlan, GemmShape, choose_plan
from tapejit.codegen.llvm.ir.builder import Module
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.llvm.runtime.jit import compile_text, link
from tapejit.codegen.llvm.tuning.candidates import search
from tapejit.codegen.llvm.tuning.measure import PlanRace, emit_repeat

SHAPES = """
1024x128x128 NN, 1024x384x128 NN, 1024x512x128 NN, 1024x128x512 NN, 1024x384x384 NN, 1024x1536x384 NN, 1024x384x1536 NN
1024x128x128 NT, 1024x384x128 NT, 1024x512x128 NT, 1024x128x512 NT, 1024x384x384 NT, 1024x1536x384 NT, 1024x384x1536 NT
128x512x1024 TN, 512x128x1024 TN, 128x128x1024 TN, 384x1536x1024 TN, 384x384x1024 TN
128x512x784 NT, 128x256x512 NT, 128x10x256 NT, 128x512x256 NN, 128x256x10 NN, 512x784x128 TN, 256x512x128 TN, 10x256x128 TN
32x200x30 NN, 32x30x200 NT, 30x200x32 TN, 32x27x200 NN, 200x27x32 TN, 100x2x16 NT, 100x16x2 NN, 100x16x16 NT, 100x16x16 NN
16x16x100 TN, 100x1x16 NT, 64*64x64x32 NT, 64*64x32x64 NN, 64*64x32x64 TN, 48*128x128x64 NT, 48*128x64x128 NN
64x64x64 NN, 256x256x256 NN, 512x512x512 NN, 1024x1024x1024 NN, 1024x65x128 NT
1x1024x1024 NN, 1x1024x1024 NT, 1024x1x1024 NN, 1024x1x1024 TN, 4x1024x1024 NN, 4x1024x1024 NT
64x64x8192 TN, 16x16x4096 TN, 64x10x20000 TN, 1x1x262144 NT
"""
DTYPES = {"float": np.float32, "half": np.float16, "bfloat": ml_dtypes.bfloat16}
NAMES = {"float32": "float", "float16": "half", "bfloat16": "bfloat"}


class Case(NamedTuple):
    batch: int
    m: int
    n: int
    k: int
    left: bool  # transposed
    right: bool
    scalar: str = "float"

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    def gemm(self) -> GemmProblem:
        _, m, n, k, left, right, scalar = self
        batch = (self.batch,) if self.batch > 1 else ()
        a = GemmOperand(0, (m * k,) if batch else (), *((1, m) if left else (k, 1)), scalar)
        b = GemmOperand(1, (k * n,) if batch else (), *((1, k) if right else (n, 1)), scalar)
        return GemmProblem(batch, m, n, k, a, b, "float")

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        shapes = [(self.k, self.m) if self.left else (self.m, self.k), (self.n, self.k) if self.right else (self.k, self.n)]
        lead = (self.batch,) if self.batch > 1 else ()
        a, b = (rng.standard_normal((*lead, *shape), np.float32).astype(DTYPES[self.scalar]) for shape in shapes)
        return a, b


def parse(name: str, scalar: str = "float") -> Case:
    sizes, letters = name.split()
    batch, _, rest = sizes.rpartition("*")
    m, n, k = map(int, rest.split("x"))
    return Case(int(batch or 1), m, n, k, letters[0] == "T", letters[1] == "T", scalar)


class Native:
    """A compiled matmul: `run(times)` repeats it on its arrays."""

    def __init__(self, case: Case) -> None:
        self.plan = choose_plan(gemm_shape(with_pairs(case.gemm(), host()), host()))
        self.a, self.b = case.arrays()
        lead = (case.m * case.n,) if case.batch > 1 else ()
        self.c = np.zeros((*self.a.shape[:-2], case.m, case.n), DTYPES[case.scalar])
        start = time.thread_time()
        module = Module(host().features)
        store = store_epilogue(2, lead, case.n, 1, case.scalar)
        self.kernel = emit_gemm(module, "matmul", case.gemm(), 3, store, host())
        text = str(module)
        self.writing = time.thread_time() - start
        start = time.thread_time()
        compile_text(text)
        self.compiling = time.thread_time() - start
        emit_repeat(module, self.kernel, 3)
        self.library = link([compile_text(str(module))], {}, ["repeat"])
        self.shared, self.scratch = (np.zeros(size + 64, np.uint8) for size in (self.kernel.shared, self.kernel.scratch))
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, ctypes.c_int64)(self.library["repeat"])
        places = [self.a.ctypes.data, self.b.ctypes.data, self.c.ctypes.data]
        places += [-(-x.ctypes.data // 64) * 64 for x in (self.shared, self.scratch)]
        self.run: Callable[[int], None] = lambda times, kept=self: function(*places, times)  # type: ignore[misc]


def peers(case: Case, torch: Any) -> dict[str, Callable[[], Any]]:
    a, b = case.arrays()
    out = np.zeros((*a.shape[:-2], case.m, case.n), a.dtype)
    x, y = a.swapaxes(-1, -2) if case.left else a, b.swapaxes(-1, -2) if case.right else b
    found: dict[str, Callable[[], Any]] = {}
    if case.scalar == "float":
        found["numpy"] = lambda: np.matmul(x, y, out=out)
    if torch is not None:
        tx, ty, tout = (as_torch(torch, v) for v in (a, b, out))
        tx, ty = tx.mT if case.left else tx, ty.mT if case.right else ty
        found["torch"] = lambda: torch.matmul(tx, ty, out=tout)
    return found


def as_torch(torch: Any, x: np.ndarray) -> Any:
    """The same memory as PyTorch's tensor, which knows bfloat16 and NumPy does not."""
    kind = getattr(torch, x.dtype.name)
    return torch.from_numpy(x.view(np.int16)).view(kind) if x.itemsize == 2 else torch.from_numpy(x)


def seconds(run: Callable[[int], Any], times: int) -> float:
    start = time.thread_time_ns()
    run(times)
    return (time.thread_time_ns() - start) / times / 1e9


def many(run: Callable[[], Any]) -> Callable[[int], Any]:
    def loop(times: int) -> None:
        for _ in range(times):
            run()

    return loop


def repeats(case: Case) -> int:
    return max(1, int(300e-6 / (case.flops / 120e9 + 1e-7)))


def gain(case: Case) -> str:
    """Gain by tuning: the speedup of the best plan over the model's, and the seconds that it took to find."""
    asked: list[tuple[GemmProblem, GemmShape]] = []

    def chooser(gemm: GemmProblem, shape: GemmShape) -> GemmPlan:
        asked.append((gemm, shape))
        return choose_plan(shape)

    emit_gemm(
        Module(), "matmul", case.gemm(), 3, store_epilogue(2, (0,) * (case.batch > 1), case.n, 1), host(), chooser=chooser
    )
    if not asked:
        return f"{'':22}dot products have no plans"
    (gemm, shape), began = asked[0], time.perf_counter()
    trials = PlanRace(gemm, host())
    plan, times = search(shape, trials)
    took = f"{len(trials.runs)} plans in {time.perf_counter() - began:.1f} s"
    return f"{'':22}{times - 1:+.1%} {took}: {'the model is right' if plan == choose_plan(shape) else plan}"


def measure(case: Case, rounds: int, torch: Any) -> tuple[Native, dict[str, float]]:
    native = Native(case)
    runs = {"own": native.run, **{name: many(run) for name, run in peers(case, torch).items()}}
    if case.scalar != "float":
        runs["float32"] = Native(case._replace(scalar="float")).run
    times = repeats(case)
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], seconds(run, times))
    return native, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--dtype", choices=list(NAMES), default="float32")
    options = parser.parse_args()
    torch = None
    if options.torch:
        import torch

        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
    first = "numpy" if options.dtype == "float32" else "float32"
    names = [name.strip() for line in SHAPES.strip().splitlines() for name in line.split(",")]
    print(f"{'shape':22}{'µs':>9}{'GFLOP/s':>9}{first:>9}{'torch':>9}{'ratio':>7}{'ms':>12}  tile in pieces")
    for name in names:
        if options.names and not any(word in name for word in options.names):
            continue
        case = parse(name, NAMES[options.dtype])
        native, best = measure(case, options.rounds, torch)
        speed = {peer: case.flops / took / 1e9 for peer, took in best.items()}
        ratio = speed["own"] / max(v for peer, v in speed.items() if peer != "own")
        other = "".join(f"{speed[peer]:9.1f}" if peer in speed else " " * 9 for peer in (first, "torch"))
        milliseconds = f"{native.writing * 1e3:.1f}+{native.compiling * 1e3:.1f}"
        pieces = ", ".join(str(phase.pieces) for phase in native.kernel.phases)
        cut = f"{native.plan.rows}x{native.plan.vectors} in {pieces}"
        print(f"{name:22}{best['own'] * 1e6:9.2f}{speed['own']:9.1f}{other}{ratio:7.2f}{milliseconds:>12}  {cut}", flush=True)
        if options.search:
            print(gain(case), flush=True)


if __name__ == "__main__":
    main()
