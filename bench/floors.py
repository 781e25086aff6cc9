"""Targets for compiled steps, and the check of a measured table against them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

PEERS = ("torch", "compile", "jax", "tinygrad", "mlx")
FASTEST = "the fastest peer"
BYTES = "its bytes"


@dataclass(frozen=True)
class Floor:
    """A quantity ("best", "cold", "warm", "peak") of `variant`, at most `limit` times that of `against`, or `limit` seconds."""

    limit: float
    against: str | None = FASTEST
    quantity: str = "best"
    variant: str = "compiled"


START = [Floor(1.0, "jax", "cold"), Floor(0.3, None, "warm")]
BOUND = [Floor(1.0), Floor(1.3, BYTES), *START]
FLOORS: dict[str, list[Floor]] = {
    "micrograd": [Floor(0.9, "jax"), Floor(0.5, "jax", variant="pure"), Floor(0.1, "eager"), *START],
    "makemore": [Floor(0.9, "jax"), Floor(0.5, "jax", variant="pure"), *START],
    "mnist": [Floor(0.9), *START],
    "gpt-small": [Floor(0.9), Floor(0.4, "eager"), Floor(0.7, "torch", "peak"), *START],
    "gpt-medium": [Floor(0.9), Floor(0.7, "torch", "peak"), *START, Floor(2.0, None, "cold")],
    "convnet": [Floor(1.0), *START],
    "gru": [Floor(0.7), *START],
    "pointwise": BOUND,
    "layer-norm": BOUND,
    "cross-entropy": BOUND,
    "tiny": [Floor(1.0, "eager")],
}
WORDS = {"best": "step", "cold": "first step, cold", "warm": "first step, warm", "peak": "peak memory"}


def reference(floor: Floor, row: dict[str, Any]) -> tuple[str, float]:
    """The variant that a floor is measured against, and its figure; NaN if that was not measured."""
    measured = row["variants"]
    if floor.against is None:
        return "1 s", 1.0
    if floor.against == BYTES:
        return BYTES, row.get("bytes_seconds", math.nan)
    name = floor.against
    if name == FASTEST:
        peers = {p: measured[p]["best"] for p in PEERS if p in measured}
        name = min(peers, key=peers.__getitem__, default=FASTEST)
    return name, figure(measured, name, floor.quantity)


def figure(measured: dict[str, Any], variant: str, quantity: str) -> float:
    """NaN where there is none, as of the first compiled step of what was never compiled."""
    found = measured.get(variant, {}).get(quantity)
    return math.nan if found is None else float(found)


def verdicts(row: dict[str, Any]) -> list[str]:
    """A line for each floor whose both sides were measured."""
    lines = []
    for floor in FLOORS[row["workload"]]:
        name, theirs = reference(floor, row)
        ratio = figure(row["variants"], floor.variant, floor.quantity) / theirs
        if math.isnan(ratio):
            continue
        mark = "reached" if ratio <= floor.limit else "not reached"
        what = f"{floor.variant}, {WORDS[floor.quantity]}"
        lines.append(f"  {what:28} {ratio:7.2f} x {name:10} floor {floor.limit:.2f}: {mark}")
    return lines
