"""Flash attention, backward: gradients of queries, keys and values, with probabilities recomputed from log-sum-exp.

A piece loops over its blocks of query rows. For a block it computes the probabilities p and their gradients for all keys
that the rows attend to, which gives the score gradients ("slopes"), p * (gradient - the row's mean of it). The block's
contribution to the gradients of keys and values is added to sums that belong to the piece alone, so no thread waits for
another. If a key head is divided over several pieces, a second phase adds their sums up, in order.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.builder import I1, Function, Module, Value, constant
from ..ir.kernel import NativeKernel, Phase
from ..ir.register_tile import scale_index
from ..ir.target import Target
from .blocks import (
    AttentionPlan,
    HeadPrefetch,
    NativeAttention,
    RowMatrix,
    ScratchAllocator,
    TensorLayout,
    add_values,
    copy_pairs,
    copy_rows,
    exp_nonpositive,
    i64,
    load_splat,
    matrix_at,
    multiply_rows,
    pack_panels,
    query_head,
    readable_rows,
    reduce_to_all_lanes,
    round_up,
    row_vectors,
    rows_from,
    smax,
    smin,
    store_vector,
    unravel_batch,
)
from .forward import kernel_function
from .scores import QueryBlock, RowGroup, ScoreColumn

RowReader = Callable[[Function, AttentionPlan, RowMatrix, Value, int, Value], RowMatrix]  # prepares a block's rows for tiles
_KEYS_PER_PIECE = 64  # in the second phase


def emit_backward(module: Module, name: str, spec: NativeAttention, pointers: int, target: Target) -> NativeKernel | None:
    """Emit the op `attention_backward`: those of `of_query`, `of_key` and `of_value` that are given. None if it is not
    covered."""
    if not spec.covered or spec.pull is None:
        return None
    plan = AttentionPlan(spec, target)
    f = kernel_function(module, name, pointers)
    backward = _Backward(module, f, plan)
    with f.loop(f.params[-2], f.params[-1]) as piece:
        backward.piece(piece.index)
    f.ret()
    phases = [Phase(name, plan.pieces)]
    sums = backward.sums
    if plan.shares > 1 and sums.elements:
        phases.append(_emit_reduction(module, f"{name}_total", sums, pointers))
    shared = sums.elements * plan.pieces * plan.kind.bytes // plan.lanes if plan.shares > 1 else 0
    return NativeKernel(tuple(phases), shared, backward.room.bytes)


class _KeyValueSums:
    """Gradients of a head's keys and values while they are accumulated: in the results themselves, if these are whole tiles
    and no other piece contributes; else one after the other in memory of the piece."""

    def __init__(self, plan: AttentionPlan) -> None:
        self.plan, spec = plan, plan.spec
        wanted = ((spec.of_key, spec.width), (spec.of_value, spec.value_width))
        self.parts = [(result, width) for result, width in wanted if result is not None]
        whole = all(plan.readable(result.strides[-2], result.strides[-1], width) for result, width in self.parts)
        self.direct = plan.shares == 1 and spec.seen % plan.rows == 0 and whole
        self.height = round_up(spec.seen, plan.rows)
        self.elements = 0 if self.direct else sum(self.height * round_up(width, plan.lanes) for _, width in self.parts)

    def rows(self, f: Function, at: list[Value], base: Value) -> dict[TensorLayout, RowMatrix]:
        """Return the matrix that holds the sums of each result."""
        plan, found, start = self.plan, {}, 0
        for result, width in self.parts:
            if self.direct:
                found[result] = matrix_at(f, result, at, plan.spec.scalar)
            else:
                found[result] = RowMatrix(f.pointer(base, start, plan.scalar), round_up(width, plan.lanes), plan.scalar)
                start += self.height * round_up(width, plan.lanes)
        return found

    def begin(self, f: Function, sums: dict[TensorLayout, RowMatrix]) -> None:
        """Zero sums that may not be added to. A piece that has all blocks begins with the one that attends to all keys."""
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
        """Write rows of a head's gradients: the sums of all bases, and 0 for keys that no query attends to."""
        plan, spec, scalar = self.plan, self.plan.spec, self.plan.scalar
        for result, width in self.parts:
            out = matrix_at(f, result, at, spec.scalar)
            sources = [self.rows(f, at, base)[result] for base in bases]
            with f.loop(first, smin(f, end, i64(spec.seen))) as loop:
                starts = [source.at(f, loop.index) for source in sources]
                target = out.at(f, loop.index)
                for column, mask in row_vectors(plan, width):
                    found = [f.load(f.pointer(start, column, scalar), plan.kind) for start in starts]
                    total = found[0]
                    for other in found[1:]:
                        total = f.add(total, other)
                    store_vector(f, plan, total, out, target, column, mask)
            if spec.seen < spec.keys:
                with f.loop(smax(f, first, i64(spec.seen)), end) as loop:
                    target = out.at(f, loop.index)
                    for column, mask in row_vectors(plan, width):
                        store_vector(f, plan, constant(0, plan.kind), out, target, column, mask)


