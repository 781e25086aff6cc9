"""The target of code generation: CPU, features and vector width of this machine.

Two environment variables restrict it, for tests: `TAPEJIT_CPU` names a CPU whose instructions alone are used, and
`TAPEJIT_VECTOR_BITS` makes vectors narrower (LLVM accepts any width).
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
CPUS = {  # LLVM's name: triple ("" for this machine's), and the features that matter
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
        """Lanes of a vector of `scalar`: 16 of "float" in 512 bits."""
        return max(1, self.bits // (8 * BYTES[scalar]))

    def has(self, feature: str) -> bool:
        """True if the CPU has a feature, by LLVM's name: "avx512f", "avx512bf16", "neon"."""
        return f"+{feature}" in self.features.split(",")

    def __str__(self) -> str:
        return f"{self.cpu} ({self.triple}), vectors of {self.bits} bits"


@cache
def host() -> Target:
    """This machine, restricted as `TAPEJIT_CPU` and `TAPEJIT_VECTOR_BITS` ask."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple, features = llvm.get_process_triple(), llvm.get_host_cpu_features().flatten()
    found = Target(triple, llvm.get_host_cpu_name(), features, _requested_bits(_widest_vector(features)))
    wanted = os.environ.get("TAPEJIT_CPU", "")
    return _restrict(found, wanted) if wanted else found


def target_for(cpu: str) -> Target:
    """A CPU by LLVM's name, whether or not this machine could run its code."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, words = CPUS[cpu]
    features = ",".join(f"+{word}" for word in words.split())
    return Target(triple or "x86_64-unknown-linux-gnu", cpu, features, _widest_vector(features))


def _restrict(machine: Target, cpu: str) -> Target:
    """The machine with only those features that `cpu` has."""
    if cpu not in CPUS:
        raise ValueError(f"[compile] TAPEJIT_CPU is {cpu!r}: choose one of {', '.join(CPUS)}")
    found = target_for(cpu)
    missing = [word for word in CPUS[cpu][1].split() if not machine.has(word)]
    if missing:
        raise ValueError(f"[compile] TAPEJIT_CPU is {cpu!r}, which needs {missing[0]}: this machine ({machine.cpu}) lacks it")
    return Target(machine.triple, cpu, found.features, min(found.bits, machine.bits))


def _widest_vector(features: str) -> int:
    present = features.split(",")
    return 512 if "+avx512f" in present else 256 if "+avx2" in present else 128


def _requested_bits(widest: int) -> int:
    wanted = os.environ.get("TAPEJIT_VECTOR_BITS", "")
    if not wanted:
        return widest
    if wanted not in ("64", "128", "256", "512"):
        raise ValueError(f"[compile] TAPEJIT_VECTOR_BITS is {wanted!r}: choose 64, 128, 256 or 512")
    return min(widest, int(wanted))
