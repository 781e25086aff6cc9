"""Activations, one number at a time with the math module."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


def each(function: Callable[..., float]) -> Callable[..., Array]:
    """A function of a number and options as one of an array."""

    def oracle(x: Array, *args: Any, **kwargs: Any) -> Array:
        kwargs.pop("inplace", None)
        values = [function(v, *args, **kwargs) for v in np.ravel(x).tolist()]
        dtype = x.dtype if x.dtype.kind == "f" or all(isinstance(v, int) for v in values) else np.float32
        return np.array(values, dtype).reshape(x.shape)

    return oracle


def logistic(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))


def gelu(x: float, approximate: str = "none") -> float:
    if approximate == "tanh":
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * math.erfc(-x / math.sqrt(2))


def softplus(x: float, beta: float = 1, threshold: float = 20) -> float:
    return x if beta * x > threshold else float(np.logaddexp(0, beta * x)) / beta


def elu(x: float, alpha: float = 1.0) -> float:
    return x if x > 0 else alpha * math.expm1(x)


def selu(x: float) -> float:
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


def hardtanh(x: float, min_val: float = -1.0, max_val: float = 1.0) -> float:
    return type(x)(sorted((min_val, x, max_val))[1])


def softshrink(x: float, lambd: float = 0.5) -> float:
    return math.copysign(max(abs(x) - lambd, 0), x)


def prelu(x: Array, weight: Array) -> Array:
    slopes = weight.reshape((1, -1) + (1,) * (x.ndim - 2)) if x.ndim > 1 else weight
    return np.maximum(x, 0) + slopes * np.minimum(x, 0)


def glu(x: Array, dim: int = -1) -> Array:
    a, b = np.split(x, 2, dim)
    return a / (1 + np.exp(-b))


ORACLES = {
    "relu": each(lambda x: max(x, type(x)(0))),
    "relu6": each(lambda x: hardtanh(x, 0, 6)),
    "leaky_relu": each(lambda x, negative_slope=0.01: x if x > 0 else negative_slope * x),
    "prelu": prelu,
    "rrelu": each(lambda x, lower=1 / 8, upper=1 / 3: x if x > 0 else x * (lower + upper) / 2),
    "elu": each(elu),
    "selu": each(selu),
    "celu": each(lambda x, alpha=1.0: x if x > 0 else alpha * math.expm1(x / alpha)),
    "gelu": each(gelu),
    "silu": each(lambda x: x * logistic(x)),
    "mish": each(lambda x: x * math.tanh(math.log1p(math.exp(x)))),
    "softplus": each(softplus),
    "softsign": each(lambda x: x / (1 + abs(x))),
    "tanhshrink": each(lambda x: x - math.tanh(x)),
    "softshrink": each(softshrink),
    "hardshrink": each(lambda x, lambd=0.5: x if abs(x) > lambd else 0.0),
    "hardtanh": each(hardtanh),
    "hardsigmoid": each(lambda x: 0.0 if x < -3 else 1.0 if x > 3 else x / 6 + 0.5),
    "hardswish": each(lambda x: 0.0 if x < -3 else x if x > 3 else x * (x + 3) / 6),
    "logsigmoid": each(lambda x: -float(np.logaddexp(0, -x))),
    "glu": glu,
    "threshold": each(lambda x, threshold, value: x if x > threshold else value),
}
