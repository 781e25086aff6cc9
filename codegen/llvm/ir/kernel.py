"""What emitters make: kernels, as functions of pointers that do some of the pieces a kernel's work falls into.

How the work is cut into pieces does not depend on the number of threads, and each piece gives the same bits whoever does it: so
results do not depend on the number of threads either.
"""

from __future__ import annotations

from dataclasses import dataclass

from .blocking import Shape


@dataclass(frozen=True)
class Phase:
    """`void function(ptr..., ptr shared, ptr scratch, i64 begin, i64 end)` does the pieces from `begin` to before `end`."""

    function: str
    pieces: int
    aside: bool = False  # it is little beside the kernel's work: packing, adding up what parts have left


@dataclass(frozen=True)
class Kernel:
    """Phases one after the other: the next begins when all pieces of the one before are done. All get the same pointers."""

    phases: tuple[Phase, ...]
    shared: int = 0  # bytes that all threads see and that live as long as the kernel runs, 64-byte aligned
    scratch: int = 0  # bytes that each thread has for itself, 64-byte aligned
    shape: Shape | None = None  # of a product whose plan was chosen by it
    past: bool = False  # some results are written past the caches: a fence is needed before others may read them
