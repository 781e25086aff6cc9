"""Contractions: batches of matrices, each element the sum, over a depth, of products of two elements; and what follows.

The two operands are expressions, so all that differs between a product of transposed matrices, one whose operand is scaled on
the way, and a convolution is arithmetic of indices. `matmul.py` and `conv.py` make contractions of nodes, `product.py` prints
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....tracer.graph.ir import Form
from ...ir.expr import Expr, Exprs, Guard, never, walk, within
from ...schedule.fusion import variables_of
from ...ir.index import ZERO, Index, atom, constant, var
from ...nests.kernels import Launch
from ...lowering.op_lowering import Place, dtype_of
from ...lowering.substitute import Moved
from ...nests.loop_nest import Nest, Stage, Store
from ...schedule.step import Domain
from ..printing.scalar_ops import HALVES


@dataclass(frozen=True)
class Contraction:
    """Of each batch: rows x cols elements, each a sum over `depth`."""

    batches: int
    rows: int
    cols: int
    depth: int
    a: Expr  # of `batch`, the row and, as the column, the depth
    b: Expr  # of `batch`, as the row the depth, and the column
    nest: Nest  # what follows: of `batch`, rows and columns
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
    """Two operands without the conversion from halves, if both have it: matrix units multiply halves, and add up in float32."""
    if all(e.kind == "op" and e.data[0] == "cast" and e.dtype == "float32" and e.args[0].dtype in HALVES for e in (a, b)):
        (x,), (y,) = a.args, b.args
        return (x, y) if x.dtype == y.dtype else (a, b)
    return a, b


class Operands:
    """The operands of a launch's node, at any place."""

    def __init__(self, launch: Launch, forms: dict[str, Form], exprs: Exprs) -> None:
        self.launch = launch
        self.forms = forms
        self.exprs = exprs

    def at(self, name: str, place: Place, guard: Guard = ()) -> Expr:
        """An element of an operand: in memory, or computed while it is read; 0 where a guard does not hold."""
        guard = within(guard)
        if name in self.launch.computed:
            places = dict(zip(variables_of(self.forms[name].shape), place, strict=True))
            found = Moved(self.exprs, places, guard).expr(self.launch.computed[name])
            if not guard or all(e.kind == "load" or (e.kind == "op" and e.data[0] == "cast") for e in walk([found])):
                return found
            return self.exprs.where(self.exprs.inside(guard), found, self.exprs.const(0.0, found.dtype))
        buffer, offset, strides = self.launch.operands[name]
        index = constant(offset)
        for i, s in zip(place, strides, strict=True):
            index = index + i * s
        dtype = dtype_of(self.forms[name])
        return self.exprs.const(0.0, dtype) if never(guard) else self.exprs.load(buffer, index, guard, dtype)


def followed(nest: Nest, exprs: Exprs, rows: int, cols: int, row: Index, col: Index) -> Nest:
    """What follows a product, in tiles of rows x cols: the nest's own row and column are indices of the tile's."""
    domain, own = nest.domain, Domain(rows, cols)
    moved = Moved(exprs, {domain.r: row, domain.c: col})
    (stage,) = nest.stages
    stores = []
    for s in stage.stores:
        expr, index = moved.expr(s.expr), moved.index(s.index)
        for v, n in ((own.r, rows), (own.c, cols)):
            if n == 1:  # it is 0, but tiles have more of them: they are masked
                index = index + atom(v)
        stores.append(Store(s.buffer, index, expr, s.dtype, s.late))
    return replace(nest, domain=own, stages=[Stage(stores=stores)])
