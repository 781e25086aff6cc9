"""Grad modes: `no_grad`, `enable_grad`, `set_grad_enabled` and `inference_mode`. Each thread has its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .node import State, local


class _Mode:
    """A context manager that is also a decorator, for functions and generator functions."""

    def __init__(self, grad: bool, inference: bool | None = None) -> None:
        self.grad, self.inference = grad, inference  # inference None: leave as it is
        self._before: list[tuple[bool, bool]] = []

    def __enter__(self) -> Any:
        state = local.state
        self._before.append((state.grad, state.inference))
        state.grad = self.grad
        if self.inference is not None:
            switch_inference(state, self.inference)
        return self

    def __exit__(self, *_: object) -> None:
        state = local.state
        state.grad, inference = self._before.pop()
        switch_inference(state, inference)

    def _again(self) -> _Mode:
        """Make the mode of one call: calls may be nested, and run in several threads."""
        return _Mode(self.grad, self.inference)

    def __call__(self, function: Callable[..., Any]) -> Any:
        if inspect.isgeneratorfunction(function):
            return self._generator(function)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return wrapped

    def _generator(self, function: Callable[..., Any]) -> Any:
        """Wrap a generator function: the mode is on only while the generator's own code runs, not while it is suspended."""

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            inner = function(*args, **kwargs)
            resume, value = inner.send, None
            while True:
                try:
                    with self._again():
                        result = resume(value)
                except StopIteration as stop:
                    return stop.value
                try:
                    value = yield result
                    resume = inner.send
                except GeneratorExit:
                    with self._again():
                        inner.close()
                    raise
                except BaseException as error:
                    resume, value = inner.throw, error

        return wrapped


def switch_inference(state: State, on: bool) -> None:
    """Begin or end the marking of results as inference tensors. No op records it, so a tracer gets a graph break here."""
    if state.inference is on:
        return
    if state.tracer is None:
        state.inference = on
    else:
        state.tracer.graph_break(setattr, "inference mode begins or ends", state, "inference", on)


class _Bare(_Mode):
    """A mode that also decorates without parentheses: `@no_grad`."""

    def __new__(cls, function: Any = None) -> Any:
        self = object.__new__(cls)
        if function is None:
            return self
        self.__init__()  # type: ignore[misc]
        return self(function)


class no_grad(_Bare):  # noqa: N801
    """A context in which no op is put on the tape."""

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(_Bare):  # noqa: N801
    """A context, inside `no_grad`, in which ops are put on the tape again."""

    def __init__(self) -> None:
        super().__init__(True)


class set_grad_enabled(_Mode):  # noqa: N801
    """Turn the tape on or off: at once, and as a context manager until its end."""

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._at_first = local.state.grad
        local.state.grad = self.grad

    def __enter__(self) -> Any:
        local.state.grad = self.grad
        return self

    def __exit__(self, *_: object) -> None:
        local.state.grad = self._at_first

    def __call__(self, function: Callable[..., Any]) -> Any:
        local.state.grad = self._at_first
        return super().__call__(function)


class inference_mode(_Mode):  # noqa: N801
    """As `no_grad`, for code that will never need gradients. `inference_mode(False)` is the normal mode again."""

    def __new__(cls, mode: Any = True) -> Any:
        self = object.__new__(cls)
        if not callable(mode):
            return self
        self.__init__()  # type: ignore[misc]
        return self(mode)

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode, bool(mode))


def is_grad_enabled() -> bool:
    """True if ops are put on the tape in this thread."""
    return local.state.grad


def is_inference_mode_enabled() -> bool:
    """True if this thread is inside `inference_mode`."""
    return local.state.inference
