"""GPU specifications: peak bandwidth and arithmetic for estimates of time, shared memory, and which tuning table a target uses.

Vendors' figures, without sparsity, which doubles those of matrix units. Compared with what others quote of these sources:

    A100     80 GB SXM: A100 data sheet (nvidia-a100-datasheet-us-nvidia-1758950-r4)
    H100     SXM5, 80 GB: H100 data sheet, which tells matrix units with sparsity; digits by the Hopper architecture paper
    B200     HGX, 1000 W: Blackwell architecture brief
    MI300X   ROCm's page on the MI300 microarchitecture (peak by unit and clock, 304 units), memory by the data sheet

Shared memory of a program: CUDA programming guide, table of compute capabilities. Real kernels reach 60 to 90 % of all that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LAUNCH_SECONDS = 2e-6  # seconds that a launch takes at least, from a graph of them
MULTIPROCESSORS = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "gfx942": 304}  # by target: programs run on all of them at once
MATMUL_OF = "matmul of "  # before a dtype: matrix units compute it


@dataclass(frozen=True)
class Device:
    """Device specification; `flops` by unit: vector units by dtype, matrix units by dtype, and tf32."""

    name: str
    target: str
    bandwidth: float  # bytes a second
    flops: dict[str, float]

    def seconds(self, size: int, flops: int, kind: str) -> float:
        """Least time to move `size` bytes and do `flops` operations."""
        return max(size / self.bandwidth, flops / self.flops[kind], LAUNCH_SECONDS)


def compute_kind(dtype: str, precision: str, matmul: bool) -> str:
    """Compute unit, as a key of `Device.flops`. Outside of matmuls, halves and non-floats count as float32."""
    if not matmul:
        return "float64" if dtype == "float64" else "float32"
    return f"{MATMUL_OF}{'tf32' if dtype == 'float32' and precision == 'tf32' else dtype}"


def spec(name: str, target: str, terabytes: float, vectors: tuple[float, float], matrices: dict[str, float]) -> Device:
    """Vector units compute in float64 and float32, in 10^12 operations a second."""
    float64, float32 = vectors
    rates = {"float64": float64, "float32": float32, f"{MATMUL_OF}float32": float32}
    rates |= {f"{MATMUL_OF}{dtype}": rate for dtype, rate in matrices.items()}
    rates[f"{MATMUL_OF}bfloat16"] = rates[f"{MATMUL_OF}float16"]
    return Device(name, target, terabytes * 1e12, {kind: rate * 1e12 for kind, rate in rates.items()})


DEVICES = {
    d.name: d
    for d in (
        spec("A100", "sm_80", 2.039, (9.7, 19.5), {"float64": 19.5, "tf32": 156, "float16": 312}),
        spec("H100", "sm_90", 3.35, (33.5, 66.9), {"float64": 66.9, "tf32": 494.7, "float16": 989.4}),
        spec("B200", "sm_100", 8.0, (40, 80), {"float64": 40, "tf32": 1100, "float16": 2250}),
        spec("MI300X", "gfx942", 5.3, (81.7, 163.4), {"float64": 163.4, "tf32": 653.7, "float16": 1307.4}),
    )
}


def device_for(target: str) -> Device:
    return next(d for d in DEVICES.values() if d.target == target)


def generation(target: str) -> int:
    """Major compute capability of an NVIDIA target: 8 for sm_80 and sm_89."""
    return int("".join(c for c in target if c.isdigit())) // 10


def table_target(target: str) -> str:
    """Target whose tables fit a device. Consumer GPUs have the matrix units of sm_80, however new."""
    if target in MULTIPROCESSORS:
        return target
    if not target.startswith("sm_"):
        return "gfx942"
    return {9: "sm_90", 10: "sm_100", 11: "sm_100"}.get(generation(target), "sm_80")


def shared_memory(target: str) -> int:
    """Bytes of shared memory available to a program."""
    if not target.startswith("sm_"):
        return (160 if target == "gfx950" else 64) << 10
    if target in ("sm_80", "sm_87"):
        return 163 << 10
    return (227 if generation(target) in (9, 10, 11) else 99) << 10


def is_hip(xp: Any) -> bool:
    """True if CuPy drives AMD's devices."""
    return bool(getattr(xp.cuda.runtime, "is_hip", False))
