"""The end of a call: what is done before and after the program of its last segment, as functions written for the segment.

Before it a look at whether the same tensors are alive as last time, by their reference counts. After it tensors whose memory
the program has written show it again, and their version counters go on; tensors that outlive the call get their arrays. Nothing
is kept for later, as the frame is closed then. What is not the plain case is left to `Replayer`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...eager.core.tensor import wrap
from ..trace.specialize import Source
from ..trace.trace import Trace, Value


class Closing:
    """The functions; `hidden` are the values whose memory shows nothing before the program runs."""

    __slots__ = ("after", "hidden", "late", "same")

    def __init__(self, frame: Any, segment: Any, results: list[int], nodes: set[int], writes: dict[int, int]) -> None:
        self.same = _same(frame, results, segment, nodes)
        self.after = _after(frame.trace.values, segment, frame.hidden, writes)
        self.hidden = list(frame.hidden)
        self.late = segment.late


def make_closing(frame: Any, segment: Any, start: int, stop: int) -> Closing | None:
    """How to end with a segment, if a call ends as this one does; None if there is more to do."""
    trace: Trace = frame.trace
    results, _ = trace.promises(start, stop)
    if segment.tops and segment.late is None and (segment.joint is None or frame.moved):
        return None
    if any(trace.values[n].view is not None for n in segment.alive):
        return None
    writes: dict[int, int] = {}  # of the values from outside and of those that are alive: how often they are written
    for root, count, owner in segment.writes:
        known = {*segment.alive, *frame.hidden} if owner is None else ()  # an earlier segment may have made it
        shown = [n for n in known if trace.roots[trace.values[n].slot] == root] if owner is None else [owner]
        if len(shown) > 1:
            return None
        writes.update(dict.fromkeys(shown, count))
    return Closing(frame, segment, results, set(trace.entries[stop].state.nodes), writes)


def _same(frame: Any, results: list[int], segment: Any, nodes: set[int]) -> Callable[..., bool]:
    """Whether the tensors that are alive, and that have a place on the tape, are those that the segment is for."""
    source = Source("same", "f")
    source.add("T = f.tensors; A = f.held")
    present = [n for n in results if frame.tensors[n] is not None]
    views = Counter(frame.base(frame.trace.values[n]) for n in present if frame.trace.values[n].view is not None)
    tests = [f"T[{n}] is None" for n in results if frame.tensors[n] is None]  # inside regions
    for n in present:
        tensor = LONE_TENSOR + views[n]  # views refer to what they are views of
        if n in segment.alive:
            tests.append(f"T[{n}] is not None and (references(T[{n}]) > {tensor} or references(A[{n}]) > {LONE_ARRAY})")
            if n in nodes:
                seen = f"(T[{n}]._node is PENDING and references(T[{n}]) > {LONE_TENSOR})"
                tests.append(seen if n in segment.nodes else f"not {seen}")
        else:
            tests.append(f"T[{n}] is not None and references(T[{n}]) <= {tensor} and references(A[{n}]) <= {LONE_ARRAY}")
    source.add(f"return {' and '.join(tests) or 'True'}")
    return source.function("who is alive")


def _lone() -> tuple[int, int]:
    """How often Python counts a tensor and its array in a function like `same`, if nobody else refers to them."""
    t = wrap(np.empty(1))
    frame = SimpleNamespace(tensors=[t], held=[t._array])
    del t
    source = Source("count", "f")
    source.add("T = f.tensors; A = f.held", "return references(T[0]), references(A[0])")
    return source.function("references")(frame)  # type: ignore[no-any-return]


LONE_TENSOR, LONE_ARRAY = _lone()


def _after(values: list[Value], segment: Any, hidden: list[int], writes: dict[int, int]) -> Callable[..., Any]:
    source = Source("after", "f")
    source.add("T = f.tensors; B = f.arrays")
    for n in sorted({*hidden, *writes}):
        source.add(f"t = T[{n}]")
        if n in hidden:
            source.add(f"p = t._array; t._array = p.real = B[{values[n].slot}]; p.frame = None")
        if n in writes:
            source.add("b = t._versions", f"if b is None: t._versions = [{writes[n]}]", f"else: b[0] += {writes[n]}")
    for n in segment.alive:
        source.add(f"t = T[{n}]; p = t._array; t._array = p.real = B[{values[n].slot}]; p.frame = None")
    source.add("f.hidden = []")
    return source.function("after a program")
