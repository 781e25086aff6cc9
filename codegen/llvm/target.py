"""What code is generated for: the CPU of this machine, its features, and how wide its vectors are.

`TAPEJIT_VECTOR_BITS` may make the vectors narrower than the CPU's, never wider: tests use it, as LLVM takes any width.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

from .builder import BYTES


@dataclass(frozen=True)
class Target:
    """A CPU as LLVM names it. `bits` is the width of the vectors that emitters write."""

    triple: str
    cpu: str
    features: str  # as LLVM takes them: "+avx2,-amx-tile,..."
    bits: int

    def lanes(self, scalar: str) -> int:
        """How many of a scalar are in a vector: 16 of "float" in 512 bits."""
        return max(1, self.bits // (8 * BYTES[scalar]))

    def has(self, feature: str) -> bool:
        """Whether the CPU has a feature, by LLVM's name: "avx512f", "avx512bf16", "neon"."""
        return f"+{feature}" in self.features.split(",")

    def __str__(self) -> str:
        return f"{self.cpu} ({self.triple}), vectors of {self.bits} bits"


@cache
def host() -> Target:
    """This machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    present = features.split(",")
    widest = 512 if "+avx512f" in present else 256 if "+avx2" in present else 128
    return Target(llvm.get_process_triple(), llvm.get_host_cpu_name(), features, _narrowed(widest))


def _narrowed(widest: int) -> int:
    wanted = os.environ.get("TAPEJIT_VECTOR_BITS", "")
    if not wanted:
        return widest
    if wanted not in ("64", "128", "256", "512"):
        raise ValueError(f"[compile] TAPEJIT_VECTOR_BITS is {wanted!r}: it may be 64, 128, 256 or 512")
    return min(widest, int(wanted))
