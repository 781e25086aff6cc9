"""Loops that are cut where a guard begins or ceases to hold, so that none is left inside of them.

What is concatenated, padded or shifted is read under guards: each element of each operand, where it is inside of that one. Most
guards ask where a loop is and nothing else. Between two places where the answer changes, a stretch of the loop has expressions
of its own, without that guard, and reads one operand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..ir.expr import Expr, Exprs, Guard, walk
from ..ir.index import Index, Var
from ..lowering.op_lowering import converted
from .loop_nest import Nest, Stage

MOST_STRETCHES = 8
MOST_CODE = 400  # expressions in all stretches of a loop


@dataclass(frozen=True)
class Stretch:
    """The part of a loop from one number to before another."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


def stretches(exprs: Iterable[Expr], variable: Var, unit: int) -> list[Stretch]:
    """The stretches of a loop that does so many steps at a time; one, if it had better not be cut."""
    whole, inside = [Stretch(0, variable.size)], walk(exprs)
    places = sorted({x for g in guards(inside) for x in changes(g, variable) if 0 < x < variable.size})
    if not places or len(places) >= MOST_STRETCHES or len(inside) * (len(places) + 1) > MOST_CODE:
        return whole
    found = [Stretch(a, b) for a, b in zip([0, *places], [*places, variable.size], strict=True)]
    rounds = sum(-(-x.length // unit) for x in found)
    return found if 4 * rounds <= 5 * -(-variable.size // unit) else whole  # incomplete rounds cost as much as others


def guards(exprs: Iterable[Expr]) -> Iterator[tuple[Index, int]]:
    for e in exprs:
        if e.kind in ("load", "inside"):
            yield from e.data[2] if e.kind == "load" else e.data


def changes(condition: tuple[Index, int], variable: Var) -> list[int]:
    """Where a variable makes a condition hold or cease to hold, if it is about that variable alone."""
    index, n = condition
    if len(index.terms) != 1 or index.terms[0][0] is not variable:
        return []
    factor, const = index.terms[0][1], index.const
    if factor > 0:  # the first that is not below 0, and the first that is not below n
        return [-(const // factor), -((const - n) // factor)]
    return [const // -factor + 1, (const - n) // -factor + 1]


class Within:
    """Expressions as they are in a stretch of a variable's loop."""

    def __init__(self, variable: Var, stretch: Stretch) -> None:
        self.variable, self.stretch = variable, stretch
        self.exprs = Exprs()
        self.known: dict[Expr, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        for e in walk([expr]):
            if e not in self.known:
                self.known[e] = self.made(e)
        return self.known[expr]

    def made(self, e: Expr) -> Expr:
        if e.kind == "load":
            buffer, index, guard = e.data
            left = self.left(guard)
            if left is None:
                return self.exprs.const(converted(0, e.dtype), e.dtype)
            return e if left == guard else self.exprs.load(buffer, index, left, e.dtype)
        if e.kind == "inside":
            left = self.left(e.data)
            return self.exprs.const(False, "bool") if left is None else e if left == e.data else self.exprs.inside(left)
        if e.kind != "op":
            return e
        args, (name, attrs) = [self.known[a] for a in e.args], e.data
        if name == "where" and args[0].kind == "const":
            return self.exprs.cast(args[1] if args[0].data else args[2], e.dtype)
        same = all(a is b for a, b in zip(args, e.args, strict=True))
        return e if same else self.exprs.op(name, e.dtype, *args, **dict(attrs))

    def left(self, guard: Guard) -> Guard | None:
        """What of a guard has still to be asked; None if it never holds."""
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
            ends = (self.stretch.start, self.stretch.stop - 1) if a is self.variable else (a.low, a.high)
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
