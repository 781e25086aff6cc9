"""Convolutions and their gradients, without a matrix of windows: the register tile reads the windows where they are.

A tile is a few output channels times a few vectors of neighbouring outputs. Its depth goes over the input channels and the
places of the kernel; the weights are spread over lanes, and the inputs are at constant offsets (`windows.py`). The gradient of
the input is a convolution of the gradient with the kernel turned round. The gradient of the weights is in
`conv_weights.py` and `conv_outer.py`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ...eager.ops.windows import Geometry, input_size, kernel_size, output_size, spans
from .blocking import Shape, step_cost
from .builder import BYTES, I64, Function, Module, Type, Value, constant
from .conv_outer import Outer
from .conv_weights import Gradient
from .gemm import LINES, Epilogue, fused, registers
from .kernel import Kernel, Phase
from .micro import Axis, Side, first_lanes, multiply, scaled, zeros
from .spans import Span, aligned, block, parameters, unravel, whole
from .target import Target
from .windows import Array, Ints, Windows

BANDS = 8  # pieces that there are at least, if there is enough work
PIECE = 1 << 18  # multiplications that are worth handing to another thread
WRITTEN = 60  # products that are written out in a tile's innermost loop, at most


@dataclass(frozen=True)
class Conv:
    """What an op does: `conv` of x and w, `conv_input_grad` of g and w, `conv_weight_grad` of x and g."""

    op: str
    first: Array
    second: Array
    geometry: Geometry


def emit_conv(module: Module, name: str, conv: Conv, pointers: int, epilogue: Epilogue, target: Target) -> Kernel | None:
    """The kernel of a convolution; none if it is not covered.

    The epilogue gets [sample], channel, index of the first output in its channel, vector and mask. For the gradient of the
    weights it gets [], output channel, index of the first weight in it, vector and mask.
    """
    scalar = conv.first.scalar
    if scalar not in ("float", "double") or conv.second.scalar != scalar or 0 in (*conv.first.shape, *conv.second.shape):
        return None
    lanes, room = target.lanes(scalar), registers(target)
    if conv.op == "conv_weight_grad":
        gradient = _weight_gradient(conv, lanes, room, pointers, epilogue, fused(target))
        return gradient.emit(module, name) if gradient is not None else None
    sliding = _forward(conv, lanes) if conv.op == "conv" else _backward(conv, lanes)
    tile = _tile(sliding, room)
    return _Sliding(sliding, tile, pointers, epilogue, fused(target)).emit(module, name)


@dataclass(frozen=True)
class Slide:
    """A kernel that slides over an input.

    result[sample, group, m, ...o] = sum over c and places t of weight(group, m, c, t) * input(sample, group, c, o, t)
    """

    windows: Windows
    weight: Array
    groups: int
    m: int  # output channels of a group
    c: int  # input channels of a group
    out: Ints
    kernel: Ints
    dilation: Ints
    of_group: int  # strides of the weight
    of_m: int
    of_c: int
    of_place: Ints
    start: int  # where the weight of the first place is

    @property
    def depth(self) -> int:
        return self.c * math.prod(self.kernel)


def _forward(conv: Conv, lanes: int) -> Slide:
    x, w, geometry = conv.first, conv.second, conv.geometry
    kernel = w.shape[2:]
    size = tuple(n + a + b for n, (a, b) in zip(x.shape[2:], geometry.padding, strict=True))
    before = tuple(a for a, _ in geometry.padding)
    windows = Windows(x, before, (1,) * len(kernel), size, geometry.stride, lanes)
    m, c = w.shape[0] // geometry.groups, w.shape[1]
    out = output_size(x.shape[2:], kernel, geometry)
    strides = w.strides
    of_group = m * strides[0]
    return Slide(
        windows, w, geometry.groups, m, c, out, kernel, geometry.dilation, of_group, strides[0], strides[1], strides[2:], 0
    )


def _backward(conv: Conv, lanes: int) -> Slide:
    """The gradient spread out by the stride, and the kernel turned round."""
    g, w, geometry = conv.first, conv.second, conv.geometry
    kernel = w.shape[2:]
    out = input_size(g.shape[2:], kernel, geometry)
    reach = spans(kernel, geometry.dilation)
    before = tuple(span - 1 - a for span, (a, _) in zip(reach, geometry.padding, strict=True))
    size = tuple(n + span - 1 for n, span in zip(out, reach, strict=True))
    windows = Windows(g, before, geometry.stride, size, (1,) * len(kernel), lanes)
    m, c = w.shape[1], w.shape[0] // geometry.groups
    strides = w.strides
    last = sum((k - 1) * s for k, s in zip(kernel, strides[2:], strict=True))
    turned = tuple(-s for s in strides[2:])
    of_group = c * strides[0]
    return Slide(
        windows, w, geometry.groups, m, c, out, kernel, geometry.dilation, of_group, strides[1], strides[0], turned, last
    )


def _weight_gradient(
    conv: Conv, lanes: int, room: int, pointers: int, epilogue: Epilogue, fused: bool
) -> Gradient | Outer | None:
    x, g, geometry = conv.first, conv.second, conv.geometry
    if g.strides[-1] != 1:
        return None
    kernel = kernel_size(x.shape[2:], g.shape[2:], geometry)
    size = tuple(n + a + b for n, (a, b) in zip(x.shape[2:], geometry.padding, strict=True))
    before = tuple(a for a, _ in geometry.padding)
    windows = Windows(x, before, (1,) * len(kernel), size, geometry.stride, lanes)
    dense = all(s == math.prod(g.shape[i + 1 :]) for i, s in enumerate(g.strides) if i > 1)
    many = 2 * (g.shape[1] // geometry.groups) >= lanes
    form = Outer if many and dense else Gradient
    return form(windows, g, geometry.groups, kernel, geometry.dilation, room, pointers, epilogue, fused)


# ---- the tile


@dataclass(frozen=True)
class Tile:
    channels: int
    lines: int  # of outputs, along the last dim but one
    vectors: int  # of a line


def _tile(slide: Slide, room: int) -> Tile:
    """The tile that wastes least."""
    lanes = slide.windows.lanes
    lines, columns = (slide.out[-2] if len(slide.out) > 1 else 1), math.ceil(slide.out[-1] / lanes)
    shape = Shape(1, slide.m, columns * lanes, max(slide.depth, 1), lanes, room, 4, False, False, False, False, False)
    found: list[tuple[float, int, int, int]] = []
    for vectors, high in itertools.product(range(1, min(4, columns) + 1), range(1, min(4, lines) + 1)):
        wide = vectors * high
        for channels in range(1, min(14 if wide == 1 else 8, (room - 2 - wide) // wide, slide.m) + 1):
            cost, code = 0.0, 0
            for c, v, h in itertools.product(_units(slide.m, channels), _units(columns, vectors), _units(lines, high)):
                cost += c[1] * v[1] * h[1] * step_cost(c[0], v[0] * h[0], shape)
                code += c[0] * v[0] * h[0] + 6
            found.append((cost * (1 + 0.001 * code), channels, high, vectors))
    return Tile(*min(found)[1:]) if found else Tile(1, 1, 1)


def _units(total: int, unit: int) -> list[tuple[int, int]]:
    """Sizes of the units a dim falls into, and how many there are of each."""
    return [(size, count) for size, count in ((unit, total // unit), (total % unit, 1)) if size and count]


# ---- the kernel


@dataclass(frozen=True)
class _Sliding:
    """A convolution that is being written."""

    slide: Slide
    tile: Tile
    pointers: int
    epilogue: Epilogue
    fused: bool

    @property
    def scalar(self) -> str:
        return self.slide.windows.source.scalar

    @property
    def kind(self) -> Type:
        return Type(self.scalar, self.slide.windows.lanes)

    @property
    def bands(self) -> int:
        """Parts of a sample's first dim that are pieces of their own."""
        samples, work = self.slide.windows.source.shape[0], self.slide.groups * self.slide.m * math.prod(self.slide.out)
        wanted = min(math.ceil(BANDS / samples), samples * work * self.slide.depth // PIECE)
        return max(1, min(wanted, math.ceil(self.slide.out[0] / self.unit(0))))

    def unit(self, dim: int) -> int:
        """Outputs of a tile along a dim."""
        dims = len(self.slide.out)
        if dim == dims - 1:
            return self.tile.vectors * self.slide.windows.lanes
        return self.tile.lines if dim == dims - 2 else 1

    @property
    def scratch(self) -> int:
        return aligned(self.slide.windows.elements * BYTES[self.scalar])

    @property
    def room(self) -> int:
        """Bytes for the results of a tile on their way to a long epilogue."""
        return self.tile.channels * self.tile.lines * self.tile.vectors * self.kind.bytes

    def emit(self, module: Module, name: str) -> Kernel:
        slide = self.slide
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
        f.back()
        return Kernel((Phase(name, math.prod(sizes)),), 0, self.scratch + (self.room if self.buffered else 0))

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
        sums = multiply(f, left, right, axes, taps, zeros(height * lines * len(masks), self.kind), self.fused)
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
        place = scaled(f, group, self.slide.c * windows.pitches[0])
        for dim, output in enumerate(outputs):
            place = f.add(place, scaled(f, output, windows.step(dim)))
        between = windows.step(len(outputs) - 2) if len(outputs) > 1 else 0
        places = tuple(line * between + j * windows.lanes for line in range(lines) for j in range(len(masks)))
        there = f.pointer(base, place, self.scalar)
        return Side(there, self.scalar, places, masks=tuple(masks) * lines if windows.direct else ())

    def weights(self, f: Function, group: Value, m: Value, height: int) -> Side:
        slide = self.slide
        place = f.add(scaled(f, group, slide.of_group), scaled(f, m, slide.of_m))
        there = f.pointer(f.params[slide.weight.pointer], f.add(place, constant(slide.start, I64)), self.scalar)
        return Side(there, self.scalar, tuple(i * slide.of_m for i in range(height)), spread=True)

    def depth(self, products: int) -> tuple[list[Axis], list[tuple[int, int]]]:
        """The loops over channels and places, of which the innermost are written out."""
        slide, windows, dims = self.slide, self.slide.windows, len(self.slide.kernel)
        inner = dims - 1  # the last dim always: its places need not be equally far apart
        while inner and math.prod(slide.kernel[inner - 1 :]) * products <= WRITTEN:
            inner -= 1
        axes = [Axis(slide.c, slide.of_c, windows.pitches[0])]
        for dim in range(inner):
            axes.append(Axis(slide.kernel[dim], slide.of_place[dim], slide.dilation[dim] * windows.pitches[1 + dim]))
        taps = []
        for places in itertools.product(*map(range, slide.kernel[inner:])):
            place = (0,) * inner + tuple(p * d for p, d in zip(places, slide.dilation[inner:], strict=True))
            weight = sum(p * s for p, s in zip(places, slide.of_place[inner:], strict=True))
            taps.append((weight, windows.offset(place)))
        return axes, taps

    # ---- long epilogues

    @property
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
