"""Loop splitting: cut a loop where a guard on its variable begins or ceases to hold, so that no guard is left inside.

Concatenated, padded or shifted tensors are read under guards: each operand's elements where the index is inside of it. Most
guards depend on one loop variable alone. Each range between two boundaries has expressions of its own, without that guard, and
reads one operand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..ir.expr import Expr, ExprBuilder, Guard, walk
from ..ir.index import Index, Var
from ..lowering.op_lowering import convert_scalar
from .loop_nest import Nest, Stage

MAX_RANGES = 8
MAX_EXPRS = 400  # in all ranges of a loop together


@dataclass(frozen=True)
class LoopRange:
    """Iterations `start` to before `stop` of a loop."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


def split_loop(exprs: Iterable[Expr], variable: Var, unit: int) -> list[LoopRange]:
    """The ranges of a loop whose vectors have `unit` elements; only one if splitting would cost more than it saves."""
    whole, inside = [LoopRange(0, variable.size)], walk(exprs)
    places = sorted({x for g in guards(inside) for x in boundaries(g, variable) if 0 < x < variable.size})
    if not places or len(places) >= MAX_RANGES or len(inside) * (len(places) + 1) > MAX_EXPRS:
        return whole
    found = [LoopRange(a, b) for a, b in zip([0, *places], [*places, variable.size], strict=True)]
    rounds = sum(-(-x.length // unit) for x in found)
    return found if 4 * rounds <= 5 * -(-variable.size // unit) else whole  # incomplete vectors cost as much as full ones


def guards(exprs: Iterable[Expr]) -> Iterator[tuple[Index, int]]:
    for e in exprs:
        if e.kind in ("load", "inside"):
            yield from e.data[2] if e.kind == "load" else e.data


def boundaries(condition: tuple[Index, int], variable: Var) -> list[int]:
    """The iterations at which a condition begins or ceases to hold, if it depends on that variable alone."""
    index, n = condition
    if len(index.terms) != 1 or index.terms[0][0] is not variable:
        return []
    factor, const = index.terms[0][1], index.const
    if factor > 0:  # the first not below 0, and the first not below n
        return [-(const // factor), -((const - n) // factor)]
    return [const // -factor + 1, (const - n) // -factor + 1]


class RangeSpecializer:
    """Specialises expressions to one range of a loop variable."""

    def __init__(self, variable: Var, range_: LoopRange) -> None:
        self.variable, self.range = variable, range_
        self.exprs = ExprBuilder()
        self.known: dict[Expr, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        for e in walk([expr]):
            if e not in self.known:
                self.known[e] = self.made(e)
        return self.known[expr]

    def made(self, e: Expr) -> Expr:
        if e.kind == "load":
            buffer, index, guard = e.data
            left = self.remaining(guard)
            if left is None:
                return self.exprs.const(convert_scalar(0, e.dtype), e.dtype)
            return e if left == guard else self.exprs.load(buffer, index, left, e.dtype)
        if e.kind == "inside":
            left = self.remaining(e.data)
            return self.exprs.const(False, "bool") if left is None else e if left == e.data else self.exprs.inside(left)
        if e.kind != "op":
            return e
        args, (name, attrs) = [self.known[a] for a in e.args], e.data
        if name == "where" and args[0].kind == "const":
            return self.exprs.cast(args[1] if args[0].data else args[2], e.dtype)
        same = all(a is b for a, b in zip(args, e.args, strict=True))
        return e if same else self.exprs.op(name, e.dtype, *args, **dict(attrs))

    def remaining(self, guard: Guard) -> Guard | None:
        """The conditions of a guard that still have to be tested; None if it never holds."""
        found = []
        for index, n in guard:
            low, high = self.bounds(index)
            if high < 0 or low >= n:
                return None
            if low < 0 or high >= n:
                found.append((index, n))
        return tuple(found)

    def bounds(self, index: Index) -> tuple[int, int]:
        low = high = index.const
        for a, n in index.terms:
            ends = (self.range.start, self.range.stop - 1) if a is self.variable else (a.low, a.high)
            low, high = low + min(n * x for x in ends), high + max(n * x for x in ends)
        return low, high

    def stage(self, stage: Stage) -> Stage:
        return Stage(
            before=[replace(s, expr=self(s.expr)) for s in stage.before],
            totals=[replace(t, expr=self(t.expr)) for t in stage.totals],
            stores=[replace(s, expr=self(s.expr)) for s in stage.stores],
            columns=[replace(t, expr=self(t.expr)) for t in stage.columns],
            downs=[replace(t, expr=self(t.expr)) for t in stage.downs],
        )

    def nest(self, nest: Nest) -> Nest:
        return replace(nest, stages=[self.stage(s) for s in nest.stages])
