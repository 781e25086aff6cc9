"""Other plans for a matrix product than the model's, to see how far the model is from the best that can be found.

`search` changes the model's plan one thing at a time and keeps what is quicker. `gemm.py --search` prints what that gains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from tapejit.codegen.llvm.blocking import Plan, Shape, choose

GAIN = 0.98  # what is at least so much quicker is taken


def search(shape: Shape, seconds: Callable[[Plan], float]) -> Plan:
    best = choose(shape)
    least = seconds(best)
    tried = {best}
    for change in (tiles, pieces, packing, depths, pieces):
        for plan in change(shape, best):
            if plan in tried:
                continue
            tried.add(plan)
            took = seconds(plan)
            if took < GAIN * least:
                best, least = plan, took
    return best


def tiles(shape: Shape, plan: Plan) -> Iterator[Plan]:
    for rows, vectors in ((8, 3), (8, 2), (6, 4), (6, 2), (4, 4), (12, 1)):
        if rows <= shape.m and vectors * plan.lanes <= shape.n and rows * vectors <= shape.registers - 2 - vectors:
            yield replace(plan, rows=rows, vectors=vectors)


def pieces(shape: Shape, plan: Plan) -> Iterator[Plan]:
    for down in (1, 2, 4, 8, 16):
        for across in (1, 2, 4, 8, 12, 16):
            if down <= math.ceil(shape.m / plan.rows) and across <= math.ceil(shape.n / plan.width) and down * across <= 48:
                yield replace(plan, down=down, across=across)


def packing(shape: Shape, plan: Plan) -> Iterator[Plan]:
    for pack in (True, False):
        for own in (True, False):
            if pack or not shape.pack_b:
                yield replace(plan, pack_b=pack, own_b=own)
            if pack or not shape.pack_a:
                yield replace(plan, pack_a=pack, own_a=own)


def depths(shape: Shape, plan: Plan) -> Iterator[Plan]:
    for depth in (128, 256, 512, shape.k):
        if depth <= shape.k:
            yield replace(plan, depth=depth, unroll=next(u for u in (4, 2, 1) if shape.k % u == depth % u == 0))
