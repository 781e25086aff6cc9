"""Packs a convolution's half-precision weights before it: broadcasting an element takes longer for halves.

They are converted to floats, or laid out in pairs of two input channels. If a kernel's taps are contiguous they stay so;
otherwise weights are packed tap by tap, as the left operand of a matmul is.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ..gemm.packing import MatrixSource, matrix_source, pack_rows, pack_rows_interleaved
from ..gemm.problem import GemmOperand
from ..ir.builder import BYTES, I64, Function, Module, Value, constant
from ..ir.kernel import Phase
from ..ir.register_tile import PAIR, scale_index
from ..ir.work_ranges import align, kernel_parameters, unravel
from .input_layout import Ints
from .problem import DirectConv


@dataclass(frozen=True)
class WeightPacking:
    """Emitter of the packing phase, into the kernel's shared memory."""

    conv: DirectConv
    scalar: str  # of the sums
    pointers: int

    @property
    def cell(self) -> str:
        return PAIR if self.conv.pairs else self.scalar

    @property
    def places(self) -> int:
        return math.prod(self.conv.kernel)

    @property
    def bytes(self) -> int:
        return align(self.conv.groups * self.conv.m * self.conv.steps * self.places * BYTES[self.cell])

    @property
    def taps_contiguous(self) -> bool:
        """True if a kernel's taps are contiguous in memory, in order or reversed."""
        order = dense_strides(self.conv.kernel)
        return self.places > 1 and self.conv.of_place in (order, tuple(-s for s in order))

    @property
    def reversed(self) -> bool:
        return self.conv.of_place[-1] < 0

    @property
    def channels_interleaved(self) -> bool:
        """True if the output channels of one depth step are side by side."""
        return self.conv.of_m == 1 and self.conv.of_c != 1

    @property
    def packed(self) -> DirectConv:
        """The problem with the strides of packed weights, in cells."""
        conv, m, steps, places = self.conv, self.conv.m, self.conv.steps, self.places
        of_group = m * steps * places
        if self.taps_contiguous:
            sign = -1 if self.reversed else 1
            of_place = tuple(sign * s for s in dense_strides(conv.kernel))
            start = places - 1 if self.reversed else 0
            return replace(conv, of_group=of_group, of_m=steps * places, of_c=places, of_place=of_place, start=start)
        of_place = tuple(m * steps * s for s in dense_strides(conv.kernel))
        of_m, of_c = (1, m) if self.channels_interleaved else (steps, 1)
        return replace(conv, of_group=of_group, of_m=of_m, of_c=of_c, of_place=of_place, start=0)

    def emit(self, module: Module, name: str) -> Phase:
        """Emit the phase: a piece is an output channel, or a tap of the kernel in all of them."""
        f, conv = module.function(name, kernel_parameters(self.pointers)), self.conv
        each = conv.m if self.taps_contiguous else self.places
        with f.loop(f.params[-2], f.params[-1]) as piece:
            group, index = unravel(f, piece.index, (conv.groups, each))
            here = scale_index(f, group, conv.of_group)
            there = f.pointer(f.params[self.pointers], scale_index(f, group, self.packed.of_group), self.cell)
            if self.taps_contiguous:
                first = conv.start - (self.places - 1 if self.reversed else 0)
                matrix = self.matrix(f, f.add(here, f.add(scale_index(f, index, conv.of_m), constant(first, I64))), 1)
                to = f.pointer(there, scale_index(f, index, self.packed.of_m), self.cell)
                self.side_by_side(f, matrix, to, self.places)
            else:
                matrix = self.matrix(f, f.add(here, self.offset(f, index)), conv.of_m)
                to = f.pointer(there, scale_index(f, index, conv.m * conv.steps), self.cell)
                if self.channels_interleaved:
                    self.side_by_side(f, matrix, to, conv.m)
                else:
                    pack_rows(f, matrix, to, constant(0, I64), conv.m, conv.windows.lanes, conv.c)
        f.ret()
        return Phase(name, conv.groups * each)

    def matrix(self, f: Function, offset: Value, row: int) -> MatrixSource:
        """A matrix of rows `row` elements apart, with input channels as columns."""
        weight = self.conv.weight
        base = f.pointer(f.params[weight.pointer], offset, weight.scalar)
        operand = GemmOperand(weight.pointer, (), row, self.conv.of_c, weight.scalar)
        return matrix_source(f, operand, [], self.scalar, base, self.conv.c if self.conv.pairs else 0)

    def side_by_side(self, f: Function, matrix: MatrixSource, to: Value, count: int) -> None:
        start, stop = constant(0, I64), constant(self.conv.steps, I64)
        pack_rows_interleaved(f, matrix, to, start, count, self.conv.windows.lanes, start, stop)

    def offset(self, f: Function, place: Value) -> Value:
        """Offset of a tap."""
        found = constant(self.conv.start, I64)
        for index, stride in zip(unravel(f, place, self.conv.kernel), self.conv.of_place, strict=True):
            found = f.add(found, scale_index(f, index, stride))
        return found


def dense_strides(sizes: Ints) -> Ints:
    """Strides of a contiguous array."""
    return tuple(itertools.accumulate(sizes[:0:-1], lambda x, y: x * y, initial=1))[::-1]
