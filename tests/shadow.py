"""Running programs twice from the same memory, plainly and as native code: they must agree, and write nowhere else.

What a test goes on with are the plain program's results, so that what Python makes of values is the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tapejit.codegen.native import native
from tapejit.tracer import program
from tapejit.tracer.functional import graph_of
from tapejit.tracer.graph import GraphError
from tapejit.tracer.interpret import aliased
from tapejit.tracer.passes import optimised

TOLERANCE = {"f2": 2e-3, "V2": 2e-2, "f4": 2e-5, "f8": 1e-11}


class Seen:
    """What was run: native programs, how often, and why some were not."""

    def __init__(self) -> None:
        self.programs: list[Any] = []
        self.runs = 0
        self.left: list[str] = []


def owner(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def tolerance(array: Any) -> float:
    return 0.0 if array.dtype.kind in "biu" else TOLERANCE["V2" if array.dtype.kind == "V" else array.dtype.str[1:]]


def close(found: Any, expected: Any) -> bool:
    """Equal up to rounding, relative to what is around: a difference of large numbers is as imprecise as they are."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if found.dtype.kind in "biu":
        return bool((found == expected).all())
    a, b = found.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    scale = np.abs(b[finite]).max(initial=0.0)
    limit = tolerance(found) * (np.abs(b) + 0.1 * scale + 1e-6)
    return bool((same | (finite & (np.abs(a - b) <= limit))).all())


def shadowed(seen: Seen, make: Callable[..., Any] = program.make_program) -> Callable[..., Any]:
    """In the place of `make_program`: programs that are checked against native code each time that they run."""

    def make_both(trace: Any, start: int, stop: int, keep: frozenset[int]) -> Any:
        plain = make(trace, start, stop, keep)
        try:
            fast = native(optimised(graph_of(trace, start, stop, keep)), len(trace.roots), plain)
        except GraphError as reason:
            seen.left.append(str(reason))
            return plain
        seen.programs.append(fast)
        return lambda arrays, scalars: both(seen, fast, plain, arrays, scalars)

    return make_both


def both(seen: Seen, fast: Any, plain: Any, arrays: list[Any], scalars: list[Any]) -> None:
    graph = fast.graph
    if aliased(graph, arrays):
        plain(arrays, scalars)
        return
    before = list(arrays)
    memory = {id(owner(a)): (owner(a), owner(a).copy(order="K")) for a in arrays if type(a) is np.ndarray}
    fast.run(arrays, scalars)
    wanted = [o.slot for o in graph.outputs] + [x.slot for x in graph.inputs]
    found = {s: (arrays[s].strides, arrays[s].copy()) for s in wanted}
    arrays[:] = before
    for array, saved in memory.values():
        if array.flags.writeable:
            array[...] = saved
    plain(arrays, scalars)
    seen.runs += 1
    for slot in wanted:
        strides, value = found[slot]
        assert close(value, arrays[slot]), f"slot {slot} differs: {value} and {arrays[slot]}\n{graph}"
        if value.size > 1:
            steps = [(a, b) for a, b, n in zip(strides, arrays[slot].strides, value.shape, strict=True) if n > 1]
            assert all(a == b for a, b in steps), f"slot {slot} has other strides\n{graph}"
