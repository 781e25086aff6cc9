"""Measure this machine's peaks, in one thread: copy bandwidth by size, and floats per second. They are the roofline.

Both are measured by code that does nothing else. No kernel can be faster than its bytes at the one speed and its arithmetic at
the other: that time over the measured one is its share of the roofline. Bytes that fit into a cache move faster, so bandwidth
is known for several sizes. A fused multiply-add counts as two floats, as in a matmul; bfloat16 dot products in pairs, where
the CPU has them, are measured separately.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cache
from time import thread_time_ns
from typing import Any

import numpy as np

from ..llvm.gemm.problem import has_pair_products, multiply_add_pairs
from ..llvm.ir.builder import I64, PTR, Module, Type
from ..llvm.ir.register_tile import PAIR, zero_sums
from ..llvm.ir.target import Target, host
from ..llvm.runtime import jit

SIZES = tuple(1 << n for n in (14, 16, 18, 20, 22, 24, 26))  # bytes read plus bytes written
UNROLLED = 4  # vectors per iteration of the copying loop
SAMPLES = 5
SAMPLE_NS = 1_000_000  # about how long a sample takes


@dataclass(frozen=True)
class MachinePeaks:
    """Measured peaks: `copies` are pairs of (bytes, bytes per second), by size; `flops` are float32 operations per second, and
    `in_pairs` those on bfloat16 multiplied in pairs."""

    copies: tuple[tuple[int, float], ...]
    flops: float
    in_pairs: float = 0.0

    def bandwidth(self, size: float) -> float:
        """Bytes per second when moving `size` bytes, interpolated between the measured sizes."""
        below = [c for c in self.copies if c[0] <= size] or [self.copies[0]]
        above = [c for c in self.copies if c[0] >= size] or [self.copies[-1]]
        (low, slow), (high, fast) = below[-1], above[0]
        if low >= high:
            return slow if size >= low else fast
        part = math.log(size / low) / math.log(high / low)
        return slow + part * (fast - slow)

    def least_seconds(self, size: int, flops: int, double: bool, in_pairs: bool = False) -> tuple[float, str]:
        """Compute the least time to move `size` bytes and do `flops` operations, and its bound: "memory" or "arithmetic"."""
        moving = size / self.bandwidth(size) if size else 0.0
        computing = flops / (self.in_pairs if in_pairs else self.flops / 2 if double else self.flops)
        return (moving, "memory") if moving >= computing else (computing, "arithmetic")


@cache
def machine_peaks() -> MachinePeaks:
    """Measure the peaks of this machine, once per process, in some 100 ms."""
    paired = has_pair_products(host(), lanes(host()))
    library = jit.link(jit.objects([text(host())]), {}, ["copy", "multiply_add", *["multiply_pairs"] * paired])
    copy = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(library["copy"])
    compute = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    memory = np.ones(SIZES[-1] // 4 + 64, np.float32)
    begin = -(-memory.ctypes.data // 64) * 64
    copies = []
    for size in SIZES:
        half = size // 2
        seconds = best(lambda times, half=half: copy(begin + half, begin, half, times))
        copies.append((size, size / seconds))
    results = np.ones(accumulators(host()) * lanes(host()) + 16, np.float32)

    def speed(function: Any) -> float:
        """Floats per second of a function that does one multiply-add in each lane."""
        seconds = best(lambda times: function(results.ctypes.data, 1000 * times))
        return 2000 * accumulators(host()) * lanes(host()) / seconds

    in_pairs = 2 * speed(compute(library["multiply_pairs"])) if paired else 0.0
    return MachinePeaks(tuple(copies), speed(compute(library["multiply_add"])), in_pairs)


def best(run: Any) -> float:
    """Seconds of this thread for one run, the best of a few samples."""
    times, found = 1, sample(run, 1)
    while found * times < SAMPLE_NS and times < 1 << 22:  # long enough for the clock
        times *= 4
        found = sample(run, times)
    times = max(1, min(times, round(SAMPLE_NS / found)))
    return min(sample(run, times) for _ in range(SAMPLES)) / 1e9


def sample(run: Any, times: int) -> float:
    began = thread_time_ns()
    run(times)
    return max(thread_time_ns() - began, 1) / times


# ---- the code


def lanes(target: Target) -> int:
    return target.lanes("float")


def accumulators(target: Target) -> int:
    """Count independent accumulators: as many as there are registers for, with two left for the factors."""
    return 24 if target.bits == 512 or "aarch64" in target.triple else 12


def text(target: Target) -> str:
    """LLVM text of all functions."""
    return f"{copying(target)}\n{computing(target)}\n{computing_pairs(target)}"


def copying(target: Target) -> str:
    """`copy(to, from, bytes, times)`; bytes are a multiple of what one turn moves."""
    vector, size = f"<{lanes(target)} x float>", 4 * lanes(target)
    moves = []
    for i in range(UNROLLED):
        moves += [
            f"  %a{i} = add i64 %at, {i * size}",
            f"  %from{i} = getelementptr i8, ptr %from, i64 %a{i}",
            f"  %to{i} = getelementptr i8, ptr %to, i64 %a{i}",
            f"  %v{i} = load {vector}, ptr %from{i}, align 4",
            f"  store {vector} %v{i}, ptr %to{i}, align 4",
        ]
    return "\n".join([
        "define void @copy(ptr %to, ptr %from, i64 %bytes, i64 %times) {",
        "entry:",
        "  br label %again",
        "again:",
        "  %n = phi i64 [0, %entry], [%n1, %done]",
        "  br label %loop",
        "loop:",
        "  %at = phi i64 [0, %again], [%next, %loop]",
        *moves,
        f"  %next = add i64 %at, {UNROLLED * size}",
        "  %more = icmp ult i64 %next, %bytes",
        "  br i1 %more, label %loop, label %done",
        "done:",
        "  %n1 = add i64 %n, 1",
        "  %left = icmp ult i64 %n1, %times",
        "  br i1 %left, label %again, label %end",
        "end:",
        "  ret void",
        "}",
    ])  # fmt: skip


def computing(target: Target) -> str:
    """`multiply_add(results, times)`: each time one multiply-add in each accumulator."""
    vector, size, count = f"<{lanes(target)} x float>", 4 * lanes(target), accumulators(target)
    starts = [f"  %s{i} = phi {vector} [zeroinitializer, %entry], [%t{i}, %loop]" for i in range(count)]
    steps = []
    for i in range(count):
        steps += [f"  %p{i} = fmul contract {vector} %s{i}, %x", f"  %t{i} = fadd contract {vector} %p{i}, %x"]
    stores = []
    for i in range(count):
        stores += [f"  %r{i} = getelementptr i8, ptr %results, i64 {i * size}", f"  store {vector} %t{i}, ptr %r{i}, align 4"]
    return "\n".join([
        "define void @multiply_add(ptr %results, i64 %times) {",
        "entry:",
        f"  %x = load {vector}, ptr %results, align 4",
        "  br label %loop",
        "loop:",
        "  %n = phi i64 [0, %entry], [%n1, %loop]",
        *starts,
        *steps,
        "  %n1 = add i64 %n, 1",
        "  %more = icmp ult i64 %n1, %times",
        "  br i1 %more, label %loop, label %end",
        "end:",
        *stores,
        "  ret void",
        "}",
    ])  # fmt: skip


def computing_pairs(target: Target) -> str:
    """`multiply_pairs(results, times)`: each time two pairs in each lane of each accumulator; empty if the CPU has no pair dot
    products."""
    if not has_pair_products(target, lanes(target)):
        return ""
    module, count, kind = Module(target.features), accumulators(target), Type("float", lanes(target))
    f = module.function("multiply_pairs", [("results", PTR), ("times", I64)])
    x = f.load(f.params[0], kind.of(PAIR))
    with f.loop(0, f.params[1], carried=zero_sums(count, kind)) as loop:
        loop.next(*[multiply_add_pairs(f, x, x, total) for total in loop.carried])
    for i, total in enumerate(loop.results):
        f.store(total, f.pointer(f.params[0], i * kind.lanes, "float"))
    f.ret()
    return str(module)
