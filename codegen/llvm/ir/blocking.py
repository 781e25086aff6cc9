"""Blocking of a matmul: the register tile, blocks for the caches and for the threads, and which operands are packed.

A plan depends on the problem and the target alone, never on the number of threads. The register tile minimises a small cost
model (cycles for one step along the depth); the rest follows from what fits into the caches. The constants were measured with
`bench/gemm.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_PIECE_MULTIPLIES = 1 << 19  # multiplications in a piece that is worth handing to another thread
TARGET_THREADS = 8  # threads that plans keep busy
PIECE_MULTIPLE = 4  # more than two pieces come in multiples of this: 2 or 4 threads get equal shares
MAX_PANEL_BYTES = 600 << 10  # of the right operand's panels that a piece reads for each row tile: they stay in L2
MAX_UNPACKED_BYTES = 96 << 10  # a row-major right operand up to this size is read in place
MAX_DEPTH_BLOCK = 2048  # steps along the depth that a tile does at once
MIN_COLUMNS_TO_PACK_A = 768  # from here on packing a column-major left operand pays, if the depth is large
FAR_STEP_BYTES = 1024  # between depth steps of a column-major left operand: from here on tiles do fewer steps
MAX_UNSPLIT_ROWS = 256  # rows that need not be split over pieces
MIN_DEPTH_FOR_STRIPS = 256  # below, storing results takes most of the time: pieces have whole rows
MIN_SPLIT_K_STEPS = 512  # depth of a split-K piece: its partial sums are written and read again
MIN_ROWS_TO_REPACK_B = 384  # rows of a piece for which packing panels that other pieces pack too still pays


@dataclass(frozen=True)
class GemmShape:
    """The properties of a matmul that its plan depends on. `k` counts steps along the depth."""

    batch: int
    m: int
    n: int
    k: int
    lanes: int  # of a full vector
    registers: int
    size: int  # bytes of an accumulator
    pack_a: bool  # a tile cannot read it in place
    pack_b: bool
    column_major_a: bool  # the left operand is column-major
    broadcast_a: bool  # the left operand is broadcast along a batch dim
    broadcast_b: bool
    half_b: bool = False  # the right operand's elements are converted wherever they are read


@dataclass(frozen=True)
class GemmPlan:
    """Blocking decisions for one matmul. See the module docstring for what they may depend on."""

    lanes: int
    rows: int  # of a register tile
    vectors: int  # of a register tile
    row_pieces: int  # pieces along the rows, in whole tiles
    column_pieces: int  # pieces along the columns
    depth: int  # steps along the depth that a tile does before the next tile
    unroll: int
    pack_a: bool
    pack_b: bool
    per_piece_a: bool = False  # packed by each piece into its own scratch, not in a phase before
    per_piece_b: bool = False
    split_k: int = 1  # split-K factor

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return self.vectors * self.lanes

    def __str__(self) -> str:
        count = self.split_k * self.row_pieces * self.column_pieces
        pieces = f"{count} piece{'s' * (count > 1)} ({self.row_pieces} x {self.column_pieces}, split-K {self.split_k})"
        ways = [_describe_packing(*way) for way in ((self.pack_a, self.per_piece_a), (self.pack_b, self.per_piece_b))]
        depth = f"depth blocks of {self.depth}, unroll {self.unroll}"
        return f"register tiles of {self.rows} x {self.width}, {pieces}, {depth}, left {ways[0]}, right {ways[1]}"


def _describe_packing(packed: bool, per_piece: bool) -> str:
    return "in place" if not packed else "packed per piece" if per_piece else "packed before"


def choose_plan(shape: GemmShape, tile: tuple[int, int] | None = None) -> GemmPlan:
    """Return the model's plan, with the register tile `tile` (rows, vectors) instead of the model's if one is given."""
    lanes = vector_lanes(shape)
    rows, vectors = tile or rank_tiles(shape)[0]
    width = vectors * lanes
    pack_a = shape.pack_a or (shape.column_major_a and shape.k > 512 and shape.n >= MIN_COLUMNS_TO_PACK_A)
    pack_b = shape.pack_b or (shape.m >= 64 and (shape.half_b or shape.k * shape.n * shape.size > MAX_UNPACKED_BYTES))
    passing = not pack_b and shape.k * shape.n * shape.size > 4 * MAX_UNPACKED_BYTES
    far = shape.column_major_a and not pack_a and shape.m * shape.size >= FAR_STEP_BYTES
    depth = _depth_block(shape.k, 128 if passing else 256 if far else MAX_DEPTH_BLOCK)
    row_block, column_block = piece_size(shape, rows, width, depth)
    if passing:  # long runs of the right operand's rows: sequential reads
        column_block = max(column_block, min(_round_up(shape.n, width), _round_up(512, width)))
    down, across = even_pieces(shape.batch, (shape.m, shape.n), (rows, width), (row_block, column_block))
    split_k = split_k_factor(effective_multiplies(shape), shape.batch * down * across, shape.k // MIN_SPLIT_K_STEPS)
    return GemmPlan(
        lanes=lanes,
        rows=rows,
        vectors=vectors,
        row_pieces=down,
        column_pieces=across,
        depth=depth,
        unroll=unroll_factor(shape.k, depth),
        pack_a=pack_a,
        pack_b=pack_b,
        per_piece_a=can_pack_a_per_piece(shape, across, split_k),
        per_piece_b=can_pack_b_per_piece(shape, down, split_k),
        split_k=split_k,
    )


def vector_lanes(shape: GemmShape) -> int:
    return min(shape.lanes, 1 << (shape.n - 1).bit_length())


def unroll_factor(k: int, depth: int) -> int:
    """Unroll factor of a tile's loop along the depth."""
    return next(u for u in (4, 2, 1) if k % u == 0 and depth % u == 0)


