"""`profiler.profile()`: where the time of a block goes, by op and kernel and by the user's lines.

    with tj.profiler.profile() as prof:
        for x, y in loader:
            step(x, y)
    print(prof.table())
    print(prof.table(by="line"))
    prof.export_chrome_trace("trace.json")

Eager ops are timed one by one, by a handler that stands at `apply`; backward passes, custom Functions, calls of compiled
functions, their programs and the making of these by functions put around them for the length of the block. Only the thread
that opened the block is looked at. `profile_rows.py` makes the rows of what is noted here.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from ....eager.core.tape import node as tape
from ....eager.autograd.function import Function, FunctionNode
from ....eager.core.op import Op, execute
from ....eager.core.tape.node import local
from ...api.compile import Compiled
from ...replay.run_segment import Computing
from ...execute.backends import Warming
from .tables import Averages, Event, by_line, by_name, chrome_trace, rest_in_words
from ...skip.skipped_call import Pure
from ...trace.trace import users_line

OF_TORCH = {"activities", "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules"}
_running: list[profile] = []


class ProfilerActivity(enum.Enum):
    """What PyTorch's profiler is told to look at."""

    CPU = enum.auto()
    CUDA = enum.auto()


class profile:  # noqa: N801
    """See the module's text. With `kernels=False` native programs are not taken apart: that measures their kernels anew.

    PyTorch's `activities`, `record_shapes`, `profile_memory`, `with_stack`, `with_flops` and `with_modules` change nothing.
    """

    def __init__(self, kernels: bool = True, **of_torch: Any) -> None:
        strange = sorted(of_torch.keys() - OF_TORCH)
        if strange:
            raise TypeError(f"[profiler] profile: there is no option {strange[0]!r}")
        self.kernels = kernels
        self.events: list[Event] = []
        self.began = self.ended = 0
        self._open: list[Event] = []

    # ---- the block

    def __enter__(self) -> profile:
        state = local.state
        if state.tracer is not None:
            raise RuntimeError("[profiler] profile: open it outside of compiled functions")
        if _running:
            raise RuntimeError("[profiler] profile: one is running already")
        if state.autocast is not None:
            raise RuntimeError("[profiler] profile: open it outside of autocast; autocast may be used within")
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

    def span(self, name: str, kind: str, line: str | None = None) -> Span:
        """A block to be timed."""
        return Span(self, name, kind, users_line() if line is None else line)

    def here(self) -> bool:
        return threading.get_ident() == self._thread

    # ---- what was found

    def key_averages(self) -> Averages:
        """A row for each op, kernel, program and so on, those with most time of their own first."""
        return by_name(self.events, self.kernels)

    def by_line(self) -> Averages:
        """A row for each line of the user's. A kernel that several lines share counts for each of them in equal parts."""
        return by_line(self.events, self.kernels)

    def table(self, by: str = "op", limit: int = 25) -> str:
        """The rows as text, by "op" or by "line"."""
        if by not in ("op", "line"):
            raise ValueError(f'[profiler] table: by must be "op" or "line", not {by!r}')
        rows = self.key_averages() if by == "op" else self.by_line()
        return f"{rows.table(limit)}\n{rest_in_words(self.events, self.ended - self.began)}"

    def __str__(self) -> str:
        return self.table()

    def export_chrome_trace(self, path: Any) -> None:
        """Write a file for chrome://tracing or ui.perfetto.dev."""
        chrome_trace(self.events, self.kernels, self.began, path)


class Span:
    """Times a block. What is timed within it is not its own. No generator: their frames are not the user's lines."""

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
    """Give a block a name in the profile that is running, if one is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._span: Span | None = None

    def __enter__(self) -> None:
        if _running and _running[0].here():
            self._span = _running[0].span(self.name, "range")
            self._span.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._span is not None:
            self._span.__exit__()


# ---- what is put around functions


def around_backward(prof: profile, walk: Callable[..., Any]) -> Callable[..., Any]:
    def run_backward(*args: Any) -> Any:
        if not prof.here():
            return walk(*args)
        with prof.span("backward", "backward"):
            return walk(*args)

    return run_backward


def around_function(prof: profile, method: Any) -> Any:
    """A custom Function's forward."""

    def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not prof.here():
            return method.__func__(cls, *args, **kwargs)
        with prof.span(cls.__name__, "function"):
            return method.__func__(cls, *args, **kwargs)

    return classmethod(_apply)


def around_gradients(prof: profile, gradients: Callable[..., Any]) -> Callable[..., Any]:
    """A custom Function's backward, at the line where it is defined."""

    def called(self: FunctionNode, g: Any) -> Any:
        if not prof.here():
            return gradients(self, g)
        code = getattr(self.function._backward(), "__code__", None)
        line = None if code is None else f"{code.co_filename}:{code.co_firstlineno}"
        with prof.span(self.name(), "function", line):
            return gradients(self, g)

    return called


def around_call(prof: profile, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of a compiled function. Its name says afterwards how it went."""

    def called(self: Compiled, /, *args: Any, **kwargs: Any) -> Any:
        if not prof.here() or local.state.tracer is not None:
            return call(self, *args, **kwargs)
        hits, recordings = self.hits, self.recordings
        usual = [(pure, pure.usual) for pure in self.pures]
        for pure, _ in usual:
            pure.usual = None  # it would go past what is put around programs
        with prof.span(self.name, "compiled") as event:
            try:
                return call(self, *args, **kwargs)
            finally:
                for pure, before in usual:
                    if pure.armed and pure.usual is None:
                        pure.usual = before
                how = "replayed" if self.hits > hits else "recorded" if self.recordings > recordings else "eagerly"
                event.name = f"{self.name}, {how}"

    return called


def around_program(prof: profile, run: Callable[..., Any]) -> Callable[..., Any]:
    def run_program(self: Computing, known: Any) -> None:
        if not prof.here():
            return run(self, known)
        with prof.span("", "program") as event:
            event.ran(known, self.trace)
            return run(self, known)

    return run_program


def around_pure(prof: profile, run: Callable[..., Any]) -> Callable[..., Any]:
    """A call without Python: its program, and little else."""

    def _run(self: Pure, state: Any, tensors: Any) -> Any:
        if not prof.here():
            return run(self, state, tensors)
        with prof.span("", "program") as event:
            event.ran(self.segment, self.trace)
            return run(self, state, tensors)

    return _run


def around_generate(prof: profile, generate: Callable[..., Any]) -> Callable[..., Any]:
    def making(self: Warming) -> None:
        if not prof.here():
            return generate(self)
        with prof.span(f"native code for {self.function.name}", "compile"):
            return generate(self)

    return making


HOOKS: list[tuple[Any, str, Callable[[profile, Any], Any]]] = [
    (tape, "run_backward", around_backward),
    (Function, "_apply", around_function),
    (FunctionNode, "gradients", around_gradients),
    (Compiled, "__call__", around_call),
    (Computing, "run_program", around_program),
    (Pure, "_run", around_pure),
    (Warming, "generate", around_generate),
]
