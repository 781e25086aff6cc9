"""What flash attention's two kernels have in common: the problem, how it is cut up, and the steps on blocks of it.

Lanes are neighbouring keys, or neighbouring columns of values. All products are register tiles of `micro`, as functions of
their own that a kernel calls: rows of one side, an element at a time in all lanes, times vectors of the other. So keys are laid
out as panels first, which have a column's keys side by side; the other products find their vectors in rows as they are.

A piece is a head of keys with a share of the blocks of query rows that look at it, from all heads of queries that share it. The
number of shares is fixed, so results do not depend on who does which piece.

Products of two operands that are bfloats are done in pairs along their columns, where the CPU multiplies these: panels are of
pairs then, and rows of queries stay bfloats. Others have probabilities or slopes in them, which are not rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..ir.builder import BYTES, FLOATS, HALVES, I1, I64, PTR, Function, Module, Type, Value, constant
from ..gemm.problem import join_of, join_pairs, multiplies_pairs
from ..ir.register_tile import PAIR, Axis, Side, first_lanes, multiply, scaled, widened, zeros
from ..ir.target import Target
from ..math.exp import exp_within
from ..math.common import at_least

_MANY_KEYS = 256  # from here on, copying rows once costs less than reading them where they are again and again
_SAME_PLACES = 2048  # bytes: rows at a multiple of this from each other use a few sets of the first cache only
_PIECES = 8  # that a kernel has at least, if there are blocks enough
_LOWEST = {"float": -87.0, "double": -708.0}  # where exp is just not subnormal
_BLOCK = 4  # tiles of rows in a block of queries
_AHEAD = 128 << 10  # bytes of a head that are fetched ahead: more would drive out of the second cache what is worked on
_LINE = 64  # bytes


@dataclass(frozen=True)
class Layout:
    """A tensor (batch..., row, column) in the kernel's pointers. Strides count elements, and are 0 where it is broadcast."""

    pointer: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Attention:
    """softmax(query key^T * scale + mask) value, as the ops `attention` and `attention_backward` have it.

    `batch` is the queries'. In keys and values the last number of it is divided by `group`, the heads of queries that share a
    head of keys. Boolean masks ("i8") say which keys take part, float ones are added.
    """

    batch: tuple[int, ...]
    queries: int
    keys: int
    width: int
    value_width: int
    scale: float
    query: Layout
    key: Layout
    value: Layout
    log_total: Layout  # log-sum-exp of each row's scores, +inf if all keys are masked
    out: Layout | None = None  # of the forward kernel
    pull: Layout | None = None  # the gradient of `out`; this and the rest are of the backward kernel
    of_query: Layout | None = None  # gradients; none where they are not wanted
    of_key: Layout | None = None
    of_value: Layout | None = None
    mask: Layout | None = None
    mask_scalar: str = "i8"
    causal: bool = False
    group: int = 1
    scalar: str = "float"  # in memory; log-sum-exp is `wide`

    @property
    def wide(self) -> str:
        """What it is computed with: halves are converted as they are read, and results rounded as they are written."""
        return "float" if self.scalar in HALVES else self.scalar

    @property
    def key_batch(self) -> tuple[int, ...]:
        return (*self.batch[:-1], self.batch[-1] // self.group) if self.batch else ()

    @property
    def seen(self) -> int:
        """How many keys any query sees."""
        return min(self.keys, self.queries) if self.causal else self.keys

    @property
    def covered(self) -> bool:
        """Whether there are kernels for it."""
        sizes = (*self.batch, self.queries, self.keys, self.width, self.value_width)
        return self.scalar in FLOATS and min(sizes) > 0 and self.mask_scalar in ("i8", *FLOATS)


class Plan:
    """How a problem is cut up for a CPU: tiles of rows x vectors, panels of keys, blocks of query rows."""

    def __init__(self, spec: Attention, target: Target) -> None:
        self.spec, self.scalar = spec, spec.wide
        self.lanes = target.lanes(self.scalar)
        self.join = join_of(target)
        self.pairs = spec.scalar == "bfloat" and multiplies_pairs(target, self.lanes)
        many = target.bits == 512 or target.triple.startswith(("aarch64", "arm64"))  # 32 registers or 16
        self.rows = 8 if many and spec.queries >= 8 else min(4, spec.queries)
        self.vectors = 2
        self.panel = self.vectors * self.lanes
        self.block = self.rows * min(_BLOCK, -(-spec.queries // self.rows))
        self.blocks = -(-spec.queries // self.block)
        self.heads = math.prod(spec.key_batch)
        self.shares = min(-(-_PIECES // self.heads), self.blocks * spec.group)
        self.together = min(4, self.rows)  # rows whose scores are worked on at a time
        self.kind = Type(self.scalar, self.lanes)
        self.width = rounded(spec.width, self.lanes)
        self.value_width = rounded(spec.value_width, self.lanes)
        self.keys = rounded(spec.seen, self.panel)

    @property
    def even(self) -> bool:
        """Whether all rows of queries are in whole tiles, so that they can be read where they are."""
        return self.spec.queries % self.rows == 0

    def steps(self, width: int) -> int:
        """Of the depth, in a product of rows with panels."""
        return -(-width // 2) if self.pairs else width

    def readable(self, row: int, column: int, width: int) -> bool:
        """Whether tiles may work on vectors of rows of an operand or a result where they are. They cannot if these are halves,
        and had better not if the rows share few places of the cache, or take many pages."""
        crowded = self.spec.seen >= _MANY_KEYS or row * BYTES[self.scalar] % _SAME_PLACES == 0
        return self.spec.scalar == self.scalar and column == 1 and width % self.lanes == 0 and not crowded

    @property
    def pieces(self) -> int:
        return self.heads * self.shares


def rounded(count: int, to: int) -> int:
    return -(-count // to) * to


class Room:
    """Memory of a kernel that is being cut up: bytes so far, each part at a multiple of 64."""

    def __init__(self, f: Function, base: Value, scalar: str) -> None:
        self.f, self.base, self.scalar, self.bytes = f, base, scalar, 0

    def take(self, elements: int) -> Value:
        start = self.bytes
        self.bytes += rounded(elements * BYTES[self.scalar], 64)
        return self.f.pointer(self.base, start, "i8")


@dataclass(frozen=True)
class Rows:
    """A matrix at an address."""

    pointer: Value
    row: int
    scalar: str  # in memory
    column: int = 1

    def at(self, f: Function, row: Value) -> Value:
        return f.pointer(self.pointer, scaled(f, row, self.row), self.scalar)


# ---- numbers


def integer(x: int) -> Value:
    return constant(x, I64)


def least(f: Function, a: Value, b: Value) -> Value:
    return f.intrinsic("smin", a, b)


def most(f: Function, a: Value, b: Value) -> Value:
    return f.intrinsic("smax", a, b)


def number(f: Function, pointer: Value, kind: Type) -> Value:
    """A number in memory, in all lanes."""
    return f.splat(f.load(pointer, Type(kind.scalar)), kind.lanes)


def larger(f: Function, a: Value, b: Value) -> Value:
    """The larger of two; b if one is NaN."""
    return f.select(f.compare("gt", a, b), a, b)


def over_lanes(f: Function, a: Value, join: Callable[[Function, Value, Value], Value]) -> Value:
    """All lanes joined, in all lanes."""
    lanes, distance = a.type.lanes, 1
    while distance < lanes:
        a = join(f, a, f.shuffle(a, a, [i ^ distance for i in range(lanes)]))
        distance *= 2
    return a


def exponential(f: Function, x: Value) -> Value:
    """exp of scores less their highest one or their log-sum-exp, which are not above 0.

    What would be subnormal is 0: processors take a hundred cycles to make such numbers, and hidden keys would all be such.
    """
    lowest = constant(_LOWEST[x.type.scalar], x.type)
    power = exp_within(f, at_least(f, x, _LOWEST[x.type.scalar]))
    return f.select(f.compare("lt", x, lowest), constant(0, x.type), power)


def plus(f: Function, a: Value, b: Value) -> Value:
    return f.add(a, b)


# ---- where things are


def unravelled(f: Function, batch: tuple[int, ...], index: Value) -> list[Value]:
    """A flat index into the batch as one for each of its dims."""
    found: list[Value] = []
    for size in reversed(batch[1:]):
        found.insert(0, f.rem(index, integer(size)))
        index = f.div(index, integer(size))
    return [index, *found] if batch else []


def of_group(f: Function, plan: Plan, at: list[Value], inside: Value) -> list[Value]:
    """Where a head of queries is in the batch, from where the head of keys is that it shares with others."""
    return at if plan.spec.group == 1 else [*at[:-1], f.add(scaled(f, at[-1], plan.spec.group), inside)]


def matrix(f: Function, layout: Layout, at: list[Value], scalar: str) -> Rows:
    """The matrix of one place in the batch."""
    pointer = f.params[layout.pointer]
    for index, stride in zip(at, layout.strides[:-2], strict=True):
        if stride:
            pointer = f.pointer(pointer, scaled(f, index, stride), scalar)
    row, column = layout.strides[-2:]
    return Rows(pointer, row, scalar, column)


def moved(f: Function, rows: Rows, by: Value) -> Rows:
    """From a later row on."""
    return replace(rows, pointer=rows.at(f, by))


class Ahead:
    """Fetches the next head of a piece's: its rows are two lines or so each and far from each other, which no CPU foresees. A
    few rows are asked for while the same rows of this head are worked on, so that not all of memory is waited for at once."""

    def __init__(self, f: Function, plan: Plan, index: Value, operands: Sequence[tuple[Layout | None, int]]) -> None:
        self.f, self.plan, spec = f, plan, plan.spec
        self.operands = [(x, width) for x, width in operands if x is not None and x.strides[-1] == 1]
        if sum(width for _, width in self.operands) * spec.queries * BYTES[spec.scalar] > _AHEAD or plan.heads == 1:
            self.operands = []
        self.head = unravelled(f, spec.key_batch, f.div(f.add(index, integer(1)), integer(plan.shares)))

    def fetch(self, row: Value) -> None:
        """The rows from one on, as many as are worked on at a time."""
        f, spec, size = self.f, self.plan.spec, BYTES[self.plan.spec.scalar]
        for layout, width in self.operands:
            rows = matrix(f, layout, of_group(f, self.plan, self.head, integer(0)), spec.scalar)
            for i in range(self.plan.together):
                start = rows.at(f, f.add(row, integer(i)))
                for column in range(0, width, _LINE // size):
                    f.fetch(f.pointer(start, column, spec.scalar))


# ---- products


def product(
    module: Module,
    plan: Plan,
    vectors: int,
    row: int,
    step: int,
    right: int,
    out: int,
    adds: bool = False,
    factors: bool = False,
    pairs: bool = False,
) -> Callable[..., None]:
    """A function of (left, right, out, depth) that makes out = left right for a tile; the same one for the same strides.

    `adds`: it has one more parameter, whether to add to what is there. `factors`: or the address of a factor for each row.
    `pairs`: the left side is bfloats and the right one pairs of them; it has one more parameter, a factor.
    """
    scalar, lanes = plan.scalar, plan.lanes
    kind = "_added" if adds else "_scaled" if factors else "_pairs" if pairs else ""
    name = f"product_{scalar}{lanes}_{plan.rows}x{vectors}_{row}_{step}_{right}_{out}{kind}".replace("-", "m")
    if name not in module.functions:
        params = [("left", PTR), ("right", PTR), ("out", PTR), ("depth", I64)]
        more = [("more", I1)] if adds else [("factors", PTR)] if factors else [("factor", Type(scalar))] if pairs else []
        f = module.function(name, [*params, *more], internal=True)
        a, b, c, depth = f.params[:4]
        held, cell, join = ("bfloat", PAIR, join_pairs) if pairs else (scalar, scalar, plan.join)
        left = Side(a, held, tuple(i * row for i in range(plan.rows)), spread=True, pairs=pairs)
        across = tuple(j * lanes for j in range(vectors))
        places = [f.pointer(c, i * out + j, scalar) for i in range(plan.rows) for j in across]
        sums = zeros(len(places), plan.kind)
        if adds:
            sums = [f.select(f.params[4], f.load(place, plan.kind), zero) for place, zero in zip(places, sums, strict=True)]
        found = multiply(f, left, Side(b, cell, across), [Axis(depth, step, right)], [(0, 0)], sums, join)
        if pairs:
            times = f.splat(f.params[4], lanes)
            found = [f.mul(x, times) for x in found]
        if factors:
            each = [number(f, f.pointer(f.params[4], i, scalar), plan.kind) for i in range(plan.rows)]
            found = [f.mul(x, each[i // vectors]) for i, x in enumerate(found)]
        for value, place in zip(found, places, strict=True):
            f.store(value, place)
        f.back()
    return lambda f, *args: f.call_local(name, None, *args) and None


def across(
    f: Function,
    module: Module,
    plan: Plan,
    left: Rows,
    right: Rows,
    out: Rows,
    width: int,
    depth: Value,
    more: Value | None = None,
    factors: Value | None = None,
) -> None:
    """A tile of rows times all of a matrix' columns, in whole vectors, a few at a time. `more` and `factors`: see `product`."""
    column, rest = 0, [x for x in (more, factors) if x is not None]
    while column < width:
        vectors = min(plan.vectors, (width - column) // plan.lanes)
        strides = (left.row, left.column, right.row, out.row)
        call = product(module, plan, vectors, *strides, adds=more is not None, factors=factors is not None)
        there, result = (f.pointer(x.pointer, column, plan.scalar) for x in (right, out))
        call(f, left.pointer, there, result, depth, *rest)
        column += vectors * plan.lanes


# ---- blocks that are read and written


def columns(plan: Plan, width: int) -> list[tuple[int, Value | None]]:
    """Where the vectors of a row begin, with the mask of the last one."""
    return [(c, first_lanes(width - c, plan.lanes)) for c in range(0, width, plan.lanes)]


def fetch(f: Function, plan: Plan, rows: Rows, pointer: Value, column: int, mask: Value | None) -> Value:
    """A vector of a row that begins at a pointer; 0 where the mask leaves something out."""
    return widened(f, gathered(f, rows, pointer, column, plan.lanes, mask), plan.scalar)


def gathered(f: Function, rows: Rows, pointer: Value, column: int, lanes: int, mask: Value | None) -> Value:
    """Neighbours in a row, as they are in memory."""
    where = f.pointer(pointer, column * rows.column, rows.scalar)
    if rows.column == 1 or lanes == 1:
        return f.load(where, Type(rows.scalar, lanes), mask)
    index = Value(f"<{', '.join(f'i64 {i * rows.column}' for i in range(lanes))}>", Type("i64", lanes))
    return f.gather(where, index, rows.scalar, mask)


def put(f: Function, plan: Plan, value: Value, rows: Rows, pointer: Value, column: int, mask: Value | None) -> None:
    where = f.pointer(pointer, column * rows.column, rows.scalar)
    if rows.scalar != plan.scalar:
        value = f.convert("fptrunc", value, rows.scalar)
    if rows.column == 1 or plan.lanes == 1:
        f.store(value, where, mask)
        return
    index = Value(f"<{', '.join(f'i64 {i * rows.column}' for i in range(plan.lanes))}>", Type("i64", plan.lanes))
    f.scatter(value, where, index, mask)


def copied(f: Function, plan: Plan, source: Rows, count: Value, width: int, room: Value) -> Rows:
    """Rows side by side in a room, whole vectors each."""
    to = Rows(room, rounded(width, plan.lanes), plan.scalar)
    with f.loop(integer(0), count) as loop:
        start, end = source.at(f, loop.index), to.at(f, loop.index)
        for column, mask in columns(plan, width):
            f.store(fetch(f, plan, source, start, column, mask), f.pointer(end, column, plan.scalar))
    return to


def to_multiply(f: Function, plan: Plan, source: Rows, count: Value, width: int, room: Value) -> Rows:
    """Rows of bfloats side by side in a room, to be multiplied in pairs: whole pairs, with 0 after the last column."""
    lanes = 2 * plan.lanes
    to = Rows(room, rounded(width, lanes), "bfloat")
    with f.loop(integer(0), count) as loop:
        start, end = source.at(f, loop.index), to.at(f, loop.index)
        for column in range(0, width, lanes):
            value = gathered(f, source, start, column, lanes, first_lanes(width - column, lanes))
            f.store(value, f.pointer(end, column, to.scalar))
    return to


def vectors_in(f: Function, plan: Plan, source: Rows, count: Value, width: int, room: Value) -> Rows:
    """Rows that a tile can read vectors of: as they are, or copied."""
    readable = plan.readable(source.row, source.column, width)
    return source if readable else copied(f, plan, source, count, width, room)


def clear(f: Function, plan: Plan, room: Value, elements: int) -> None:
    """Zeros in a number of whole vectors."""
    with f.loop(0, elements, plan.lanes) as loop:
        f.store(constant(0, plan.kind), f.pointer(room, loop.index, plan.scalar))


def panels(module: Module, f: Function, plan: Plan, source: Rows, width: int, factor: float, room: Value) -> None:
    """Keys (or values) times a factor, as panels: `panel` keys side by side for each column, and zeros after the last key.
    In pairs, there is no factor: products have it."""
    lanes, scalar, times = plan.lanes, plan.scalar, constant(factor, Type(plan.scalar))
    each, steps = 2 if plan.pairs else 1, plan.steps(width)
    whole = plan.spec.seen - plan.spec.seen % lanes

    def columns_of(key: Value, count: int) -> None:
        inside = f.rem(key, integer(plan.panel))
        start, target = source.at(f, key), f.pointer(room, f.add(scaled(f, f.sub(key, inside), steps), inside), scalar)

        def square(step: Value, columns: int) -> None:
            here = f.pointer(start, scaled(f, step, each * source.column), source.scalar)
            there = f.pointer(target, scaled(f, step, plan.panel), scalar)
            f.call_local(turned(module, plan, source, count, columns), None, here, there, times)

        full, rest = divmod(width, each * lanes)
        with f.loop(0, full * lanes, lanes) as loop:
            square(loop.index, each * lanes)
        if rest:
            square(integer(full * lanes), rest)

    if whole:
        with f.loop(0, whole, lanes) as loop:
            columns_of(loop.index, lanes)
    for key in range(whole, plan.keys, lanes):
        columns_of(integer(key), max(plan.spec.seen - key, 0))


def turned(module: Module, plan: Plan, source: Rows, count: int, columns: int) -> str:
    """A function of (keys, panel, factor) that puts `columns` columns of `count` keys into a panel."""
    lanes, scalar = plan.lanes, plan.scalar
    name = f"turned_{source.scalar}{lanes}_{count}x{columns}_{source.row}_{source.column}".replace("-", "m")
    if name not in module.functions:
        f = module.function(name, [("keys", PTR), ("panel", PTR), ("factor", Type(scalar))], internal=True)
        start, target, factor = f.params
        starts = [f.pointer(start, i * source.row, source.scalar) for i in range(count)]
        if plan.pairs:
            kind, mask = plan.kind.of(PAIR), first_lanes(columns, 2 * lanes)
            rows = [f.bits(gathered(f, source, place, 0, 2 * lanes, mask), kind) for place in starts]
        else:
            kind, mask, times = plan.kind, first_lanes(columns, lanes), f.splat(factor, lanes)
            rows = [f.mul(fetch(f, plan, source, place, 0, mask), times) for place in starts]
        zero = constant(0, kind)
        found = transposed(f, rows + [zero] * (lanes - count)) if count else [zero] * lanes
        for i, value in enumerate(found[: plan.steps(columns)]):
            f.store(value, f.pointer(target, i * plan.panel, scalar))
        f.back()
    return name


def transposed(f: Function, rows: list[Value]) -> list[Value]:
    """As many vectors as they have lanes, with rows and columns exchanged: each round interleaves the two halves."""
    lanes = len(rows)
    half = lanes // 2
    pairs = [i // 2 + lanes * (i % 2) for i in range(lanes)]
    for _ in range(lanes.bit_length() - 1):
        found = []
        for a, b in zip(rows[:half], rows[half:], strict=True):
            found += [f.shuffle(a, b, pairs), f.shuffle(a, b, [half + i for i in pairs])]
        rows = found
    return rows
