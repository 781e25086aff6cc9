"""Where cuBLAS is the better kernel: a table, and a rule about sizes. On a real device both are measured instead (`tune.py`).

The table has the speed of a Triton kernel as a share of cuBLAS's, for products that fill a device, by device and dtype. Nobody
has measured the kernels of this package: it is what others have published of similar ones, which are plain loops over tiles
(that on B200 has its tiles copied by the tensor memory accelerator besides).

    A100, float32   0.95   triton#2491 and #3234: 17.1 of 17.6 Tflop/s for [2048, 2048], the same from there on
    A100, halves    0.95   triton#743: 214 of 213 and 267 of 273 Tflop/s in float16, 186 of 211 and 223 of 229 in bfloat16
    H100, halves    0.8    triton#3672: 501 of 616 and 525 of 585 Tflop/s for [2816, 2816] and [3072, 3072] in float16
    B200, halves    0.6    facebookexperimental/triton#180: 674 of 839 and 567 of 1043 Tflop/s for [2048, 2048] and [2304, 2304]

The rest is guessed: tf32 on H100 and B200 is a little worse than halves, as its copies to shared memory are narrow; elsewhere
kernels are as good as on A100. NVIDIA's devices for desks count as A100, too; AMD's have another library, which is not called.

What cuBLAS costs more is counted: operands that are computed first and what follows are kernels of their own then, which move
bytes; and launches before and after a call are two CUDA graphs.
"""

from __future__ import annotations

from .problem import Contraction
from ..device.specs import LAUNCH, UNITS, device_for, family, kind_of
from .cublas_gemm import ByLibrary

SHARES = {
    "sm_80": {"float64": 0.95, "float32": 0.95, "tf32": 0.95, "float16": 0.95, "bfloat16": 0.95},
    "sm_90": {"float64": 0.95, "float32": 0.95, "tf32": 0.75, "float16": 0.8, "bfloat16": 0.8},
    "sm_100": {"float64": 0.95, "float32": 0.95, "tf32": 0.55, "float16": 0.6, "bfloat16": 0.6},
}
REACHED = 0.75  # of what a device can do at most, in arithmetic and in bytes: by cuBLAS, and by loops
GAIN = 1.1  # a table that nobody has measured has to promise a tenth
SHORTEST = 50e-6  # seconds: what takes less goes along with others, in one launch and in one CUDA graph
NARROWEST = 128  # rows and columns; what has fewer is one row of tiles, mostly in parts
TILE = 128 * 128  # elements of a result that one program of the library computes


def shares(target: str) -> dict[str, float] | None:
    """The table's row for a device; None where cuBLAS is not called."""
    return SHARES[family(target)] if target.startswith("sm_") else None


def share(work: Contraction, target: str, precision: str) -> float:
    known = shares(target)
    assert known is not None
    return known["tf32" if work.dtype == "float32" and precision == "tf32" else work.dtype]


def worth_measuring(work: Contraction, target: str, precision: str) -> bool:
    """Whether a product is one that cuBLAS might be better at: none that is small or narrow, or of fewer tiles than a device
    computes at a time."""
    if shares(target) is None or min(work.rows, work.cols) < NARROWEST:
        return False
    filled = work.batches * work.rows * work.cols >= UNITS[family(target)] * TILE
    return filled and by_triton(work, target, precision) >= SHORTEST


def library_wins(work: Contraction, plan: ByLibrary, target: str, precision: str) -> bool:
    """What the table says of a product that is worth measuring, where nothing can be measured."""
    device = device_for(family(target))
    library = arithmetic(work, target, precision)
    library += plan.more_bytes / (REACHED * device.bandwidth) + (plan.more_kernels + 1) * LAUNCH
    return library * GAIN < by_triton(work, target, precision)


def arithmetic(work: Contraction, target: str, precision: str) -> float:
    """The seconds that cuBLAS takes for a large product."""
    flops = 2 * work.batches * work.rows * work.cols * work.depth
    return flops / (REACHED * device_for(family(target)).flops[kind_of(work.dtype, precision, product=True)])


def by_triton(work: Contraction, target: str, precision: str) -> float:
    """The seconds that a kernel takes which does all of it."""
    return arithmetic(work, target, precision) / share(work, target, precision)
