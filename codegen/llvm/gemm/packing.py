"""Packing: reads the operands of contractions and lays them out for the register tile.

A line reads vectors of an operand wherever it is: contiguous, strided, in half precision, or computed by a prologue. Packed
panels consist of cells: one element in the type it is computed in, or a pair of bfloats that are neighbours along the depth.
The packing functions copy an operand into panels, so that a tile finds what it needs side by side. They read it in memory
order: an operand whose panels lie across memory is packed a few steps of the depth at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.builder import BYTES, I64, Function, Type, Value, constant
from ..ir.register_tile import PAIR, first_lanes, interleave_pairs, scale_index, widen
from .problem import GemmOperand, LineReader


@dataclass(frozen=True)
class MatrixSource:
    """An operand of one matrix of the batch."""

    operand: GemmOperand
    batch: list[Value]
    base: Value  # address of the matrix
    scalar: str  # type it is computed in; bfloat if in pairs
    pairs: int = 0  # the depth, if cells are pairs; else 0

    @property
    def cell(self) -> str:
        return PAIR if self.pairs else self.scalar

    @property
    def cell_elements(self) -> int:
        """Elements in a cell."""
        return 2 if self.pairs else 1

    def address(self, f: Function, row: Value, column: Value) -> Value:
        place = f.add(scale_index(f, row, self.operand.row), scale_index(f, column, self.operand.column))
        return f.pointer(self.base, place, self.operand.scalar)

    def line(self, f: Function, along: str, other: Value) -> LineReader:
        """A reader along the rows of column `other` (`along` == "row"), or along the columns of row `other`."""
        operand = self.operand
        if operand.load is not None:
            computed = operand.load(f, self.batch, along, other)
            return lambda first, lanes, mask: self.convert(f, computed(first, lanes, mask))
        stride, fixed = (operand.row, operand.column) if along == "row" else (operand.column, operand.row)
        base = f.pointer(self.base, scale_index(f, other, fixed), operand.scalar)

        def loaded(first: Value, lanes: int, mask: Value | None) -> Value:
            where = f.pointer(base, scale_index(f, first, stride), operand.scalar)
            if stride == 1 or lanes == 1:
                return self.convert(f, f.load(where, Type(operand.scalar, lanes), mask))
            index = f.mul(f.steps(lanes), constant(stride, Type("i64", lanes)))
            return self.convert(f, f.gather(where, index, operand.scalar, mask))

        return loaded

    def convert(self, f: Function, value: Value) -> Value:
        shorter = self.pairs and value.type.scalar != self.scalar
        return f.convert("fptrunc", value, self.scalar) if shorter else widen(f, value, self.scalar)

    def cells_at(self, f: Function, along: str, index: Value) -> LineReader:
        """A reader of the cells at one step of the depth, across the depth."""
        if not self.pairs:
            return self.line(f, along, index)
        first = f.add(index, index)
        second = f.add(first, constant(1, I64))
        alone = f.compare("eq", second, constant(self.pairs, I64)) if self.pairs % 2 else None
        if alone is not None:
            second = f.select(alone, first, second)
        lines = [self.line(f, along, place) for place in (first, second)]

        def both(start: Value, lanes: int, mask: Value | None) -> Value:
            low, high = (line(start, lanes, mask) for line in lines)
            return interleave_pairs(f, low, high, alone)

        return both


def matrix_source(
    f: Function, operand: GemmOperand, batch: list[Value], scalar: str, base: Value | None = None, pairs: int = 0
) -> MatrixSource:
    """The matrix of an operand at these batch indices. It begins at `base` if given, else at the operand's parameter."""
    base = base or f.params[operand.pointer]
    for index, stride in zip(batch, operand.batch, strict=True):
        if stride:
            base = f.pointer(base, scale_index(f, index, stride), operand.scalar)
    return MatrixSource(operand, batch, base, "bfloat" if pairs else scalar, pairs)


