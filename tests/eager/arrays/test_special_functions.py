"""Special functions: as precise as they claim over their whole range, and right at poles, infinities and NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import tapejit as tj
from tapejit.eager.arrays import special_functions as special

INF, NAN = math.inf, math.nan


def spread(low: float, high: float, count: int = 4000) -> np.ndarray:
    return np.random.default_rng(3).uniform(low, high, count)


def tiny(center: float) -> np.ndarray:
    """Numbers ever closer to a center, on both sides."""
    steps = 10.0 ** np.linspace(-14, -1, 200)
    return np.concatenate([center + steps, center - steps])


def off(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest relative error."""
    return float(np.max(np.abs(found - expected) / np.abs(expected)))


def elementwise(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.asarray([function(float(v)) for v in x])


@pytest.mark.parametrize(
    ("name", "points", "reference", "bound"),
    [
        ("erf", np.concatenate([spread(-6, 6), tiny(0), tiny(0.5)]), elementwise(math.erf), 1e-15),
        ("erfc", np.concatenate([spread(-6, 26), tiny(0.5)]), elementwise(math.erfc), 3e-15),
        (
            "erfinv",
            np.concatenate([spread(-1, 1), tiny(0), 1 - 10.0 ** -np.linspace(1, 15.9, 99)]),
            scipy.special.erfinv,
            1e-14,
        ),
        (
            "lgamma",
            np.concatenate([spread(0, 0.9), spread(1.1, 1.9), spread(2.1, 20), 10.0 ** spread(-300, 300)]),
            scipy.special.gammaln,
            1e-14,
        ),
        ("digamma", np.concatenate([spread(0.01, 1.4), spread(1.5, 30), 10.0 ** spread(1, 15)]), scipy.special.digamma, 4e-15),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_float64(name: str, points: np.ndarray, reference: Any, bound: float) -> None:
    assert off(getattr(special, name)(np, points), reference(points)) < bound


def test_lgamma_near_its_zeros() -> None:
    t = tiny(1) - 1
    series = -np.euler_gamma * t + sum(scipy.special.zeta(k) * (-t) ** k / k for k in range(2, 20))
    assert off(special.lgamma(np, 1 + t), series) < 2e-15
    t = tiny(2) - 2
    series = (1 - np.euler_gamma) * t + sum((scipy.special.zeta(k) - 1) * (-t) ** k / k for k in range(2, 20))
    assert off(special.lgamma(np, 2 + t), series) < 2e-15


def test_below_zero() -> None:
    x = spread(-30, 0)
    np.testing.assert_allclose(special.lgamma(np, x), elementwise(math.lgamma)(x), rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(special.digamma(np, x), scipy.special.digamma(x), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_polygamma(n: int) -> None:
    x = spread(0.05, 40, 500)
    assert off(special.polygamma(np, n, x), scipy.special.polygamma(n, x)) < 1e-13
    below = x[:60] - 41
    step = 1e-5  # derivatives of the one before
    slope = (special.polygamma(np, n - 1, below + step) - special.polygamma(np, n - 1, below - step)) / (2 * step)
    gentle = np.abs(below - np.around(below)) > 0.2
    np.testing.assert_allclose(special.polygamma(np, n, below)[gentle], slope[gentle], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["erf", "erfc", "lgamma", "digamma", "sigmoid"])
def test_float32(name: str) -> None:
    x = np.concatenate([spread(-5, 5), spread(-80, 80), tiny(0)]).astype(np.float32)
    found = getattr(special, name)(np, x)
    exact = getattr(special, name)(np, x.astype(np.float64))
    assert found.dtype == np.float32
    units = np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert np.max(units) < (3 if name in ("erf", "sigmoid") else 0.51)


def test_erf_stays_within_one() -> None:
    x = np.float32([3.5, 3.8, 3.9, 4, 5, 10, 1e3, 1e10, 1e30, INF])
    found = special.erf(np, x)
    assert np.all(found <= 1) and np.all(found[4:] == 1)
    np.testing.assert_array_equal(special.erf(np, -x), -found)


def test_sigmoid_far_out() -> None:
    x = np.float32([-INF, -200, -80, 0, 80, 200, INF])
    np.testing.assert_allclose(special.sigmoid(np, x), [0, 0, math.exp(-80), 0.5, 1, 1, 1], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "at", "expected"),
    [
        ("erf", [0.0, -0.0, INF, -INF, NAN], [0.0, -0.0, 1, -1, NAN]),
        ("erfc", [0.0, INF, -INF, NAN, 30], [1, 0, 2, NAN, 0]),
        ("erfinv", [0.0, -0.0, 1, -1, 1.5, -2, NAN, INF], [0.0, -0.0, INF, -INF, NAN, NAN, NAN, NAN]),
        ("lgamma", [0.0, -0.0, 1, 2, -1, -7, INF, -INF, NAN, -1e17], [INF, INF, 0, 0, INF, INF, INF, INF, NAN, INF]),
        ("digamma", [0.0, -0.0, -1, -7, INF, -INF, NAN], [-INF, INF, NAN, NAN, INF, NAN, NAN]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values(name: str, at: list[float], expected: list[float], dtype: Any) -> None:
    found = getattr(special, name)(np, np.asarray(at, dtype))
    np.testing.assert_array_equal(found, np.asarray(expected, dtype))
    np.testing.assert_array_equal(np.signbit(found)[:2], np.signbit(np.asarray(expected))[:2])


def test_polygamma_at_poles() -> None:
    x = np.asarray([0.0, -1.0, -5.0, INF])
    np.testing.assert_array_equal(special.polygamma(np, 1, x), [INF, INF, INF, 0])
    np.testing.assert_array_equal(special.polygamma(np, 2, x), [-INF, -INF, -INF, 0])


def test_large_and_scattered_arrays() -> None:
    x = np.random.default_rng(0).standard_normal((300, 301)).astype(np.float32)
    whole = special.erf(np, x)
    np.testing.assert_array_equal(special.erf(np, x[:3]), whole[:3])
    np.testing.assert_array_equal(special.erf(np, x.T), whole.T)
    assert special.erf(np, np.float32(0.5).reshape(())).shape == ()
    assert special.erf(np, np.empty((0, 3), np.float32)).shape == (0, 3)


def test_integers_become_floats() -> None:
    x = tj.tensor([1, 2, 5])
    assert tj.lgamma(x).dtype == tj.float32
    assert tj.polygamma(1, x).dtype == tj.float32
    assert tj.erf(tj.tensor([0.5], dtype=tj.bfloat16)).dtype == tj.bfloat16
    with pytest.raises(RuntimeError, match="polygamma"):
        tj.polygamma(-1, x)
