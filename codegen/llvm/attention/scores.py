"""Which keys a block of query rows sees, and its scores: products that leave out hidden panels, masks, loops over columns.

Rows are counted from the block's first one, keys from 0. A row sees the keys before a number that `seen_by` gives: all of them,
or up to its own position if attention is causal. A tile's rows differ in that by a few keys at most, so vectors of columns are
either seen by all of them or go through the `hidden` body, which compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .blocks import Plan, Rows, integer, least, matrix, most, product
from ..ir.builder import BYTES, Function, Module, Type, Value, constant
from ..ir.register_tile import scaled


class Sight:
    """A block of query rows, from `first` on, at one place of the batch."""

    def __init__(self, f: Function, plan: Plan, at: list[Value], first: Value) -> None:
        self.f, self.plan, self.first = f, plan, first
        spec = plan.spec
        self.mask = None if spec.mask is None else matrix(f, spec.mask, at, spec.mask_scalar)

    def seen_by(self, row: Value) -> Value:
        """The number of keys that a row sees."""
        f, spec = self.f, self.plan.spec
        if not spec.causal:
            return integer(spec.seen)
        return least(f, f.add(f.add(self.first, row), integer(1)), integer(spec.seen))

    def first_tile(self, key: Value) -> Value:
        """The first tile of rows that sees a key, if it is there."""
        f, plan = self.f, self.plan
        if not plan.spec.causal:
            return integer(0)
        return f.div(most(f, f.sub(key, self.first), integer(0)), integer(plan.rows))

    def products(
        self,
        module: Module,
        left: Rows,
        right: Value,
        width: int,
        factor: float,
        out: Rows,
        start: Value,
        end: Value,
        tiles: Value,
    ) -> None:
        """Rows times panels, for the keys from `start` to before `end`; tiles that do not see a panel are left out. The factor
        is in the panels already, unless they are of pairs."""
        f, plan, scalar, steps = self.f, self.plan, self.plan.scalar, self.plan.steps(width)
        along, more = (2, [constant(factor, Type(scalar))]) if plan.pairs else (left.column, [])
        with f.loop(start, end, plan.panel) as key:
            panel = f.pointer(right, scaled(f, key.index, steps), scalar)
            column = f.pointer(out.pointer, f.sub(key.index, start), scalar)
            first = self.first_tile(key.index)
            for vectors in range(1, plan.vectors + 1):
                last = tiles if vectors == plan.vectors else self.tiles_within(key.index, vectors, end, tiles)
                if last is None:
                    continue
                call = product(module, plan, vectors, left.row, along, plan.panel, out.row, pairs=plan.pairs)
                with f.loop(first, last) as tile:
                    row = scaled(f, tile.index, plan.rows)
                    result = Rows(column, out.row, scalar).at(f, row)
                    call(f, left.at(f, row), panel, result, integer(steps), *more)
                first = most(f, first, last)

    def tiles_within(self, key: Value, vectors: int, end: Value, tiles: Value) -> Value | None:
        """How many of the first tiles see no more of a panel than its first vectors; None if that never happens."""
        f, plan, spec = self.f, self.plan, self.plan.spec
        few, rest = vectors * plan.lanes, spec.seen % plan.panel
        if not spec.causal and not 0 < rest <= few:
            return None
        following = f.add(key, integer(few))
        short = f.compare("le", end, following)
        return f.select(short, tiles, least(f, self.first_tile(following), tiles))


class Column:
    """A vector of columns of a few rows: where it begins, and which of its lanes each row sees, if some are hidden."""

    def __init__(self, few: Few, index: Value, hidden: bool) -> None:
        self.few, self.index, self.hidden = few, index, hidden
        self.seen: list[Value | None] = [None] * few.plan.together
        if hidden:
            self.seen = [self.lanes_seen(i) for i in range(few.plan.together)]

    def lanes_seen(self, i: int) -> Value:
        few, f, lanes = self.few, self.few.f, self.few.plan.lanes
        left = f.sub(few.limits[i], self.index)
        return f.compare("gt", left, integer(0)) if lanes == 1 else f.mask_below(left, lanes)

    def places(self, rows: Rows) -> list[Value]:
        """Where its elements are in rows that begin with the first of the few."""
        f, scalar = self.few.f, self.few.plan.scalar
        start = f.pointer(rows.pointer, self.index, scalar)
        return [f.pointer(start, i * rows.row, scalar) for i in range(self.few.plan.together)]


class Few:
    """A few of a tile's rows, from `row` on, and at most `most_keys` keys, from `start` on."""

    def __init__(self, sight: Sight, tile: Value, row: Value, start: Value, most_keys: int) -> None:
        self.sight, self.row, self.start, self.most_keys = sight, row, start, most_keys
        f, plan = sight.f, sight.plan
        self.f, self.plan = f, plan
        self.last = self.seen_by(f.add(tile, integer(plan.rows - 1)))
        self.whole, self.limits = self.last, [self.last] * plan.together
        self.some_hidden = plan.spec.causal or plan.spec.seen % plan.lanes != 0
        if self.some_hidden:
            fewest = most(f, self.seen_by(tile), integer(0))
            self.whole = f.sub(fewest, f.rem(fewest, integer(plan.lanes)))
            self.limits = [self.seen_by(f.add(row, integer(i))) for i in range(plan.together)]

    def seen_by(self, row: Value) -> Value:
        """How many of these keys a row sees, which is below 0 if it sees not even all keys before them."""
        f = self.f
        return least(f, f.sub(self.sight.seen_by(row), self.start), integer(self.most_keys))

    def over_columns(
        self, carried: list[Value], body: Callable[[Column, list[Value]], list[Value]], alike: bool = False
    ) -> list[Value]:
        """All columns that the tile's rows see, those with hidden keys at the end. `alike`: the body does not look at that."""
        f, lanes = self.f, self.plan.lanes
        with f.loop(integer(0), self.last if alike else self.whole, lanes, carried=carried) as loop:
            loop.next(*body(Column(self, loop.index, False), loop.carried))
        if self.some_hidden and not alike:
            with f.loop(self.whole, self.last, lanes, carried=loop.results) as loop:
                loop.next(*body(Column(self, loop.index, True), loop.carried))
        return loop.results

    def changed(self, column: Column) -> bool:
        """Whether `score` differs from what the products are."""
        return column.hidden or self.sight.mask is not None

    def score(self, product: Value, column: Column, i: int) -> Value:
        """Scores of the i-th row from the product, with the mask, and -inf for keys that it does not see."""
        f, seen = self.f, column.seen[i]
        if self.sight.mask is not None:
            product = f.add(product, self.masking(self.sight.mask, column, i))
        return product if seen is None else f.select(seen, product, constant(-math.inf, product.type))

    def masking(self, mask: Rows, column: Column, i: int) -> Value:
        """What the mask adds to the scores. Rows after the last one take the last one's."""
        f, plan, spec = self.f, self.plan, self.plan.spec
        row = least(f, f.add(f.add(self.sight.first, self.row), integer(i)), integer(spec.queries - 1))
        key = f.add(self.start, column.index)
        where = f.pointer(mask.at(f, row), scaled(f, key, mask.column), spec.mask_scalar)
        found = masked(f, where, mask.column, plan.kind.of(spec.mask_scalar), column.seen[i])
        if spec.mask_scalar == "i8":
            shown = f.compare("ne", found, constant(0, found.type))
            return f.select(shown, constant(0, plan.kind), constant(-math.inf, plan.kind))
        if spec.mask_scalar == plan.scalar:
            return found
        longer = BYTES[spec.mask_scalar] < BYTES[plan.scalar]
        return f.convert("fpext" if longer else "fptrunc", found, plan.scalar)


def masked(f: Function, where: Value, stride: int, kind: Type, seen: Value | None) -> Value:
    """Elements of a mask, a stride apart, where they are seen."""
    if stride == 0:
        return f.splat(f.load(where, Type(kind.scalar)), kind.lanes)
    if stride == 1 or kind.lanes == 1:
        return f.load(where, kind, seen)
    steps = ", ".join(f"i64 {i * stride}" for i in range(kind.lanes))
    return f.gather(where, Value(f"<{steps}>", Type("i64", kind.lanes)), kind.scalar, seen)
