"""Nests with less arithmetic: a softmax's exponentials are computed once, and sums of one element are that element."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support import shadow
from tapejit.codegen.llvm.build import NativeBuild


@pytest.fixture
def seen(monkeypatch: Any) -> Any:
    with shadow.watching(monkeypatch) as found:
        yield found


def loops(function: Any, *args: Any) -> str:
    """The only nest with an exponential."""
    (graph, *_) = shadow.recorded(function, *args)
    (found,) = [str(x.nest) for x in NativeBuild(graph, 100).steps if "exp(" in str(x.nest)]
    return found


def slope_of_cross_entropy(x: Any, y: Any) -> Any:
    x.grad = None
    loss = F.cross_entropy(x, y)
    loss.backward()
    return loss, x.grad


def test_the_gradient_of_cross_entropy_has_one_exponential() -> None:
    x, y = tj.randn(40, 100).requires_grad_(), tj.arange(40)
    found = loops(slope_of_cross_entropy, x, y)
    largest, added, stored = found.split("    for c in range(100):")[1:]
    assert "exp(" not in largest
    assert re.findall(r"exp\(sub\(x0\[c \+ 100\*r\], \w+\)\)", added) == re.findall(r"exp\([^)]*\)\)", stored)  # which is kept
    assert "eq(" not in largest + added  # which class is right is asked where the slope is stored, and not for sums


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax, lambda x, dim: F.log_softmax(x, dim).exp()])
def test_rows_of_all_kinds(seen: Any, function: Any) -> None:
    inf, nan = float("inf"), float("nan")
    rows = np.random.default_rng(0).uniform(-5, 5, (12, 37)).astype(np.float32)
    rows[1, 3], rows[2, 4], rows[3], rows[4, :5], rows[5] = inf, nan, -inf, -inf, 1e30
    rows[6], rows[7, 0], rows[8] = -1e30, 200.0, np.linspace(-200, 0, 37)
    x = tj.tensor(rows)
    compiled = tj.compile(lambda: [function(x, 1), function(x, 0)])
    for _ in range(3):
        compiled()


def test_shares_of_sums_that_are_not_shifted_stay_what_they_are() -> None:
    """Without the largest element, the total may overflow, where its logarithm does not change what comes out."""
    x = tj.tensor([[100.0, 1.0, 2.0], [-200.0, -200.0, -200.0]])
    function = lambda x: (x - x.exp().sum(1, keepdim=True).log()).exp()
    compiled = tj.compile(function, backend="llvm")
    for _ in range(4):
        found = compiled(x)
    assert np.array_equal(found.numpy(), function(x).numpy(), equal_nan=True)
    assert found[0].tolist() == [0.0, 0.0, 0.0]
    assert found[1].tolist() == [float("inf")] * 3


@pytest.mark.parametrize("classes", [3, 16, 40])
def test_sums_of_one_element(seen: Any, classes: int) -> None:
    """Also where no element is meant, and of zeros with a sign."""
    which = tj.tensor([0, classes - 1, -1, classes, 2, 10**12])
    value = tj.tensor([1.0, -0.0, 3.0, 4.0, float("nan"), 5.0])
    x = tj.randn(6, classes)

    def function() -> Any:
        ones = tj.where(which[:, None] == tj.arange(classes), value[:, None], 0.0)
        return ones.sum(1), (x - ones.sum(1, keepdim=True)) * x.sum(1, keepdim=True)

    compiled = tj.compile(function)
    for _ in range(3):
        total, _ = compiled()
    assert total.tolist()[:4] == [1.0, 0.0, 0.0, 0.0]
    assert np.signbit(total.numpy()[1]) == np.signbit(function()[0].numpy()[1])


def test_ignored_classes_and_weights(seen: Any) -> None:
    x, y = tj.randn(12, 20).requires_grad_(), tj.tensor([0, 5, -100, 19] * 3)
    weight = tj.rand(20)

    def step() -> Any:
        x.grad = None
        loss = F.cross_entropy(x, y, weight=weight, label_smoothing=0.1) + F.cross_entropy(x, y)
        loss.backward()
        return loss, x.grad

    compiled = tj.compile(step)
    for _ in range(3):
        compiled()
