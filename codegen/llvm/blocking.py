"""How a matrix product is cut up: the register tile, blocks for the caches and the threads, and what is packed.

A plan depends on the product and the target alone, not on the number of threads. It is chosen by a small model of what a plan
costs, in cycles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PIECE = 1 << 18  # multiplications that are worth handing to another thread
PIECES = 32  # as many pieces are enough to keep eight threads busy
L1 = 32 << 10  # bytes that a tile's operands may take there
L2 = 1 << 20  # bytes that a block's operands may take there


@dataclass(frozen=True)
class Shape:
    """What a plan depends on."""

    batch: int
    m: int
    n: int
    k: int
    lanes: int  # of a full vector
    registers: int
    size: int  # bytes of an accumulator
    pack_a: bool  # must be packed
    pack_b: bool


@dataclass(frozen=True)
class Plan:
    lanes: int
    rows: int  # of a register tile
    vectors: int  # of a register tile
    row_block: int  # rows of a piece, a multiple of `rows`
    column_block: int  # columns of a piece, a multiple of `vectors` * `lanes`
    depth: int  # steps of the depth that are done before going on to the next tile
    unroll: int
    pack_a: bool
    pack_b: bool
    rows_outside: bool  # the loop over panels of columns is inside the one over rows

    @property
    def width(self) -> int:
        return self.vectors * self.lanes


def choose(shape: Shape) -> Plan:
    lanes = min(shape.lanes, 1 << (shape.n - 1).bit_length())
    rows, vectors = tile(shape, lanes)
    width = vectors * lanes
    row_block, column_block = blocks(shape, rows, width)
    depth = shape.k if shape.k <= 1536 else math.ceil(shape.k / math.ceil(shape.k / 768) / 4) * 4
    pack_b = shape.pack_b or (shape.m >= 8 * rows and shape.k * shape.n * shape.size > L2)
    small = depth * width * shape.size <= L1
    return Plan(lanes, rows, vectors, row_block, column_block, depth, unrolled(shape.k, depth), shape.pack_a, pack_b, not small)


def tile(shape: Shape, lanes: int) -> tuple[int, int]:
    """Rows and vectors of the register tile: the pair that wastes least on this shape."""
    best, found = math.inf, (1, 1)
    columns = math.ceil(shape.n / lanes)
    for vectors in range(1, min(4, columns) + 1):
        most = (shape.registers - 2 - vectors) // vectors if vectors > 1 else shape.registers - 4
        for rows in range(1, min(most, shape.m, 14) + 1):
            cost = _work(shape.m, rows, columns, vectors)
            if cost < best:
                best, found = cost, (rows, vectors)
    return found


def _work(m: int, rows: int, columns: int, vectors: int) -> float:
    """Cycles that a step along the depth takes over the whole product, roughly; and a little for each kind of tile."""
    total = 0.0
    for height, down in ((rows, m // rows), (m % rows, 1)):
        for width, across in ((vectors, columns // vectors), (columns % vectors, 1)):
            if height and width and down and across:
                total += down * across * max(height * width / 2, 4, (height + width) / 2) + 0.5
    return total


def blocks(shape: Shape, rows: int, width: int) -> tuple[int, int]:
    """Rows and columns of a piece."""
    m, n = math.ceil(shape.m / rows) * rows, math.ceil(shape.n / width) * width
    fits = max(width, L2 // (shape.k * shape.size) // width * width)
    column_block = evenly(n, min(n, fits), width)
    work = shape.batch * shape.m * shape.n * shape.k
    wanted = max(1, min(PIECES, work // PIECE))
    across = math.ceil(n / column_block) * shape.batch
    row_block = evenly(m, math.ceil(m / max(1, math.ceil(wanted / across))), rows)
    return row_block, column_block


def evenly(total: int, most: int, unit: int) -> int:
    """Blocks of whole units that are at most so large and about equal."""
    count = math.ceil(total / max(most, unit))
    return math.ceil(total / count / unit) * unit


def unrolled(k: int, depth: int) -> int:
    return next(u for u in (4, 2, 1) if k % u == 0 and depth % u == 0)
