"""Direct convolution problems, shared by convolutions and their input gradients, and the choice of the register tile."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ..ir.blocking import GemmShape, step_cost
from ..ir.register_tile import PAIR
from .input_layout import ConvArray, Ints, PaddedInput

MAX_MERGED_RESULTS = 1 << 17  # of a sample, in scratch memory


@dataclass(frozen=True)
class DirectConv:
    """A kernel that slides over an input.

    result[sample, group, m, ...o] = sum over c and taps t of weight(group, m, c, t) * input(sample, group, c, o, t)
    """

    windows: PaddedInput
    weight: ConvArray
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
    start: int  # offset of the first tap's weight
    line: int = 0  # outputs of a line, if lines are merged: see `merge_lines`

    @property
    def pairs(self) -> bool:
        """True if a step of the depth is two input channels."""
        return self.windows.group > 0

    @property
    def steps(self) -> int:
        """Steps of the depth per tap."""
        return -(-self.c // 2) if self.pairs else self.c

    @property
    def depth(self) -> int:
        return self.steps * math.prod(self.kernel)

    @property
    def between(self) -> int:
        """Unneeded outputs between merged lines."""
        return self.windows.pitches[-1] - self.line if self.line else 0

    def step(self, dim: int) -> int:
        """Distance in the input between neighbouring outputs along a dim."""
        return 1 if dim == len(self.out) - 1 else self.windows.step(dim)


def with_channel_pairs(conv: DirectConv) -> DirectConv:
    """The problem with pairs of bfloat input channels."""
    return replace(conv, windows=replace(conv.windows, scalar=PAIR, group=conv.c))


def merge_lines(conv: DirectConv) -> DirectConv:
    """Merge the lines of the last two dims into one, where short lines would leave lanes idle.

    A line is then as long as in the input, and what is computed for its end is discarded.
    """
    windows, lanes = conv.windows, conv.windows.lanes
    if len(conv.out) == 1 or max(windows.stride[-2:]) > 1:
        return conv
    lines, line = conv.out[-2:]
    length = (lines - 1) * windows.pitches[-1] + line
    gain = math.ceil(line / lanes) * lines / math.ceil(length / lanes)
    exact = windows.pitches[-1] == line
    small = conv.m * math.prod(conv.out[:-2]) * length <= MAX_MERGED_RESULTS and conv.depth >= 32
    if gain < 1 or not (exact or (small and gain > 1.15)):
        return conv
    return replace(conv, out=(*conv.out[:-2], length), line=0 if exact else line)


@dataclass(frozen=True)
class ConvTile:
    """Register tile of a direct convolution."""

    channels: int
    lines: int  # of outputs, along the last dim but one
    vectors: int  # of a line


def choose_tile(conv: DirectConv, room: int) -> ConvTile:
    """The tile with the least modelled cost."""
    lanes = conv.windows.lanes
    lines, columns = (conv.out[-2] if len(conv.out) > 1 else 1), math.ceil(conv.out[-1] / lanes)
    shape = GemmShape(1, conv.m, columns * lanes, max(conv.depth, 1), lanes, room, 4, False, False, False, False, False)
    found: list[tuple[float, int, int, int]] = []
    for vectors, high in itertools.product(range(1, min(4, columns) + 1), range(1, min(4, lines) + 1)):
        wide = vectors * high
        for channels in range(1, min(14 if wide == 1 else 8, (room - 2 - wide) // wide, conv.m) + 1):
            cost, code = 0.0, 0
            for c, v, h in itertools.product(_units(conv.m, channels), _units(columns, vectors), _units(lines, high)):
                cost += c[1] * v[1] * h[1] * step_cost(c[0], v[0] * h[0], shape)
                code += c[0] * v[0] * h[0] + 6
            found.append((cost * (1 + 0.001 * code), channels, high, vectors))
    return ConvTile(*min(found)[1:]) if found else ConvTile(1, 1, 1)


def _units(total: int, unit: int) -> list[tuple[int, int]]:
    """Sizes of the units that a dim is cut into, with their counts."""
    return [(size, count) for size, count in ((unit, total // unit), (total % unit, 1)) if size and count]
