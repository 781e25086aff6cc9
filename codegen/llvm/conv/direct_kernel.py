"""The kernel of a convolution, as register tiles: a few output channels times a few vectors of neighbouring outputs.

A piece is a sample, or a band of its lines if there are few samples. Its depth goes over the input channels and the places of
the kernel; weights are spread over lanes, and inputs are at constant offsets. Weights that are
halves are packed first (`conv_packing.py`), as they would have to be converted each time that they are read.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

from ..ir.builder import BYTES, HALVES, I64, Function, Module, Type, Value, constant
from ..gemm.problem import Epilogue
from .weight_packing import Packing
from ..ir.kernel import Kernel, Phase
from ..ir.register_tile import Axis, Join, Side, first_lanes, multiply, scaled, zeros
from ..gemm.tiled_kernel import LINES
from .problem import Slide, Tile
from ..ir.work_ranges import Span, aligned, block, parameters, unravel, whole

BANDS = 8  # pieces that there are at least, if there is enough work
PIECE = 1 << 18  # multiplications that are worth handing to another thread
WRITTEN = 60  # products that are written out in a tile's innermost loop, at most


@dataclass(frozen=True)
class Sliding:
    """A convolution that is being written."""

    slide: Slide
    tile: Tile
    pointers: int
    epilogue: Epilogue
    join: Join

    @property
    def scalar(self) -> str:
        """Of the sums."""
        return "float" if self.slide.windows.source.scalar in HALVES else self.slide.windows.source.scalar

    @cached_property
    def packing(self) -> Packing | None:
        return Packing(self.slide, self.scalar, self.pointers) if self.slide.weight.scalar != self.scalar else None

    @property
    def kind(self) -> Type:
        return Type(self.scalar, self.slide.windows.lanes)

    @property
    def bands(self) -> int:
        """Parts of a sample's first dim that are pieces of their own."""
        samples, work = self.slide.windows.source.shape[0], self.slide.groups * self.slide.m * math.prod(self.slide.out)
        wanted = 1 if self.slide.between else min(math.ceil(BANDS / samples), samples * work * self.slide.depth // PIECE)
        return max(1, min(wanted, math.ceil(self.slide.out[0] / self.unit(0))))

    def unit(self, dim: int) -> int:
        """Outputs of a tile along a dim."""
        dims = len(self.slide.out)
        if dim == dims - 1:
            return self.tile.vectors * self.slide.windows.lanes
        return self.tile.lines if dim == dims - 2 else 1

    @property
    def scratch(self) -> int:
        return aligned(self.slide.windows.elements * BYTES[self.slide.windows.scalar])

    @property
    def room(self) -> int:
        """Bytes for results on their way to the epilogue: of a tile, or of a group if its lines are gone through as one."""
        if self.slide.between:
            return (self.slide.m * math.prod(self.slide.out[:-1]) * self.pitch + self.kind.lanes) * BYTES[self.scalar]
        return self.tile.channels * self.tile.lines * self.tile.vectors * self.kind.bytes

    @property
    def pitch(self) -> int:
        """Of lines as one, in scratch memory."""
        return math.ceil(self.slide.out[-1] / self.kind.lanes) * self.kind.lanes

    def emit(self, module: Module, name: str) -> Kernel:
        slide = self.slide
        before = [self.packing.emit(module, f"{name}_pack")] if self.packing is not None else []
        f = module.function(name, parameters(self.pointers))
        begin, end = f.params[-2:]
        sizes = (slide.windows.source.shape[0], self.bands)
        base = f.params[self.pointers + 1]
        if not slide.windows.direct:
            slide.windows.clear(f, base)
        with f.loop(begin, end) as loop:
            sample, band = unravel(f, loop.index, sizes)
            if slide.windows.direct:
                source = slide.windows.source
                base = f.pointer(f.params[source.pointer], scaled(f, sample, source.strides[0]), self.scalar)
            else:
                slide.windows.fill(f, base, sample)
            first = math.ceil(slide.out[0] / self.bands / self.unit(0)) * self.unit(0)
            with f.loop(0, slide.groups) as group:
                self.dim(f, 0, [sample, group.index], base, [], block(f, band, first, slide.out[0]))
                if slide.between:
                    self.lines(f, sample, group.index)
        f.back()
        room = self.room if self.buffered or slide.between else 0
        phases = (*before, Phase(name, math.prod(sizes)))
        return Kernel(phases, self.packing.bytes if self.packing is not None else 0, self.scratch + room)

    def dim(self, f: Function, dim: int, at: list[Value], base: Value, outputs: list[tuple[Value, int]], span: Span) -> None:
        """Loops over the outputs, from the first dim on; `outputs` are the places and sizes along the dims before."""

        def inside(index: Value, size: int) -> None:
            here = [*outputs, (index, size)]
            if dim + 1 < len(self.slide.out):
                self.dim(f, dim + 1, at, base, here, whole(self.slide.out[dim + 1]))
            else:
                whole(self.slide.m).each(f, self.tile.channels, lambda m, height: self.write(f, at, base, here, m, height))

        span.each(f, self.unit(dim), inside)

    def write(self, f: Function, at: list[Value], base: Value, outputs: list[tuple[Value, int]], m: Value, height: int) -> None:
        """A tile."""
        slide, lanes = self.slide, self.slide.windows.lanes
        lines, width = (outputs[-2][1] if len(outputs) > 1 else 1), outputs[-1][1]
        masks = [first_lanes(width - j * lanes, lanes) for j in range(math.ceil(width / lanes))]
        right = self.input(f, at[1], base, [o for o, _ in outputs], lines, masks)
        left = self.weights(f, at[1], m, height)
        axes, taps = self.depth(height * lines * len(masks))
        sums = multiply(f, left, right, axes, taps, zeros(height * lines * len(masks), self.kind), self.join)
        if slide.between:
            self.keep(f, [o for o, _ in outputs], m, lines, len(masks), sums)
            return
        channel = f.add(scaled(f, at[1], slide.m), m)
        first = constant(0, I64)
        for (output, _), size in zip(outputs, slide.out, strict=True):
            first = f.add(scaled(f, first, size), output)
        if self.buffered:
            self.finish(f, at[0], channel, first, height, lines, masks, sums)
            return
        for i, (row, line, j) in enumerate(itertools.product(range(height), range(lines), range(len(masks)))):
            pixel = f.add(first, constant(line * slide.out[-1] + j * lanes, I64))
            self.epilogue(f, [at[0]], f.add(channel, constant(row, I64)), pixel, sums[i], masks[j])

    def input(
        self, f: Function, group: Value, base: Value, outputs: list[Value], lines: int, masks: list[Value | None]
    ) -> Side:
        windows = self.slide.windows
        place = scaled(f, group, self.slide.steps * windows.pitches[0])
        for dim, output in enumerate(outputs):
            place = f.add(place, scaled(f, output, self.slide.step(dim)))
        between = self.slide.step(len(outputs) - 2) if len(outputs) > 1 else 0
        places = tuple(line * between + j * windows.lanes for line in range(lines) for j in range(len(masks)))
        there = f.pointer(base, place, windows.scalar)
        return Side(there, windows.scalar, places, masks=tuple(masks) * lines if windows.direct else ())

    def weights(self, f: Function, group: Value, m: Value, height: int) -> Side:
        weight, packing = self.weight, self.packing
        base = f.params[self.slide.weight.pointer if packing is None else self.pointers]
        scalar = self.scalar if packing is None else packing.cell
        place = f.add(scaled(f, group, weight.of_group), scaled(f, m, weight.of_m))
        there = f.pointer(base, f.add(place, constant(weight.start, I64)), scalar)
        return Side(there, scalar, tuple(i * weight.of_m for i in range(height)), spread=True)

    @property
    def weight(self) -> Slide:
        """Whose strides are those of the weights that a tile reads."""
        return self.slide if self.packing is None else self.packing.packed

    def depth(self, products: int) -> tuple[list[Axis], list[tuple[int, int]]]:
        """The loops over channels and places, of which the innermost are written out."""
        slide, windows, dims = self.weight, self.slide.windows, len(self.slide.kernel)
        inner = dims - 1  # the last dim always: its places need not be equally far apart
        while inner and math.prod(slide.kernel[inner - 1 :]) * products <= WRITTEN:
            inner -= 1
        axes = [Axis(slide.steps, slide.of_c, windows.pitches[0])]
        for dim in range(inner):
            axes.append(Axis(slide.kernel[dim], slide.of_place[dim], slide.dilation[dim] * windows.pitches[1 + dim]))
        taps = []
        for places in itertools.product(*map(range, slide.kernel[inner:])):
            place = (0,) * inner + tuple(p * d for p, d in zip(places, slide.dilation[inner:], strict=True))
            weight = sum(p * s for p, s in zip(places, slide.of_place[inner:], strict=True))
            taps.append((weight, windows.offset(place)))
        if inner == 0 and len(taps) < 3:  # so little is written out that channels are, too
            many = next(u for u in (4, 2, 1) if slide.steps % u == 0)
            axes = [Axis(slide.steps // many, many * slide.of_c, many * windows.pitches[0])]
            taps = [(u * slide.of_c + a, u * windows.pitches[0] + b) for u in range(many) for a, b in taps]
        return axes, taps

    # ---- long epilogues

    @cached_property
    def buffered(self) -> bool:
        """Whether results go through scratch memory, so that the epilogue is written fewer times."""
        trial = Function("trial", parameters(self.pointers))
        zero = constant(0, I64)
        self.epilogue(trial, [zero], zero, zero, constant(0, self.kind), None)
        lines = len(trial.lines) + len(trial.entry)
        return lines > 12 and lines * self.tile.channels * self.tile.lines * self.tile.vectors > LINES

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
        lanes = self.slide.windows.lanes
        for i, value in enumerate(sums):
            f.store(value, f.pointer(room, i * lanes, self.scalar))
        with f.loop(0, height) as row, f.loop(0, lines) as line:
            start = scaled(f, f.add(scaled(f, row.index, lines), line.index), len(masks) * lanes)
            pixel = f.add(first, scaled(f, line.index, self.slide.out[-1]))
            for j, mask in enumerate(masks):
                value = f.load(f.pointer(room, f.add(start, constant(j * lanes, I64)), self.scalar), self.kind)
                self.epilogue(f, [sample], f.add(channel, row.index), f.add(pixel, constant(j * lanes, I64)), value, mask)

    # ---- lines as one

    def keep(self, f: Function, outputs: list[Value], m: Value, lines: int, vectors: int, sums: list[Value]) -> None:
        """A tile's results to scratch memory."""
        sizes = (self.slide.m, *self.slide.out[:-1])
        row = m
        for output, size in zip(outputs[:-1], sizes[1:], strict=True):
            row = f.add(scaled(f, row, size), output)
        room = f.pointer(f.params[self.pointers + 1], self.scratch, "i8")
        start = f.pointer(room, f.add(scaled(f, row, self.pitch), outputs[-1]), self.scalar)
        for i, value in enumerate(sums):
            channel, place = divmod(i, lines * vectors)
            line, vector = divmod(place, vectors)
            where = (channel * math.prod(sizes[1:]) + line) * self.pitch + vector * self.kind.lanes
            f.store(value, f.pointer(start, where, self.scalar))

    def lines(self, f: Function, sample: Value, group: Value) -> None:
        """A group's results from scratch memory to the epilogue, line by line."""
        slide, lanes = self.slide, self.kind.lanes
        room = f.pointer(f.params[self.pointers + 1], self.scratch, "i8")
        outer, step = math.prod(slide.out[:-1]), slide.windows.pitches[-1]
        count = (slide.out[-1] - slide.line) // step + 1
        with f.loop(0, slide.m) as m, f.loop(0, outer) as some, f.loop(0, count) as line:
            row = f.add(scaled(f, m.index, outer), some.index)
            start = f.add(scaled(f, row, self.pitch), scaled(f, line.index, step))
            pixel = scaled(f, f.add(scaled(f, some.index, count), line.index), slide.line)
            channel = f.add(scaled(f, group, slide.m), m.index)
            for j in range(0, slide.line, lanes):
                place = f.pointer(room, f.add(start, constant(j, I64)), self.scalar)
                mask = first_lanes(slide.line - j, lanes)
                self.epilogue(f, [sample], channel, f.add(pixel, constant(j, I64)), f.load(place, self.kind), mask)
