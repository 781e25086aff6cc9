"""Chooses between cuBLAS and Triton for matmuls: a table, and a rule about sizes. On a real device both are measured instead
(`codegen/triton/runtime/autotune.py`).

The table has the speed of a Triton kernel as a share of cuBLAS's, for matmuls that fill a device, by device and dtype. The
kernels of this package have not been measured: the figures are published ones of similar kernels, which are plain loops over
tiles (that on B200 also copies its tiles by the tensor memory accelerator).

    A100, float32   0.95   triton#2491 and #3234: 17.1 of 17.6 Tflop/s for [2048, 2048], the same from there on
    A100, halves    0.95   triton#743: 214 of 213 and 267 of 273 Tflop/s in float16, 186 of 211 and 223 of 229 in bfloat16
    H100, halves    0.8    triton#3672: 501 of 616 and 525 of 585 Tflop/s for [2816, 2816] and [3072, 3072] in float16
    B200, halves    0.6    facebookexperimental/triton#180: 674 of 839 and 567 of 1043 Tflop/s for [2048, 2048] and [2304, 2304]

The rest is guessed: tf32 on H100 and B200 is a little worse than halves, as its copies to shared memory are narrow; elsewhere
kernels are as good as on A100. NVIDIA's consumer GPUs count as A100, too; AMD's have another library, which is not called.

The extra cost of cuBLAS is counted: operands that are computed first and the epilogue are then kernels of their own, which move
bytes; and launches before and after a call are two CUDA graphs.
"""

from __future__ import annotations

from ..device.specs import LAUNCH_SECONDS, MULTIPROCESSORS, compute_kind, device_for, table_target
from .cublas_gemm import CublasPlan
from .problem import Contraction

SHARES = {
    "sm_80": {"float64": 0.95, "float32": 0.95, "tf32": 0.95, "float16": 0.95, "bfloat16": 0.95},
    "sm_90": {"float64": 0.95, "float32": 0.95, "tf32": 0.75, "float16": 0.8, "bfloat16": 0.8},
    "sm_100": {"float64": 0.95, "float32": 0.95, "tf32": 0.55, "float16": 0.6, "bfloat16": 0.6},
}
REACHED = 0.75  # fraction of the device's peak reached, in arithmetic and bandwidth: by cuBLAS, and by loops
GAIN = 1.1  # least speedup: the table is not measured here, so it has to promise a tenth
MIN_CALL_SECONDS = 50e-6  # shorter matmuls share a launch and a CUDA graph with others
NARROWEST = 128  # rows and columns; a narrower matmul is one row of tiles, mostly split-K
TILE = 128 * 128  # elements of a result that one program of the library computes


def shares(target: str) -> dict[str, float] | None:
    """Table row for a device; None where cuBLAS is not called."""
    return SHARES[table_target(target)] if target.startswith("sm_") else None


def share(work: Contraction, target: str, precision: str) -> float:
    known = shares(target)
    assert known is not None
    return known["tf32" if work.dtype == "float32" and precision == "tf32" else work.dtype]


def worth_measuring(work: Contraction, target: str, precision: str) -> bool:
    """True if cuBLAS might be faster for a matmul: not a small or narrow one, nor one with fewer tiles than a device computes
    at a time."""
    if shares(target) is None or min(work.rows, work.cols) < NARROWEST:
        return False
    filled = work.batches * work.rows * work.cols >= MULTIPROCESSORS[table_target(target)] * TILE
    return filled and by_triton(work, target, precision) >= MIN_CALL_SECONDS


def library_wins(work: Contraction, plan: CublasPlan, target: str, precision: str) -> bool:
    """Decide by the table, where nothing can be measured, for a matmul that is `worth_measuring`."""
    device = device_for(table_target(target))
    library = arithmetic(work, target, precision)
    library += plan.more_bytes / (REACHED * device.bandwidth) + (plan.more_kernels + 1) * LAUNCH_SECONDS
    return library * GAIN < by_triton(work, target, precision)


def arithmetic(work: Contraction, target: str, precision: str) -> float:
    """Estimate the seconds that cuBLAS takes for a large matmul."""
    flops = 2 * work.batches * work.rows * work.cols * work.depth
    return flops / (REACHED * device_for(table_target(target)).flops[compute_kind(work.dtype, precision, matmul=True)])


def by_triton(work: Contraction, target: str, precision: str) -> float:
    """Estimate the seconds that one fused Triton kernel takes."""
    return arithmetic(work, target, precision) / share(work, target, precision)
