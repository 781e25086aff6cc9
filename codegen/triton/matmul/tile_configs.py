"""Tile configurations of matmuls: a table for each dtype and kind of device, and the choice of a row by shape.

The first configuration is used unless autotune measures; the others are worth trying on a real device. The sizes are rules of
thumb, checked only for registers and shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir.expr import Expr, walk
from ...ir.index import Index, IndirectIndex, Remainder, Var, depends_on
from ...nests.loop_nest import Nest
from ..device.specs import MULTIPROCESSORS, shared_memory, table_target
from ..printing.tiling import power_above
from .problem import Contraction

GROUP = 8  # rows of tiles that are done together, column after column: what they read stays in the cache
MIN_TILE = 16  # rows, columns and depth of a tile that matrix units take
ROUNDS = 4  # least iterations of the loop over the depth in each part
MAX_SPLIT_K = 32
FULL = 0.75  # fraction of a device that a tile size has to occupy
HELD = 192  # registers of a thread for a matmul's epilogue
VECTOR = 4  # elements of the shortest vectors that are worth the name
BYTES = {"float64": 8, "float32": 4}


@dataclass(frozen=True)
class Config:
    """Tile, and its launch parameters."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    split_k: int = 1


# the largest tiles first
HALVES = {
    "sm_80": [Config(128, 128, 32, 8, 4), Config(128, 64, 32, 4, 4), Config(64, 64, 64, 4, 4), Config(32, 64, 64, 4, 5)],
    "sm_90": [Config(128, 128, 64, 8, 3), Config(128, 64, 64, 4, 4), Config(64, 64, 64, 4, 4), Config(32, 64, 64, 4, 4)],
    "gfx942": [Config(128, 128, 64, 8, 2), Config(128, 64, 64, 4, 2), Config(64, 64, 64, 4, 2), Config(32, 64, 64, 4, 2)],
}
SINGLES = {
    "ieee": [Config(128, 64, 16, 8, 3), Config(64, 64, 32, 4, 3), Config(32, 64, 32, 4, 3)],
    "tf32": [Config(128, 128, 32, 8, 3), Config(128, 64, 32, 4, 3), Config(64, 64, 32, 4, 3), Config(32, 64, 32, 4, 3)],
}
DOUBLES = [Config(64, 64, 16, 4, 3), Config(32, 64, 16, 4, 3), Config(32, 32, 16, 4, 3)]
SCATTERED = {  # for operands that are read element by element: pointers take registers, too
    "halves": [Config(128, 128, 32, 8, 3), Config(128, 64, 32, 8, 3), Config(64, 64, 32, 4, 3), Config(32, 64, 32, 4, 3)],
    "singles": [Config(64, 64, 16, 4, 3), Config(32, 64, 16, 4, 3)],
}
LARGER = {2: Config(128, 256, 64, 8, 3), 4: Config(128, 128, 16, 8, 3)}  # by bytes: only worth it where little follows


def table(work: Contraction, target: str, precision: str) -> list[Config]:
    dtype = work.dtype
    if scattered(work):
        if dtype not in BYTES or (dtype == "float32" and precision == "tf32"):
            return SCATTERED["halves"]
        return SCATTERED["singles"] if dtype == "float32" else DOUBLES[1:]
    if dtype not in BYTES:
        return HALVES["sm_90" if table_target(target) == "sm_100" else table_target(target)]
    return DOUBLES if dtype == "float64" else SINGLES[precision]


def configs(work: Contraction, target: str, precision: str) -> list[Config]:
    """Candidate configurations of a matmul, the best guess first: the largest tiles that occupy the whole device."""
    rows, units = table(work, target, precision), MULTIPROCESSORS[table_target(target)]
    fitting = list(dict.fromkeys(fitted(c, work, target) for c in rows))
    enough = next((c for c in fitting if tiles(c, work) >= FULL * units), fitting[-1])
    best = in_parts(enough, work, units)
    more = [fitted(c, work, target) for n, c in LARGER.items() if n == BYTES.get(work.dtype, 2) and not scattered(work)]
    others = [enough, *[in_parts(c, work, units) for c in fitting], *fitting, *more]
    return list(dict.fromkeys([best, *others]))


def fitted(config: Config, work: Contraction, target: str) -> Config:
    """Fit a tile to the matrices, to the registers that the epilogue needs, and its pipeline stages to shared memory."""
    m, n = (max(min(b, power_above(size)), MIN_TILE) for b, size in ((config.block_m, work.rows), (config.block_n, work.cols)))
    k = max(min(config.block_k, power_above(work.depth)), MIN_TILE)
    warps = min(config.warps, max(m * n // 1024, 4 if scattered(work) else 2))
    m, n, warps = with_registers(m, n, warps, work.nest, 64 if table_target(target).startswith("gfx") else 32)
    each = k * (m * widest(work.a) + n * widest(work.b))
    stages = max(min(config.stages, shared_memory(target) // each), 1)
    return Config(m, n, k, warps, stages)


def with_registers(m: int, n: int, warps: int, nest: Nest, threads: int) -> tuple[int, int, int]:
    """Grow the warps, or else shrink the tile, until a thread can hold its elements, once for each array that the epilogue
    reads and writes, as nothing is written before all is computed."""
    domain = nest.domain
    loads = [e for e in nest.loads() if e.depends(domain.r) and e.depends(domain.c)]
    held = len(nest.stores()) + len(loads)
    while m * n * held > HELD * threads * warps and m * n > 32 * 32:
        if warps < 8:
            warps *= 2
        elif n >= m:
            n //= 2
        else:
            m //= 2
    return m, n, warps


def scattered(work: Contraction) -> bool:
    """True if an operand is loaded element by element, as convolution windows are."""
    for e, domain in ((work.a, work.outer), (work.b, work.inner)):
        for x in walk([e]):
            both = x.kind == "load" and x.depends(domain.r) and x.depends(domain.c)
            if both and not any(in_vectors(x, v) for v in (domain.r, domain.c)):
                return True
    return False


def in_vectors(e: Expr, v: Var) -> bool:
    """True if elements are contiguous along a variable, in whole vectors that are in range or masked as one."""
    _, index, guard = e.data
    return step(index, v) == 1 and all(step(i, v) == 0 or (step(i, v) == 1 and n % VECTOR == 0) for i, n in guard)


def step(index: Index, v: Var) -> int | None:
    """Stride of an index between elements of a vector along a variable; None if a vector may be split."""
    found, loose = 0, index.const % VECTOR != 0
    for a, n in index.terms:
        if a is v:
            found += n
        elif not depends_on(a, v):
            loose |= n % VECTOR != 0
        elif isinstance(a, IndirectIndex) or a.n % VECTOR or step(a.index, v) != 1:
            return None
        elif isinstance(a, Remainder):
            found += n
        else:  # vectors are each within one quotient
            loose |= n % VECTOR != 0
    return None if found and loose else found


def widest(e: Expr) -> int:
    """Bytes of the widest element that is loaded for an operand."""
    return max((BYTES.get(x.dtype, 2) for x in walk([e]) if x.kind == "load"), default=2)


def tiles(config: Config, work: Contraction) -> int:
    return work.batches * -(-work.rows // config.block_m) * -(-work.cols // config.block_n)


def in_parts(config: Config, work: Contraction, units: int) -> Config:
    """Split a long depth into parts (split-K), where there are fewer tiles than half of a device."""
    rounds, most = -(-work.depth // config.block_k), units // tiles(config, work)
    parts = min(most, rounds // ROUNDS, MAX_SPLIT_K)
    return replace(config, split_k=parts) if parts > 1 else config