def _emit_reduction(module: Module, name: str, sums: _KeyValueSums, pointers: int) -> Phase:
    """Emit the second phase: sums of all pieces of a head, some rows of keys at a time."""
    plan = sums.plan
    blocks = -(-plan.spec.keys // _KEYS_PER_PIECE)
    f = kernel_function(module, name, pointers)
    with f.loop(f.params[-2], f.params[-1]) as piece:
        head, block = f.div(piece.index, i64(blocks)), f.rem(piece.index, i64(blocks))
        base = f.pointer(f.params[-4], scale_index(f, head, sums.elements * plan.shares), plan.scalar)
        bases = [f.pointer(base, share * sums.elements, plan.scalar) for share in range(plan.shares)]
        first = scale_index(f, block, _KEYS_PER_PIECE)
        sums.deliver(
            f,
            unravel_batch(f, plan.spec.key_batch, head),
            bases,
            first,
            smin(f, f.add(first, i64(_KEYS_PER_PIECE)), i64(plan.spec.keys)),
        )
    f.ret()
    return Phase(name, plan.heads * blocks)


class _Backward:
    def __init__(self, module: Module, f: Function, plan: AttentionPlan) -> None:
        self.module, self.f, self.plan, self.spec = module, f, plan, plan.spec
        spec, self.sums, self.room = plan.spec, _KeyValueSums(plan), ScratchAllocator(f, f.params[-3], plan.scalar)
        take = self.room.take
        self.sloped = spec.of_query is not None or spec.of_key is not None
        self.keys = take(plan.keys * plan.steps(spec.width))
        self.values = take(plan.keys * plan.steps(spec.value_width))
        self.key_rows = take(spec.seen * plan.width)
        self.queries = take(plan.block * plan.width)
        self.pulls = take(plan.block * plan.value_width)
        widest = round_up(max(spec.width, spec.value_width), 2 * plan.lanes)
        self.pairs = take(plan.block * widest // 2 if plan.pairs else 0)
        row = plan.keys + plan.lanes  # rows at powers of two from each other would alias in the cache
        self.scores = RowMatrix(take(plan.block * row + plan.rows), row, plan.scalar)
        self.slopes = RowMatrix(take(plan.block * row + plan.rows), row, plan.scalar)
        self.found = RowMatrix(take(plan.block * plan.width), plan.width, plan.scalar)
        self.own_sums = take(self.sums.elements if plan.shares == 1 else 0)

    def piece(self, index: Value) -> None:
        """A key head, and its share of the query blocks."""
        f, plan, spec = self.f, self.plan, self.spec
        head, share = f.div(index, i64(plan.shares)), f.rem(index, i64(plan.shares))
        at = unravel_batch(f, spec.key_batch, head)
        key, value = matrix_at(f, spec.key, at, spec.scalar), matrix_at(f, spec.value, at, spec.scalar)
        base = self.own_sums
        if plan.shares > 1:
            base = f.pointer(f.params[-4], scale_index(f, index, self.sums.elements), plan.scalar)
        sums = self.sums.rows(f, at, base)
        of_values = [(x, spec.value_width) for x in (spec.value, spec.pull)]
        self.prefetch = HeadPrefetch(f, plan, index, [(spec.query, spec.width), (spec.key, spec.width), *of_values])
        pack_panels(self.module, f, plan, key, spec.width, spec.scale, self.keys)
        if self.sloped:
            pack_panels(self.module, f, plan, value, spec.value_width, 1, self.values)
        if spec.of_query is not None:
            key = readable_rows(f, plan, key, i64(spec.seen), spec.width, self.key_rows)
        self.sums.begin(f, sums)
        with f.loop(share, plan.blocks * spec.group, plan.shares) as item:
            inside = f.div(item.index, i64(plan.blocks))
            block = f.sub(i64(plan.blocks - 1), f.rem(item.index, i64(plan.blocks)))
            more = constant(True, I1) if plan.shares > 1 else f.compare("gt", item.index, i64(0))
            self.block(query_head(f, plan, at, inside), scale_index(f, block, plan.block), key, sums, more)
        if plan.shares == 1 and not self.sums.direct:
            self.sums.deliver(f, at, [base], i64(0), i64(spec.keys))

    def block(self, at: list[Value], first: Value, key: RowMatrix, sums: dict[TensorLayout, RowMatrix], more: Value) -> None:
        """A block of query rows from `first` on. `more`: true if the sums hold something already."""
        f, plan, spec = self.f, self.plan, self.spec
        assert spec.pull is not None
        count = smin(f, i64(plan.block), f.sub(i64(spec.queries), first))
        tiles = f.div(f.add(count, i64(plan.rows - 1)), i64(plan.rows))
        read = readable_rows if plan.even else copy_rows
        query = self.rows_of(spec.query, at, first, count, spec.width, self.queries, read)
        pull = self.rows_of(spec.pull, at, first, count, spec.value_width, self.pulls, read)
        queries = QueryBlock(f, plan, at, first)
        start, end = i64(0), queries.seen_by(i64(plan.block - 1))
        left = query if not plan.pairs else self.rows_of(spec.query, at, first, count, spec.width, self.pairs, copy_pairs)
        queries.multiply_panels(self.module, left, self.keys, spec.width, spec.scale, self.scores, start, end, tiles)
        if self.sloped:
            left = (
                pull if not plan.pairs else self.rows_of(spec.pull, at, first, count, spec.value_width, self.pairs, copy_pairs)
            )
            queries.multiply_panels(self.module, left, self.values, spec.value_width, 1, self.slopes, start, end, tiles)
        log_total = matrix_at(f, spec.log_total, at, plan.scalar)
        with f.loop(i64(0), tiles) as tile:
            row = scale_index(f, tile.index, plan.rows)
            with f.loop(0, plan.rows, plan.together) as group:
                self.prefetch.prefetch(f.add(first, f.add(row, group.index)))
                self.slopes_of(RowGroup(queries, row, f.add(row, group.index), start, plan.keys), log_total)
        if spec.of_value is not None:
            self.add_to(sums[spec.of_value], self.scores, pull, plan.value_width, first, count, end, more)
        if spec.of_key is not None:
            self.add_to(sums[spec.of_key], self.slopes, query, plan.width, first, count, end, more)
        if spec.of_query is not None:
            of_query = rows_from(f, matrix_at(f, spec.of_query, at, spec.scalar), first)
            self.of_query(of_query, count, tiles, key, queries)

    def rows_of(
        self, layout: TensorLayout, at: list[Value], first: Value, count: Value, width: int, room: Value, read: RowReader
    ) -> RowMatrix:
        """A block's rows, readable by whole tiles."""
        f, plan = self.f, self.plan
        found = rows_from(f, matrix_at(f, layout, at, plan.spec.scalar), first)
        return read(f, plan, found, count, width, room)

    def slopes_of(self, few: RowGroup, log_total: RowMatrix) -> None:
        """Turn scores of a few rows into probabilities, and the gradients of these into score gradients."""
        f, plan, spec, which = self.f, self.plan, self.spec, range(self.plan.together)
        row, last = f.add(few.queries.first, few.row), i64(spec.queries - 1)
        at = [smin(f, f.add(row, i64(i)), last) for i in which]
        totals = [load_splat(f, log_total.at(f, r), plan.kind) for r in at]
        scores, slopes = (rows_from(f, x, few.row) for x in (self.scores, self.slopes))

        def probabilities(column: ScoreColumn, means: list[Value]) -> list[Value]:
            found = []
            for i, (place, gradient) in enumerate(zip(column.places(scores), column.places(slopes), strict=True)):
                p = exp_nonpositive(f, f.sub(few.score(f.load(place, plan.kind), column, i), totals[i]))
                f.store(p, place)
                found.append(self.mean(means[i], p, gradient, column.seen[i]) if self.sloped else means[i])
            return found

        sums = few.over_columns([constant(0, plan.kind)] * plan.together, probabilities)
        if not self.sloped:
            return
        means = [reduce_to_all_lanes(f, x, add_values) for x in sums]
        scale = constant(spec.scale, plan.kind)

        def sloped(column: ScoreColumn, none: list[Value]) -> list[Value]:
            for i, (place, gradient) in enumerate(zip(column.places(scores), column.places(slopes), strict=True)):
                p = f.mul(f.load(place, plan.kind), scale)
                f.store(f.mul(p, f.sub(f.load(gradient, plan.kind), means[i])), gradient)
            return none

        few.over_columns([], sloped, alike=True)

    def mean(self, so_far: Value, p: Value, place: Value, seen: Value | None) -> Value:
        """Accumulate a row's mean gradient. Hidden positions are set to 0, as they may be NaN."""
        f, plan = self.f, self.plan
        gradient = f.load(place, plan.kind)
        if seen is not None:
            gradient = f.select(seen, gradient, constant(0, plan.kind))
            f.store(gradient, place)
        return plan.multiply_add(f, p, gradient, so_far)

    def add_to(
        self,
        sums: RowMatrix,
        left: RowMatrix,
        right: RowMatrix,
        width: int,
        first: Value,
        count: Value,
        end: Value,
        more: Value,
    ) -> None:
        """sums += left^T right, a tile of keys at a time, with the rows that attend to them."""
        f, plan, scalar = self.f, self.plan, self.plan.scalar
        with f.loop(i64(0), end, plan.rows) as key:
            from_row = smax(f, f.sub(key.index, first), i64(0)) if self.spec.causal else i64(0)
            turned = RowMatrix(f.pointer(left.at(f, from_row), key.index, scalar), 1, scalar, left.row)
            right_part, out = rows_from(f, right, from_row), rows_from(f, sums, key.index)
            multiply_rows(f, self.module, plan, turned, right_part, out, width, f.sub(count, from_row), more)

    def of_query(self, out: RowMatrix, count: Value, tiles: Value, key: RowMatrix, queries: QueryBlock) -> None:
        """Score gradients times keys, written in place if the result is whole tiles."""
        f, plan, spec, scalar = self.f, self.plan, self.spec, self.plan.scalar
        direct = plan.even and plan.readable(out.row, out.column, spec.width)
        with f.loop(i64(0), tiles) as tile:
            row = scale_index(f, tile.index, plan.rows)
            depth = queries.seen_by(f.add(row, i64(plan.rows - 1)))
            left, found = rows_from(f, self.slopes, row), rows_from(f, out if direct else self.found, row)
            multiply_rows(f, self.module, plan, left, key, found, plan.width, depth)
        if direct:
            return
        with f.loop(i64(0), count) as loop:
            start, target = self.found.at(f, loop.index), out.at(f, loop.index)
            for column, mask in row_vectors(plan, spec.width):
                store_vector(f, plan, f.load(f.pointer(start, column, scalar), plan.kind), out, target, column, mask)
