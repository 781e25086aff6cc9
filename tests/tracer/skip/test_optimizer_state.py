"""Steps of every optimizer without Python: numbers that change with each step, and settings that somebody changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn
from tapejit.optim import lr_scheduler

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p, **s: tj.optim.SGD(p, **{"lr": 0.1, "momentum": 0.9, **s}),
    "Adam": tj.optim.Adam,
    "RMSprop": tj.optim.RMSprop,
    "Lion": tj.optim.Lion,
    "Rprop": tj.optim.Rprop,
    "Adadelta": tj.optim.Adadelta,
    "Adagrad": lambda p, **s: tj.optim.Adagrad(p, lr_decay=0.1, **s),
    "Adamax": tj.optim.Adamax,
    "NAdam": tj.optim.NAdam,
    "RAdam": lambda p, **s: tj.optim.RAdam(p, betas=(0.9, 0.99), **s),
    "ASGD": lambda p, **s: tj.optim.ASGD(p, t0=4, **s),
    "Muon": tj.optim.Muon,
}
FORETOLD = ["Adagrad", "Adamax", "NAdam", "RAdam", "ASGD", "Muon"]
CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda opt: None,
    "the learning rate": lambda opt: opt.param_groups[0].update(lr=opt.param_groups[0]["lr"] * 0.5),
    "several settings": lambda opt: [g.update(lr=0.003, weight_decay=0.25) for g in opt.param_groups],
    "a switch": lambda opt: [g.update(maximize=True) for g in opt.param_groups if "maximize" in g],
    "somebody looks": lambda opt: opt.state_dict(),
    "a checkpoint": lambda opt: opt.load_state_dict(copy.deepcopy(opt.state_dict())),
    "a number by hand": lambda opt: [s.update(step=s["step"] + 3) for s in opt.state.values() if "step" in s],
    "a parameter less": lambda opt: opt.param_groups[0]["params"].pop(),
}


class Side:
    """A model of two matrices, its optimizer and its step."""

    def __init__(self, compiled: bool, name: str, groups: bool = False, **options: Any) -> None:
        tj.manual_seed(1)
        self.model = model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 1, bias=False))
        params: Any = list(model.parameters())
        if groups:
            params = [{"params": params[:1]}, {"params": params[1:], "lr": 0.01}]
        self.optimizer = opt = OPTIMIZERS[name](params)

        def step(x, y):
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss

        self.step: Any = tj.compile(step, **options) if compiled else step

    def everything(self) -> list[Any]:
        found: list[Any] = [[p.tolist(), p.grad.tolist(), p._version] for p in self.model.parameters()]
        saved = self.optimizer.state_dict()
        found += [[k, v.tolist() if isinstance(v, tj.Tensor) else v] for s in saved["state"].values() for k, v in s.items()]
        return [*found, repr(saved["param_groups"])]


def batches(n: int) -> list[tuple[Any, Any]]:
    numbers = np.random.default_rng(0)
    pairs = [(numbers.normal(size=(5, 3)), numbers.normal(size=(5, 1))) for _ in range(n)]
    return [(tj.tensor(x, dtype=tj.float32), tj.tensor(y, dtype=tj.float32)) for x, y in pairs]


def both(name: str, between: Callable[[int, Side], Any], steps: int = 14, **options: Any) -> Side:
    """Eagerly and compiled, bit for bit; the compiled side."""
    results = []
    for compiled in (False, True):
        side = Side(compiled, name, **options)
        losses = []
        for i, batch in enumerate(batches(steps)):
            between(i, side)
            losses.append(side.step(*batch))
        results.append(([loss.item() for loss in losses], side.everything()))
    assert results[0] == results[1]
    return side


def skipped(side: Side) -> int:
    return sum(t.skipped for t in side.step.traces)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_happens_between_steps_is_seen(name: str, change: str) -> None:
    side = both(name, lambda i, side: CHANGES[change](side.optimizer) if i == 9 else None, pure=True)
    assert skipped(side) >= 5


@pytest.mark.parametrize("name", FORETOLD)
def test_nobody_has_promised_anything(name: str) -> None:
    side = both(name, lambda i, side: None, steps=20)
    assert skipped(side) >= 4


@pytest.mark.parametrize("name", [*FORETOLD, "Adadelta", "Rprop"])
def test_a_learning_rate_for_each_step_and_each_group(name: str) -> None:
    schedulers: dict[Side, Any] = {}

    def between(i: int, side: Side) -> None:
        if i == 0:
            schedulers[side] = lr_scheduler.ExponentialLR(side.optimizer, 0.8)
        else:
            schedulers[side].step()

    side = both(name, between, groups=True, pure=True)
    assert skipped(side) >= (0 if name == "Rprop" else 5)  # whose learning rate is no number of its ops


@pytest.mark.parametrize("name", ["NAdam", "Adagrad", "Muon"])
def test_a_setting_that_becomes_a_tensor_or_a_whole_number(name: str) -> None:
    def between(i: int, side: Side) -> None:
        if i in (6, 9):
            side.optimizer.param_groups[0]["lr"] = tj.tensor(0.01) if i == 6 else 1

    assert skipped(both(name, between, pure=True)) >= 3


def test_parameters_of_different_ages() -> None:
    """One of them joins later: the rates of one group differ."""

    def between(i: int, side: Side) -> None:
        side.model[0].weight.requires_grad_(i >= 5)

    for name in ("Adagrad", "NAdam", "RAdam"):
        assert skipped(both(name, between, steps=18, pure=True)) >= 3


def test_a_step_of_ones_own_is_not_skipped() -> None:
    class Slower(tj.optim.Adagrad):
        @staticmethod
        def compute_hyperparameters(settings, *state):
            numbers, after, variant = tj.optim.Adagrad.compute_hyperparameters(settings, *state)
            states.append(state)
            return (numbers[0] / 2, *numbers[1:]), after, variant

    states: list[Any] = []
    OPTIMIZERS["Slower"] = Slower
    try:
        both("Slower", lambda i, side: None, steps=8, pure=True)
    finally:
        del OPTIMIZERS["Slower"]
    assert len(states) == 2 * 8 * 2


def test_a_method_that_is_replaced_in_between(monkeypatch) -> None:
    """What the library computes is only believed while it is the library's."""
    right = tj.optim.Adagrad.compute_hyperparameters

    def between(i: int, side: Side) -> None:
        patched = staticmethod(lambda settings, *rest: ((0.5, *right(settings, *rest)[0][1:]), *right(settings, *rest)[1:]))
        monkeypatch.setattr(tj.optim.Adagrad, "compute_hyperparameters", staticmethod(right) if i < 8 else patched)

    both("Adagrad", between, pure=True)
