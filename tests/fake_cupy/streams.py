"""Streams, events and graphs of the pretended GPU.

Kernels run at once, in the order in which they are launched. Copies to the CPU do not: they are done when somebody waits, as
late as CUDA allows, so that who looks without waiting sees nothing. While a stream is captured nothing runs: what is launched
goes into the graph, and what CUDA refuses then (allocating, waiting, cuBLAS) raises.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from .errors import CUDARuntimeError

_numbers = itertools.count(1)
_all: dict[int, Stream] = {}


class _Current(threading.local):
    stream: Stream | None = None
    capturing: Stream | None = None


_current = _Current()


def refuse_while_capturing(what: str) -> None:
    if _current.capturing is not None:
        raise CUDARuntimeError(
            "cudaErrorStreamCaptureUnsupported", f"operation not permitted when stream is capturing ({what})"
        )


class Stream:
    """A queue of work."""

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: Any = None) -> None:
        self.ptr = 0 if null else next(_numbers)
        self.is_non_blocking = non_blocking
        same = _all.setdefault(self.ptr, self)  # all that are the default stream are one
        self._late: list[Callable[[], None]] = [] if same is self else same._late  # copies that nobody has waited for
        self._graph: list[Callable[[], None]] | None = None
        self._before: list[Stream | None] = []

    def use(self) -> Stream:
        _current.stream = self
        return self

    def __enter__(self) -> Stream:
        self._before.append(_current.stream)
        return self.use()

    def __exit__(self, *_: object) -> None:
        _current.stream = self._before.pop()

    def synchronize(self) -> None:
        refuse_while_capturing("waiting for a stream")
        self._done()

    def record(self, event: Event | None = None) -> Event:
        found = Event() if event is None else event
        found.record(self)
        return found

    def wait_event(self, event: Event) -> None:
        self._submit(lambda: None)

    def begin_capture(self, mode: Any = None) -> None:
        if self.ptr == 0:
            raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported", "the default stream cannot be captured")
        refuse_while_capturing("another capture")
        self._graph, _current.capturing = [], self

    def end_capture(self) -> Graph:
        if self._graph is None:
            raise CUDARuntimeError("cudaErrorIllegalState", "the stream is not captured")
        found, self._graph, _current.capturing = Graph(self._graph), None, None
        return found

    def is_capturing(self) -> bool:
        return self._graph is not None

    def _submit(self, work: Callable[[], None]) -> None:
        if self._graph is not None:
            self._graph.append(work)
            return
        refuse_while_capturing("a launch on another stream")
        work()

    def _done(self) -> None:
        while self._late:
            self._late.pop(0)()


Stream.null = Stream(null=True)  # type: ignore[attr-defined]


class Event:
    """A point in a stream."""

    clock: Any = None  # tests put a function here that says how late it is, in milliseconds

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self._stream: Stream | None = None
        self._timing = not disable_timing
        self._copies = 0
        self._time = 0.0

    def record(self, stream: Stream | None = None) -> None:
        refuse_while_capturing("an event that is looked at outside")
        self._stream = get_current_stream() if stream is None else stream
        self._copies = len(self._stream._late)
        self._time = Event.clock() if Event.clock is not None else 0.0

    def synchronize(self) -> None:
        refuse_while_capturing("waiting for an event")
        if self._stream is not None:
            self._stream._done()


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    if not start_event._timing or not end_event._timing:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle", "invalid resource handle")
    return end_event._time - start_event._time


class Graph:
    """Work that a stream was given while it was captured."""

    def __init__(self, work: list[Callable[[], None]]) -> None:
        self._work = work

    def launch(self, stream: Stream | None = None) -> None:
        target = get_current_stream() if stream is None else stream
        target._submit(lambda: [work() for work in self._work] and None)

    def upload(self, stream: Stream | None = None) -> None: ...


def get_current_stream(device_id: int = -1) -> Stream:
    return _current.stream or Stream.null  # type: ignore[attr-defined,no-any-return]


def stream_at(ptr: int) -> Stream:
    if ptr not in _all:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle", "invalid resource handle")
    return _all[ptr]
