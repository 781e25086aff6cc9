"""Flash attention, forward: blocks of query rows against blocks of keys, with an online softmax.

The scores of a block exist only in a thread's scratch memory. Each row keeps its highest score and the sum of its
exponentials so far; when a later block of keys has a higher score, earlier results are rescaled. Where all keys are one
block, as usual in training, that is skipped. The op's second result is log-sum-exp, which the backward kernel reads.
"""

from __future__ import annotations

import math

from ..ir.builder import I1, I64, PTR, Function, Module, Type, Value, constant
from ..ir.kernel import NativeKernel, Phase
from ..ir.register_tile import first_lanes, scale_index
from ..ir.target import Target
from ..math.log import log
from .blocks import (
    AttentionPlan,
    HeadPrefetch,
    NativeAttention,
    RowMatrix,
    ScratchAllocator,
    add_values,
    clear,
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
    select_larger,
    smin,
    store_vector,
    unravel_batch,
)
from .scores import QueryBlock, RowGroup, ScoreColumn

_KEYS_AT_ONCE = 256


def emit_forward(module: Module, name: str, spec: NativeAttention, pointers: int, target: Target) -> NativeKernel | None:
    """Emit the op `attention`: `out` and `log_total` from `query`, `key`, `value` and `mask`. None if it is not covered."""
    if not spec.covered or spec.out is None:
        return None
    plan = AttentionPlan(spec, target)
    f = kernel_function(module, name, pointers)
    forward = _Forward(module, f, plan)
    with f.loop(f.params[-2], f.params[-1]) as piece:
        forward.piece(piece.index)
    f.ret()
    return NativeKernel((Phase(name, plan.pieces),), 0, forward.room.bytes)


def kernel_function(module: Module, name: str, pointers: int) -> Function:
    params = [(f"p{i}", PTR) for i in range(pointers)]
    return module.function(name, [*params, ("shared", PTR), ("scratch", PTR), ("begin", I64), ("end", I64)])


