"""Which operands products compute while they pack them, by what that saves and costs.

An operand that is not written has not to be read again either. Instead, what it is computed from is read when it is packed, it
is computed once for each product that packs it, and it has to be packed, which products do with some operands in any case. The
score is the difference, in nanoseconds of one thread, from a few speeds that were measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...tracer.graph.ir import Form, Node
from ..ir.expr import HEAVY, Expr, walk
from ..lowering.op_lowering import dtype_of
from ..nests.loop_nest import Nest
from ..schedule.step import View
from .ir.blocking import choose
from .contractions import product_of
from .gemm.problem import Gemm
from .gemm.dot_kernel import suits
from .gemm.select_kernel import shape_of
from .gemm.prologue import prologue, strides_of
from .ir.target import Target
from .math.scalar_ops import SCALARS

WRITE, READ, PACK = 0.1, 0.05, 0.15  # nanoseconds for a byte of what does not fit into caches, or is packed into those
LIGHT, COSTLY = 0.02, 0.3  # nanoseconds for an op on an element
LEAST = 1 << 16  # bytes of an operand
FEWEST = 16  # rows and columns of a product, and its depth
MOST_OPS = 48
GAIN = 0.1  # of what is saved at most: less is not worth it


@dataclass(frozen=True)
class Verdict:
    """What computing an operand while it is packed gains, and why."""

    score: float  # nanoseconds
    why: str


class OnPacking:
    """Judges operands for a target's products."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def verdict(
        self,
        node: Node,
        x: str,
        e: Expr,
        views: dict[str, View],
        forms: dict[str, Form],
        readers: int,
        stored: Callable[[str], bool],
    ) -> Verdict | None:
        """Of an operand that so many products read; None where it has to be in memory. What is not `stored` in any case would
        have to be written for it."""
        if forms[x].nbytes < LEAST or e.totals:
            return None
        nest = prologue(x, e, forms)
        ops, read = per_element(nest), bytes_read(nest, forms)
        if ops is None or not read:
            return None
        gemm = self.product(node, {**views, x: (x, 0, strides_of(nest, forms[x].shape))}, forms)
        if min(gemm.m, gemm.n, gemm.k) < FEWEST or suits(gemm, self.target.lanes(gemm.scalar)):
            return None
        size, nbytes, many = forms[x].size, forms[x].nbytes, sum(read.values())
        packed = all(self.packs_anyway(gemm, side) for side, name in enumerate(node.operands) if name == x)
        score = nbytes * (WRITE + READ * readers) * (1 - GAIN) - many * READ * readers - size * ops * (readers - 1)
        score -= 0 if packed else nbytes * PACK
        if score > 0:
            score -= WRITE * sum(n for leaf, n in read.items() if not stored(leaf))
        return Verdict(score, f"{nbytes} bytes are not written, {many} are read instead, {ops:.2f} ns of arithmetic each")

    def product(self, node: Node, views: dict[str, View], forms: dict[str, Form]) -> Gemm:
        return product_of(node, views, forms, SCALARS[dtype_of(forms[str(node.operands[0])])])

    def packs_anyway(self, gemm: Gemm, side: int) -> bool:
        """Whether a product would pack an operand if it were in memory. The model is asked: what is fused does not depend on
        what was measured."""
        plan = choose(shape_of(gemm, self.target))
        return (plan.pack_a, plan.pack_b)[side]


def per_element(nest: Nest) -> float | None:
    """Nanoseconds of arithmetic on an element; None if it is too much code."""
    along = nest.domain.r if nest.vector == "r" else nest.domain.c
    ops = [e.data[0] for e in walk(nest.expressions()) if e.kind == "op" and e.depends(along)]
    return sum(COSTLY if name in HEAVY else LIGHT for name in ops) if len(ops) <= MOST_OPS else None


def bytes_read(nest: Nest, forms: dict[str, Form]) -> dict[str, int] | None:
    """Bytes of the buffers that an operand is computed from, if these are not only rows or columns; None if some do not lie
    along its lines."""
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
