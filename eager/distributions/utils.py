"""Parameters of distributions: broadcasting, lazily computed ones, and the choice between `probs` and `logits`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arrays.dtypes import finfo, get_default_dtype
from ..core.tape.grad_mode import enable_grad
from ..core.tensor import Tensor
from ..ops.create import tensor
from ..ops.pointwise import clamp
from ..ops.shape.reshape import broadcast_tensors


class lazy_property:  # noqa: N801 -- PyTorch's name
    """A parameter worked out from the other one when first asked for, on the tape even under `no_grad`."""

    def __init__(self, compute: Callable[[Any], Tensor]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        with enable_grad():
            found = instance.__dict__[self.compute.__name__] = self.compute(instance)
        return found


def probs_or_logits(probs: Any, logits: Any) -> tuple[Any, str]:
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")
    return (logits, "logits") if probs is None else (probs, "probs")


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Broadcast parameters to one shape; numbers become tensors with the dtype and device of the first tensor."""
    if not all(isinstance(v, (Tensor, int, float)) for v in values):
        raise ValueError("Input arguments must all be instances of Number or tapejit.Tensor.")
    first = next((v for v in values if isinstance(v, Tensor)), None)
    dtype, device = (get_default_dtype(), None) if first is None else (first.dtype, first.device)
    tensors = [v if isinstance(v, Tensor) else tensor(v, dtype=dtype, device=device) for v in values]
    return broadcast_tensors(*tensors)  # type: ignore[no-any-return]


def clamp_probs(probs: Tensor) -> Tensor:
    """Clamp probabilities into (0, 1), so that their logarithms are finite."""
    eps = finfo(probs.dtype).eps
    return clamp(probs, min=eps, max=1 - eps)
