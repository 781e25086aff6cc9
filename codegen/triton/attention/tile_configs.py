"""Tile configurations of flash attention, by head width, precision and device: the first is used unless autotune measures.

They have not been measured on any device, only checked as compiled code: the first of each row spills nothing and fits into
shared memory. float32 matmuls at full precision go through registers, so their blocks are small.
"""

from __future__ import annotations

from ..device.specs import table_target
from ..printing.tiling import power_above
from .problem import MIN_DOT_SIZE, AttentionConfig, BoundAttention

Table = dict[int, list[AttentionConfig]]  # by the width of heads that a row is for at most; float64 counts twice

HALVES: dict[str, tuple[Table, Table]] = {  # forward and backward
    "sm_80": (
        {
            32: [AttentionConfig(128, 64, 4, 2), AttentionConfig(64, 64, 4, 2)],
            64: [AttentionConfig(128, 64, 8, 3), AttentionConfig(128, 32, 8, 3), AttentionConfig(64, 64, 4, 3)],
            128: [AttentionConfig(128, 64, 8, 3), AttentionConfig(128, 32, 8, 3), AttentionConfig(64, 64, 4, 2)],
            256: [AttentionConfig(64, 32, 8, 2), AttentionConfig(64, 16, 4, 2)],
        },
        {
            32: [AttentionConfig(64, 64, 4, 2), AttentionConfig(64, 32, 4, 2)],
            64: [AttentionConfig(128, 32, 8, 2), AttentionConfig(64, 32, 4, 3), AttentionConfig(64, 64, 4, 2)],
            128: [AttentionConfig(64, 64, 8, 2), AttentionConfig(64, 32, 4, 2)],
            256: [AttentionConfig(32, 32, 8, 2), AttentionConfig(64, 32, 8, 2)],
        },
    ),
    "sm_90": (
        {
            64: [AttentionConfig(128, 64, 8, 3), AttentionConfig(128, 128, 8, 3), AttentionConfig(128, 64, 4, 3)],
            128: [AttentionConfig(128, 64, 8, 3), AttentionConfig(128, 128, 8, 2), AttentionConfig(64, 64, 4, 3)],
            256: [AttentionConfig(128, 32, 8, 2), AttentionConfig(64, 32, 4, 2)],
        },
        {
            64: [AttentionConfig(128, 64, 8, 2), AttentionConfig(128, 32, 8, 3), AttentionConfig(64, 64, 4, 3)],
            128: [AttentionConfig(128, 32, 8, 2), AttentionConfig(64, 32, 4, 2)],
            256: [AttentionConfig(32, 32, 8, 2), AttentionConfig(64, 32, 8, 2)],
        },
    ),
    "gfx942": (
        {
            32: [AttentionConfig(128, 64, 4, 2), AttentionConfig(64, 64, 4, 1)],
            64: [AttentionConfig(128, 64, 8, 2), AttentionConfig(128, 64, 4, 2), AttentionConfig(64, 64, 4, 2)],
            128: [AttentionConfig(128, 32, 8, 2), AttentionConfig(64, 32, 4, 2)],
            256: [AttentionConfig(64, 16, 4, 1), AttentionConfig(64, 32, 8, 1)],
        },
        {
            32: [AttentionConfig(64, 64, 4, 1), AttentionConfig(128, 64, 4, 2)],
            64: [AttentionConfig(64, 32, 4, 1), AttentionConfig(128, 32, 8, 1)],
            128: [AttentionConfig(64, 32, 4, 1), AttentionConfig(64, 32, 8, 1)],
            256: [AttentionConfig(32, 16, 4, 1), AttentionConfig(64, 16, 4, 1)],
        },
    ),
}
SINGLES: dict[str, tuple[Table, Table]] = {
    "tf32": (
        {
            64: [AttentionConfig(128, 32, 8, 2), AttentionConfig(64, 32, 4, 2)],
            128: [AttentionConfig(64, 32, 8, 2), AttentionConfig(32, 32, 8, 2)],
            256: [AttentionConfig(32, 32, 8, 2), AttentionConfig(32, 16, 8, 2)],
        },
        {
            64: [AttentionConfig(128, 32, 8, 2), AttentionConfig(64, 32, 4, 2)],
            128: [AttentionConfig(32, 32, 8, 2), AttentionConfig(32, 16, 8, 2)],
            256: [AttentionConfig(32, 16, 8, 2), AttentionConfig(16, 16, 8, 2)],
        },
    ),
    "sm": (
        {
            32: [AttentionConfig(32, 32, 4, 2), AttentionConfig(64, 32, 4, 2)],
            64: [AttentionConfig(64, 32, 8, 2), AttentionConfig(32, 32, 4, 2), AttentionConfig(32, 16, 4, 2)],
            128: [AttentionConfig(32, 16, 4, 2), AttentionConfig(32, 16, 8, 2)],
            256: [AttentionConfig(16, 16, 8, 2), AttentionConfig(16, 16, 4, 2)],
        },
        {
            32: [AttentionConfig(32, 32, 4, 2), AttentionConfig(32, 16, 4, 2)],
            64: [AttentionConfig(32, 32, 8, 2), AttentionConfig(32, 16, 4, 2)],
            128: [AttentionConfig(32, 16, 8, 2), AttentionConfig(16, 16, 4, 2)],
            256: [AttentionConfig(16, 16, 8, 2)],
            512: [AttentionConfig(16, 16, 8, 1)],
        },
    ),
    "gfx": (
        {
            32: [AttentionConfig(32, 32, 4, 2), AttentionConfig(32, 32, 4, 1)],
            64: [AttentionConfig(64, 32, 8, 2), AttentionConfig(32, 32, 8, 2)],
            128: [AttentionConfig(32, 16, 4, 2), AttentionConfig(32, 16, 8, 2)],
            256: [AttentionConfig(16, 16, 4, 1), AttentionConfig(16, 16, 8, 1)],
        },
        {
            32: [AttentionConfig(32, 32, 4, 2), AttentionConfig(32, 32, 4, 1)],
            64: [AttentionConfig(32, 32, 8, 2), AttentionConfig(32, 16, 4, 2)],
            128: [AttentionConfig(32, 16, 4, 2), AttentionConfig(32, 16, 8, 2)],
            256: [AttentionConfig(16, 16, 4, 1)],
        },
    ),
}


def candidate_configs(problem: BoundAttention, backward: bool, target: str) -> list[AttentionConfig]:
    """Candidate configurations worth trying, the best guess first."""
    table = config_tables(problem, table_target(target))[backward]
    width = max(problem.padded, problem.padded_value) * (2 if problem.dtype == "float64" else 1)
    rows = next((table[w] for w in table if w >= width), table[max(table)])
    longest = power_above(max(problem.queries, problem.keys, MIN_DOT_SIZE))
    return list(dict.fromkeys(AttentionConfig(min(c.held, longest), min(c.step, longest), c.warps, c.stages) for c in rows))


def config_tables(problem: BoundAttention, kind: str) -> tuple[Table, Table]:
    if problem.dtype in ("float16", "bfloat16"):
        return HALVES["sm_90" if kind == "sm_100" else kind]
    if kind.startswith("gfx"):
        return SINGLES["gfx"]
    return SINGLES["tf32" if problem.dtype == "float32" and problem.precision == "tf32" else "sm"]
