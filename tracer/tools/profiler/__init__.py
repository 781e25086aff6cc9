"""`profiler.profile()`. In: a block of code. Out: its time by op, by kernel and by the user's lines.

    with tj.profiler.profile() as prof:
        for x, y in loader:
            step(x, y)
    print(prof.table())
    print(prof.table(by="line"))
    prof.export_chrome_trace("trace.json")

Eager ops are timed one by one, by a handler at `apply`; backward passes, custom Functions, calls of compiled
functions, their programs and compilation by wrappers installed for the length of the block. Only the thread
that opened the block is profiled. `tables.py` turns the events into rows.
"""

from __future__ import annotations

import enum
import threading
from time import perf_counter_ns
from typing import Any

from ....eager.core.dispatch import execute
from ....eager.core.op import Op
from ....eager.core.tape.node import local
from ...trace.trace import user_line
from .hooks import HOOKS
from .tables import Averages, Event, by_line, by_name, chrome_trace, rest_in_words

OF_TORCH = {"activities", "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules"}
_running: list[profile] = []


class ProfilerActivity(enum.Enum):
    """Activities of PyTorch's profiler, accepted and ignored."""

    CPU = enum.auto()
    CUDA = enum.auto()


class profile:  # noqa: N801
    """Profile a block; see the module docstring. `kernels=False` skips timing the kernels of native programs one by one.

    PyTorch's `activities`, `record_shapes`, `profile_memory`, `with_stack`, `with_flops` and `with_modules` are ignored.
    """

    def __init__(self, kernels: bool = True, **of_torch: Any) -> None:
        strange = sorted(of_torch.keys() - OF_TORCH)
        if strange:
            raise TypeError(f"[profiler] profile: unknown option {strange[0]!r}")
        self.kernels = kernels
        self.events: list[Event] = []
        self.began = self.ended = 0
        self._open: list[Event] = []

    # ---- the block

    def __enter__(self) -> profile:
        state = local.state
        if state.tracer is not None:
            raise RuntimeError("[profiler] profile: cannot be opened inside a compiled function")
        if _running:
            raise RuntimeError("[profiler] profile: another one is already running")
        if state.autocast is not None:
            raise RuntimeError("[profiler] profile: cannot be opened inside autocast; use autocast inside the profile")
        self._thread = threading.get_ident()
        self._state = state
        self._patched = [(owner, name, owner.__dict__[name]) for owner, name, _ in HOOKS]
        for (owner, name, make), (_, _, before) in zip(HOOKS, self._patched, strict=True):
            setattr(owner, name, make(self, before))
        self._handler = state.handler
        state.handler = self._op
        _running.append(self)
        self.began = perf_counter_ns()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended = perf_counter_ns()
        _running.remove(self)
        self._state.handler = self._handler
        for owner, name, before in self._patched:
            setattr(owner, name, before)

    def _op(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any) -> Any:
        with self.span(op.name, "op"):
            return execute(op, inputs, attrs, out, self._state)

    def span(self, name: str, kind: str, line: str | None = None) -> TimedBlock:
        """Time a block."""
        return TimedBlock(self, name, kind, user_line() if line is None else line)

    def here(self) -> bool:
        return threading.get_ident() == self._thread

    # ---- results

    def key_averages(self) -> Averages:
        """Rows by op, kernel, program and so on, sorted by self time."""
        return by_name(self.events, self.kernels)

    def by_line(self) -> Averages:
        """Rows by the user's lines. The time of a kernel that several lines share is split equally among them."""
        return by_line(self.events, self.kernels)

    def table(self, by: str = "op", limit: int = 25) -> str:
        """Format the rows as text, by "op" or by "line"."""
        if by not in ("op", "line"):
            raise ValueError(f'[profiler] table: by must be "op" or "line", not {by!r}')
        rows = self.key_averages() if by == "op" else self.by_line()
        return f"{rows.table(limit)}\n{rest_in_words(self.events, self.ended - self.began)}"

    def __str__(self) -> str:
        return self.table()

    def export_chrome_trace(self, path: Any) -> None:
        """Write a file for chrome://tracing or ui.perfetto.dev."""
        chrome_trace(self.events, self.kernels, self.began, path)


class TimedBlock:
    """Times a block; nested events do not count as self time. Not a generator, whose frames would not be the user's lines."""

    def __init__(self, prof: profile, name: str, kind: str, line: str) -> None:
        self.prof = prof
        self.event = Event(name, kind, line, 0)

    def __enter__(self) -> Event:
        self.prof._open.append(self.event)
        self.event.start = perf_counter_ns()
        return self.event

    def __exit__(self, *error: object) -> None:
        event, prof = self.event, self.prof
        event.end = perf_counter_ns()
        prof._open.pop()
        if prof._open:
            prof._open[-1].inner += event.end - event.start
        prof.events.append(event)


class record_function:  # noqa: N801
    """Name a block in the running profile, if there is one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._span: TimedBlock | None = None

    def __enter__(self) -> None:
        if _running and _running[0].here():
            self._span = _running[0].span(self.name, "range")
            self._span.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._span is not None:
            self._span.__exit__()


# ---- wrappers around functions
