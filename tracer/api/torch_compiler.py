"""Module `tapejit.compiler`: the names of `torch.compiler` that training scripts use."""

from __future__ import annotations

from typing import Any

from .compiled_function import ALL


def is_compiling() -> bool:
    """Return False always: the Python of a compiled function runs as it does eagerly, and must do the same things."""
    return False


is_dynamo_compiling = is_compiling


def disable(fn: Any = None, recursive: bool = True) -> Any:
    """Return the function unchanged. Called from a compiled function, its ops are recorded there, with correct results."""
    return (lambda function: function) if fn is None else fn


def reset() -> None:
    """Drop all recordings of all compiled functions."""
    for compiled in list(ALL):
        compiled.reset()
