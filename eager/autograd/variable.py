"""`Variable`: PyTorch's old name for a tensor that may require grad. Every tensor is one."""

from __future__ import annotations

from typing import Any

from ..core.tensor import Tensor


class _AnyTensor(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, Tensor)


class Variable(metaclass=_AnyTensor):
    """`Variable(x, requires_grad=True)` is a leaf tensor on x's memory."""

    def __new__(cls, data: Tensor, requires_grad: bool = False) -> Tensor:  # type: ignore[misc]
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        return data.detach().requires_grad_(requires_grad)  # type: ignore[no-any-return]
