"""Flash attention, backward: gradients of queries, keys and values, with the probabilities made again from log-sum-exp.

A piece goes through its blocks of query rows. Of a block it makes the probabilities p and their gradients for all keys that the
rows see, which gives the slopes of the scores, p * (gradient - the row's mean of it). The block's part of the gradients of keys
and values is added to sums that the piece alone has, so nobody waits for anybody. If a head of keys is shared out over several
pieces, a second phase adds their sums up, in order.
"""

from __future__ import annotations

from collections.abc import Callable

from .forward import kernel_function
from .blocks import (
    Ahead,
    Attention,
    Layout,
    Plan,
    Room,
    Rows,
    across,
    columns,
    copied,
    exponential,
    integer,
    least,
    matrix,
    most,
    moved,
    number,
    of_group,
    over_lanes,
    panels,
    plus,
    put,
    rounded,
    to_multiply,
    unravelled,
    vectors_in,
)
from .scores import Column, Few, Sight
from ..ir.builder import I1, Function, Module, Value, constant
from ..ir.kernel import Kernel, Phase
from ..ir.register_tile import scaled
from ..ir.target import Target

Read = Callable[[Function, Plan, Rows, Value, int, Value], Rows]  # how a block's rows are made ready for tiles
_ROWS = 64  # rows of keys in a piece of the second phase


def emit_backward(module: Module, name: str, spec: Attention, pointers: int, target: Target) -> Kernel | None:
    """The op `attention_backward`: those of `of_query`, `of_key` and `of_value` that are there. None if it is not covered."""
    if not spec.covered or spec.pull is None:
        return None
    plan = Plan(spec, target)
    f = kernel_function(module, name, pointers)
    backward = _Backward(module, f, plan)
    with f.loop(f.params[-2], f.params[-1]) as piece:
        backward.piece(piece.index)
    f.back()
    phases = [Phase(name, plan.pieces)]
    sums = backward.sums
    if plan.shares > 1 and sums.elements:
        phases.append(_emit_total(module, f"{name}_total", sums, pointers))
    shared = sums.elements * plan.pieces * plan.kind.bytes // plan.lanes if plan.shares > 1 else 0
    return Kernel(tuple(phases), shared, backward.room.bytes)


class _Sums:
    """Gradients of a head's keys and values in the making. They are made in the results themselves, if these are whole tiles
    and no other piece has a share in them; or else one after the other in memory that each piece has for itself."""

    def __init__(self, plan: Plan) -> None:
        self.plan, spec = plan, plan.spec
        wanted = ((spec.of_key, spec.width), (spec.of_value, spec.value_width))
        self.parts = [(result, width) for result, width in wanted if result is not None]
        whole = all(plan.readable(result.strides[-2], result.strides[-1], width) for result, width in self.parts)
        self.direct = plan.shares == 1 and spec.seen % plan.rows == 0 and whole
        self.height = rounded(spec.seen, plan.rows)
        self.elements = 0 if self.direct else sum(self.height * rounded(width, plan.lanes) for _, width in self.parts)

    def rows(self, f: Function, at: list[Value], base: Value) -> dict[Layout, Rows]:
        """Where the sums of each result are."""
        plan, found, start = self.plan, {}, 0
        for result, width in self.parts:
            if self.direct:
                found[result] = matrix(f, result, at, plan.spec.scalar)
            else:
                found[result] = Rows(f.pointer(base, start, plan.scalar), rounded(width, plan.lanes), plan.scalar)
                start += self.height * rounded(width, plan.lanes)
        return found

    def begin(self, f: Function, sums: dict[Layout, Rows]) -> None:
        """Makes sums 0 that nothing may be added to. A piece that has all blocks begins with the one that sees all keys."""
        plan, spec, zero = self.plan, self.plan.spec, constant(0, self.plan.kind)
        first, end = (0, self.height) if plan.shares > 1 else (spec.seen, spec.keys if self.direct else spec.seen)
        if first == end:
            return
        for result, width in self.parts:
            with f.loop(first, end) as loop:
                start = sums[result].at(f, loop.index)
                for column in range(0, width, plan.lanes):
                    f.store(zero, f.pointer(start, column, plan.scalar))

    def deliver(self, f: Function, at: list[Value], bases: list[Value], first: Value, end: Value) -> None:
        """Writes rows of a head's gradients: the sums of all bases together, and 0 for keys that nobody sees."""
        plan, spec, scalar = self.plan, self.plan.spec, self.plan.scalar
        for result, width in self.parts:
            out = matrix(f, result, at, spec.scalar)
            sources = [self.rows(f, at, base)[result] for base in bases]
            with f.loop(first, least(f, end, integer(spec.seen))) as loop:
                starts = [source.at(f, loop.index) for source in sources]
                target = out.at(f, loop.index)
                for column, mask in columns(plan, width):
                    found = [f.load(f.pointer(start, column, scalar), plan.kind) for start in starts]
                    total = found[0]
                    for other in found[1:]:
                        total = f.add(total, other)
                    put(f, plan, total, out, target, column, mask)
            if spec.seen < spec.keys:
                with f.loop(most(f, first, integer(spec.seen)), end) as loop:
                    target = out.at(f, loop.index)
                    for column, mask in columns(plan, width):
                        put(f, plan, constant(0, plan.kind), out, target, column, mask)


