"""Operands of contractions, read and laid out for the register tile.

A `line` reads vectors of an operand wherever it is: next to each other, strided, as half floats, or computed by a prologue.
The packing functions copy an operand into panels, so that a tile finds what it needs side by side. They read it in the order it
has in memory: an operand whose panels lie across memory is packed a few steps of the depth at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from .builder import BYTES, I64, Function, Type, Value, constant
from .contraction import Line, Operand
from .micro import first_lanes, scaled, widened


@dataclass(frozen=True)
class Source:
    """An operand of one matrix of the batch."""

    operand: Operand
    batch: list[Value]
    base: Value  # where the matrix begins
    scalar: str  # that it is computed with

    def address(self, f: Function, row: Value, column: Value) -> Value:
        place = f.add(scaled(f, row, self.operand.row), scaled(f, column, self.operand.column))
        return f.pointer(self.base, place, self.operand.scalar)

    def line(self, f: Function, along: str, other: Value) -> Line:
        """What stands along the rows of a column ("row"), or along the columns of a row."""
        operand = self.operand
        if operand.load is not None:
            computed = operand.load(f, self.batch, along, other)
            return lambda first, lanes, mask: widened(f, computed(first, lanes, mask), self.scalar)
        stride, fixed = (operand.row, operand.column) if along == "row" else (operand.column, operand.row)
        base = f.pointer(self.base, scaled(f, other, fixed), operand.scalar)

        def loaded(first: Value, lanes: int, mask: Value | None) -> Value:
            where = f.pointer(base, scaled(f, first, stride), operand.scalar)
            if stride == 1 or lanes == 1:
                return widened(f, f.load(where, Type(operand.scalar, lanes), mask), self.scalar)
            index = f.mul(f.steps(lanes), constant(stride, Type("i64", lanes)))
            return widened(f, f.gather(where, index, operand.scalar, mask), self.scalar)

        return loaded


def source(f: Function, operand: Operand, batch: list[Value], scalar: str, base: Value | None = None) -> Source:
    """An operand of the matrix with these batch indices. It may begin elsewhere than its parameter: at `base`."""
    base = base or f.params[operand.pointer]
    for index, stride in zip(batch, operand.batch, strict=True):
        if stride:
            base = f.pointer(base, scaled(f, index, stride), operand.scalar)
    return Source(operand, batch, base, scalar)


def pack_straight(
    f: Function, matrix: Source, to: Value, first: Value, count: int, lanes: int, start: Value, stop: Value
) -> None:
    """A panel of `count` columns from `first` on, from row `start` to row `stop`: row by row, filled up to whole vectors."""
    width = -(-count // lanes) * lanes
    with f.loop(start, stop) as loop:
        there, line = f.pointer(to, scaled(f, loop.index, width), matrix.scalar), matrix.line(f, "column", loop.index)
        for j in range(0, count, lanes):
            column = f.add(first, constant(j, I64)) if j else first
            f.store(line(column, lanes, first_lanes(count - j, lanes)), f.pointer(there, j, matrix.scalar))


def pack_turned(f: Function, matrix: Source, to: Value, step: Value, first: Value, count: int, lanes: int, k: int) -> None:
    """`count` columns from `first` on, at most a vector of them, to `to`: row by row, `step` elements from row to row."""
    quad = 16 // BYTES[matrix.scalar]
    if lanes % quad or k < quad:
        _pack_gathered(f, matrix, to, step, first, count, lanes, 0, k)
    elif matrix.operand.load is not None:
        _pack_computed(f, matrix, to, step, first, count, lanes, k, quad)
    else:
        _pack_squares(f, matrix, to, step, first, count, lanes, k, quad)


def _pack_gathered(
    f: Function, matrix: Source, to: Value, step: Value, first: Value, count: int, lanes: int, start: int, stop: int
) -> None:
    mask = first_lanes(count, lanes)
    with f.loop(start, stop) as loop:
        vector = matrix.line(f, "column", loop.index)(first, lanes, mask)
        f.store(vector, f.pointer(to, f.mul(loop.index, step), matrix.scalar))


def _pack_squares(
    f: Function, matrix: Source, to: Value, step: Value, first: Value, count: int, lanes: int, k: int, quad: int
) -> None:
    """Columns that lie along memory are read a few elements at a time and turned in registers."""
    stride = matrix.operand.column
    with f.loop(0, k // quad * quad, quad) as loop:
        corner = matrix.address(f, loop.index, first)
        parts = [
            f.load(f.pointer(corner, j * stride, matrix.operand.scalar), Type(matrix.operand.scalar, quad))
            if j < count
            else constant(0, Type(matrix.operand.scalar, quad))
            for j in range(lanes)
        ]
        _store_turned(f, [widened(f, v, matrix.scalar) for v in _joined(f, parts, quad)], to, loop.index, step)
    if k % quad:
        _pack_gathered(f, matrix, to, step, first, count, lanes, k // quad * quad, k)


def _pack_computed(
    f: Function, matrix: Source, to: Value, step: Value, first: Value, count: int, lanes: int, k: int, quad: int
) -> None:
    """As many columns as there are lanes are computed a vector at a time into a square on the stack, and turned from there."""
    square = f.stack(Type(matrix.scalar), lanes * lanes)
    full = k // lanes * lanes

    def columns(row: Value, mask: Value | None) -> None:
        with f.loop(0, count) as column:
            vector = matrix.line(f, "row", f.add(first, column.index))(row, lanes, mask)
            f.store(vector, f.pointer(square, scaled(f, column.index, lanes), matrix.scalar))

    def turn(row: Value, depth: int) -> None:
        for q in range(0, depth, quad):
            parts = [f.load(f.pointer(square, j * lanes + q, matrix.scalar), Type(matrix.scalar, quad)) for j in range(lanes)]
            _store_turned(f, _joined(f, parts, quad), to, f.add(row, constant(q, I64)), step, min(quad, depth - q))

    for j in range(count, lanes):
        f.store(constant(0, Type(matrix.scalar, lanes)), f.pointer(square, j * lanes, matrix.scalar))
    if full:
        with f.loop(0, full, lanes) as loop:
            columns(loop.index, None)
            turn(loop.index, lanes)
    if k % lanes:
        columns(constant(full, I64), first_lanes(k % lanes, lanes))
        turn(constant(full, I64), k % lanes)


def _joined(f: Function, parts: list[Value], quad: int) -> list[Value]:
    """Vectors r = 0, 1, ... of the parts r, r + quad, r + 2 quad, ..., one after the other."""
    found = []
    for r in range(quad):
        level = parts[r::quad]
        while len(level) > 1:
            both = 2 * level[0].type.lanes
            level = [f.shuffle(a, b, range(both)) for a, b in zip(level[::2], level[1::2], strict=True)]
        found.append(level[0])
    return found


def _store_turned(f: Function, vectors: list[Value], to: Value, row: Value, step: Value, rows: int = 4) -> None:
    for r, vector in enumerate(_turned(f, vectors)[:rows]):
        place = f.mul(f.add(row, constant(r, I64)) if r else row, step)
        f.store(vector, f.pointer(to, place, vector.type.scalar))


def _turned(f: Function, vectors: list[Value]) -> list[Value]:
    """Squares of 16 bytes' width turned, next to each other: 4 x 4 of floats, 2 x 2 of doubles."""
    if len(vectors) == 2:
        return [_zip(f, vectors[0], vectors[1], half) for half in (0, 1)]
    a, b, c, d = vectors
    pairs = [(_zip(f, a, c, half), _zip(f, b, d, half)) for half in (0, 1)]
    return [_zip(f, x, y, half) for x, y in pairs for half in (0, 1)]


