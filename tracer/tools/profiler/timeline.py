"""Timeline of the first calls of compiled functions: start, duration and kind of each.

    with noted() as timelines:
        train()

Wrappers are installed for the length of the block, so there is no cost outside it. A call is
`eager` (not traced), `record` (run eagerly and recorded), `diverge` (replayed up to a point, and recorded from there),
`replay`, or `compare`: one replay by the reference program, to see if native code is faster. `compile` is the generation
of native code within a call, or in another thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from ....eager.core.tape.node import local
from ...api.compiled_function import CompiledFunction
from ...execute.tiering import Tiering
from ...trace.logging import display_line

BRIEF = 1e-3  # seconds
MAX_SPANS = 60  # kept for each function


class Span:
    """One interval, in seconds since the block began; compilation within it does not count as its self time."""

    __slots__ = ("call", "compared", "compiling", "kind", "note", "seconds", "start")

    def __init__(self, call: int, kind: str, start: float) -> None:
        self.call, self.kind, self.start = call, kind, start
        self.seconds = self.compiling = 0.0
        self.note = ""
        self.compared = False

    def to_dict(self) -> dict[str, Any]:
        return {"call": self.call, "kind": self.kind, "start": self.start, "seconds": self.seconds, "note": self.note}


class Timeline:
    """First spans of one function, and its total number of calls."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.spans: list[Span] = []
        self.calls = 0
        self.open: Span | None = None

    def keep(self, span: Span) -> None:
        if len(self.spans) < MAX_SPANS:
            self.spans.append(span)

    def to_dict(self) -> dict[str, Any]:
        """Return the spans as plain data, in order of their start."""
        return {"calls": self.calls, "spans": [s.to_dict() for s in sorted(self.spans, key=lambda s: (s.call, s.start))]}


Timelines = dict[CompiledFunction, Timeline]


@contextlib.contextmanager
def noted() -> Iterator[Timelines]:
    """Record the calls of compiled functions within this block."""
    found: Timelines = {}
    began = perf_counter()
    call, generate, decide = CompiledFunction.__call__, Tiering.compile_native, Tiering.decide

    def of(function: CompiledFunction) -> Timeline:
        return found.setdefault(function, Timeline(began))

    def called(self: CompiledFunction, /, *args: Any, **kwargs: Any) -> Any:
        if local.state.tracer is not None:
            return call(self, *args, **kwargs)  # part of the caller's recording
        return timed_call(of(self), call, self, args, kwargs)

    def generated(self: Tiering) -> None:
        timed_generation(of(self.function), generate, self)

    def decided(self: Tiering, native: float, reference: float) -> None:
        span = of(self.function).open
        if span is not None:
            span.compared = True
        decide(self, native, reference)

    CompiledFunction.__call__ = called  # type: ignore[method-assign, assignment]
    Tiering.compile_native, Tiering.decide = generated, decided  # type: ignore[method-assign]
    try:
        yield found
    finally:
        CompiledFunction.__call__, Tiering.compile_native, Tiering.decide = call, generate, decide  # type: ignore[method-assign]


def timed_call(timeline: Timeline, call: Any, function: CompiledFunction, args: Any, kwargs: Any) -> Any:
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
            span.kind, span.note = "diverge", "; ".join(f"{display_line(line)}: {reason}" for line, reason in new)
        elif function.recordings > recordings:
            span.kind = "record"
        else:
            reasons = [why for why, times in function.fell_back.items() if times > fell_back.get(why, 0)]
            span.note = span.note or "; ".join(reasons) or "run eagerly, to compare with" * (function.calls == calls)
        timeline.open = None
        timeline.keep(span)


def timed_generation(timeline: Timeline, generate: Any, tiering: Tiering) -> None:
    within = timeline.open if threading.current_thread() is not tiering.thread else None
    span = Span(timeline.calls, "compile", perf_counter() - timeline.began)
    try:
        generate(tiering)
    finally:
        span.seconds = perf_counter() - timeline.began - span.start
        span.note = "" if within is not None else "beside, in another thread"
        if within is not None:
            within.compiling += span.seconds
        if tiering.target.native is not None or span.seconds > BRIEF:  # skip it if there was nothing to compile
            timeline.keep(span)
