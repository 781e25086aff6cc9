"""Scores of a block of query rows: which keys it attends to, matmuls that skip hidden panels, masks, loops over columns.

Rows are numbered from the block's first one, keys from 0. A row attends to the keys before the number that `seen_by` gives:
all of them, or up to its own position if attention is causal. Within a tile rows differ in that by a few keys at most, so
vectors of columns are either visible to all of them or go through the `hidden` body, which compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..ir.builder import BYTES, Function, Module, Type, Value, constant
from ..ir.register_tile import scale_index
from .blocks import AttentionPlan, RowMatrix, i64, matrix_at, smax, smin, tile_function


class QueryBlock:
    """A block of query rows from `first` on, at one batch position."""

    def __init__(self, f: Function, plan: AttentionPlan, at: list[Value], first: Value) -> None:
        self.f, self.plan, self.first = f, plan, first
        spec = plan.spec
        self.mask = None if spec.mask is None else matrix_at(f, spec.mask, at, spec.mask_scalar)

    def seen_by(self, row: Value) -> Value:
        """Number of keys that a row attends to."""
        f, spec = self.f, self.plan.spec
        if not spec.causal:
            return i64(spec.seen)
        return smin(f, f.add(f.add(self.first, row), i64(1)), i64(spec.seen))

    def first_tile(self, key: Value) -> Value:
        """The first tile of rows that attends to a key, if it exists."""
        f, plan = self.f, self.plan
        if not plan.spec.causal:
            return i64(0)
        return f.div(smax(f, f.sub(key, self.first), i64(0)), i64(plan.rows))

    def multiply_panels(
        self,
        module: Module,
        left: RowMatrix,
        right: Value,
        width: int,
        factor: float,
        out: RowMatrix,
        start: Value,
        end: Value,
        tiles: Value,
    ) -> None:
        """Multiply rows by panels, for the keys from `start` to before `end`; tiles that do not attend to a panel are skipped.
        The factor is in the panels already, unless they hold pairs."""
        f, plan, scalar, steps = self.f, self.plan, self.plan.scalar, self.plan.steps(width)
        along, more = (2, [constant(factor, Type(scalar))]) if plan.pairs else (left.column, [])
        with f.loop(start, end, plan.panel) as key:
            panel = f.pointer(right, scale_index(f, key.index, steps), scalar)
            column = f.pointer(out.pointer, f.sub(key.index, start), scalar)
            first = self.first_tile(key.index)
            for vectors in range(1, plan.vectors + 1):
                last = tiles if vectors == plan.vectors else self.tiles_within(key.index, vectors, end, tiles)
                if last is None:
                    continue
                call = tile_function(module, plan, vectors, left.row, along, plan.panel, out.row, pairs=plan.pairs)
                with f.loop(first, last) as tile:
                    row = scale_index(f, tile.index, plan.rows)
                    result = RowMatrix(column, out.row, scalar).at(f, row)
                    call(f, left.at(f, row), panel, result, i64(steps), *more)
                first = smax(f, first, last)

    def tiles_within(self, key: Value, vectors: int, end: Value, tiles: Value) -> Value | None:
        """Number of first tiles that attend only to the first `vectors` vectors of a panel; None if that never happens."""
        f, plan, spec = self.f, self.plan, self.plan.spec
        few, rest = vectors * plan.lanes, spec.seen % plan.panel
        if not spec.causal and not 0 < rest <= few:
            return None
        following = f.add(key, i64(few))
        short = f.compare("le", end, following)
        return f.select(short, tiles, smin(f, self.first_tile(following), tiles))


class ScoreColumn:
    """A vector of columns of a row group: where it begins, and which lanes each row attends to, if some are hidden."""

    def __init__(self, few: RowGroup, index: Value, hidden: bool) -> None:
        self.few, self.index, self.hidden = few, index, hidden
        self.seen: list[Value | None] = [None] * few.plan.together
        if hidden:
            self.seen = [self.lanes_seen(i) for i in range(few.plan.together)]

    def lanes_seen(self, i: int) -> Value:
        few, f, lanes = self.few, self.few.f, self.few.plan.lanes
        left = f.sub(few.limits[i], self.index)
        return f.compare("gt", left, i64(0)) if lanes == 1 else f.mask_below(left, lanes)

    def places(self, rows: RowMatrix) -> list[Value]:
        """Addresses of its elements in rows that begin with the group's first."""
        f, scalar = self.few.f, self.few.plan.scalar
        start = f.pointer(rows.pointer, self.index, scalar)
        return [f.pointer(start, i * rows.row, scalar) for i in range(self.few.plan.together)]


