"""The kernel of a matrix product: packing, pieces, tiles, and the way of the results to the epilogue.

The work falls into pieces, which are blocks of rows and columns of one matrix of the batch. A piece goes over its register
tiles (`micro.py`). Operands that a tile could not read quickly are packed (`packing.py`): in a phase before, if several pieces
use the same, or else by the piece itself. How large blocks and tiles are is decided in `blocking.py`.

Results go to the epilogue straight from the registers. If that would be a lot of code, or if the depth is so large that it is
done in blocks, they go through a buffer in the thread's scratch memory.

A great depth with few results is shared out, too (`parts.py`).
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

from ..ir.blocking import Plan
from ..ir.builder import BYTES, I64, Function, Module, Type, Value, constant
from .problem import Epilogue, Fetch, Gemm, Operand, by_depth, distinct, matrices, straight
from ..ir.kernel import Phase
from ..ir.register_tile import Axis, Join, Side, first_lanes, multiply, scaled, zeros
from .packing import Source, pack_rows, pack_rows_by_depth, pack_straight, pack_turned, source
from .split_k import Parts
from ..ir.work_ranges import Span, aligned, block, parameters, share, unravel, whole

CHUNK = 16  # steps of the depth that are packed together: as many lines of memory as the first cache holds in one place
LINES = 600  # of epilogues in one kernel: if there were more, results go through a buffer


@dataclass(frozen=True)
class Place:
    """Where a tile finds an operand: where it is, or where it is packed, in shared or in scratch memory."""

    base: Value
    origin: Value  # row (of the left) or column (of the right operand) that is packed first


@dataclass(frozen=True)
class Product:
    """A product that is being written."""

    gemm: Gemm
    plan: Plan
    pointers: int
    epilogue: Epilogue
    join: Join
    fetch: Fetch | None = None  # what tiles ask for before they begin

    # ---- sizes

    @property
    def kind(self) -> Type:
        return Type(self.gemm.scalar, self.plan.lanes)

    @property
    def blocks(self) -> tuple[int, int]:
        """Of columns and of rows."""
        return min(self.plan.across, math.ceil(self.gemm.n / self.plan.width)), min(self.plan.down, self.tiles_down)

    @property
    def tiles_down(self) -> int:
        """Tiles that are below each other."""
        return math.ceil(self.gemm.m / self.plan.rows)

    @property
    def row_block(self) -> int:
        """Rows of a piece, at most."""
        return min(math.ceil(self.tiles_down / self.blocks[1]) * self.plan.rows, self.gemm.m)

    @property
    def column_block(self) -> int:
        """Columns of a piece, at most, in whole vectors."""
        tiles = math.ceil(math.ceil(self.gemm.n / self.plan.width) / self.blocks[0])
        return min(tiles * self.plan.width, self.vectors * self.plan.lanes)

    @property
    def vectors(self) -> int:
        """In a row of the result."""
        return math.ceil(self.gemm.n / self.plan.lanes)

    @property
    def size_a(self) -> int:
        """Bytes of a packed left operand: of one matrix, or of a piece's rows."""
        rows = self.row_block if self.plan.own_a else self.gemm.m
        return rows * self.gemm.steps * BYTES[self.gemm.cell]

    @property
    def size_b(self) -> int:
        columns = self.column_block if self.plan.own_b else self.vectors * self.plan.lanes
        return columns * self.gemm.steps * BYTES[self.gemm.cell]

    @property
    def shared_a(self) -> int:
        """Bytes in shared memory."""
        return aligned(self.size_a * matrices(self.gemm, self.gemm.a)) if self.plan.pack_a and not self.plan.own_a else 0

    @property
    def packed_size(self) -> int:
        b = aligned(self.size_b * matrices(self.gemm, self.gemm.b)) if self.plan.pack_b and not self.plan.own_b else 0
        return self.shared_a + b

    @cached_property
    def parts(self) -> Parts:
        """What parts of the depth leave, behind what is packed."""
        gemm = self.gemm
        return Parts(self.plan.parts, gemm.batch, gemm.m, gemm.n, self.kind, self.pointers, self.packed_size)

    @property
    def shared_size(self) -> int:
        return self.packed_size + self.parts.size

    @property
    def scratch_a(self) -> int:
        return aligned(self.size_a) if self.plan.pack_a and self.plan.own_a else 0

    @property
    def scratch_b(self) -> int:
        return aligned(self.size_b) if self.plan.pack_b and self.plan.own_b else 0

    @property
    def scratch_size(self) -> int:
        buffer = aligned(self.buffer_rows * self.buffer_columns * BYTES[self.gemm.scalar]) if self.buffered else 0
        return self.scratch_a + self.scratch_b + buffer

    @property
    def buffer_rows(self) -> int:
        """A piece's, if the depth is done in blocks; or else those of a tile, so that the buffer stays in the first cache."""
        return self.row_block if self.in_blocks else min(self.plan.rows, self.gemm.m)

    @property
    def buffer_columns(self) -> int:
        return self.column_block if self.in_blocks else self.plan.width

    @property
    def in_blocks(self) -> bool:
        """Whether a piece does its depth in blocks."""
        return self.plan.depth < self.gemm.steps or self.plan.parts > 1

    @cached_property
    def buffered(self) -> bool:
        """Whether results go through a buffer."""
        if self.in_blocks:
            return True
        trial = Function("trial", parameters(self.pointers))
        zero = constant(0, I64)
        self.epilogue(trial, [zero] * len(self.gemm.batch), zero, zero, constant(0, self.kind), None)
        lines = len(trial.lines) + len(trial.entry)
        rows = min(self.plan.rows, self.gemm.m) + self.gemm.m % self.plan.rows
        vectors = min(self.plan.vectors, self.vectors) + self.vectors % self.plan.vectors
        return lines > 12 and lines * rows * vectors > LINES

    # ---- packing

    def pack(self, module: Module, name: str) -> Phase:
        """The phase that packs what several pieces use: the right operand's pieces first, then the left operand's."""
        f = module.function(name, parameters(self.pointers))
        begin, end = f.params[-2:]
        chunks = math.ceil(self.gemm.steps / CHUNK)
        each_b = chunks if straight(self.gemm.b) else self.vectors
        each_a = chunks if by_depth(self.gemm.a) else self.tiles_down
        first = each_b * matrices(self.gemm, self.gemm.b) if self.plan.pack_b and not self.plan.own_b else 0
        second = each_a * matrices(self.gemm, self.gemm.a) if self.plan.pack_a and not self.plan.own_a else 0
        if first:
            with f.loop(begin, f.intrinsic("smin", end, constant(first, I64)) if second else end) as loop:
                *batch, part = unravel(f, loop.index, (*distinct(self.gemm, self.gemm.b), each_b))
                to = self.place_b(f, batch)
                if straight(self.gemm.b):
                    self.pack_b_straight(f, batch, whole(self.gemm.n), block(f, part, CHUNK, self.gemm.steps), to)
                else:
                    self.pack_b_turned(f, batch, block(f, part, 1, self.vectors), to)
        if second:
            start = f.intrinsic("smax", begin, constant(first, I64)) if first else begin
            with f.loop(start, end) as loop:
                index = f.sub(loop.index, constant(first, I64)) if first else loop.index
                *batch, part = unravel(f, index, (*distinct(self.gemm, self.gemm.a), each_a))
                to = self.place_a(f, batch)
                if by_depth(self.gemm.a):
                    self.pack_a(f, batch, whole(self.gemm.m), block(f, part, CHUNK, self.gemm.steps), to)
                else:
                    self.pack_a(f, batch, block(f, part, self.plan.rows, self.gemm.m), whole(self.gemm.steps), to)
        f.back()
        return Phase(name, first + second, aside=True)

    def pack_b_straight(self, f: Function, batch: list[Value], columns: Span, depth: Span, to: Place) -> None:
        gemm, lanes = self.gemm, self.plan.lanes
        matrix = self.source(f, gemm.b, batch)

        def panel(n: Value, count: int) -> None:
            there = f.pointer(to.base, scaled(f, f.sub(n, to.origin), gemm.steps), gemm.cell)
            pack_straight(f, matrix, there, n, count, lanes, depth.start, depth.stop)

        columns.each(f, self.plan.width, panel)

    def pack_b_turned(self, f: Function, batch: list[Value], vectors: Span, to: Place) -> None:
        """Vectors of columns, each into its place in a panel."""
        plan, gemm = self.plan, self.gemm
        matrix = self.source(f, gemm.b, batch)
        panels, edge = divmod(self.vectors, plan.vectors)
        rest = gemm.n % plan.lanes

        def one(vector: Value, count: int) -> None:
            panel, inside = unravel(f, vector, (panels + 1, plan.vectors))
            width = constant(plan.width, I64)
            if edge:
                narrow = constant(edge * plan.lanes, I64)
                width = f.select(f.compare("lt", panel, constant(panels, I64)), width, narrow)
            column = scaled(f, vector, plan.lanes)
            start = f.sub(scaled(f, panel, plan.width), to.origin)
            there = f.add(scaled(f, start, gemm.steps), scaled(f, inside, plan.lanes))
            pack_turned(f, matrix, f.pointer(to.base, there, gemm.cell), width, column, count, plan.lanes, gemm.k)

        full = self.vectors - bool(rest)
        if full:
            stop = f.intrinsic("smin", vectors.stop, constant(full, I64)) if rest else vectors.stop
            with f.loop(vectors.start, stop) as loop:
                one(loop.index, plan.lanes)
        if rest:
            with f.when(f.compare("gt", vectors.stop, constant(full, I64))):
                one(constant(full, I64), rest)

    def pack_a(self, f: Function, batch: list[Value], rows: Span, depth: Span, to: Place) -> None:
        gemm, lanes = self.gemm, self.plan.lanes
        matrix = self.source(f, gemm.a, batch)

        def panel(m: Value, count: int) -> None:
            there = f.pointer(to.base, scaled(f, f.sub(m, to.origin), gemm.steps), gemm.cell)
            if by_depth(gemm.a):
                pack_rows_by_depth(f, matrix, there, m, count, lanes, depth.start, depth.stop)
            else:
                pack_rows(f, matrix, there, m, count, lanes, gemm.k)

        rows.each(f, self.plan.rows, panel)

    def source(self, f: Function, operand: Operand, batch: list[Value]) -> Source:
        return source(f, operand, batch, self.gemm.scalar, pairs=self.gemm.k if self.gemm.pairs else 0)

    def place_a(self, f: Function, batch: list[Value]) -> Place:
        """Of a matrix's rows in shared memory."""
        return Place(self.matrix_in(f, 0, self.size_a, self.gemm.a, batch), constant(0, I64))

    def place_b(self, f: Function, batch: list[Value]) -> Place:
        return Place(self.matrix_in(f, self.shared_a, self.size_b, self.gemm.b, batch), constant(0, I64))

    def matrix_in(self, f: Function, offset: int, size: int, operand: Operand, batch: list[Value]) -> Value:
        base = f.pointer(f.params[self.pointers], offset, "i8")
        stride = size
        for index, count in zip(batch[::-1], distinct(self.gemm, operand)[::-1], strict=True):
            if count > 1:
                base = f.pointer(base, scaled(f, index, stride), "i8")
                stride *= count
        return base

    # ---- computing

    def compute(self, module: Module, name: str) -> Phase:
        f = module.function(name, parameters(self.pointers))
        begin, end = f.params[-2:]
        sizes = (*self.gemm.batch, self.plan.parts, *self.blocks)
        again = self.plan.pack_b and self.plan.own_b and self.blocks[1] > 1
        with f.loop(begin, end, carried=[constant(-1, I64)] if again else []) as loop:
            *batch, part, across, down = unravel(f, loop.index, sizes)
            rows = share(f, down, self.blocks[1], self.plan.rows, self.gemm.m)
            columns = share(f, across, self.blocks[0], self.plan.width, self.gemm.n)
            if again:
                strip = f.div(loop.index, constant(self.blocks[1], I64))
                Piece(self, f, batch, part, rows, columns, f.compare("ne", strip, loop.carried[0])).write()
                loop.next(strip)
            else:
                Piece(self, f, batch, part, rows, columns).write()
        f.back()
        return Phase(name, math.prod(sizes))


