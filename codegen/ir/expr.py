"""Scalar expressions: what one element of a result is, in terms of elements that are in memory.

Expressions are made once: two that are equal are the same object, so what is used twice is computed once. They know nothing of
machines; emitters walk them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .index import Index, Picked, Var, depends
from .cached_attribute import lazy

Guard = tuple[tuple[Index, int], ...]  # all indices are from 0 to before their numbers

# ops that cost much more than a load
HEAVY = {
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv", "lgamma", "digamma", "pow", "atan2", "hypot",
    "logaddexp", "logaddexp2", "xlogy", "floor_divide", "remainder", "fmod", "trunc_divide", "random_uniform",
    "random_normal", "random_integers", "random_mask",
}  # fmt: skip


class Expr:
    """One of: const (value), number (place), index (Index), inside (Guard), load (buffer, Index, Guard), op (name, attrs),
    total (which reduction of the row) and product (the element of a contraction)."""

    __slots__ = ("__dict__", "args", "data", "dtype", "kind")

    def __init__(self, kind: str, dtype: str, data: Any, args: tuple[Expr, ...]) -> None:
        self.kind = kind
        self.dtype = dtype
        self.data = data
        self.args = args

    def depends(self, var: Var) -> bool:
        """Whether it changes with a loop variable."""
        known = self.__dict__.setdefault("known", {})
        if var not in known:
            known[var] = any(depends(a, var) for i in self.indices for a, _ in i.terms) or any(
                a.depends(var) for a in self.args
            )
        return bool(known[var])

    @lazy
    def indices(self) -> tuple[Index, ...]:
        """The indices that it computes itself."""
        if self.kind == "index":
            return (self.data,)
        if self.kind == "load":
            return (self.data[1], *[i for i, _ in self.data[2]])
        if self.kind == "inside":
            return tuple(i for i, _ in self.data)
        return ()

    @lazy
    def inner(self) -> tuple[Expr, ...]:
        """All expressions that it is made of directly, those that pick indices among them."""
        return (*self.args, *[e for i in self.indices for e in picked(i)])

    @lazy
    def reads(self) -> frozenset[str]:
        """The buffers that it is loaded from."""
        own = frozenset([self.data[0]]) if self.kind == "load" else frozenset()
        return own.union(*[e.reads for e in self.inner])

    @lazy
    def totals(self) -> frozenset[Expr]:
        """The totals of the row, and the product, that it is made of."""
        if self.kind in ("total", "product"):
            return frozenset([self])
        return frozenset().union(*[e.totals for e in self.inner])

    def __repr__(self) -> str:
        return shown(self)


def picked(index: Index) -> list[Expr]:
    found: list[Expr] = []
    for a, _ in index.terms:
        if isinstance(a, Picked):
            found.append(a.expr)
        elif not isinstance(a, Var):
            found += picked(a.index)
    return found


def walk(roots: Iterable[Expr]) -> list[Expr]:
    """Everything that some expressions are made of, parts before wholes, each once."""
    found: dict[Expr, None] = {}
    stack = list(roots)
    stack.reverse()
    while stack:
        e = stack[-1]
        if e not in found:
            parts = [x for x in e.inner if x not in found]
            if parts:
                stack += parts
                continue
            found[e] = None
        stack.pop()
    return list(found)


def shown(e: Expr) -> str:
    if e.kind == "const":
        return f"{e.data!r}"
    if e.kind == "number":
        return f"s{e.data}"
    if e.kind == "load":
        return f"{e.data[0]}[{e.data[1]}{' if ' + guarded(e.data[2]) if e.data[2] else ''}]"
    if e.kind == "index":
        return f"({e.data})"
    if e.kind == "inside":
        return f"({guarded(e.data)})"
    if e.kind == "total":
        return f"{e.data}"
    if e.kind == "product":
        return "product"
    name, attrs = e.data
    given = [*map(shown, e.args), *[f"{k}={v}" for k, v in attrs]]
    if name == "cast":
        return f"{e.dtype}({given[0]})"
    return f"{name}({', '.join(given)})"


def guarded(guard: Guard) -> str:
    return " and ".join(f"0 <= {i} < {n}" for i, n in guard)


class Exprs:
    """Makes expressions, each once."""

    def __init__(self) -> None:
        self.known: dict[Any, Expr] = {}

    def make(self, kind: str, dtype: str, data: Any, key: Any, args: tuple[Expr, ...] = ()) -> Expr:
        full = (kind, dtype, key, *map(id, args))
        found = self.known.get(full)
        if found is None:
            found = self.known[full] = Expr(kind, dtype, data, args)
        return found

    def const(self, value: Any, dtype: str) -> Expr:
        return self.make("const", dtype, value, (type(value), repr(value)))

    def number(self, place: int, dtype: str) -> Expr:
        """A number that each call brings: float64 or int64."""
        return self.make("number", dtype, place, place)

    def index(self, index: Index) -> Expr:
        return self.make("index", "int64", index, index.key)

    def inside(self, guard: Guard) -> Expr:
        """Whether all indices are within their bounds."""
        if not guard:
            return self.const(True, "bool")
        return self.make("inside", "bool", guard, tuple((i.key, n) for i, n in guard))

    def load(self, buffer: str, index: Index, guard: Guard, dtype: str) -> Expr:
        """An element of a buffer; 0 where the guard does not hold."""
        key = (buffer, index.key, tuple((i.key, n) for i, n in guard))
        return self.make("load", dtype, (buffer, index, guard), key)

    def op(self, name: str, dtype: str, *args: Expr, **attrs: Any) -> Expr:
        settings = tuple(sorted(attrs.items()))
        return self.make("op", dtype, (name, settings), (name, repr(settings)), args)

    def total(self, name: str, dtype: str) -> Expr:
        """What a reduction of the row gave."""
        return self.make("total", dtype, name, name)

    def product(self, dtype: str) -> Expr:
        """The element of the contraction that this is the epilogue of."""
        return self.make("product", dtype, None, None)

    def cast(self, x: Expr, dtype: str) -> Expr:
        return x if x.dtype == dtype else self.op("cast", dtype, x)

    def where(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        if condition.kind == "const":
            return a if condition.data else b
        return self.op("where", a.dtype, condition, a, b)


def within(guard: Guard) -> Guard:
    """A guard without what holds in any case."""
    return tuple((i, n) for i, n in guard if i.low < 0 or i.high >= n)


def never(guard: Guard) -> bool:
    """Whether a guard cannot hold."""
    return any(i.high < 0 or i.low >= n for i, n in guard)
