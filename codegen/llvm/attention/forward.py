"""Flash attention, forward: blocks of query rows against blocks of keys, with a softmax that goes along with the blocks.

The scores of a block are in a thread's scratch memory and nowhere else. For each row its highest score and the sum of its
exponentials so far are kept; when a later block of keys has a higher score, what was found before is scaled down. Where all
keys are one block, as usual in training, that falls away. The op's second result is log-sum-exp, which the backward kernel
reads.
"""

from __future__ import annotations

import math

from .blocks import (
    Ahead,
    Attention,
    Plan,
    Room,
    Rows,
    across,
    clear,
    columns,
    copied,
    exponential,
    integer,
    larger,
    least,
    matrix,
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
from ..ir.builder import I1, I64, PTR, Function, Module, Type, Value, constant
from ..ir.kernel import Kernel, Phase
from ..ir.register_tile import first_lanes, scaled
from ..ir.target import Target
from ..math.log import log

_KEYS = 256  # in a block


def emit_forward(module: Module, name: str, spec: Attention, pointers: int, target: Target) -> Kernel | None:
    """The op `attention`: `out` and `log_total` from `query`, `key`, `value` and `mask`. None if it is not covered."""
    if not spec.covered or spec.out is None:
        return None
    plan = Plan(spec, target)
    f = kernel_function(module, name, pointers)
    forward = _Forward(module, f, plan)
    with f.loop(f.params[-2], f.params[-1]) as piece:
        forward.piece(piece.index)
    f.back()
    return Kernel((Phase(name, plan.pieces),), 0, forward.room.bytes)


def kernel_function(module: Module, name: str, pointers: int) -> Function:
    params = [(f"p{i}", PTR) for i in range(pointers)]
    return module.function(name, [*params, ("shared", PTR), ("scratch", PTR), ("begin", I64), ("end", I64)])


class _Forward:
    def __init__(self, module: Module, f: Function, plan: Plan) -> None:
        self.module, self.f, self.plan, self.spec = module, f, plan, plan.spec
        self.room = Room(f, f.params[-3], plan.scalar)
        take = self.room.take
        self.at_a_time = min(plan.keys, rounded(_KEYS, plan.panel))  # keys in a block
        self.single = self.at_a_time == plan.keys
        self.keys = take(plan.keys * plan.steps(self.spec.width))
        self.values = take(plan.keys * plan.value_width)
        self.queries = take(plan.block * plan.width)
        self.scores = Rows(take(plan.block * self.at_a_time), self.at_a_time, plan.scalar)
        self.found = Rows(take(plan.block * plan.value_width), plan.value_width, plan.scalar)
        statistics = rounded(plan.block, plan.lanes)
        self.highest, self.sums = take(statistics), take(statistics)

    def piece(self, index: Value) -> None:
        """A head of keys, and its share of the blocks of queries."""
        f, plan, spec = self.f, self.plan, self.spec
        head, share = f.div(index, integer(plan.shares)), f.rem(index, integer(plan.shares))
        at = unravelled(f, spec.key_batch, head)
        key, value = matrix(f, spec.key, at, spec.scalar), matrix(f, spec.value, at, spec.scalar)
        operands = [(spec.query, spec.width), (spec.key, spec.width), (spec.value, spec.value_width)]
        self.ahead = Ahead(f, plan, index, operands)
        panels(self.module, f, plan, key, spec.width, spec.scale, self.keys)
        values = vectors_in(f, plan, value, integer(spec.seen), spec.value_width, self.values)
        with f.loop(share, plan.blocks * spec.group, plan.shares) as item:
            inside = f.div(item.index, integer(plan.blocks))
            first = scaled(f, f.rem(item.index, integer(plan.blocks)), plan.block)
            self.block(of_group(f, plan, at, inside), first, values)

    def block(self, at: list[Value], first: Value, values: Rows) -> None:
        """A block of query rows, from `first` on."""
        f, plan, spec = self.f, self.plan, self.spec
        assert spec.out is not None
        out = moved(f, matrix(f, spec.out, at, spec.scalar), first)
        count = least(f, integer(plan.block), f.sub(integer(spec.queries), first))
        tiles = f.div(f.add(count, integer(plan.rows - 1)), integer(plan.rows))
        query = moved(f, matrix(f, spec.query, at, spec.scalar), first)
        read = to_multiply if plan.pairs else vectors_in if plan.even else copied
        query = read(f, plan, query, count, spec.width, self.queries)
        sight = Sight(f, plan, at, first)
        direct = self.single and plan.even and plan.readable(out.row, out.column, spec.value_width)
        if self.single:
            self.keys_from(integer(0), tiles, query, values, sight, out if direct else self.found)
        else:
            self.begin()
            with f.loop(integer(0), sight.seen_by(integer(plan.block - 1)), self.at_a_time) as loop:
                self.keys_from(loop.index, tiles, query, values, sight, self.found)
            self.statistics()
        log_total = moved(f, matrix(f, spec.log_total, at, plan.scalar), first)
        self.finish(count, log_total, None if direct else out)

    def begin(self) -> None:
        f, plan = self.f, self.plan
        clear(f, plan, self.found.pointer, plan.block * plan.value_width)
        for start in range(0, plan.block, plan.lanes):
            f.store(constant(-math.inf, plan.kind), f.pointer(self.highest, start, plan.scalar))
            f.store(constant(0, plan.kind), f.pointer(self.sums, start, plan.scalar))

    def keys_from(self, start: Value, tiles: Value, query: Rows, values: Rows, sight: Sight, found: Rows) -> None:
        """A block of keys: scores, probabilities, and what they find. If it is the only one, this is divided at once."""
        f, plan = self.f, self.plan
        end = least(f, f.add(start, integer(self.at_a_time)), sight.seen_by(integer(plan.block - 1)))
        spec = self.spec
        sight.products(self.module, query, self.keys, spec.width, spec.scale, self.scores, start, end, tiles)
        first = sight.first_tile(start)
        with f.loop(first, tiles) as tile:
            row = scaled(f, tile.index, plan.rows)
            with f.loop(0, plan.rows, plan.together) as group:
                self.ahead.fetch(f.add(sight.first, f.add(row, group.index)))
                self.softmax(Few(sight, row, f.add(row, group.index), start, self.at_a_time))
        if self.single:
            self.statistics()
        right = moved(f, values, start)
        with f.loop(first, tiles) as tile:
            row = scaled(f, tile.index, plan.rows)
            depth = f.sub(least(f, sight.seen_by(f.add(row, integer(plan.rows - 1))), end), start)
            left, out = moved(f, self.scores, row), moved(f, found, row)
            factors = f.pointer(self.sums, row, plan.scalar) if self.single else None
            more = None if self.single else constant(True, I1)
            across(f, self.module, plan, left, right, out, plan.value_width, depth, more, factors)

    def softmax(self, few: Few) -> None:
        """Scores of a few rows to exponentials, which are divided at the end."""
        f, plan, which = self.f, self.plan, range(self.plan.together)
        scores = moved(f, self.scores, few.row)

        def raised(column: Column, highest: list[Value]) -> list[Value]:
            found = []
            for i, place in enumerate(column.places(scores)):
                score = few.score(f.load(place, plan.kind), column, i)
                if few.changed(column):
                    f.store(score, place)
                found.append(larger(f, score, highest[i]))
            return found

        lowest = [constant(-math.inf, plan.kind)] * plan.together
        highest = [over_lanes(f, x, larger) for x in few.over_columns(lowest, raised)]
        where = [f.add(few.row, integer(i)) for i in which]
        tops = [f.pointer(self.highest, r, plan.scalar) for r in where]
        totals = [f.pointer(self.sums, r, plan.scalar) for r in where]
        if not self.single:
            highest = [larger(f, number(f, top, plan.kind), x) for top, x in zip(tops, highest, strict=True)]
        shifts = [self.shift(x) for x in highest]

        def powers(column: Column, sums: list[Value]) -> list[Value]:
            found = []
            for i, place in enumerate(column.places(scores)):
                p = exponential(f, f.sub(f.load(place, plan.kind), shifts[i]))
                f.store(p, place)
                found.append(f.add(sums[i], p))
            return found

        nothing = [constant(0, plan.kind)] * plan.together
        sums = [over_lanes(f, x, plus) for x in few.over_columns(nothing, powers, alike=True)]
        for i in which:
            total = sums[i] if self.single else self.scaled_down(where[i], tops[i], totals[i], shifts[i], sums[i])
            f.store(first_of(f, highest[i]), tops[i])
            f.store(first_of(f, total), totals[i])

    def shift(self, highest: Value) -> Value:
        """What is taken from scores. Rows without any key so far have no highest score."""
        if self.single and self.spec.mask is None:
            return highest
        f = self.f
        none = f.compare("eq", highest, constant(-math.inf, highest.type))
        return f.select(none, constant(0, highest.type), highest)

    def scaled_down(self, row: Value, top: Value, total: Value, shift: Value, sums: Value) -> Value:
        """What a row found before, for a new highest score; returns the new sum."""
        f, plan = self.f, self.plan
        factor = exponential(f, f.sub(number(f, top, plan.kind), shift))
        start = self.found.at(f, row)
        for column in range(0, plan.value_width, plan.lanes):
            place = f.pointer(start, column, plan.scalar)
            f.store(f.mul(f.load(place, plan.kind), factor), place)
        return f.add(f.mul(number(f, total, plan.kind), factor), sums)

    def finish(self, count: Value, log_total: Rows, out: Rows | None) -> None:
        """Writes the results of a block: `out` too, if it has not been written yet."""
        f, plan = self.f, self.plan
        with f.loop(integer(0), count) as loop:
            total = f.load(f.pointer(self.highest, loop.index, plan.scalar), Type(plan.scalar))
            f.store(total, log_total.at(f, loop.index))
            if out is not None:
                self.write(loop.index, out)

    def write(self, row: Value, out: Rows) -> None:
        f, plan = self.f, self.plan
        source, target = self.found.at(f, row), out.at(f, row)
        for column, mask in columns(plan, self.spec.value_width):
            value = f.load(f.pointer(source, column, plan.scalar), plan.kind)
            if not self.single:
                value = f.mul(value, number(f, f.pointer(self.sums, row, plan.scalar), plan.kind))
            put(f, plan, value, out, target, column, mask)

    def statistics(self) -> None:
        """Highest scores and sums of all rows to log-sum-exp and factors."""
        f, plan = self.f, self.plan
        one = constant(1, plan.kind)
        for start in range(0, plan.block, plan.lanes):
            mask = first_lanes(plan.block - start, plan.lanes)
            tops, totals = f.pointer(self.highest, start, plan.scalar), f.pointer(self.sums, start, plan.scalar)
            top, total = f.load(tops, plan.kind, mask), f.load(totals, plan.kind, mask)
            if self.spec.mask is not None:  # rows with every key masked find 0
                empty = f.compare("eq", total, constant(0, plan.kind))
                total = f.select(empty, one, total)
                top = f.select(empty, constant(math.inf, plan.kind), top)
            f.store(f.add(log(f, total), top), tops, mask)
            f.store(f.div(one, total), totals, mask)


def first_of(f: Function, a: Value) -> Value:
    return a if a.type.lanes == 1 else f.lane(a, 0)
