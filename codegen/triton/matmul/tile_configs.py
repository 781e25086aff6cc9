"""How products are cut into tiles: a table for each dtype and kind of device, and which of its rows suits a shape.

The first configuration is what is taken without a measurement; the others are worth trying on a real device. The sizes are
rules of thumb that were only looked at for registers and shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir.expr import Expr, walk
from ...ir.index import Index, Picked, Remainder, Var, depends
from ...nests.loop_nest import Nest
from .problem import Contraction
from ..device.specs import UNITS, family, shared_memory
from ..printing.tiling import power_above

GROUP = 8  # rows of tiles that are done together, column after column: what they read stays in the cache
LEAST = 16  # rows, columns and depth of a tile that matrix units take
ROUNDS = 4  # of the loop over the depth that a part has at least
MOST_PARTS = 32
FULL = 0.75  # of a device that a tile size has to occupy
HELD = 192  # registers of a thread for what follows a product
VECTOR = 4  # elements of the shortest vectors that are worth the name
BYTES = {"float64": 8, "float32": 4}


@dataclass(frozen=True)
class Config:
    """A tile and how it is computed."""

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
SCATTERED = {  # of operands that are read element by element: pointers take registers, too
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
        return HALVES["sm_90" if family(target) == "sm_100" else family(target)]
    return DOUBLES if dtype == "float64" else SINGLES[precision]


def configs(work: Contraction, target: str, precision: str) -> list[Config]:
    """The configurations for a product, the best guess first: the largest tiles that occupy all of a device."""
    rows, units = table(work, target, precision), UNITS[family(target)]
    fitting = list(dict.fromkeys(fitted(c, work, target) for c in rows))
    enough = next((c for c in fitting if tiles(c, work) >= FULL * units), fitting[-1])
    best = in_parts(enough, work, units)
    more = [fitted(c, work, target) for n, c in LARGER.items() if n == BYTES.get(work.dtype, 2) and not scattered(work)]
    others = [enough, *[in_parts(c, work, units) for c in fitting], *fitting, *more]
    return list(dict.fromkeys([best, *others]))


def fitted(config: Config, work: Contraction, target: str) -> Config:
    """Not larger than the matrices, nor than there are registers for what follows, and with no more rounds under way than there
    is shared memory for."""
    m, n = (max(min(b, power_above(size)), LEAST) for b, size in ((config.block_m, work.rows), (config.block_n, work.cols)))
    k = max(min(config.block_k, power_above(work.depth)), LEAST)
    warps = min(config.warps, max(m * n // 1024, 4 if scattered(work) else 2))
    m, n, warps = with_registers(m, n, warps, work.nest, 64 if family(target).startswith("gfx") else 32)
    each = k * (m * widest(work.a) + n * widest(work.b))
    stages = max(min(config.stages, shared_memory(target) // each), 1)
    return Config(m, n, k, warps, stages)


def with_registers(m: int, n: int, warps: int, nest: Nest, threads: int) -> tuple[int, int, int]:
    """A tile whose elements a thread can hold, once for each array that what follows reads and writes, as nothing is written
    before all is computed: by more threads, or else smaller."""
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
    """Whether an operand's elements are read one by one, as those of windows are."""
    for e, domain in ((work.a, work.outer), (work.b, work.inner)):
        for x in walk([e]):
            both = x.kind == "load" and x.depends(domain.r) and x.depends(domain.c)
            if both and not any(in_vectors(x, v) for v in (domain.r, domain.c)):
                return True
    return False


def in_vectors(e: Expr, v: Var) -> bool:
    """Whether elements stand side by side along a variable, in whole vectors of which all or none are there."""
    _, index, guard = e.data
    return step(index, v) == 1 and all(step(i, v) == 0 or (step(i, v) == 1 and n % VECTOR == 0) for i, n in guard)


def step(index: Index, v: Var) -> int | None:
    """What an index grows by from one element of a vector along a variable to the next; None if vectors are cut up."""
    found, loose = 0, index.const % VECTOR != 0
    for a, n in index.terms:
        if a is v:
            found += n
        elif not depends(a, v):
            loose |= n % VECTOR != 0
        elif isinstance(a, Picked) or a.n % VECTOR or step(a.index, v) != 1:
            return None
        elif isinstance(a, Remainder):
            found += n
        else:  # vectors are each within one quotient
            loose |= n % VECTOR != 0
    return None if found and loose else found


def widest(e: Expr) -> int:
    """The bytes of an element that is loaded for an operand."""
    return max((BYTES.get(x.dtype, 2) for x in walk([e]) if x.kind == "load"), default=2)


def tiles(config: Config, work: Contraction) -> int:
    return work.batches * -(-work.rows // config.block_m) * -(-work.cols // config.block_n)


def in_parts(config: Config, work: Contraction, units: int) -> Config:
    """A long depth in parts, where there are fewer tiles than half of a device."""
    rounds, most = -(-work.depth // config.block_k), units // tiles(config, work)
    parts = min(most, rounds // ROUNDS, MOST_PARTS)
    return replace(config, split_k=parts) if parts > 1 else config
