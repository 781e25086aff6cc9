"""The first calls of compiled functions, one by one: when each began, how long it took, and what it was.

    with noted() as timelines:
        train()

Within the block functions are put around those that are called; outside of it nothing is, so it costs nothing there. A call is
`eager` (not traced), `record` (run eagerly and recorded), `diverge` (replayed up to a point, and recorded from there),
`replay`, or `compare`: a replay by a plain program, once, to see whether native code is quicker. `compile` is the making of
native code within a call, or beside it in another thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from ....eager.core.tape.node import local
from ...api.compile import Compiled
from ..explain.explain import shown
from ...execute.backends import Warming

BRIEF = 1e-3  # seconds
MOST = 60  # spans that are kept of each function


class Span:
    """Seconds from when the block began; those within it that were compiling are not its own."""

    __slots__ = ("call", "compared", "compiling", "kind", "note", "seconds", "start")

    def __init__(self, call: int, kind: str, start: float) -> None:
        self.call, self.kind, self.start = call, kind, start
        self.seconds = self.compiling = 0.0
        self.note = ""
        self.compared = False

    def to_dict(self) -> dict[str, Any]:
        return {"call": self.call, "kind": self.kind, "start": self.start, "seconds": self.seconds, "note": self.note}


class Timeline:
    """Of one function: its first spans, and how many calls there were in all."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.spans: list[Span] = []
        self.calls = 0
        self.open: Span | None = None

    def keep(self, span: Span) -> None:
        if len(self.spans) < MOST:
            self.spans.append(span)

    def to_dict(self) -> dict[str, Any]:
        """Spans in the order in which they began."""
        return {"calls": self.calls, "spans": [s.to_dict() for s in sorted(self.spans, key=lambda s: (s.call, s.start))]}


Timelines = dict[Compiled, Timeline]


@contextlib.contextmanager
def noted() -> Iterator[Timelines]:
    """In this block the calls of compiled functions are noted."""
    found: Timelines = {}
    began = perf_counter()
    call, generate, decide = Compiled.__call__, Warming.generate, Warming.decide

    def of(function: Compiled) -> Timeline:
        return found.setdefault(function, Timeline(began))

    def called(self: Compiled, /, *args: Any, **kwargs: Any) -> Any:
        if local.state.tracer is not None:
            return call(self, *args, **kwargs)  # part of the caller's recording
        return timed_call(of(self), call, self, args, kwargs)

    def generated(self: Warming) -> None:
        timed_generation(of(self.function), generate, self)

    def decided(self: Warming, native: float, plain: float) -> None:
        span = of(self.function).open
        if span is not None:
            span.compared = True
        decide(self, native, plain)

    Compiled.__call__ = called  # type: ignore[method-assign, assignment]
    Warming.generate, Warming.decide = generated, decided  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Compiled.__call__, Warming.generate, Warming.decide = call, generate, decide  # type: ignore[method-assign]


def timed_call(timeline: Timeline, call: Any, function: Compiled, args: Any, kwargs: Any) -> Any:
    timeline.calls += 1
    calls, hits, recordings = function.calls, function.hits, function.recordings
    diverged, fell_back = dict(function.divergences), dict(function.fell_back)
    span = timeline.open = Span(timeline.calls, "eager", perf_counter() - timeline.began)
    try:
        return call(function, *args, **kwargs)
    except BaseException as error:
        span.note = f"it raised {type(error).__name__}"
        raise
    finally:
        span.seconds = perf_counter() - timeline.began - span.start - span.compiling
        if function.hits > hits:
            span.kind = "compare" if span.compared else "replay"
        elif new := [key for key, times in function.divergences.items() if times > diverged.get(key, 0)]:
            span.kind, span.note = "diverge", "; ".join(f"{shown(line)}: {reason}" for line, reason in new)
        elif function.recordings > recordings:
            span.kind = "record"
        else:
            reasons = [why for why, times in function.fell_back.items() if times > fell_back.get(why, 0)]
            span.note = span.note or "; ".join(reasons) or "run eagerly, to compare with" * (function.calls == calls)
        timeline.open = None
        timeline.keep(span)


def timed_generation(timeline: Timeline, generate: Any, warming: Warming) -> None:
    within = timeline.open if threading.current_thread() is not warming.thread else None
    span = Span(timeline.calls, "compile", perf_counter() - timeline.began)
    try:
        generate(warming)
    finally:
        span.seconds = perf_counter() - timeline.began - span.start
        span.note = "" if within is not None else "beside, in another thread"
        if within is not None:
            within.compiling += span.seconds
        if warming.segment.native is not None or span.seconds > BRIEF:  # not where there was nothing to compile
            timeline.keep(span)
