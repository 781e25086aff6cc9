"""Tiled matmul kernel: packing, pieces, register tiles, and the path of results to the epilogue.

The work is cut into pieces: blocks of rows and columns of one matrix of the batch. A piece loops over its register tiles
(`codegen/llvm/ir/register_tile.py`). Operands that a tile could not read quickly are packed (`packing.py`): in a phase before
if several pieces use them, else by the piece itself. `codegen/llvm/ir/blocking.py` decides the sizes of blocks and tiles.

Results go to the epilogue straight from the registers. If that would be too much code, or if the depth is so large that it is
blocked, they go through a buffer in the thread's scratch memory.

A large depth with few results is split over pieces (`split_k.py`).
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

from ..ir.blocking import GemmPlan
from ..ir.builder import BYTES, I64, Function, Module, Type, Value, constant
from ..ir.kernel import Phase
from ..ir.register_tile import DepthLoop, MultiplyAdd, TileOperand, first_lanes, multiply_tile, scale_index, zero_sums
from ..ir.work_ranges import WorkRange, align, block_range, equal_share, kernel_parameters, unravel, whole_range
from .packing import MatrixSource, matrix_source, pack_panel, pack_rows, pack_rows_interleaved, pack_transposed
from .problem import (
    Epilogue,
    EpiloguePrefetch,
    GemmOperand,
    GemmProblem,
    count_matrices,
    distinct_batch,
    is_column_major,
    is_row_packed,
)
from .split_k import SplitK

PACK_STEPS = 16  # depth steps that are packed together: as many cache lines as one set of L1 holds
MAX_EPILOGUE_LINES = 600  # of IR, of all epilogues in one kernel: above, results go through a buffer


@dataclass(frozen=True)
class OperandPlace:
    """Address at which a tile reads an operand: in place, or packed in shared or scratch memory."""

    base: Value
    origin: Value  # first packed row (left operand) or column (right operand)


@dataclass(frozen=True)
class TiledGemm:
    """Emitter of one matmul kernel."""

    gemm: GemmProblem
    plan: GemmPlan
    pointers: int
    epilogue: Epilogue
    multiply_add: MultiplyAdd
    prefetch: EpiloguePrefetch | None = None  # emitted before each tile

    # ---- sizes

    @property
    def kind(self) -> Type:
        return Type(self.gemm.scalar, self.plan.lanes)

    @property
    def blocks(self) -> tuple[int, int]:
        """Numbers of pieces along columns and rows."""
        return min(self.plan.column_pieces, math.ceil(self.gemm.n / self.plan.width)), min(
            self.plan.row_pieces, self.tiles_down
        )

    @property
    def tiles_down(self) -> int:
        """Tiles along the rows."""
        return math.ceil(self.gemm.m / self.plan.rows)

    @property
    def row_block(self) -> int:
        """Rows of the largest piece."""
        return min(math.ceil(self.tiles_down / self.blocks[1]) * self.plan.rows, self.gemm.m)

    @property
    def column_block(self) -> int:
        """Columns of the largest piece, in whole vectors."""
        tiles = math.ceil(math.ceil(self.gemm.n / self.plan.width) / self.blocks[0])
        return min(tiles * self.plan.width, self.vectors * self.plan.lanes)

    @property
    def vectors(self) -> int:
        """Vectors in a row of the result."""
        return math.ceil(self.gemm.n / self.plan.lanes)

    @property
    def size_a(self) -> int:
        """Bytes of the packed left operand: of one matrix, or of a piece's rows."""
        rows = self.row_block if self.plan.per_piece_a else self.gemm.m
        return rows * self.gemm.steps * BYTES[self.gemm.cell]

    @property
    def size_b(self) -> int:
        columns = self.column_block if self.plan.per_piece_b else self.vectors * self.plan.lanes
        return columns * self.gemm.steps * BYTES[self.gemm.cell]

    @property
    def shared_a(self) -> int:
        """Bytes of shared memory for the packed left operand."""
        return (
            align(self.size_a * count_matrices(self.gemm, self.gemm.a)) if self.plan.pack_a and not self.plan.per_piece_a else 0
        )

    @property
    def packed_size(self) -> int:
        b = align(self.size_b * count_matrices(self.gemm, self.gemm.b)) if self.plan.pack_b and not self.plan.per_piece_b else 0
        return self.shared_a + b

    @cached_property
    def split_k(self) -> SplitK:
        """Partial sums of a split depth; they follow the packed operands in shared memory."""
        gemm = self.gemm
        return SplitK(self.plan.split_k, gemm.batch, gemm.m, gemm.n, self.kind, self.pointers, self.packed_size)

    @property
    def shared_size(self) -> int:
        return self.packed_size + self.split_k.size

    @property
    def scratch_a(self) -> int:
        return align(self.size_a) if self.plan.pack_a and self.plan.per_piece_a else 0

    @property
    def scratch_b(self) -> int:
        return align(self.size_b) if self.plan.pack_b and self.plan.per_piece_b else 0

    @property
    def scratch_size(self) -> int:
        buffer = align(self.buffer_rows * self.buffer_columns * BYTES[self.gemm.scalar]) if self.buffered else 0
        return self.scratch_a + self.scratch_b + buffer

    @property
    def buffer_rows(self) -> int:
        """Rows of a piece if the depth is blocked; else of a tile, so that the buffer stays in L1."""
        return self.row_block if self.in_blocks else min(self.plan.rows, self.gemm.m)

    @property
    def buffer_columns(self) -> int:
        return self.column_block if self.in_blocks else self.plan.width

    @property
    def in_blocks(self) -> bool:
        """True if a piece does its depth in blocks."""
        return self.plan.depth < self.gemm.steps or self.plan.split_k > 1

    @cached_property
    def buffered(self) -> bool:
        """True if results go through a buffer."""
        if self.in_blocks:
            return True
        trial = Function("trial", kernel_parameters(self.pointers))
        zero = constant(0, I64)
        self.epilogue(trial, [zero] * len(self.gemm.batch), zero, zero, constant(0, self.kind), None)
        lines = len(trial.lines) + len(trial.entry)
        rows = min(self.plan.rows, self.gemm.m) + self.gemm.m % self.plan.rows
        vectors = min(self.plan.vectors, self.vectors) + self.vectors % self.plan.vectors
        return lines > 12 and lines * rows * vectors > MAX_EPILOGUE_LINES

    # ---- packing

    def pack(self, module: Module, name: str) -> Phase:
        """Emit the phase that packs operands which several pieces use: the right operand first, then the left one."""
        f = module.function(name, kernel_parameters(self.pointers))
        begin, end = f.params[-2:]
        chunks = math.ceil(self.gemm.steps / PACK_STEPS)
        each_b = chunks if is_row_packed(self.gemm.b) else self.vectors
        each_a = chunks if is_column_major(self.gemm.a) else self.tiles_down
        first = each_b * count_matrices(self.gemm, self.gemm.b) if self.plan.pack_b and not self.plan.per_piece_b else 0
        second = each_a * count_matrices(self.gemm, self.gemm.a) if self.plan.pack_a and not self.plan.per_piece_a else 0
        if first:
            with f.loop(begin, f.intrinsic("smin", end, constant(first, I64)) if second else end) as loop:
                *batch, part = unravel(f, loop.index, (*distinct_batch(self.gemm, self.gemm.b), each_b))
                to = self.place_b(f, batch)
                if is_row_packed(self.gemm.b):
                    self.pack_b_panels(
                        f, batch, whole_range(self.gemm.n), block_range(f, part, PACK_STEPS, self.gemm.steps), to
                    )
                else:
                    self.pack_b_transposed(f, batch, block_range(f, part, 1, self.vectors), to)
        if second:
            start = f.intrinsic("smax", begin, constant(first, I64)) if first else begin
            with f.loop(start, end) as loop:
                index = f.sub(loop.index, constant(first, I64)) if first else loop.index
                *batch, part = unravel(f, index, (*distinct_batch(self.gemm, self.gemm.a), each_a))
                to = self.place_a(f, batch)
                if is_column_major(self.gemm.a):
                    self.pack_a(f, batch, whole_range(self.gemm.m), block_range(f, part, PACK_STEPS, self.gemm.steps), to)
                else:
                    self.pack_a(f, batch, block_range(f, part, self.plan.rows, self.gemm.m), whole_range(self.gemm.steps), to)
        f.ret()
        return Phase(name, first + second, auxiliary=True)

    def pack_b_panels(self, f: Function, batch: list[Value], columns: WorkRange, depth: WorkRange, to: OperandPlace) -> None:
        gemm, lanes = self.gemm, self.plan.lanes
        matrix = self.source(f, gemm.b, batch)

        def panel(n: Value, count: int) -> None:
            there = f.pointer(to.base, scale_index(f, f.sub(n, to.origin), gemm.steps), gemm.cell)
            pack_panel(f, matrix, there, n, count, lanes, depth.start, depth.stop)

        columns.each(f, self.plan.width, panel)

    def pack_b_transposed(self, f: Function, batch: list[Value], vectors: WorkRange, to: OperandPlace) -> None:
        """Pack vectors of columns, each into its place in a panel."""
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
            column = scale_index(f, vector, plan.lanes)
            start = f.sub(scale_index(f, panel, plan.width), to.origin)
            there = f.add(scale_index(f, start, gemm.steps), scale_index(f, inside, plan.lanes))
            pack_transposed(f, matrix, f.pointer(to.base, there, gemm.cell), width, column, count, plan.lanes, gemm.k)

        full = self.vectors - bool(rest)
        if full:
            stop = f.intrinsic("smin", vectors.stop, constant(full, I64)) if rest else vectors.stop
            with f.loop(vectors.start, stop) as loop:
                one(loop.index, plan.lanes)
        if rest:
            with f.when(f.compare("gt", vectors.stop, constant(full, I64))):
                one(constant(full, I64), rest)

    def pack_a(self, f: Function, batch: list[Value], rows: WorkRange, depth: WorkRange, to: OperandPlace) -> None:
        gemm, lanes = self.gemm, self.plan.lanes
        matrix = self.source(f, gemm.a, batch)

        def panel(m: Value, count: int) -> None:
            there = f.pointer(to.base, scale_index(f, f.sub(m, to.origin), gemm.steps), gemm.cell)
            if is_column_major(gemm.a):
                pack_rows_interleaved(f, matrix, there, m, count, lanes, depth.start, depth.stop)
            else:
                pack_rows(f, matrix, there, m, count, lanes, gemm.k)

        rows.each(f, self.plan.rows, panel)

    def source(self, f: Function, operand: GemmOperand, batch: list[Value]) -> MatrixSource:
        return matrix_source(f, operand, batch, self.gemm.scalar, pairs=self.gemm.k if self.gemm.pairs else 0)

    def place_a(self, f: Function, batch: list[Value]) -> OperandPlace:
        """Address of a packed matrix in shared memory."""
        return OperandPlace(self.matrix_in(f, 0, self.size_a, self.gemm.a, batch), constant(0, I64))

    def place_b(self, f: Function, batch: list[Value]) -> OperandPlace:
        return OperandPlace(self.matrix_in(f, self.shared_a, self.size_b, self.gemm.b, batch), constant(0, I64))

    def matrix_in(self, f: Function, offset: int, size: int, operand: GemmOperand, batch: list[Value]) -> Value:
        base = f.pointer(f.params[self.pointers], offset, "i8")
        stride = size
        for index, count in zip(batch[::-1], distinct_batch(self.gemm, operand)[::-1], strict=True):
            if count > 1:
                base = f.pointer(base, scale_index(f, index, stride), "i8")
                stride *= count
        return base

    # ---- computing

    def compute(self, module: Module, name: str) -> Phase:
        f = module.function(name, kernel_parameters(self.pointers))
        begin, end = f.params[-2:]
        sizes = (*self.gemm.batch, self.plan.split_k, *self.blocks)
        reuses = self.plan.pack_b and self.plan.per_piece_b and self.blocks[1] > 1
        with f.loop(begin, end, carried=[constant(-1, I64)] if reuses else []) as loop:
            *batch, part, across, down = unravel(f, loop.index, sizes)
            rows = equal_share(f, down, self.blocks[1], self.plan.rows, self.gemm.m)
            columns = equal_share(f, across, self.blocks[0], self.plan.width, self.gemm.n)
            if reuses:
                strip = f.div(loop.index, constant(self.blocks[1], I64))
                GemmPiece(self, f, batch, part, rows, columns, f.compare("ne", strip, loop.carried[0])).write()
                loop.next(strip)
            else:
                GemmPiece(self, f, batch, part, rows, columns).write()
        f.ret()
        return Phase(name, math.prod(sizes))


