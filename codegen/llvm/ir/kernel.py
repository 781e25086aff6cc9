"""Kernels as emitters return them: functions of pointers, each of which does a range of the pieces that the work is cut into.

Invariant: the cutting does not depend on the number of threads, and a piece gives the same bits whichever thread does it. So
results do not depend on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from .blocking import GemmShape


@dataclass(frozen=True)
class Phase:
    """`void function(ptr..., ptr shared, ptr scratch, i64 begin, i64 end)` does the pieces `begin <= i < end`."""

    function: str
    pieces: int
    auxiliary: bool = False  # small next to the kernel's work: packing, reducing split-K partials


@dataclass(frozen=True)
class NativeKernel:
    """Phases that run one after the other: the next begins when all pieces of the one before are done. All get the same
    pointers."""

    phases: tuple[Phase, ...]
    shared: int = 0  # bytes shared by all threads while the kernel runs, 64-byte aligned
    scratch: int = 0  # bytes per thread, 64-byte aligned
    gemm_shape: GemmShape | None = None  # of a matmul whose plan was chosen by it
    nontemporal: bool = False  # has non-temporal stores: a fence is needed before other threads read the results
