"""Pooling beyond its samples: NaN, ties, infinities, indices, dtypes, in-place writes after it, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit.eager.ops.spatial import windows
from tapejit.nn import functional as F


def test_nan_wins_and_gets_the_gradient() -> None:
    x = tj.tensor([[[1.0, math.nan, 3.0, 2.0, 5.0, 4.0]]], requires_grad=True)
    values, indices = F.max_pool1d(x, 3, return_indices=True)
    assert np.isnan(values.detach().numpy()[0, 0, 0])
    assert indices.tolist() == [[[1, 4]]]
    values.backward(tj.tensor([[[7.0, 8.0]]]))
    assert x.grad.tolist() == [[[0, 7, 0, 0, 8, 0]]]


def test_the_first_of_equal_elements_wins() -> None:
    x = tj.zeros(1, 1, 4, 4, requires_grad=True)
    values, indices = F.max_pool2d(x, 2, return_indices=True)
    assert indices.tolist() == [[[[0, 2], [8, 10]]]]
    values.sum().backward()
    assert x.grad.sum() == 4
    assert x.grad[0, 0, ::2, ::2].sum() == 4


def test_overlapping_windows_add_up() -> None:
    x = tj.tensor([[[0.0, 9.0, 1.0, 2.0]]], requires_grad=True)
    F.max_pool1d(x, 2, stride=1).sum().backward()
    assert x.grad.tolist() == [[[0, 2, 0, 1]]]


def test_padding_never_wins() -> None:
    x = tj.full((1, 1, 3, 3), -math.inf)
    values, indices = F.max_pool2d(x, 3, stride=1, padding=1, return_indices=True)
    assert (values == -math.inf).all()
    assert indices.tolist() == [[[[0, 0, 1], [0, 0, 1], [3, 3, 4]]]]
    lowest = tj.full((1, 1, 2), tj.iinfo(tj.int64).min, dtype=tj.int64)
    assert F.max_pool1d(lowest, 2, 1, 1).tolist() == [[[tj.iinfo(tj.int64).min] * 3]]


def test_a_dilated_window_may_miss_a_short_input() -> None:
    x = tj.tensor([[[1.0, 2.0]]], requires_grad=True)
    y = F.max_pool1d(x, 2, dilation=3, padding=1)
    assert y.tolist() == [[[-math.inf]]]
    y.sum().backward()
    assert x.grad.shape == x.shape


def test_the_output_may_be_overwritten() -> None:
    x = tj.tensor([[[-1.0, -2.0, 3.0, 4.0]]], requires_grad=True)
    F.max_pool1d(x, 2).relu_().sum().backward()
    assert x.grad.tolist() == [[[0, 0, 0, 1]]]


def test_large_windows() -> None:
    x = tj.arange(400.0).reshape(1, 1, 20, 20).requires_grad_()
    values, indices = F.max_pool2d(x, 20, return_indices=True)
    assert (values.item(), indices.item()) == (399, 399)
    values.sum().backward()
    assert x.grad[0, 0, -1, -1] == 1


def test_blocks_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tj.tensor(np.random.default_rng(1).standard_normal((3, 2, 7, 6)))
    expected = [F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1)]
    monkeypatch.setattr(windows, "CPU_BLOCK", 1)
    for a, b in zip([F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1)], expected, strict=True):
        assert tj.equal(a, b)


def test_unpool_undoes_pool() -> None:
    x = tj.tensor(np.random.default_rng(2).permutation(32.0 + np.arange(32)).reshape(1, 2, 4, 4))
    values, indices = F.max_pool2d(x, 2, return_indices=True)
    back = F.max_unpool2d(values, indices, 2)
    assert back.shape == x.shape
    assert tj.equal(F.max_pool2d(back, 2), values)
    assert (back != 0).sum() == 8


@pytest.mark.parametrize("dtype", [tj.float16, tj.bfloat16])
def test_means_of_half_precision_do_not_overflow(dtype: Any) -> None:
    x = tj.full((1, 1, 64, 64), 30.0, dtype=dtype)
    for y in (F.avg_pool2d(x, 64), F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, 3)):
        assert y.dtype is dtype
        assert (y == 30).all()


def test_infinities_stay_in_their_windows() -> None:
    x = tj.tensor([[[math.inf, 1.0, 2.0, 3.0, 4.0]]])
    assert F.avg_pool1d(x, 2).tolist() == [[[math.inf, 2.5]]]
    assert F.adaptive_avg_pool1d(x, 3).tolist() == [[[math.inf, 2.0, 3.5]]]


def test_integers_are_divided_towards_zero() -> None:
    x = tj.tensor([[[-3, 0, 3, 2]]])
    assert F.avg_pool1d(x, 2).tolist() == [[[-1, 2]]]
    assert F.avg_pool1d(x, 2).dtype is tj.int64


def test_empty_batches() -> None:
    x = tj.zeros(0, 2, 4, 4, requires_grad=True)
    for y in (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 2), F.adaptive_max_pool2d(x, 2)):
        assert y.shape == (0, 2, 2, 2)
        y.sum().backward()
    assert x.grad.shape == x.shape


ones = tj.ones


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (
            lambda: F.max_pool2d(ones(1, 2, 4, 4), 5),
            RuntimeError,
            r"Given input size: \(2x4x4\). Calculated output size: \(2x0x0\). Output size is too small",
        ),
        (lambda: F.max_pool2d(ones(4, 4), 2), RuntimeError, r"Expected 3D or 4D \(batch mode\) tensor .* but got:\[4, 4\]"),
        (lambda: F.max_pool2d(ones(1, 2, 0, 4), 2), RuntimeError, "with optional 0 dim batch size"),
        (
            lambda: F.max_pool2d(ones(1, 2, 4, 4), 2, padding=2),
            RuntimeError,
            "pad should be at most half of effective kernel size",
        ),
        (lambda: F.max_pool2d(ones(1, 2, 4, 4), 2, padding=-1), RuntimeError, "pad must be non-negative"),
        (lambda: F.max_pool2d(ones(1, 2, 4, 4), 2, stride=0), RuntimeError, "stride should not be zero"),
        (lambda: F.max_pool2d(ones(1, 2, 4, 4), 0), RuntimeError, "kernel size should be greater than zero"),
        (lambda: F.max_pool2d(ones(1, 2, 4, 4), 2, dilation=0), RuntimeError, "dilation should be greater than zero"),
        (
            lambda: F.max_pool2d(ones(1, 2, 4, 4), (2, 2, 2)),
            RuntimeError,
            "kernel_size must either be a single int, or a tuple of 2",
        ),
        (lambda: F.max_pool2d(ones(1, 2, 4, 4).bool(), 2), NotImplementedError, "not implemented for 'Bool'"),
        (lambda: F.max_pool2d(3.0, 2), TypeError, "argument 'input' must be Tensor, not float"),
        (lambda: F.avg_pool2d(ones(1, 2, 4, 4), 2, divisor_override=0), RuntimeError, "divisor must be not zero"),
        (lambda: F.adaptive_avg_pool2d(ones(1, 2, 4, 4), -1), RuntimeError, "must be greater than or equal to 0"),
        (lambda: F.adaptive_avg_pool2d(ones(1, 2, 4, 4), (1, 2, 3)), RuntimeError, "output_size must be 2 numbers"),
        (lambda: F.adaptive_avg_pool2d(ones(1, 2, 4, 4).long(), 2), NotImplementedError, "not implemented for 'Long'"),
        (
            lambda: F.max_unpool2d(ones(1, 1, 2, 2), tj.zeros(1, 1, 2, 1).long(), 2),
            RuntimeError,
            "Expected shape of indices to be same as that of the input tensor",
        ),
        (lambda: F.max_unpool2d(ones(1, 1, 2, 2), ones(1, 1, 2, 2), 2), RuntimeError, "indices should be type int64"),
        (
            lambda: F.max_unpool2d(ones(1, 1, 2, 2), tj.zeros(1, 1, 2, 2).long(), 2, output_size=(9, 9)),
            ValueError,
            "dim 0 must be between 2 and 6",
        ),
    ],
)
def test_errors(call: Any, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        call()
