"""`tapejit.compiler`: the few names of `torch.compiler` that training scripts use."""

from __future__ import annotations

from typing import Any

from .compile import _all


def is_compiling() -> bool:
    """Never: a compiled function's Python runs as it does eagerly, and has to do the same things."""
    return False


is_dynamo_compiling = is_compiling


def disable(fn: Any = None, recursive: bool = True) -> Any:
    """The function as it is. What it does is recorded where it is called by a compiled one, and is right there too."""
    return (lambda function: function) if fn is None else fn


def reset() -> None:
    """Forget all recordings of all compiled functions."""
    for compiled in list(_all):
        compiled.reset()
