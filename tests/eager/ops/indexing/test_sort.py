"""Sorting, order statistics, unique values and counting: order of equals and NaN, indices, errors, gradients of picks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tapejit as tj

NAN = math.nan


def gradient(function: Any, values: Any) -> Any:
    x = tj.tensor(values, dtype=tj.float64, requires_grad=True)
    y = function(x)
    y.backward(tj.arange(1, y.numel() + 1, dtype=tj.float64).reshape(y.shape))
    assert x.grad is not None
    return x.grad.tolist()


# ---- sort and topk


@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_keep_their_order(descending: bool) -> None:
    x = tj.tensor(np.random.default_rng(0).integers(0, 5, 200))
    values, indices = x.sort(descending=descending, stable=True)
    order = sorted(range(200), key=lambda i: -x[i].item() if descending else x[i].item())
    assert indices.tolist() == order and values.tolist() == x[indices].tolist()


def test_nan_is_greater_than_every_number() -> None:
    x = tj.tensor([3.0, NAN, math.inf, 1.0, NAN])
    assert x.argsort().tolist() == [3, 0, 2, 1, 4]
    assert x.argsort(descending=True).tolist() == [1, 4, 2, 0, 3]
    assert set(x.topk(2).indices.tolist()) == {1, 4}
    assert x.topk(2, largest=False).indices.tolist() == [3, 0]
    assert x.kthvalue(3).values.item() == math.inf


def test_sorting_numbers_and_nothing() -> None:
    assert tj.tensor(3.0).sort().indices.item() == 0
    values, indices = tj.zeros(0, 3).sort(0)
    assert values.shape == indices.shape == (0, 3) and indices.dtype == tj.int64
    with pytest.raises(IndexError, match="Dimension out of range"):
        tj.tensor([1.0]).sort(1)


@pytest.mark.parametrize("dtype", [tj.float16, tj.bfloat16, tj.int8, tj.uint8, tj.bool])
def test_sorting_keeps_the_dtype(dtype: Any) -> None:
    x = tj.tensor([1, 0, 1]).to(dtype)
    assert x.sort().values.dtype == dtype and x.topk(1).values.dtype == dtype


def test_picks_send_gradients_home() -> None:
    values = [3.0, 1.0, 2.0, 5.0]
    assert gradient(lambda x: x.sort(descending=True).values, values) == [2, 4, 3, 1]
    assert gradient(lambda x: x.topk(2).values, values) == [2, 0, 0, 1]
    assert gradient(lambda x: x.kthvalue(2).values, values) == [0, 0, 1, 0]
    assert gradient(lambda x: x.median(0).values, values) == [0, 0, 1, 0]
    assert gradient(lambda x: tj.tensor(2.0).double() * x.median(), [1.0, 1.0, 3.0]) == [1, 1, 0]


def test_topk_of_many() -> None:
    x = tj.tensor(np.random.default_rng(0).permutation(5000).reshape(10, 500)).float()
    values, indices = x.topk(7, dim=1)
    assert values.tolist() == x.sort(1, True).values[:, :7].tolist()
    assert x.gather(1, indices).tolist() == values.tolist()


@pytest.mark.parametrize(
    "call",
    [lambda x: x.topk(4), lambda x: x.topk(-1), lambda x: x.kthvalue(0), lambda x: x.kthvalue(4)],
)
def test_k_out_of_range(call: Any) -> None:
    with pytest.raises(RuntimeError, match="k out of range"):
        call(tj.tensor([1.0, 2.0, 3.0]))


# ---- order statistics


def test_medians() -> None:
    x = tj.tensor([[4.0, NAN, 1.0, 3.0], [8.0, 5.0, 7.0, 6.0]])
    values, indices = x.median(1)
    assert math.isnan(values[0].item()) and values[1].item() == 6 and indices.tolist() == [1, 3]
    assert x.nanmedian(1).values.tolist() == [3, 6] and x.nanmedian().item() == 5
    assert math.isnan(x.median().item())
    assert math.isnan(tj.zeros(0).median().item())
    assert tj.tensor([[3, 1, 2]]).median(1, keepdim=True).values.tolist() == [[2]]
    with pytest.raises(IndexError, match="non-zero size"):
        tj.zeros(0, 2).median(0)
    with pytest.raises(NotImplementedError, match="Bool"):
        tj.tensor([True]).median()


def test_mode() -> None:
    values, indices = tj.tensor([[3, 1, 3, 1, 2], [5, 5, 4, 4, 4]]).mode()
    assert values.tolist() == [1, 4] and indices.tolist() == [3, 4]
    assert gradient(lambda x: x.mode().values, [3.0, 3.0, 1.0]) == [0, 1, 0]


def test_quantiles() -> None:
    x = tj.tensor([[1.0, NAN, 3.0], [1.0, 2.0, 4.0]])
    found = x.quantile(tj.tensor([0.0, 0.75]), dim=1)
    np.testing.assert_array_equal(found.numpy(), [[NAN, 1], [NAN, 3]])
    assert x.nanquantile(0.5, dim=1).tolist() == [2, 2]
    assert x.nanquantile(0.5, dim=1, keepdim=True).shape == (2, 1)
    assert tj.tensor([1.0, 2.0, 3.0, 4.0]).quantile(0.5, interpolation="nearest").item() == 3
    assert gradient(lambda t: t.quantile(0.25), [4.0, 1.0, 2.0]) == [0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.quantile(1.5), r"range \[0, 1\] but got 1.5"),
        (lambda x: x.quantile(tj.tensor([0.5, -0.5])), "range"),
        (lambda x: x.quantile(tj.tensor([0.5], dtype=tj.float64)), "same dtype"),
        (lambda x: x.quantile(tj.tensor([[0.5]])), "scalar or 1D"),
        (lambda x: x.long().quantile(0.5), "float or double"),
        (lambda x: x[:0].quantile(0.5), "non-empty"),
        (lambda x: x.quantile(0.5, interpolation="cubic"), "interpolation must be one of"),
    ],
)
def test_bad_quantiles(call: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call(tj.tensor([1.0, 2.0]))


# ---- unique values


def test_unique() -> None:
    x = tj.tensor([3, 1, 3, 2])
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    assert (values.tolist(), inverse.tolist(), counts.tolist()) == ([1, 2, 3], [2, 0, 2, 1], [1, 1, 2])
    assert len(tj.tensor([1.0, NAN, NAN]).unique()) == 3
    assert tj.zeros(0).unique().shape == (0,)
    rows, places = tj.tensor([[1, 2], [0, 5], [1, 2]]).unique(dim=0, return_inverse=True)
    assert rows.tolist() == [[0, 5], [1, 2]] and places.tolist() == [1, 0, 1]


def test_unique_consecutive() -> None:
    values, inverse, counts = tj.tensor([[1, 1, 2], [2, 1, 1]]).unique_consecutive(return_inverse=True, return_counts=True)
    assert (values.tolist(), counts.tolist()) == ([1, 2, 1], [2, 2, 2])
    assert inverse.tolist() == [[0, 0, 1], [1, 2, 2]]
    assert tj.tensor([[1, 1, 2], [3, 3, 2]]).unique_consecutive(dim=1).tolist() == [[1, 2], [3, 2]]
    assert tj.zeros(0).unique_consecutive(return_counts=True)[1].shape == (0,)


# ---- places and counts


def test_searchsorted() -> None:
    rows = tj.tensor([[1, 3, 5, 7, 9], [2, 4, 6, 8, 10]])
    wanted = tj.tensor([[3, 6, 9], [3, 6, 9]])
    assert tj.searchsorted(rows, wanted).tolist() == [[1, 3, 4], [1, 2, 4]]
    assert tj.searchsorted(rows, wanted, side="right").tolist() == [[2, 3, 5], [1, 3, 4]]
    assert tj.searchsorted(rows[0], 4).shape == ()
    assert tj.searchsorted(rows[0], wanted, out_int32=True).dtype == tj.int32
    mixed = tj.tensor([5, 1, 3])
    assert tj.searchsorted(mixed, tj.tensor([3, 4]), sorter=mixed.argsort()).tolist() == [1, 2]


@pytest.mark.parametrize(
    "call",
    [
        lambda s: tj.searchsorted(s, s, side="middle"),
        lambda s: tj.searchsorted(s, s, side="left", right=True),
        lambda s: tj.searchsorted(s, s, sorter=tj.tensor([0])),
        lambda s: tj.searchsorted(tj.ones(2, 3), tj.ones(3, 3)),
    ],
)
def test_bad_searches(call: Any) -> None:
    with pytest.raises(RuntimeError, match="searchsorted"):
        call(tj.tensor([1, 2, 3]))


def test_bucketize() -> None:
    edges = tj.tensor([1.0, 2.0, 4.0])
    assert tj.bucketize(tj.tensor([[0.5, 1.0], [3.0, NAN]]), edges).tolist() == [[0, 0], [2, 3]]
    assert tj.bucketize(tj.tensor([1.0, 4.0]), edges, right=True).tolist() == [1, 3]
    with pytest.raises(RuntimeError, match="1 dimension"):
        tj.bucketize(edges, tj.ones(2, 2))


def test_isin() -> None:
    x = tj.tensor([[1, 2], [3, 4]])
    assert tj.isin(x, tj.tensor([4, 1, 9])).tolist() == [[True, False], [False, True]]
    assert tj.isin(x, 2, invert=True).tolist() == [[True, False], [True, True]]
    assert tj.isin(3, x).item() is True
    assert tj.isin(x, tj.tensor([], dtype=tj.int64)).any().item() is False


def test_bincount() -> None:
    x = tj.tensor([1, 3, 1])
    assert x.bincount().tolist() == [0, 2, 0, 1] and x.bincount(minlength=6).shape == (6,)
    weighted = x.bincount(tj.tensor([0.5, 1.0, 2.0]))
    assert weighted.tolist() == [0, 2.5, 0, 1] and weighted.dtype == tj.float32
    assert x.bincount(tj.tensor([1, 1, 1])).dtype == tj.float64
    for wrong in (tj.tensor([1, -1]), tj.tensor([1.0]), tj.tensor([[1]])):
        with pytest.raises(RuntimeError, match="bincount only supports 1-d non-negative integral inputs"):
            wrong.bincount()
    with pytest.raises(RuntimeError, match="same length"):
        x.bincount(tj.tensor([1.0]))


def test_histc() -> None:
    x = tj.tensor([1.0, 2.0, 2.5, 3.0, 9.0])
    assert x.histc(4, 1, 3).tolist() == [1, 0, 1, 2]
    assert x.histc(2).tolist() == [4, 1]
    assert tj.tensor([5.0, 5.0]).histc(3).tolist() == [0, 2, 0]
    assert tj.tensor([1.0, NAN]).histc(2, 0, 2).tolist() == [0, 1]
    with pytest.raises(RuntimeError, match="not finite"):
        tj.tensor([1.0, NAN]).histc(2)
    with pytest.raises(RuntimeError, match="bins must be > 0"):
        x.histc(0)
    with pytest.raises(RuntimeError, match="max must be larger"):
        x.histc(3, 2, 1)


def test_histc_of_numbers_at_the_ends_of_the_range() -> None:
    assert tj.histc(tj.tensor([1e-310, 0.0], dtype=tj.float64), 3).tolist() == [1, 0, 1]
    assert tj.histc(tj.tensor([1e308, -1e308], dtype=tj.float64), 3).sum() == 2


def test_quantiles_at_nan_are_refused() -> None:
    for quantile in (tj.quantile, tj.nanquantile):
        with pytest.raises(RuntimeError, match=r"range \[0, 1\]"):
            quantile(tj.ones(2), tj.tensor(tj.nan))
