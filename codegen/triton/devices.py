"""What GPUs can do at most, for estimates of time without one: bytes and floats a second, by dtype.

Vendors' figures, without sparsity: NVIDIA A100 80GB SXM and H100 SXM data sheets, NVIDIA Blackwell architecture brief (HGX
B200 at 1000 W), AMD Instinct MI300X data sheet. Real kernels reach 60 to 90 % of them.
"""

from __future__ import annotations

from dataclasses import dataclass

LAUNCH = 2e-6  # seconds that a launch takes at least, from a graph of them


@dataclass(frozen=True)
class Device:
    """`flops` by what computes: vector units in float64 and float32, matrix units in tf32 and halves."""

    name: str
    target: str
    bandwidth: float  # bytes a second
    flops: dict[str, float]

    def seconds(self, size: int, flops: int, dtype: str) -> float:
        """The least time for moving and computing so much."""
        return max(size / self.bandwidth, flops / self.flops[dtype], LAUNCH)


def device(name: str, target: str, terabytes: float, float64: float, float32: float, tf32: float, half: float) -> Device:
    rates = {"float64": float64, "float32": float32, "tf32": tf32, "float16": half, "bfloat16": half}
    return Device(name, target, terabytes * 1e12, {dtype: rate * 1e12 for dtype, rate in rates.items()})


DEVICES = {
    d.name: d
    for d in (
        device("A100", "sm_80", 2.039, 9.7, 19.5, 156, 312),
        device("H100", "sm_90", 3.35, 33.5, 66.9, 494.7, 989.4),
        device("B200", "sm_100", 8.0, 40, 80, 1100, 2250),
        device("MI300X", "gfx942", 5.3, 81.7, 163.4, 653.7, 1307.4),
    )
}


def device_for(target: str) -> Device:
    return next(d for d in DEVICES.values() if d.target == target)