def _emit_total(module: Module, name: str, sums: _Sums, pointers: int) -> Phase:
    """The second phase: the sums of all pieces of a head, some rows of keys at a time."""
    plan = sums.plan
    blocks = -(-plan.spec.keys // _ROWS)
    f = kernel_function(module, name, pointers)
    with f.loop(f.params[-2], f.params[-1]) as piece:
        head, block = f.div(piece.index, integer(blocks)), f.rem(piece.index, integer(blocks))
        base = f.pointer(f.params[-4], scaled(f, head, sums.elements * plan.shares), plan.scalar)
        bases = [f.pointer(base, share * sums.elements, plan.scalar) for share in range(plan.shares)]
        first = scaled(f, block, _ROWS)
        sums.deliver(
            f,
            unravelled(f, plan.spec.key_batch, head),
            bases,
            first,
            least(f, f.add(first, integer(_ROWS)), integer(plan.spec.keys)),
        )
    f.back()
    return Phase(name, plan.heads * blocks)


class _Backward:
    def __init__(self, module: Module, f: Function, plan: Plan) -> None:
        self.module, self.f, self.plan, self.spec = module, f, plan, plan.spec
        spec, self.sums, self.room = plan.spec, _Sums(plan), Room(f, f.params[-3], plan.scalar)
        take = self.room.take
        self.sloped = spec.of_query is not None or spec.of_key is not None
        self.keys = take(plan.keys * plan.steps(spec.width))
        self.values = take(plan.keys * plan.steps(spec.value_width))
        self.key_rows = take(spec.seen * plan.width)
        self.queries = take(plan.block * plan.width)
        self.pulls = take(plan.block * plan.value_width)
        widest = rounded(max(spec.width, spec.value_width), 2 * plan.lanes)
        self.pairs = take(plan.block * widest // 2 if plan.pairs else 0)
        row = plan.keys + plan.lanes  # rows at powers of two from each other would share few places of the cache
        self.scores = Rows(take(plan.block * row + plan.rows), row, plan.scalar)
        self.slopes = Rows(take(plan.block * row + plan.rows), row, plan.scalar)
        self.found = Rows(take(plan.block * plan.width), plan.width, plan.scalar)
        self.own_sums = take(self.sums.elements if plan.shares == 1 else 0)

    def piece(self, index: Value) -> None:
        """A head of keys, and its share of the blocks of queries."""
        f, plan, spec = self.f, self.plan, self.spec
        head, share = f.div(index, integer(plan.shares)), f.rem(index, integer(plan.shares))
        at = unravelled(f, spec.key_batch, head)
        key, value = matrix(f, spec.key, at, spec.scalar), matrix(f, spec.value, at, spec.scalar)
        base = self.own_sums
        if plan.shares > 1:
            base = f.pointer(f.params[-4], scaled(f, index, self.sums.elements), plan.scalar)
        sums = self.sums.rows(f, at, base)
        of_values = [(x, spec.value_width) for x in (spec.value, spec.pull)]
        self.ahead = Ahead(f, plan, index, [(spec.query, spec.width), (spec.key, spec.width), *of_values])
        panels(self.module, f, plan, key, spec.width, spec.scale, self.keys)
        if self.sloped:
            panels(self.module, f, plan, value, spec.value_width, 1, self.values)
        if spec.of_query is not None:
            key = vectors_in(f, plan, key, integer(spec.seen), spec.width, self.key_rows)
        self.sums.begin(f, sums)
        with f.loop(share, plan.blocks * spec.group, plan.shares) as item:
            inside = f.div(item.index, integer(plan.blocks))
            block = f.sub(integer(plan.blocks - 1), f.rem(item.index, integer(plan.blocks)))
            more = constant(True, I1) if plan.shares > 1 else f.compare("gt", item.index, integer(0))
            self.block(of_group(f, plan, at, inside), scaled(f, block, plan.block), key, sums, more)
        if plan.shares == 1 and not self.sums.direct:
            self.sums.deliver(f, at, [base], integer(0), integer(spec.keys))

    def block(self, at: list[Value], first: Value, key: Rows, sums: dict[Layout, Rows], more: Value) -> None:
        """A block of query rows, from `first` on. `more`: whether the sums hold something already."""
        f, plan, spec = self.f, self.plan, self.spec
        assert spec.pull is not None
        count = least(f, integer(plan.block), f.sub(integer(spec.queries), first))
        tiles = f.div(f.add(count, integer(plan.rows - 1)), integer(plan.rows))
        read = vectors_in if plan.even else copied
        query = self.rows_of(spec.query, at, first, count, spec.width, self.queries, read)
        pull = self.rows_of(spec.pull, at, first, count, spec.value_width, self.pulls, read)
        sight = Sight(f, plan, at, first)
        start, end = integer(0), sight.seen_by(integer(plan.block - 1))
        left = query if not plan.pairs else self.rows_of(spec.query, at, first, count, spec.width, self.pairs, to_multiply)
        sight.products(self.module, left, self.keys, spec.width, spec.scale, self.scores, start, end, tiles)
        if self.sloped:
            left = (
                pull if not plan.pairs else self.rows_of(spec.pull, at, first, count, spec.value_width, self.pairs, to_multiply)
            )
            sight.products(self.module, left, self.values, spec.value_width, 1, self.slopes, start, end, tiles)
        log_total = matrix(f, spec.log_total, at, plan.scalar)
        with f.loop(integer(0), tiles) as tile:
            row = scaled(f, tile.index, plan.rows)
            with f.loop(0, plan.rows, plan.together) as group:
                self.ahead.fetch(f.add(first, f.add(row, group.index)))
                self.slopes_of(Few(sight, row, f.add(row, group.index), start, plan.keys), log_total)
        if spec.of_value is not None:
            self.add_to(sums[spec.of_value], self.scores, pull, plan.value_width, first, count, end, more)
        if spec.of_key is not None:
            self.add_to(sums[spec.of_key], self.slopes, query, plan.width, first, count, end, more)
        if spec.of_query is not None:
            of_query = moved(f, matrix(f, spec.of_query, at, spec.scalar), first)
            self.of_query(of_query, count, tiles, key, sight)

    def rows_of(self, layout: Layout, at: list[Value], first: Value, count: Value, width: int, room: Value, read: Read) -> Rows:
        """A block's rows, to be read by whole tiles."""
        f, plan = self.f, self.plan
        found = moved(f, matrix(f, layout, at, plan.spec.scalar), first)
        return read(f, plan, found, count, width, room)

    def slopes_of(self, few: Few, log_total: Rows) -> None:
        """Scores of a few rows to probabilities, and the gradients of these to slopes of the scores."""
        f, plan, spec, which = self.f, self.plan, self.spec, range(self.plan.together)
        row, last = f.add(few.sight.first, few.row), integer(spec.queries - 1)
        at = [least(f, f.add(row, integer(i)), last) for i in which]
        totals = [number(f, log_total.at(f, r), plan.kind) for r in at]
        scores, slopes = (moved(f, x, few.row) for x in (self.scores, self.slopes))

        def probabilities(column: Column, means: list[Value]) -> list[Value]:
            found = []
            for i, (place, gradient) in enumerate(zip(column.places(scores), column.places(slopes), strict=True)):
                p = exponential(f, f.sub(few.score(f.load(place, plan.kind), column, i), totals[i]))
                f.store(p, place)
                found.append(self.mean(means[i], p, gradient, column.seen[i]) if self.sloped else means[i])
            return found

        sums = few.over_columns([constant(0, plan.kind)] * plan.together, probabilities)
        if not self.sloped:
            return
        means = [over_lanes(f, x, plus) for x in sums]
        scale = constant(spec.scale, plan.kind)

        def sloped(column: Column, none: list[Value]) -> list[Value]:
            for i, (place, gradient) in enumerate(zip(column.places(scores), column.places(slopes), strict=True)):
                p = f.mul(f.load(place, plan.kind), scale)
                f.store(f.mul(p, f.sub(f.load(gradient, plan.kind), means[i])), gradient)
            return none

        few.over_columns([], sloped, alike=True)

    def mean(self, so_far: Value, p: Value, place: Value, seen: Value | None) -> Value:
        """A row's mean gradient in the making. What is hidden is made 0, as it may be NaN."""
        f, plan = self.f, self.plan
        gradient = f.load(place, plan.kind)
        if seen is not None:
            gradient = f.select(seen, gradient, constant(0, plan.kind))
            f.store(gradient, place)
        return plan.join(f, p, gradient, so_far)

    def add_to(
        self, sums: Rows, left: Rows, right: Rows, width: int, first: Value, count: Value, end: Value, more: Value
    ) -> None:
        """sums += left^T right, a tile of keys at a time, with the rows that see them."""
        f, plan, scalar = self.f, self.plan, self.plan.scalar
        with f.loop(integer(0), end, plan.rows) as key:
            from_row = most(f, f.sub(key.index, first), integer(0)) if self.spec.causal else integer(0)
            turned = Rows(f.pointer(left.at(f, from_row), key.index, scalar), 1, scalar, left.row)
            right_part, out = moved(f, right, from_row), moved(f, sums, key.index)
            across(f, self.module, plan, turned, right_part, out, width, f.sub(count, from_row), more)

    def of_query(self, out: Rows, count: Value, tiles: Value, key: Rows, sight: Sight) -> None:
        """Slopes times keys, to the result itself if it is whole tiles."""
        f, plan, spec, scalar = self.f, self.plan, self.spec, self.plan.scalar
        direct = plan.even and plan.readable(out.row, out.column, spec.width)
        with f.loop(integer(0), tiles) as tile:
            row = scaled(f, tile.index, plan.rows)
            depth = sight.seen_by(f.add(row, integer(plan.rows - 1)))
            left, found = moved(f, self.slopes, row), moved(f, out if direct else self.found, row)
            across(f, self.module, plan, left, key, found, plan.width, depth)
        if direct:
            return
        with f.loop(integer(0), count) as loop:
            start, target = self.found.at(f, loop.index), out.at(f, loop.index)
            for column, mask in columns(plan, spec.width):
                put(f, plan, f.load(f.pointer(start, column, scalar), plan.kind), out, target, column, mask)
