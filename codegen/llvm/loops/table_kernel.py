"""One kernel for many nests that do the same with buffers, numbers and sizes of their own (`siblings.py`): it finds these in a
table.

    table: how many there are, then for each
           where it begins, and its number of elements
           of each buffer: the word of the step's table that has its address, and how many bytes further on it is
           of each number: the word of the step's table

Elements count from the beginning of the first nest to the end of the last, and a piece is so many of them, of one nest or of
several. Each nest begins at a multiple of all widths of vectors, so that the same elements are a vector whoever computes them,
and some way after the end of the one before, as what it computes of numbers alone (a power of the step, say) takes time too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...nests.loop_nest import Nest
from ..ir.builder import I64, PTR, Module, Value, constant
from .expr_emitter import Emitter
from ..ir.kernel import Kernel, Phase
from .nest_emitter import PIECE, Writer
from ..ir.target import Target

WIDEST = 64  # elements that no vector has more of
OWN = 1024  # elements that take about as long as what is computed once for a nest


class Entry(NamedTuple):
    """A nest of many: where it begins, how many elements it has, what it is of."""

    begin: int
    size: int
    buffers: tuple[str, ...]
    numbers: tuple[int, ...]


def entries(nests: Sequence[Nest]) -> tuple[Entry, ...]:
    """The table, without knowing where anything is in memory."""
    found, begin = [], 0
    for nest in nests:
        found.append(Entry(begin, nest.domain.cols, tuple(nest.buffers()), tuple(nest.numbers())))
        begin += -(-(nest.domain.cols + OWN) // WIDEST) * WIDEST
    return tuple(found)


def pieces(of: Sequence[Entry]) -> int:
    return -(-(of[-1].begin + of[-1].size) // PIECE)


def emit_family(module: Module, name: str, nest: Nest, target: Target) -> Kernel:
    """`void function(ptr words, ptr table, ptr shared, ptr scratch, i64 begin, i64 end)`: what a nest says, for all of a table.
    How many pieces there are depends on the table."""
    return Family(module, name, nest, nest.buffers(), nest.numbers(), target).kernel()


class Family(Writer):
    """Writes the function of many nests by one of them."""

    def kernel(self) -> Kernel:
        self.ragged = self.lanes > 1  # some are
        given = [("words", PTR), ("table", PTR), ("shared", PTR), ("scratch", PTR), ("begin", I64), ("end", I64)]
        f = self.f = self.module.function(self.name, given)
        words, table, *_, begin, end = f.params
        first, last = f.mul(begin, constant(PIECE, I64)), f.mul(end, constant(PIECE, I64))
        width = 2 + 2 * len(self.buffers) + len(self.numbers)
        with f.loop(0, f.load(table, I64)) as which:
            entry = f.pointer(f.pointer(table, 1, "i64"), f.mul(which.index, constant(width, I64)), "i64")
            fields = iter(range(width))

            def field() -> Value:
                return f.load(f.pointer(entry, next(fields), "i64"), I64)

            start, size = field(), field()
            start, stop = f.sub(first, start), f.sub(last, start)
            start, stop = f.intrinsic("smax", start, constant(0, I64)), f.intrinsic("smin", stop, size)
            with f.when(f.compare("lt", start, stop)):
                pointers = {}
                for b in self.buffers:
                    base = f.load(f.pointer(words, field(), "i64"), PTR)
                    pointers[b] = f.pointer(base, field(), "i8")
                numbers = {n: f.pointer(words, field(), "i64") for n in self.numbers}
                self.emitter = Emitter(f, pointers, numbers, self.outer, self.inner, self.vector, self.lanes)
                self.emitter.ready(self.nest.expressions(), 0)
                self.row(constant(0, I64), start, stop)
        f.back()
        return Kernel((Phase(self.name, 0),))
