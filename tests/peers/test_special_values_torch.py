"""Zeros of both signs, NaN and numbers out of range, in PyTorch and here, where PyTorch's own loops agree with each other.

What it makes of a few elements and of many is computed by different loops, and where these differ there is nothing to compare.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import torch

NUMBERS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 6.0, -6.0, 0.5, -0.5, 3.0, -3.0]
FUNCTIONS: dict[str, Any] = {
    "relu": lambda lib, x: lib.relu(x),
    "relu6": lambda lib, x: lib.nn.functional.relu6(x),
    "hardtanh": lambda lib, x: lib.nn.functional.hardtanh(x),
    "hardsigmoid": lambda lib, x: lib.nn.functional.hardsigmoid(x),
    "hardshrink": lambda lib, x: lib.nn.functional.hardshrink(x),
    "softshrink": lambda lib, x: lib.nn.functional.softshrink(x),
    "threshold": lambda lib, x: lib.nn.functional.threshold(x, 0.5, 9.0),
    "leaky_relu": lambda lib, x: lib.nn.functional.leaky_relu(x, 0.25),
    "elu": lambda lib, x: lib.nn.functional.elu(x),
    "elu, infinite": lambda lib, x: lib.nn.functional.elu(x, math.inf),
    "elu, negative": lambda lib, x: lib.nn.functional.elu(x, -0.5),
    "selu": lambda lib, x: lib.nn.functional.selu(x),
    "clamp": lambda lib, x: x.clamp(0, 1),
    "clamp from": lambda lib, x: x.clamp(min=0),
    "clamp to": lambda lib, x: x.clamp(max=0),
    "clamp to tensors": lambda lib, x: x.clamp(lib.zeros_like(x) - 1, lib.ones_like(x)),
    "abs": lambda lib, x: x.abs(),
    "max": lambda lib, x: x.max().expand(len(x)),
    "min": lambda lib, x: x.min().expand(len(x)),
    "amax": lambda lib, x: x.amax().expand(len(x)),
}


def run(lib: Any, function: Any, numbers: np.ndarray) -> list[np.ndarray]:
    x = lib.from_numpy(numbers.copy()).requires_grad_()
    y = function(lib, x)
    y.backward(lib.ones_like(y))
    return [y.detach().numpy(), x.grad.numpy()]


def alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    close = np.isclose(a, b, rtol=1e-5, atol=0) & (np.signbit(a) == np.signbit(b))
    return close | (np.isnan(a) & np.isnan(b))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name: str, dtype: Any) -> None:
    numbers = np.array(NUMBERS, dtype)
    many = run(torch, FUNCTIONS[name], np.tile(numbers, 16))
    few = run(torch, FUNCTIONS[name], numbers)
    found = run(tj, FUNCTIONS[name], numbers)
    for a, b, c in zip(found, few, many, strict=True):
        agreed = alike(b, c[: len(b)]) if not name.startswith(("max", "min", "amax")) else np.full(len(b), True)
        assert agreed.sum() >= len(b) - 3
        wrong = ~alike(a, b) & agreed
        assert not wrong.any(), [(numbers[k], a[k], b[k]) for k in np.flatnonzero(wrong)]


@pytest.mark.parametrize("limits", [(-2, 3), (-2, None), (None, -1), (0, 300), (None, 300), (-300, 3)])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_limits_of_integers(dtype: str, limits: tuple[Any, Any]) -> None:
    def clamped(lib: Any) -> Any:
        try:
            return lib.tensor([1, 2, 100], dtype=getattr(lib, dtype)).clamp(*limits).tolist()
        except RuntimeError as error:
            return "without overflow" in str(error)

    assert clamped(tj) == clamped(torch)


@pytest.mark.parametrize(
    "use",
    [
        lambda lib, w, x: w * x,
        lambda lib, w, x: w + x,
        lambda lib, w, x: w * x.view(3),
        lambda lib, w, x: w * x.detach(),
        lambda lib, w, x: w * x.clone(),
        lambda lib, w, x: x * x,
        lambda lib, w, x: x.add_(1),
        lambda lib, w, x: x.requires_grad_(),
        lambda lib, w, x: lib.nn.Parameter(x),
        lambda lib, w, x: lib.where(x > 0, w, w),
        lambda lib, w, x: w.gather(0, x.long()),
        lambda lib, w, x: lib.nn.functional.mse_loss(w, x),
        lambda lib, w, x: lib.ones(()).expand(3).zero_(),
        lambda lib, w, x: lib.ones(()).expand(3).fill_(4),
        lambda lib, w, x: lib.ones(()).expand(3).add_(1),
    ],
)
def test_errors(use: Any) -> None:
    """Inference tensors, and writes into expanded ones: both raise the same, or neither does."""

    def outcome(lib: Any) -> Any:
        with lib.inference_mode():
            x = lib.ones(3)
        try:
            found = use(lib, lib.ones(3, requires_grad=True), x)
        except RuntimeError as error:
            text = str(error)
            return [
                part
                for part in ("saved for backward", "Inplace update", "Setting requires_grad", "single memory")
                if part in text
            ]
        return found.tolist(), found.requires_grad

    assert outcome(tj) == outcome(torch)