def _zip(f: Function, a: Value, b: Value, half: int) -> Value:
    """The elements of the lower or upper halves of each 16 bytes of two vectors, by turns."""
    lanes, quad = a.type.lanes, 16 // BYTES[a.type.scalar]
    found = []
    for group in range(0, lanes, quad):
        for i in range(quad // 2):
            place = group + half * (quad // 2) + i
            found += [place, lanes + place]
    return f.shuffle(a, b, found)


def pack_rows_by_depth(
    f: Function, matrix: Source, to: Value, first: Value, count: int, lanes: int, start: Value, stop: Value
) -> None:
    """A panel of `count` rows from `first` on, from a step of the depth to another one: side by side for each step."""
    with f.loop(start, stop) as loop:
        there, line = f.pointer(to, scaled(f, loop.index, count), matrix.scalar), matrix.line(f, "row", loop.index)
        for i in range(0, count, lanes):
            many = min(lanes, 1 << (count - i - 1).bit_length())
            mask = first_lanes(count - i, many)
            row = f.add(first, constant(i, I64)) if i else first
            f.store(line(row, many, mask), f.pointer(there, i, matrix.scalar), mask)


def pack_rows(f: Function, matrix: Source, to: Value, first: Value, count: int, lanes: int, k: int) -> None:
    """A panel of `count` rows from `first` on: one after the other."""
    full = k // lanes * lanes
    with f.loop(0, count) as row:
        there, line = f.pointer(to, scaled(f, row.index, k), matrix.scalar), matrix.line(f, "column", f.add(first, row.index))

        def some(column: Value, mask: Value | None, line: Line = line, there: Value = there) -> None:
            f.store(line(column, lanes, mask), f.pointer(there, column, matrix.scalar), mask)

        if full:
            with f.loop(0, full, lanes) as loop:
                some(loop.index, None)
        if k % lanes:
            some(constant(full, I64), first_lanes(k % lanes, lanes))
