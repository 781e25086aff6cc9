"""Calls without Python that have nothing unusual about them are one written-out function, and anything unusual is noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn
from tapejit.tracer.guards.plain_values import is_non_user_module
from tapejit.tracer.guards.reachable_state import ReachableState
from tapejit.tracer.skip.skipped_call import SkippedCall

OPTIMIZERS = {
    "sgd": lambda p: tj.optim.SGD(p, lr=0.1),
    "momentum": lambda p: tj.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: tj.optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: tj.optim.Adagrad(p, lr=0.05, lr_decay=0.1),  # this one and those below compute numbers at each step
    "nadam": lambda p: tj.optim.NAdam(p, lr=0.01),
    "asgd": lambda p: tj.optim.ASGD(p, lr=0.05, lambd=0.1, t0=3),
}


def training(optimizer: str) -> tuple[Any, Any, Any]:
    tj.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    stepping = OPTIMIZERS[optimizer](model.parameters())

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        stepping.zero_grad()
        loss.backward()
        stepping.step()
        return loss

    return model, stepping, step


def batches(count: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [(tj.tensor(rng.standard_normal((5, 3), np.float32)), tj.tensor(rng.integers(0, 2, 5))) for _ in range(count)]


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("backend", ["plain", "llvm"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_usual_way_is_taken(optimizer: str, backend: str, pure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the program is ready, no call goes the general way, and all is as in eager mode."""
    data = batches(40)
    eager_model, _, eager_step = training(optimizer)
    expected = [eager_step(*batch).item() for batch in data]
    model, _, step = training(optimizer)
    compiled = tj.compile(step, pure=pure, backend=backend)
    losses = [compiled(*batch) for batch in data[:25]]
    assert compiled.skipped_calls and compiled.skipped_calls[0].fast_path is not None
    general = SkippedCall.run

    def never(self: Any, *given: Any) -> Any:
        raise AssertionError("the general way was taken")

    monkeypatch.setattr(SkippedCall, "run", never)
    losses += [compiled(*batch) for batch in data[25:]]
    monkeypatch.setattr(SkippedCall, "run", general)
    np.testing.assert_allclose([x.item() for x in losses], expected, rtol=1e-4)
    for mine, theirs in zip(model.parameters(), eager_model.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(mine.grad.numpy(), theirs.grad.numpy(), rtol=1e-3, atol=1e-6)


def test_the_memory_of_gradients_that_were_looked_at_is_not_taken_again() -> None:
    """Who has had an array may have changed its form."""
    model, _, step = training("sgd")
    compiled = tj.compile(step, pure=True, backend="llvm")
    data = batches(1)[0]
    for _ in range(20):
        compiled(*data)
    weight = model[0].weight
    kept = weight.grad
    before = kept.numpy().copy()
    compiled(*data)
    assert np.array_equal(kept.numpy(), before)  # a later call did not write into it
    array = weight.grad.numpy()
    array.resize((12,), refcheck=False)
    del array, kept
    for _ in range(3):
        compiled(*data)
        assert weight.grad.shape == (4, 3) and weight.grad.numpy().shape == (4, 3)


def test_methods_that_the_package_shows_are_the_librarys() -> None:
    """Those of tensors say that they are from `tapejit`, and what they are made of is not among the names to be watched."""
    assert (
        is_non_user_module("tapejit")
        and is_non_user_module("tapejit.eager.core.op")
        and not is_non_user_module("tapejit_scripts")
    )
    assert not ReachableState(lambda x: x, tj.Tensor.mean).names
