"""Tiling of a nest into programs: tiles of rows and columns, in one of three loop structures.

    tiles    no totals: each program does one tile
    rows     totals of rows: a program does some rows, with all of their columns at once or tile by tile
    pieces   column totals: a program does a piece of the rows, block by block, and a second kernel combines the pieces

Few long rows would leave most of a device idle: they are split into parts, which a second kernel combines.
The sizes are rules of thumb (Inductor's, mostly); a real device would measure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir.expr import Expr, walk
from ...nests.loop_nest import Nest

TILE = 1024  # elements of a tile
VECTOR = 16  # elements that one access takes at most
MAX_COLUMNS = 4096  # columns that a program holds in registers at once, whatever there is of each
MAX_HELD_BYTES, MAX_HELD_COLUMNS = 7 << 15, 1 << 14  # bytes of longer rows that it holds, and columns that these have at most
MAX_PIECES = 256
BLOCKS = 4  # blocks that a piece has at least, if there is work enough for a whole device


@dataclass(frozen=True)
class Tile:
    """Tile: the work of one program."""

    way: str  # tiles, rows, pieces
    rows: int  # rows of the domain
    cols: int
    block_r: int  # a power of two; 1: the row is a scalar
    block_c: int
    loops: bool  # through the columns, tile after tile
    splits: bool  # columns are shared among programs
    pieces: int = 1
    share: int = 1  # rows of a piece
    parts: int = 1  # parts per row
    part: int = 1  # columns of a part

    @property
    def col_blocks(self) -> int:
        return -(-self.cols // self.block_c) if self.splits else 1

    @property
    def row_blocks(self) -> int:
        return self.pieces if self.way == "pieces" else -(-self.rows // self.block_r)

    @property
    def grid(self) -> int:
        if self.way == "tiles" and not self.cols:
            return 0
        return self.row_blocks * self.col_blocks * self.parts

    @property
    def whole(self) -> int:
        """Number of full tiles, which need no mask, in a single row whose length no vector divides."""
        odd = self.way == "tiles" and self.splits and self.rows == 1 and self.cols % VECTOR
        return self.cols // self.block_c if odd else 0

    @property
    def warps(self) -> int:
        elements = self.block_r * self.block_c
        return 16 if elements > MAX_COLUMNS else min(max(elements // 256, 1), 8)


def only_totals(nest: Nest) -> bool:
    """True if no loop over the columns depends on a total."""
    first, *rest = nest.stages
    return bool(first.totals) and not any(s.loops for s in rest)


def in_parts(tile: Tile) -> Tile:
    """Split rows into parts, if there would be few programs otherwise."""
    steps = -(-tile.cols // tile.block_c)
    most = max(MAX_PIECES // tile.row_blocks, 1)
    each = max(-(-steps // most), BLOCKS)
    return replace(tile, parts=-(-steps // each), part=each * tile.block_c)


def power_above(n: int) -> int:
    """Least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def tile_of(nest: Nest) -> Tile:
    rows, cols = nest.domain.rows, nest.domain.cols
    by_row = any(s.before or s.totals or s.downs for s in nest.stages)
    beside = any(t.kind != "total" for t in nest.totals())
    block_r, block_c = blocks(nest, by_row)
    loops = by_row and block_c < cols
    splits = not by_row and block_c < cols
    if not beside:
        tile = Tile("rows" if by_row else "tiles", rows, cols, block_r, block_c, loops, splits)
        return in_parts(tile) if loops and only_totals(nest) else tile
    steps = -(-rows // block_r)
    each = max(-(-steps // MAX_PIECES), min(BLOCKS, steps // (MAX_PIECES // 2)), 1)
    pieces = max(-(-steps // each), 1)
    return Tile("pieces", rows, cols, block_r, block_c, loops, splits, pieces, each * block_r)


def blocks(nest: Nest, by_row: bool) -> tuple[int, int]:
    """Rows and columns of a tile: elements that are adjacent in memory share one."""
    rows, cols = power_above(nest.domain.rows), power_above(nest.domain.cols)
    if nest.vector == "r":
        block_r = min(rows, 32 if crossed(nest) else 64 if cols > 1 else TILE)
        return block_r, min(cols, max(TILE // block_r, 1))
    if by_row and (cols <= MAX_COLUMNS or (cols <= MAX_HELD_COLUMNS and held(nest) * cols <= MAX_HELD_BYTES)):
        return min(rows, max(TILE // cols, 1)), cols
    if by_row:
        return 1, 2 * TILE
    block_c = min(cols, 32 if crossed(nest) else TILE)
    return min(rows, max(TILE // block_c, 1)), block_c


def held(nest: Nest) -> int:
    """Estimate the bytes of registers per column of a row: totals of columns, values that one stage leaves for later ones, and
    two more values that are being computed."""
    c, first, last = nest.domain.c, dict[Expr, int](), dict[Expr, int]()
    for i, stage in enumerate(nest.stages):
        roots = [*[s.expr for s in stage.stores], *[t.expr for t in (*stage.totals, *stage.columns)]]
        fresh = [e for e in walk(roots) if e.depends(c) and first.setdefault(e, i) == i]
        last.update(dict.fromkeys([*roots, *[x for e in fresh for x in e.inner]], i))
    left = [sum(width(e.dtype) for e in first if first[e] <= i < last.get(e, i)) for i in range(len(nest.stages))]
    return max(left) + sum(width(t.dtype) for t in nest.totals() if t.kind == "column") + 2 * width("float32")


def width(dtype: str) -> int:
    """Bytes of a value in registers."""
    return 8 if dtype in ("float64", "int64", "uint64") else 4


def crossed(nest: Nest) -> bool:
    """True if some access is contiguous along rows and another along columns, as in a transposition."""
    domain = nest.domain
    factors = {"r": False, "c": False}
    indices = [e.data[1] for e in walk(nest.expressions()) if e.kind == "load" and e.depends(domain.r) and e.depends(domain.c)]
    indices += [s.index for s in nest.stores()]
    for index in indices:
        factors["r"] |= index.factor(domain.r) == 1
        factors["c"] |= index.factor(domain.c) == 1
    return factors["r"] and factors["c"] and min(domain.rows, domain.cols) >= 16
