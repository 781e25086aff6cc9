"""Observe which of the library's functions run while a region or a call is recorded (`sys.setprofile`).

What is observed becomes a guard in `code_guards.py`. The tracer's own work is not observed, but the library functions that it
calls on behalf of the user's function are (`CALLS_LIBRARY`, `run_decomposed`).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from ...eager.arrays.devices import _cuda
from ...eager.core.library import is_library
from ...eager.core.op import Op
from ...eager.core.tape.node import State
from ...eager.core.tensor import Tensor
from ..trace.call_frame import CALLS_LIBRARY, is_decomposed, run_decomposed
from ..trace.watchers import is_watched
from .plain_values import is_non_user_module


class ObservedCode(dict[int, tuple[CodeType, dict[str, Any]]]):
    """Functions of the library that ran: id of the code -> code and the namespace of its module."""

    foreign = False  # True if they called the user's code


class CodeObserver:
    """Notes the functions that a thread runs. Blocks nest: what an inner block observes counts for the outer one, too."""

    def __init__(self) -> None:
        self.open: list[ObservedCode] = []
        self.turns: list[FrameType] = []  # alternately frames of the tracer, not observed, and of what it calls, observed again

    @contextmanager
    def observing(self, state: State | None = None) -> Iterator[ObservedCode]:
        """Observe a block; given a state, not while ops are handled. Not while others watch: they would miss it."""
        ran = ObservedCode()
        if is_watched() and not hasattr(sys.getprofile(), "of_observer"):
            ran.foreign = True
            yield ran
            return
        with collector_paused():
            before, self.turns = self.turns, []
            self.open.append(ran)
            tell = self.profile_function()
            try:
                with op_handling_unobserved(state, tell):
                    sys.setprofile(tell)
                    yield ran
            finally:
                sys.setprofile(None)
                self.open.pop()
                self.turns.clear()  # a frame keeps its variables, and those of its callers, for as long as anybody has it
                self.turns = before
                if self.open:
                    self.open[-1].update(ran)
                    self.open[-1].foreign |= ran.foreign

    def unobserved(self, function: Callable[[], Any]) -> Any:
        """Call a function without observing it."""
        if not self.open:
            return function()
        tell = sys.getprofile()
        sys.setprofile(None)
        try:
            return function()
        finally:
            sys.setprofile(tell)

    def profile_function(self) -> Callable[[FrameType, str, Any], None]:
        """Return the profile function. It runs at every call and return, so everything is in local variables."""
        ran, turns, note_call, parts = self.open[-1], self.turns, self.note_call, id(run_decomposed.__code__)

        def tell(frame: FrameType, event: str, _: Any) -> None:
            if event == "call":
                code = id(frame.f_code)
                if len(turns) % 2:
                    if code == parts:
                        turns.append(frame)
                elif code not in ran:
                    note_call(frame)
            elif event == "return" and turns and frame is turns[-1]:
                turns.pop()

        tell.of_observer = self  # type: ignore[attr-defined]
        return tell

    def note_call(self, frame: FrameType) -> None:
        name = frame.f_globals.get("__name__")
        if name is None or name.startswith("namedtuple_"):  # generated code
            return
        if name.partition(".")[0] == getattr(_cuda.module, "__name__", None):  # the stand-in for CuPy
            return
        if is_library(name, "eager"):
            self.open[-1][id(frame.f_code)] = frame.f_code, frame.f_globals
        elif is_library(name, "tracer"):
            if frame.f_code not in CALLS_LIBRARY:
                self.turns.append(frame)
        elif not is_non_user_module(name):
            caller = frame.f_back.f_globals.get("__name__", "") if frame.f_back else ""
            self.open[-1].foreign |= is_non_user_module(caller) and not is_library(caller, "tracer")


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, as finalizers would seem to be called by the library; afterwards the observer around this
    one goes on."""
    outer, collecting = sys.getprofile(), gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        sys.setprofile(outer)
        if collecting:
            gc.enable()


@contextmanager
def op_handling_unobserved(state: State | None, tell: Callable[..., Any]) -> Iterator[None]:
    """Do not observe the handling of ops: recording one runs more Python than what led to it."""
    before = None if state is None else state.handler
    if state is None or before is None:
        yield
        return
    handler = getattr(before, "handler", before)  # that of the enclosing block

    def handle(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        if is_decomposed(op, inputs, state):
            return run_decomposed(op, inputs, attrs, out)
        sys.setprofile(None)
        try:
            return handler(op, inputs, attrs, out)
        finally:
            sys.setprofile(tell)

    handle.handler = handler  # type: ignore[attr-defined]
    state.handler = handle
    try:
        yield
    finally:
        if state.handler is handle:
            state.handler = before
