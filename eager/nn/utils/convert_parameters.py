"""Parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.tensor import Tensor
from ...ops.shape.reshape import cat
from ..module import typename


def _on_one_device(parameters: Iterable[Tensor]) -> list[Tensor]:
    found = list(parameters)
    if any(p.device != found[0].device for p in found):
        raise TypeError("Found two parameters on different devices, this is currently not supported.")
    return found


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of all parameters in one vector; gradients flow through it."""
    return cat([p.reshape(-1) for p in _on_one_device(parameters)])  # type: ignore[no-any-return]


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Let parameters show the pieces of a vector."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected tapejit.Tensor, but got: {typename(vec)}")
    start = 0
    for parameter in _on_one_device(parameters):
        count = parameter.numel()
        parameter.data = vec[start : start + count].view(parameter.shape).data  # type: ignore[attr-defined]
        start += count
