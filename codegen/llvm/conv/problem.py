"""A kernel that slides over an input: what a convolution and the gradient of its input have in common, and the tile for it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ..ir.blocking import Shape, step_cost
from ..ir.register_tile import PAIR
from .input_layout import Array, Ints, Windows

FLAT = 1 << 17  # results of a sample that may wait in scratch memory


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
    line: int = 0  # outputs of a line, if lines are gone through as one: see `flat`

    @property
    def pairs(self) -> bool:
        """Whether a step of the depth is two input channels."""
        return self.windows.group > 0

    @property
    def steps(self) -> int:
        """Of the depth, for each place."""
        return -(-self.c // 2) if self.pairs else self.c

    @property
    def depth(self) -> int:
        return self.steps * math.prod(self.kernel)

    @property
    def between(self) -> int:
        """Lines that are gone through as one have outputs between them that nobody wants."""
        return self.windows.pitches[-1] - self.line if self.line else 0

    def step(self, dim: int) -> int:
        """From an output to the next one along a dim, in the input."""
        return 1 if dim == len(self.out) - 1 else self.windows.step(dim)


def paired(slide: Slide) -> Slide:
    """The same with two input channels of bfloats at a time."""
    return replace(slide, windows=replace(slide.windows, scalar=PAIR, group=slide.c))


def flat(slide: Slide) -> Slide:
    """Short lines would leave lanes idle: all lines of the last two dims as one, where that is better.

    A line is then as long as in the input, and what is computed for its end is thrown away.
    """
    windows, lanes = slide.windows, slide.windows.lanes
    if len(slide.out) == 1 or max(windows.stride[-2:]) > 1:
        return slide
    lines, line = slide.out[-2:]
    length = (lines - 1) * windows.pitches[-1] + line
    gain = math.ceil(line / lanes) * lines / math.ceil(length / lanes)
    exact = windows.pitches[-1] == line
    small = slide.m * math.prod(slide.out[:-2]) * length <= FLAT and slide.depth >= 32
    if gain < 1 or not (exact or (small and gain > 1.15)):
        return slide
    return replace(slide, out=(*slide.out[:-2], length), line=0 if exact else line)


@dataclass(frozen=True)
class Tile:
    channels: int
    lines: int  # of outputs, along the last dim but one
    vectors: int  # of a line


def tile_for(slide: Slide, room: int) -> Tile:
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