class RowGroup:
    """A few of a tile's rows, from `row` on, and at most `max_keys` keys, from `start` on."""

    def __init__(self, queries: QueryBlock, tile: Value, row: Value, start: Value, max_keys: int) -> None:
        self.queries, self.row, self.start, self.max_keys = queries, row, start, max_keys
        f, plan = queries.f, queries.plan
        self.f, self.plan = f, plan
        self.last = self.seen_by(f.add(tile, i64(plan.rows - 1)))
        self.whole, self.limits = self.last, [self.last] * plan.together
        self.some_hidden = plan.spec.causal or plan.spec.seen % plan.lanes != 0
        if self.some_hidden:
            fewest = smax(f, self.seen_by(tile), i64(0))
            self.whole = f.sub(fewest, f.rem(fewest, i64(plan.lanes)))
            self.limits = [self.seen_by(f.add(row, i64(i))) for i in range(plan.together)]

    def seen_by(self, row: Value) -> Value:
        """Number of these keys that a row attends to; below 0 if it does not even attend to all keys before them."""
        f = self.f
        return smin(f, f.sub(self.queries.seen_by(row), self.start), i64(self.max_keys))

    def over_columns(
        self, carried: list[Value], body: Callable[[ScoreColumn, list[Value]], list[Value]], alike: bool = False
    ) -> list[Value]:
        """Loop over all columns that the tile's rows attend to, those with hidden keys last. `alike`: the body ignores
        hidden keys."""
        f, lanes = self.f, self.plan.lanes
        with f.loop(i64(0), self.last if alike else self.whole, lanes, carried=carried) as loop:
            loop.next(*body(ScoreColumn(self, loop.index, False), loop.carried))
        if self.some_hidden and not alike:
            with f.loop(self.whole, self.last, lanes, carried=loop.results) as loop:
                loop.next(*body(ScoreColumn(self, loop.index, True), loop.carried))
        return loop.results

    def changed(self, column: ScoreColumn) -> bool:
        """True if `score` differs from the matmul's result."""
        return column.hidden or self.queries.mask is not None

    def score(self, raw: Value, column: ScoreColumn, i: int) -> Value:
        """Scores of the i-th row: the matmul's result plus the mask, and -inf for keys that it does not attend to."""
        f, seen = self.f, column.seen[i]
        if self.queries.mask is not None:
            raw = f.add(raw, self.masking(self.queries.mask, column, i))
        return raw if seen is None else f.select(seen, raw, constant(-math.inf, raw.type))

    def masking(self, mask: RowMatrix, column: ScoreColumn, i: int) -> Value:
        """The mask's addend to the scores. Rows after the last one use the last one's."""
        f, plan, spec = self.f, self.plan, self.plan.spec
        row = smin(f, f.add(f.add(self.queries.first, self.row), i64(i)), i64(spec.queries - 1))
        key = f.add(self.start, column.index)
        where = f.pointer(mask.at(f, row), scale_index(f, key, mask.column), spec.mask_scalar)
        found = load_mask(f, where, mask.column, plan.kind.of(spec.mask_scalar), column.seen[i])
        if spec.mask_scalar == "i8":
            shown = f.compare("ne", found, constant(0, found.type))
            return f.select(shown, constant(0, plan.kind), constant(-math.inf, plan.kind))
        if spec.mask_scalar == plan.scalar:
            return found
        longer = BYTES[spec.mask_scalar] < BYTES[plan.scalar]
        return f.convert("fpext" if longer else "fptrunc", found, plan.scalar)


def load_mask(f: Function, where: Value, stride: int, kind: Type, seen: Value | None) -> Value:
    """Load elements of a mask, a stride apart, where they are visible."""
    if stride == 0:
        return f.splat(f.load(where, Type(kind.scalar)), kind.lanes)
    if stride == 1 or kind.lanes == 1:
        return f.load(where, kind, seen)
    steps = ", ".join(f"i64 {i * stride}" for i in range(kind.lanes))
    return f.gather(where, Value(f"<{steps}>", Type("i64", kind.lanes)), kind.scalar, seen)
