"""Weight gradient for many output channels: the lanes go along the channels.

The output gradient is transposed, so that the channels of an output are side by side. A tile is then a few taps of the
kernel, whose inputs are broadcast to all lanes, times a few vectors of channels. A piece does some samples, and adds to sums
of its own in shared memory. A second phase adds up the pieces' sums, always in the same order, and transposes them for the
epilogue. `weight_grad_dot.py` is for few channels.

With pairs of bfloats, a step of the depth is two neighbouring outputs: inputs are laid out unpaired, and two of them are
read at a time; the transposed gradient has pairs.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ..gemm.packing import matrix_source, pack_transposed
from ..gemm.problem import GemmOperand
from ..ir.builder import BYTES, I64, Function, Module, Type, Value, constant
from ..ir.kernel import NativeKernel, Phase
from ..ir.register_tile import PAIR, DepthLoop, TileOperand, first_lanes, multiply_tile, scale_index
from ..ir.work_ranges import WorkRange, align, block_range, equal_share, kernel_parameters, unravel, whole_range
from .weight_grad import WeightGradient

MAX_OUTER_PIECES = 8  # over which samples and output channels are divided
MAX_SUM_BYTES = 4 << 20  # of all pieces' sums: if pieces of all channels would need more, pieces have some channels each
MAX_TILE_TAPS = 9  # of the kernel
OUTER_L1_BYTES = 24 << 10  # of the transposed gradient that a tile reads before the next tile
WEIGHTS_PER_PIECE = 64  # in the second phase


@dataclass(frozen=True)
class OuterWeightGradient(WeightGradient):
    """Emitter of one weight gradient."""

    @property
    def kind(self) -> Type:
        return Type(self.scalar, self.lanes)

    @property
    def pairs(self) -> bool:
        return self.windows.scalar == "bfloat"

    @property
    def cell(self) -> str:
        """Cell type of the transposed gradient."""
        return PAIR if self.pairs else self.scalar

    @property
    def unit(self) -> int:
        """Outputs of a step of the depth."""
        return 2 if self.pairs else 1

    @property
    def vectors(self) -> int:
        """Vectors of a group's output channels."""
        return math.ceil(self.m / self.lanes)

    @property
    def width(self) -> int:
        """Elements of a row of the transposed gradient and of the sums: whole vectors of channels, of all groups."""
        return self.groups * self.vectors * self.lanes

    @property
    def weights(self) -> int:
        """Weights of an output channel."""
        return self.c * math.prod(self.kernel)

    @property
    def taps(self) -> list[int]:
        """Offsets of the kernel's taps."""
        kernel = itertools.product(*map(range, self.kernel))
        return [self.windows.offset(tuple(p * d for p, d in zip(place, self.dilation, strict=True))) for place in kernel]

    @property
    def tile(self) -> tuple[int, int]:
        """Taps and vectors of a tile."""
        wide = min(self.vectors, 2)
        taps = len(self.taps) * self.channels
        most = min(MAX_TILE_TAPS, (self.room - 4) // wide - 1)
        return math.ceil(taps / math.ceil(taps / most)), wide

    @property
    def channels(self) -> int:
        """Input channels whose taps make a tile, if the kernel has few."""
        return max(1, min(self.c, (MAX_TILE_TAPS - 1) // len(self.taps)))

    @property
    def samples(self) -> int:
        """Samples of a piece."""
        most = MAX_SUM_BYTES // (self.weights * self.width * BYTES[self.scalar])
        return math.ceil(self.gradient.shape[0] / max(1, min(MAX_OUTER_PIECES, most)))

    @property
    def together(self) -> int:
        """Samples that are processed at a time."""
        each = self.tile[1] * self.lanes * math.prod(self.out) // self.unit * BYTES[self.cell]
        return max(1, min(self.samples, OUTER_L1_BYTES // each))

    @property
    def chunks(self) -> int:
        """Ranges of samples."""
        return math.ceil(self.gradient.shape[0] / self.samples)

    @property
    def parts(self) -> int:
        """Ranges of output channels."""
        return min(math.ceil(MAX_OUTER_PIECES / self.chunks), math.ceil(self.vectors / self.tile[1]))

    @property
    def copies(self) -> int:
        """Bytes of the samples' copies in scratch memory; the transposed gradient follows them."""
        return align(self.together * self.windows.elements * BYTES[self.windows.scalar])

    @property
    def transposed(self) -> int:
        """Cells of a sample's transposed gradient."""
        return math.prod(self.out) // self.unit * self.width

    def emit(self, module: Module, name: str) -> NativeKernel:
        size = BYTES[self.scalar]
        phases = (self.compute(module, name), self.emit_reduction(module, f"{name}_sum"))
        scratch = max(self.copies + self.together * self.transposed * BYTES[self.cell], WEIGHTS_PER_PIECE * self.lanes * size)
        return NativeKernel(phases, align(self.chunks * self.weights * self.width * size), align(scratch))

    # ---- the sums of some samples

    def compute(self, module: Module, name: str) -> Phase:
        f = module.function(name, kernel_parameters(self.pointers))
        begin, end = f.params[-2:]
        scratch = f.params[self.pointers + 1]
        if not self.windows.direct:
            with f.loop(0, self.together) as loop:
                self.windows.clear(
                    f, f.pointer(scratch, scale_index(f, loop.index, self.windows.elements), self.windows.scalar)
                )
        with f.loop(begin, end) as piece:
            chunk, part = unravel(f, piece.index, (self.chunks, self.parts))
            vectors = equal_share(f, part, self.parts, self.tile[1], self.vectors)
            first = scale_index(f, chunk, self.samples)
            last = f.intrinsic("smin", f.add(first, constant(self.samples, I64)), constant(self.gradient.shape[0], I64))
            sums = f.pointer(f.params[self.pointers], scale_index(f, chunk, self.weights * self.width), self.scalar)
            self.clear(f, sums, vectors)
            with f.loop(first, last, self.together) as some:
                count = f.intrinsic("smin", f.sub(last, some.index), constant(self.together, I64))
                self.few(f, some.index, count, sums, vectors)
        f.ret()
        return Phase(name, self.chunks * self.parts)

    def clear(self, f: Function, sums: Value, vectors: WorkRange) -> None:
        with f.loop(0, self.weights * self.groups) as row, f.loop(vectors.start, vectors.stop) as vector:
            place = scale_index(f, f.add(scale_index(f, row.index, self.vectors), vector.index), self.lanes)
            f.store(constant(0, self.kind), f.pointer(sums, place, self.scalar))

    def few(self, f: Function, first: Value, samples: Value, sums: Value, vectors: WorkRange) -> None:
        """A few samples: copy and transpose them, then run each tile over them."""
        scratch = f.params[self.pointers + 1]
        transposed = f.pointer(scratch, self.copies, "i8")
        with f.loop(0, samples) as loop:
            sample = f.add(first, loop.index)
            if not self.windows.direct:
                there = f.pointer(scratch, scale_index(f, loop.index, self.windows.elements), self.windows.scalar)
                self.windows.fill(f, there, sample)
            self.transpose(f, sample, f.pointer(transposed, scale_index(f, loop.index, self.transposed), self.cell), vectors)
        inputs = scratch
        if self.windows.direct:
            stride = self.windows.source.strides[0]
            inputs = f.pointer(f.params[self.windows.source.pointer], scale_index(f, first, stride), self.windows.scalar)

        def tiles(group: Value, vector: Value, wide: int) -> None:
            column = scale_index(f, f.add(scale_index(f, group, self.vectors), vector), self.lanes)
            right = TileOperand(f.pointer(transposed, column, self.cell), self.cell, tuple(j * self.lanes for j in range(wide)))

            def some(channel: Value, count: int) -> None:
                place = scale_index(f, f.add(scale_index(f, group, self.c), channel), self.windows.pitches[0])
                here = f.pointer(inputs, place, self.windows.scalar)
                row = scale_index(f, channel, len(self.taps) * self.width)
                taps = [i * self.windows.pitches[0] + p for i in range(count) for p in self.taps]
                self.write(f, here, taps, right, f.pointer(sums, f.add(row, column), self.scalar), samples)

            whole_range(self.c).each(f, self.channels, some)

        with f.loop(0, self.groups) as group:
            vectors.each(f, self.tile[1], lambda vector, wide: tiles(group.index, vector, wide))

    def transpose(self, f: Function, sample: Value, to: Value, vectors: WorkRange) -> None:
        strides = self.gradient.strides
        scalar, outputs = self.gradient.scalar, math.prod(self.out)
        base = f.pointer(f.params[self.gradient.pointer], scale_index(f, sample, strides[0]), scalar)
        operand = GemmOperand(self.gradient.pointer, (), 1, strides[1], scalar)
        matrix = matrix_source(f, operand, [], self.scalar, base, outputs if self.pairs else 0)
        start, stop = scale_index(f, vectors.start, self.lanes), scale_index(f, vectors.stop, self.lanes)
        channels = WorkRange(start, f.intrinsic("smin", stop, constant(self.m, I64)), vectors.whole, self.m)

        def some(group: Value, channel: Value, count: int) -> None:
            place = f.add(scale_index(f, group, self.vectors * self.lanes), channel)
            there = f.pointer(to, place, self.cell)
            first = f.add(scale_index(f, group, self.m), channel)
            pack_transposed(f, matrix, there, constant(self.width, I64), first, count, self.lanes, outputs)

        with f.loop(0, self.groups) as group:
            channels.each(f, self.lanes, lambda channel, count: some(group.index, channel, count))

    def write(self, f: Function, here: Value, inputs: list[int], right: TileOperand, to: Value, count: Value) -> None:
        """The tiles of some input channels' taps."""
        wide = len(right.offsets)
        for start in range(0, len(inputs), self.tile[0]):
            offsets = inputs[start : start + self.tile[0]]
            left = TileOperand(here, self.windows.scalar, tuple(offsets), broadcast=True, pairs=self.pairs)
            slots = [
                f.pointer(to, (start + i) * self.width + j * self.lanes, self.scalar)
                for i in range(len(offsets))
                for j in range(wide)
            ]
            sums = [f.load(slot, self.kind) for slot in slots]
            axes, taps = self.depth(count)
            for slot, value in zip(slots, multiply_tile(f, left, right, axes, taps, sums, self.multiply_add), strict=True):
                f.store(value, slot)

    def depth(self, count: Value) -> tuple[list[DepthLoop], list[tuple[int, int]]]:
        """Loops over samples and outputs."""
        sample = self.windows.source.strides[0] if self.windows.direct else self.windows.elements
        axes = [DepthLoop(count, sample, self.transposed)]
        for dim in range(len(self.out) - 1):
            outputs = math.prod(self.out[dim + 1 :])
            axes.append(DepthLoop(self.out[dim], self.windows.step(dim), outputs // self.unit * self.width))
        steps = self.out[-1] // self.unit
        unroll = next(u for u in (2, 1) if steps % u == 0)
        axes.append(DepthLoop(steps // unroll, unroll * self.unit, unroll * self.width))
        return axes, [(u * self.unit, u * self.width) for u in range(unroll)]

    # ---- the sums of all samples

    def emit_reduction(self, module: Module, name: str) -> Phase:
        """Emit the phase that adds up the pieces' sums: a piece is a vector of output channels and some of their weights."""
        f = module.function(name, kernel_parameters(self.pointers))
        begin, end = f.params[-2:]
        sizes = (self.groups, self.vectors, math.ceil(self.weights / WEIGHTS_PER_PIECE))
        with f.loop(begin, end) as loop:
            group, vector, part = unravel(f, loop.index, sizes)
            weights = block_range(f, part, WEIGHTS_PER_PIECE, self.weights)
            column = scale_index(f, f.add(scale_index(f, group, self.vectors), vector), self.lanes)
            self.collect(f, f.pointer(f.params[self.pointers], column, self.scalar), weights)
            first = scale_index(f, vector, self.lanes)
            last = f.intrinsic("smin", f.add(first, constant(self.lanes, I64)), constant(self.m, I64))
            with f.loop(first, last) as m:
                channel = f.add(scale_index(f, group, self.m), m.index)
                self.finish(f, channel, f.sub(m.index, first), weights)
        f.ret()
        return Phase(name, math.prod(sizes))

    def collect(self, f: Function, base: Value, weights: WorkRange) -> None:
        """Sum over all pieces into scratch memory, a vector per weight."""
        scratch = f.params[self.pointers + 1]
        with f.loop(weights.start, weights.stop) as weight:
            start = f.pointer(base, scale_index(f, weight.index, self.width), self.scalar)
            with f.loop(0, self.chunks, carried=[constant(0, self.kind)]) as piece:
                place = scale_index(f, piece.index, self.weights * self.width)
                piece.next(f.add(piece.carried[0], f.load(f.pointer(start, place, self.scalar), self.kind)))
            row = scale_index(f, f.sub(weight.index, weights.start), self.lanes)
            f.store(piece.results[0], f.pointer(scratch, row, self.scalar))

    def finish(self, f: Function, channel: Value, lane: Value, weights: WorkRange) -> None:
        """Hand an output channel's weights to the epilogue."""
        start = f.pointer(f.params[self.pointers + 1], lane, self.scalar)

        def some(index: Value, count: int) -> None:
            mask = first_lanes(count, self.lanes)
            row = scale_index(f, f.sub(index, weights.start), self.lanes)
            steps = f.steps(self.lanes) if self.lanes > 1 else constant(0, I64)
            steps = f.mul(steps, constant(self.lanes, steps.type))
            value = f.gather(f.pointer(start, row, self.scalar), steps, self.scalar, mask)
            self.epilogue(f, [], channel, index, value, mask)

        weights.each(f, self.lanes, some)