@dataclass(frozen=True)
class Piece:
    """A piece of a product that is being written."""

    work: Product
    f: Function
    batch: list[Value]
    part: Value  # of the depth
    rows: Span
    columns: Span
    other: Value | None = None  # whether its columns are others than those of the piece before: these are packed already

    def write(self) -> None:
        plan = self.work.plan
        _ = self.a, self.b, self.buffer  # written here, before the loops that use them
        if plan.pack_a and plan.own_a:
            self.pack_a()
        if plan.pack_b and plan.own_b:
            with nullcontext() if self.other is None else self.f.when(self.other):
                self.pack_b()
        if self.work.in_blocks:
            self.by_depth()
        else:
            self.tiles(None, None)

    def pack_a(self) -> None:
        f, steps = self.f, self.work.gemm.steps
        if not by_depth(self.work.gemm.a):
            self.work.pack_a(f, self.batch, self.rows, whole(steps), self.a)
            return
        with f.loop(0, math.ceil(steps / CHUNK)) as loop:
            self.work.pack_a(f, self.batch, self.rows, block(f, loop.index, CHUNK, steps), self.a)

    def pack_b(self) -> None:
        f, steps = self.f, self.work.gemm.steps
        if straight(self.work.gemm.b):
            with f.loop(0, math.ceil(steps / CHUNK)) as loop:
                self.work.pack_b_straight(f, self.batch, self.columns, block(f, loop.index, CHUNK, steps), self.b)
            return
        lanes = constant(self.work.plan.lanes, I64)
        up = f.add(self.columns.stop, constant(self.work.plan.lanes - 1, I64))
        vectors = Span(f.div(self.columns.start, lanes), f.div(up, lanes), False, self.work.vectors)
        self.work.pack_b_turned(f, self.batch, vectors, self.b)

    @cached_property
    def a(self) -> Place:
        """Of the left operand."""
        if not self.work.plan.pack_a:
            return Place(self.work.source(self.f, self.work.gemm.a, self.batch).base, constant(0, I64))
        if self.work.plan.own_a:
            return Place(self.f.params[self.work.pointers + 1], self.rows.start)
        return self.work.place_a(self.f, self.batch)

    @cached_property
    def b(self) -> Place:
        if not self.work.plan.pack_b:
            return Place(self.work.source(self.f, self.work.gemm.b, self.batch).base, constant(0, I64))
        if self.work.plan.own_b:
            scratch = self.f.params[self.work.pointers + 1]
            return Place(self.f.pointer(scratch, self.work.scratch_a, "i8"), self.columns.start)
        return self.work.place_b(self.f, self.batch)

    @cached_property
    def buffer(self) -> Value:
        offset = self.work.scratch_a + self.work.scratch_b
        return self.f.pointer(self.f.params[self.work.pointers + 1], offset, "i8")

    def by_depth(self) -> None:
        """One block of the depth after the other, with the sums in the buffer."""
        f, steps, depth = self.f, self.work.gemm.steps, self.work.plan.depth
        zero = constant(0, self.work.kind)
        size = self.work.buffer_rows * self.work.column_block
        with f.loop(0, size, self.work.plan.lanes) as loop:
            f.store(zero, f.pointer(self.buffer, loop.index, self.work.gemm.scalar))
        part = share(f, self.part, self.work.plan.parts, self.work.plan.unroll, steps)
        with f.loop(part.start, part.stop, depth) as loop:
            left = f.sub(part.stop, loop.index)
            self.tiles(loop.index, f.intrinsic("smin", left, constant(depth, I64)))
        self.finish(self.rows, self.columns)

    def tiles(self, start: Value | None, steps: Value | None) -> None:
        """All tiles, over the whole depth, or over some steps of it."""
        f, plan = self.f, self.work.plan

        def row(m: Value, height: int) -> None:
            self.columns.each(f, plan.width, lambda n, width: self.tile(m, height, n, width, start, steps))

        self.rows.each(f, plan.rows, row)

    def tile(self, m: Value, height: int, n: Value, width: int, start: Value | None, steps: Value | None) -> None:
        f, work, lanes = self.f, self.work, self.work.plan.lanes
        vectors = math.ceil(width / lanes)
        masks = [first_lanes(width - j * lanes, lanes) for j in range(vectors)]
        left, along_a = self.left(m, height)
        right, along_b = self.right(n, masks)
        if start is not None:
            left, right = left.at(f, start, along_a), right.at(f, start, along_b)
        if start is None and work.fetch is not None:
            for row, column in self.places(m, height, n, vectors):
                work.fetch(f, self.batch, row, column, lanes)
        sums = zeros(height * vectors, work.kind) if start is None else self.read(m, height, n, vectors)
        unroll = work.plan.unroll
        rounds = f.div(steps, constant(unroll, I64)) if steps is not None else work.gemm.steps // unroll
        axes = [Axis(rounds, along_a * unroll, along_b * unroll)]
        taps = [(u * along_a, u * along_b) for u in range(unroll)]
        sums = multiply(f, left, right, axes, taps, sums, work.join)
        if work.buffered:
            first = Span(m, f.add(m, constant(height, I64)), False, work.gemm.m) if start is None else self.rows
            columns = Span(n, f.add(n, constant(width, I64)), False, work.gemm.n) if start is None else self.columns
            self.put(first.start, columns.start, m, n, vectors, sums)
            if start is None:
                self.finish(first, columns)
            return
        for k, (row, column) in enumerate(self.places(m, height, n, vectors)):
            work.epilogue(f, self.batch, row, column, sums[k], masks[k % vectors])

    def places(self, m: Value, height: int, n: Value, vectors: int) -> list[tuple[Value, Value]]:
        """The row and the first column of each vector of a tile."""
        f, lanes = self.f, self.work.plan.lanes
        columns = [f.add(n, constant(j * lanes, I64)) for j in range(vectors)]
        return [(f.add(m, constant(i, I64)), column) for i in range(height) for column in columns]

    def left(self, m: Value, height: int) -> tuple[Side, int]:
        """A tile's rows, and how far it is from one step along the depth to the next."""
        f, gemm = self.f, self.work.gemm
        if not self.work.plan.pack_a:
            there = f.pointer(self.a.base, scaled(f, m, gemm.a.row), gemm.a.scalar)
            places = tuple(i * gemm.a.row for i in range(height))
            along = 2 if gemm.pairs else gemm.a.column
            return Side(there, gemm.a.scalar, places, spread=True, pairs=gemm.pairs), along
        there = f.pointer(self.a.base, scaled(f, f.sub(m, self.a.origin), gemm.steps), gemm.cell)
        row, along = (1, height) if by_depth(gemm.a) else (gemm.steps, 1)
        return Side(there, gemm.cell, tuple(i * row for i in range(height)), spread=True), along

    def right(self, n: Value, masks: list[Value | None]) -> tuple[Side, int]:
        f, gemm, lanes = self.f, self.work.gemm, self.work.plan.lanes
        places = tuple(j * lanes for j in range(len(masks)))
        if not self.work.plan.pack_b:
            there = f.pointer(self.b.base, scaled(f, n, gemm.b.column), gemm.b.scalar)
            return Side(there, gemm.b.scalar, places, masks=tuple(masks)), gemm.b.row
        there = f.pointer(self.b.base, scaled(f, f.sub(n, self.b.origin), gemm.steps), gemm.cell)
        return Side(there, gemm.cell, places), len(masks) * lanes

    # ---- the buffer of results

    def slot(self, first: Value, left: Value, m: Value, n: Value) -> Value:
        """Where a result is in the buffer, which begins with a row and a column."""
        f = self.f
        row = scaled(f, f.sub(m, first), self.work.buffer_columns)
        return f.pointer(self.buffer, f.add(row, f.sub(n, left)), self.work.gemm.scalar)

    def read(self, m: Value, height: int, n: Value, vectors: int) -> list[Value]:
        f, width, lanes = self.f, self.work.buffer_columns, self.work.plan.lanes
        slot = self.slot(self.rows.start, self.columns.start, m, n)
        places = [i * width + j * lanes for i in range(height) for j in range(vectors)]
        return [f.load(f.pointer(slot, place, self.work.gemm.scalar), self.work.kind) for place in places]

    def put(self, first: Value, left: Value, m: Value, n: Value, vectors: int, sums: list[Value]) -> None:
        f, width, lanes = self.f, self.work.buffer_columns, self.work.plan.lanes
        slot = self.slot(first, left, m, n)
        for i, value in enumerate(sums):
            place = i // vectors * width + i % vectors * lanes
            f.store(value, f.pointer(slot, place, self.work.gemm.scalar))

    def finish(self, rows: Span, columns: Span) -> None:
        """What is in the buffer, which are these rows and columns, goes to the epilogue."""
        f, work = self.f, self.work
        with f.loop(rows.start, rows.stop) as row:

            def one(n: Value, count: int) -> None:
                value = f.load(self.slot(rows.start, columns.start, row.index, n), work.kind)
                if work.plan.parts > 1:
                    f.store(value, work.parts.place(f, self.batch, self.part, row.index, n))
                else:
                    work.epilogue(f, self.batch, row.index, n, value, first_lanes(count, work.plan.lanes))

            columns.each(f, work.plan.lanes, one)
