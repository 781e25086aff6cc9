"""Layout of a convolution's input: a window's elements at constant offsets, and neighbouring windows side by side.

A sample is copied into the thread's scratch memory with its padding. Windows that are `stride` apart along the last dim
would not be neighbours: there elements are grouped by their remainder, so that they are. An input that has this layout
already is read in place.

Halves are converted while they are copied, or two channels of bfloats are laid out as one channel of pairs (see
`codegen/llvm/ir/register_tile.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..ir.builder import I64, Function, Type, Value, constant
from ..ir.register_tile import first_lanes, interleave_pairs, scale_index, widen
from ..ir.work_ranges import unravel

Ints = tuple[int, ...]


@dataclass(frozen=True)
class ConvArray:
    """An array parameter of the kernel; strides are in elements."""

    pointer: int
    shape: Ints
    strides: Ints
    scalar: str = "float"


@dataclass(frozen=True)
class PairedChannel:
    """The second channel of a pair."""

    distance: Value  # from the first channel, in elements; 0 if there is none
    alone: Value | None  # true if there is none; None if that cannot happen


@dataclass(frozen=True)
class PaddedInput:
    """An input [sample, channel, ...], padded, and the windows on it."""

    source: ConvArray
    before: Ints  # padding before it per spatial dim; negative: cropped
    spread: Ints  # dilation of the input: zeros between elements
    size: Ints  # of the padded input
    stride: Ints  # between windows
    lanes: int
    scalar: str  # of the copy
    group: int = 0  # channels per group, paired two by two (an odd last one with 0); 0: no pairs

    @property
    def direct(self) -> bool:
        """True if the input is read in place."""
        same = self.size == self.source.shape[2:] and not any(self.before) and max(self.spread) == 1
        return same and self.stride[-1] == 1 and self.source.strides[-1] == 1 and self.scalar == self.source.scalar

    @property
    def channels(self) -> int:
        """Channels of the copy."""
        return self.source.shape[1] // self.group * -(-self.group // 2) if self.group else self.source.shape[1]

    @property
    def columns(self) -> int:
        """Elements of a row that have the same remainder."""
        return math.ceil(self.size[-1] / self.stride[-1])

    @property
    def pitches(self) -> Ints:
        """Strides of the copy along the channels and all spatial dims but the last."""
        if self.direct:
            return self.source.strides[1:-1]
        found = [self.columns * self.stride[-1]]
        for n in self.size[-2::-1]:
            found.insert(0, found[0] * n)
        return tuple(found)

    @property
    def elements(self) -> int:
        """Elements of a sample's copy, with some slack after it, as vectors may begin at its last elements."""
        return 0 if self.direct else -(-self.channels * self.pitches[0] // self.lanes) * self.lanes + 2 * self.lanes

    def offset(self, place: Ints) -> int:
        """Offset of a position in a window."""
        rows = sum(p * pitch for p, pitch in zip(place[:-1], self.pitches[1:], strict=True))
        if self.direct:
            return rows + place[-1]
        return rows + place[-1] % self.stride[-1] * self.columns + place[-1] // self.stride[-1]

    def step(self, dim: int) -> int:
        """Distance between neighbouring windows along a spatial dim."""
        return 1 if dim == len(self.size) - 1 else self.stride[dim] * self.pitches[1 + dim]

    # ---- the copy

    def clear(self, f: Function, base: Value) -> None:
        """Zero the copy. What no sample overwrites stays zero for the next."""
        kind = Type(self.scalar, self.lanes)
        with f.loop(0, self.elements, self.lanes) as loop:
            f.store(constant(0, kind), f.pointer(base, loop.index, self.scalar))

    def fill(self, f: Function, base: Value, sample: Value) -> None:
        """Copy a sample."""
        here = f.pointer(f.params[self.source.pointer], scale_index(f, sample, self.source.strides[0]), self.source.scalar)
        with f.loop(0, self.channels) as channel:
            there = f.pointer(base, scale_index(f, channel.index, self.pitches[0]), self.scalar)
            first, partner = self._channels(f, channel.index)
            start = f.pointer(here, scale_index(f, first, self.source.strides[1]), self.source.scalar)
            self._fill_dim(f, 0, start, there, partner)

    def _channels(self, f: Function, channel: Value) -> tuple[Value, PairedChannel | None]:
        """The input channel that is laid out as one channel, and its partner in a pair."""
        if not self.group:
            return channel, None
        distance, pairs = constant(self.source.strides[1], I64), -(-self.group // 2)
        if self.group % 2 == 0:
            return f.add(channel, channel), PairedChannel(distance, None)
        group, pair = unravel(f, channel, (self.source.shape[1] // self.group, pairs))
        alone = f.compare("eq", pair, constant(pairs - 1, I64))
        first = f.add(scale_index(f, group, self.group), f.add(pair, pair))
        return first, PairedChannel(f.select(alone, constant(0, I64), distance), alone)

    def _fill_dim(self, f: Function, dim: int, here: Value, there: Value, partner: PairedChannel | None) -> None:
        if dim == len(self.size) - 1:
            self._fill_row(f, here, there, partner)
            return
        pitch = self.pitches[1 + dim]
        first, last = self.inside(dim)
        with f.loop(first, last) as loop:
            start = f.pointer(here, scale_index(f, loop.index, self.source.strides[2 + dim]), self.source.scalar)
            place = f.add(scale_index(f, loop.index, self.spread[dim]), constant(self.before[dim], I64))
            self._fill_dim(f, dim + 1, start, f.pointer(there, scale_index(f, place, pitch), self.scalar), partner)

    def inside(self, dim: int) -> tuple[int, int]:
        """Range of the input, along a spatial dim, that is inside the padded input."""
        before, spread, size = self.before[dim], self.spread[dim], self.size[dim]
        last = min(self.source.shape[2 + dim], (size - 1 - before) // spread + 1)
        return max(0, math.ceil(-before / spread)), last

    def _fill_row(self, f: Function, here: Value, there: Value, partner: PairedChannel | None) -> None:
        """Copy a row: per remainder, elements `apart` from each other go to positions `space` from each other."""
        first, last = self.inside(len(self.size) - 1)
        stride, spread, before = self.stride[-1], self.spread[-1], self.before[-1]
        apart = stride // math.gcd(stride, spread)
        space = spread * apart // stride
        for start in range(first, min(first + apart, last)):
            place = start * spread + before
            to = f.pointer(there, place % stride * self.columns + place // stride, self.scalar)
            count = math.ceil((last - start) / apart)
            source = f.pointer(here, start * self.source.strides[-1], self.source.scalar)
            self._copy(f, source, to, count, apart, space, partner)

    def _copy(
        self, f: Function, here: Value, there: Value, count: int, apart: int, space: int, partner: PairedChannel | None
    ) -> None:
        apart *= self.source.strides[-1]
        scalar, lanes = self.source.scalar, self.lanes
        kind, index = Type(scalar, lanes), Type("i64", lanes)
        steps = f.steps(lanes) if lanes > 1 else constant(0, I64)

        def read(source: Value, mask: Value | None) -> Value:
            if apart == 1:
                return f.load(source, kind, mask)
            return f.gather(source, f.mul(steps, constant(apart, index)), scalar, mask)

        def some(start: Value, mask: Value | None) -> None:
            source = f.pointer(here, scale_index(f, start, apart), scalar)
            target = f.pointer(there, scale_index(f, start, space), self.scalar)
            if partner is None:
                value = widen(f, read(source, mask), self.scalar)
            else:
                other = f.pointer(source, partner.distance, scalar)
                value = interleave_pairs(f, read(source, mask), read(other, mask), partner.alone)
            if space == 1:
                f.store(value, target, mask)
            else:
                f.scatter(value, target, f.mul(steps, constant(space, index)), mask)

        full = count // lanes * lanes
        if full == lanes:
            some(constant(0, I64), None)
        elif full:
            with f.loop(0, full, lanes) as loop:
                some(loop.index, None)
        if count > full:
            some(constant(full, I64), first_lanes(count - full, lanes))