@dataclass(frozen=True)
class GemmPiece:
    """Emitter of one piece."""

    work: TiledGemm
    f: Function
    batch: list[Value]
    part: Value  # split-K range
    rows: WorkRange
    columns: WorkRange
    new_columns: Value | None = None  # true if its columns differ from the previous piece's, which are packed already

    def write(self) -> None:
        plan = self.work.plan
        _ = self.a, self.b, self.buffer  # emitted here, before the loops that use them
        if plan.pack_a and plan.per_piece_a:
            self.pack_a()
        if plan.pack_b and plan.per_piece_b:
            with nullcontext() if self.new_columns is None else self.f.when(self.new_columns):
                self.pack_b()
        if self.work.in_blocks:
            self.in_depth_blocks()
        else:
            self.tiles(None, None)

    def pack_a(self) -> None:
        f, steps = self.f, self.work.gemm.steps
        if not is_column_major(self.work.gemm.a):
            self.work.pack_a(f, self.batch, self.rows, whole_range(steps), self.a)
            return
        with f.loop(0, math.ceil(steps / PACK_STEPS)) as loop:
            self.work.pack_a(f, self.batch, self.rows, block_range(f, loop.index, PACK_STEPS, steps), self.a)

    def pack_b(self) -> None:
        f, steps = self.f, self.work.gemm.steps
        if is_row_packed(self.work.gemm.b):
            with f.loop(0, math.ceil(steps / PACK_STEPS)) as loop:
                self.work.pack_b_panels(f, self.batch, self.columns, block_range(f, loop.index, PACK_STEPS, steps), self.b)
            return
        lanes = constant(self.work.plan.lanes, I64)
        up = f.add(self.columns.stop, constant(self.work.plan.lanes - 1, I64))
        vectors = WorkRange(f.div(self.columns.start, lanes), f.div(up, lanes), False, self.work.vectors)
        self.work.pack_b_transposed(f, self.batch, vectors, self.b)

    @cached_property
    def a(self) -> OperandPlace:
        """Place of the left operand."""
        if not self.work.plan.pack_a:
            return OperandPlace(self.work.source(self.f, self.work.gemm.a, self.batch).base, constant(0, I64))
        if self.work.plan.per_piece_a:
            return OperandPlace(self.f.params[self.work.pointers + 1], self.rows.start)
        return self.work.place_a(self.f, self.batch)

    @cached_property
    def b(self) -> OperandPlace:
        if not self.work.plan.pack_b:
            return OperandPlace(self.work.source(self.f, self.work.gemm.b, self.batch).base, constant(0, I64))
        if self.work.plan.per_piece_b:
            scratch = self.f.params[self.work.pointers + 1]
            return OperandPlace(self.f.pointer(scratch, self.work.scratch_a, "i8"), self.columns.start)
        return self.work.place_b(self.f, self.batch)

    @cached_property
    def buffer(self) -> Value:
        offset = self.work.scratch_a + self.work.scratch_b
        return self.f.pointer(self.f.params[self.work.pointers + 1], offset, "i8")

    def in_depth_blocks(self) -> None:
        """One block of the depth after the other, with the sums in the buffer."""
        f, steps, depth = self.f, self.work.gemm.steps, self.work.plan.depth
        zero = constant(0, self.work.kind)
        size = self.work.buffer_rows * self.work.column_block
        with f.loop(0, size, self.work.plan.lanes) as loop:
            f.store(zero, f.pointer(self.buffer, loop.index, self.work.gemm.scalar))
        part = equal_share(f, self.part, self.work.plan.split_k, self.work.plan.unroll, steps)
        with f.loop(part.start, part.stop, depth) as loop:
            left = f.sub(part.stop, loop.index)
            self.tiles(loop.index, f.intrinsic("smin", left, constant(depth, I64)))
        self.finish(self.rows, self.columns)

    def tiles(self, start: Value | None, steps: Value | None) -> None:
        """All tiles, over the whole depth or over `steps` steps from `start`."""
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
        if start is None and work.prefetch is not None:
            for row, column in self.places(m, height, n, vectors):
                work.prefetch(f, self.batch, row, column, lanes)
        sums = zero_sums(height * vectors, work.kind) if start is None else self.read(m, height, n, vectors)
        unroll = work.plan.unroll
        rounds = f.div(steps, constant(unroll, I64)) if steps is not None else work.gemm.steps // unroll
        axes = [DepthLoop(rounds, along_a * unroll, along_b * unroll)]
        taps = [(u * along_a, u * along_b) for u in range(unroll)]
        sums = multiply_tile(f, left, right, axes, taps, sums, work.multiply_add)
        if work.buffered:
            first = WorkRange(m, f.add(m, constant(height, I64)), False, work.gemm.m) if start is None else self.rows
            columns = WorkRange(n, f.add(n, constant(width, I64)), False, work.gemm.n) if start is None else self.columns
            self.put(first.start, columns.start, m, n, vectors, sums)
            if start is None:
                self.finish(first, columns)
            return
        for k, (row, column) in enumerate(self.places(m, height, n, vectors)):
            work.epilogue(f, self.batch, row, column, sums[k], masks[k % vectors])

    def places(self, m: Value, height: int, n: Value, vectors: int) -> list[tuple[Value, Value]]:
        """Row and first column of each vector of a tile."""
        f, lanes = self.f, self.work.plan.lanes
        columns = [f.add(n, constant(j * lanes, I64)) for j in range(vectors)]
        return [(f.add(m, constant(i, I64)), column) for i in range(height) for column in columns]

    def left(self, m: Value, height: int) -> tuple[TileOperand, int]:
        """Left operand of a tile, and its stride along the depth."""
        f, gemm = self.f, self.work.gemm
        if not self.work.plan.pack_a:
            there = f.pointer(self.a.base, scale_index(f, m, gemm.a.row), gemm.a.scalar)
            places = tuple(i * gemm.a.row for i in range(height))
            along = 2 if gemm.pairs else gemm.a.column
            return TileOperand(there, gemm.a.scalar, places, broadcast=True, pairs=gemm.pairs), along
        there = f.pointer(self.a.base, scale_index(f, f.sub(m, self.a.origin), gemm.steps), gemm.cell)
        row, along = (1, height) if is_column_major(gemm.a) else (gemm.steps, 1)
        return TileOperand(there, gemm.cell, tuple(i * row for i in range(height)), broadcast=True), along

    def right(self, n: Value, masks: list[Value | None]) -> tuple[TileOperand, int]:
        f, gemm, lanes = self.f, self.work.gemm, self.work.plan.lanes
        places = tuple(j * lanes for j in range(len(masks)))
        if not self.work.plan.pack_b:
            there = f.pointer(self.b.base, scale_index(f, n, gemm.b.column), gemm.b.scalar)
            return TileOperand(there, gemm.b.scalar, places, masks=tuple(masks)), gemm.b.row
        there = f.pointer(self.b.base, scale_index(f, f.sub(n, self.b.origin), gemm.steps), gemm.cell)
        return TileOperand(there, gemm.cell, places), len(masks) * lanes

    # ---- the buffer of results

    def slot(self, first: Value, left: Value, m: Value, n: Value) -> Value:
        """Address of a result in the buffer, which begins at row `first` and column `left`."""
        f = self.f
        row = scale_index(f, f.sub(m, first), self.work.buffer_columns)
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

    def finish(self, rows: WorkRange, columns: WorkRange) -> None:
        """Hand the buffered results of these rows and columns to the epilogue."""
        f, work = self.f, self.work
        with f.loop(rows.start, rows.stop) as row:

            def one(n: Value, count: int) -> None:
                value = f.load(self.slot(rows.start, columns.start, row.index, n), work.kind)
                if work.plan.split_k > 1:
                    f.store(value, work.split_k.partial_address(f, self.batch, self.part, row.index, n))
                else:
                    work.epilogue(f, self.batch, row.index, n, value, first_lanes(count, work.plan.lanes))

            columns.each(f, work.plan.lanes, one)
