"""Fetching the next row while there is much to compute with this one.

Where a row is gone through several times, the first loop waits for memory and another one computes, as in a softmax: a maximum,
then exponentials. The CPU looks ahead some lines, and not beyond a page. So the loop with most arithmetic also asks for the
lines of the next row, which are then in the second cache when their turn comes.
"""

from __future__ import annotations

from collections.abc import Collection

from ...ir.expr import HEAVY, Expr
from ...nests.loop_nest import Nest, Stage
from ..ir.builder import BYTES
from ..math.scalar_ops import in_memory

SHORTEST, LONGEST = 4 << 10, 512 << 10  # bytes of rows: shorter ones are there before anybody asks, longer ones gone again
FAR = 4 << 20  # bytes in all rows from which on they are not in the second cache anyway
COSTLY = 16  # cheap ops that a costly one takes as long as


class Ahead:
    """What a nest fetches ahead: in which stage, and which loads, with how many elements further on the next row is."""

    def __init__(self, nest: Nest, known: dict[int, list[Expr]]) -> None:
        """`known` is what stages find computed already."""
        self.stage, self.loads = -1, list[tuple[Expr, int]]()
        looping = [i for i, stage in enumerate(nest.stages) if stage.loops]
        if len(looping) < 2 or nest.vector != "c":
            return
        loads = {e.data[:2]: (e, step) for e in nest.loads() if (step := rows_apart(nest, e))}
        bytes_ = nest.domain.cols * sum(BYTES[in_memory(e.dtype)] for e, _ in loads.values())
        if SHORTEST <= bytes_ <= LONGEST and bytes_ * nest.domain.rows >= FAR:
            self.stage = max(looping, key=lambda i: arithmetic(nest, nest.stages[i], known.get(i, ())))
            self.loads = list(loads.values())


def rows_apart(nest: Nest, e: Expr) -> int:
    """How many elements after a row that is read as it lies in memory the next one begins; 0 for anything else."""
    _, index, guard = e.data
    if guard or index.factor(nest.domain.c) != 1 or len(index.terms) != 2:
        return 0
    return max(index.factor(nest.domain.r) or 0, 0)


def arithmetic(nest: Nest, stage: Stage, known: Collection[Expr]) -> int:
    """Roughly how long it takes to compute a column of a stage."""
    stack = [s.expr for s in stage.stores] + [t.expr for t in (*stage.totals, *stage.columns)]
    seen, found = set(known), 0
    while stack:
        e = stack.pop()
        if e not in seen and e.depends(nest.domain.c):
            seen.add(e)
            stack += e.inner
            found += 0 if e.kind != "op" else COSTLY if e.data[0] in HEAVY else 1
    return found
