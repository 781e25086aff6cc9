"""`Parameter`: a tensor that a module counts among its parameters."""

from __future__ import annotations

from typing import Any

from ..tensor import Tensor


class Parameter(Tensor):
    """A leaf tensor that requires grad and registers itself when assigned to a module's attribute."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        return object.__new__(cls)

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        if data is None:
            super().__init__()
        elif isinstance(data, Tensor):
            self._array = data._array
        else:
            raise TypeError(f"Parameter(): expected a Tensor, got {type(data).__name__}; wrap it in tapejit.tensor(...)")
        self.requires_grad_(requires_grad)

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


class Buffer(Tensor):
    """A tensor that registers itself as a module's buffer when assigned to an attribute."""

    persistent: bool = True

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Buffer:
        return object.__new__(cls)

    def __init__(self, data: Tensor | None = None, *, persistent: bool = True) -> None:
        if data is None:
            super().__init__()
        else:
            self._array = data._array
        self.persistent = persistent
