"""Simplify nests: replace expressions that follow from totals of the row by cheaper ones. Last bits may change.

- The elements of a softmax are exp((x - largest) - log(total)), where the total is the sum of exp(x - largest): they are the
  summand divided by the total, both of which are there already. The total is between 1 and the number of columns, or NaN, so
  nothing overflows; an exponential is saved, and the result is more precise.
- A sum over elements of which all but one are 0, at a column that the row gives (a target class), is that element.
- Comparing the column with one that the row gives is done in 32 bits: twice as many fit into a vector.

Nests for a GPU stay as they are: they hold rows in registers, and find the total and the largest element in one loop
(`codegen/triton/loops/online_softmax.py`).
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.expr import Expr, ExprBuilder
from ..ir.index import atom
from ..lowering.substitute import Substitution
from .loop_nest import Nest, Stage, Total


def simplify(nest: Nest, exprs: ExprBuilder) -> Nest:
    """The same loops with cheaper expressions."""
    if len(nest.stages) == 1:
        return nest
    found = Simplifier(exprs, nest)

    def stage(x: Stage) -> Stage:
        totals = [t for t in x.totals if t.name not in found.single]
        rows = [[replace(y, expr=found.expr(y.expr)) for y in some] for some in (x.before, x.stores)]
        sums = [[replace(t, expr=found.expr(t.expr)) for t in some] for some in (totals, x.columns, x.downs)]
        return Stage(rows[0], sums[0], rows[1], *sums[1:])

    return replace(nest, stages=[stage(x) for x in nest.stages])


class Simplifier(Substitution):
    """Rewrites the expressions of a nest."""

    def __init__(self, exprs: ExprBuilder, nest: Nest) -> None:
        super().__init__(exprs, {})
        self.column, self.columns = nest.domain.c, nest.domain.cols
        self.totals = {t.name: t for x in nest.stages for t in x.totals}
        self.single = {name for name, t in self.totals.items() if self.single_element(t) is not None}  # sums of one element

    def made(self, e: Expr) -> Expr:
        if e.kind == "total" and e.data in self.single:
            return self.select_element(self.totals[e.data])
        found = super().made(e)
        return self.softmax(found) or self.compare_column(found) or found

    def compare_column(self, e: Expr) -> Expr | None:
        """A comparison of the column with one that the row gives, in 32 bits."""
        said = self.row_column(e)
        if said is None or self.columns >= 1 << 31:
            return None
        exprs, column = self.exprs, self.exprs.index(atom(self.column))
        said = exprs.where(self.inside(said), said, exprs.const(-1, "int64"))
        return exprs.op("eq", "bool", exprs.cast(said, "int32"), exprs.cast(column, "int32"))

    def row_column(self, e: Expr) -> Expr | None:
        """The column that the row gives, if the expression compares the loop's column with it."""
        same = args_of(e, "eq")
        for column, other in (same, same[::-1]) if same is not None else ():
            if column is self.exprs.index(atom(self.column)) and other.dtype == "int64" and not other.depends(self.column):
                return other
        return None

    def inside(self, column: Expr) -> Expr:
        """The condition that a column exists."""
        exprs = self.exprs
        first, end = exprs.const(0, "int64"), exprs.const(self.columns, "int64")
        return exprs.op("bitwise_and", "bool", exprs.op("ge", "bool", column, first), exprs.op("lt", "bool", column, end))

    def softmax(self, e: Expr) -> Expr | None:
        """A softmax element as the summand times the reciprocal of the total."""
        parts = args_of(e, "exp", "sub")
        if parts is None:
            return None
        shifted, logarithm = parts
        total = args_of(logarithm, "log")
        power = self.exprs.op("exp", e.dtype, shifted)
        if total is None or self.total(total[0], "sum") is not power or not self.is_shifted(shifted):
            return None
        return self.exprs.op("mul", e.dtype, power, self.exprs.op("reciprocal", e.dtype, total[0]))

    def is_shifted(self, e: Expr) -> bool:
        """True for an element minus the largest of its row."""
        parts = args_of(e, "sub")
        return parts is not None and self.total(parts[1], "amax") is parts[0]

    def total(self, e: Expr, op: str) -> Expr | None:
        """The summand of a total by `op`."""
        t = self.totals.get(e.data) if e.kind == "total" else None
        return self.expr(t.expr) if t is not None and t.op == op and t.dtype == e.dtype == t.expr.dtype else None

    def single_element(self, t: Total) -> tuple[Expr, Expr] | None:
        """The column and the value of the only element of a sum that can be other than 0."""
        parts = args_of(t.expr, "where") if t.op == "sum" else None
        if parts is None or parts[2].kind != "const" or parts[2].data != 0 or parts[1].depends(self.column):
            return None
        column = self.row_column(parts[0])
        return None if column is None else (column, parts[1])

    def select_element(self, t: Total) -> Expr:
        found = self.single_element(t)
        assert found is not None
        exprs, (column, value) = self.exprs, (self.expr(x) for x in found)
        zero = exprs.const(0.0, t.dtype) if "float" in t.dtype else exprs.const(0, t.dtype)
        return exprs.op(
            "add", t.dtype, exprs.where(self.inside(column), value, zero), zero
        )  # zeros that are added up have no sign


def args_of(e: Expr, *names: str) -> tuple[Expr, ...] | None:
    """The operands of the innermost of nested ops with these names; None if the expression is something else."""
    for name in names:
        if e.kind != "op" or e.data[0] != name or e.data[1]:
            return None
        args, e = e.args, e.args[0]
    return args
