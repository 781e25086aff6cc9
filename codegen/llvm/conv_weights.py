"""The gradient of a convolution's weights: dot products of the output's gradient with the input at each place of the kernel.

The lanes go along the last spatial dim on both sides, so a tile is a few output channels times a few places. A piece does some
samples; what the pieces found is added up in a second phase, always in the same order, and goes to the epilogue.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from .builder import BYTES, I64, Function, Module, Type, Value, constant
from .gemm import Epilogue, aligned, parameters, unravel, whole
from .kernel import Kernel, Phase
from .micro import Axis, Side, first_lanes, multiply, scaled, zeros
from .windows import Array, Ints, Windows

PIECES = 16  # that the samples are shared out to
SAMPLES = 512 << 10  # bytes of samples that are gone through for each tile


@dataclass(frozen=True)
class Gradient:
    """A gradient that is being written."""

    windows: Windows
    gradient: Array  # of the output: [sample, channel, ...]
    groups: int
    kernel: Ints
    dilation: Ints
    room: int  # registers
    pointers: int
    epilogue: Epilogue
    fused: bool

    @property
    def scalar(self) -> str:
        return self.gradient.scalar

    @property
    def lanes(self) -> int:
        return self.windows.lanes

    @property
    def out(self) -> Ints:
        return self.gradient.shape[2:]

    @property
    def m(self) -> int:
        """Output channels of a group."""
        return self.gradient.shape[1] // self.groups

    @property
    def c(self) -> int:
        return self.windows.source.shape[1] // self.groups

    @property
    def weights(self) -> int:
        """Of an output channel."""
        return self.c * math.prod(self.kernel)

    @property
    def places(self) -> list[int]:
        """Of the kernel, as offsets."""
        found = []
        for places in itertools.product(*map(range, self.kernel)):
            found.append(self.windows.offset(tuple(p * d for p, d in zip(places, self.dilation, strict=True))))
        return found

    @property
    def samples(self) -> int:
        """Of a piece."""
        total = self.gradient.shape[0]
        each = (self.windows.elements + math.prod(self.gradient.shape[1:])) * BYTES[self.scalar]
        return max(1, min(math.ceil(total / PIECES), SAMPLES // each))

    @property
    def pieces(self) -> int:
        return math.ceil(self.gradient.shape[0] / self.samples)

    @property
    def tile(self) -> tuple[int, int]:
        """Output channels and places of the kernel: as many as there are registers for, evenly."""
        places = len(self.places)
        best = (math.inf, 1, 1)
        for wide in range(1, min(places, 9) + 1):
            for high in range(1, min(self.m, 9) + 1):
                if high * wide > self.room - 6 or high + wide > self.room - 2:
                    continue
                cost = math.ceil(self.m / high) * math.ceil(places / wide) * max(high * wide / 2, high + wide, 4)
                kinds = (1 + bool(self.m % high)) * (1 + bool(places % wide))
                best = min(best, (cost * (1 + 0.02 * kinds), high, wide))
        return best[1], best[2]

    def emit(self, module: Module, name: str) -> Kernel:
        size = BYTES[self.scalar]
        shared = self.pieces * self.groups * self.m * self.weights * size
        phases = (self.compute(module, name), self.add_up(module, f"{name}_sum"))
        return Kernel(phases, aligned(shared), aligned(self.samples * self.windows.elements * size))

    # ---- the sums of some samples

    def compute(self, module: Module, name: str) -> Phase:
        f = module.function(name, parameters(self.pointers))
        begin, end = f.params[-2:]
        total, elements = self.gradient.shape[0], self.windows.elements
        scratch = f.params[self.pointers + 1]
        if not self.windows.direct:
            with f.loop(0, self.samples) as loop:
                self.windows.clear(f, f.pointer(scratch, scaled(f, loop.index, elements), self.scalar))
        with f.loop(begin, end) as piece:
            first = scaled(f, piece.index, self.samples)
            count = f.intrinsic("smin", f.sub(constant(total, I64), first), constant(self.samples, I64))
            if not self.windows.direct:
                with f.loop(0, count) as loop:
                    there = f.pointer(scratch, scaled(f, loop.index, elements), self.scalar)
                    self.windows.fill(f, there, f.add(first, loop.index))
            with f.loop(0, self.groups) as group:
                high, wide = self.tile
                partial = scaled(f, f.add(scaled(f, piece.index, self.groups), group.index), self.m * self.weights)
                to = f.pointer(f.params[self.pointers], partial, self.scalar)
                whole(self.m).each(f, high, lambda m, height: self.channels(f, first, count, group.index, m, height, wide, to))
        f.back()
        return Phase(name, self.pieces)

    def channels(
        self, f: Function, first: Value, count: Value, group: Value, m: Value, height: int, wide: int, to: Value
    ) -> None:
        """All weights of a few output channels."""
        places = self.places
        with f.loop(0, self.c) as channel:
            left = self.outputs(f, first, group, m, height)
            for start in range(0, len(places), wide):
                some = places[start : start + wide]
                right = self.inputs(f, first, group, channel.index, some)
                sums = self.products(f, left, right, count)
                row = f.add(scaled(f, m, self.weights), scaled(f, channel.index, len(places)))
                there = f.pointer(to, f.add(row, constant(start, I64)), self.scalar)
                for i, value in enumerate(lane_sums(f, sums)):
                    f.store(value, f.pointer(there, i // len(some) * self.weights + i % len(some), self.scalar))

    def outputs(self, f: Function, first: Value, group: Value, m: Value, height: int) -> Side:
        strides = self.gradient.strides
        channel = scaled(f, f.add(scaled(f, group, self.m), m), strides[1])
        there = f.pointer(f.params[self.gradient.pointer], f.add(scaled(f, first, strides[0]), channel), self.scalar)
        return Side(there, self.scalar, tuple(i * strides[1] for i in range(height)))

    def inputs(self, f: Function, first: Value, group: Value, channel: Value, places: list[int]) -> Side:
        place = scaled(f, f.add(scaled(f, group, self.c), channel), self.windows.pitches[0])
        base = f.params[self.pointers + 1]
        if self.windows.direct:
            source = self.windows.source
            base = f.params[source.pointer]
            place = f.add(place, scaled(f, first, source.strides[0]))
        return Side(f.pointer(base, place, self.scalar), self.scalar, tuple(places))

    def products(self, f: Function, left: Side, right: Side, count: Value) -> list[Value]:
        """The sums over the samples of a piece and all outputs, lane by lane."""
        lanes, last = self.lanes, self.out[-1]
        strides = self.gradient.strides
        sample = self.windows.source.strides[0] if self.windows.direct else self.windows.elements
        axes = [Axis(count, strides[0], sample)]
        for dim in range(len(self.out) - 1):
            axes.append(Axis(self.out[dim], strides[2 + dim], self.windows.step(dim)))
        full = last // lanes
        taps = [(j * lanes, j * lanes) for j in range(full)] if full <= 4 else [(0, 0)]
        inner = [*axes, Axis(full, lanes, lanes)] if full > 4 else axes
        sums = zeros(len(left.places) * len(right.places), Type(self.scalar, lanes))
        if full:
            sums = multiply(f, left, right, inner, taps, sums, self.fused)
        if last % lanes:
            mask = first_lanes(last % lanes, lanes)
            left = Side(left.pointer, self.scalar, left.places, masks=(mask,) * len(left.places))
            right = Side(right.pointer, self.scalar, right.places, masks=(mask,) * len(right.places))
            sums = multiply(f, left, right, axes, [(full * lanes, full * lanes)], sums, self.fused)
        return sums

    # ---- the sums of all samples

    def add_up(self, module: Module, name: str) -> Phase:
        """A piece for each output channel."""
        f = module.function(name, parameters(self.pointers))
        begin, end = f.params[-2:]
        channels = self.groups * self.m
        with f.loop(begin, end) as loop:
            (channel,) = unravel(f, loop.index, (channels,))
            row = f.pointer(f.params[self.pointers], scaled(f, channel, self.weights), self.scalar)

            def some(index: Value, count: int) -> None:
                kind, mask = Type(self.scalar, self.lanes), first_lanes(count, self.lanes)
                with f.loop(0, self.pieces, carried=[constant(0, kind)]) as piece:
                    place = f.add(scaled(f, piece.index, channels * self.weights), index)
                    piece.next(f.add(piece.carried[0], f.load(f.pointer(row, place, self.scalar), kind, mask)))
                self.epilogue(f, [], channel, index, piece.results[0], mask)

            whole(self.weights).each(f, self.lanes, some)
        f.back()
        return Phase(name, channels)


def lane_sums(f: Function, vectors: list[Value]) -> list[Value]:
    """The sum of the lanes of each vector, as scalars: pairs of vectors are added until one vector has the sums of all."""
    lanes = vectors[0].type.lanes
    if lanes == 1:
        return vectors
    found: list[Value] = []
    for start in range(0, len(vectors), lanes):
        level = vectors[start : start + lanes]
        count = len(level)
        level += zeros((1 << (count - 1).bit_length()) - count, vectors[0].type)
        for _ in range(lanes.bit_length() - 1):
            pairs = zip(level[::2], level[1::2], strict=True) if len(level) > 1 else [(level[0], level[0])]
            level = [f.add(f.shuffle(a, b, range(0, 2 * lanes, 2)), f.shuffle(a, b, range(1, 2 * lanes, 2))) for a, b in pairs]
        found += [f.lane(level[0], i) for i in range(count)]
    return found
