"""Cost model of prologue fusion: decides which operands are computed while they are packed.

A fused operand is neither written nor read back. Instead its inputs are read when it is packed, it is computed once per
matmul that packs it, and it has to be packed, which matmuls do with some operands anyway. The score is the difference, in
nanoseconds of one thread, from a few measured speeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...tracer.graph.ir import Form, Node
from ..ir.expr import EXPENSIVE_OPS, Expr, walk
from ..nests.loop_nest import Nest
from ..nests.problems.matmul import read_matmul
from ..schedule.step import BufferView
from .contractions import gemm_problem
from .gemm.dot_kernel import suits_dot_kernel
from .gemm.problem import GemmProblem
from .gemm.prologue import preferred_strides, prologue_nest
from .gemm.select_kernel import gemm_shape
from .ir.blocking import choose_plan
from .ir.target import Target

WRITE_NS, READ_NS, PACK_NS = 0.1, 0.05, 0.15  # per byte that does not fit into the caches, or is packed into them
LIGHT_OP_NS, HEAVY_OP_NS = 0.02, 0.3  # per op on an element
MIN_OPERAND_BYTES = 1 << 16
MIN_DIM = 16  # of m, n and k
MAX_PROLOGUE_OPS = 48
MIN_GAIN = 0.1  # fraction of the best possible saving: less is not worth it


@dataclass(frozen=True)
class Verdict:
    """Gain of computing an operand while it is packed, and the reason."""

    score: float  # nanoseconds
    why: str


class PrologueCost:
    """Judges operands of a target's matmuls."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def verdict(
        self,
        node: Node,
        x: str,
        e: Expr,
        views: dict[str, BufferView],
        forms: dict[str, Form],
        readers: int,
        stored: Callable[[str], bool],
    ) -> Verdict | None:
        """Judge operand `x` that `readers` matmuls read; None if it has to be in memory. Inputs for which `stored` is false
        would have to be written just for this."""
        if forms[x].nbytes < MIN_OPERAND_BYTES or e.totals:
            return None
        nest = prologue_nest(x, e, forms)
        ops, read = arithmetic_per_element(nest), bytes_read(nest, forms)
        if ops is None or not read:
            return None
        gemm = self.problem(node, {**views, x: (x, 0, preferred_strides(nest, forms[x].shape))}, forms)
        if min(gemm.m, gemm.n, gemm.k) < MIN_DIM or suits_dot_kernel(gemm, self.target.lanes(gemm.scalar)):
            return None
        size, nbytes, many = forms[x].size, forms[x].nbytes, sum(read.values())
        packed = all(self.packs_anyway(gemm, side) for side, name in enumerate(node.operands) if name == x)
        score = nbytes * (WRITE_NS + READ_NS * readers) * (1 - MIN_GAIN) - many * READ_NS * readers - size * ops * (readers - 1)
        score -= 0 if packed else nbytes * PACK_NS
        if score > 0:
            score -= WRITE_NS * sum(n for leaf, n in read.items() if not stored(leaf))
        return Verdict(score, f"saves writing {nbytes} bytes, reads {many} instead, {ops:.2f} ns of arithmetic per element")

    def problem(self, node: Node, views: dict[str, BufferView], forms: dict[str, Form]) -> GemmProblem:
        return gemm_problem(read_matmul(node, views, forms))

    def packs_anyway(self, gemm: GemmProblem, side: int) -> bool:
        """True if the matmul would pack the operand if it were in memory. Asks the model's plan: fusion must not depend on
        measurements."""
        plan = choose_plan(gemm_shape(gemm, self.target))
        return (plan.pack_a, plan.pack_b)[side]


def arithmetic_per_element(nest: Nest) -> float | None:
    """Nanoseconds of arithmetic per element; None if it is too much code."""
    along = nest.domain.r if nest.vector == "r" else nest.domain.c
    ops = [e.data[0] for e in walk(nest.expressions()) if e.kind == "op" and e.depends(along)]
    return sum(HEAVY_OP_NS if name in EXPENSIVE_OPS else LIGHT_OP_NS for name in ops) if len(ops) <= MAX_PROLOGUE_OPS else None


def bytes_read(nest: Nest, forms: dict[str, Form]) -> dict[str, int] | None:
    """Bytes read from each buffer that is not just a row or a column; None if some are not contiguous along the operand's
    lines."""
    domain = nest.domain
    along, size = domain.r if nest.vector == "r" else domain.c, domain.rows * domain.cols
    found: dict[str, int] = {}
    for e in nest.loads():
        buffer, index, _ = e.data
        if e.depends(along) and index.factor(along) != 1:
            return None
        if e.depends(domain.r) and e.depends(domain.c):
            found[buffer] = min(forms[buffer].nbytes, found.get(buffer, 0) + size * forms[buffer].itemsize)
    return found
