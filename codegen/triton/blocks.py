"""How products are cut into tiles: a table for each dtype and kind of device, and which of its rows suits a shape.

The first configuration is what is taken without a measurement; the others are worth trying on a real device. The sizes are
rules of thumb that were only looked at for registers and shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .contraction import Contraction
from .tiles import power_above

GROUP = 8  # rows of tiles that are done together, column after column: what they read stays in the cache
LEAST = 16  # rows, columns and depth of a tile that matrix units take
ROUNDS = 4  # of the loop over the depth that a part has at least
MOST_PARTS = 32
UNITS = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "gfx942": 304}  # that programs run on at once


@dataclass(frozen=True)
class Config:
    """A tile and how it is computed."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    split_k: int = 1


HALVES = {
    "sm_80": [Config(128, 128, 32, 4, 4), Config(128, 64, 32, 4, 4), Config(64, 64, 64, 4, 4), Config(32, 64, 64, 4, 5)],
    "sm_90": [Config(128, 128, 64, 8, 3), Config(128, 64, 64, 4, 4), Config(64, 64, 64, 4, 4), Config(32, 64, 64, 4, 4)],
    "gfx942": [Config(128, 128, 64, 8, 2), Config(128, 64, 64, 4, 2), Config(64, 64, 64, 4, 2), Config(32, 64, 64, 4, 2)],
}
SINGLES = {
    "ieee": [Config(128, 64, 16, 8, 3), Config(64, 64, 16, 4, 3), Config(32, 64, 32, 4, 3)],
    "tf32": [Config(128, 128, 32, 8, 3), Config(128, 64, 32, 4, 3), Config(64, 64, 32, 4, 3), Config(32, 64, 32, 4, 3)],
}
DOUBLES = [Config(64, 64, 16, 4, 3), Config(32, 64, 16, 4, 3), Config(32, 32, 16, 4, 3)]


def table(dtype: str, target: str, precision: str) -> list[Config]:
    """The largest tiles first."""
    if dtype in ("float16", "bfloat16"):
        return HALVES["sm_90" if target == "sm_100" else target]
    return DOUBLES if dtype == "float64" else SINGLES[precision]


def configs(work: Contraction, target: str, precision: str) -> list[Config]:
    """The configurations for a product, the best guess first: the largest tiles that occupy all of a device."""
    fitting = list(dict.fromkeys(fitted(c, work) for c in table(work.dtype, target, precision)))
    units = UNITS[target]
    enough = next((c for c in fitting if tiles(c, work) >= units), fitting[-1])
    best = in_parts(enough, work, units)
    others = [c for c in (enough, *[in_parts(c, work, units) for c in fitting], *fitting) if c != best]
    return [best, *dict.fromkeys(others)]


def fitted(config: Config, work: Contraction) -> Config:
    """Not larger than the matrices."""
    m, n = (max(min(b, power_above(size)), LEAST) for b, size in ((config.block_m, work.rows), (config.block_n, work.cols)))
    k = max(min(config.block_k, power_above(work.depth)), LEAST)
    return replace(config, block_m=m, block_n=n, block_k=k, warps=min(config.warps, max(m * n // 1024, 2)))


def tiles(config: Config, work: Contraction) -> int:
    return work.batches * -(-work.rows // config.block_m) * -(-work.cols // config.block_n)


def in_parts(config: Config, work: Contraction, units: int) -> Config:
    """A long depth in parts, where there are fewer tiles than half of a device."""
    rounds, most = -(-work.depth // config.block_k), units // tiles(config, work)
    parts = min(most, rounds // ROUNDS, MOST_PARTS)
    return replace(config, split_k=parts) if parts > 1 else config
