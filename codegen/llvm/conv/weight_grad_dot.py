"""Weight gradient for few output channels: dot products of the output gradient with the input at each tap of the kernel.

The lanes go along the last spatial dim of both, so a tile is a few output channels times a few taps. A piece does some
samples, a few at a time, so that what a tile reads of them stays in L1. The tiles' sums wait in scratch memory meanwhile,
and their lanes are summed at the end. A second phase adds up the pieces' sums, always in the same order, and hands them to
the epilogue.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ..ir.builder import BYTES, I64, Function, Module, Type, Value, constant
from ..ir.kernel import NativeKernel, Phase
from ..ir.register_tile import DepthLoop, TileOperand, first_lanes, lane_sums, multiply_tile, scale_index
from ..ir.work_ranges import align, kernel_parameters, unravel, whole_range
from .weight_grad import WeightGradient

MAX_SAMPLE_PIECES = 8  # over which samples are divided
DOT_L1_BYTES = 24 << 10  # of the output gradient that a tile reads before the next tile


@dataclass(frozen=True)
class DotWeightGradient(WeightGradient):
    """Emitter of one weight gradient."""

    @property
    def weights(self) -> int:
        """Weights of an output channel."""
        return self.c * math.prod(self.kernel)

    @property
    def taps(self) -> list[int]:
        """Offsets of the kernel's taps."""
        found = []
        for taps in itertools.product(*map(range, self.kernel)):
            found.append(self.windows.offset(tuple(p * d for p, d in zip(taps, self.dilation, strict=True))))
        return found

    @property
    def samples(self) -> int:
        """Samples of a piece."""
        return math.ceil(self.gradient.shape[0] / MAX_SAMPLE_PIECES)

    @property
    def together(self) -> int:
        """Samples that are processed at a time."""
        each = self.tile[0] * math.prod(self.out) * BYTES[self.scalar]
        most = max(1, DOT_L1_BYTES // each)
        return math.ceil(self.samples / math.ceil(self.samples / most))

    @property
    def pieces(self) -> int:
        return math.ceil(self.gradient.shape[0] / self.samples)

    @property
    def copies(self) -> int:
        """Bytes of the samples' copies in scratch memory; the sums follow them."""
        return align(self.together * self.windows.elements * BYTES[self.windows.scalar])

    @property
    def tile(self) -> tuple[int, int]:
        """Output channels and taps of a tile: as many as there are registers for, evenly."""
        taps = len(self.taps)
        best = (math.inf, 1, 1)
        for wide in range(1, min(taps, 9) + 1):
            for high in range(1, min(self.m, 9) + 1):
                if high * wide > self.room - 6 or high + wide > self.room - 2:
                    continue
                cost = math.ceil(self.m / high) * math.ceil(taps / wide) * max(high * wide / 2, high + wide, 4)
                kinds = (1 + bool(self.m % high)) * (1 + bool(taps % wide))
                best = min(best, (cost * (1 + 0.02 * kinds), high, wide))
        return best[1], best[2]

    def emit(self, module: Module, name: str) -> NativeKernel:
        weights, size = self.groups * self.m * self.weights, BYTES[self.scalar]
        phases = (self.compute(module, name), self.emit_reduction(module, f"{name}_sum"))
        return NativeKernel(phases, align(self.pieces * weights * size), self.copies + weights * self.lanes * size)

    # ---- the sums of some samples

    def compute(self, module: Module, name: str) -> Phase:
        f = module.function(name, kernel_parameters(self.pointers))
        begin, end = f.params[-2:]
        scratch = f.params[self.pointers + 1]
        sums = f.pointer(scratch, self.copies, "i8")
        if not self.windows.direct:
            with f.loop(0, self.together) as loop:
                self.windows.clear(f, f.pointer(scratch, scale_index(f, loop.index, self.windows.elements), self.scalar))
        with f.loop(begin, end) as piece:
            first = scale_index(f, piece.index, self.samples)
            last = f.intrinsic("smin", f.add(first, constant(self.samples, I64)), constant(self.gradient.shape[0], I64))
            weights = self.groups * self.m * self.weights
            with f.loop(0, weights) as loop:
                f.store(constant(0, self.kind), f.pointer(sums, scale_index(f, loop.index, self.lanes), self.scalar))
            with f.loop(first, last, self.together) as some:
                count = f.intrinsic("smin", f.sub(last, some.index), constant(self.together, I64))
                self.few(f, some.index, count, scratch, sums)
            there = f.pointer(f.params[self.pointers], scale_index(f, piece.index, weights), self.scalar)
            whole_range(weights).each(f, self.lanes, lambda index, size: self.collect(f, sums, there, index, size))
        f.ret()
        return Phase(name, self.pieces)

    @property
    def kind(self) -> Type:
        return Type(self.scalar, self.lanes)

    def few(self, f: Function, first: Value, count: Value, scratch: Value, sums: Value) -> None:
        """A few samples."""
        if not self.windows.direct:
            with f.loop(0, count) as loop:
                there = f.pointer(scratch, scale_index(f, loop.index, self.windows.elements), self.scalar)
                self.windows.fill(f, there, f.add(first, loop.index))
        high, wide = self.tile
        with f.loop(0, self.groups) as group:
            to = f.pointer(sums, scale_index(f, group.index, self.m * self.weights * self.lanes), self.scalar)
            whole_range(self.m).each(
                f, high, lambda m, height: self.channels(f, first, count, group.index, m, height, wide, to)
            )

    def channels(
        self, f: Function, first: Value, count: Value, group: Value, m: Value, height: int, wide: int, to: Value
    ) -> None:
        """All weights of a few output channels."""
        taps = self.taps
        left = self.outputs(f, first, group, m, height)
        with f.loop(0, self.c) as channel:
            row = f.add(scale_index(f, m, self.weights), scale_index(f, channel.index, len(taps)))
            for start in range(0, len(taps), wide):
                some = taps[start : start + wide]
                right = self.inputs(f, first, group, channel.index, some)
                there = f.pointer(to, scale_index(f, f.add(row, constant(start, I64)), self.lanes), self.scalar)
                slots = [
                    f.pointer(there, (i * self.weights + j) * self.lanes, self.scalar)
                    for i in range(height)
                    for j in range(len(some))
                ]
                before = [f.load(slot, self.kind) for slot in slots]
                for slot, value in zip(slots, self.products(f, left, right, count, before), strict=True):
                    f.store(value, slot)

    def collect(self, f: Function, sums: Value, to: Value, first: Value, count: int) -> None:
        """Sum the lanes of a few weights' sums."""
        start = f.pointer(sums, scale_index(f, first, self.lanes), self.scalar)
        vectors = [f.load(f.pointer(start, i * self.lanes, self.scalar), self.kind) for i in range(count)]
        f.store(lane_sums(f, vectors), f.pointer(to, first, self.scalar), first_lanes(count, self.lanes))

    def outputs(self, f: Function, first: Value, group: Value, m: Value, height: int) -> TileOperand:
        strides = self.gradient.strides
        channel = scale_index(f, f.add(scale_index(f, group, self.m), m), strides[1])
        place, scalar = f.add(scale_index(f, first, strides[0]), channel), self.gradient.scalar
        there = f.pointer(f.params[self.gradient.pointer], place, scalar)
        return TileOperand(there, scalar, tuple(i * strides[1] for i in range(height)))

    def inputs(self, f: Function, first: Value, group: Value, channel: Value, taps: list[int]) -> TileOperand:
        place = scale_index(f, f.add(scale_index(f, group, self.c), channel), self.windows.pitches[0])
        base = f.params[self.pointers + 1]
        if self.windows.direct:
            source = self.windows.source
            base = f.params[source.pointer]
            place = f.add(place, scale_index(f, first, source.strides[0]))
        return TileOperand(f.pointer(base, place, self.scalar), self.scalar, tuple(taps))

    def products(self, f: Function, left: TileOperand, right: TileOperand, count: Value, sums: list[Value]) -> list[Value]:
        """Accumulate products over some samples and all outputs, lane by lane."""
        strides = self.gradient.strides
        sample = self.windows.source.strides[0] if self.windows.direct else self.windows.elements
        axes = [DepthLoop(count, strides[0], sample)]
        for dim in range(len(self.out) - 1):
            axes.append(DepthLoop(self.out[dim], strides[2 + dim], self.windows.step(dim)))
        return self.lines(f, left, right, axes, sums)

    def lines(
        self, f: Function, left: TileOperand, right: TileOperand, axes: list[DepthLoop], sums: list[Value]
    ) -> list[Value]:
        if not axes:
            return self.line(f, left, right, sums)
        with f.loop(0, axes[0].rounds, carried=sums) as loop:
            here, there = left.at(f, loop.index, axes[0].left), right.at(f, loop.index, axes[0].right)
            loop.next(*self.lines(f, here, there, axes[1:], loop.carried))
        return loop.results

    def line(self, f: Function, left: TileOperand, right: TileOperand, sums: list[Value]) -> list[Value]:
        """Full vectors of a line, and the masked rest."""
        full, rest = divmod(self.out[-1], self.lanes)
        if full > 2:
            sums = multiply_tile(f, left, right, [DepthLoop(full, self.lanes, self.lanes)], [(0, 0)], sums, self.multiply_add)
        else:
            sums = multiply_tile(
                f, left, right, [], [(j * self.lanes, j * self.lanes) for j in range(full)], sums, self.multiply_add
            )
        if rest:
            mask = first_lanes(rest, self.lanes)
            left, right = (replace(side, masks=(mask,) * len(side.offsets)) for side in (left, right))
            sums = multiply_tile(f, left, right, [], [(full * self.lanes, full * self.lanes)], sums, self.multiply_add)
        return sums

    # ---- the sums of all samples

    def emit_reduction(self, module: Module, name: str) -> Phase:
        """Emit the phase that adds up the pieces' sums: one piece per output channel."""
        f = module.function(name, kernel_parameters(self.pointers))
        begin, end = f.params[-2:]
        channels = self.groups * self.m
        with f.loop(begin, end) as loop:
            (channel,) = unravel(f, loop.index, (channels,))
            row = f.pointer(f.params[self.pointers], scale_index(f, channel, self.weights), self.scalar)

            def some(index: Value, count: int) -> None:
                kind, mask = Type(self.scalar, self.lanes), first_lanes(count, self.lanes)
                with f.loop(0, self.pieces, carried=[constant(0, kind)]) as piece:
                    place = f.add(scale_index(f, piece.index, channels * self.weights), index)
                    piece.next(f.add(piece.carried[0], f.load(f.pointer(row, place, self.scalar), kind, mask)))
                self.epilogue(f, [], channel, index, piece.results[0], mask)

            whole_range(self.weights).each(f, self.lanes, some)
        f.ret()
        return Phase(name, channels)
