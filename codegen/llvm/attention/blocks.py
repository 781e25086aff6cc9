"""Building blocks of both flash attention kernels: the problem, its plan, and operations on blocks.

Lanes are neighbouring keys, or neighbouring columns of values. All matmuls are register tiles
(`codegen/llvm/ir/register_tile.py`), as functions of their own that a kernel calls: rows of one operand, one element at a
time broadcast to all lanes, times vectors of the other. So keys are first packed as panels, which have a column's keys side
by side; the other matmuls find their vectors in rows in place.

A piece is a head of keys with a share of the blocks of query rows that attend to it, from all query heads that share it. The
number of shares is fixed, so results do not depend on which thread does which piece.

Matmuls of two bfloat operands are done in pairs along their columns, where the CPU has the instruction: then panels hold
pairs, and rows of queries stay bfloats. Other matmuls involve probabilities or score gradients, which are not rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..gemm.problem import has_pair_products, multiply_add_for, multiply_add_pairs
from ..ir.builder import BYTES, FLOATS, HALF_SCALARS, I1, I64, PTR, Function, Module, Type, Value, constant
from ..ir.register_tile import PAIR, DepthLoop, TileOperand, first_lanes, multiply_tile, scale_index, widen, zero_sums
from ..ir.target import Target
from ..math.common import at_least
from ..math.exp import exp_in_range

_MIN_KEYS_TO_COPY = 256  # from here on copying rows once is cheaper than reading them in place repeatedly
_CACHE_ALIAS_BYTES = 2048  # rows at multiples of this distance use only a few sets of L1
_MIN_PIECES = 8  # if there are enough blocks
_LOWEST_EXPONENT = {"float": -87.0, "double": -708.0}  # exp is just not subnormal here
_TILES_PER_BLOCK = 4  # of query rows
_MAX_PREFETCH_BYTES = 128 << 10  # of a head: prefetching more would evict the current one from L2
_LINE = 64  # bytes


@dataclass(frozen=True)
class TensorLayout:
    """A tensor (batch..., row, column) in the kernel's pointers. Strides count elements, and are 0 where it is broadcast."""

    pointer: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class NativeAttention:
    """softmax(query key^T * scale + mask) value, as the ops `attention` and `attention_backward` define it.

    `batch` is the queries'. For keys and values its last size is divided by `group`, the number of query heads that share a
    key head. Boolean masks ("i8") select keys, float ones are added.
    """

    batch: tuple[int, ...]
    queries: int
    keys: int
    width: int
    value_width: int
    scale: float
    query: TensorLayout
    key: TensorLayout
    value: TensorLayout
    log_total: TensorLayout  # log-sum-exp of each row's scores, +inf if all keys are masked
    out: TensorLayout | None = None  # of the forward kernel
    pull: TensorLayout | None = None  # the gradient of `out`; this and the rest are of the backward kernel
    of_query: TensorLayout | None = None  # gradients; None if not needed
    of_key: TensorLayout | None = None
    of_value: TensorLayout | None = None
    mask: TensorLayout | None = None
    mask_scalar: str = "i8"
    causal: bool = False
    group: int = 1
    scalar: str = "float"  # in memory; log-sum-exp is in `wide`

    @property
    def wide(self) -> str:
        """Type it is computed in: halves are converted as they are read, and results rounded as they are written."""
        return "float" if self.scalar in HALF_SCALARS else self.scalar

    @property
    def key_batch(self) -> tuple[int, ...]:
        return (*self.batch[:-1], self.batch[-1] // self.group) if self.batch else ()

    @property
    def seen(self) -> int:
        """Number of keys that any query attends to."""
        return min(self.keys, self.queries) if self.causal else self.keys

    @property
    def covered(self) -> bool:
        """True if there are kernels for it."""
        sizes = (*self.batch, self.queries, self.keys, self.width, self.value_width)
        return self.scalar in FLOATS and min(sizes) > 0 and self.mask_scalar in ("i8", *FLOATS)


class AttentionPlan:
    """Blocking of a problem for a CPU: tiles of rows x vectors, panels of keys, blocks of query rows."""

    def __init__(self, spec: NativeAttention, target: Target) -> None:
        self.spec, self.scalar = spec, spec.wide
        self.lanes = target.lanes(self.scalar)
        self.multiply_add = multiply_add_for(target)
        self.pairs = spec.scalar == "bfloat" and has_pair_products(target, self.lanes)
        many = target.bits == 512 or target.triple.startswith(("aarch64", "arm64"))  # 32 registers or 16
        self.rows = 8 if many and spec.queries >= 8 else min(4, spec.queries)
        self.vectors = 2
        self.panel = self.vectors * self.lanes
        self.block = self.rows * min(_TILES_PER_BLOCK, -(-spec.queries // self.rows))
        self.blocks = -(-spec.queries // self.block)
        self.heads = math.prod(spec.key_batch)
        self.shares = min(-(-_MIN_PIECES // self.heads), self.blocks * spec.group)
        self.together = min(4, self.rows)  # rows whose scores are processed together
        self.kind = Type(self.scalar, self.lanes)
        self.width = round_up(spec.width, self.lanes)
        self.value_width = round_up(spec.value_width, self.lanes)
        self.keys = round_up(spec.seen, self.panel)

    @property
    def even(self) -> bool:
        """True if all query rows are in whole tiles, so that they can be read in place."""
        return self.spec.queries % self.rows == 0

    def steps(self, width: int) -> int:
        """Steps of the depth in a matmul of rows with panels."""
        return -(-width // 2) if self.pairs else width

    def readable(self, row: int, column: int, width: int) -> bool:
        """True if tiles may use vectors of an operand's or a result's rows in place. They cannot if these are halves, and
        had better not if the rows alias in the cache, or span many pages."""
        crowded = self.spec.seen >= _MIN_KEYS_TO_COPY or row * BYTES[self.scalar] % _CACHE_ALIAS_BYTES == 0
        return self.spec.scalar == self.scalar and column == 1 and width % self.lanes == 0 and not crowded

    @property
    def pieces(self) -> int:
        return self.heads * self.shares


def round_up(count: int, to: int) -> int:
    return -(-count // to) * to


class ScratchAllocator:
    """Bump allocator for a kernel's scratch memory; each allocation is 64-byte aligned."""

    def __init__(self, f: Function, base: Value, scalar: str) -> None:
        self.f, self.base, self.scalar, self.bytes = f, base, scalar, 0

    def take(self, elements: int) -> Value:
        start = self.bytes
        self.bytes += round_up(elements * BYTES[self.scalar], 64)
        return self.f.pointer(self.base, start, "i8")


@dataclass(frozen=True)
class RowMatrix:
    """A matrix at an address."""

    pointer: Value
    row: int
    scalar: str  # in memory
    column: int = 1

    def at(self, f: Function, row: Value) -> Value:
        return f.pointer(self.pointer, scale_index(f, row, self.row), self.scalar)


# ---- numbers


def i64(x: int) -> Value:
    return constant(x, I64)


def smin(f: Function, a: Value, b: Value) -> Value:
    return f.intrinsic("smin", a, b)


def smax(f: Function, a: Value, b: Value) -> Value:
    return f.intrinsic("smax", a, b)


def load_splat(f: Function, pointer: Value, kind: Type) -> Value:
    """Load a number, broadcast to all lanes."""
    return f.splat(f.load(pointer, Type(kind.scalar)), kind.lanes)


def select_larger(f: Function, a: Value, b: Value) -> Value:
    """The larger of two; b if one is NaN."""
    return f.select(f.compare("gt", a, b), a, b)


def reduce_to_all_lanes(f: Function, a: Value, join: Callable[[Function, Value, Value], Value]) -> Value:
    """Reduce all lanes; the result is in all lanes."""
    lanes, distance = a.type.lanes, 1
    while distance < lanes:
        a = join(f, a, f.shuffle(a, a, [i ^ distance for i in range(lanes)]))
        distance *= 2
    return a


def exp_nonpositive(f: Function, x: Value) -> Value:
    """exp of scores minus their maximum or their log-sum-exp, which are not above 0.

    Results that would be subnormal are 0: CPUs take a hundred cycles for such numbers, and all masked keys would be such.
    """
    lowest = constant(_LOWEST_EXPONENT[x.type.scalar], x.type)
    power = exp_in_range(f, at_least(f, x, _LOWEST_EXPONENT[x.type.scalar]))
    return f.select(f.compare("lt", x, lowest), constant(0, x.type), power)


def add_values(f: Function, a: Value, b: Value) -> Value:
    return f.add(a, b)


# ---- addresses


def unravel_batch(f: Function, batch: tuple[int, ...], index: Value) -> list[Value]:
    """Indices along the batch dims from a flat index."""
    found: list[Value] = []
    for size in reversed(batch[1:]):
        found.insert(0, f.rem(index, i64(size)))
        index = f.div(index, i64(size))
    return [index, *found] if batch else []


def query_head(f: Function, plan: AttentionPlan, at: list[Value], inside: Value) -> list[Value]:
    """Batch indices of a query head, from those of its key head and its index `inside` the group."""
    return at if plan.spec.group == 1 else [*at[:-1], f.add(scale_index(f, at[-1], plan.spec.group), inside)]


def matrix_at(f: Function, layout: TensorLayout, at: list[Value], scalar: str) -> RowMatrix:
    """The matrix at a batch position."""
    pointer = f.params[layout.pointer]
    for index, stride in zip(at, layout.strides[:-2], strict=True):
        if stride:
            pointer = f.pointer(pointer, scale_index(f, index, stride), scalar)
    row, column = layout.strides[-2:]
    return RowMatrix(pointer, row, scalar, column)


def rows_from(f: Function, rows: RowMatrix, by: Value) -> RowMatrix:
    """The matrix from row `by` on."""
    return replace(rows, pointer=rows.at(f, by))


class HeadPrefetch:
    """Prefetches the next head of a piece: its rows are about two lines each and far from each other, which no hardware
    prefetcher predicts. A few rows are prefetched while the same rows of this head are processed, to spread the requests."""

    def __init__(
        self, f: Function, plan: AttentionPlan, index: Value, operands: Sequence[tuple[TensorLayout | None, int]]
    ) -> None:
        self.f, self.plan, spec = f, plan, plan.spec
        self.operands = [(x, width) for x, width in operands if x is not None and x.strides[-1] == 1]
        if (
            sum(width for _, width in self.operands) * spec.queries * BYTES[spec.scalar] > _MAX_PREFETCH_BYTES
            or plan.heads == 1
        ):
            self.operands = []
        self.head = unravel_batch(f, spec.key_batch, f.div(f.add(index, i64(1)), i64(plan.shares)))

    def prefetch(self, row: Value) -> None:
        """Prefetch the rows from `row` on, as many as are processed together."""
        f, spec, size = self.f, self.plan.spec, BYTES[self.plan.spec.scalar]
        for layout, width in self.operands:
            rows = matrix_at(f, layout, query_head(f, self.plan, self.head, i64(0)), spec.scalar)
            for i in range(self.plan.together):
                start = rows.at(f, f.add(row, i64(i)))
                for column in range(0, width, _LINE // size):
                    f.prefetch(f.pointer(start, column, spec.scalar))


# ---- matmuls


def tile_function(
    module: Module,
    plan: AttentionPlan,
    vectors: int,
    row: int,
    step: int,
    right: int,
    out: int,
    adds: bool = False,
    factors: bool = False,
    pairs: bool = False,
) -> Callable[..., None]:
    """Emit (once per set of strides) a function of (left, right, out, depth) that computes out = left right for a tile.

    `adds`: one more parameter, true to add to `out`. `factors`: or the address of a factor per row. `pairs`: the left side
    is bfloats and the right one pairs of them; one more parameter, a factor.
    """
    scalar, lanes = plan.scalar, plan.lanes
    kind = "_added" if adds else "_scaled" if factors else "_pairs" if pairs else ""
    name = f"matmul_{scalar}{lanes}_{plan.rows}x{vectors}_{row}_{step}_{right}_{out}{kind}".replace("-", "m")
    if name not in module.functions:
        params = [("left", PTR), ("right", PTR), ("out", PTR), ("depth", I64)]
        more = [("more", I1)] if adds else [("factors", PTR)] if factors else [("factor", Type(scalar))] if pairs else []
        f = module.function(name, [*params, *more], internal=True)
        a, b, c, depth = f.params[:4]
        held, cell, join = ("bfloat", PAIR, multiply_add_pairs) if pairs else (scalar, scalar, plan.multiply_add)
        left = TileOperand(a, held, tuple(i * row for i in range(plan.rows)), broadcast=True, pairs=pairs)
        across = tuple(j * lanes for j in range(vectors))
        places = [f.pointer(c, i * out + j, scalar) for i in range(plan.rows) for j in across]
        sums = zero_sums(len(places), plan.kind)
        if adds:
            sums = [f.select(f.params[4], f.load(place, plan.kind), zero) for place, zero in zip(places, sums, strict=True)]
        found = multiply_tile(f, left, TileOperand(b, cell, across), [DepthLoop(depth, step, right)], [(0, 0)], sums, join)
        if pairs:
            times = f.splat(f.params[4], lanes)
            found = [f.mul(x, times) for x in found]
        if factors:
            each = [load_splat(f, f.pointer(f.params[4], i, scalar), plan.kind) for i in range(plan.rows)]
            found = [f.mul(x, each[i // vectors]) for i, x in enumerate(found)]
        for value, place in zip(found, places, strict=True):
            f.store(value, place)
        f.ret()
    return lambda f, *args: f.call_local(name, None, *args) and None


def multiply_rows(
    f: Function,
    module: Module,
    plan: AttentionPlan,
    left: RowMatrix,
    right: RowMatrix,
    out: RowMatrix,
    width: int,
    depth: Value,
    more: Value | None = None,
    factors: Value | None = None,
) -> None:
    """Multiply a tile of rows with all columns of a matrix, a few vectors at a time. `more`, `factors`: see `tile_function`."""
    column, rest = 0, [x for x in (more, factors) if x is not None]
    while column < width:
        vectors = min(plan.vectors, (width - column) // plan.lanes)
        strides = (left.row, left.column, right.row, out.row)
        call = tile_function(module, plan, vectors, *strides, adds=more is not None, factors=factors is not None)
        there, result = (f.pointer(x.pointer, column, plan.scalar) for x in (right, out))
        call(f, left.pointer, there, result, depth, *rest)
        column += vectors * plan.lanes


# ---- reading and writing blocks


def row_vectors(plan: AttentionPlan, width: int) -> list[tuple[int, Value | None]]:
    """Start columns of a row's vectors, with the mask of the last one."""
    return [(c, first_lanes(width - c, plan.lanes)) for c in range(0, width, plan.lanes)]


def load_vector(f: Function, plan: AttentionPlan, rows: RowMatrix, pointer: Value, column: int, mask: Value | None) -> Value:
    """Load a vector of a row at a pointer; 0 in masked lanes."""
    return widen(f, load_lanes(f, rows, pointer, column, plan.lanes, mask), plan.scalar)


def load_lanes(f: Function, rows: RowMatrix, pointer: Value, column: int, lanes: int, mask: Value | None) -> Value:
    """Load neighbours in a row, in their memory type."""
    where = f.pointer(pointer, column * rows.column, rows.scalar)
    if rows.column == 1 or lanes == 1:
        return f.load(where, Type(rows.scalar, lanes), mask)
    index = Value(f"<{', '.join(f'i64 {i * rows.column}' for i in range(lanes))}>", Type("i64", lanes))
    return f.gather(where, index, rows.scalar, mask)


def store_vector(
    f: Function, plan: AttentionPlan, value: Value, rows: RowMatrix, pointer: Value, column: int, mask: Value | None
) -> None:
    where = f.pointer(pointer, column * rows.column, rows.scalar)
    if rows.scalar != plan.scalar:
        value = f.convert("fptrunc", value, rows.scalar)
    if rows.column == 1 or plan.lanes == 1:
        f.store(value, where, mask)
        return
    index = Value(f"<{', '.join(f'i64 {i * rows.column}' for i in range(plan.lanes))}>", Type("i64", plan.lanes))
    f.scatter(value, where, index, mask)


def copy_rows(f: Function, plan: AttentionPlan, source: RowMatrix, count: Value, width: int, room: Value) -> RowMatrix:
    """Copy rows into `room`, in whole vectors."""
    to = RowMatrix(room, round_up(width, plan.lanes), plan.scalar)
    with f.loop(i64(0), count) as loop:
        start, end = source.at(f, loop.index), to.at(f, loop.index)
        for column, mask in row_vectors(plan, width):
            f.store(load_vector(f, plan, source, start, column, mask), f.pointer(end, column, plan.scalar))
    return to


def copy_pairs(f: Function, plan: AttentionPlan, source: RowMatrix, count: Value, width: int, room: Value) -> RowMatrix:
    """Copy rows of bfloats into `room` for pairwise multiplication: whole pairs, 0 after the last column."""
    lanes = 2 * plan.lanes
    to = RowMatrix(room, round_up(width, lanes), "bfloat")
    with f.loop(i64(0), count) as loop:
        start, end = source.at(f, loop.index), to.at(f, loop.index)
        for column in range(0, width, lanes):
            value = load_lanes(f, source, start, column, lanes, first_lanes(width - column, lanes))
            f.store(value, f.pointer(end, column, to.scalar))
    return to


def readable_rows(f: Function, plan: AttentionPlan, source: RowMatrix, count: Value, width: int, room: Value) -> RowMatrix:
    """Rows that a tile can read vectors of: in place, or copied."""
    readable = plan.readable(source.row, source.column, width)
    return source if readable else copy_rows(f, plan, source, count, width, room)


def clear(f: Function, plan: AttentionPlan, room: Value, elements: int) -> None:
    """Zero a number of whole vectors."""
    with f.loop(0, elements, plan.lanes) as loop:
        f.store(constant(0, plan.kind), f.pointer(room, loop.index, plan.scalar))


def pack_panels(
    module: Module, f: Function, plan: AttentionPlan, source: RowMatrix, width: int, factor: float, room: Value
) -> None:
    """Pack keys (or values) times a factor as panels: `panel` keys side by side per column, and zeros after the last key. In
    pairs there is no factor: the matmuls apply it."""
    lanes, scalar, times = plan.lanes, plan.scalar, constant(factor, Type(plan.scalar))
    each, steps = 2 if plan.pairs else 1, plan.steps(width)
    whole = plan.spec.seen - plan.spec.seen % lanes

    def columns_of(key: Value, count: int) -> None:
        inside = f.rem(key, i64(plan.panel))
        start, target = source.at(f, key), f.pointer(room, f.add(scale_index(f, f.sub(key, inside), steps), inside), scalar)

        def square(step: Value, columns: int) -> None:
            here = f.pointer(start, scale_index(f, step, each * source.column), source.scalar)
            there = f.pointer(target, scale_index(f, step, plan.panel), scalar)
            f.call_local(transpose_function(module, plan, source, count, columns), None, here, there, times)

        full, rest = divmod(width, each * lanes)
        with f.loop(0, full * lanes, lanes) as loop:
            square(loop.index, each * lanes)
        if rest:
            square(i64(full * lanes), rest)

    if whole:
        with f.loop(0, whole, lanes) as loop:
            columns_of(loop.index, lanes)
    for key in range(whole, plan.keys, lanes):
        columns_of(i64(key), max(plan.spec.seen - key, 0))


def transpose_function(module: Module, plan: AttentionPlan, source: RowMatrix, count: int, columns: int) -> str:
    """Emit (once) a function of (keys, panel, factor) that puts `columns` columns of `count` keys into a panel."""
    lanes, scalar = plan.lanes, plan.scalar
    name = f"turned_{source.scalar}{lanes}_{count}x{columns}_{source.row}_{source.column}".replace("-", "m")
    if name not in module.functions:
        f = module.function(name, [("keys", PTR), ("panel", PTR), ("factor", Type(scalar))], internal=True)
        start, target, factor = f.params
        starts = [f.pointer(start, i * source.row, source.scalar) for i in range(count)]
        if plan.pairs:
            kind, mask = plan.kind.of(PAIR), first_lanes(columns, 2 * lanes)
            rows = [f.bits(load_lanes(f, source, place, 0, 2 * lanes, mask), kind) for place in starts]
        else:
            kind, mask, times = plan.kind, first_lanes(columns, lanes), f.splat(factor, lanes)
            rows = [f.mul(load_vector(f, plan, source, place, 0, mask), times) for place in starts]
        zero = constant(0, kind)
        found = transpose(f, rows + [zero] * (lanes - count)) if count else [zero] * lanes
        for i, value in enumerate(found[: plan.steps(columns)]):
            f.store(value, f.pointer(target, i * plan.panel, scalar))
        f.ret()
    return name


def transpose(f: Function, rows: list[Value]) -> list[Value]:
    """Transpose as many vectors as they have lanes: each round interleaves the two halves."""
    lanes = len(rows)
    half = lanes // 2
    pairs = [i // 2 + lanes * (i % 2) for i in range(lanes)]
    for _ in range(lanes.bit_length() - 1):
        found = []
        for a, b in zip(rows[:half], rows[half:], strict=True):
            found += [f.shuffle(a, b, pairs), f.shuffle(a, b, [half + i for i in pairs])]
        rows = found
    return rows
