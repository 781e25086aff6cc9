"""Prefetch of the next row during the arithmetic on this one.

Where a row is read several times, the first loop waits for memory and another one computes, as in a softmax: a maximum, then
exponentials. The hardware prefetcher looks ahead a few lines, and not beyond a page. So the loop with most arithmetic also
prefetches the lines of the next row, which are then in L2 when needed.
"""

from __future__ import annotations

from collections.abc import Collection

from ...ir.expr import EXPENSIVE_OPS, Expr
from ...nests.loop_nest import Nest, Stage
from ..ir.builder import BYTES
from ..math.scalar_ops import memory_scalar

MIN_PREFETCH_ROW_BYTES, MAX_PREFETCH_ROW_BYTES = (
    4 << 10,
    512 << 10,
)  # shorter rows arrive in time anyway, longer ones are evicted again
MIN_TOTAL_BYTES = 4 << 20  # of all rows: smaller inputs are in L2 anyway
HEAVY_OP_COST = 16  # in units of a cheap op


class RowPrefetch:
    """Prefetches of a nest: the stage that issues them, and the loads with the distance in elements to the next row."""

    def __init__(self, nest: Nest, known: dict[int, list[Expr]]) -> None:
        """`known` are the values that each stage finds computed already."""
        self.stage, self.loads = -1, list[tuple[Expr, int]]()
        looping = [i for i, stage in enumerate(nest.stages) if stage.loops]
        if len(looping) < 2 or nest.vector != "c":
            return
        loads = {e.data[:2]: (e, step) for e in nest.loads() if (step := row_stride(nest, e))}
        bytes_ = nest.domain.cols * sum(BYTES[memory_scalar(e.dtype)] for e, _ in loads.values())
        if MIN_PREFETCH_ROW_BYTES <= bytes_ <= MAX_PREFETCH_ROW_BYTES and bytes_ * nest.domain.rows >= MIN_TOTAL_BYTES:
            self.stage = max(looping, key=lambda i: stage_cost(nest, nest.stages[i], known.get(i, ())))
            self.loads = list(loads.values())


def row_stride(nest: Nest, e: Expr) -> int:
    """Elements from a row that is read contiguously to the next one; 0 for anything else."""
    _, index, guard = e.data
    if guard or index.factor(nest.domain.c) != 1 or len(index.terms) != 2:
        return 0
    return max(index.factor(nest.domain.r) or 0, 0)


def stage_cost(nest: Nest, stage: Stage, known: Collection[Expr]) -> int:
    """Rough cost of computing one column of a stage."""
    stack = [s.expr for s in stage.stores] + [t.expr for t in (*stage.totals, *stage.columns)]
    seen, found = set(known), 0
    while stack:
        e = stack.pop()
        if e not in seen and e.depends(nest.domain.c):
            seen.add(e)
            stack += e.inner
            found += 0 if e.kind != "op" else HEAVY_OP_COST if e.data[0] in EXPENSIVE_OPS else 1
    return found
