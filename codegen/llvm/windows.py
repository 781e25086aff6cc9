"""The input of a convolution, laid out so that a window's elements are at constant offsets and its neighbours side by side.

A sample is copied into the thread's scratch memory with its padding. Windows that lie `stride` apart along the last dim would
not be neighbours: elements are sorted by their remainder there, so that they are. An input that has all this is used as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .builder import I64, Function, Type, Value, constant
from .micro import first_lanes, scaled

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Array:
    """A parameter of the kernel that is an array; strides are in elements."""

    pointer: int
    shape: Ints
    strides: Ints
    scalar: str = "float"


@dataclass(frozen=True)
class Windows:
    """An input [sample, channel, ...], padded, and the windows on it."""

    source: Array
    before: Ints  # zeros before it, in each spatial dim; a negative number cuts off
    spread: Ints  # from one element to the next in the padded form, with zeros between
    size: Ints  # of the padded form
    stride: Ints  # from one window to the next
    lanes: int

    @property
    def direct(self) -> bool:
        """The input is used as it is."""
        same = self.size == self.source.shape[2:] and not any(self.before) and max(self.spread) == 1
        return same and self.stride[-1] == 1 and self.source.strides[-1] == 1

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
        return 0 if self.direct else -(-self.source.shape[1] * self.pitches[0] // self.lanes) * self.lanes + 2 * self.lanes

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
        kind = Type(self.source.scalar, self.lanes)
        with f.loop(0, self.elements, self.lanes) as loop:
            f.store(constant(0, kind), f.pointer(base, loop.index, self.source.scalar))

    def fill(self, f: Function, base: Value, sample: Value) -> None:
        """Copies a sample."""
        here = f.pointer(f.params[self.source.pointer], scaled(f, sample, self.source.strides[0]), self.source.scalar)
        with f.loop(0, self.source.shape[1]) as channel:
            start = f.pointer(here, scaled(f, channel.index, self.source.strides[1]), self.source.scalar)
            there = f.pointer(base, scaled(f, channel.index, self.pitches[0]), self.source.scalar)
            self._fill_dim(f, 0, start, there)

    def _fill_dim(self, f: Function, dim: int, here: Value, there: Value) -> None:
        if dim == len(self.size) - 1:
            self._fill_row(f, here, there)
            return
        pitch = self.pitches[1 + dim]
        first, last = self.inside(dim)
        with f.loop(first, last) as loop:
            start = f.pointer(here, scaled(f, loop.index, self.source.strides[2 + dim]), self.source.scalar)
            place = f.add(scaled(f, loop.index, self.spread[dim]), constant(self.before[dim], I64))
            self._fill_dim(f, dim + 1, start, f.pointer(there, scaled(f, place, pitch), self.source.scalar))

    def inside(self, dim: int) -> tuple[int, int]:
        """The elements of the input, along a spatial dim, that are in the padded form."""
        before, spread, size = self.before[dim], self.spread[dim], self.size[dim]
        last = min(self.source.shape[2 + dim], (size - 1 - before) // spread + 1)
        return max(0, math.ceil(-before / spread)), last

    def _fill_row(self, f: Function, here: Value, there: Value) -> None:
        """For each remainder: elements that lie `apart` in the row go to places that lie `space` apart."""
        first, last = self.inside(len(self.size) - 1)
        stride, spread, before = self.stride[-1], self.spread[-1], self.before[-1]
        apart = stride // math.gcd(stride, spread)
        space = spread * apart // stride
        for start in range(first, min(first + apart, last)):
            place = start * spread + before
            to = f.pointer(there, place % stride * self.columns + place // stride, self.source.scalar)
            count = math.ceil((last - start) / apart)
            self._copy(f, f.pointer(here, start * self.source.strides[-1], self.source.scalar), to, count, apart, space)

    def _copy(self, f: Function, here: Value, there: Value, count: int, apart: int, space: int) -> None:
        apart *= self.source.strides[-1]
        scalar, lanes = self.source.scalar, self.lanes
        kind, index = Type(scalar, lanes), Type("i64", lanes)

        def some(start: Value, mask: Value | None) -> None:
            source = f.pointer(here, scaled(f, start, apart), scalar)
            target = f.pointer(there, scaled(f, start, space), scalar)
            steps = f.steps(lanes) if lanes > 1 else constant(0, I64)
            if apart == 1:
                value = f.load(source, kind, mask)
            else:
                value = f.gather(source, f.mul(steps, constant(apart, index)), scalar, mask)
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
