"""Table kernel: one kernel for many nests with the same body but different buffers, scalars and sizes
(`codegen/nests/horizontal_fusion.py`), which it reads from a table.

    table: number of entries, then per entry
           where it begins, and its number of elements
           per buffer: word of the step's table with its address, and an offset in bytes
           per scalar: word of the step's table

Elements are numbered from the beginning of the first nest to the end of the last; a piece is a range of them, within one
nest or across several. Each nest begins at a multiple of all vector widths, so that the same elements form a vector
whichever piece computes them, and at some distance from the one before, as its per-nest setup (a power of the step count,
say) takes time too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...nests.loop_nest import Nest
from ..ir.builder import I64, PTR, Module, Value, constant
from ..ir.kernel import NativeKernel, Phase
from ..ir.target import Target
from .expr_emitter import ExprEmitter
from .nest_emitter import MIN_PIECE_ELEMENTS, NestWriter

MAX_LANES = 64  # of any target's vectors
SETUP_ELEMENTS = 1024  # elements that take about as long as the setup of a nest


class TableEntry(NamedTuple):
    """One nest of the table: its first element, its size, its buffers and scalars."""

    begin: int
    size: int
    buffers: tuple[str, ...]
    numbers: tuple[int, ...]


def table_entries(nests: Sequence[Nest]) -> tuple[TableEntry, ...]:
    """The table, before addresses are known."""
    found, begin = [], 0
    for nest in nests:
        found.append(TableEntry(begin, nest.domain.cols, tuple(nest.buffers()), tuple(nest.numbers())))
        begin += -(-(nest.domain.cols + SETUP_ELEMENTS) // MAX_LANES) * MAX_LANES
    return tuple(found)


def count_pieces(of: Sequence[TableEntry]) -> int:
    return -(-(of[-1].begin + of[-1].size) // MIN_PIECE_ELEMENTS)


def emit_table_kernel(module: Module, name: str, nest: Nest, target: Target) -> NativeKernel:
    """Emit `void function(ptr words, ptr table, ptr shared, ptr scratch, i64 begin, i64 end)`, which runs `nest` for all
    entries of a table. The number of pieces depends on the table."""
    return TableKernelWriter(module, name, nest, nest.buffers(), nest.numbers(), target).kernel()


class TableKernelWriter(NestWriter):
    """Emits the function of many nests, from one of them."""

    def kernel(self) -> NativeKernel:
        self.ragged = self.lanes > 1  # some nests are
        given = [("words", PTR), ("table", PTR), ("shared", PTR), ("scratch", PTR), ("begin", I64), ("end", I64)]
        f = self.f = self.module.function(self.name, given)
        words, table, *_, begin, end = f.params
        first, last = f.mul(begin, constant(MIN_PIECE_ELEMENTS, I64)), f.mul(end, constant(MIN_PIECE_ELEMENTS, I64))
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
                self.emitter = ExprEmitter(f, pointers, numbers, self.outer, self.inner, self.vector, self.lanes)
                self.emitter.hoist(self.nest.expressions(), 0)
                self.row(constant(0, I64), start, stop)
        f.ret()
        return NativeKernel((Phase(self.name, 0),))
