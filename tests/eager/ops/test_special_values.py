"""Zeros of both signs, NaN and numbers out of range, as PyTorch has them; `tests/peers/` asks it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F

both = pytest.mark.parametrize("dtype", [tj.float32, tj.float64])
sizes = pytest.mark.parametrize("count", [1, 3, 64, 5000])  # loops of NumPy over a few elements and over many may differ


def signs(t: tj.Tensor) -> set[bool]:
    """Return the signs that the zeros of a tensor have."""
    assert (t == 0).all()
    return set(np.signbit(t.detach().float().numpy()).tolist())


KEEP_ZEROS: dict[str, Any] = {
    "relu": lambda x: x.relu(),
    "relu_": lambda x: x.clone().relu_(),
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, 0.0, 1.0),
    "clamp from 0": lambda x: x.clamp(min=0),
    "clamp to 0": lambda x: x.clamp(max=0),
    "clamp from -0": lambda x: x.clamp(min=-0.0),
    "clamp to -0": lambda x: x.clamp(max=-0.0),
    "clamp": lambda x: x.clamp(0, 1),
    "elu": F.elu,
    "elu, negative": lambda x: F.elu(x, -0.5),
    "elu, infinite": lambda x: F.elu(x, math.inf),
    "selu": F.selu,
    "celu": F.celu,
}


@both
@sizes
@pytest.mark.parametrize("name", KEEP_ZEROS)
def test_a_zero_keeps_its_sign(name: str, count: int, dtype: Any) -> None:
    assert signs(KEEP_ZEROS[name](tj.full((count,), -0.0, dtype=dtype))) == {True}
    assert signs(KEEP_ZEROS[name](tj.full((count,), 0.0, dtype=dtype))) == {False}


def gradient(function: Any, numbers: list[float], dtype: Any = tj.float32) -> list[float]:
    x = tj.tensor(numbers, dtype=dtype, requires_grad=True)
    y = function(x)
    y.backward(tj.ones_like(y))
    assert x.grad is not None
    return x.grad.tolist()  # type: ignore[no-any-return]


NO_GRADIENT: dict[str, Any] = {
    "hardtanh": F.hardtanh,
    "hardtanh_": lambda x: F.hardtanh(x * 1, inplace=True),
    "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp to tensors": lambda x: x.clamp(tj.tensor(-1.0), tj.tensor([1.0])),
    "abs": lambda x: x.abs(),
}


@both
@pytest.mark.parametrize("name", NO_GRADIENT)
def test_nan_has_no_gradient(name: str, dtype: Any) -> None:
    assert gradient(NO_GRADIENT[name], [math.nan], dtype) == [0.0]
    x = tj.tensor([math.nan], dtype=dtype)
    assert NO_GRADIENT[name](x).isnan().item()


@pytest.mark.parametrize("function", [F.relu, F.leaky_relu, lambda x: F.threshold(x, 0.5, 9.0)])
def test_nan_has_a_gradient(function: Any) -> None:
    assert gradient(function, [math.nan])[0] != 0


def test_second_gradients_of_straight_lines() -> None:
    """They are zeros, and not None."""
    for function in (F.hardtanh, F.relu, F.relu6):
        x = tj.tensor([-7.0, -0.0, 0.5, 7.0, math.nan], requires_grad=True)
        (g,) = tj.autograd.grad(function(x).sum(), x, create_graph=True)
        (second,) = tj.autograd.grad(g.sum(), x)
        assert second.tolist() == [0.0] * 5


@pytest.mark.parametrize("name", ["max", "min"])
def test_nan_takes_the_gradient_of_an_extreme(name: str) -> None:
    assert gradient(lambda x: getattr(x, name)(), [1.0, math.nan, 3.0]) == [0.0, 1.0, 0.0]
    assert gradient(lambda x: getattr(x, name)(), [math.nan, math.nan, 3.0]) == [0.5, 0.5, 0.0]
    assert gradient(lambda x: getattr(x, name)(), [2.0, 2.0]) == [0.5, 0.5]
    assert all(map(math.isnan, gradient(lambda x: getattr(x, f"a{name}")(), [1.0, math.nan])))


def test_elu_with_an_infinite_alpha() -> None:
    found = F.elu(tj.tensor([-math.inf, -1.0, -1e-45, 0.0, 2.0, math.inf]), math.inf)
    assert found.tolist() == [-math.inf] * 3 + [0.0, 2.0, math.inf]
    assert gradient(lambda x: F.elu(x, math.inf), [-1.0, 0.0, 2.0]) == [math.inf, math.inf, 1.0]


def test_lgamma_far_below_zero() -> None:
    found = tj.lgamma(tj.tensor([-1e300, -(2.0**60), -math.inf, -2.0, -0.5], dtype=tj.float64)).tolist()
    assert found[:4] == [math.inf] * 4 and found[4] == pytest.approx(math.lgamma(-0.5), rel=1e-14)


# ---- limits of integers


@pytest.mark.parametrize(
    "low, high, expected", [(-2, 3, [3, 3, 3]), (-2, None, [254, 254, 254]), (None, -1, [1, 2, 250]), (2, 3, [2, 2, 3])]
)
def test_limits_wrap_round_in_uint8(low: Any, high: Any, expected: list[int]) -> None:
    x = tj.tensor([1, 2, 250], dtype=tj.uint8)
    assert x.clamp(low, high).tolist() == expected and x.clamp(low, high).dtype is tj.uint8
    compiled = tj.compile(lambda x: x.clamp(low, high) + 0, backend="llvm", warmup=1)
    assert all(compiled(x).tolist() == expected for _ in range(4))
    assert x.clamp_(low, high).tolist() == expected


@pytest.mark.parametrize("dtype, low, high", [("uint8", 0, 300), ("uint8", -256, 3), ("int8", -200, 3), ("int8", None, 128)])
def test_limits_have_to_fit(dtype: str, low: Any, high: Any) -> None:
    with pytest.raises(RuntimeError, match=f"cannot be converted to type {dtype} without overflow"):
        tj.tensor([1, 2], dtype=getattr(tj, dtype)).clamp(low, high)


def test_hardtanh_of_integers() -> None:
    x = tj.tensor([0, 1, 9], dtype=tj.uint8)
    assert F.relu6(x).tolist() == [0, 1, 6] and F.hardtanh(x.to(tj.int8)).tolist() == [0, 1, 1]
    with pytest.raises(RuntimeError, match="cannot do hardtanh on an unsigned type with negative limits"):
        F.hardtanh(x)


def test_limits_that_are_tensors_do_not_widen() -> None:
    """Those without dims count as numbers, as in PyTorch."""
    x = tj.tensor([0.5, math.nan])
    found = x.clamp(tj.tensor(1.0, dtype=tj.float64), tj.tensor(2.0, dtype=tj.float64))
    assert found.dtype is tj.float32 and found[0].item() == 1 and found[1].isnan().item()
    assert x.clamp(tj.tensor([1.0], dtype=tj.float64)).dtype is tj.float64


def test_negative_powers_of_integers() -> None:
    x = tj.tensor([1, 2, -1, 0])
    with pytest.raises(RuntimeError, match="Integers to negative integer powers are not allowed"):
        x**-1
    assert (x ** tj.tensor(-1)).tolist() == [1, 0, -1, 0]
    assert (2 ** -tj.tensor([1, 0])).tolist() == [0, 1]
