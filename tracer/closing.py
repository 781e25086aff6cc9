"""The end of a call: what is done before and after the program of its last segment, as functions written for the segment.

First a look at whether the same tensors are alive as last time, by their reference counts. Tensors whose memory the program
writes show it again, and their version counters go on; tensors that outlive the call get their arrays. Nothing is kept for
later, as the frame is closed then. What is not the plain case is left to `Replayer`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..eager.tensor import wrap
from .source import Source
from .trace import Trace, Value


class Closing:
    """The functions; `hidden` are the values whose memory shows nothing before the program runs."""

    __slots__ = ("after", "before", "hidden", "late", "same")

    def __init__(self, values: list[Value], segment: Any, results: list[int], nodes: set[int], hidden: list[int]) -> None:
        self.same = _same(results, segment, nodes)
        self.before = _before(values, hidden)
        self.after = _after(values, segment)
        self.hidden = hidden
        self.late = segment.late


def make_closing(trace: Trace, segment: Any, start: int, stop: int, hidden: list[int]) -> Closing | None:
    """How to end with a segment; None if there is more to do."""
    results, views = trace.promises(start, stop)
    if views or segment.writes_inside or (segment.tops and segment.late is None):
        return None
    return Closing(trace.values, segment, results, set(trace.entries[stop].state.nodes), hidden)


def _same(results: list[int], segment: Any, nodes: set[int]) -> Callable[..., bool]:
    """Whether the tensors that are alive, and that have a place on the tape, are those that the segment is for."""
    source = Source("same", "f")
    source.add("T = f.tensors; A = f.held")
    tests = []
    for n in results:
        if n in segment.alive:
            tests.append(f"T[{n}] is not None and (references(T[{n}]) > {LONE[0]} or references(A[{n}]) > {LONE[1]})")
            if n in nodes:
                tests.append(f"T[{n}]._node {'is' if n in segment.nodes else 'is not'} PENDING")
        else:
            tests.append(f"(T[{n}] is None or (references(T[{n}]) <= {LONE[0]} and references(A[{n}]) <= {LONE[1]}))")
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


LONE = _lone()


def _before(values: list[Value], hidden: list[int]) -> Callable[..., Any]:
    source = Source("before", "f")
    source.add("T = f.tensors; B = f.arrays")
    for n in hidden:
        source.add(f"t = T[{n}]; p = t._array; t._array = p.real = B[{values[n].slot}]; p.frame = None")
    source.add("f.hidden.clear()")
    return source.function("before a program")


def _after(values: list[Value], segment: Any) -> Callable[..., Any]:
    source = Source("after", "f")
    source.add("T = f.tensors; B = f.arrays")
    for _, count, owner in segment.writes:
        source.add(f"t = T[{owner}]; b = t._versions", f"if b is None: t._versions = [{count}]", f"else: b[0] += {count}")
    for n in segment.alive:
        source.add(f"t = T[{n}]; p = t._array; t._array = p.real = B[{values[n].slot}]; p.frame = None")
    return source.function("after a program")
