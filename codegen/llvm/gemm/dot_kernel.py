"""Matmul kernel for few rows or few columns, as dot products: the lanes go along the depth, so nothing has to be packed.

For left operands that are row-major and right operands that are column-major. A tile is a few dot products side by side; their
lanes are summed at the end, and each row of the tile goes to the epilogue as a short vector. A large depth is split
(`split_k.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..ir.blocking import MIN_PIECE_MULTIPLIES, TARGET_THREADS, split_k_factor
from ..ir.builder import I64, Function, Module, Type, Value, constant
from ..ir.kernel import NativeKernel, Phase
from ..ir.register_tile import (
    DepthLoop,
    MultiplyAdd,
    TileOperand,
    first_lanes,
    lane_sums,
    multiply_tile,
    scale_index,
    zero_sums,
)
from ..ir.target import Target
from ..ir.work_ranges import equal_share, kernel_parameters, unravel
from .packing import matrix_source
from .problem import Epilogue, GemmOperand, GemmProblem, has_pair_products, multiply_add_for, multiply_add_pairs
from .split_k import SplitK

MAX_DOT_ROWS = 4  # or columns
MIN_DOT_SPLIT_STEPS = 1 << 14  # depth of a split-K piece


def suits_dot_kernel(gemm: GemmProblem, lanes: int) -> bool:
    """True if the problem is one for this kernel."""
    along = gemm.a.column == 1 and gemm.b.row == 1 and 2 * gemm.k >= lanes
    plain = all(x.load is None and (x.scalar == gemm.scalar or x.half) for x in (gemm.a, gemm.b))
    return along and plain and lanes > 1 and min(gemm.m, gemm.n) <= MAX_DOT_ROWS


def emit_dot_kernel(
    module: Module, name: str, gemm: GemmProblem, pointers: int, epilogue: Epilogue, target: Target
) -> NativeKernel:
    """Emit the kernel. `pointers` is the number of pointer parameters of its functions."""
    lanes = target.lanes(gemm.scalar)
    pairs = gemm.a.scalar == gemm.b.scalar == "bfloat" and has_pair_products(target, lanes)
    join = multiply_add_pairs if pairs else multiply_add_for(target)
    f = module.function(name, kernel_parameters(pointers))
    begin, end = f.params[-2:]
    rows, columns = _tile(gemm, lanes)
    down, across = _piece_size(gemm, rows, columns)
    blocks = (math.ceil(gemm.m / down), math.ceil(gemm.n / across))
    split_k = SplitK(_split_k(gemm, math.prod(blocks)), gemm.batch, gemm.m, gemm.n, Type(gemm.scalar), pointers, 0)
    sizes = (*gemm.batch, split_k.count, *blocks)
    with f.loop(begin, end) as loop:
        *batch, part, i, j = unravel(f, loop.index, sizes)
        a, b = (matrix_source(f, x, batch, gemm.scalar).base for x in (gemm.a, gemm.b))

        def side(base: Value, operand: GemmOperand, stride: int, first: Value, count: int) -> TileOperand:
            there = f.pointer(base, scale_index(f, first, stride), operand.scalar)
            return TileOperand(there, operand.scalar, _offsets(count, stride), pairs=pairs)

        def tile(m: Value, height: int, n: Value, width: int) -> None:
            left, right = side(a, gemm.a, gemm.a.row, m, height), side(b, gemm.b, gemm.b.column, n, width)
            sums = _dot_products(f, left, right, gemm.k, Type(gemm.scalar, lanes), join, part, split_k.count)
            for r in range(height):
                row = f.add(m, constant(r, m.type))
                for start, some in _reduce_lanes(f, sums[r * width : (r + 1) * width]):
                    column = f.add(n, constant(start, n.type))
                    if split_k.count > 1:
                        f.store(some, split_k.partial_address(f, batch, part, row, column))
                    else:
                        epilogue(f, batch, row, column, some, None)

        high, wide = equal_share(f, i, sizes[-2], rows, gemm.m), equal_share(f, j, sizes[-1], columns, gemm.n)
        high.each(f, rows, lambda m, height: wide.each(f, columns, lambda n, width: tile(m, height, n, width)))
    f.ret()
    phases = [Phase(name, math.prod(sizes))]
    if split_k.count > 1:
        phases.append(split_k.emit_reduction(module, f"{name}_add", epilogue))
    return NativeKernel(tuple(phases), split_k.size)


def _tile(gemm: GemmProblem, lanes: int) -> tuple[int, int]:
    """Rows and columns of a tile: sixteen dot products, or eight of one row or column, where many memory streams are read at
    once."""
    short = 1 << (min(gemm.m, gemm.n) - 1).bit_length()
    long = min(8 if short == 1 else 16 // short, lanes)
    return (long, gemm.n) if gemm.n < gemm.m else (gemm.m, long)


def _effective_multiplies(gemm: GemmProblem) -> int:
    """Work in multiplications of an ordinary matmul. Memory bandwidth dominates: each number is used a few times at most."""
    return 8 * math.prod(gemm.batch) * gemm.m * gemm.n * gemm.k


def _split_k(gemm: GemmProblem, blocks: int) -> int:
    return split_k_factor(_effective_multiplies(gemm), math.prod(gemm.batch) * blocks, gemm.k // MIN_DOT_SPLIT_STEPS)


def _piece_size(gemm: GemmProblem, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a piece."""
    pieces = max(1, min(2 * TARGET_THREADS, _effective_multiplies(gemm) // MIN_PIECE_MULTIPLIES) // math.prod(gemm.batch))
    if gemm.n < gemm.m:
        return math.ceil(gemm.m / pieces / rows) * rows, gemm.n
    return gemm.m, math.ceil(gemm.n / pieces / columns) * columns


def _offsets(count: int, stride: int) -> tuple[int, ...]:
    return tuple(i * stride for i in range(count))


def _dot_products(
    f: Function, left: TileOperand, right: TileOperand, k: int, kind: Type, join: MultiplyAdd, part: Value, parts: int
) -> list[Value]:
    """Sums over one split-K range, lane by lane. What is no whole vector belongs to the last range."""
    sums = zero_sums(len(left.offsets) * len(right.offsets), kind)
    each = 2 * kind.lanes if left.pairs else kind.lanes
    full, rest = divmod(k, each)
    unroll = next(u for u in (2, 1) if full % u == 0)
    if full:
        some = equal_share(f, part, parts, unroll, full)
        rounds = f.div(f.sub(some.stop, some.start), constant(unroll, I64)) if parts > 1 else full // unroll
        axes = [DepthLoop(rounds, unroll * each, unroll * each)]
        a, b = (side.at(f, scale_index(f, some.start, each), int(parts > 1)) for side in (left, right))
        sums = multiply_tile(f, a, b, axes, [(u * each,) * 2 for u in range(unroll)], sums, join)
    if rest:
        mask = first_lanes(rest, each)
        if parts > 1 and mask is not None:
            last = f.compare("eq", part, constant(parts - 1, I64))
            mask = f.select(last, mask, constant(False, mask.type))
        left, right = (replace(s, masks=(mask,) * len(s.offsets)) for s in (left, right))
        sums = multiply_tile(f, left, right, [], [(full * each,) * 2], sums, join)
    return sums


def _reduce_lanes(f: Function, sums: list[Value]) -> list[tuple[int, Value]]:
    """Sum the lanes, into vectors whose number of lanes is a power of two."""
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
