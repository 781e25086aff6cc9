"""Register tiles: a few rows times a few vectors of sums, held in registers over the whole depth of a contraction.

Matmuls, convolutions and attention are made of these. A tile multiplies each part of its left operand with each part of its
right operand and accumulates the products, step by step along the depth. A part is a vector of neighbours, or one element
broadcast to all lanes: broadcast on the left and vectors on the right is the usual matmul tile; vectors on both sides are dot
products whose lanes are summed at the end. Parts are given as offsets from a pointer, in elements, so a convolution's windows
are just other offsets.

A step of the depth may be a pair of bfloats, which one instruction multiplies and accumulates. A part then holds pairs, as
32-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .builder import I64, Function, Type, Value, constant

PAIR = "i32"  # two bfloats, multiplied by one instruction: see `problem.with_pairs` in gemm
MultiplyAdd = Callable[[Function, Value, Value, Value], Value]  # multiply_add(f, factor, factor, sum) = factor * factor + sum


@dataclass(frozen=True)
class TileOperand:
    """One operand of a register tile."""

    pointer: Value
    scalar: str  # in memory
    offsets: tuple[int, ...]  # of its parts, in elements from the pointer
    broadcast: bool = False  # a part is one element, broadcast to all lanes
    masks: tuple[Value | None, ...] = ()  # of the parts; empty: unmasked
    pairs: bool = False  # a step of the depth is two neighbours

    def at(self, f: Function, index: Value, step: int) -> TileOperand:
        """The same parts, `index` rounds of `step` elements further along the depth."""
        if step == 0:
            return self
        moved = f.pointer(self.pointer, scale_index(f, index, step), self.scalar)
        return replace(self, pointer=moved)

    def part(self, f: Function, i: int, offset: int, kind: Type) -> Value:
        where = f.pointer(self.pointer, self.offsets[i] + offset, self.scalar)
        lanes, mask = 1 if self.broadcast else kind.lanes, self.masks[i] if self.masks else None
        if self.pairs:
            found = f.bits(f.load(where, Type(self.scalar, 2 * lanes), mask), Type(PAIR, lanes))
        else:
            found = widen(f, f.load(where, Type(self.scalar, lanes), mask), kind.scalar)
        return f.splat(found, kind.lanes) if self.broadcast else found


@dataclass(frozen=True)
class DepthLoop:
    """A loop along the depth, with the distance in elements that each iteration moves the two operands."""

    rounds: int | Value
    left: int
    right: int


def multiply_tile(
    f: Function,
    left: TileOperand,
    right: TileOperand,
    axes: Sequence[DepthLoop],
    taps: Sequence[tuple[int, int]],
    sums: list[Value],
    join: MultiplyAdd,
) -> list[Value]:
    """Return `sums` (one for each pair of a left and a right part, row-major) with the products of the whole depth added.

    `axes` are loops, outermost first. Inside them the `taps`, pairs of offsets to the two operands, are unrolled.
    """
    if not axes:
        for tap in taps:
            sums = _multiply_step(f, left, right, tap, sums, join)
        return sums
    axis, rest = axes[0], axes[1:]
    if axis.rounds == 1:
        return multiply_tile(f, left, right, rest, taps, sums, join)
    with f.loop(0, axis.rounds, carried=sums) as loop:
        here, there = left.at(f, loop.index, axis.left), right.at(f, loop.index, axis.right)
        loop.next(*multiply_tile(f, here, there, rest, taps, loop.carried, join))
    return loop.results


def _multiply_step(
    f: Function, left: TileOperand, right: TileOperand, tap: tuple[int, int], sums: list[Value], join: MultiplyAdd
) -> list[Value]:
    kind, width = sums[0].type, len(right.offsets)
    columns = [right.part(f, j, tap[1], kind) for j in range(width)]
    found = []
    for i in range(len(left.offsets)):
        factor = left.part(f, i, tap[0], kind)
        for j, column in enumerate(columns):
            found.append(join(f, factor, column, sums[i * width + j]))
    return found


def zero_sums(count: int, kind: Type) -> list[Value]:
    return [constant(0, kind)] * count


def widen(f: Function, value: Value, scalar: str) -> Value:
    """Convert a value to the type it is computed in: halves are storage only, unless they are in pairs."""
    return value if value.type.scalar in (scalar, PAIR) else f.convert("fpext", value, scalar)


def interleave_pairs(f: Function, first: Value, second: Value, alone: Value | None = None) -> Value:
    """Combine two vectors of bfloats into a vector of pairs; the second is 0 where `alone` is true."""
    if alone is not None:
        second = f.select(alone, constant(0, second.type), second)
    low, high = (f.convert("zext", f.bits(x, x.type.of("i16")), PAIR) for x in (first, second))
    return f.or_(low, f.shl(high, constant(16, high.type)))


def scale_index(f: Function, index: Value, step: int) -> Value:
    return index if step == 1 else f.mul(index, constant(step, I64))


def first_lanes(count: int, lanes: int) -> Value | None:
    """A mask of the first `count` lanes; None if that is all of them."""
    if count >= lanes:
        return None
    bits = ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(lanes))
    return Value(f"<{bits}>", Type("i1", lanes))


def lane_sums(f: Function, vectors: list[Value]) -> Value:
    """Sum the lanes of each vector, one sum per lane of the result, by a tree of pairwise adds."""
    lanes, count = vectors[0].type.lanes, len(vectors)
    level = vectors + zero_sums((1 << (count - 1).bit_length()) - count, vectors[0].type)
    for _ in range(lanes.bit_length() - 1):
        pairs = zip(level[::2], level[1::2], strict=True) if len(level) > 1 else [(level[0], level[0])]
        evens, odds = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
        level = [f.add(f.shuffle(a, b, evens), f.shuffle(a, b, odds)) for a, b in pairs]
    return level[0]
