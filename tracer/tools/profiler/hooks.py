"""Wrappers that `profile` puts around backward passes, Functions, compiled calls, programs and compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....eager.autograd.function import Function, FunctionNode
from ....eager.core.tape import engine
from ....eager.core.tape.node import local
from ...api.compiled_function import CompiledFunction
from ...execute.tiering import Tiering
from ...replay.run_segment import SegmentRunner
from ...skip.skipped_call import SkippedCall

if TYPE_CHECKING:
    from . import profile


def around_backward(prof: profile, walk: Callable[..., Any]) -> Callable[..., Any]:
    def run_backward(*args: Any) -> Any:
        if not prof.here():
            return walk(*args)
        with prof.span("backward", "backward"):
            return walk(*args)

    return run_backward


def around_function(prof: profile, method: Any) -> Any:
    """Time a custom Function's forward."""

    def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not prof.here():
            return method.__func__(cls, *args, **kwargs)
        with prof.span(cls.__name__, "function"):
            return method.__func__(cls, *args, **kwargs)

    return classmethod(_apply)


def around_gradients(prof: profile, gradients: Callable[..., Any]) -> Callable[..., Any]:
    """Time a custom Function's backward, at the line of its definition."""

    def called(self: FunctionNode, g: Any) -> Any:
        if not prof.here():
            return gradients(self, g)
        code = getattr(self.function._backward(), "__code__", None)
        line = None if code is None else f"{code.co_filename}:{code.co_firstlineno}"
        with prof.span(self.name(), "function", line):
            return gradients(self, g)

    return called


def around_call(prof: profile, call: Callable[..., Any]) -> Callable[..., Any]:
    """Time a call of a compiled function. The event's name says if it was replayed, recorded or eager."""

    def called(self: CompiledFunction, /, *args: Any, **kwargs: Any) -> Any:
        if not prof.here() or local.state.tracer is not None:
            return call(self, *args, **kwargs)
        hits, recordings = self.hits, self.recordings
        fast_paths = [(pure, pure.fast_path) for pure in self.skipped_calls]
        for pure, _ in fast_paths:
            pure.fast_path = None  # it would bypass the wrappers around programs
        with prof.span(self.name, "compiled") as event:
            try:
                return call(self, *args, **kwargs)
            finally:
                for pure, before in fast_paths:
                    if pure.is_bound and pure.fast_path is None:
                        pure.fast_path = before
                how = "replayed" if self.hits > hits else "recorded" if self.recordings > recordings else "eagerly"
                event.name = f"{self.name}, {how}"

    return called


def around_program(prof: profile, run: Callable[..., Any]) -> Callable[..., Any]:
    def run_program(self: SegmentRunner, known: Any) -> None:
        if not prof.here():
            return run(self, known)
        with prof.span("", "program") as event:
            event.ran(known, self.trace)
            return run(self, known)

    return run_program


def around_pure(prof: profile, run: Callable[..., Any]) -> Callable[..., Any]:
    """Time a call that skips Python: little more than its program."""

    def _run(self: SkippedCall, state: Any, tensors: Any) -> Any:
        if not prof.here():
            return run(self, state, tensors)
        with prof.span("", "program") as event:
            event.ran(self.segment, self.trace)
            return run(self, state, tensors)

    return _run


def around_generate(prof: profile, generate: Callable[..., Any]) -> Callable[..., Any]:
    def making(self: Tiering) -> None:
        if not prof.here():
            return generate(self)
        with prof.span(f"native code for {self.function.name}", "compile"):
            return generate(self)

    return making


HOOKS: list[tuple[Any, str, Callable[[profile, Any], Any]]] = [
    (engine, "run_backward", around_backward),
    (Function, "_apply", around_function),
    (FunctionNode, "gradients", around_gradients),
    (CompiledFunction, "__call__", around_call),
    (SegmentRunner, "run_program", around_program),
    (SkippedCall, "_run", around_pure),
    (Tiering, "compile_native", around_generate),
]
