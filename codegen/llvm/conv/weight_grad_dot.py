"""The gradient of a convolution's weights: dot products of the output's gradient with the input at each place of the kernel.

The lanes go along the last spatial dim on both sides, so a tile is a few output channels times a few places. A piece does some
samples, a few at a time: what a tile reads of those stays in the first cache. The tiles' sums wait in scratch memory meanwhile,
and their lanes are added at the end. What the pieces found is added up in a second phase, always in the same order, and goes to
the epilogue.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ..ir.builder import BYTES, I64, Function, Module, Type, Value, constant
from ..ir.kernel import Kernel, Phase
from ..ir.register_tile import Axis, Side, first_lanes, lane_sums, multiply, scaled
from ..ir.work_ranges import aligned, parameters, unravel, whole
from .weight_grad import WeightGradient

PIECES = 8  # that the samples are shared out to
NEAR = 24 << 10  # bytes of the output's gradient that a tile goes through before the next tile's turn


@dataclass(frozen=True)
class Gradient(WeightGradient):
    """A gradient that is being written."""

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
        return math.ceil(self.gradient.shape[0] / PIECES)

    @property
    def together(self) -> int:
        """Samples that are gone through at a time."""
        each = self.tile[0] * math.prod(self.out) * BYTES[self.scalar]
        most = max(1, NEAR // each)
        return math.ceil(self.samples / math.ceil(self.samples / most))

    @property
    def pieces(self) -> int:
        return math.ceil(self.gradient.shape[0] / self.samples)

    @property
    def copies(self) -> int:
        """Bytes of the samples' copies, in scratch memory; the sums are behind them."""
        return aligned(self.together * self.windows.elements * BYTES[self.windows.scalar])

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
        weights, size = self.groups * self.m * self.weights, BYTES[self.scalar]
        phases = (self.compute(module, name), self.add_up(module, f"{name}_sum"))
        return Kernel(phases, aligned(self.pieces * weights * size), self.copies + weights * self.lanes * size)

    # ---- the sums of some samples

    def compute(self, module: Module, name: str) -> Phase:
        f = module.function(name, parameters(self.pointers))
        begin, end = f.params[-2:]
        scratch = f.params[self.pointers + 1]
        sums = f.pointer(scratch, self.copies, "i8")
        if not self.windows.direct:
            with f.loop(0, self.together) as loop:
                self.windows.clear(f, f.pointer(scratch, scaled(f, loop.index, self.windows.elements), self.scalar))
        with f.loop(begin, end) as piece:
            first = scaled(f, piece.index, self.samples)
            last = f.intrinsic("smin", f.add(first, constant(self.samples, I64)), constant(self.gradient.shape[0], I64))
            weights = self.groups * self.m * self.weights
            with f.loop(0, weights) as loop:
                f.store(constant(0, self.kind), f.pointer(sums, scaled(f, loop.index, self.lanes), self.scalar))
            with f.loop(first, last, self.together) as some:
                count = f.intrinsic("smin", f.sub(last, some.index), constant(self.together, I64))
                self.few(f, some.index, count, scratch, sums)
            there = f.pointer(f.params[self.pointers], scaled(f, piece.index, weights), self.scalar)
            whole(weights).each(f, self.lanes, lambda index, size: self.collect(f, sums, there, index, size))
        f.back()
        return Phase(name, self.pieces)

    @property
    def kind(self) -> Type:
        return Type(self.scalar, self.lanes)

    def few(self, f: Function, first: Value, count: Value, scratch: Value, sums: Value) -> None:
        """A few samples."""
        if not self.windows.direct:
            with f.loop(0, count) as loop:
                there = f.pointer(scratch, scaled(f, loop.index, self.windows.elements), self.scalar)
                self.windows.fill(f, there, f.add(first, loop.index))
        high, wide = self.tile
        with f.loop(0, self.groups) as group:
            to = f.pointer(sums, scaled(f, group.index, self.m * self.weights * self.lanes), self.scalar)
            whole(self.m).each(f, high, lambda m, height: self.channels(f, first, count, group.index, m, height, wide, to))

    def channels(
        self, f: Function, first: Value, count: Value, group: Value, m: Value, height: int, wide: int, to: Value
    ) -> None:
        """All weights of a few output channels."""
        places = self.places
        left = self.outputs(f, first, group, m, height)
        with f.loop(0, self.c) as channel:
            row = f.add(scaled(f, m, self.weights), scaled(f, channel.index, len(places)))
            for start in range(0, len(places), wide):
                some = places[start : start + wide]
                right = self.inputs(f, first, group, channel.index, some)
                there = f.pointer(to, scaled(f, f.add(row, constant(start, I64)), self.lanes), self.scalar)
                slots = [
                    f.pointer(there, (i * self.weights + j) * self.lanes, self.scalar)
                    for i in range(height)
                    for j in range(len(some))
                ]
                before = [f.load(slot, self.kind) for slot in slots]
                for slot, value in zip(slots, self.products(f, left, right, count, before), strict=True):
                    f.store(value, slot)

    def collect(self, f: Function, sums: Value, to: Value, first: Value, count: int) -> None:
        """The lanes of a few weights' sums, added."""
        start = f.pointer(sums, scaled(f, first, self.lanes), self.scalar)
        vectors = [f.load(f.pointer(start, i * self.lanes, self.scalar), self.kind) for i in range(count)]
        f.store(lane_sums(f, vectors), f.pointer(to, first, self.scalar), first_lanes(count, self.lanes))

    def outputs(self, f: Function, first: Value, group: Value, m: Value, height: int) -> Side:
        strides = self.gradient.strides
        channel = scaled(f, f.add(scaled(f, group, self.m), m), strides[1])
        place, scalar = f.add(scaled(f, first, strides[0]), channel), self.gradient.scalar
        there = f.pointer(f.params[self.gradient.pointer], place, scalar)
        return Side(there, scalar, tuple(i * strides[1] for i in range(height)))

    def inputs(self, f: Function, first: Value, group: Value, channel: Value, places: list[int]) -> Side:
        place = scaled(f, f.add(scaled(f, group, self.c), channel), self.windows.pitches[0])
        base = f.params[self.pointers + 1]
        if self.windows.direct:
            source = self.windows.source
            base = f.params[source.pointer]
            place = f.add(place, scaled(f, first, source.strides[0]))
        return Side(f.pointer(base, place, self.scalar), self.scalar, tuple(places))

    def products(self, f: Function, left: Side, right: Side, count: Value, sums: list[Value]) -> list[Value]:
        """Sums with the products of some samples and all outputs, lane by lane."""
        strides = self.gradient.strides
        sample = self.windows.source.strides[0] if self.windows.direct else self.windows.elements
        axes = [Axis(count, strides[0], sample)]
        for dim in range(len(self.out) - 1):
            axes.append(Axis(self.out[dim], strides[2 + dim], self.windows.step(dim)))
        return self.lines(f, left, right, axes, sums)

    def lines(self, f: Function, left: Side, right: Side, axes: list[Axis], sums: list[Value]) -> list[Value]:
        if not axes:
            return self.line(f, left, right, sums)
        with f.loop(0, axes[0].rounds, carried=sums) as loop:
            here, there = left.at(f, loop.index, axes[0].left), right.at(f, loop.index, axes[0].right)
            loop.next(*self.lines(f, here, there, axes[1:], loop.carried))
        return loop.results

    def line(self, f: Function, left: Side, right: Side, sums: list[Value]) -> list[Value]:
        """Full vectors, and what is left over."""
        full, rest = divmod(self.out[-1], self.lanes)
        if full > 2:
            sums = multiply(f, left, right, [Axis(full, self.lanes, self.lanes)], [(0, 0)], sums, self.join)
        else:
            sums = multiply(f, left, right, [], [(j * self.lanes, j * self.lanes) for j in range(full)], sums, self.join)
        if rest:
            mask = first_lanes(rest, self.lanes)
            left, right = (replace(side, masks=(mask,) * len(side.places)) for side in (left, right))
            sums = multiply(f, left, right, [], [(full * self.lanes, full * self.lanes)], sums, self.join)
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
