"""Plans of matrix products that were measured to be better than the model's, remembered by shape.

Any plan is right, so a plan may come from anywhere. `tune` changes the model's plan one thing at a time and keeps what is
quicker. `as_text` and `read` are for who keeps what was found, between processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, fields, replace

from .blocking import Plan, Shape, choose

known: dict[Shape, Plan] = {}
GAIN = 0.98  # what is at least so much quicker is taken


def plan_for(shape: Shape) -> Plan:
    """The plan that is remembered, or else the model's."""
    return known.get(shape) or choose(shape)


def tune(shape: Shape, seconds: Callable[[Plan], float]) -> Plan:
    """Looks for a better plan by measuring, and remembers it."""
    best = plan_for(shape)
    least = seconds(best)
    tried = {best}
    for change in (_tiles, _blocks, _packing, _depths, _blocks):
        for plan in change(shape, best):
            if plan in tried:
                continue
            tried.add(plan)
            took = seconds(plan)
            if took < GAIN * least:
                best, least = plan, took
    known[shape] = best
    return best


def _tiles(shape: Shape, plan: Plan) -> Iterator[Plan]:
    for rows, vectors in ((8, 3), (8, 2), (6, 4), (6, 2), (4, 4), (12, 1)):
        if rows <= shape.m and vectors * plan.lanes <= shape.n and rows * vectors <= shape.registers - 2 - vectors:
            blocks = _whole(plan.row_block, rows), _whole(plan.column_block, vectors * plan.lanes)
            yield replace(plan, rows=rows, vectors=vectors, row_block=blocks[0], column_block=blocks[1])


def _blocks(shape: Shape, plan: Plan) -> Iterator[Plan]:
    for rows in (32, 64, 128, 256, shape.m):
        for columns in (plan.width, 4 * plan.width, plan.column_block, shape.n):
            if rows <= shape.m and columns <= _whole(shape.n, plan.width):
                yield replace(plan, row_block=_whole(rows, plan.rows), column_block=_whole(columns, plan.width))


def _packing(shape: Shape, plan: Plan) -> Iterator[Plan]:
    for pack in (True, False):
        for own in (True, False):
            if pack or not shape.pack_b:
                yield replace(plan, pack_b=pack, own_b=own)
            if pack or not shape.pack_a:
                yield replace(plan, pack_a=pack, own_a=own)


def _depths(shape: Shape, plan: Plan) -> Iterator[Plan]:
    for depth in (128, 256, 512, shape.k):
        if depth <= shape.k:
            yield replace(plan, depth=depth, unroll=next(u for u in (4, 2, 1) if shape.k % u == depth % u == 0))


def _whole(x: int, unit: int) -> int:
    return -(-x // unit) * unit


# ---- between processes


def as_text() -> str:
    """All that is remembered."""
    return json.dumps([[asdict(shape), asdict(plan)] for shape, plan in known.items()])


def read(text: str) -> None:
    """Remembers what another process has found. What cannot be understood is left out."""
    try:
        for shape, plan in json.loads(text):
            if set(shape) == _names(Shape) and set(plan) == _names(Plan):
                _remember(Shape(**shape), Plan(**plan))
    except (ValueError, TypeError):
        return


def _remember(shape: Shape, plan: Plan) -> None:
    numbers = all(isinstance(x, int) for x in astuple(shape) + astuple(plan)) and min(astuple(plan)[:7]) > 0
    blocks = numbers and plan.row_block % plan.rows == 0 and plan.column_block % plan.width == 0
    steps = blocks and shape.k % plan.unroll == 0 and plan.depth % plan.unroll == 0
    packed = (plan.pack_a or not shape.pack_a) and (plan.pack_b or not shape.pack_b)
    if steps and packed and plan.lanes <= shape.lanes:
        known[shape] = plan


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}
