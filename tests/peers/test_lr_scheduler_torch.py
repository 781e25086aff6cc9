"""Learning-rate schedulers in PyTorch and here: the same rates and momenta, to the last bit, over 50 steps."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import torch

SCHEDULES: dict[str, Any] = {
    "lambda": lambda s, o: s.LambdaLR(o, [lambda e: 0.9**e, lambda e: 1 / (e + 1)]),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda e: 0.95),
    "step": lambda s, o: s.StepLR(o, 7, 0.3),
    "milestones": lambda s, o: s.MultiStepLR(o, [3, 10, 10, 30], 0.5),
    "constant": lambda s, o: s.ConstantLR(o, 0.3, 12),
    "linear": lambda s, o: s.LinearLR(o, 0.1, 0.8, 20),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.93),
    "polynomial": lambda s, o: s.PolynomialLR(o, 30, 2.5),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, 13, 0.001),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 5, 2, 0.001),
    "cyclic": lambda s, o: s.CyclicLR(o, 0.001, 0.1, 7),
    "cyclic triangular2": lambda s, o: s.CyclicLR(o, [0.001, 0.01], [0.1, 0.2], 7, 4, "triangular2"),
    "cyclic exp_range": lambda s, o: s.CyclicLR(o, 0.001, 0.1, 7, mode="exp_range", gamma=0.97, cycle_momentum=False),
    "cyclic by function": lambda s, o: s.CyclicLR(o, 0.001, 0.1, 7, scale_fn=lambda x: 1 / (x + 1), scale_mode="iterations"),
    "one cycle": lambda s, o: s.OneCycleLR(o, 0.1, 60),
    "one cycle linear": lambda s, o: s.OneCycleLR(
        o, [0.1, 0.2], epochs=6, steps_per_epoch=10, anneal_strategy="linear", three_phase=True
    ),
    "sequence": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, 1, 10), s.CosineAnnealingLR(o, 20), s.ExponentialLR(o, 0.9)], [10, 30]
    ),
    "chain": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 10), s.ExponentialLR(o, 0.9)]),
    "sequence in a chain": lambda s, o: s.ChainedScheduler(
        [s.SequentialLR(o, [s.ConstantLR(o, 0.5, 4), s.StepLR(o, 5)], [8]), s.ExponentialLR(o, 0.95)]
    ),
}


def optimizer(lib: Any, kind: str) -> Any:
    groups = [{"params": [lib.zeros(2, requires_grad=True)]}, {"params": [lib.zeros(3, requires_grad=True)], "lr": 0.02}]
    return getattr(lib.optim, kind)(groups, lr=0.1)


def history(lib: Any, kind: str, make: Any, resume: int | None) -> tuple[list[Any], set[str]]:
    o = optimizer(lib, kind)
    s = make(lib.optim.lr_scheduler, o)
    seen = []
    for i in range(50):
        seen.append((s.get_last_lr(), [(g["lr"], g.get("momentum"), g.get("betas")) for g in o.param_groups]))
        o.step()
        s.step()
        if i == resume:
            saved = copy.deepcopy(s.state_dict()), o.state_dict()
            o = optimizer(lib, kind)
            s = make(lib.optim.lr_scheduler, o)
            s.load_state_dict(saved[0])
            o.load_state_dict(saved[1])
    return seen, set(s.state_dict())


@pytest.mark.parametrize("resume", [None, 23])
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_fifty_steps(name: str, kind: str, resume: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mine, theirs = (history(lib, kind, SCHEDULES[name], resume) for lib in (tj, torch))
    assert mine == theirs


@pytest.mark.parametrize("options", [(0.05, 8), ([0.05, 0.01], 0, "linear"), (0.01, 20, "linear")])
def test_weight_averaging(options: Any) -> None:
    found = []
    for lib in (tj, torch):
        o = optimizer(lib, "SGD")
        s = lib.optim.swa_utils.SWALR(o, *options)
        rates = []
        for _ in range(50):
            rates.append(s.get_last_lr())
            o.step()
            s.step()
        found.append((rates, set(s.state_dict())))
    assert found[0] == found[1]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
def test_plateau(mode: str, threshold_mode: str) -> None:
    found = []
    for lib in (tj, torch):
        o = optimizer(lib, "SGD")
        s = lib.optim.lr_scheduler.ReduceLROnPlateau(
            o, mode, 0.5, 2, 0.01, threshold_mode, cooldown=2, min_lr=[0.01, 0.001], eps=1e-3
        )
        rng = np.random.default_rng(0)
        seen = []
        for _ in range(50):
            s.step(rng.normal())
            seen.append((s.get_last_lr(), s.num_bad_epochs, s.best, s.cooldown_counter))
        found.append((seen, s.state_dict()))
    assert found[0] == found[1]


def test_states_travel_both_ways() -> None:
    for name in ("step", "cosine", "cyclic", "one cycle", "sequence", "restarts"):
        make = SCHEDULES[name]
        for first, second in ((tj, torch), (torch, tj)):
            a, b = optimizer(first, "SGD"), optimizer(second, "SGD")
            s, t = make(first.optim.lr_scheduler, a), make(second.optim.lr_scheduler, b)
            for _ in range(7):
                a.step()
                s.step()
            t.load_state_dict(copy.deepcopy(s.state_dict()))
            b.load_state_dict(a.state_dict())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(10):
                    s.step()
                    t.step()
            assert s.get_last_lr() == t.get_last_lr(), name


WARNINGS: dict[str, Any] = {
    "order": lambda lib, o: lib.optim.lr_scheduler.StepLR(o, 3).step(),
    "epoch": lambda lib, o: (s := lib.optim.lr_scheduler.StepLR(o, 3), o.step(), s.step(2)),
    "get_lr": lambda lib, o: lib.optim.lr_scheduler.StepLR(o, 3).get_lr(),
    "in order": lambda lib, o: (s := lib.optim.lr_scheduler.StepLR(o, 3), o.step(), s.step()),
    "replaced": lambda lib, o: (s := lib.optim.lr_scheduler.StepLR(o, 3), setattr(o, "step", lambda: None), s.step()),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_warnings(name: str) -> None:
    found = []
    for lib in (tj, torch):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            WARNINGS[name](lib, optimizer(lib, "SGD"))
        found.append([(w.category, str(w.message)[:40]) for w in caught])
    assert found[0] == found[1]