def pack_panel(
    f: Function, matrix: MatrixSource, to: Value, first: Value, count: int, lanes: int, start: Value, stop: Value
) -> None:
    """Pack `count` columns from `first` on, for depth steps `start` to `stop`: row by row, padded to whole vectors."""
    width = -(-count // lanes) * lanes
    with f.loop(start, stop) as loop:
        there, line = f.pointer(to, scale_index(f, loop.index, width), matrix.cell), matrix.cells_at(f, "column", loop.index)
        for j in range(0, count, lanes):
            column = f.add(first, constant(j, I64)) if j else first
            f.store(line(column, lanes, first_lanes(count - j, lanes)), f.pointer(there, j, matrix.cell))


def pack_transposed(
    f: Function, matrix: MatrixSource, to: Value, step: Value, first: Value, count: int, lanes: int, k: int
) -> None:
    """Pack `count` columns from `first` on, at most a vector of them: row by row, `step` elements from row to row."""
    quad = 16 // BYTES[matrix.cell]
    if lanes % quad or k < quad * matrix.cell_elements:
        _pack_gathered(f, matrix, to, step, first, count, lanes, 0, -(-k // matrix.cell_elements))
    elif matrix.operand.load is not None:
        _pack_computed(f, matrix, to, step, first, count, lanes, k, quad)
    else:
        _pack_squares(f, matrix, to, step, first, count, lanes, k, quad)


def _pack_gathered(
    f: Function, matrix: MatrixSource, to: Value, step: Value, first: Value, count: int, lanes: int, start: int, stop: int
) -> None:
    mask = first_lanes(count, lanes)
    with f.loop(start, stop) as loop:
        vector = matrix.cells_at(f, "column", loop.index)(first, lanes, mask)
        f.store(vector, f.pointer(to, f.mul(loop.index, step), matrix.cell))


def _pack_squares(
    f: Function, matrix: MatrixSource, to: Value, step: Value, first: Value, count: int, lanes: int, k: int, quad: int
) -> None:
    """Pack columns that are contiguous in memory: read a few elements at a time and transpose in registers."""
    stride, scalar, cells = matrix.operand.column, matrix.operand.scalar, -(-k // matrix.cell_elements)
    full = k // matrix.cell_elements // quad * quad
    with f.loop(0, full, quad) as loop:
        corner = matrix.address(f, scale_index(f, loop.index, matrix.cell_elements), first)
        places = [f.pointer(corner, j * stride, scalar) for j in range(count)]
        parts = [_as_cells(f, f.load(place, Type(scalar, quad * matrix.cell_elements)), matrix) for place in places]
        parts += [constant(0, parts[0].type)] * (lanes - count)
        _store_transposed(f, [widen(f, v, matrix.scalar) for v in _concatenate(f, parts, quad)], to, loop.index, step)
    if full < cells:
        _pack_gathered(f, matrix, to, step, first, count, lanes, full, cells)


def _as_cells(f: Function, value: Value, matrix: MatrixSource) -> Value:
    """Reinterpret elements along the depth as pairs, if cells are pairs."""
    return f.bits(value, Type(PAIR, value.type.lanes // 2)) if matrix.pairs else value


def _pack_computed(
    f: Function, matrix: MatrixSource, to: Value, step: Value, first: Value, count: int, lanes: int, k: int, quad: int
) -> None:
    """Compute a vector of each column into a square on the stack, and transpose from there."""
    square, cell, some = f.stack(Type(matrix.cell), lanes * lanes), matrix.cell, lanes * matrix.cell_elements
    full, rest = divmod(k, some)

    def columns(row: Value, mask: Value | None) -> None:
        with f.loop(0, count) as column:
            vector = matrix.line(f, "row", f.add(first, column.index))(scale_index(f, row, matrix.cell_elements), some, mask)
            if matrix.pairs and mask is not None:
                vector = f.select(mask, vector, constant(0, vector.type))
            f.store(vector, f.pointer(square, scale_index(f, column.index, lanes), cell))

    def turn(row: Value, depth: int) -> None:
        for q in range(0, depth, quad):
            parts = [f.load(f.pointer(square, j * lanes + q, cell), Type(cell, quad)) for j in range(lanes)]
            _store_transposed(f, _concatenate(f, parts, quad), to, f.add(row, constant(q, I64)), step, min(quad, depth - q))

    for j in range(count, lanes):
        f.store(constant(0, Type(cell, lanes)), f.pointer(square, j * lanes, cell))
    if full:
        with f.loop(0, full * lanes, lanes) as loop:
            columns(loop.index, None)
            turn(loop.index, lanes)
    if rest:
        columns(constant(full * lanes, I64), first_lanes(rest, some))
        turn(constant(full * lanes, I64), -(-rest // matrix.cell_elements))


def _concatenate(f: Function, parts: list[Value], quad: int) -> list[Value]:
    """Vectors r = 0, 1, ... made of the parts r, r + quad, r + 2 quad, ..., concatenated."""
    found = []
    for r in range(quad):
        level = parts[r::quad]
        while len(level) > 1:
            both = 2 * level[0].type.lanes
            level = [f.shuffle(a, b, range(both)) for a, b in zip(level[::2], level[1::2], strict=True)]
        found.append(level[0])
    return found


def _store_transposed(f: Function, vectors: list[Value], to: Value, row: Value, step: Value, rows: int = 4) -> None:
    for r, vector in enumerate(_transpose_squares(f, vectors)[:rows]):
        place = f.mul(f.add(row, constant(r, I64)) if r else row, step)
        f.store(vector, f.pointer(to, place, vector.type.scalar))


def _transpose_squares(f: Function, vectors: list[Value]) -> list[Value]:
    """Transpose adjacent squares 16 bytes wide: 4 x 4 of floats, 2 x 2 of doubles."""
    if len(vectors) == 2:
        return [_zip(f, vectors[0], vectors[1], half) for half in (0, 1)]
    a, b, c, d = vectors
    pairs = [(_zip(f, a, c, half), _zip(f, b, d, half)) for half in (0, 1)]
    return [_zip(f, x, y, half) for x, y in pairs for half in (0, 1)]


def _zip(f: Function, a: Value, b: Value, half: int) -> Value:
    """Interleave the lower or the upper halves of each 16 bytes of two vectors."""
    lanes, quad = a.type.lanes, 16 // BYTES[a.type.scalar]
    found = []
    for group in range(0, lanes, quad):
        for i in range(quad // 2):
            place = group + half * (quad // 2) + i
            found += [place, lanes + place]
    return f.shuffle(a, b, found)


def pack_rows_interleaved(
    f: Function, matrix: MatrixSource, to: Value, first: Value, count: int, lanes: int, start: Value, stop: Value
) -> None:
    """Pack `count` rows from `first` on, for depth steps `start` to `stop`: the rows of one step side by side."""
    with f.loop(start, stop) as loop:
        there, line = f.pointer(to, scale_index(f, loop.index, count), matrix.cell), matrix.cells_at(f, "row", loop.index)
        for i in range(0, count, lanes):
            many = min(lanes, 1 << (count - i - 1).bit_length())
            mask = first_lanes(count - i, many)
            row = f.add(first, constant(i, I64)) if i else first
            f.store(line(row, many, mask), f.pointer(there, i, matrix.cell), mask)


def pack_rows(f: Function, matrix: MatrixSource, to: Value, first: Value, count: int, lanes: int, k: int) -> None:
    """Pack `count` rows from `first` on, one after the other, each in whole cells."""
    lanes, odd = lanes * matrix.cell_elements, k % matrix.cell_elements
    full, rest = k // lanes * lanes, k % lanes
    with f.loop(0, count) as row:
        there = f.pointer(to, scale_index(f, row.index, k + odd), matrix.scalar)
        line = matrix.line(f, "column", f.add(first, row.index))
        if full:
            with f.loop(0, full, lanes) as loop:
                f.store(line(loop.index, lanes, None), f.pointer(there, loop.index, matrix.scalar))
        if rest:
            mask = first_lanes(rest, lanes)
            vector = line(constant(full, I64), lanes, mask)
            if odd and mask is not None:  # computed lanes need not be 0 there
                vector = f.select(mask, vector, constant(0, vector.type))
            f.store(vector, f.pointer(there, full, matrix.scalar), first_lanes(rest + odd, lanes))
