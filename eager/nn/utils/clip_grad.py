"""Gradient clipping: by the norm of all gradients together, or value by value. Gradients change in place."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Iterable
from typing import Any

from ...core.dispatch import apply
from ...core.op import primitive
from ...core.tape.grad_mode import no_grad
from ...core.tensor import Tensor
from ...ops.create import tensor
from ...ops.linalg.norms import vector_norm
from ...ops.shape.reshape import stack

Tensors = Tensor | Iterable[Tensor]


def _several(tensors: Tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _gradients(parameters: Tensors) -> list[Tensor]:
    return [p.grad for p in _several(parameters) if p.grad is not None]


def run_total_norm(xp: Any, *arrays: Any, norm_type: float) -> Any:
    flat = [a.reshape(-1) for a in arrays if a.size] or [xp.zeros(1, arrays[0].dtype)]
    if norm_type == 2:
        return xp.sqrt(sum(xp.dot(a, a) for a in flat))
    if norm_type == math.inf:
        return xp.stack([xp.abs(a).max() for a in flat]).max()
    return sum((xp.abs(a) ** norm_type).sum() for a in flat) ** (1 / norm_type)


def expand_total_norm(*tensors: Tensor, norm_type: float) -> Tensor:
    where = tensors[0].device
    return vector_norm(stack([vector_norm(t, norm_type).to(where) for t in tensors]), norm_type)  # type: ignore[no-any-return]


TOTAL_NORM = primitive("total_norm", "composite", run_total_norm, expand=expand_total_norm)


@no_grad()
def get_total_norm(
    tensors: Tensors, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """The norm of all tensors as one vector."""
    tensors, norm_type = _several(tensors), float(norm_type)
    if not tensors:
        return tensor(0.0)
    alike = norm_type > 0 and len({(t.dtype, t.device) for t in tensors}) == 1
    total: Tensor
    if alike:
        total = apply(TOTAL_NORM, tuple(tensors), {"norm_type": norm_type})
    else:
        total = expand_total_norm(*tensors, norm_type=norm_type)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be clipped. To "
            "disable this error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


@no_grad()
def clip_grads_with_norm_(parameters: Tensors, max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
    """Scale gradients whose norm is `total_norm` down to `max_norm`; leave smaller ones as they are."""
    scale = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
    where = scale.device
    for gradient in _gradients(parameters):
        gradient.mul_(scale if gradient.device == where else scale.to(gradient.device))


def clip_grad_norm_(
    parameters: Tensors,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients down so that their norm, as one vector, is at most `max_norm`; returns the norm they had."""
    given, parameters = parameters, _several(parameters)
    if not parameters and isinstance(given, types.GeneratorType):
        warnings.warn("`parameters` is an empty generator, no gradient clipping will occur.", stacklevel=2)
    total: Tensor = get_total_norm(_gradients(parameters), norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(parameters, max_norm, total, foreach)
    return total


def clip_grad_norm(parameters: Tensors, max_norm: float, *args: Any, **kwargs: Any) -> Tensor:
    """The old name of `clip_grad_norm_`."""
    warnings.warn(
        "`nn.utils.clip_grad_norm` is now deprecated in favor of `nn.utils.clip_grad_norm_`.", FutureWarning, stacklevel=2
    )
    return clip_grad_norm_(parameters, max_norm, *args, **kwargs)


@no_grad()
def clip_grad_value_(parameters: Tensors, clip_value: float, foreach: bool | None = None) -> None:
    """Keep every element of the gradients within [-clip_value, clip_value]."""
    for gradient in _gradients(parameters):
        gradient.clamp_(min=-float(clip_value), max=float(clip_value))
