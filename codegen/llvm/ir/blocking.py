"""How a matrix product is cut up: the register tile, blocks for the caches and the threads, and what is packed.

A plan depends on the product and the target alone, not on the number of threads. The tile comes from a small model of what a
step along the depth costs, in cycles; the rest from what fits into the caches. The numbers were measured with `bench/gemm.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PIECE = 1 << 19  # multiplications that are worth handing to another thread
PIECES = 8  # as many threads are kept busy
EQUAL = 4  # the number of pieces is a multiple of this, if there are more than two: two threads and four have equal shares
PANELS = 600 << 10  # bytes of the right operand's panels that a piece goes through for each of its rows: they stay in L2
READY = 96 << 10  # a right operand of at most so many bytes is used as it is, if its rows lie along memory
DEPTH = 2048  # steps that a tile does at once, at most
WIDE = 768  # columns for which it pays to pack a left operand whose columns lie along memory, if the depth is large
FAR = 1024  # bytes between the steps of a left operand's columns from which on a tile does fewer steps
SHORT = 256  # rows that need not be shared out
SHALLOW = 256  # with a smaller depth, most of the time goes into storing results: pieces have whole rows of them then
PART = 512  # steps of the depth that are worth a piece of their own: what it leaves is written and read again
OWN = 384  # rows for which it pays that a piece packs panels that other pieces pack, too


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
    pack_a: bool  # a tile cannot read it as it is
    pack_b: bool
    by_depth: bool  # the left operand's columns lie along memory
    same_a: bool  # the left operand is the same in the whole batch, or in parts of it
    same_b: bool
    half_b: bool = False  # the right operand's elements are converted wherever they are read


@dataclass(frozen=True)
class Plan:
    lanes: int
    rows: int  # of a register tile
    vectors: int  # of a register tile
    down: int  # pieces that the rows are shared out to, in whole tiles
    across: int  # and the columns
    depth: int  # steps that a tile does before the next tile's turn
    unroll: int
    pack_a: bool
    pack_b: bool
    own_a: bool = False  # packed by each piece for itself, not in a phase before
    own_b: bool = False
    parts: int = 1  # pieces that the depth is shared out to

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return self.vectors * self.lanes

    def __str__(self) -> str:
        blocks = f"{self.parts * self.down * self.across} piece{'s' * (self.parts * self.down * self.across > 1)}"
        cut = f"{blocks} ({self.down} down, {self.across} across, {self.parts} deep)"
        ways = [_in_words(*way) for way in ((self.pack_a, self.own_a), (self.pack_b, self.own_b))]
        depth = f"{self.depth} steps at once, {self.unroll} written out"
        return f"tiles of {self.rows} x {self.width} in {cut}, {depth}, left {ways[0]}, right {ways[1]}"


def _in_words(packed: bool, own: bool) -> str:
    return "as it is" if not packed else "packed by each piece" if own else "packed before"


def choose(shape: Shape, tile: tuple[int, int] | None = None) -> Plan:
    """The model's plan; with another register tile than it would take, if that is given."""
    lanes = lanes_of(shape)
    rows, vectors = tile or tiles(shape)[0]
    width = vectors * lanes
    pack_a = shape.pack_a or (shape.by_depth and shape.k > 512 and shape.n >= WIDE)
    pack_b = shape.pack_b or (shape.m >= 64 and (shape.half_b or shape.k * shape.n * shape.size > READY))
    passing = not pack_b and shape.k * shape.n * shape.size > 4 * READY
    far = shape.by_depth and not pack_a and shape.m * shape.size >= FAR
    depth = _depth(shape.k, 128 if passing else 256 if far else DEPTH)
    row_block, column_block = blocks(shape, rows, width, depth)
    if passing:  # long stretches of the right operand's rows, which memory is good at
        column_block = max(column_block, min(_up(shape.n, width), _up(512, width)))
    down, across = evened(shape.batch, (shape.m, shape.n), (rows, width), (row_block, column_block))
    parts = parted(work_of(shape), shape.batch * down * across, shape.k // PART)
    return Plan(
        lanes=lanes,
        rows=rows,
        vectors=vectors,
        down=down,
        across=across,
        depth=depth,
        unroll=unroll_of(shape.k, depth),
        pack_a=pack_a,
        pack_b=pack_b,
        own_a=may_own_a(shape, across, parts),
        own_b=may_own_b(shape, down, parts),
        parts=parts,
    )


def lanes_of(shape: Shape) -> int:
    return min(shape.lanes, 1 << (shape.n - 1).bit_length())


def unroll_of(k: int, depth: int) -> int:
    """Steps that are written out in a round of a tile's loop."""
    return next(u for u in (4, 2, 1) if k % u == 0 and depth % u == 0)


def may_own_a(shape: Shape, across: int, parts: int) -> bool:
    """Whether each piece may pack its rows for itself: no other piece, and no other thread, packs them again."""
    return across == 1 and not shape.same_a and parts == 1


def may_own_b(shape: Shape, down: int, parts: int) -> bool:
    return (down == 1 or shape.m // down >= OWN) and not shape.same_b and parts == 1


def parted(work: int, pieces: int, most: int) -> int:
    """Into how many parts a depth is shared out, at most so many: more than one if there are too few pieces otherwise, a power
    of two so that threads have equal shares."""
    found = min(min(PIECES, work // PIECE) // pieces, most)
    return 1 << (found.bit_length() - 1) if found > 1 else 1


def tiles(shape: Shape) -> list[tuple[int, int]]:
    """Rows and vectors of register tiles: the pair that wastes least on this shape first."""
    columns = math.ceil(shape.n / lanes_of(shape))
    found: list[tuple[float, int, int]] = []
    for vectors in range(1, min(8 if shape.m == 1 else 4, columns) + 1):
        # Eight rows are enough to hide where the vectors come from, and sums have to leave registers for the factors.
        most = min(14 if vectors == 1 else 8, (shape.registers - 2 - vectors) // vectors)
        for rows in range(1, min(most, shape.m) + 1):
            found.append((_work(shape, rows, columns, vectors), rows, vectors))
    return [(rows, vectors) for _, rows, vectors in sorted(found)]


def _work(shape: Shape, rows: int, columns: int, vectors: int) -> float:
    """Cycles that a step along the depth takes over the whole product, and a little more for more code."""
    total, code = 0.0, 0
    for height, down in ((rows, shape.m // rows), (shape.m % rows, 1)):
        for width, across in ((vectors, columns // vectors), (columns % vectors, 1)):
            if height and width and down and across:
                total += down * across * step_cost(height, width, shape)
                code += height * width + 6
    return total * (1 + 0.001 * code)


def step_cost(rows: int, vectors: int, shape: Shape) -> float:
    """Cycles of one step of a tile: two products at a time, two loads at a time, each sum after the one before."""
    near = shape.k * shape.n * shape.size < 32 << 10
    from_l2 = 0 if near else vectors * shape.lanes * shape.size / 20
    return max(rows * vectors / 2, (rows + vectors) / 2, 4, from_l2) + 0.3 + 6 * (rows + vectors) / shape.k


def _depth(k: int, most: int) -> int:
    """Steps that a tile does at once. The sums wait in memory meanwhile, so they should be many."""
    return k if k <= 2 * most else _up(math.ceil(k / math.ceil(k / most)), 4)


def work_of(shape: Shape) -> int:
    """Multiplications; with few rows, memory takes the time, as if there were more."""
    return shape.batch * shape.m * shape.n * shape.k * (8 if shape.m < 8 else 1)


def blocks(shape: Shape, rows: int, width: int, depth: int) -> tuple[int, int]:
    """Rows and columns of a piece: as many columns as there is room for, so that rows are read and results stored in long
    stretches; but with few rows, all of them and some columns."""
    m, n = _up(shape.m, rows), _up(shape.n, width)
    wanted = max(1, min(2 * PIECES, work_of(shape) // PIECE))
    columns = _evenly(n, PANELS // (depth * shape.size) // width * width, width)
    if shape.batch >= wanted:
        return m, columns
    if shape.m <= SHORT and shape.k >= SHALLOW:
        strip = max(width, min(columns, n * shape.batch * 2 // wanted // width * width))
        if shape.batch * math.ceil(n / strip) * 2 >= wanted:
            return m, strip
    size = shape.k * shape.n * shape.size
    least = rows if size <= READY else 4 * rows if size <= 4 * READY else 8 * rows
    across = math.ceil(n / columns) * shape.batch
    down = wanted if across == 1 else math.ceil(wanted / 2 / across)  # panels that are not all used at once wear off in L2
    return _evenly(m, max(least, math.ceil(m / down)), rows), columns


def evened(batch: int, sizes: tuple[int, int], tile: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    """How many pieces there are of rows and of columns, for blocks of at most so many: such that threads have equal shares."""
    down, across = (math.ceil(size / most) for size, most in zip(sizes, block, strict=True))
    if batch * down * across <= 2:
        return down, across
    tall, wide = (math.ceil(size / unit) for size, unit in zip(sizes, tile, strict=True))
    ways = [(down + i, across) for i in range(EQUAL) if down + i <= tall]
    ways += [(down, across + i) for i in range(EQUAL) if across + i <= wide]
    equal = [(d, a) for d, a in ways if batch * d * a % EQUAL == 0]
    return min(equal, key=lambda way: way[0] * way[1], default=(down, across))


def _evenly(total: int, most: int, unit: int) -> int:
    """Blocks of whole units that are at most so large, and about equal."""
    count = math.ceil(total / max(most, unit))
    return _up(math.ceil(total / count), unit)


def _up(x: int, unit: int) -> int:
    return math.ceil(x / unit) * unit