def can_pack_a_per_piece(shape: GemmShape, column_pieces: int, split_k: int) -> bool:
    """True if pieces may pack their own rows: no other piece or thread would pack the same rows again."""
    return column_pieces == 1 and not shape.broadcast_a and split_k == 1


def can_pack_b_per_piece(shape: GemmShape, row_pieces: int, split_k: int) -> bool:
    return (row_pieces == 1 or shape.m // row_pieces >= MIN_ROWS_TO_REPACK_B) and not shape.broadcast_b and split_k == 1


def split_k_factor(work: int, pieces: int, most: int) -> int:
    """Split-K factor, at most `most`: above 1 only if there would be too few pieces otherwise; a power of two, so that threads
    get equal shares."""
    found = min(min(TARGET_THREADS, work // MIN_PIECE_MULTIPLIES) // pieces, most)
    return 1 << (found.bit_length() - 1) if found > 1 else 1


def rank_tiles(shape: GemmShape) -> list[tuple[int, int]]:
    """Return register tiles (rows, vectors), cheapest for this shape first."""
    columns = math.ceil(shape.n / vector_lanes(shape))
    found: list[tuple[float, int, int]] = []
    for vectors in range(1, min(8 if shape.m == 1 else 4, columns) + 1):
        # Eight rows hide the latency of the vector loads, and the sums must leave registers for the factors.
        most = min(14 if vectors == 1 else 8, (shape.registers - 2 - vectors) // vectors)
        for rows in range(1, min(most, shape.m) + 1):
            found.append((_tile_cost(shape, rows, columns, vectors), rows, vectors))
    return [(rows, vectors) for _, rows, vectors in sorted(found)]


def _tile_cost(shape: GemmShape, rows: int, columns: int, vectors: int) -> float:
    """Cycles for one depth step over the whole result, with a small penalty for code size."""
    total, code = 0.0, 0
    for height, down in ((rows, shape.m // rows), (shape.m % rows, 1)):
        for width, across in ((vectors, columns // vectors), (columns % vectors, 1)):
            if height and width and down and across:
                total += down * across * step_cost(height, width, shape)
                code += height * width + 6
    return total * (1 + 0.001 * code)


def step_cost(rows: int, vectors: int, shape: GemmShape) -> float:
    """Cycles for one depth step of a tile: two FMAs and two loads per cycle, and each sum waits for the one before."""
    near = shape.k * shape.n * shape.size < 32 << 10
    from_l2 = 0 if near else vectors * shape.lanes * shape.size / 20
    return max(rows * vectors / 2, (rows + vectors) / 2, 4, from_l2) + 0.3 + 6 * (rows + vectors) / shape.k


def _depth_block(k: int, most: int) -> int:
    """Steps that a tile does at once. Sums wait in memory between blocks, so blocks should be large."""
    return k if k <= 2 * most else _round_up(math.ceil(k / math.ceil(k / most)), 4)


def effective_multiplies(shape: GemmShape) -> int:
    """Multiplications, weighted: with few rows memory bandwidth dominates, which counts as more work."""
    return shape.batch * shape.m * shape.n * shape.k * (8 if shape.m < 8 else 1)


def piece_size(shape: GemmShape, rows: int, width: int, depth: int) -> tuple[int, int]:
    """Rows and columns of a piece: as many columns as fit, so that rows are read and results stored in long runs; with few
    rows, all of them and some columns."""
    m, n = _round_up(shape.m, rows), _round_up(shape.n, width)
    wanted = max(1, min(2 * TARGET_THREADS, effective_multiplies(shape) // MIN_PIECE_MULTIPLIES))
    columns = _even_block(n, MAX_PANEL_BYTES // (depth * shape.size) // width * width, width)
    if shape.batch >= wanted:
        return m, columns
    if shape.m <= MAX_UNSPLIT_ROWS and shape.k >= MIN_DEPTH_FOR_STRIPS:
        strip = max(width, min(columns, n * shape.batch * 2 // wanted // width * width))
        if shape.batch * math.ceil(n / strip) * 2 >= wanted:
            return m, strip
    size = shape.k * shape.n * shape.size
    least = rows if size <= MAX_UNPACKED_BYTES else 4 * rows if size <= 4 * MAX_UNPACKED_BYTES else 8 * rows
    across = math.ceil(n / columns) * shape.batch
    down = wanted if across == 1 else math.ceil(wanted / 2 / across)  # panels that are not all in use get evicted from L2
    return _even_block(m, max(least, math.ceil(m / down)), rows), columns


def even_pieces(batch: int, sizes: tuple[int, int], tile: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    """Numbers of pieces along rows and columns, for blocks of at most `block`, such that threads get equal shares."""
    down, across = (math.ceil(size / most) for size, most in zip(sizes, block, strict=True))
    if batch * down * across <= 2:
        return down, across
    tall, wide = (math.ceil(size / unit) for size, unit in zip(sizes, tile, strict=True))
    ways = [(down + i, across) for i in range(PIECE_MULTIPLE) if down + i <= tall]
    ways += [(down, across + i) for i in range(PIECE_MULTIPLE) if across + i <= wide]
    equal = [(d, a) for d, a in ways if batch * d * a % PIECE_MULTIPLE == 0]
    return min(equal, key=lambda way: way[0] * way[1], default=(down, across))


def _even_block(total: int, most: int, unit: int) -> int:
    """Block size in whole `unit`s, at most `most`, such that blocks are about equal."""
    count = math.ceil(total / max(most, unit))
    return _round_up(math.ceil(total / count), unit)


def _round_up(x: int, unit: int) -> int:
    return math.ceil(x / unit) * unit
