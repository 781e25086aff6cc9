"""Memory that eager execution needs for a segment, from the recording: each array lives from the op that makes it to the last
op that uses it. Python's variables may keep arrays for longer, so it is the least that eager execution needs."""

from __future__ import annotations

from typing import Any

from ...trace.queries import calls_between, values_used
from ...trace.trace import Trace


def eager_memory(trace: Trace, start: int, stop: int, keep: frozenset[int]) -> dict[str, Any]:
    """Live bytes while each op runs, and their peak."""
    ops = calls_between(trace, start, stop)
    born: dict[int, int] = {}
    last: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for i, call in enumerate(ops):
        for value in call.results:
            if trace.roots[value.slot] == value.slot:
                born[value.slot], sizes[value.slot] = i, value.form.nbytes
        for slot in [trace.values[n].slot for n in values_used(call)] + [v.slot for v in call.results]:
            last[trace.roots[slot]] = i
    for slot in keep:
        last[trace.roots[slot]] = len(ops) - 1
    change = [0] * (len(ops) + 1)
    for slot, first in born.items():
        change[first] += sizes[slot]
        change[last[slot] + 1] -= sizes[slot]
    alive, curve = 0, []
    for i in range(len(ops)):
        alive += change[i]
        curve.append(alive)
    return {"bytes": curve, "peak": max(curve, default=0)}
