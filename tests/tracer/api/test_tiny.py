"""The public API in a few seconds: if one of these fails, nothing else needs to be read first."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn, optim


def test_tensors() -> None:
    x = tj.tensor([[1, 2], [3, 4]])
    assert x.shape == (2, 2) and x.dtype == tj.int64 and x.device == tj.device("cpu")
    assert tj.Tensor([1, 2]).dtype == tj.float32
    assert (x + 0.5).tolist() == [[1.5, 2.5], [3.5, 4.5]]
    assert (2**x).tolist() == [[2, 4], [8, 16]]
    assert x[:, 1].tolist() == [2, 4] and x[x > 2].tolist() == [3, 4]
    assert x.sum().item() == 10 and x.float().mean(0).tolist() == [2, 3]
    assert (x @ x).tolist() == [[7, 10], [15, 22]]
    assert repr(tj.tensor([1.0, 2.5])) == "tensor([1.0000, 2.5000])"


def test_numpy_both_ways() -> None:
    array = np.zeros(3)
    x = tj.from_numpy(array)
    x[0] = 1
    array[1] = 2
    assert x.tolist() == [1, 2, 0] and x.numpy() is not None and np.asarray(x).sum() == 3


def test_gradients() -> None:
    x = tj.tensor(3.0, requires_grad=True)
    y = x**3 + tj.sin(x)
    y.backward()
    assert x.grad.item() == pytest.approx(27 + math.cos(3))
    (first,) = tj.autograd.grad(x**4, x, create_graph=True)
    (second,) = tj.autograd.grad(first, x)
    assert second.item() == pytest.approx(108)


def test_no_grad_and_detach() -> None:
    x = tj.ones(2, requires_grad=True)
    with tj.no_grad():
        assert not (x * 2).requires_grad
    assert not (x * 2).detach().requires_grad and (x * 2).requires_grad


def test_views_and_in_place() -> None:
    x = tj.zeros(2, 3)
    x.T[0] += 1
    assert x.tolist() == [[1, 0, 0], [1, 0, 0]]
    y = tj.ones(3, requires_grad=True) * 2
    y[1:].mul_(5)
    assert y.tolist() == [2, 10, 10]


def test_random_numbers_come_again() -> None:
    tj.manual_seed(1)
    x = tj.randn(3)
    tj.manual_seed(1)
    assert tj.equal(x, tj.randn(3))


def test_a_network_learns() -> None:
    tj.manual_seed(0)
    x = tj.randn(64, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(100):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.15
    assert (model(x).argmax(1) == y).float().mean().item() > 0.9
    assert set(model.state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_an_error_is_a_sentence() -> None:
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(3\) must match the size of tensor b \(4\)"):
        tj.ones(2, 3) + tj.ones(4)
