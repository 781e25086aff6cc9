"""Deterministic scatter-add: in a fixed order, by sorting.

Each added element, or row of them, has a number and a target. The two form one 64-bit word, with the target in the high bits,
so that in sorted order the words of a target are adjacent, and in the order in which eager execution adds them. Blocks of words
are sorted; the rank of a word overall is the number of smaller words, which a binary search in each block finds. The program at
the first word of a target then adds up all of its words. All other targets are 0.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...ir.index import Index
from ...nests.loop_nest import Nest
from ..printing import scalar_ops as ops
from ..printing.expr_printer import LARGE, Body, Scope, identifier
from ..printing.kernel_text import HEADER, Argument, Kernel, Printed, arguments_of, documentation, function, kernel_name
from ..printing.scalar_ops import TYPES
from ..printing.tiling import TILE, power_above, tile_of
from .nest_printer import Printer

MAX_BLOCK, MIN_BLOCK = 1024, 16  # words that are sorted together, at most and at least
SEARCHED = 256  # words of a program that finds their places
STRIP = 256  # columns of a program that adds
NAMES = {"at", "before", "first", "i", "key", "more", "number", "there", "total", "word"}


class Sorting:
    """Prints up to three kernels: sorted blocks of words and zeros, the merge of all words, and the sums."""

    def __init__(self, nest: Nest, size: int, wide: str) -> None:
        (self.row,) = nest.scatters
        self.nest = nest
        self.size = size  # elements of the target
        self.wide = wide  # the dtype of sums
        self.name = kernel_name(nest)
        domain, index = nest.domain, self.row.index
        self.whole = index.factor(domain.c) == 1 and domain.cols > 1 and apart(index.without(domain.c), domain.cols)
        self.count = domain.rows if self.whole else domain.rows * domain.cols
        self.key, self.step, self.start = in_steps(index.without(domain.c) if self.whole else index)
        self.block = min(max(power_above(self.count), MIN_BLOCK), MAX_BLOCK)
        self.blocks = max(-(-self.count // self.block), 1)
        self.shift = (self.blocks * self.block - 1).bit_length()  # bits of a word's number
        self.arguments = arguments_of(nest)
        self.target = next(a for a in self.arguments if a.buffer == self.row.buffer)
        self.words, self.ordered = (self.scratch(x) for x in ("words", "ordered"))

    def scratch(self, what: str) -> Argument:
        name = f"{identifier(self.row.buffer)}_{what}"
        return Argument(name, f"*{TYPES['int64']}", buffer=name)

    def printed(self) -> Printed:
        several = self.blocks > 1
        found = [self.sorting(), *[self.searching()] * several, self.adding()]
        scratch = {a.buffer: ("int64", self.blocks * self.block) for a in (self.words, *[self.ordered] * several)}
        source = HEADER + "".join(function(k.name, list(k.arguments), lines) for k, lines in found)
        return Printed(source, [k for k, _ in found], scratch)

    def body(self, arguments: list[Argument], rows: int, columns: int) -> tuple[Printer, Body]:
        tile = replace(tile_of(self.nest), way="tiles", block_r=rows, block_c=columns, loops=False, splits=False, parts=1)
        printer = Printer(self.nest, tile, arguments)
        printer.body.taken |= NAMES
        return printer, printer.body

    # ---- words

    def sorting(self) -> tuple[Kernel, list[str]]:
        """Print the first kernel: some programs sort blocks of words, the others write zeros."""
        arguments = [*self.arguments, self.words]
        _, body = self.body(arguments, self.block, 1)
        scope = Scope(2)
        body.scopes = {"program": scope, "rows": scope, "columns": scope}
        scope.add(f"number = program * {self.block} + tl.arange(0, {self.block})")
        scope.add(f"there = number < {self.count}")
        self.find_element(scope, "tl.where(there, number, 0)")
        conditions = " & ".join(["there", *body.picks([self.key])])
        scope.add(f"key = tl.where({conditions}, ({body.index(self.key)}).to(tl.int64), {self.size})")
        scope.add(f"tl.store({self.words.name} + number, tl.sort((key << {self.shift}) | number))")
        zeros, zero = Scope(2), ops.literal(0.0 if ops.floating(self.row.dtype) else 0)
        zeros.add(
            f"i = (program - {self.blocks}){'.to(tl.int64)' if self.size >= LARGE else ''} * {TILE} + tl.arange(0, {TILE})"
        )
        mask = f", mask=i < {self.size}" if self.size % TILE else ""
        zeros.add(f"tl.store({self.target.name} + i, tl.full([{TILE}], {zero}, tl.{self.row.dtype}){mask})")
        lines = [f'    """Numbers of what is added in blocks of {self.block}, by targets in order; and zeros."""']
        lines += ["    program = tl.program_id(0)", f"    if program < {self.blocks}:", *scope.lines, "    else:", *zeros.lines]
        grid = self.blocks + -(-self.size // TILE)
        return Kernel(f"{self.name}_sorted", tuple(arguments), grid, 4), lines

    def find_element(self, scope: Scope, number: str) -> None:
        """Define the row, and for single elements the column, that a number stands for."""
        cols = self.nest.domain.cols
        scope.add(f"r = {number}" if self.whole or cols == 1 else f"r = {number} // {cols}")
        if not self.whole and cols > 1:
            scope.add(f"c = {number} % {cols}")

    def searching(self) -> tuple[Kernel, list[str]]:
        scope = Scope(1)
        scope.add('"""All words in order: how many there are before each is found by a search in each block."""')
        scope.add("program = tl.program_id(0)")
        scope.add(f"word = tl.load({self.words.name} + program * {SEARCHED} + tl.arange(0, {SEARCHED}))")
        scope.add(f"place = tl.full([{SEARCHED}], 0, tl.int32)")
        scope.add(f"for block in range(0, {self.blocks}):")
        inner = Scope(2)
        inner.add(f"first = {self.words.name} + block * {self.block}")
        inner.add(f"before = tl.full([{SEARCHED}], 0, tl.int32)")
        step = self.block // 2
        while step:
            inner.add(f"before += tl.where(tl.load(first + before + {step - 1}) < word, {step}, 0)")
            step //= 2
        inner.add("place += before + tl.where(tl.load(first + before) < word, 1, 0)")
        scope.lines += inner.lines
        scope.add(f"tl.store({self.ordered.name} + place, word)")
        arguments = (self.words, self.ordered)
        return Kernel(f"{self.name}_ordered", arguments, self.blocks * self.block // SEARCHED, 4), scope.lines

    # ---- sums

    def adding(self) -> tuple[Kernel, list[str]]:
        words, cols = (self.ordered if self.blocks > 1 else self.words), self.nest.domain.cols
        arguments = [*self.arguments, words]
        columns = min(power_above(cols), STRIP) if self.whole else 1
        rows = max(TILE // columns, 2)
        strips = -(-cols // columns) if self.whole else 1
        printer, body = self.body(arguments, rows, columns)
        scope, loop = body.scopes["program"], Scope(2)
        axis = "[:, None]" if columns > 1 else ""
        scope.add("program = tl.program_id(0)")
        if self.whole:
            printer.define_columns(scope, f"(program % {strips}) * {columns} + " if strips > 1 else "")
        block = f"(program // {strips})" if strips > 1 else "program"
        scope.add(f"at = ({block} * {rows} + tl.arange(0, {rows})){axis}")
        scope.add(f"word = tl.load({words.name} + at, mask=at < {self.count}, other=-1)")
        scope.add(f"before = tl.load({words.name} + at - 1, mask=(at > 0) & (at < {self.count}), other=-1)")
        scope.add(f"key = word >> {self.shift}")
        scope.add(f"first = (key >= 0) & (key != (before >> {self.shift})) & (key < {self.size})")
        scope.add("more = first")
        scope.add(f"total = tl.full({body.shape(body.blocked(True, True))}, 0, tl.{self.wide})")
        body.scopes |= {"rows": loop} if self.whole else {"rows": loop, "columns": loop}
        self.find_element(loop, f"tl.where(more, word & {(1 << self.shift) - 1}, 0)")
        body.masks["r"] = "more"
        value = body.spread(self.value(body), body.axes(self.row.expr), body.blocked(True, True))
        loop.add(f"total = tl.where(more, total + {value}, total)")
        loop.add("at += 1")
        loop.add(f"word = tl.load({words.name} + at, mask=more & (at < {self.count}), other=-1)")
        loop.add(f"more = more & ((word >> {self.shift}) == key)")
        scope.add("while tl.max(tl.ravel(more.to(tl.int32)), axis=0) > 0:")
        scope.lines += loop.lines
        found = ops.to_memory(ops.cast("total", self.wide, self.row.dtype), self.row.dtype)
        masks = " & ".join(["first", *["in_cols"] * ("c" in body.masks)])
        place = f"key * {self.step}" + f" + {self.start}" * bool(self.start) + " + c" * self.whole
        scope.add(f"tl.store({self.target.name} + ({place}), {found}, mask={masks})")
        grid = -(-self.count // rows) * strips
        return Kernel(self.name, tuple(arguments), grid, 4), [*documentation(self.nest), *scope.lines]

    def value(self, body: Body) -> str:
        return ops.cast(body.value(self.row.expr), self.row.expr.dtype, self.wide)


def in_steps(index: Index) -> tuple[Index, int, int]:
    """Factor an index into key * step + start: the multiplication tells the compiler that targets are multiples of the step,
    and thus which stores can be vectorised."""
    if not index.terms or any(n < 0 for _, n in index.terms):
        return index, 1, 0
    step = math.gcd(*[n for _, n in index.terms])
    return Index(tuple((a, n // step) for a, n in index.terms)), step, index.const


def apart(index: Index, cols: int) -> bool:
    """True if rows of `cols` columns at any two different values of an index do not overlap."""
    found = math.gcd(*[n for _, n in index.terms])
    return found == 0 or found >= cols
