"""Switching the tape on and off: `no_grad`, `enable_grad`, `set_grad_enabled`, `inference_mode`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .tape import local


class _Mode:
    """A context manager that is also a decorator, for functions and generator functions."""

    def __init__(self, grad: bool) -> None:
        self.grad = grad
        self._before: list[bool] = []

    def __enter__(self) -> Any:
        state = local.state
        self._before.append(state.grad)
        state.grad = self.grad
        return self

    def __exit__(self, *_: object) -> None:
        local.state.grad = self._before.pop()

    def _again(self) -> _Mode:
        return _Mode(self.grad)

    def __call__(self, function: Callable[..., Any]) -> Any:
        if inspect.isgeneratorfunction(function):
            return self._generator(function)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return wrapped

    def _generator(self, function: Callable[..., Any]) -> Any:
        """Only while the generator's own code runs is the mode on, not while it is suspended."""

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            inner = function(*args, **kwargs)
            send, value = inner.send, None
            while True:
                try:
                    with self._again():
                        result = send(value)
                except StopIteration as stop:
                    return stop.value
                try:
                    value = yield result
                    send = inner.send
                except GeneratorExit:
                    inner.close()
                    raise
                except BaseException as error:
                    send, value = inner.throw, error

        return wrapped


class no_grad(_Mode):  # noqa: N801
    """Nothing done in this context is put on the tape."""

    def __new__(cls, function: Any = None) -> Any:
        self = object.__new__(cls)
        if function is None:
            return self
        self.__init__()  # type: ignore[misc]
        return self(function)

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(_Mode):  # noqa: N801
    """Put ops on the tape again, inside `no_grad`."""

    __new__ = no_grad.__new__

    def __init__(self) -> None:
        super().__init__(True)


class set_grad_enabled(_Mode):  # noqa: N801
    """Switch the tape on or off, at once and, as a context manager, until its end."""

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._before.append(local.state.grad)
        local.state.grad = self.grad

    def __enter__(self) -> Any:
        return self

    def __call__(self, function: Callable[..., Any]) -> Any:
        local.state.grad = self._before.pop()
        return super().__call__(function)


class inference_mode(_Mode):  # noqa: N801
    """As `no_grad`, for code that will never need gradients."""

    def __new__(cls, mode: Any = True) -> Any:
        self = object.__new__(cls)
        if not callable(mode):
            return self
        self.__init__()  # type: ignore[misc]
        return self(mode)

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode)

    def __enter__(self) -> Any:
        if not self.grad:
            return super().__enter__()
        self._before.append(local.state.grad)
        return self


def is_grad_enabled() -> bool:
    """Whether ops are put on the tape in this thread."""
    return local.state.grad


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside `inference_mode`."""
    return local.state.inference
