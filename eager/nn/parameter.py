"""`Parameter` and `Buffer`: tensors that a module registers when they are assigned to one of its attributes."""

from __future__ import annotations

from typing import Any

from ..core.printing import text
from ..core.tape.node import local
from ..core.tensor import Tensor, versions_of


def _show(target: Tensor, data: Tensor | None, kind: str) -> None:
    """Let a new tensor show the memory of `data`, without its history."""
    if data is None:
        Tensor.__init__(target)
    elif isinstance(data, Tensor):
        target.tj_array, target.tj_versions = data.tj_array, versions_of(data)
        if data.tj_inference and not local.state.inference:  # modules that are made in inference mode can be trained later
            target.tj_inference = True
    else:
        raise TypeError(f"{kind}(): expected a Tensor, got {type(data).__name__}; wrap it in tapejit.tensor(...)")


class Parameter(Tensor):
    """A leaf tensor that requires grad and counts among the parameters of the module it is assigned to."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        return object.__new__(cls)

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        _show(self, data, "Parameter")
        self.requires_grad_(requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        """A copy without the gradient, as in PyTorch."""
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.detach().clone(), self.requires_grad)
        return memo[id(self)]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return "Parameter containing:\n" + text(self, "tensor")


class Buffer(Tensor):
    """A tensor that counts among the buffers of the module it is assigned to."""

    persistent: bool = True

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Buffer:
        return object.__new__(cls)

    def __init__(self, data: Tensor | None = None, *, persistent: bool = True) -> None:
        _show(self, data, "Buffer")
        self.persistent = persistent

    def __repr__(self) -> str:
        return text(self, "tensor")
