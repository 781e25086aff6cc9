"""What code is generated for: the CPU of this machine, its features, and how wide its vectors are.

Two variables make less of a machine than it is, for tests: `TAPEJIT_CPU` names a CPU whose instructions are used and no others,
and `TAPEJIT_VECTOR_BITS` makes vectors narrower, as LLVM takes any width.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

from .builder import BYTES

_V2 = "64bit cmov cx8 cx16 fxsr mmx popcnt sahf sse sse2 sse3 ssse3 sse4.1 sse4.2"
_V3 = f"{_V2} avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
_BF16 = f"{_V4} avx512vnni avx512bf16"
_ARM = "aarch64-unknown-linux-gnu"
CPUS = {  # by LLVM's name: a triple, none for this machine's, and the features that count
    "x86-64-v2": ("", _V2),
    "haswell": ("", _V3),
    "x86-64-v3": ("", _V3),
    "x86-64-v4": ("", _V4),
    "cooperlake": ("", _BF16),
    "sapphirerapids": ("", f"{_BF16} amx-tile amx-bf16"),
    "neoverse-n1": (_ARM, "neon"),
}


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
    """This machine, or as much of it as a CPU has that is named."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple, features = llvm.get_process_triple(), llvm.get_host_cpu_features().flatten()
    found = Target(triple, llvm.get_host_cpu_name(), features, _narrowed(_widest(features)))
    wanted = os.environ.get("TAPEJIT_CPU", "")
    return _less(found, wanted) if wanted else found


def named(cpu: str) -> Target:
    """A CPU that code can be generated for, whether this machine could run it or not."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, words = CPUS[cpu]
    features = ",".join(f"+{word}" for word in words.split())
    return Target(triple or "x86_64-unknown-linux-gnu", cpu, features, _widest(features))


def _less(machine: Target, cpu: str) -> Target:
    """A machine with nothing but what a CPU has."""
    if cpu not in CPUS:
        raise ValueError(f"[compile] TAPEJIT_CPU is {cpu!r}: it may be {', '.join(CPUS)}")
    found = named(cpu)
    missing = [word for word in CPUS[cpu][1].split() if not machine.has(word)]
    if missing:
        raise ValueError(f"[compile] TAPEJIT_CPU is {cpu!r}, whose {missing[0]} this machine, {machine.cpu}, does not have")
    return Target(machine.triple, cpu, found.features, min(found.bits, machine.bits))


def _widest(features: str) -> int:
    present = features.split(",")
    return 512 if "+avx512f" in present else 256 if "+avx2" in present else 128


def _narrowed(widest: int) -> int:
    wanted = os.environ.get("TAPEJIT_VECTOR_BITS", "")
    if not wanted:
        return widest
    if wanted not in ("64", "128", "256", "512"):
        raise ValueError(f"[compile] TAPEJIT_VECTOR_BITS is {wanted!r}: it may be 64, 128, 256 or 512")
    return min(widest, int(wanted))
