"""Direct convolution kernel: register tiles of a few output channels times a few vectors of neighbouring outputs.

A piece is a sample, or a band of its lines if there are few samples. The depth goes over the input channels and the kernel's
taps; weights are broadcast to all lanes, and inputs are at constant offsets. Weights in half precision are packed first
(`weight_packing.py`), as they would have to be converted each time they are read.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

from ..gemm.problem import Epilogue
from ..gemm.tiled_kernel import MAX_EPILOGUE_LINES
from ..ir.builder import BYTES, HALF_SCALARS, I64, Function, Module, Type, Value, constant
from ..ir.kernel import NativeKernel, Phase
from ..ir.register_tile import DepthLoop, MultiplyAdd, TileOperand, first_lanes, multiply_tile, scale_index, zero_sums
from ..ir.work_ranges import WorkRange, align, block_range, kernel_parameters, unravel, whole_range
from .problem import ConvTile, DirectConv
from .weight_packing import WeightPacking

MIN_PIECES = 8  # if there is enough work
MIN_BAND_MULTIPLIES = 1 << 18  # in a band that is worth handing to another thread
MAX_UNROLLED_PRODUCTS = 60  # multiply-adds in a tile's innermost loop


@dataclass(frozen=True)
class DirectConvKernel:
    """Emitter of one direct convolution."""

    conv: DirectConv
    tile: ConvTile
    pointers: int
    epilogue: Epilogue
    multiply_add: MultiplyAdd

    @property
    def scalar(self) -> str:
        """Type of the sums."""
        return "float" if self.conv.windows.source.scalar in HALF_SCALARS else self.conv.windows.source.scalar

    @cached_property
    def packing(self) -> WeightPacking | None:
        return WeightPacking(self.conv, self.scalar, self.pointers) if self.conv.weight.scalar != self.scalar else None

    @property
    def kind(self) -> Type:
        return Type(self.scalar, self.conv.windows.lanes)

    @property
    def bands(self) -> int:
        """Bands of a sample's first spatial dim; each is a piece."""
        samples, work = self.conv.windows.source.shape[0], self.conv.groups * self.conv.m * math.prod(self.conv.out)
        wanted = (
            1
            if self.conv.between
            else min(math.ceil(MIN_PIECES / samples), samples * work * self.conv.depth // MIN_BAND_MULTIPLIES)
        )
        return max(1, min(wanted, math.ceil(self.conv.out[0] / self.unit(0))))

    def unit(self, dim: int) -> int:
        """Outputs of a tile along a dim."""
        dims = len(self.conv.out)
        if dim == dims - 1:
            return self.tile.vectors * self.conv.windows.lanes
        return self.tile.lines if dim == dims - 2 else 1

    @property
    def scratch(self) -> int:
        return align(self.conv.windows.elements * BYTES[self.conv.windows.scalar])

    @property
    def room(self) -> int:
        """Bytes for results on their way to the epilogue: of a tile, or of a group if its lines are merged."""
        if self.conv.between:
            return (self.conv.m * math.prod(self.conv.out[:-1]) * self.pitch + self.kind.lanes) * BYTES[self.scalar]
        return self.tile.channels * self.tile.lines * self.tile.vectors * self.kind.bytes

    @property
    def pitch(self) -> int:
        """Elements of a merged line in scratch memory."""
        return math.ceil(self.conv.out[-1] / self.kind.lanes) * self.kind.lanes

    def emit(self, module: Module, name: str) -> NativeKernel:
        conv = self.conv
        before = [self.packing.emit(module, f"{name}_pack")] if self.packing is not None else []
        f = module.function(name, kernel_parameters(self.pointers))
        begin, end = f.params[-2:]
        sizes = (conv.windows.source.shape[0], self.bands)
        base = f.params[self.pointers + 1]
        if not conv.windows.direct:
            conv.windows.clear(f, base)
        with f.loop(begin, end) as loop:
            sample, band = unravel(f, loop.index, sizes)
            if conv.windows.direct:
                source = conv.windows.source
                base = f.pointer(f.params[source.pointer], scale_index(f, sample, source.strides[0]), self.scalar)
            else:
                conv.windows.fill(f, base, sample)
            first = math.ceil(conv.out[0] / self.bands / self.unit(0)) * self.unit(0)
            with f.loop(0, conv.groups) as group:
                self.dim(f, 0, [sample, group.index], base, [], block_range(f, band, first, conv.out[0]))
                if conv.between:
                    self.lines(f, sample, group.index)
        f.ret()
        room = self.room if self.buffered or conv.between else 0
        phases = (*before, Phase(name, math.prod(sizes)))
        return NativeKernel(phases, self.packing.bytes if self.packing is not None else 0, self.scratch + room)

    def dim(
        self, f: Function, dim: int, at: list[Value], base: Value, outputs: list[tuple[Value, int]], span: WorkRange
    ) -> None:
        """Loops over the outputs, first dim outermost; `outputs` are the positions and sizes along the dims before."""

        def inside(index: Value, size: int) -> None:
            here = [*outputs, (index, size)]
            if dim + 1 < len(self.conv.out):
                self.dim(f, dim + 1, at, base, here, whole_range(self.conv.out[dim + 1]))
            else:
                whole_range(self.conv.m).each(f, self.tile.channels, lambda m, height: self.write(f, at, base, here, m, height))

        span.each(f, self.unit(dim), inside)

    def write(self, f: Function, at: list[Value], base: Value, outputs: list[tuple[Value, int]], m: Value, height: int) -> None:
        """Emit a tile."""
        conv, lanes = self.conv, self.conv.windows.lanes
        lines, width = (outputs[-2][1] if len(outputs) > 1 else 1), outputs[-1][1]
        masks = [first_lanes(width - j * lanes, lanes) for j in range(math.ceil(width / lanes))]
        right = self.input(f, at[1], base, [o for o, _ in outputs], lines, masks)
        left = self.weights(f, at[1], m, height)
        axes, taps = self.depth(height * lines * len(masks))
        sums = multiply_tile(f, left, right, axes, taps, zero_sums(height * lines * len(masks), self.kind), self.multiply_add)
        if conv.between:
            self.keep(f, [o for o, _ in outputs], m, lines, len(masks), sums)
            return
        channel = f.add(scale_index(f, at[1], conv.m), m)
        first = constant(0, I64)
        for (output, _), size in zip(outputs, conv.out, strict=True):
            first = f.add(scale_index(f, first, size), output)
        if self.buffered:
            self.finish(f, at[0], channel, first, height, lines, masks, sums)
            return
        for i, (row, line, j) in enumerate(itertools.product(range(height), range(lines), range(len(masks)))):
            pixel = f.add(first, constant(line * conv.out[-1] + j * lanes, I64))
            self.epilogue(f, [at[0]], f.add(channel, constant(row, I64)), pixel, sums[i], masks[j])

    def input(
        self, f: Function, group: Value, base: Value, outputs: list[Value], lines: int, masks: list[Value | None]
    ) -> TileOperand:
        windows = self.conv.windows
        place = scale_index(f, group, self.conv.steps * windows.pitches[0])
        for dim, output in enumerate(outputs):
            place = f.add(place, scale_index(f, output, self.conv.step(dim)))
        between = self.conv.step(len(outputs) - 2) if len(outputs) > 1 else 0
        places = tuple(line * between + j * windows.lanes for line in range(lines) for j in range(len(masks)))
        there = f.pointer(base, place, windows.scalar)
        return TileOperand(there, windows.scalar, places, masks=tuple(masks) * lines if windows.direct else ())

    def weights(self, f: Function, group: Value, m: Value, height: int) -> TileOperand:
        weight, packing = self.weight, self.packing
        base = f.params[self.conv.weight.pointer if packing is None else self.pointers]
        scalar = self.scalar if packing is None else packing.cell
        place = f.add(scale_index(f, group, weight.of_group), scale_index(f, m, weight.of_m))
        there = f.pointer(base, f.add(place, constant(weight.start, I64)), scalar)
        return TileOperand(there, scalar, tuple(i * weight.of_m for i in range(height)), broadcast=True)

    @property
    def weight(self) -> DirectConv:
        """The problem with the strides of the weights that a tile reads."""
        return self.conv if self.packing is None else self.packing.packed

    def depth(self, products: int) -> tuple[list[DepthLoop], list[tuple[int, int]]]:
        """Loops over channels and taps; the innermost are unrolled."""
        conv, windows, dims = self.weight, self.conv.windows, len(self.conv.kernel)
        inner = dims - 1  # the last dim always: its taps need not be equidistant
        while inner and math.prod(conv.kernel[inner - 1 :]) * products <= MAX_UNROLLED_PRODUCTS:
            inner -= 1
        axes = [DepthLoop(conv.steps, conv.of_c, windows.pitches[0])]
        for dim in range(inner):
            axes.append(DepthLoop(conv.kernel[dim], conv.of_place[dim], conv.dilation[dim] * windows.pitches[1 + dim]))
        taps = []
        for places in itertools.product(*map(range, conv.kernel[inner:])):
            place = (0,) * inner + tuple(p * d for p, d in zip(places, conv.dilation[inner:], strict=True))
            weight = sum(p * s for p, s in zip(places, conv.of_place[inner:], strict=True))
            taps.append((weight, windows.offset(place)))
        if inner == 0 and len(taps) < 3:  # so little is unrolled that channels are, too
            many = next(u for u in (4, 2, 1) if conv.steps % u == 0)
            axes = [DepthLoop(conv.steps // many, many * conv.of_c, many * windows.pitches[0])]
            taps = [(u * conv.of_c + a, u * windows.pitches[0] + b) for u in range(many) for a, b in taps]
        return axes, taps

    # ---- long epilogues

    @cached_property
    def buffered(self) -> bool:
        """True if results go through scratch memory, so that the epilogue is emitted fewer times."""
        trial = Function("trial", kernel_parameters(self.pointers))
        zero = constant(0, I64)
        self.epilogue(trial, [zero], zero, zero, constant(0, self.kind), None)
        lines = len(trial.lines) + len(trial.entry)
        return lines > 12 and lines * self.tile.channels * self.tile.lines * self.tile.vectors > MAX_EPILOGUE_LINES

    def finish(
        self,
        f: Function,
        sample: Value,
        channel: Value,
        first: Value,
        height: int,
        lines: int,
        masks: list[Value | None],
        sums: list[Value],
    ) -> None:
        room = f.pointer(f.params[self.pointers + 1], self.scratch, "i8")
        lanes = self.conv.windows.lanes
        for i, value in enumerate(sums):
            f.store(value, f.pointer(room, i * lanes, self.scalar))
        with f.loop(0, height) as row, f.loop(0, lines) as line:
            start = scale_index(f, f.add(scale_index(f, row.index, lines), line.index), len(masks) * lanes)
            pixel = f.add(first, scale_index(f, line.index, self.conv.out[-1]))
            for j, mask in enumerate(masks):
                value = f.load(f.pointer(room, f.add(start, constant(j * lanes, I64)), self.scalar), self.kind)
                self.epilogue(f, [sample], f.add(channel, row.index), f.add(pixel, constant(j * lanes, I64)), value, mask)

    # ---- merged lines

    def keep(self, f: Function, outputs: list[Value], m: Value, lines: int, vectors: int, sums: list[Value]) -> None:
        """Store a tile's results to scratch memory."""
        sizes = (self.conv.m, *self.conv.out[:-1])
        row = m
        for output, size in zip(outputs[:-1], sizes[1:], strict=True):
            row = f.add(scale_index(f, row, size), output)
        room = f.pointer(f.params[self.pointers + 1], self.scratch, "i8")
        start = f.pointer(room, f.add(scale_index(f, row, self.pitch), outputs[-1]), self.scalar)
        for i, value in enumerate(sums):
            channel, place = divmod(i, lines * vectors)
            line, vector = divmod(place, vectors)
            where = (channel * math.prod(sizes[1:]) + line) * self.pitch + vector * self.kind.lanes
            f.store(value, f.pointer(start, where, self.scalar))

    def lines(self, f: Function, sample: Value, group: Value) -> None:
        """Hand a group's results from scratch memory to the epilogue, line by line."""
        conv, lanes = self.conv, self.kind.lanes
        room = f.pointer(f.params[self.pointers + 1], self.scratch, "i8")
        outer, step = math.prod(conv.out[:-1]), conv.windows.pitches[-1]
        count = (conv.out[-1] - conv.line) // step + 1
        with f.loop(0, conv.m) as m, f.loop(0, outer) as some, f.loop(0, count) as line:
            row = f.add(scale_index(f, m.index, outer), some.index)
            start = f.add(scale_index(f, row, self.pitch), scale_index(f, line.index, step))
            pixel = scale_index(f, f.add(scale_index(f, some.index, count), line.index), conv.line)
            channel = f.add(scale_index(f, group, conv.m), m.index)
            for j in range(0, conv.line, lanes):
                place = f.pointer(room, f.add(start, constant(j, I64)), self.scalar)
                mask = first_lanes(conv.line - j, lanes)
                self.epilogue(f, [sample], channel, f.add(pixel, constant(j, I64)), f.load(place, self.kind), mask)
