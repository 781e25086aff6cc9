"""Dropout: random elements, or whole channels, set to 0 in training. A node keeps only the boolean mask."""

from __future__ import annotations

import math
from typing import Any

from ...arrays.op_samples import A, sample
from ...core.cast import cast
from ...core.dispatch import apply, overwrite
from ...core.errors import warn
from ...core.op import primitive
from ...core.registration import public
from ...core.tensor import Tensor
from ..random import bernoulli_mask

_ALPHA = 1.7580993408473766  # selu's limit for x -> -inf, negated: what alpha dropout puts in the place of dropped elements


def run_dropout(xp: Any, x: Any, mask: Any, scale: float) -> Any:
    out = xp.multiply(x, mask, out=xp.empty_like(x))
    out *= scale
    return out


DROPOUT = primitive(
    "masked_scale",
    "composite",
    run_dropout,
    grad={"x": lambda g, mask, scale: apply(DROPOUT, (g, mask, scale))},
    expand=lambda x, mask, scale: x * mask * scale,
)


def check(name: str, input: Any, p: float) -> None:
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}")
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: dropout probability has to be between 0 and 1, but got {p}")


def drop(name: str, input: Tensor, p: float, training: bool, inplace: bool, shape: tuple[int, ...]) -> Tensor:
    """Drop by a mask of this shape, which broadcasts to the input's."""
    if p == 0 or not training or input.tj_array.size == 0:
        return input
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"{name}: result type Float can't be cast to the desired output type {input.dtype.legacy}")
    mask = bernoulli_mask(shape, 1 - p, input.device)
    scale = 1 / (1 - p) if p < 1 else 0.0
    return apply(DROPOUT, (input, mask, scale), {}, input if inplace else None)  # type: ignore[no-any-return]


_certain = [sample(A(2, 3), training=False), sample(A(2, 3), 1.0, True), sample(A(2, 3), 0.0, True)]


@public("", "nn.functional", samples=_certain, method=False)
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """In training, elements set to 0 with probability p and the others divided by 1 - p."""
    check("dropout", input, p)
    return drop("dropout", input, p, training, inplace, input.tj_array.shape)


# ---- whole channels


def channels(input: Tensor, batched: bool) -> tuple[int, ...]:
    """The shape of a mask with one element for each channel (of each sample)."""
    shape = input.tj_array.shape
    kept = 2 if batched else 1
    return tuple(n if i < kept else 1 for i, n in enumerate(shape))


@public("nn.functional", samples=[sample(A(2, 3, 2), training=False), sample(A(2, 3), 1.0), sample(A(2, 3, 2), 1.0)])
def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of an input (N, C, L) or (C, L)."""
    check("dropout1d", input, p)
    ndim = input.tj_array.ndim
    if ndim not in (2, 3):
        raise RuntimeError(
            f"dropout1d: Expected 2D or 3D input, but received a {ndim}D input. Note that dropout1d exists to provide "
            "channel-wise dropout on inputs with 1 spatial dimension, a channel dimension, and an optional batch dimension."
        )
    return drop("dropout1d", input, p, training, inplace, channels(input, ndim == 3))


@public("nn.functional", samples=[sample(A(2, 3, 1, 2), training=False), sample(A(2, 3, 1, 2), 1.0)])
def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of an input (N, C, H, W)."""
    check("dropout2d", input, p)
    ndim = input.tj_array.ndim
    if ndim < 2:
        raise RuntimeError("dropout2d: Feature dropout requires at least 2 dimensions in the input")
    if ndim not in (3, 4):
        warn(
            f"dropout2d: Received a {ndim}-D input to dropout2d, which is deprecated; an input (N, C, H, W) is expected.",
        )
    return drop("dropout2d", input, p, training, inplace, channels(input, batched=True))


@public("nn.functional", samples=[sample(A(2, 3, 1, 1, 2), training=False), sample(A(2, 3, 1, 2), 1.0)])
def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of an input (N, C, D, H, W) or (C, D, H, W)."""
    check("dropout3d", input, p)
    ndim = input.tj_array.ndim
    if ndim not in (4, 5):
        warn(
            f"dropout3d: Received a {ndim}-D input to dropout3d, which is deprecated; an input (N, C, D, H, W) or "
            "(C, D, H, W) is expected.",
        )
    return drop("dropout3d", input, p, training, inplace, channels(input, ndim == 5))


# ---- for selu


def alpha_drop(name: str, input: Tensor, p: float, training: bool, inplace: bool, shape: tuple[int, ...]) -> Tensor:
    """Dropped elements take selu's lowest value; scaled and shifted so that mean 0 and variance 1 stay."""
    check(name, input, p)
    if p == 0 or p == 1 or not training or input.tj_array.size == 0:
        return drop(name, input, p, training, inplace, shape)
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"{name}: result type Float can't be cast to the desired output type {input.dtype.legacy}")
    scale = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p))
    mask = bernoulli_mask(shape, 1 - p, input.device)

    def replaced(x: Tensor) -> Tensor:
        shift = cast(mask, x.dtype) * (_ALPHA * scale) + _ALPHA * scale * (p - 1)
        return apply(DROPOUT, (x, mask, scale)) + shift  # type: ignore[no-any-return]

    return overwrite(input, replaced, (), {}, name + "_") if inplace else replaced(input)


@public("", "nn.functional", samples=_certain, method=False)
def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean 0 and variance 1 of what follows selu."""
    return alpha_drop("alpha_dropout", input, p, training, inplace, input.tj_array.shape)


@public("", "nn.functional", samples=_certain, method=False)
def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels of an input (N, C, ...)."""
    if training and input.tj_array.ndim < 2:
        raise RuntimeError("feature_alpha_dropout: Feature dropout requires at least 2 dimensions in the input")
    return alpha_drop("feature_alpha_dropout", input, p, training, inplace, channels(input, batched=True))
