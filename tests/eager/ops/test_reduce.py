"""Reductions and scans: dtypes, empty and infinite input, precision, ties, and gradients where formulas divide by zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit.eager.ops.reduce import sum_array

INF, NAN = math.inf, math.nan


def gradient(function: Any, values: Any) -> list[Any]:
    x = tj.tensor(values, dtype=tj.float64, requires_grad=True)
    y = function(x)
    y.backward(tj.arange(1, y.numel() + 1, dtype=tj.float64).reshape(y.shape))
    assert x.grad is not None
    return x.grad.tolist()  # type: ignore[no-any-return]


# ---- sums and means


@pytest.mark.parametrize("dtype", [tj.bool, tj.uint8, tj.int8, tj.int16, tj.int32, tj.int64])
def test_integers_are_summed_in_int64(dtype: Any) -> None:
    x = tj.ones(300, dtype=dtype)
    for found, value in ((x.sum(), 300), (x.prod(), 1), (x.cumsum(0)[-1], 300), (x.cumprod(0)[-1], 1)):
        assert (found.dtype, found.item()) == (tj.int64, value)


def test_dtype_is_the_accumulator() -> None:
    x = tj.tensor([1.7, 2.7])
    assert x.sum(dtype=tj.int32).item() == 3
    assert x.sum(dtype=tj.float64).dtype == tj.float64
    assert tj.tensor([1, 2]).mean(dtype=tj.float32).item() == 1.5
    assert x.cumsum(0, dtype=tj.int64).tolist() == [1, 3]
    with pytest.raises(RuntimeError, match="could not infer output dtype"):
        tj.tensor([1, 2]).mean()


def test_half_precision_means_do_not_overflow() -> None:
    x = tj.full((70000,), 2.0, dtype=tj.float16)
    assert x.mean().item() == 2
    assert x.sum().item() == INF
    assert x.var(correction=0).item() == 0


@pytest.mark.parametrize("shape", [(5000, 7), (9, 700), (20, 3, 40), (8, 8, 64, 2), (3, 4500)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_quick_sums_are_sums(shape: tuple[int, ...], keepdim: bool) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for n in range(1, len(shape) + 1):
        for start in range(len(shape) - n + 1):
            dims = tuple(range(start, start + n))
            exact = x.astype(np.float64).sum(axis=dims, keepdims=keepdim)
            found = sum_array(np, x, dims, keepdim)
            assert found.shape == exact.shape and found.dtype == np.float32
            np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dims", [(1, 0), (0, 3, 2), (3, 1, 2), (2, 3), (0, 2), (3, 0, 1)])
def test_dims_in_any_order(dims: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((6, 5, 7, 8))
    np.testing.assert_allclose(tj.tensor(x).sum(dims).numpy(), x.sum(axis=dims), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(tj.tensor(x).mean(dims, True).numpy(), x.mean(axis=dims, keepdims=True), rtol=1e-10, atol=1e-12)


def test_long_columns_are_summed_precisely() -> None:
    x = tj.full((1_000_000, 2), 0.1)
    np.testing.assert_allclose(x.sum(0).numpy(), 100000.0, rtol=1e-5)
    np.testing.assert_allclose(x.mean(0).numpy(), 0.1, rtol=1e-5)
    assert abs(x.norm().item() / math.sqrt(20000) - 1) < 1e-6


def test_empty() -> None:
    x = tj.zeros(0, 3)
    assert x.sum().item() == 0 and x.prod().item() == 1
    assert math.isnan(x.mean().item())
    assert x.sum(0).tolist() == [0, 0, 0] and x.sum(1).shape == (0,)
    assert x.logsumexp(0).tolist() == [-INF] * 3
    assert x.all().item() is True and x.any().item() is False
    assert x.norm().item() == 0
    assert x.amax(1).shape == (0,) and x.max(1).indices.shape == (0,)
    assert x.cumsum(0).shape == x.cummax(1).values.shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: x.max(), RuntimeError),
        (lambda x: x.amin(), RuntimeError),
        (lambda x: x.amax(0), IndexError),
        (lambda x: x.max(0), IndexError),
        (lambda x: x.argmax(), IndexError),
        (lambda x: x.argmin(0), IndexError),
        (lambda x: x.aminmax(), RuntimeError),
        (lambda x: x.norm(INF), RuntimeError),
    ],
)
def test_empty_has_no_extreme(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"Expected reduction dim|does not have an identity"):
        call(tj.zeros(0, 3))


@pytest.mark.parametrize("dim", [2, -3, (0, 2), [0, 5]])
def test_dims_out_of_range(dim: Any) -> None:
    with pytest.raises(IndexError, match=r"Dimension out of range \(expected to be in range of \[-2, 1\]"):
        tj.ones(2, 3).sum(dim)


def test_bad_dims() -> None:
    with pytest.raises(RuntimeError, match="dim 1 appears multiple times"):
        tj.ones(2, 3).sum((1, -1))
    with pytest.raises(TypeError, match="prod"):
        tj.ones(2, 3).prod((0, 1))
    with pytest.raises(TypeError, match="amax"):
        tj.ones(2, 3).max((0, 1))


def test_no_dims_means_all() -> None:
    x = tj.ones(2, 3)
    assert x.sum(()).item() == x.sum([]).item() == x.sum(None).item() == 6
    assert x.sum(keepdim=True).shape == x.mean(keepdim=True).shape == x.argmax(keepdim=True).shape == (1, 1)


# ---- moments


def test_variance_keeps_its_digits_far_from_zero() -> None:
    x = tj.tensor([1e4 + 1, 1e4 + 2, 1e4 + 3])
    assert x.var().item() == 1
    assert x.std(correction=0).item() == pytest.approx(math.sqrt(2 / 3), rel=1e-6)


def test_older_calls_of_variance() -> None:
    x = tj.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 3.0]])
    assert x.var(False).item() == x.var(unbiased=False).item() == x.var(correction=0).item()
    assert x.var(1, False).tolist() == x.var(dim=1, correction=0).tolist()
    assert x.std(1, True, True).shape == (2, 1)
    deviation, mean = tj.std_mean(x, 1)
    assert deviation.tolist() == x.std(1).tolist() and mean.tolist() == x.mean(1).tolist()
    with pytest.raises(RuntimeError, match="floating point"):
        tj.tensor([1, 2]).var()
    with pytest.raises(TypeError, match="either unbiased or correction"):
        x.var(unbiased=True, correction=1)


def test_too_few_degrees_of_freedom() -> None:
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert math.isnan(tj.tensor([3.0]).var().item())


def test_deviation_of_equal_numbers_has_no_slope() -> None:
    assert gradient(lambda x: x.std(1), [[2.0, 2.0, 2.0], [1.0, 2.0, 3.0]]) == [[0, 0, 0], [-1, 0, 1]]


# ---- products and norms at zero


@pytest.mark.parametrize(
    ("values", "expected"),
    [([2.0, 3.0, 4.0], [12, 8, 6]), ([2.0, 0.0, 4.0], [0, 8, 0]), ([0.0, 0.0, 4.0], [0, 0, 0]), ([3.0], [1])],
)
def test_product_with_zeros(values: Any, expected: Any) -> None:
    assert gradient(lambda x: x.prod(), values) == expected
    assert gradient(lambda x: x.prod(0, keepdim=True), values) == expected
    assert gradient(lambda x: x.reshape(1, -1).prod(), values) == expected


def test_second_slope_of_a_product_with_two_zeros() -> None:
    x = tj.tensor([0.0, 0.0, 4.0], dtype=tj.float64, requires_grad=True)
    (first,) = tj.autograd.grad(x.prod(), x, create_graph=True)
    (second,) = tj.autograd.grad(first[0], x)
    assert second.tolist() == [0, 4, 0]


def test_running_product_with_zeros() -> None:
    # of 2x, 2xy, 2xyz ... at x = 3, y = 0, z = 5, with weights 1, 2, 3, 4
    assert gradient(lambda x: x.cumprod(0), [2.0, 3.0, 0.0, 5.0]) == [7, 4, 138, 0]


@pytest.mark.parametrize("p", [1, 2, 3, 0.5, INF])
def test_norm_has_no_slope_at_zero(p: float) -> None:
    assert gradient(lambda x: x.norm(p), [0.0, 0.0]) == [0, 0]


def test_norms() -> None:
    x = tj.tensor([[3.0, -4.0], [0.0, 1.0]])
    assert x.norm(dim=1).tolist() == [5, 1]
    assert x.norm(p="fro").item() == x.norm(2, (0, 1)).item() == pytest.approx(math.sqrt(26))
    assert x.norm(0).item() == 3 and x.norm(-INF, 1).tolist() == [3, 0]
    assert x.norm(dtype=tj.float64).dtype == tj.float64
    with pytest.raises(RuntimeError, match="floating point"):
        tj.tensor([1, 2]).norm()
    assert tj.dist(x, x + 1, 1).item() == 4


def test_renorm_leaves_short_slices_alone() -> None:
    x = tj.tensor([[3.0, 4.0], [0.3, 0.4]])
    np.testing.assert_allclose(x.renorm(2, 0, 1.0).numpy(), [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        x[0].renorm(2, 0, 1.0)


# ---- extremes


def test_three_forms_of_max() -> None:
    x, y = tj.tensor([[1.0, 5.0], [7.0, 3.0]]), tj.tensor([[2.0, 4.0], [6.0, 8.0]])
    assert x.max().item() == 7
    assert tj.max(x, y).tolist() == x.max(other=y).tolist() == [[2, 5], [7, 8]]
    values, indices = found = x.max(dim=1, keepdim=True)
    assert found.values is values and found.indices is indices
    assert values.tolist() == [[5], [7]] and indices.tolist() == [[1], [0]] and indices.dtype == tj.int64
    assert "values=tensor" in repr(found) and repr(found).startswith("tapejit.return_types.max(")
    assert tj.aminmax(x).min.item() == 1


def test_nan_is_the_extreme() -> None:
    x = tj.tensor([[1.0, NAN, 3.0], [4.0, 5.0, 6.0]])
    assert math.isnan(x.max().item()) and math.isnan(x.min().item())
    assert x.max(1).indices.tolist() == x.argmax(1).tolist() == [1, 2]
    assert x.min(1).indices.tolist() == x.argmin(1).tolist() == [1, 0]


def test_ties() -> None:
    values = [1.0, 3.0, 3.0]
    assert gradient(lambda x: x.max(), values) == gradient(lambda x: x.amax(0), values) == [0, 0.5, 0.5]
    assert gradient(lambda x: x.max(0).values, values) == [0, 1, 0]
    assert gradient(lambda x: x.cummax(0).values, values) == [1, 2, 3]


def test_argmax_of_booleans() -> None:
    with pytest.raises(RuntimeError, match="does not support bool"):
        tj.tensor([True, False]).argmax()


def test_truth_of_uint8_is_uint8() -> None:
    assert tj.tensor([1, 0], dtype=tj.uint8).any().dtype == tj.uint8
    assert tj.tensor([1, 0]).all().dtype == tj.bool


# ---- log-sum-exp


def test_logsumexp_of_large_and_infinite_logits() -> None:
    x = [[1e4, 1e4], [-1e4, -1e4], [-INF, -INF], [-INF, 0.0], [INF, 0.0]]
    found = tj.tensor(x, dtype=tj.float64).logsumexp(1).tolist()
    assert found == pytest.approx([1e4 + math.log(2), -1e4 + math.log(2), -INF, 0, INF])
    slopes = gradient(lambda t: t.logsumexp(1), x[:4])
    assert np.ravel(slopes) == pytest.approx([0.5, 0.5, 1, 1, 0, 0, 0, 4])
    assert tj.tensor([1, 2]).logsumexp(0).item() == pytest.approx(2.3132617, rel=1e-6)


def test_running_logsumexp() -> None:
    x = [-INF, 1e4, 1e4, -1e4]
    found = tj.tensor(x, dtype=tj.float64).logcumsumexp(0).tolist()
    assert found == pytest.approx([-INF, 1e4, 1e4 + math.log(2), 1e4 + math.log(2)])
    assert gradient(lambda t: t.logcumsumexp(0), x) == pytest.approx([0, 5.5, 3.5, 0])


# ---- NaN left out, counting


def test_nan_left_out() -> None:
    x = tj.tensor([[1.0, NAN], [2.0, 4.0]])
    assert x.nansum().item() == 7 and x.nansum(1).tolist() == [1, 6]
    assert x.nanmean(1).tolist() == [1, 3]
    assert gradient(lambda t: t.nanmean(1), x.tolist()) == [[1, 0], [1, 1]]
    assert tj.tensor([1, 2]).nansum().item() == 3
    assert tj.count_nonzero(tj.tensor([[0, 2], [NAN, 0.0]]), 1).tolist() == [1, 1]


# ---- scans


def test_running_extremes() -> None:
    x = tj.tensor([2.0, 1.0, 2.0, NAN, 3.0, NAN])
    values, indices = x.cummax(0)
    np.testing.assert_array_equal(values.numpy(), [2, 2, 2, NAN, NAN, NAN])
    assert indices.tolist() == [0, 0, 2, 3, 3, 5]
    assert tj.tensor([3, 1, 2]).cummin(0).indices.tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"])
@pytest.mark.parametrize("dim", [0, 1])
def test_wide_rows(name: str, dim: int) -> None:
    x = tj.tensor(np.random.default_rng(0).uniform(0.5, 1.5, (5, 90, 70)))
    found, column = getattr(x, name)(dim), getattr(x[:, :, :1], name)(dim)
    for wide, narrow in zip(found, column, strict=True) if isinstance(found, tuple) else [(found, column)]:
        np.testing.assert_allclose(wide[:, :, :1].numpy(), narrow.numpy(), rtol=1e-12)


def test_running_sums_in_float32_are_made_in_float64() -> None:
    x = tj.full((1_000_000,), 0.1)
    assert x.cumsum(0)[-1].item() == pytest.approx(100000, rel=1e-6)


def test_differences() -> None:
    x = tj.tensor([1, 4, 9, 16], dtype=tj.uint8)
    assert x.diff().tolist() == [3, 5, 7] and x.diff(n=2).tolist() == [2, 2]
    assert tj.tensor([True, True, False]).diff().tolist() == [False, True]
    with pytest.raises(RuntimeError, match="at least one-dimensional"):
        tj.tensor(1.0).diff()
    with pytest.raises(RuntimeError, match="non-negative"):
        x.diff(-1)


def test_areas() -> None:
    y = tj.tensor([1.0, 2.0, 3.0])
    assert tj.trapezoid(y).item() == 4 and tj.trapezoid(y, tj.tensor([0.0, 2.0, 6.0])).item() == 13
    assert tj.cumulative_trapezoid(y, dx=2).tolist() == [3, 8]
    with pytest.raises(RuntimeError, match="one `x` value for each sample point"):
        tj.trapezoid(y, tj.tensor([0.0, 2.0]))
