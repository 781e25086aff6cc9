"""Block sizes of flash attention, by width of heads, precision and device: the first is what is taken without a measurement.

No device has measured them. They were looked at as compiled code: the first of each row spills nothing and fits into shared
memory. Products of float32 that are not rounded go through registers, so their blocks are small.
"""

from __future__ import annotations

from .problem import LEAST, Attention, Config
from ..device.specs import family
from ..printing.tiling import power_above

Table = dict[int, list[Config]]  # by the width of heads that a row is for at most; float64 counts twice

HALVES: dict[str, tuple[Table, Table]] = {  # forward and backward
    "sm_80": (
        {
            32: [Config(128, 64, 4, 2), Config(64, 64, 4, 2)],
            64: [Config(128, 64, 8, 3), Config(128, 32, 8, 3), Config(64, 64, 4, 3)],
            128: [Config(128, 64, 8, 3), Config(128, 32, 8, 3), Config(64, 64, 4, 2)],
            256: [Config(64, 32, 8, 2), Config(64, 16, 4, 2)],
        },
        {
            32: [Config(64, 64, 4, 2), Config(64, 32, 4, 2)],
            64: [Config(128, 32, 8, 2), Config(64, 32, 4, 3), Config(64, 64, 4, 2)],
            128: [Config(64, 64, 8, 2), Config(64, 32, 4, 2)],
            256: [Config(32, 32, 8, 2), Config(64, 32, 8, 2)],
        },
    ),
    "sm_90": (
        {
            64: [Config(128, 64, 8, 3), Config(128, 128, 8, 3), Config(128, 64, 4, 3)],
            128: [Config(128, 64, 8, 3), Config(128, 128, 8, 2), Config(64, 64, 4, 3)],
            256: [Config(128, 32, 8, 2), Config(64, 32, 4, 2)],
        },
        {
            64: [Config(128, 64, 8, 2), Config(128, 32, 8, 3), Config(64, 64, 4, 3)],
            128: [Config(128, 32, 8, 2), Config(64, 32, 4, 2)],
            256: [Config(32, 32, 8, 2), Config(64, 32, 8, 2)],
        },
    ),
    "gfx942": (
        {
            32: [Config(128, 64, 4, 2), Config(64, 64, 4, 1)],
            64: [Config(128, 64, 8, 2), Config(128, 64, 4, 2), Config(64, 64, 4, 2)],
            128: [Config(128, 32, 8, 2), Config(64, 32, 4, 2)],
            256: [Config(64, 16, 4, 1), Config(64, 32, 8, 1)],
        },
        {
            32: [Config(64, 64, 4, 1), Config(128, 64, 4, 2)],
            64: [Config(64, 32, 4, 1), Config(128, 32, 8, 1)],
            128: [Config(64, 32, 4, 1), Config(64, 32, 8, 1)],
            256: [Config(32, 16, 4, 1), Config(64, 16, 4, 1)],
        },
    ),
}
SINGLES: dict[str, tuple[Table, Table]] = {
    "tf32": (
        {
            64: [Config(128, 32, 8, 2), Config(64, 32, 4, 2)],
            128: [Config(64, 32, 8, 2), Config(32, 32, 8, 2)],
            256: [Config(32, 32, 8, 2), Config(32, 16, 8, 2)],
        },
        {
            64: [Config(128, 32, 8, 2), Config(64, 32, 4, 2)],
            128: [Config(32, 32, 8, 2), Config(32, 16, 8, 2)],
            256: [Config(32, 16, 8, 2), Config(16, 16, 8, 2)],
        },
    ),
    "sm": (
        {
            32: [Config(32, 32, 4, 2), Config(64, 32, 4, 2)],
            64: [Config(64, 32, 8, 2), Config(32, 32, 4, 2), Config(32, 16, 4, 2)],
            128: [Config(32, 16, 4, 2), Config(32, 16, 8, 2)],
            256: [Config(16, 16, 8, 2), Config(16, 16, 4, 2)],
        },
        {
            32: [Config(32, 32, 4, 2), Config(32, 16, 4, 2)],
            64: [Config(32, 32, 8, 2), Config(32, 16, 4, 2)],
            128: [Config(32, 16, 8, 2), Config(16, 16, 4, 2)],
            256: [Config(16, 16, 8, 2)],
            512: [Config(16, 16, 8, 1)],
        },
    ),
    "gfx": (
        {
            32: [Config(32, 32, 4, 2), Config(32, 32, 4, 1)],
            64: [Config(64, 32, 8, 2), Config(32, 32, 8, 2)],
            128: [Config(32, 16, 4, 2), Config(32, 16, 8, 2)],
            256: [Config(16, 16, 4, 1), Config(16, 16, 8, 1)],
        },
        {
            32: [Config(32, 32, 4, 2), Config(32, 32, 4, 1)],
            64: [Config(32, 32, 8, 2), Config(32, 16, 4, 2)],
            128: [Config(32, 16, 4, 2), Config(32, 16, 8, 2)],
            256: [Config(16, 16, 4, 1)],
        },
    ),
}


def configurations(problem: Attention, backward: bool, target: str) -> list[Config]:
    """Those worth trying, the best guess first."""
    table = tables(problem, family(target))[backward]
    width = max(problem.padded, problem.padded_value) * (2 if problem.dtype == "float64" else 1)
    rows = next((table[w] for w in table if w >= width), table[max(table)])
    longest = power_above(max(problem.queries, problem.keys, LEAST))
    return list(dict.fromkeys(Config(min(c.held, longest), min(c.step, longest), c.warps, c.stages) for c in rows))


def tables(problem: Attention, kind: str) -> tuple[Table, Table]:
    if problem.dtype in ("float16", "bfloat16"):
        return HALVES["sm_90" if kind == "sm_100" else kind]
    if kind.startswith("gfx"):
        return SINGLES["gfx"]
    return SINGLES["tf32" if problem.dtype == "float32" and problem.precision == "tf32" else "sm"]
