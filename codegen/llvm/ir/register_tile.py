"""The register tile: a few rows times a few vectors, held in registers over the whole depth of a contraction.

A contraction is many of these. A tile multiplies each part of its left side with each part of its right side and adds the
products up, step by step along the depth. A part is a vector of neighbours or one element in all lanes: `spread` on the left
and vectors on the right is the usual matrix product, vectors on both sides are dot products whose lanes are added at the end.
Where the parts are is given in elements from a pointer, so a convolution's windows are just other numbers.

A step of the depth may be a pair of bfloats, which one instruction multiplies and adds up. A part is then of pairs, as integers
of 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .builder import I64, Function, Type, Value, constant

PAIR = "i32"  # two bfloats, as they are multiplied: see `contraction.paired`
Join = Callable[[Function, Value, Value, Value], Value]  # join(f, factor, factor, sum) is the sum with their product added


@dataclass(frozen=True)
class Side:
    """One factor of a tile."""

    pointer: Value
    scalar: str  # in memory
    places: tuple[int, ...]  # of its parts, in elements from the pointer
    spread: bool = False  # a part is one element, in all lanes
    masks: tuple[Value | None, ...] = ()  # of the parts; none at all if empty
    pairs: bool = False  # two neighbours at a time are one step of the depth

    def at(self, f: Function, index: Value, step: int) -> Side:
        """The same parts, further along the depth."""
        if step == 0:
            return self
        moved = f.pointer(self.pointer, scaled(f, index, step), self.scalar)
        return replace(self, pointer=moved)

    def part(self, f: Function, i: int, offset: int, kind: Type) -> Value:
        where = f.pointer(self.pointer, self.places[i] + offset, self.scalar)
        lanes, mask = 1 if self.spread else kind.lanes, self.masks[i] if self.masks else None
        if self.pairs:
            found = f.bits(f.load(where, Type(self.scalar, 2 * lanes), mask), Type(PAIR, lanes))
        else:
            found = widened(f, f.load(where, Type(self.scalar, lanes), mask), kind.scalar)
        return f.splat(found, kind.lanes) if self.spread else found


@dataclass(frozen=True)
class Axis:
    """A loop along the depth, and how far each round moves the two sides, in elements."""

    rounds: int | Value
    left: int
    right: int


def multiply(
    f: Function, left: Side, right: Side, axes: Sequence[Axis], taps: Sequence[tuple[int, int]], sums: list[Value], join: Join
) -> list[Value]:
    """`sums`, one for each left and right part (the right ones together), with the products of the whole depth added.

    `axes` are loops from the outermost on. Inside, the `taps`, which are offsets to both sides, are written out.
    """
    if not axes:
        for tap in taps:
            sums = _step(f, left, right, tap, sums, join)
        return sums
    axis, rest = axes[0], axes[1:]
    if axis.rounds == 1:
        return multiply(f, left, right, rest, taps, sums, join)
    with f.loop(0, axis.rounds, carried=sums) as loop:
        here, there = left.at(f, loop.index, axis.left), right.at(f, loop.index, axis.right)
        loop.next(*multiply(f, here, there, rest, taps, loop.carried, join))
    return loop.results


def _step(f: Function, left: Side, right: Side, tap: tuple[int, int], sums: list[Value], join: Join) -> list[Value]:
    kind, width = sums[0].type, len(right.places)
    columns = [right.part(f, j, tap[1], kind) for j in range(width)]
    found = []
    for i in range(len(left.places)):
        factor = left.part(f, i, tap[0], kind)
        for j, column in enumerate(columns):
            found.append(join(f, factor, column, sums[i * width + j]))
    return found


def zeros(count: int, kind: Type) -> list[Value]:
    return [constant(0, kind)] * count


def widened(f: Function, value: Value, scalar: str) -> Value:
    """A value as it is computed with: half floats are stored only, unless they are in pairs."""
    return value if value.type.scalar in (scalar, PAIR) else f.convert("fpext", value, scalar)


def in_pairs(f: Function, first: Value, second: Value, alone: Value | None = None) -> Value:
    """Pairs of two vectors of bfloats; with 0, where the first one is to be `alone`."""
    if alone is not None:
        second = f.select(alone, constant(0, second.type), second)
    low, high = (f.convert("zext", f.bits(x, x.type.of("i16")), PAIR) for x in (first, second))
    return f.or_(low, f.shl(high, constant(16, high.type)))


def scaled(f: Function, index: Value, step: int) -> Value:
    return index if step == 1 else f.mul(index, constant(step, I64))


def first_lanes(count: int, lanes: int) -> Value | None:
    """A mask of so many lanes; none if that is all of them."""
    if count >= lanes:
        return None
    bits = ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(lanes))
    return Value(f"<{bits}>", Type("i1", lanes))


def lane_sums(f: Function, vectors: list[Value]) -> Value:
    """The sums of the lanes of vectors, one in each lane: pairs of vectors are added until one vector has the sums of all."""
    lanes, count = vectors[0].type.lanes, len(vectors)
    level = vectors + zeros((1 << (count - 1).bit_length()) - count, vectors[0].type)
    for _ in range(lanes.bit_length() - 1):
        pairs = zip(level[::2], level[1::2], strict=True) if len(level) > 1 else [(level[0], level[0])]
        evens, odds = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
        level = [f.add(f.shuffle(a, b, evens), f.shuffle(a, b, odds)) for a, b in pairs]
    return level[0]
