"""Error locations: exceptions that leave a module get a note with its path in the model, as in

    linear: mat1 and mat2 shapes cannot be multiplied ... (in encoder.layers.2.linear1: Linear(in_features=4, ...))

A module does not know its own name; its parents do. So each `Module.__call__` that an error passes on its way up adds its
part of the path, by rewriting the message. The error's type stays, and a call that succeeds pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.library import is_library

if TYPE_CHECKING:
    from .module import Module

LOCATABLE_ERRORS = (RuntimeError, ValueError, IndexError, TypeError)  # raised by ops about shapes, dtypes and values


def add_location(error: Exception, module: Module) -> None:
    """Note in an error's message that it passed `module`."""
    place = error.__dict__.get("_place")
    if place is None:
        if not _is_ours(error):
            return
        error._place = place = ErrorLocation(error.args[0], module)  # type: ignore[attr-defined]
    else:
        place.reach(module)
    error.args = (place.message(),)


class ErrorLocation:
    """A failed module, and its path as seen from the outermost module that the error has passed so far."""

    def __init__(self, reason: str, module: Module) -> None:
        self.reason, self.top, self.path = reason, module, ""
        self.what = type(module).__name__ if module._modules else repr(module)

    def reach(self, module: Module) -> None:
        """Extend the path by a calling module, if the module reached so far is among its submodules."""
        found = next((name for name, other in module.named_modules() if other is self.top), "")
        if found:
            self.path = f"{found}.{self.path}" if self.path else found
            self.top = module

    def message(self) -> str:
        return f"{self.reason} (in {self.path}: {self.what})" if self.path else f"{self.reason} (in {self.what})"


def _is_ours(error: Exception) -> bool:
    """True if the error was raised in this package; what a user's forward raises itself is left alone."""
    trace: Any = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = str(trace.tb_frame.f_globals.get("__name__", ""))
    return len(error.args) == 1 and isinstance(error.args[0], str) and is_library(raised_in)
