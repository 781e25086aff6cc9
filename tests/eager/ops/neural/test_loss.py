"""Losses beyond what samples say: extreme values, old arguments, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F

rng = np.random.default_rng(0)


def floats(*shape: int) -> tj.Tensor:
    return tj.tensor(rng.standard_normal(shape))


# ---- class indices


def test_large_logits() -> None:
    x = tj.tensor([[1e4, -1e4, 0.0], [-math.inf, 0.0, 1.0]], requires_grad=True)
    loss = F.cross_entropy(x, tj.tensor([1, 2]))
    assert loss.item() == pytest.approx((2e4 + math.log1p(math.exp(-1))) / 2)
    loss.backward()
    assert x.grad is not None
    p = 1 / (1 + math.e)
    np.testing.assert_allclose(x.grad.numpy(), [[0.5, -0.5, 0], [0, p / 2, -p / 2]], rtol=1e-6)


def test_logits_may_be_overwritten() -> None:
    x = floats(3, 4).requires_grad_() * 1
    loss = F.cross_entropy(x, tj.tensor([0, 1, 2]))
    x.zero_()
    loss.backward()


def test_targets_out_of_bounds() -> None:
    x = floats(2, 3)
    for name in ("cross_entropy", "nll_loss"):
        loss = getattr(F, name)
        with pytest.raises(IndexError, match=r"Target 7 is out of bounds\."):
            loss(x, tj.tensor([0, 7]))
        with pytest.raises(IndexError, match=r"Target -1 is out of bounds\."):
            loss(x, tj.tensor([-1, 0]))
        assert loss(x, tj.tensor([0, -1]), ignore_index=-1).isfinite()


@pytest.mark.filterwarnings("ignore")
def test_all_ignored() -> None:
    x, target = floats(2, 3), tj.tensor([-100, -100])
    assert F.cross_entropy(x, target).isnan() and F.nll_loss(x, target).isnan()
    assert F.cross_entropy(x, target, reduction="sum").item() == 0
    assert F.cross_entropy(x, target, reduction="none").tolist() == [0, 0]
    assert F.cross_entropy(tj.zeros(0, 3), tj.zeros(0, dtype=tj.int64)).isnan()


def test_ignored_rows_get_no_gradient() -> None:
    x = floats(3, 4).requires_grad_()
    F.cross_entropy(x, tj.tensor([1, 2, 0]), ignore_index=2, label_smoothing=0.1).backward()
    assert x.grad is not None and not x.grad[1].any() and x.grad[0].all()


def test_class_shapes_and_types() -> None:
    x = floats(2, 3)
    with pytest.raises(ValueError, match=r"batch_size \(2\) to match target batch_size \(3\)"):
        F.cross_entropy(x, tj.tensor([0, 1, 2]))
    with pytest.raises(RuntimeError, match=r"Expected target size \[2, 4\], got \[2, 3\]"):
        F.cross_entropy(floats(2, 3, 4), tj.zeros(2, 3, dtype=tj.int64))
    with pytest.raises(RuntimeError, match="Long or Byte, but got Int"):
        F.cross_entropy(x, tj.tensor([0, 1], dtype=tj.int32))
    with pytest.raises(RuntimeError, match="multi-target not supported"):
        F.cross_entropy(x, floats(2, 4))
    with pytest.raises(RuntimeError, match="all 3 classes or no classes"):
        F.cross_entropy(x, tj.tensor([0, 1]), floats(2))
    with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'weight'"):
        F.cross_entropy(x, tj.tensor([0, 1]), floats(3).requires_grad_())
    with pytest.raises(RuntimeError, match=r"between 0\.0 and 1\.0\. Got: 2\.0"):
        F.cross_entropy(x, tj.tensor([0, 1]), label_smoothing=2.0)
    with pytest.raises(RuntimeError, match="ignore_index is not supported for floating point target"):
        F.cross_entropy(x, x, ignore_index=1)
    assert F.cross_entropy(x, tj.tensor([0, 1], dtype=tj.uint8)).ndim == 0
    assert F.cross_entropy(floats(3), tj.tensor([1]), reduction="none").shape == (1,)
    assert F.cross_entropy(floats(3), tj.tensor(1), reduction="none").shape == ()


def test_log_probabilities_and_cross_entropy_agree() -> None:
    x, target, weight = floats(4, 3, 2), tj.tensor(rng.integers(0, 3, (4, 2))), floats(3).abs()
    a = F.cross_entropy(x, target, weight)
    b = F.nll_loss(F.log_softmax(x, 1), target, weight)
    assert a.item() == pytest.approx(b.item(), rel=1e-12)


# ---- reductions


def test_reductions() -> None:
    x, y = floats(2, 3), floats(2, 3)
    for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss):
        with pytest.raises(ValueError, match="median is not a valid value for reduction"):
            loss(x, y, reduction="median")
    with pytest.raises(ValueError, match="is not a valid value for reduction"):
        F.cross_entropy(x, tj.tensor([0, 1]), reduction="median")


def test_old_arguments() -> None:
    x, y = floats(2, 3), floats(2, 3)
    for old, new in (({"reduce": False}, "none"), ({"size_average": False}, "sum"), ({"size_average": True}, "mean")):
        with pytest.warns(UserWarning, match=f"please use reduction='{new}'"):
            found = F.mse_loss(x, y, **old)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found.numpy(), F.mse_loss(x, y, reduction=new).numpy())


def test_broadcasting_warns() -> None:
    x, y = floats(2, 3), floats(3)
    for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss):
        with pytest.warns(UserWarning, match="different to the input size"):
            assert loss(x, y, reduction="none").shape == (2, 3)
    with pytest.raises(ValueError, match="same size"):
        F.mse_loss(x, x, weight=floats(3))
    with pytest.warns(UserWarning, match="'batchmean' divides"):
        F.kl_div(x, x.exp())


def test_dtypes() -> None:
    x, y = floats(2).float(), floats(2)
    assert F.mse_loss(x, y).dtype is tj.float64
    with pytest.raises(NotImplementedError, match="'Long'"):
        F.mse_loss(tj.tensor([1]), tj.tensor([2]))
    assert F.mse_loss(x.half(), x.half()).dtype is tj.float16


# ---- probabilities


@pytest.mark.filterwarnings("ignore")
def test_binary_cross_entropy_at_the_ends() -> None:
    x = tj.tensor([0.0, 1.0, 0.0, 1.0], requires_grad=True)
    target = tj.tensor([0.0, 1.0, 1.0, 0.0])
    loss = F.binary_cross_entropy(x, target, reduction="none")
    assert loss.tolist() == [0, 0, 100, 100]
    loss.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [0, 0, -1e12, 1e12])
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        F.binary_cross_entropy(tj.tensor([1.5]), tj.tensor([1.0]))
    with pytest.raises(ValueError, match="different to the input size"):
        F.binary_cross_entropy(tj.tensor([0.5, 0.5]), tj.tensor([1.0]))


def test_binary_cross_entropy_of_large_logits() -> None:
    x = tj.tensor([1e4, -1e4, 1e4], requires_grad=True)
    loss = F.binary_cross_entropy_with_logits(x, tj.tensor([1.0, 0.0, 0.0]), reduction="none")
    assert loss.tolist() == [0, 0, 1e4]
    loss.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="must be the same as input size"):
        F.binary_cross_entropy_with_logits(floats(2, 3), floats(3))


def test_zero_probabilities() -> None:
    x = tj.tensor([0.5, -1.0])
    assert F.kl_div(x, tj.tensor([0.0, 1.0]), reduction="none").tolist() == [0, 1]


def test_gaussian() -> None:
    x, y = floats(2, 3), floats(2, 3)
    var = tj.zeros(2, 3, dtype=tj.float64, requires_grad=True)
    loss = F.gaussian_nll_loss(x, y, var, eps=0.5)
    assert loss.item() == pytest.approx(F.gaussian_nll_loss(x, y, 0.5).item())
    loss.backward()
    assert var.grad is not None and var.grad.all()  # as if eps were not there
    with pytest.raises(ValueError, match="negative entry"):
        F.gaussian_nll_loss(x, y, tj.tensor([-1.0, 1.0]))
    with pytest.raises(ValueError, match="negative entry"):
        F.gaussian_nll_loss(x, y, -1.0)
    with pytest.raises(ValueError, match="var is of incorrect size"):
        F.gaussian_nll_loss(x, y, floats(4).abs())


# ---- margins


def test_margin_errors() -> None:
    x = floats(2, 3)
    with pytest.raises(RuntimeError, match="All input tensors should have same dimension"):
        F.margin_ranking_loss(floats(3), floats(3), x)
    with pytest.raises(RuntimeError, match="0D target tensor expects 1D input tensors"):
        F.cosine_embedding_loss(x, x, tj.tensor(1))
    with pytest.raises(RuntimeError, match="anchor 2D, positive 1D, and negative 2D"):
        F.triplet_margin_loss(x, floats(3), x)
    with pytest.raises(ValueError, match="margin must be greater than 0, got -1"):
        F.triplet_margin_loss(x, x, x, margin=-1)
    with pytest.raises(ValueError, match="only p == 1 and p == 2 supported"):
        F.multi_margin_loss(x, tj.tensor([0, 1]), p=3)
    with pytest.raises(RuntimeError, match="inconsistent weight size"):
        F.multi_margin_loss(x, tj.tensor([0, 1]), weight=floats(2))
    with pytest.raises(RuntimeError, match="out of bounds"):
        F.multi_margin_loss(x, tj.tensor([0, 4]))
    with pytest.raises(RuntimeError, match="'target' is out of range"):
        F.multilabel_margin_loss(x, tj.tensor([[0, 3, 1], [1, 2, -1]]))
    with pytest.raises(RuntimeError, match="non-positive values for delta"):
        F.huber_loss(x, x, delta=0.0)
    with pytest.raises(RuntimeError, match="negative values for beta"):
        F.smooth_l1_loss(x, x, beta=-1.0)


def test_triplets_with_another_distance() -> None:
    a, p, n = floats(3, 4), floats(3, 4), floats(3, 4)
    found = F.triplet_margin_with_distance_loss(a, p, n, distance_function=lambda x, y: (x - y).abs().sum(-1), margin=0.5)
    assert found.item() == pytest.approx(F.triplet_margin_loss(a, p, n, margin=0.5, p=1, eps=0.0).item())


def test_softly_margined_extremes() -> None:
    assert F.soft_margin_loss(tj.tensor([1e4, -1e4]), tj.tensor([1.0, 1.0]), reduction="none").tolist() == [0, 1e4]


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_ignored_rows_count_for_nothing_whatever_they_hold(loss: Any, smoothing: float) -> None:
    """Padding often does hold NaN: the softmax of a row that is masked altogether."""
    extra = {"label_smoothing": smoothing} if loss is F.cross_entropy else {}
    x = tj.tensor([[tj.nan, 1.0, 2.0], [0.3, -0.2, 0.1], [tj.inf, 0.0, 0.0]], requires_grad=True)
    alone = x.detach()[1:2].requires_grad_()
    target = tj.tensor([-100, 2, -100])
    for reduction in ("mean", "sum"):
        x.grad = alone.grad = None
        found = loss(x, target, reduction=reduction, **extra)
        expected = loss(alone, target[1:2], reduction=reduction, **extra)
        assert found.item() == pytest.approx(expected.item())
        found.backward()
        expected.backward()
        assert x.grad[0].tolist() == x.grad[2].tolist() == [0, 0, 0]
        assert x.grad[1].tolist() == pytest.approx(alone.grad[0].tolist())
    assert loss(x, target, reduction="none", **extra)[::2].tolist() == [0, 0]
    wide = x.detach().T[None].requires_grad_()  # (N, C, S)
    loss(wide, target[None], **extra).backward()
    assert wide.grad[0, :, 0].tolist() == wide.grad[0, :, 2].tolist() == [0, 0, 0]
