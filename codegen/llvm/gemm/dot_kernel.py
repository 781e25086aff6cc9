"""Products of few rows or few columns, as dot products: the lanes go along the depth, so nothing has to be packed.

For operands whose rows (left) and columns (right) lie along memory. A tile is a few dot products side by side; their lanes are
added at the end, and each row of the tile goes to the epilogue as a short vector. A great depth is shared out (`parts.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..ir.blocking import PIECE, PIECES, parted
from ..ir.builder import I64, Function, Module, Type, Value, constant
from .problem import Epilogue, Gemm, Operand, join_of, join_pairs, multiplies_pairs
from ..ir.kernel import Kernel, Phase
from ..ir.register_tile import Axis, Join, Side, first_lanes, lane_sums, multiply, scaled, zeros
from .packing import source
from .split_k import Parts
from ..ir.work_ranges import parameters, share, unravel
from ..ir.target import Target

FEW = 4  # rows or columns
LONG = 1 << 14  # steps of the depth that are worth a piece of their own


def suits(gemm: Gemm, lanes: int) -> bool:
    """Whether this is a product for this file."""
    along = gemm.a.column == 1 and gemm.b.row == 1 and 2 * gemm.k >= lanes
    plain = all(x.load is None and (x.scalar == gemm.scalar or x.half) for x in (gemm.a, gemm.b))
    return along and plain and lanes > 1 and min(gemm.m, gemm.n) <= FEW


def emit_dots(module: Module, name: str, gemm: Gemm, pointers: int, epilogue: Epilogue, target: Target) -> Kernel:
    lanes = target.lanes(gemm.scalar)
    pairs = gemm.a.scalar == gemm.b.scalar == "bfloat" and multiplies_pairs(target, lanes)
    join = join_pairs if pairs else join_of(target)
    f = module.function(name, parameters(pointers))
    begin, end = f.params[-2:]
    rows, columns = _tile(gemm, lanes)
    down, across = _blocks(gemm, rows, columns)
    blocks = (math.ceil(gemm.m / down), math.ceil(gemm.n / across))
    parts = Parts(_parts(gemm, math.prod(blocks)), gemm.batch, gemm.m, gemm.n, Type(gemm.scalar), pointers, 0)
    sizes = (*gemm.batch, parts.count, *blocks)
    with f.loop(begin, end) as loop:
        *batch, part, i, j = unravel(f, loop.index, sizes)
        a, b = (source(f, x, batch, gemm.scalar).base for x in (gemm.a, gemm.b))

        def side(base: Value, operand: Operand, stride: int, first: Value, count: int) -> Side:
            there = f.pointer(base, scaled(f, first, stride), operand.scalar)
            return Side(there, operand.scalar, _places(count, stride), pairs=pairs)

        def tile(m: Value, height: int, n: Value, width: int) -> None:
            left, right = side(a, gemm.a, gemm.a.row, m, height), side(b, gemm.b, gemm.b.column, n, width)
            sums = _products(f, left, right, gemm.k, Type(gemm.scalar, lanes), join, part, parts.count)
            for r in range(height):
                row = f.add(m, constant(r, m.type))
                for start, some in _short(f, sums[r * width : (r + 1) * width]):
                    column = f.add(n, constant(start, n.type))
                    if parts.count > 1:
                        f.store(some, parts.place(f, batch, part, row, column))
                    else:
                        epilogue(f, batch, row, column, some, None)

        high, wide = share(f, i, sizes[-2], rows, gemm.m), share(f, j, sizes[-1], columns, gemm.n)
        high.each(f, rows, lambda m, height: wide.each(f, columns, lambda n, width: tile(m, height, n, width)))
    f.back()
    phases = [Phase(name, math.prod(sizes))]
    if parts.count > 1:
        phases.append(parts.add_up(module, f"{name}_add", epilogue))
    return Kernel(tuple(phases), parts.size)


def _tile(gemm: Gemm, lanes: int) -> tuple[int, int]:
    """Sixteen dot products, or eight of one row or column, as there are many streams of memory then."""
    short = 1 << (min(gemm.m, gemm.n) - 1).bit_length()
    long = min(8 if short == 1 else 16 // short, lanes)
    return (long, gemm.n) if gemm.n < gemm.m else (gemm.m, long)


def _work(gemm: Gemm) -> int:
    """As multiplications of other products. Memory is what takes time here: each number is used once or a few times only."""
    return 8 * math.prod(gemm.batch) * gemm.m * gemm.n * gemm.k


def _parts(gemm: Gemm, blocks: int) -> int:
    return parted(_work(gemm), math.prod(gemm.batch) * blocks, gemm.k // LONG)


def _blocks(gemm: Gemm, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a piece."""
    pieces = max(1, min(2 * PIECES, _work(gemm) // PIECE) // math.prod(gemm.batch))
    if gemm.n < gemm.m:
        return math.ceil(gemm.m / pieces / rows) * rows, gemm.n
    return gemm.m, math.ceil(gemm.n / pieces / columns) * columns


def _places(count: int, stride: int) -> tuple[int, ...]:
    return tuple(i * stride for i in range(count))


def _products(f: Function, left: Side, right: Side, k: int, kind: Type, join: Join, part: Value, parts: int) -> list[Value]:
    """The sums over a part of the depth, lane by lane. What is no whole vector is the last part's."""
    sums = zeros(len(left.places) * len(right.places), kind)
    each = 2 * kind.lanes if left.pairs else kind.lanes
    full, rest = divmod(k, each)
    unroll = next(u for u in (2, 1) if full % u == 0)
    if full:
        some = share(f, part, parts, unroll, full)
        rounds = f.div(f.sub(some.stop, some.start), constant(unroll, I64)) if parts > 1 else full // unroll
        axes = [Axis(rounds, unroll * each, unroll * each)]
        a, b = (side.at(f, scaled(f, some.start, each), int(parts > 1)) for side in (left, right))
        sums = multiply(f, a, b, axes, [(u * each,) * 2 for u in range(unroll)], sums, join)
    if rest:
        mask = first_lanes(rest, each)
        if parts > 1 and mask is not None:
            last = f.compare("eq", part, constant(parts - 1, I64))
            mask = f.select(last, mask, constant(False, mask.type))
        left, right = (replace(s, masks=(mask,) * len(s.places)) for s in (left, right))
        sums = multiply(f, left, right, [], [(full * each,) * 2], sums, join)
    return sums


def _short(f: Function, sums: list[Value]) -> list[tuple[int, Value]]:
    """The sums of the lanes, in vectors whose number of lanes is a power of two."""
    found, start = [], 0
    while start < len(sums):
        count = 1 << ((len(sums) - start).bit_length() - 1)
        vector = lane_sums(f, sums[start : start + count])
        lanes = vector.type.lanes
        if count < lanes:
            vector = f.lane(vector, 0) if count == 1 else f.shuffle(vector, vector, range(count))
        found.append((start, vector))
        start += count
    return found
