"""Search space of tuning: plans near the model's, and the search for the fastest.

Only plans that give the same bits are candidates: whatever the tile, blocks and packing, a result is the same chain of
multiply-adds, as sums that wait in memory are not rounded. Only the split-K factor and where its ranges end would change the
chain. A candidate also has pieces for at least as many threads as the model's plan: it is measured on one thread, where
fewer pieces would often be faster.

`search` changes one thing at a time and keeps what is faster. Its caller supplies the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ..ir.blocking import (
    PIECE_MULTIPLE,
    GemmPlan,
    GemmShape,
    can_pack_a_per_piece,
    can_pack_b_per_piece,
    choose_plan,
    rank_tiles,
    unroll_factor,
)

MAX_TILES = 8  # tried, from the top of the model's ranking
DEPTH_BLOCKS = (128, 256, 512, 1024)  # steps along the depth
MAX_PLANS_PER_RACE = 10  # compared with each other in one race
MIN_SPEEDUP = 1.03  # over the model's plan: two measurements of one plan differ by as much

# race(plans, last) lets plans take turns: seconds of each, None if not run. The last race decides, and may take longer.
Race = Callable[[Sequence[GemmPlan], bool], list[float | None]]


def search(shape: GemmShape, race: Race) -> tuple[GemmPlan, float]:
    """Return the fastest plan found and its speedup over the model's; the model's plan if there is no clear winner."""
    model = best = choose_plan(shape)
    tried = {model}
    for change in PLAN_CHANGES:
        plans = [p for p in dict.fromkeys(change(shape, best)) if p not in tried and is_valid_plan(shape, p)][
            :MAX_PLANS_PER_RACE
        ]
        if plans:
            tried.update(plans)
            best = fastest([best, *plans], race([best, *plans], False))
    if best == model:
        return model, 1.0
    of_model, of_best = race([model, best], True)
    if of_model is None or of_best is None or of_model < MIN_SPEEDUP * of_best:
        return model, 1.0
    return best, of_model / of_best


def fastest(plans: Sequence[GemmPlan], times: Iterable[float | None]) -> GemmPlan:
    """The plan with the least time; the first if none was run."""
    found = [(took, i) for i, took in enumerate(times) if took is not None]
    return plans[min(found)[1]] if found else plans[0]


def candidates(shape: GemmShape) -> list[GemmPlan]:
    """The model's plan, then all valid plans that differ from it by one change."""
    model = choose_plan(shape)
    found = dict.fromkeys([model, *[plan for change in PLAN_CHANGES for plan in change(shape, model)]])
    return [plan for plan in found if is_valid_plan(shape, plan)]


# ---- valid plans


def is_valid_plan(shape: GemmShape, plan: GemmPlan) -> bool:
    """True if a plan suits the shape, gives the model's bits and has at least its pieces."""
    model = choose_plan(shape)
    counts = (plan.rows, plan.vectors, plan.row_pieces, plan.column_pieces, plan.depth, plan.unroll)
    if min(counts) < 1 or plan.rows > shape.m or not same_bits(plan, model):
        return False
    room = plan.rows * plan.vectors + plan.vectors + 2 <= shape.registers
    there = plan.row_pieces <= math.ceil(shape.m / plan.rows) and plan.column_pieces <= math.ceil(shape.n / plan.width)
    whole = plan.depth <= shape.k and shape.k % plan.unroll == plan.depth % plan.unroll == 0
    packed = plan.pack_a >= shape.pack_a and plan.pack_b >= shape.pack_b
    per_piece_a = not plan.per_piece_a or can_pack_a_per_piece(shape, plan.column_pieces, plan.split_k)
    per_piece_b = not plan.per_piece_b or can_pack_b_per_piece(shape, plan.row_pieces, plan.split_k)
    return all((room, there, whole, packed, per_piece_a, per_piece_b, keeps_parallelism(shape, plan, model)))


def same_bits(plan: GemmPlan, other: GemmPlan) -> bool:
    """True if two plans of a matmul add up in the same order. Split-K ranges end at whole iterations of a tile's loop."""
    return plan.lanes == other.lanes and plan.split_k == other.split_k and (plan.split_k == 1 or plan.unroll == other.unroll)


def keeps_parallelism(shape: GemmShape, plan: GemmPlan, model: GemmPlan) -> bool:
    """True if the plan yields at least as many work pieces, at least as evenly sized, as the model's plan."""
    pieces, usual = (shape.batch * x.row_pieces * x.column_pieces for x in (plan, model))
    return pieces == usual or (pieces > usual and pieces % PIECE_MULTIPLE == 0)


# ---- single changes


def with_tiles(shape: GemmShape, plan: GemmPlan) -> Iterator[GemmPlan]:
    """Other tiles, blocked as the model would with them."""
    for tile in rank_tiles(shape)[1 : MAX_TILES + 1]:
        yield choose_plan(shape, tile)


def with_pieces(shape: GemmShape, plan: GemmPlan) -> Iterator[GemmPlan]:
    """The same pieces with other row and column counts, and twice as many."""
    count = plan.row_pieces * plan.column_pieces
    for pieces in (count, 2 * count):
        for down in (d for d in range(1, pieces + 1) if pieces % d == 0):
            yield with_per_piece_packing(shape, replace(plan, row_pieces=down, column_pieces=pieces // down))


def with_packing(shape: GemmShape, plan: GemmPlan) -> Iterator[GemmPlan]:
    yield with_per_piece_packing(shape, replace(plan, pack_a=not plan.pack_a))
    yield with_per_piece_packing(shape, replace(plan, pack_b=not plan.pack_b))
    yield with_per_piece_packing(shape, replace(plan, pack_a=not plan.pack_a, pack_b=not plan.pack_b))
    yield replace(plan, per_piece_a=not plan.per_piece_a)
    yield replace(plan, per_piece_b=not plan.per_piece_b)


def with_depths(shape: GemmShape, plan: GemmPlan) -> Iterator[GemmPlan]:
    for depth in (*DEPTH_BLOCKS, shape.k):
        if depth <= shape.k:
            unroll = unroll_factor(shape.k, depth) if plan.split_k == 1 else plan.unroll
            yield replace(plan, depth=depth, unroll=unroll)


def with_per_piece_packing(shape: GemmShape, plan: GemmPlan) -> GemmPlan:
    """The plan with per-piece packing wherever that is allowed."""
    per_piece_a, per_piece_b = (
        can_pack_a_per_piece(shape, plan.column_pieces, plan.split_k),
        can_pack_b_per_piece(shape, plan.row_pieces, plan.split_k),
    )
    return replace(plan, per_piece_a=per_piece_a, per_piece_b=per_piece_b)


PLAN_CHANGES = (with_tiles, with_pieces, with_packing, with_depths)
