"""Triton kernels of rows that do not fit into registers: they are right, and read memory as seldom as can be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support import shadow
from support.codegen.programs import run, values

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tapejit[gpu]', on Linux")

from support.codegen import interpreted

LONG = 17001


@pytest.fixture
def seen(monkeypatch: Any) -> Iterator[shadow.Seen]:
    """Everything that is replayed is also run by kernels."""
    with interpreted.watched(monkeypatch) as found:
        yield found


def passes(function: Callable[[], Any], cols: int) -> list[int]:
    """Count how often each kernel that reads all of the first input, with rows of so many columns, reads it."""
    graphs = shadow.recorded(function)
    texts = [k.source for g in graphs for k in interpreted.Interpreted(g).kernels if k is not None]
    counts = [len(re.findall(rf"tl\.load\(x0 \+ \(c \+ r \* {cols}\)", text)) for text in texts]
    return [n for n in counts if n]


def test_softmax_of_long_rows(seen: Any) -> None:
    x = tj.from_numpy(values((3, LONG)) * 5)
    run(lambda: [F.softmax(x, 1), F.log_softmax(x, 1), x.logsumexp(1), F.softmax(x.double(), 1), F.softmax(x.half(), 1)])


def test_rows_with_numbers_that_are_not_finite(seen: Any) -> None:
    rows = np.full((9, LONG), -np.inf, np.float32)
    rows[0, 7000] = 1  # all but one
    rows[2:] = values((7, LONG))
    rows[2, 5], rows[3, [8, 4104]], rows[4, -1], rows[5, :5000] = np.nan, np.inf, np.inf, -np.inf
    rows[6, 5000:], rows[7, 1], rows[7, 2] = -np.inf, np.inf, np.nan
    rows[8] = np.linspace(-200, 200, LONG)  # each larger than all before
    x = tj.from_numpy(rows)
    run(lambda: [F.softmax(x, 1), F.log_softmax(x, 1), x.logsumexp(1), F.softmax(-x, 1), x.double().logsumexp(1)])


def test_cross_entropy_of_many_classes(seen: Any) -> None:
    seen.tolerance = 5
    x = tj.from_numpy(values((5, LONG))).requires_grad_()
    y = tj.tensor([3, 17000, -100, 0, 17])

    def function() -> Any:
        losses = [F.cross_entropy(x, y), F.cross_entropy(x, y, reduction="sum", label_smoothing=0.1)]
        return [losses, tj.autograd.grad(losses[0] + losses[1], [x])]

    run(function)


def cross_entropy(x: Any, y: Any) -> Any:
    loss = F.cross_entropy(x, y)
    return loss, tj.autograd.grad(loss, [x])


def test_how_often_logits_are_read() -> None:
    """Once for the loss, and once more for the gradient, in the same kernel."""
    x = tj.from_numpy(values((64, 50304))).requires_grad_()
    y = tj.from_numpy(np.random.default_rng(0).integers(0, 50304, 64))
    assert passes(lambda: F.cross_entropy(x.detach(), y), 50304) == [1]
    assert passes(lambda: cross_entropy(x, y), 50304) == [2]
    assert passes(lambda: F.softmax(x.detach(), 1), 50304) == [2]
    assert passes(lambda: x.detach().logsumexp(1), 50304) == [1]


def norms(cols: int) -> list[Callable[[], Any]]:
    """Forward and backward passes of layer norm and RMS norm."""
    x, g = (tj.from_numpy(values((64, cols))).requires_grad_(k == 0) for k in range(2))
    w, b = (tj.from_numpy(values((cols,))).requires_grad_() for _ in range(2))
    return [
        lambda: F.layer_norm(x.detach(), (cols,), w.detach(), b.detach()),
        lambda: tj.autograd.grad(F.layer_norm(x, (cols,), w, b), [x, w, b], g),
        lambda: F.rms_norm(x.detach(), (cols,), w.detach()),
        lambda: tj.autograd.grad(F.rms_norm(x, (cols,), w), [x, w], g),
    ]


@pytest.mark.parametrize("cols", [384, 8192])
def test_norms_are_one_kernel_and_the_stage_across_rows(cols: int) -> None:
    for i, function in enumerate(norms(cols)):
        assert passes(function, cols) == [1]
        names = [x.name for g in shadow.recorded(function) for k in interpreted.Interpreted(g).kernels if k for x in k.kernels]
        assert len(names) == (2 if i % 2 else 1) and (i % 2 == 0 or names[1].endswith("_columns")), names


def test_norms_of_rows_that_just_fit_into_registers(seen: Any) -> None:
    x, w = tj.from_numpy(values((3, 8100))).requires_grad_(), tj.from_numpy(values((8100,))).requires_grad_()
    seen.tolerance = 5
    run(lambda: [F.layer_norm(x, (8100,), w), tj.autograd.grad(F.rms_norm(x, (8100,), w).cos().sum(), [x, w])])