class _Forward:
    def __init__(self, module: Module, f: Function, plan: AttentionPlan) -> None:
        self.module, self.f, self.plan, self.spec = module, f, plan, plan.spec
        self.room = ScratchAllocator(f, f.params[-3], plan.scalar)
        take = self.room.take
        self.at_a_time = min(plan.keys, round_up(_KEYS_AT_ONCE, plan.panel))  # keys in a block
        self.single = self.at_a_time == plan.keys
        self.keys = take(plan.keys * plan.steps(self.spec.width))
        self.values = take(plan.keys * plan.value_width)
        self.queries = take(plan.block * plan.width)
        self.scores = RowMatrix(take(plan.block * self.at_a_time), self.at_a_time, plan.scalar)
        self.outputs = RowMatrix(take(plan.block * plan.value_width), plan.value_width, plan.scalar)
        statistics = round_up(plan.block, plan.lanes)
        self.highest, self.sums = take(statistics), take(statistics)

    def piece(self, index: Value) -> None:
        """A key head, and its share of the query blocks."""
        f, plan, spec = self.f, self.plan, self.spec
        head, share = f.div(index, i64(plan.shares)), f.rem(index, i64(plan.shares))
        at = unravel_batch(f, spec.key_batch, head)
        key, value = matrix_at(f, spec.key, at, spec.scalar), matrix_at(f, spec.value, at, spec.scalar)
        operands = [(spec.query, spec.width), (spec.key, spec.width), (spec.value, spec.value_width)]
        self.prefetch = HeadPrefetch(f, plan, index, operands)
        pack_panels(self.module, f, plan, key, spec.width, spec.scale, self.keys)
        values = readable_rows(f, plan, value, i64(spec.seen), spec.value_width, self.values)
        with f.loop(share, plan.blocks * spec.group, plan.shares) as item:
            inside = f.div(item.index, i64(plan.blocks))
            first = scale_index(f, f.rem(item.index, i64(plan.blocks)), plan.block)
            self.block(query_head(f, plan, at, inside), first, values)

    def block(self, at: list[Value], first: Value, values: RowMatrix) -> None:
        """A block of query rows from `first` on."""
        f, plan, spec = self.f, self.plan, self.spec
        assert spec.out is not None
        out = rows_from(f, matrix_at(f, spec.out, at, spec.scalar), first)
        count = smin(f, i64(plan.block), f.sub(i64(spec.queries), first))
        tiles = f.div(f.add(count, i64(plan.rows - 1)), i64(plan.rows))
        query = rows_from(f, matrix_at(f, spec.query, at, spec.scalar), first)
        read = copy_pairs if plan.pairs else readable_rows if plan.even else copy_rows
        query = read(f, plan, query, count, spec.width, self.queries)
        queries = QueryBlock(f, plan, at, first)
        direct = self.single and plan.even and plan.readable(out.row, out.column, spec.value_width)
        if self.single:
            self.keys_from(i64(0), tiles, query, values, queries, out if direct else self.outputs)
        else:
            self.begin()
            with f.loop(i64(0), queries.seen_by(i64(plan.block - 1)), self.at_a_time) as loop:
                self.keys_from(loop.index, tiles, query, values, queries, self.outputs)
            self.statistics()
        log_total = rows_from(f, matrix_at(f, spec.log_total, at, plan.scalar), first)
        self.finish(count, log_total, None if direct else out)

    def begin(self) -> None:
        f, plan = self.f, self.plan
        clear(f, plan, self.outputs.pointer, plan.block * plan.value_width)
        for start in range(0, plan.block, plan.lanes):
            f.store(constant(-math.inf, plan.kind), f.pointer(self.highest, start, plan.scalar))
            f.store(constant(0, plan.kind), f.pointer(self.sums, start, plan.scalar))

    def keys_from(
        self, start: Value, tiles: Value, query: RowMatrix, values: RowMatrix, queries: QueryBlock, found: RowMatrix
    ) -> None:
        """A block of keys: scores, probabilities, and their matmul with the values. If it is the only block, that is
        normalised at once."""
        f, plan = self.f, self.plan
        end = smin(f, f.add(start, i64(self.at_a_time)), queries.seen_by(i64(plan.block - 1)))
        spec = self.spec
        queries.multiply_panels(self.module, query, self.keys, spec.width, spec.scale, self.scores, start, end, tiles)
        first = queries.first_tile(start)
        with f.loop(first, tiles) as tile:
            row = scale_index(f, tile.index, plan.rows)
            with f.loop(0, plan.rows, plan.together) as group:
                self.prefetch.prefetch(f.add(queries.first, f.add(row, group.index)))
                self.softmax(RowGroup(queries, row, f.add(row, group.index), start, self.at_a_time))
        if self.single:
            self.statistics()
        right = rows_from(f, values, start)
        with f.loop(first, tiles) as tile:
            row = scale_index(f, tile.index, plan.rows)
            depth = f.sub(smin(f, queries.seen_by(f.add(row, i64(plan.rows - 1))), end), start)
            left, out = rows_from(f, self.scores, row), rows_from(f, found, row)
            factors = f.pointer(self.sums, row, plan.scalar) if self.single else None
            more = None if self.single else constant(True, I1)
            multiply_rows(f, self.module, plan, left, right, out, plan.value_width, depth, more, factors)

    def softmax(self, few: RowGroup) -> None:
        """Turn scores of a few rows into exponentials, which are normalised at the end."""
        f, plan, which = self.f, self.plan, range(self.plan.together)
        scores = rows_from(f, self.scores, few.row)

        def raised(column: ScoreColumn, highest: list[Value]) -> list[Value]:
            found = []
            for i, place in enumerate(column.places(scores)):
                score = few.score(f.load(place, plan.kind), column, i)
                if few.changed(column):
                    f.store(score, place)
                found.append(select_larger(f, score, highest[i]))
            return found

        lowest = [constant(-math.inf, plan.kind)] * plan.together
        highest = [reduce_to_all_lanes(f, x, select_larger) for x in few.over_columns(lowest, raised)]
        where = [f.add(few.row, i64(i)) for i in which]
        tops = [f.pointer(self.highest, r, plan.scalar) for r in where]
        totals = [f.pointer(self.sums, r, plan.scalar) for r in where]
        if not self.single:
            highest = [select_larger(f, load_splat(f, top, plan.kind), x) for top, x in zip(tops, highest, strict=True)]
        shifts = [self.shift(x) for x in highest]

        def powers(column: ScoreColumn, sums: list[Value]) -> list[Value]:
            found = []
            for i, place in enumerate(column.places(scores)):
                p = exp_nonpositive(f, f.sub(f.load(place, plan.kind), shifts[i]))
                f.store(p, place)
                found.append(f.add(sums[i], p))
            return found

        nothing = [constant(0, plan.kind)] * plan.together
        sums = [reduce_to_all_lanes(f, x, add_values) for x in few.over_columns(nothing, powers, alike=True)]
        for i in which:
            total = sums[i] if self.single else self.scaled_down(where[i], tops[i], totals[i], shifts[i], sums[i])
            f.store(first_of(f, highest[i]), tops[i])
            f.store(first_of(f, total), totals[i])

    def shift(self, highest: Value) -> Value:
        """The number subtracted from scores. Rows without any key so far have no highest score."""
        if self.single and self.spec.mask is None:
            return highest
        f = self.f
        none = f.compare("eq", highest, constant(-math.inf, highest.type))
        return f.select(none, constant(0, highest.type), highest)

    def scaled_down(self, row: Value, top: Value, total: Value, shift: Value, sums: Value) -> Value:
        """Rescale a row's earlier results for a new highest score; returns the new sum."""
        f, plan = self.f, self.plan
        factor = exp_nonpositive(f, f.sub(load_splat(f, top, plan.kind), shift))
        start = self.outputs.at(f, row)
        for column in range(0, plan.value_width, plan.lanes):
            place = f.pointer(start, column, plan.scalar)
            f.store(f.mul(f.load(place, plan.kind), factor), place)
        return f.add(f.mul(load_splat(f, total, plan.kind), factor), sums)

    def finish(self, count: Value, log_total: RowMatrix, out: RowMatrix | None) -> None:
        """Write the results of a block: `out` too, if it has not been written yet."""
        f, plan = self.f, self.plan
        with f.loop(i64(0), count) as loop:
            total = f.load(f.pointer(self.highest, loop.index, plan.scalar), Type(plan.scalar))
            f.store(total, log_total.at(f, loop.index))
            if out is not None:
                self.write(loop.index, out)

    def write(self, row: Value, out: RowMatrix) -> None:
        f, plan = self.f, self.plan
        source, target = self.outputs.at(f, row), out.at(f, row)
        for column, mask in row_vectors(plan, self.spec.value_width):
            value = f.load(f.pointer(source, column, plan.scalar), plan.kind)
            if not self.single:
                value = f.mul(value, load_splat(f, f.pointer(self.sums, row, plan.scalar), plan.kind))
            store_vector(f, plan, value, out, target, column, mask)

    def statistics(self) -> None:
        """Turn highest scores and sums of all rows into log-sum-exp and factors."""
        f, plan = self.f, self.plan
        one = constant(1, plan.kind)
        for start in range(0, plan.block, plan.lanes):
            mask = first_lanes(plan.block - start, plan.lanes)
            tops, totals = f.pointer(self.highest, start, plan.scalar), f.pointer(self.sums, start, plan.scalar)
            top, total = f.load(tops, plan.kind, mask), f.load(totals, plan.kind, mask)
            if self.spec.mask is not None:  # rows with every key masked give 0
                empty = f.compare("eq", total, constant(0, plan.kind))
                total = f.select(empty, one, total)
                top = f.select(empty, constant(math.inf, plan.kind), top)
            f.store(f.add(log(f, total), top), tops, mask)
            f.store(f.div(one, total), totals, mask)


def first_of(f: Function, a: Value) -> Value:
    return a if a.type.lanes == 1 else f.lane(a, 0)
