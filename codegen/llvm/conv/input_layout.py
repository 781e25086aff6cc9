"""The input of a convolution, laid out so that a window's elements are at constant offsets and its neighbours side by side.

A sample is copied into the thread's scratch memory with its padding. Windows that lie `stride` apart along the last dim would
not be neighbours: elements are sorted by their remainder there, so that they are. An input that has all this is used as it is.

Halves are converted while they are copied, or two channels of bfloats are laid out as one of pairs (see `micro.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..ir.builder import I64, Function, Type, Value, constant
from ..ir.register_tile import first_lanes, in_pairs, scaled, widened
from ..ir.work_ranges import unravel

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Array:
    """A parameter of the kernel that is an array; strides are in elements."""

    pointer: int
    shape: Ints
    strides: Ints
    scalar: str = "float"


@dataclass(frozen=True)
class Partner:
    """The channel that another one is a pair with."""

    distance: Value  # in elements; 0 if there is none
    alone: Value | None  # whether there is none, where that may be


@dataclass(frozen=True)
class Windows:
    """An input [sample, channel, ...], padded, and the windows on it."""

    source: Array
    before: Ints  # zeros before it, in each spatial dim; a negative number cuts off
    spread: Ints  # from one element to the next in the padded form, with zeros between
    size: Ints  # of the padded form
    stride: Ints  # from one window to the next
    lanes: int
    scalar: str  # of the laid out form
    group: int = 0  # channels of which two at a time are pairs; an odd one at the end is a pair with 0

    @property
    def direct(self) -> bool:
        """The input is used as it is."""
        same = self.size == self.source.shape[2:] and not any(self.before) and max(self.spread) == 1
        return same and self.stride[-1] == 1 and self.source.strides[-1] == 1 and self.scalar == self.source.scalar

    @property
    def channels(self) -> int:
        """Of the laid out form."""
        return self.source.shape[1] // self.group * -(-self.group // 2) if self.group else self.source.shape[1]

    @property
    def columns(self) -> int:
        """Elements of a row that have the same remainder."""
        return math.ceil(self.size[-1] / self.stride[-1])

    @property
    def pitches(self) -> Ints:
        """From one element to the next, along the channels and the spatial dims but the last one."""
        if self.direct:
            return self.source.strides[1:-1]
        found = [self.columns * self.stride[-1]]
        for n in self.size[-2::-1]:
            found.insert(0, found[0] * n)
        return tuple(found)

    @property
    def elements(self) -> int:
        """That the copy of a sample takes, with some after it, as vectors may begin at its last elements."""
        return 0 if self.direct else -(-self.channels * self.pitches[0] // self.lanes) * self.lanes + 2 * self.lanes

    def offset(self, place: Ints) -> int:
        """Of a place in a window."""
        rows = sum(p * pitch for p, pitch in zip(place[:-1], self.pitches[1:], strict=True))
        if self.direct:
            return rows + place[-1]
        return rows + place[-1] % self.stride[-1] * self.columns + place[-1] // self.stride[-1]

    def step(self, dim: int) -> int:
        """From a window to the next one along a spatial dim."""
        return 1 if dim == len(self.size) - 1 else self.stride[dim] * self.pitches[1 + dim]

    # ---- the copy

    def clear(self, f: Function, base: Value) -> None:
        """Zeros everywhere. What is not overwritten by a sample stays zero for the next."""
        kind = Type(self.scalar, self.lanes)
        with f.loop(0, self.elements, self.lanes) as loop:
            f.store(constant(0, kind), f.pointer(base, loop.index, self.scalar))

    def fill(self, f: Function, base: Value, sample: Value) -> None:
        """Copies a sample."""
        here = f.pointer(f.params[self.source.pointer], scaled(f, sample, self.source.strides[0]), self.source.scalar)
        with f.loop(0, self.channels) as channel:
            there = f.pointer(base, scaled(f, channel.index, self.pitches[0]), self.scalar)
            first, partner = self._channels(f, channel.index)
            start = f.pointer(here, scaled(f, first, self.source.strides[1]), self.source.scalar)
            self._fill_dim(f, 0, start, there, partner)

    def _channels(self, f: Function, channel: Value) -> tuple[Value, Partner | None]:
        """The channel of the input that is laid out as one, and the one that it is a pair with."""
        if not self.group:
            return channel, None
        distance, pairs = constant(self.source.strides[1], I64), -(-self.group // 2)
        if self.group % 2 == 0:
            return f.add(channel, channel), Partner(distance, None)
        group, pair = unravel(f, channel, (self.source.shape[1] // self.group, pairs))
        alone = f.compare("eq", pair, constant(pairs - 1, I64))
        first = f.add(scaled(f, group, self.group), f.add(pair, pair))
        return first, Partner(f.select(alone, constant(0, I64), distance), alone)

    def _fill_dim(self, f: Function, dim: int, here: Value, there: Value, partner: Partner | None) -> None:
        if dim == len(self.size) - 1:
            self._fill_row(f, here, there, partner)
            return
        pitch = self.pitches[1 + dim]
        first, last = self.inside(dim)
        with f.loop(first, last) as loop:
            start = f.pointer(here, scaled(f, loop.index, self.source.strides[2 + dim]), self.source.scalar)
            place = f.add(scaled(f, loop.index, self.spread[dim]), constant(self.before[dim], I64))
            self._fill_dim(f, dim + 1, start, f.pointer(there, scaled(f, place, pitch), self.scalar), partner)

    def inside(self, dim: int) -> tuple[int, int]:
        """The elements of the input, along a spatial dim, that are in the padded form."""
        before, spread, size = self.before[dim], self.spread[dim], self.size[dim]
        last = min(self.source.shape[2 + dim], (size - 1 - before) // spread + 1)
        return max(0, math.ceil(-before / spread)), last

    def _fill_row(self, f: Function, here: Value, there: Value, partner: Partner | None) -> None:
        """For each remainder: elements that lie `apart` in the row go to places that lie `space` apart."""
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
        self, f: Function, here: Value, there: Value, count: int, apart: int, space: int, partner: Partner | None
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
            source = f.pointer(here, scaled(f, start, apart), scalar)
            target = f.pointer(there, scaled(f, start, space), self.scalar)
            if partner is None:
                value = widened(f, read(source, mask), self.scalar)
            else:
                other = f.pointer(source, partner.distance, scalar)
                value = in_pairs(f, read(source, mask), read(other, mask), partner.alone)
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
