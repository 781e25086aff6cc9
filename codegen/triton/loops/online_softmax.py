"""Online softmax for rows that do not fit into registers: the sum of exponentials in the same pass as the maximum.

In a nest the maximum of a row is one stage, and the sum of exp(x - maximum) the next. Where rows are processed tile by tile,
both are kept at once: each lane has its running maximum and a sum of exponentials of numbers less that, which is rescaled when
a new maximum turns up. At the end the lanes are combined by the overall maximum. This saves one pass over the row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir.expr import Expr
from ...nests.loop_nest import Stage, Total
from ..printing.scalar_ops import floating


@dataclass(frozen=True)
class Sum:
    """Sum of exp(x - shift), where `shift` follows from the maximum of x."""

    total: Total
    shift: Expr


def in_one_pass(stages: list[Stage]) -> tuple[list[Stage], dict[str, list[Sum]]]:
    """Remove stages that are nothing but such sums; also returns, by name of the maximum, the sums that go with it."""
    found: list[Stage] = []
    sums: dict[str, list[Sum]] = {}
    for stage in stages:
        before = found[-1] if found else Stage()
        matched = [match(t, before.totals) for t in stage.totals]
        if stage.totals and all(matched) and not stage.stores and not stage.columns:
            for pair in matched:
                assert pair is not None
                sums.setdefault(pair[0].name, []).append(pair[1])
            stage = replace(stage, totals=[])
        found.append(stage)
    return found, sums


def match(t: Total, totals: list[Total]) -> tuple[Total, Sum] | None:
    """Match a sum with the maximum that it goes with."""
    power = t.expr
    if t.op != "sum" or not is_op(power, "exp") or not is_op(power.args[0], "sub") or t.dtype != power.dtype:
        return None
    x, shift = power.args[0].args
    for top in totals:
        alone = {e.data for e in shift.totals} == {top.name}
        if top.op == "amax" and top.expr is x and alone and top.dtype == t.dtype and floating(t.dtype):
            return top, Sum(t, shift)
    return None


def is_op(e: Expr, name: str) -> bool:
    return e.kind == "op" and e.data[0] == name
