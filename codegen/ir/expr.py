"""Scalar expressions: one element of a result, in terms of elements in memory.

Expressions are hash-consed: equal ones are the same object, so a common subexpression is computed once. They are independent of
the machine; emitters and printers walk them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .cached_attribute import cached_attribute
from .index import Index, IndirectIndex, Var, depends_on

Guard = tuple[tuple[Index, int], ...]  # each index is in [0, n)

# ops that cost much more than a load
EXPENSIVE_OPS = {
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv", "lgamma", "digamma", "pow", "atan2", "hypot",
    "logaddexp", "logaddexp2", "xlogy", "floor_divide", "remainder", "fmod", "trunc_divide", "random_uniform",
    "random_normal", "random_integers", "random_mask",
}  # fmt: skip


class Expr:
    """A node of an expression. Kinds, with their data: const (value), number (place of a runtime scalar), index (Index), inside
    (Guard), load (buffer, Index, Guard), op (name, attrs), total (name of a reduction of the row) and matmul (none: the
    element of the contraction that this is the epilogue of)."""

    __slots__ = ("__dict__", "args", "data", "dtype", "kind")

    def __init__(self, kind: str, dtype: str, data: Any, args: tuple[Expr, ...]) -> None:
        self.kind = kind
        self.dtype = dtype
        self.data = data
        self.args = args

    def depends(self, var: Var) -> bool:
        """True if the value changes with a loop variable."""
        known = self.__dict__.setdefault("known", {})
        if var not in known:
            known[var] = any(depends_on(a, var) for i in self.indices for a, _ in i.terms) or any(
                a.depends(var) for a in self.args
            )
        return bool(known[var])

    @cached_attribute
    def indices(self) -> tuple[Index, ...]:
        """The indices in its own data, without those of operands."""
        if self.kind == "index":
            return (self.data,)
        if self.kind == "load":
            return (self.data[1], *[i for i, _ in self.data[2]])
        if self.kind == "inside":
            return tuple(i for i, _ in self.data)
        return ()

    @cached_attribute
    def inner(self) -> tuple[Expr, ...]:
        """Its operands, and the expressions that its indices are read by."""
        return (*self.args, *[e for i in self.indices for e in indirect_exprs(i)])

    @cached_attribute
    def reads(self) -> frozenset[str]:
        """The buffers that it loads from."""
        own = frozenset([self.data[0]]) if self.kind == "load" else frozenset()
        return own.union(*[e.reads for e in self.inner])

    @cached_attribute
    def totals(self) -> frozenset[Expr]:
        """The totals of the row, and the contraction's element, that it depends on."""
        if self.kind in ("total", "matmul"):
            return frozenset([self])
        return frozenset().union(*[e.totals for e in self.inner])

    def __repr__(self) -> str:
        return expr_text(self)


def indirect_exprs(index: Index) -> list[Expr]:
    found: list[Expr] = []
    for a, _ in index.terms:
        if isinstance(a, IndirectIndex):
            found.append(a.expr)
        elif not isinstance(a, Var):
            found += indirect_exprs(a.index)
    return found


def walk(roots: Iterable[Expr]) -> list[Expr]:
    """All subexpressions in topological order, operands first, each once."""
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


def expr_text(e: Expr) -> str:
    if e.kind == "const":
        return f"{e.data!r}"
    if e.kind == "number":
        return f"s{e.data}"
    if e.kind == "load":
        return f"{e.data[0]}[{e.data[1]}{' if ' + guard_text(e.data[2]) if e.data[2] else ''}]"
    if e.kind == "index":
        return f"({e.data})"
    if e.kind == "inside":
        return f"({guard_text(e.data)})"
    if e.kind == "total":
        return f"{e.data}"
    if e.kind == "matmul":
        return "matmul"
    name, attrs = e.data
    given = [*map(expr_text, e.args), *[f"{k}={v}" for k, v in attrs]]
    if name == "cast":
        return f"{e.dtype}({given[0]})"
    return f"{name}({', '.join(given)})"


def guard_text(guard: Guard) -> str:
    return " and ".join(f"0 <= {i} < {n}" for i, n in guard)


class ExprBuilder:
    """Makes expressions, and returns the known object for an equal one."""

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
        """A runtime scalar: float64 or int64."""
        return self.make("number", dtype, place, place)

    def index(self, index: Index) -> Expr:
        return self.make("index", "int64", index, index.key)

    def inside(self, guard: Guard) -> Expr:
        """The condition that all indices are within their bounds."""
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
        """The result of a reduction of the row."""
        return self.make("total", dtype, name, name)

    def matmul(self, dtype: str) -> Expr:
        """The element of the contraction that this is the epilogue of."""
        return self.make("matmul", dtype, None, None)

    def cast(self, x: Expr, dtype: str) -> Expr:
        return x if x.dtype == dtype else self.op("cast", dtype, x)

    def where(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        if condition.kind == "const":
            return a if condition.data else b
        return self.op("where", a.dtype, condition, a, b)


def simplify_guard(guard: Guard) -> Guard:
    """A guard without the conditions that always hold."""
    return tuple((i, n) for i, n in guard if i.low < 0 or i.high >= n)


def is_never_true(guard: Guard) -> bool:
    """True if a guard can never hold."""
    return any(i.high < 0 or i.low >= n for i, n in guard)
