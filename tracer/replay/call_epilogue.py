"""Call epilogue: code before and after the program of a call's last segment, as functions specialised to the segment.

Before the program, reference counts tell whether the same tensors are alive as in the last call. After it, tensors whose memory
the program has written show it again and their version counters are incremented, and tensors that outlive the call get their
arrays. No state is kept, as the frame is closed then. All other cases are handled by `Replayer`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...eager.core.tensor import wrap
from ..trace.specialize import ReplayWriter
from ..trace.trace import Trace, Value


class CallEpilogue:
    """The generated functions; `hidden` are the values whose memory is hidden before the program runs."""

    __slots__ = ("after", "hidden", "late", "same")

    def __init__(self, frame: Any, segment: Any, results: list[int], nodes: set[int], writes: dict[int, int]) -> None:
        self.same = _same(frame, results, segment, nodes)
        self.after = _after(frame.trace.values, segment, frame.hidden, writes)
        self.hidden = list(frame.hidden)
        self.late = segment.late


def make_epilogue(frame: Any, segment: Any, start: int, stop: int) -> CallEpilogue | None:
    """Generate the epilogue for calls that end as this one does; None if such an end needs more work."""
    trace: Trace = frame.trace
    results, _ = trace.promises(start, stop)
    if segment.tops and segment.late is None and (segment.joint is None or frame.moved):
        return None
    if any(trace.values[n].view is not None for n in segment.alive):
        return None
    writes: dict[int, int] = {}  # values from outside and values alive -> number of writes
    for root, count, owner in segment.writes:
        known = {*segment.alive, *frame.hidden} if owner is None else ()  # an earlier segment may have produced it
        shown = [n for n in known if trace.roots[trace.values[n].slot] == root] if owner is None else [owner]
        if len(shown) > 1:
            return None
        writes.update(dict.fromkeys(shown, count))
    return CallEpilogue(frame, segment, results, set(trace.entries[stop].state.nodes), writes)


def _same(frame: Any, results: list[int], segment: Any, nodes: set[int]) -> Callable[..., bool]:
    """Generate a check that the tensors alive, and those with a node on the tape, are the ones the segment was built for."""
    source = ReplayWriter("same", "f")
    source.add("T = f.tensors; A = f.held")
    present = [n for n in results if frame.tensors[n] is not None]
    views = Counter(frame.base(frame.trace.values[n]) for n in present if frame.trace.values[n].view is not None)
    tests = [f"T[{n}] is None" for n in results if frame.tensors[n] is None]  # inside regions
    for n in present:
        tensor = LONE_TENSOR + views[n]  # views refer to their base
        if n in segment.alive:
            tests.append(f"T[{n}] is not None and (references(T[{n}]) > {tensor} or references(A[{n}]) > {LONE_ARRAY})")
            if n in nodes:
                seen = f"(T[{n}].tj_node is PLACEHOLDER_NODE and references(T[{n}]) > {LONE_TENSOR})"
                tests.append(seen if n in segment.nodes else f"not {seen}")
        else:
            tests.append(f"T[{n}] is not None and references(T[{n}]) <= {tensor} and references(A[{n}]) <= {LONE_ARRAY}")
    source.add(f"return {' and '.join(tests) or 'True'}")
    return source.function("who is alive")


def _lone() -> tuple[int, int]:
    """Measure the reference counts of a tensor and its array in a function like `same`, without other references."""
    t = wrap(np.empty(1))
    frame = SimpleNamespace(tensors=[t], held=[t.tj_array])
    del t
    source = ReplayWriter("count", "f")
    source.add("T = f.tensors; A = f.held", "return references(T[0]), references(A[0])")
    return source.function("references")(frame)  # type: ignore[no-any-return]


LONE_TENSOR, LONE_ARRAY = _lone()


def _after(values: list[Value], segment: Any, hidden: list[int], writes: dict[int, int]) -> Callable[..., Any]:
    source = ReplayWriter("after", "f")
    source.add("T = f.tensors; B = f.arrays")
    for n in sorted({*hidden, *writes}):
        source.add(f"t = T[{n}]")
        if n in hidden:
            source.add(f"p = t.tj_array; t.tj_array = p.real = B[{values[n].slot}]; p.frame = None")
        if n in writes:
            source.add("b = t.tj_versions", f"if b is None: t.tj_versions = [{writes[n]}]", f"else: b[0] += {writes[n]}")
    for n in segment.alive:
        source.add(f"t = T[{n}]; p = t.tj_array; t.tj_array = p.real = B[{values[n].slot}]; p.frame = None")
    source.add("f.hidden = []")
    return source.function("after a program")
