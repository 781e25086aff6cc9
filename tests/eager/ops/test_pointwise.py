"""Pointwise ops where samples do not reach: division that rounds, numbers that are no numbers, booleans, integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from tapejit.eager.ops.pointwise import floor_division

INF, NAN = math.inf, math.nan
INTEGERS = [tj.int64, tj.int32, tj.int16, tj.int8]


# ---- division that rounds


@pytest.mark.parametrize("dtype", [tj.float64, tj.float32])
def test_floor_division_is_python_s(dtype: Any) -> None:
    random = np.random.default_rng(0)
    a = [1.0, 5.0, -1.0, 1.0, -1.0, 0.3, *random.integers(-50, 50, 200) / 10]
    b = [0.1, 0.1, INF, -INF, -INF, 0.1, *random.choice([0.1, 0.2, 0.3, -0.7, 2.5, -3.0], 200)]
    x, y = tj.tensor(a, dtype=dtype), tj.tensor(b, dtype=dtype)
    expected = [p // q for p, q in zip(x.tolist(), y.tolist(), strict=True)] if dtype is tj.float64 else None
    found = x // y
    if expected is not None:
        assert found.tolist() == expected
    assert found.tolist() == tj.div(x, y, rounding_mode="floor").tolist()
    assert (x - found * y - x % y).abs()[x.isfinite() & y.isfinite()].max() < 1e-5


def test_floor_division_where_the_array_library_has_none() -> None:
    """The branch for CuPy, whose own function only rounds the quotient, on NumPy's arrays."""

    class Other:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

    values = np.array([0.0, -0.0, 1.0, -1.0, 0.1, 0.3, -2.5, 7.0, 1e10, INF, -INF, NAN])
    a, b = values[:, None], values[None, :]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(floor_division(Other(), a, b), np.floor_divide(a, b))
        np.testing.assert_array_equal(floor_division(Other(), 5.0, values), np.floor_divide(5.0, values))


