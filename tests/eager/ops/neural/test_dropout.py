"""Dropout: what is random about it, and what is not."""

from __future__ import annotations

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F


@pytest.fixture(autouse=True)
def seed() -> None:
    tj.manual_seed(3)


def test_drops_and_scales() -> None:
    x = tj.ones(100, 100)
    out = F.dropout(x, 0.25).numpy()
    assert set(np.unique(out)) == {0.0, np.float32(1 / 0.75)}
    assert 0.23 < (out == 0).mean() < 0.27


def test_gradient_by_the_same_mask() -> None:
    x = tj.ones(50, requires_grad=True)
    out = F.dropout(x, 0.5)
    out.backward(tj.full((50,), 3.0))
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), 3 * out.detach().numpy())


def test_keeps_only_a_mask() -> None:
    x = tj.ones(50, requires_grad=True)
    out = F.dropout(x * 1, 0.5)
    assert out.grad_fn is not None
    saved = [v for v in out.grad_fn.saved.values() if isinstance(v, tuple)]
    assert [v[0].dtype for v in saved] == [np.dtype(bool)]


def test_seeds() -> None:
    x = tj.ones(100)
    first, second = F.dropout(x), F.dropout(x)
    assert not first.equal(second)
    tj.manual_seed(3)
    assert F.dropout(x).equal(first)


@pytest.mark.parametrize("function", [F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout])
def test_nothing_to_do(function: object) -> None:
    assert callable(function)
    x = tj.ones(2, 3, 4)
    assert function(x, 0.5, training=False) is x
    assert function(x, 0.0, training=True) is x
    assert not function(x, 1.0, training=True).any()


@pytest.mark.parametrize("function", [F.dropout, F.alpha_dropout, F.feature_alpha_dropout])
def test_in_place(function: object) -> None:
    assert callable(function)
    x = tj.ones(20, 20, requires_grad=True)
    y = x * 1
    assert function(y, 0.5, training=True, inplace=True) is y
    tj.manual_seed(3)
    other = tj.ones(20, 20, requires_grad=True)
    expected = function(other, 0.5, training=True)
    assert y.equal(expected)
    y.sum().backward()
    expected.sum().backward()
    assert x.grad is not None and other.grad is not None and x.grad.equal(other.grad)


def test_whole_channels() -> None:
    for function, shape, batched in (
        (F.dropout1d, (30, 40, 5), True),
        (F.dropout1d, (40, 5), False),
        (F.dropout2d, (30, 40, 2, 3), True),
        (F.dropout3d, (30, 40, 1, 2, 3), True),
        (F.dropout3d, (40, 1, 2, 3), False),
    ):
        out = function(tj.ones(*shape), 0.5).numpy()
        channels = out.reshape(*shape[: 1 + batched], -1)
        assert (channels == channels[..., :1]).all()
        assert 0.2 < (channels[..., 0] == 0).mean() < 0.8


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = tj.randn(200, 200)
    out = F.alpha_dropout(x, 0.3, training=True)
    assert abs(out.mean().item()) < 0.03 and abs(out.var().item() - 1) < 0.03
    assert len(out.unique()) > 20000
    channels = F.feature_alpha_dropout(tj.randn(20, 30, 4), 0.5, training=True).numpy()
    constant = (channels == channels[..., :1]).all(-1)
    assert 0.4 < constant.mean() < 0.6


def test_errors() -> None:
    x = tj.ones(2, 3)
    for function in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout):
        with pytest.raises(ValueError, match=r"between 0 and 1, but got 1\.5"):
            function(x, 1.5)
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Long"):
        F.dropout(x.long())
    with pytest.raises(RuntimeError, match="Expected 2D or 3D input, but received a 1D input"):
        F.dropout1d(tj.ones(3))
    with pytest.raises(RuntimeError, match="requires at least 2 dimensions"):
        F.dropout2d(tj.ones(3))
    with pytest.raises(RuntimeError, match="requires at least 2 dimensions"):
        F.feature_alpha_dropout(tj.ones(3), training=True)
    with pytest.warns(UserWarning, match="Received a 2-D input"):
        F.dropout2d(x)
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        F.dropout([1.0])
