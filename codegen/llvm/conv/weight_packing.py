"""Weights of a convolution that are halves, packed before it: a tile spreads them over lanes, which takes longer for halves.

They are converted to floats, or laid out in pairs of two input channels. A kernel of several places is gone through place by
place, so that what is neighbours in memory stays that; otherwise weights are packed as the left operand of a product is.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ..ir.builder import BYTES, I64, Function, Module, Value, constant
from ..gemm.problem import Operand
from ..ir.kernel import Phase
from ..ir.register_tile import PAIR, scaled
from ..gemm.packing import Source, pack_rows, pack_rows_by_depth, source
from .problem import Slide
from ..ir.work_ranges import aligned, parameters, unravel
from .input_layout import Ints


@dataclass(frozen=True)
class Packing:
    """Weights that are being packed, into the kernel's shared memory."""

    slide: Slide
    scalar: str  # that is added up in
    pointers: int

    @property
    def cell(self) -> str:
        return PAIR if self.slide.pairs else self.scalar

    @property
    def places(self) -> int:
        return math.prod(self.slide.kernel)

    @property
    def bytes(self) -> int:
        return aligned(self.slide.groups * self.slide.m * self.slide.steps * self.places * BYTES[self.cell])

    @property
    def together(self) -> bool:
        """Whether the places of a kernel are neighbours in memory, in their order or turned round."""
        order = dense(self.slide.kernel)
        return self.places > 1 and self.slide.of_place in (order, tuple(-s for s in order))

    @property
    def turned(self) -> bool:
        return self.slide.of_place[-1] < 0

    @property
    def by_depth(self) -> bool:
        """Whether output channels are side by side, for each step of the depth."""
        return self.slide.of_m == 1 and self.slide.of_c != 1

    @property
    def packed(self) -> Slide:
        """With the strides of packed weights, in cells."""
        slide, m, steps, places = self.slide, self.slide.m, self.slide.steps, self.places
        of_group = m * steps * places
        if self.together:
            sign = -1 if self.turned else 1
            of_place = tuple(sign * s for s in dense(slide.kernel))
            start = places - 1 if self.turned else 0
            return replace(slide, of_group=of_group, of_m=steps * places, of_c=places, of_place=of_place, start=start)
        of_place = tuple(m * steps * s for s in dense(slide.kernel))
        of_m, of_c = (1, m) if self.by_depth else (steps, 1)
        return replace(slide, of_group=of_group, of_m=of_m, of_c=of_c, of_place=of_place, start=0)

    def emit(self, module: Module, name: str) -> Phase:
        """A piece is an output channel, or a place of the kernel in all of them."""
        f, slide = module.function(name, parameters(self.pointers)), self.slide
        each = slide.m if self.together else self.places
        with f.loop(f.params[-2], f.params[-1]) as piece:
            group, index = unravel(f, piece.index, (slide.groups, each))
            here = scaled(f, group, slide.of_group)
            there = f.pointer(f.params[self.pointers], scaled(f, group, self.packed.of_group), self.cell)
            if self.together:
                first = slide.start - (self.places - 1 if self.turned else 0)
                matrix = self.matrix(f, f.add(here, f.add(scaled(f, index, slide.of_m), constant(first, I64))), 1)
                to = f.pointer(there, scaled(f, index, self.packed.of_m), self.cell)
                self.side_by_side(f, matrix, to, self.places)
            else:
                matrix = self.matrix(f, f.add(here, self.offset(f, index)), slide.of_m)
                to = f.pointer(there, scaled(f, index, slide.m * slide.steps), self.cell)
                if self.by_depth:
                    self.side_by_side(f, matrix, to, slide.m)
                else:
                    pack_rows(f, matrix, to, constant(0, I64), slide.m, slide.windows.lanes, slide.c)
        f.back()
        return Phase(name, slide.groups * each)

    def matrix(self, f: Function, offset: Value, row: int) -> Source:
        """Rows that lie so far apart, and input channels as columns."""
        weight = self.slide.weight
        base = f.pointer(f.params[weight.pointer], offset, weight.scalar)
        operand = Operand(weight.pointer, (), row, self.slide.of_c, weight.scalar)
        return source(f, operand, [], self.scalar, base, self.slide.c if self.slide.pairs else 0)

    def side_by_side(self, f: Function, matrix: Source, to: Value, count: int) -> None:
        start, stop = constant(0, I64), constant(self.slide.steps, I64)
        pack_rows_by_depth(f, matrix, to, start, count, self.slide.windows.lanes, start, stop)

    def offset(self, f: Function, place: Value) -> Value:
        """Of a place of the kernel."""
        found = constant(self.slide.start, I64)
        for index, stride in zip(unravel(f, place, self.slide.kernel), self.slide.of_place, strict=True):
            found = f.add(found, scaled(f, index, stride))
        return found


def dense(sizes: Ints) -> Ints:
    """Strides of elements without gaps."""
    return tuple(itertools.accumulate(sizes[:0:-1], lambda x, y: x * y, initial=1))[::-1]
