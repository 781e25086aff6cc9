"""Other plans for a product than the model's, and which of them is the quickest: what tuning tries.

Only plans with the same results, bit for bit, are candidates: a result is the same chain of multiplications and additions
whatever tile, block and packing it goes through, as sums that wait in memory are not rounded. What would change the chain is
into how many parts the depth is shared out, and where these end. And a candidate has pieces for as many threads as the model's
plan has: it is measured in one, where fewer pieces would often be quicker.

`search` changes one thing at a time and keeps what is quicker. Who measures is its caller's choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ..ir.blocking import EQUAL, Plan, Shape, choose, may_own_a, may_own_b, tiles, unroll_of

TILES = 8  # the best of the model's list
STEPS = (128, 256, 512, 1024)  # of the depth, at once
MOST = 10  # plans that are compared with each other at a time
MARGIN = 1.03  # how many times as quick as the model's a plan has to be: two measurements of one differ by as much

# race(plans, last) has plans take turns: seconds of each, None of what was not run. The last one decides, and may take longer.
Race = Callable[[Sequence[Plan], bool], list[float | None]]


def search(shape: Shape, race: Race) -> tuple[Plan, float]:
    """The quickest plan that was found, and how many times as quick as the model's it is; the model's if it is not clear."""
    model = best = choose(shape)
    tried = {model}
    for change in CHANGES:
        plans = [p for p in dict.fromkeys(change(shape, best)) if p not in tried and fits(shape, p)][:MOST]
        if plans:
            tried.update(plans)
            best = quickest([best, *plans], race([best, *plans], False))
    if best == model:
        return model, 1.0
    of_model, of_best = race([model, best], True)
    if of_model is None or of_best is None or of_model < MARGIN * of_best:
        return model, 1.0
    return best, of_model / of_best


def quickest(plans: Sequence[Plan], times: Iterable[float | None]) -> Plan:
    """The first, if none was run."""
    found = [(took, i) for i, took in enumerate(times) if took is not None]
    return plans[min(found)[1]] if found else plans[0]


def candidates(shape: Shape) -> list[Plan]:
    """All that one change makes of the model's plan, and that plan first."""
    model = choose(shape)
    found = dict.fromkeys([model, *[plan for change in CHANGES for plan in change(shape, model)]])
    return [plan for plan in found if fits(shape, plan)]


# ---- what may be changed


def fits(shape: Shape, plan: Plan) -> bool:
    """Whether a plan is one for this shape, with the bits and at least the pieces of the model's."""
    model = choose(shape)
    counts = (plan.rows, plan.vectors, plan.down, plan.across, plan.depth, plan.unroll)
    if min(counts) < 1 or plan.rows > shape.m or not same_bits(plan, model):
        return False
    room = plan.rows * plan.vectors + plan.vectors + 2 <= shape.registers
    there = plan.down <= math.ceil(shape.m / plan.rows) and plan.across <= math.ceil(shape.n / plan.width)
    whole = plan.depth <= shape.k and shape.k % plan.unroll == plan.depth % plan.unroll == 0
    packed = plan.pack_a >= shape.pack_a and plan.pack_b >= shape.pack_b
    own_a = not plan.own_a or may_own_a(shape, plan.across, plan.parts)
    own_b = not plan.own_b or may_own_b(shape, plan.down, plan.parts)
    return all((room, there, whole, packed, own_a, own_b, shared_alike(shape, plan, model)))


def same_bits(plan: Plan, other: Plan) -> bool:
    """Whether two plans of a product add up in the same order. Parts of the depth end at whole rounds of a tile's loop."""
    return plan.lanes == other.lanes and plan.parts == other.parts and (plan.parts == 1 or plan.unroll == other.unroll)


def shared_alike(shape: Shape, plan: Plan, model: Plan) -> bool:
    """Whether threads get no less to share out, and shares as equal, as by the model."""
    pieces, usual = (shape.batch * x.down * x.across for x in (plan, model))
    return pieces == usual or (pieces > usual and pieces % EQUAL == 0)


# ---- one thing at a time


def with_tiles(shape: Shape, plan: Plan) -> Iterator[Plan]:
    """Other tiles, cut up as the model would with them."""
    for tile in tiles(shape)[1 : TILES + 1]:
        yield choose(shape, tile)


def with_pieces(shape: Shape, plan: Plan) -> Iterator[Plan]:
    """The pieces cut the other way, and twice as many of them."""
    count = plan.down * plan.across
    for pieces in (count, 2 * count):
        for down in (d for d in range(1, pieces + 1) if pieces % d == 0):
            yield owning(shape, replace(plan, down=down, across=pieces // down))


def with_packing(shape: Shape, plan: Plan) -> Iterator[Plan]:
    yield owning(shape, replace(plan, pack_a=not plan.pack_a))
    yield owning(shape, replace(plan, pack_b=not plan.pack_b))
    yield owning(shape, replace(plan, pack_a=not plan.pack_a, pack_b=not plan.pack_b))
    yield replace(plan, own_a=not plan.own_a)
    yield replace(plan, own_b=not plan.own_b)


def with_depths(shape: Shape, plan: Plan) -> Iterator[Plan]:
    for depth in (*STEPS, shape.k):
        if depth <= shape.k:
            unroll = unroll_of(shape.k, depth) if plan.parts == 1 else plan.unroll
            yield replace(plan, depth=depth, unroll=unroll)


def owning(shape: Shape, plan: Plan) -> Plan:
    """A plan whose pieces pack for themselves where they may."""
    own_a, own_b = may_own_a(shape, plan.across, plan.parts), may_own_b(shape, plan.down, plan.parts)
    return replace(plan, own_a=own_a, own_b=own_b)


CHANGES = (with_tiles, with_pieces, with_packing, with_depths)
