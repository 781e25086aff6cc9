"""Expressions at other places: loop variables replaced by indices of other variables.

A kernel that goes through elements in an order of its own, as a product does in tiles, says where each loop variable is in that
order; divisions that cancel out are gone afterwards, and so are bounds that always hold.
"""

from __future__ import annotations

from ..ir.expr import Expr, Exprs, Guard, never, walk, within
from ..ir.index import Atom, Index, Picked, Quotient, Var, atom, constant
from .op_lowering import converted


class Moved:
    """Makes expressions anew, with indices in the place of variables. Beyond a guard, if there is one, nothing is loaded."""

    def __init__(self, exprs: Exprs, places: dict[Var, Index], guard: Guard = ()) -> None:
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
        if isinstance(a, Picked):
            return atom(Picked(self.known[a.expr], a.size))
        inner = self.index(a.index)
        return inner // a.n if isinstance(a, Quotient) else inner % a.n

    def guard(self, guard: Guard) -> Guard:
        return tuple((self.index(i), n) for i, n in guard)

    def made(self, e: Expr) -> Expr:
        exprs = self.exprs
        if e.kind == "load":
            buffer, index, inside = e.data
            guard = (*self.guard(inside), *self.everywhere)
            if never(guard):
                return exprs.const(converted(0, e.dtype), e.dtype)
            return exprs.load(buffer, self.index(index), within(guard), e.dtype)
        if e.kind == "index":
            return exprs.index(self.index(e.data))
        if e.kind == "inside":
            guard = self.guard(e.data)
            return exprs.const(False, "bool") if never(guard) else exprs.inside(within(guard))
        if e.kind == "op":
            name, attrs = e.data
            return exprs.op(name, e.dtype, *[self.known[a] for a in e.args], **dict(attrs))
        if e.kind == "const":
            return exprs.const(e.data, e.dtype)
        if e.kind == "number":
            return exprs.number(e.data, e.dtype)
        return exprs.product(e.dtype) if e.kind == "product" else exprs.total(e.data, e.dtype)
