"""What GPUs are and can do at most: kinds of them that have the same tables, their shared memory, and for estimates of time
without one bytes and floats a second.

Vendors' figures, without sparsity, which doubles those of matrix units. Compared with what others quote of these sources:

    A100     80 GB SXM: A100 data sheet (nvidia-a100-datasheet-us-nvidia-1758950-r4)
    H100     SXM5, 80 GB: H100 data sheet, which tells matrix units with sparsity; digits by the Hopper architecture paper
    B200     HGX, 1000 W: Blackwell architecture brief
    MI300X   ROCm's page on the MI300 microarchitecture (peak by unit and clock, 304 units), memory by the data sheet

Shared memory of a program: CUDA programming guide, table of compute capabilities. Real kernels reach 60 to 90 % of all that.
"""

from __future__ import annotations

from dataclasses import dataclass

LAUNCH = 2e-6  # seconds that a launch takes at least, from a graph of them
UNITS = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "gfx942": 304}  # that programs run on at once
PRODUCT = "product of "  # before a dtype: matrix units compute it


@dataclass(frozen=True)
class Device:
    """`flops` by what computes: vector units by dtype, matrix units by dtype too, and tf32."""

    name: str
    target: str
    bandwidth: float  # bytes a second
    flops: dict[str, float]

    def seconds(self, size: int, flops: int, kind: str) -> float:
        """The least time for moving and computing so much."""
        return max(size / self.bandwidth, flops / self.flops[kind], LAUNCH)


def kind_of(dtype: str, precision: str, product: bool) -> str:
    """What computes: halves that are no product's are computed in float32, as is all that is no float."""
    if not product:
        return "float64" if dtype == "float64" else "float32"
    return f"{PRODUCT}{'tf32' if dtype == 'float32' and precision == 'tf32' else dtype}"


def device(name: str, target: str, terabytes: float, vectors: tuple[float, float], matrices: dict[str, float]) -> Device:
    """Vector units compute in float64 and float32, in 10^12 operations a second."""
    float64, float32 = vectors
    rates = {"float64": float64, "float32": float32, f"{PRODUCT}float32": float32}
    rates |= {f"{PRODUCT}{dtype}": rate for dtype, rate in matrices.items()}
    rates[f"{PRODUCT}bfloat16"] = rates[f"{PRODUCT}float16"]
    return Device(name, target, terabytes * 1e12, {kind: rate * 1e12 for kind, rate in rates.items()})


DEVICES = {
    d.name: d
    for d in (
        device("A100", "sm_80", 2.039, (9.7, 19.5), {"float64": 19.5, "tf32": 156, "float16": 312}),
        device("H100", "sm_90", 3.35, (33.5, 66.9), {"float64": 66.9, "tf32": 494.7, "float16": 989.4}),
        device("B200", "sm_100", 8.0, (40, 80), {"float64": 40, "tf32": 1100, "float16": 2250}),
        device("MI300X", "gfx942", 5.3, (81.7, 163.4), {"float64": 163.4, "tf32": 653.7, "float16": 1307.4}),
    )
}


def device_for(target: str) -> Device:
    return next(d for d in DEVICES.values() if d.target == target)


def generation(target: str) -> int:
    """Of NVIDIA's devices: 8 for sm_80 and sm_89."""
    return int("".join(c for c in target if c.isdigit())) // 10


def family(target: str) -> str:
    """The device in the tables that is most like one. NVIDIA's for desks have the matrix units of sm_80, however new."""
    if target in UNITS:
        return target
    if not target.startswith("sm_"):
        return "gfx942"
    return {9: "sm_90", 10: "sm_100", 11: "sm_100"}.get(generation(target), "sm_80")


def shared_memory(target: str) -> int:
    """The bytes of shared memory that a program may have."""
    if not target.startswith("sm_"):
        return (160 if target == "gfx950" else 64) << 10
    if target in ("sm_80", "sm_87"):
        return 163 << 10
    return (227 if generation(target) in (9, 10, 11) else 99) << 10
