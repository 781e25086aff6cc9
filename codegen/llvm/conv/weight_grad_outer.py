"""The gradient of a convolution's weights, for many output channels: the lanes go along those.

The output's gradient is turned, so that the channels of an output are side by side. A tile is then a few places of the kernel,
whose inputs are spread over lanes, times a few vectors of channels. A piece does some samples, and adds to sums of its own in
shared memory. A second phase adds up what the pieces found, always in the same order, and turns it for the epilogue.
`conv_weights.py` is for few channels.

With pairs of bfloats, a step of the depth is two neighbouring outputs: inputs are laid out as they are, and two of them are
read at a time; the turned gradient has pairs.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ..ir.builder import BYTES, I64, Function, Module, Type, Value, constant
from ..gemm.problem import Operand
from ..ir.kernel import Kernel, Phase
from ..ir.register_tile import PAIR, Axis, Side, first_lanes, multiply, scaled
from ..gemm.packing import pack_turned, source
from ..ir.work_ranges import Span, aligned, block, parameters, share, unravel, whole
from .weight_grad import WeightGradient

PIECES = 8  # that samples and output channels are shared out to
SUMS = 4 << 20  # bytes of sums that there may be; if one piece for all channels needs more, pieces have some channels each
PLACES = 9  # of the kernel, in a tile
NEAR = 24 << 10  # bytes of the turned gradient that a tile goes through before the next tile's turn
CHUNK = 64  # weights of a piece of the second phase


@dataclass(frozen=True)
class Outer(WeightGradient):
    """A gradient that is being written."""

    @property
    def kind(self) -> Type:
        return Type(self.scalar, self.lanes)

    @property
    def pairs(self) -> bool:
        return self.windows.scalar == "bfloat"

    @property
    def cell(self) -> str:
        """Of the turned gradient."""
        return PAIR if self.pairs else self.scalar

    @property
    def unit(self) -> int:
        """Outputs of a step of the depth."""
        return 2 if self.pairs else 1

    @property
    def vectors(self) -> int:
        """Of a group's output channels."""
        return math.ceil(self.m / self.lanes)

    @property
    def width(self) -> int:
        """Of the turned gradient, and of the sums: whole vectors of channels, of all groups."""
        return self.groups * self.vectors * self.lanes

    @property
    def weights(self) -> int:
        """Of an output channel."""
        return self.c * math.prod(self.kernel)

    @property
    def places(self) -> list[int]:
        """Of the kernel, as offsets."""
        kernel = itertools.product(*map(range, self.kernel))
        return [self.windows.offset(tuple(p * d for p, d in zip(place, self.dilation, strict=True))) for place in kernel]

    @property
    def tile(self) -> tuple[int, int]:
        """Places and vectors."""
        wide = min(self.vectors, 2)
        places = len(self.places) * self.channels
        most = min(PLACES, (self.room - 4) // wide - 1)
        return math.ceil(places / math.ceil(places / most)), wide

    @property
    def channels(self) -> int:
        """Input channels whose places make a tile, if the kernel has few."""
        return max(1, min(self.c, (PLACES - 1) // len(self.places)))

    @property
    def samples(self) -> int:
        """Of a piece."""
        most = SUMS // (self.weights * self.width * BYTES[self.scalar])
        return math.ceil(self.gradient.shape[0] / max(1, min(PIECES, most)))

    @property
    def together(self) -> int:
        """Samples that are gone through at a time."""
        each = self.tile[1] * self.lanes * math.prod(self.out) // self.unit * BYTES[self.cell]
        return max(1, min(self.samples, NEAR // each))

    @property
    def chunks(self) -> int:
        """Of samples."""
        return math.ceil(self.gradient.shape[0] / self.samples)

    @property
    def parts(self) -> int:
        """Of the output channels."""
        return min(math.ceil(PIECES / self.chunks), math.ceil(self.vectors / self.tile[1]))

    @property
    def copies(self) -> int:
        """Bytes of the samples' copies, in scratch memory; what is turned is behind them."""
        return aligned(self.together * self.windows.elements * BYTES[self.windows.scalar])

    @property
    def turned(self) -> int:
        """Cells of a sample's turned gradient."""
        return math.prod(self.out) // self.unit * self.width

    def emit(self, module: Module, name: str) -> Kernel:
        size = BYTES[self.scalar]
        phases = (self.compute(module, name), self.add_up(module, f"{name}_sum"))
        scratch = max(self.copies + self.together * self.turned * BYTES[self.cell], CHUNK * self.lanes * size)
        return Kernel(phases, aligned(self.chunks * self.weights * self.width * size), aligned(scratch))

    # ---- the sums of some samples

    def compute(self, module: Module, name: str) -> Phase:
        f = module.function(name, parameters(self.pointers))
        begin, end = f.params[-2:]
        scratch = f.params[self.pointers + 1]
        if not self.windows.direct:
            with f.loop(0, self.together) as loop:
                self.windows.clear(f, f.pointer(scratch, scaled(f, loop.index, self.windows.elements), self.windows.scalar))
        with f.loop(begin, end) as piece:
            chunk, part = unravel(f, piece.index, (self.chunks, self.parts))
            vectors = share(f, part, self.parts, self.tile[1], self.vectors)
            first = scaled(f, chunk, self.samples)
            last = f.intrinsic("smin", f.add(first, constant(self.samples, I64)), constant(self.gradient.shape[0], I64))
            sums = f.pointer(f.params[self.pointers], scaled(f, chunk, self.weights * self.width), self.scalar)
            self.clear(f, sums, vectors)
            with f.loop(first, last, self.together) as some:
                count = f.intrinsic("smin", f.sub(last, some.index), constant(self.together, I64))
                self.few(f, some.index, count, sums, vectors)
        f.back()
        return Phase(name, self.chunks * self.parts)

    def clear(self, f: Function, sums: Value, vectors: Span) -> None:
        with f.loop(0, self.weights * self.groups) as row, f.loop(vectors.start, vectors.stop) as vector:
            place = scaled(f, f.add(scaled(f, row.index, self.vectors), vector.index), self.lanes)
            f.store(constant(0, self.kind), f.pointer(sums, place, self.scalar))

    def few(self, f: Function, first: Value, samples: Value, sums: Value, vectors: Span) -> None:
        """A few samples: they are copied and turned, and each tile goes through them."""
        scratch = f.params[self.pointers + 1]
        turned = f.pointer(scratch, self.copies, "i8")
        with f.loop(0, samples) as loop:
            sample = f.add(first, loop.index)
            if not self.windows.direct:
                there = f.pointer(scratch, scaled(f, loop.index, self.windows.elements), self.windows.scalar)
                self.windows.fill(f, there, sample)
            self.turn(f, sample, f.pointer(turned, scaled(f, loop.index, self.turned), self.cell), vectors)
        inputs = scratch
        if self.windows.direct:
            stride = self.windows.source.strides[0]
            inputs = f.pointer(f.params[self.windows.source.pointer], scaled(f, first, stride), self.windows.scalar)

        def tiles(group: Value, vector: Value, wide: int) -> None:
            column = scaled(f, f.add(scaled(f, group, self.vectors), vector), self.lanes)
            right = Side(f.pointer(turned, column, self.cell), self.cell, tuple(j * self.lanes for j in range(wide)))

            def some(channel: Value, count: int) -> None:
                place = scaled(f, f.add(scaled(f, group, self.c), channel), self.windows.pitches[0])
                here = f.pointer(inputs, place, self.windows.scalar)
                row = scaled(f, channel, len(self.places) * self.width)
                places = [i * self.windows.pitches[0] + p for i in range(count) for p in self.places]
                self.write(f, here, places, right, f.pointer(sums, f.add(row, column), self.scalar), samples)

            whole(self.c).each(f, self.channels, some)

        with f.loop(0, self.groups) as group:
            vectors.each(f, self.tile[1], lambda vector, wide: tiles(group.index, vector, wide))

    def turn(self, f: Function, sample: Value, to: Value, vectors: Span) -> None:
        strides = self.gradient.strides
        scalar, outputs = self.gradient.scalar, math.prod(self.out)
        base = f.pointer(f.params[self.gradient.pointer], scaled(f, sample, strides[0]), scalar)
        operand = Operand(self.gradient.pointer, (), 1, strides[1], scalar)
        matrix = source(f, operand, [], self.scalar, base, outputs if self.pairs else 0)
        start, stop = scaled(f, vectors.start, self.lanes), scaled(f, vectors.stop, self.lanes)
        channels = Span(start, f.intrinsic("smin", stop, constant(self.m, I64)), vectors.whole, self.m)

        def some(group: Value, channel: Value, count: int) -> None:
            place = f.add(scaled(f, group, self.vectors * self.lanes), channel)
            there = f.pointer(to, place, self.cell)
            first = f.add(scaled(f, group, self.m), channel)
            pack_turned(f, matrix, there, constant(self.width, I64), first, count, self.lanes, outputs)

        with f.loop(0, self.groups) as group:
            channels.each(f, self.lanes, lambda channel, count: some(group.index, channel, count))

    def write(self, f: Function, here: Value, inputs: list[int], right: Side, to: Value, count: Value) -> None:
        """The tiles of some input channels' places."""
        wide = len(right.places)
        for start in range(0, len(inputs), self.tile[0]):
            places = inputs[start : start + self.tile[0]]
            left = Side(here, self.windows.scalar, tuple(places), spread=True, pairs=self.pairs)
            slots = [
                f.pointer(to, (start + i) * self.width + j * self.lanes, self.scalar)
                for i in range(len(places))
                for j in range(wide)
            ]
            sums = [f.load(slot, self.kind) for slot in slots]
            axes, taps = self.depth(count)
            for slot, value in zip(slots, multiply(f, left, right, axes, taps, sums, self.join), strict=True):
                f.store(value, slot)

    def depth(self, count: Value) -> tuple[list[Axis], list[tuple[int, int]]]:
        """Samples and outputs."""
        sample = self.windows.source.strides[0] if self.windows.direct else self.windows.elements
        axes = [Axis(count, sample, self.turned)]
        for dim in range(len(self.out) - 1):
            outputs = math.prod(self.out[dim + 1 :])
            axes.append(Axis(self.out[dim], self.windows.step(dim), outputs // self.unit * self.width))
        steps = self.out[-1] // self.unit
        unroll = next(u for u in (2, 1) if steps % u == 0)
        axes.append(Axis(steps // unroll, unroll * self.unit, unroll * self.width))
        return axes, [(u * self.unit, u * self.width) for u in range(unroll)]

    # ---- the sums of all samples

    def add_up(self, module: Module, name: str) -> Phase:
        """A piece is a vector of output channels and some of their weights."""
        f = module.function(name, parameters(self.pointers))
        begin, end = f.params[-2:]
        sizes = (self.groups, self.vectors, math.ceil(self.weights / CHUNK))
        with f.loop(begin, end) as loop:
            group, vector, part = unravel(f, loop.index, sizes)
            weights = block(f, part, CHUNK, self.weights)
            column = scaled(f, f.add(scaled(f, group, self.vectors), vector), self.lanes)
            self.collect(f, f.pointer(f.params[self.pointers], column, self.scalar), weights)
            first = scaled(f, vector, self.lanes)
            last = f.intrinsic("smin", f.add(first, constant(self.lanes, I64)), constant(self.m, I64))
            with f.loop(first, last) as m:
                channel = f.add(scaled(f, group, self.m), m.index)
                self.finish(f, channel, f.sub(m.index, first), weights)
        f.back()
        return Phase(name, math.prod(sizes))

    def collect(self, f: Function, base: Value, weights: Span) -> None:
        """The sums over all pieces, to scratch memory, a vector for each weight."""
        scratch = f.params[self.pointers + 1]
        with f.loop(weights.start, weights.stop) as weight:
            start = f.pointer(base, scaled(f, weight.index, self.width), self.scalar)
            with f.loop(0, self.chunks, carried=[constant(0, self.kind)]) as piece:
                place = scaled(f, piece.index, self.weights * self.width)
                piece.next(f.add(piece.carried[0], f.load(f.pointer(start, place, self.scalar), self.kind)))
            row = scaled(f, f.sub(weight.index, weights.start), self.lanes)
            f.store(piece.results[0], f.pointer(scratch, row, self.scalar))

    def finish(self, f: Function, channel: Value, lane: Value, weights: Span) -> None:
        """An output channel's weights to the epilogue."""
        start = f.pointer(f.params[self.pointers + 1], lane, self.scalar)

        def some(index: Value, count: int) -> None:
            mask = first_lanes(count, self.lanes)
            row = scaled(f, f.sub(index, weights.start), self.lanes)
            steps = f.steps(self.lanes) if self.lanes > 1 else constant(0, I64)
            steps = f.mul(steps, constant(self.lanes, steps.type))
            value = f.gather(f.pointer(start, row, self.scalar), steps, self.scalar, mask)
            self.epilogue(f, [], channel, index, value, mask)

        weights.each(f, self.lanes, some)
