"""Substitute indices for loop variables in expressions.

A kernel that visits elements in an order of its own, as a tiled matmul does, says where each loop variable is in that order.
Divisions that cancel are gone afterwards, and so are bounds that always hold.
"""

from __future__ import annotations

from ..ir.expr import Expr, ExprBuilder, Guard, is_never_true, simplify_guard, walk
from ..ir.index import Atom, Index, IndirectIndex, Quotient, Var, atom, constant
from .op_lowering import convert_scalar


class Substitution:
    """Rewrites expressions with indices in place of variables. With a guard, loads outside of it give 0."""

    def __init__(self, exprs: ExprBuilder, places: dict[Var, Index], guard: Guard = ()) -> None:
        self.exprs = exprs
        self.places = places
        self.everywhere = guard
        self.known: dict[Expr, Expr] = {}

    def expr(self, e: Expr) -> Expr:
        for x in walk([e]):
            if x not in self.known:
                self.known[x] = self.made(x)
        return self.known[e]

    def index(self, index: Index) -> Index:
        found = constant(index.const)
        for a, n in index.terms:
            found = found + self.atom(a) * n
        return found

    def atom(self, a: Atom) -> Index:
        if isinstance(a, Var):
            return self.places.get(a, atom(a))
        if isinstance(a, IndirectIndex):
            return atom(IndirectIndex(self.known[a.expr], a.size))
        inner = self.index(a.index)
        return inner // a.n if isinstance(a, Quotient) else inner % a.n

    def guard(self, guard: Guard) -> Guard:
        return tuple((self.index(i), n) for i, n in guard)

    def made(self, e: Expr) -> Expr:
        exprs = self.exprs
        if e.kind == "load":
            buffer, index, inside = e.data
            guard = (*self.guard(inside), *self.everywhere)
            if is_never_true(guard):
                return exprs.const(convert_scalar(0, e.dtype), e.dtype)
            return exprs.load(buffer, self.index(index), simplify_guard(guard), e.dtype)
        if e.kind == "index":
            return exprs.index(self.index(e.data))
        if e.kind == "inside":
            guard = self.guard(e.data)
            return exprs.const(False, "bool") if is_never_true(guard) else exprs.inside(simplify_guard(guard))
        if e.kind == "op":
            name, attrs = e.data
            return exprs.op(name, e.dtype, *[self.known[a] for a in e.args], **dict(attrs))
        if e.kind == "const":
            return exprs.const(e.data, e.dtype)
        if e.kind == "number":
            return exprs.number(e.data, e.dtype)
        return exprs.matmul(e.dtype) if e.kind == "matmul" else exprs.total(e.data, e.dtype)
