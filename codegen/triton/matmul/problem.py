"""Contractions: batched matmuls of operands that are expressions, and their epilogues.

The two operands are expressions, so transposed matmuls, matmuls that scale an operand as it is loaded, and convolutions differ
only in index arithmetic. `from_graph.py` and `implicit_gemm_conv.py` make contractions of nodes, `tile_kernel.py` prints them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....tracer.graph.ir import Form
from ...ir.expr import Expr, ExprBuilder, Guard, is_never_true, simplify_guard, walk
from ...ir.index import ZERO, Index, atom, constant, var
from ...lowering.op_lowering import Place, dtype_of
from ...lowering.substitute import Substitution
from ...nests.kernels import Launch
from ...nests.loop_nest import Nest, Stage, Store
from ...schedule.fusion import variables_of
from ...schedule.step import Domain
from ..printing.scalar_ops import HALVES


@dataclass(frozen=True)
class Contraction:
    """Contraction: rows x cols elements per batch, each a sum over `depth`."""

    batches: int
    rows: int
    cols: int
    depth: int
    a: Expr  # in terms of `batch`, the row and, as the column, the depth
    b: Expr  # in terms of `batch`, as the row the depth, and the column
    nest: Nest  # epilogue, in terms of `batch`, rows and columns
    what: str  # is computed, for people

    @property
    def dtype(self) -> str:
        return self.a.dtype

    @property
    def outer(self) -> Domain:
        return Domain(self.rows, self.depth)

    @property
    def inner(self) -> Domain:
        return Domain(self.depth, self.cols)


def batch_of(batches: int) -> Index:
    return atom(var("batch", batches)) if batches > 1 else ZERO


def in_halves(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Strip the conversion from halves if both operands have it: matrix units multiply halves and accumulate in float32."""
    if all(e.kind == "op" and e.data[0] == "cast" and e.dtype == "float32" and e.args[0].dtype in HALVES for e in (a, b)):
        (x,), (y,) = a.args, b.args
        return (x, y) if x.dtype == y.dtype else (a, b)
    return a, b


class Operands:
    """Operands of a launch's node, at any place."""

    def __init__(self, launch: Launch, forms: dict[str, Form], exprs: ExprBuilder) -> None:
        self.launch = launch
        self.forms = forms
        self.exprs = exprs

    def at(self, name: str, place: Place, guard: Guard = ()) -> Expr:
        """Load or compute an element of an operand; 0 where a guard does not hold."""
        guard = simplify_guard(guard)
        if name in self.launch.computed:
            places = dict(zip(variables_of(self.forms[name].shape), place, strict=True))
            found = Substitution(self.exprs, places, guard).expr(self.launch.computed[name])
            if not guard or all(e.kind == "load" or (e.kind == "op" and e.data[0] == "cast") for e in walk([found])):
                return found
            return self.exprs.where(self.exprs.inside(guard), found, self.exprs.const(0.0, found.dtype))
        buffer, offset, strides = self.launch.operands[name]
        index = constant(offset)
        for i, s in zip(place, strides, strict=True):
            index = index + i * s
        dtype = dtype_of(self.forms[name])
        return self.exprs.const(0.0, dtype) if is_never_true(guard) else self.exprs.load(buffer, index, guard, dtype)


def epilogue_nest(nest: Nest, exprs: ExprBuilder, rows: int, cols: int, row: Index, col: Index) -> Nest:
    """Epilogue of a matmul, in tiles of rows x cols: the nest's own row and column become indices of the tile's."""
    domain, own = nest.domain, Domain(rows, cols)
    moved = Substitution(exprs, {domain.r: row, domain.c: col})
    (stage,) = nest.stages
    stores = []
    for s in stage.stores:
        expr, index = moved.expr(s.expr), moved.index(s.index)
        for v, n in ((own.r, rows), (own.c, cols)):
            if n == 1:  # it is 0, but tiles have more of them: they are masked
                index = index + atom(v)
        stores.append(Store(s.buffer, index, expr, s.dtype, s.overwrites))
    return replace(nest, domain=own, stages=[Stage(stores=stores)])