def test_division_by_zero_of_floats() -> None:
    assert (tj.tensor([1.0, -1.0]) // 0).tolist() == [INF, -INF]
    assert (tj.tensor([0.0]) // 0).isnan().all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_whole_quotients_of_integers(dtype: Any) -> None:
    a = tj.tensor([7, -7, 7, -7, 6, -6, 0], dtype=dtype)
    b = tj.tensor([2, 2, -2, -2, 3, 3, 5], dtype=dtype)
    assert tj.div(a, b, rounding_mode="trunc").tolist() == [3, -3, -3, 3, 2, -2, 0]
    assert tj.div(a, b, rounding_mode="floor").tolist() == [3, -4, -4, 3, 2, -2, 0]
    assert tj.div(a, b, rounding_mode="trunc").dtype is dtype


def test_large_integers_keep_their_digits() -> None:
    n = 2**60 + 1
    assert tj.tensor([n, -n]).div(3, rounding_mode="trunc").tolist() == [n // 3, -(n // 3)]
    assert tj.tensor([n]).div_(3, rounding_mode="trunc").tolist() == [n // 3]
    assert (tj.tensor([255], dtype=tj.uint8).div(2, rounding_mode="trunc")).tolist() == [127]


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_integers_are_not_divided_by_zero(mode: str) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        tj.tensor([1, 2]).div(0, rounding_mode=mode)


# ---- no numbers


def test_the_sign_of_nan_is_zero() -> None:
    for dtype in (tj.float64, tj.float32, tj.float16, tj.bfloat16):
        x = tj.tensor([NAN, INF, -INF, 0.0, -2.0], dtype=dtype)
        assert tj.sign(x).tolist() == [0, 1, -1, 0, -1]
        assert tj.sgn(x).dtype is dtype
    assert tj.sign(tj.tensor(NAN)).item() == 0


def test_lerp_reaches_its_end() -> None:
    a, b = tj.tensor([1e8, 0.1]), tj.tensor([0.3, 0.7])
    assert tj.lerp(a, b, 1.0).tolist() == b.tolist()
    assert tj.lerp(a, b, tj.tensor([1.0, 0.0])).tolist() == [b[0].item(), a[1].item()]
    assert tj.autograd.gradcheck(tj.lerp, [tj.randn(3, dtype=tj.float64, requires_grad=True) for _ in range(3)])


# ---- dtypes


def test_integers_become_floats_before_they_wrap() -> None:
    assert tj.logit(tj.tensor([2], dtype=tj.uint8)).isnan().all()
    assert tj.trapezoid(tj.tensor([200, 200, 200], dtype=tj.uint8)).item() == 400


def test_half_precision_of_sinc() -> None:
    x = tj.tensor([1.0, 3.0], dtype=tj.float16)
    assert tj.sinc(x).abs().max() < 1e-6
    assert tj.sinc(x).dtype is tj.float16


MASK = tj.tensor([True, False])
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "x - mask": (lambda: tj.ones(2) - MASK, RuntimeError, "logical_not"),
    "mask - x": (lambda: MASK - tj.ones(2), RuntimeError, "logical_not"),
    "x - True": (lambda: tj.ones(2) - True, RuntimeError, "logical_not"),
    "True - x": (lambda: True - tj.ones(2), RuntimeError, "logical_not"),
    "mask - 1": (lambda: MASK - 1, RuntimeError, "logical_not"),
    "mask -= ": (lambda: MASK.clone().sub_(True), RuntimeError, "logical_not"),
    "+mask": (lambda: +MASK, RuntimeError, r"\+"),
    "abs": (lambda: abs(MASK), NotImplementedError, "abs.*Bool"),
    "floor": (lambda: MASK.floor(), NotImplementedError, "floor.*Bool"),
    "round": (lambda: MASK.round(), NotImplementedError, "round.*Bool"),
    "//": (lambda: MASK // MASK, NotImplementedError, "floor_divide.*Bool"),
    "%": (lambda: MASK % MASK, NotImplementedError, "remainder.*Bool"),
    "<<": (lambda: MASK << MASK, NotImplementedError, "shift.*Bool"),
    "lerp of two dtypes": (lambda: tj.lerp(tj.ones(2), tj.ones(2).double(), 0.5), RuntimeError, "float32.*float64"),
    "addcdiv of integers": (lambda: tj.addcdiv(*[tj.ones(2, dtype=tj.int64)] * 3), RuntimeError, "true division"),
    "isclose of two dtypes": (lambda: tj.isclose(tj.ones(2), tj.ones(2).double()), RuntimeError, "Float did not match Double"),
    "a negative tolerance": (lambda: tj.isclose(tj.ones(2), tj.ones(2), rtol=-1), RuntimeError, "-1"),
    "heaviside of two dtypes": (lambda: tj.heaviside(tj.ones(2), tj.ones(2).long()), RuntimeError, "dtypes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        call()


def test_true_is_one_for_the_other_operators() -> None:
    assert (tj.ones(2) + True).tolist() == [2, 2]
    assert (True * tj.ones(2)).tolist() == [1, 1]
    assert (tj.ones(2) / True).dtype is tj.float32


# ---- gradients at corners


def gradient(function: Callable[[tj.Tensor], tj.Tensor], at: list[float]) -> list[float]:
    x = tj.tensor(at, dtype=tj.float64, requires_grad=True)
    function(x).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


def test_a_limit_that_is_met_leaves_the_gradient_whole() -> None:
    low, high = tj.zeros(5, dtype=tj.float64), tj.ones((), dtype=tj.float64)
    at = [-1.0, 0.0, 0.5, 1.0, 2.0]
    assert gradient(lambda x: x.clamp(low, high), at) == [0, 1, 1, 1, 0]
    assert gradient(lambda x: x.clamp(0, 1), at) == [0, 1, 1, 1, 0]
    assert gradient(lambda x: x.clamp(min=low), at) == [0, 1, 1, 1, 1]
    assert tj.tensor([NAN]).clamp(tj.zeros(1), tj.ones(1)).isnan().all()
    assert tj.tensor([0.5]).clamp(tj.tensor([NAN]), tj.ones(1)).isnan().all()


def test_powers_of_zero() -> None:
    assert gradient(lambda x: 0.0**x, [0.0, 1.0, 2.0]) == [0, 0, 0]
    base = tj.tensor([0.0, 0.0, 2.0], dtype=tj.float64)
    assert gradient(lambda x: base**x, [0.0, 2.0, 1.0]) == pytest.approx([0, 0, 2 * math.log(2)])


def test_the_angle_of_the_origin() -> None:
    origin = tj.zeros(2, dtype=tj.float64)
    assert gradient(lambda x: tj.atan2(x, origin), [0.0, 1.0]) == [0, 0]
    assert gradient(lambda x: tj.atan2(origin, x), [0.0, 1.0]) == [0, 0]


def test_logit_at_its_ends() -> None:
    assert gradient(tj.logit, [0.0, 0.5, 1.0]) == [INF, 4, INF]
    assert tj.logit(tj.tensor([0.0, 1.0])).tolist() == [-INF, INF]


def test_the_second_slope_of_a_limit_is_zero_at_zero() -> None:
    x = tj.tensor([0.0, 3.0, 7.0], dtype=tj.float64, requires_grad=True)
    (g,) = tj.autograd.grad(F.relu6(x).sum(), x, create_graph=True)
    assert tj.autograd.grad(g.sum(), x)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [*INTEGERS, tj.uint8])
def test_integers_that_are_far_apart_are_not_close(dtype: Any) -> None:
    limits = tj.iinfo(dtype)
    low, high = (tj.tensor([n, 3], dtype=dtype) for n in (limits.min, limits.max))
    assert tj.isclose(low, high).tolist() == [False, True]
    assert tj.isclose(high, low).tolist() == [False, True]
