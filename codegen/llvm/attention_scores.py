"""Which keys a block of query rows sees, and its scores: products that leave out hidden panels, masks, loops over columns.

Rows are counted from the block's first one, keys from 0. A row sees the keys before a number that `seen_by` gives: all of them,
or up to its own position if attention is causal. A tile's rows differ in that by a few keys at most, so vectors of columns are
either seen by all of them or go through the `hidden` body, which compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .attention_parts import Plan, Rows, integer, least, matrix, most, product
from .builder import I1, Function, Module, Type, Value, constant
from .micro import scaled

Body = Callable[[Value, bool, list[Value]], list[Value]]


class Sight:
    """The scores of a block, in `scores`, from a key on that is given with each call as `start`."""

    def __init__(self, f: Function, plan: Plan, head: Value, first: Value, scores: Rows) -> None:
        self.f, self.plan, self.first, self.scores = f, plan, first, scores
        spec = plan.spec
        self.mask = None if spec.mask is None else matrix(f, spec.mask, spec.batch, head, spec.mask_scalar)

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

    def place(self, row: Value, i: int, column: Value) -> Value:
        """Where a score is: of the i-th row after `row`."""
        f, scalar = self.f, self.plan.scalar
        return f.pointer(f.pointer(self.scores.at(f, row, scalar), column, scalar), i * self.scores.row, scalar)

    def products(
        self, module: Module, left: Rows, right: Value, width: int, out: Rows, start: Value, end: Value, tiles: Value
    ) -> None:
        """Rows times panels, for the keys from `start` to before `end`; tiles that do not see a panel are left out."""
        f, plan, scalar = self.f, self.plan, self.plan.scalar
        call = product(module, plan, plan.rows, plan.vectors, left.row, left.column, plan.panel, out.row, False)
        with f.loop(start, end, plan.panel) as key:
            panel = f.pointer(right, scaled(f, key.index, width), scalar)
            column = f.pointer(out.pointer, f.sub(key.index, start), scalar)
            with f.loop(self.first_tile(key.index), tiles) as tile:
                row = scaled(f, tile.index, plan.rows)
                result = Rows(column, out.row).at(f, row, scalar)
                call(f, left.at(f, row, scalar), panel, result, integer(width), constant(False, I1))

    def over_columns(
        self, tile: Value, start: Value, most_keys: int, carried: list[Value], body: Body, alike: bool = False
    ) -> list[Value]:
        """Vectors of columns that a tile's rows see, from a key on. `alike`: the body is the same for hidden keys."""
        f, plan, spec = self.f, self.plan, self.plan.spec
        last = self.columns_seen(tile, plan.rows - 1, start, most_keys)
        some_hidden = spec.causal or spec.seen % plan.lanes != 0
        whole = last
        if some_hidden and not alike:
            least_seen = self.columns_seen(tile, 0, start, most_keys)
            whole = f.sub(least_seen, f.rem(least_seen, integer(plan.lanes)))
        with f.loop(integer(0), whole, plan.lanes, carried=carried) as loop:
            loop.next(*body(loop.index, False, loop.carried))
        carried = loop.results
        if some_hidden and not alike:
            with f.loop(whole, last, plan.lanes, carried=carried) as loop:
                loop.next(*body(loop.index, True, loop.carried))
            carried = loop.results
        return carried

    def columns_seen(self, row: Value, i: int, start: Value, most_keys: int) -> Value:
        """How many of the next keys after `start` the i-th row after `row` sees."""
        f = self.f
        count = f.sub(self.seen_by(f.add(row, integer(i))), start)
        return most(f, least(f, count, integer(most_keys)), integer(0))

    def score(self, row: Value, i: int, start: Value, column: Value, hidden: bool) -> tuple[Value, bool]:
        """Scores of the i-th row after `row` with the mask, -inf for keys it does not see; and whether that changed them."""
        f, plan = self.f, self.plan
        found = f.load(self.place(row, i, column), plan.kind)
        if not hidden and self.mask is None:
            return found, False
        seen = self.lanes_seen(row, i, start, column) if hidden else None
        if self.mask is not None:
            found = f.add(found, self.masking(row, i, f.add(start, column), seen))
        if seen is not None:
            found = f.select(seen, found, constant(-math.inf, plan.kind))
        return found, True

    def lanes_seen(self, row: Value, i: int, start: Value, column: Value) -> Value:
        """Which lanes, from a column on, a row sees."""
        f, plan = self.f, self.plan
        left = f.sub(self.seen_by(f.add(row, integer(i))), f.add(start, column))
        if plan.lanes == 1:
            return f.compare("gt", left, integer(0))
        return f.mask_below(left, plan.lanes)

    def masking(self, row: Value, i: int, key: Value, seen: Value | None) -> Value:
        """What the mask adds to the scores of keys from one on. Rows after the last one take the last one's."""
        f, plan, spec = self.f, self.plan, self.plan.spec
        assert self.mask is not None
        kind = plan.kind.of(spec.mask_scalar)
        at = least(f, f.add(f.add(self.first, row), integer(i)), integer(spec.queries - 1))
        where = self.mask.at(f, at, spec.mask_scalar)
        if self.mask.column == 0:
            found = f.splat(f.load(where, Type(spec.mask_scalar)), plan.lanes)
        elif self.mask.column == 1 and plan.lanes > 1:
            found = f.load(f.pointer(where, key, spec.mask_scalar), kind, seen)
        else:
            found = self.apart(f.pointer(where, scaled(f, key, self.mask.column), spec.mask_scalar), kind, seen)
        if spec.mask_scalar == "i8":
            shown = f.compare("ne", found, constant(0, kind))
            return f.select(shown, constant(0, plan.kind), constant(-math.inf, plan.kind))
        if spec.mask_scalar == plan.scalar:
            return found
        return f.convert("fpext" if plan.scalar == "double" else "fptrunc", found, plan.scalar)

    def apart(self, where: Value, kind: Type, seen: Value | None) -> Value:
        """Elements of a mask that are not side by side."""
        f = self.f
        assert self.mask is not None
        if kind.lanes == 1:
            return self.one(where, kind, seen)
        steps = ", ".join(f"i64 {i * self.mask.column}" for i in range(kind.lanes))
        return f.gather(where, Value(f"<{steps}>", Type("i64", kind.lanes)), kind.scalar, seen)

    def one(self, where: Value, kind: Type, seen: Value | None) -> Value:
        """A single element, which is there only if it is seen."""
        f = self.f
        if seen is None:
            return f.load(where, kind)
        kept = f.stack(kind)
        f.store(constant(0, kind), kept)
        with f.when(seen):
            f.store(f.load(where, kind), kept)
        return f.load(kept, kind)
