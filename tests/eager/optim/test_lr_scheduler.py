"""Learning-rate schedulers: closed forms over 50 epochs, resuming, order of steps, errors; averaged models."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.tolerances import assert_within, spread
from tapejit import nn, optim
from tapejit.optim import lr_scheduler as schedules
from tapejit.optim import swa_utils

BASE = (0.1, 0.02)  # the rates of two groups


def optimizer(kind: str = "SGD", rate: Any = BASE[0]) -> optim.Optimizer:
    groups = [{"params": [tj.zeros(2, requires_grad=True)]}, {"params": [tj.zeros(2, requires_grad=True)], "lr": BASE[1]}]
    return getattr(optim, kind)(groups, lr=rate)


def cosine(epoch: float, length: float, low: float, high: float) -> float:
    return low + (high - low) * (1 + math.cos(math.pi * epoch / length)) / 2


def restarts(epoch: int, base: float, first: int, factor: int, low: float) -> float:
    start, length = 0, first
    while epoch >= start + length:
        start, length = start + length, length * factor
    return cosine(epoch - start, length, low, base)


def triangle(step: int, low: float, high: float, up: int, down: int, scale: Callable[[int], float] = lambda cycle: 1) -> float:
    cycle, place = divmod(step, up + down)
    height = place / up if place <= up else (up + down - place) / down
    return low + (high - low) * height * scale(cycle)


def one_cycle(step: int, ends: list[tuple[float, float]]) -> float:
    """Half cosines between points (step, value)."""
    for (a, start), (b, end) in itertools.pairwise(ends):
        if step <= b:
            return cosine(step - a, b - a, end, start)
    raise AssertionError(step)


SCHEDULES: dict[str, tuple[Callable[[Any], Any], Callable[[int, float], float]]] = {
    "lambda": (lambda o: schedules.LambdaLR(o, lambda e: 1 / (e + 1)), lambda e, base: base / (e + 1)),
    "multiplicative": (lambda o: schedules.MultiplicativeLR(o, lambda e: 0.9), lambda e, base: base * 0.9**e),
    "step": (lambda o: schedules.StepLR(o, 7, 0.3), lambda e, base: base * 0.3 ** (e // 7)),
    "milestones": (
        lambda o: schedules.MultiStepLR(o, [3, 10, 10, 30], 0.5),
        lambda e, base: base * 0.5 ** sum(e >= m for m in (3, 10, 10, 30)),
    ),
    "constant": (lambda o: schedules.ConstantLR(o, 0.25, 12), lambda e, base: base * (0.25 if e < 12 else 1)),
    "linear": (
        lambda o: schedules.LinearLR(o, 0.1, 0.8, 20),
        lambda e, base: base * (0.1 + 0.7 * min(e, 20) / 20),
    ),
    "exponential": (lambda o: schedules.ExponentialLR(o, 0.93), lambda e, base: base * 0.93**e),
    "polynomial": (
        lambda o: schedules.PolynomialLR(o, 30, 2.5),
        lambda e, base: base * (1 - min(e, 30) / 30) ** 2.5,
    ),
    "cosine": (lambda o: schedules.CosineAnnealingLR(o, 13, 0.001), lambda e, base: cosine(e, 13, 0.001, base)),
    "restarts": (
        lambda o: schedules.CosineAnnealingWarmRestarts(o, 5, 2, 0.001),
        lambda e, base: restarts(e, base, 5, 2, 0.001),
    ),
    "cyclic": (lambda o: schedules.CyclicLR(o, 0.01, 0.1, 7), lambda e, base: triangle(e, 0.01, 0.1, 7, 7)),
    "cyclic halves": (
        lambda o: schedules.CyclicLR(o, 0.01, 0.1, 7, 4, "triangular2", cycle_momentum=False),
        lambda e, base: triangle(e, 0.01, 0.1, 7, 4, lambda cycle: 0.5**cycle),
    ),
    "cyclic powers": (
        lambda o: schedules.CyclicLR(o, 0.01, 0.1, 7, mode="exp_range", gamma=0.97),
        lambda e, base: 0.01 + (triangle(e, 0.01, 0.1, 7, 7) - 0.01) * 0.97**e,
    ),
    "one cycle": (
        lambda o: schedules.OneCycleLR(o, 0.5, 60),
        lambda e, base: one_cycle(e, [(0, 0.02), (17, 0.5), (59, 0.02 / 1e4)]),
    ),
    "one cycle in three": (
        lambda o: schedules.OneCycleLR(o, 0.5, epochs=6, steps_per_epoch=10, three_phase=True, div_factor=10),
        lambda e, base: one_cycle(e, [(0, 0.05), (17, 0.5), (34, 0.05), (59, 0.05 / 1e4)]),
    ),
    "sequence": (
        lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o, 0.1, 1, 10), schedules.ExponentialLR(o, 0.9)], [10]),
        lambda e, base: base * (0.1 + 0.9 * e / 10) if e < 10 else base * 0.9 ** (e - 10),
    ),
    "chain": (
        lambda o: schedules.ChainedScheduler([schedules.ConstantLR(o, 0.5, 10), schedules.ExponentialLR(o, 0.9)]),
        lambda e, base: base * 0.9**e * (0.5 if e < 10 else 1),
    ),
    "weight averaging": (
        lambda o: swa_utils.SWALR(o, 0.05, 8),
        lambda e, base: cosine(min(e, 8), 8, 0.05, base),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_closed_form(name: str) -> None:
    make, formula = SCHEDULES[name]
    o = optimizer()
    s = make(o)
    for epoch in range(50):
        expected = [formula(epoch, base) for base in BASE]
        assert s.get_last_lr() == [g["lr"] for g in o.param_groups]
        np.testing.assert_allclose(s.get_last_lr(), expected, rtol=1e-9, atol=1e-12, err_msg=f"epoch {epoch}")
        o.step()
        s.step()


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_resuming(name: str, kind: str) -> None:
    make, _ = SCHEDULES[name]
    o = optimizer(kind)
    s = make(o)
    for _ in range(12):
        o.step()
        s.step()
    p = optimizer(kind)
    t = make(p)
    t.load_state_dict(copy.deepcopy(s.state_dict()))
    p.load_state_dict(o.state_dict())
    for _ in range(20):
        assert s.get_last_lr() == t.get_last_lr()
        for optimizer_, scheduler in ((o, s), (p, t)):
            optimizer_.step()
            scheduler.step()
    assert [g["lr"] for g in o.param_groups] == [g["lr"] for g in p.param_groups]
    assert [g.get("betas", g.get("momentum")) for g in o.param_groups] == [
        g.get("betas", g.get("momentum")) for g in p.param_groups
    ]


CHAINABLE = ("step", "milestones", "exponential", "cosine", "linear", "polynomial")


@pytest.mark.parametrize("name", CHAINABLE)
def test_last_epoch_goes_on(name: str) -> None:
    make, formula = SCHEDULES[name]
    o = optimizer()
    s = make(o)
    for _ in range(5):
        o.step()
        s.step()
    arguments = {
        "step": (schedules.StepLR, (7, 0.3)),
        "milestones": (schedules.MultiStepLR, ([3, 10, 10, 30], 0.5)),
        "exponential": (schedules.ExponentialLR, (0.93,)),
        "cosine": (schedules.CosineAnnealingLR, (13, 0.001)),
        "linear": (schedules.LinearLR, (0.1, 0.8, 20)),
        "polynomial": (schedules.PolynomialLR, (30, 2.5)),
    }
    kind, rest = arguments[name]
    t = kind(o, *rest, last_epoch=4)  # the epoch that was last done; making it does the fifth
    o.step()
    for epoch in range(5, 30):
        np.testing.assert_allclose(t.get_last_lr(), [formula(epoch, base) for base in BASE], rtol=1e-9, atol=1e-12)
        t.step()


def test_last_epoch_needs_the_initial_rate() -> None:
    with pytest.raises(KeyError, match=r"param 'initial_lr' is not specified in param_groups\[0\]"):
        schedules.StepLR(optimizer(), 3, last_epoch=2)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_momentum_goes_the_other_way(kind: str) -> None:
    def momentum(o: Any) -> float:
        group = o.param_groups[0]
        return group["betas"][0] if "betas" in group else group["momentum"]

    o = optimizer(kind)
    s = schedules.OneCycleLR(o, 0.5, 60)
    for step in range(60):
        assert momentum(o) == pytest.approx(one_cycle(step, [(0, 0.95), (17, 0.85), (59, 0.95)]))
        o.step()
        s.step()
    o = optimizer(kind)
    s = schedules.CyclicLR(o, 0.01, 0.1, 7)
    for step in range(30):
        assert momentum(o) == pytest.approx(0.9 - 0.1 * (triangle(step, 0, 1, 7, 7)))
        o.step()
        s.step()


def test_steps_by_epoch() -> None:
    o = optimizer()
    s = schedules.StepLR(o, 7, 0.3)
    o.step()
    with pytest.warns(UserWarning, match="The epoch parameter"):
        s.step(15)
    np.testing.assert_allclose(s.get_last_lr(), [base * 0.3**2 for base in BASE])
    w = schedules.CosineAnnealingWarmRestarts(optimizer(), 4, 2)
    for epoch in (0.5, 3.75, 4.0, 9.5, 12.25, 30):
        w.step(epoch)
        start, length = (0, 4) if epoch < 4 else (4, 8) if epoch < 12 else (12, 16) if epoch < 28 else (28, 32)
        np.testing.assert_allclose(w.get_last_lr(), [cosine(epoch - start, length, 0, base) for base in BASE])
    with pytest.raises(ValueError, match="Expected non-negative epoch, but got -1"):
        w.step(-1)


def test_rates_that_are_tensors_stay_themselves() -> None:
    p, rate = tj.zeros(1, requires_grad=True), tj.tensor(0.5, dtype=tj.float64)
    o = optim.SGD([p], lr=rate)
    s = schedules.ExponentialLR(o, 0.5)
    o.step()
    s.step()
    assert o.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25
    assert s.base_lrs[0].item() == 0.5
    assert s.get_last_lr()[0] is not rate


# ---- plateaus


def plateau(values: list[float], **options: Any) -> list[float]:
    p = tj.zeros(1, requires_grad=True)
    o = optim.SGD([p], lr=1.0)
    s = schedules.ReduceLROnPlateau(o, **options)
    found = []
    for v in values:
        s.step(v)
        found.append(o.param_groups[0]["lr"])
    assert s.get_last_lr() == [found[-1]]
    return found


def test_plateau() -> None:
    assert plateau([5, 5, 5, 5, 5], patience=2, factor=0.1) == [1, 1, 1, 0.1, 0.1]
    assert plateau([5, 4, 4, 3, 3, 3], patience=1, factor=0.5) == [1, 1, 1, 1, 1, 0.5]
    assert plateau([1, 2, 3, 3, 3], mode="max", patience=1, factor=0.5) == [1, 1, 1, 1, 0.5]
    assert plateau([10, 9.5, 9.2], threshold=0.1, patience=1, factor=0.5) == [1, 1, 0.5]
    assert plateau([10, 9.5, 9.2], threshold=0.1, threshold_mode="abs", patience=1, factor=0.5) == [1, 1, 1]
    assert plateau([1] * 8, patience=0, factor=0.5, cooldown=2) == [1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125]
    assert plateau([1] * 5, patience=0, factor=0.1, min_lr=0.05) == [1, 0.1, 0.05, 0.05, 0.05]
    assert plateau([1, float("nan"), float("nan")], patience=0, factor=0.5) == [1, 0.5, 0.25]
    assert plateau([tj.tensor(2.0), tj.tensor(2.0)], patience=0, factor=0.5) == [1, 0.5]


def test_plateau_resumes() -> None:
    o = optimizer()
    s = schedules.ReduceLROnPlateau(o, patience=3, min_lr=[0.01, 0.001])
    for v in (1.0, 2.0, 2.0):
        s.step(v)
    t = schedules.ReduceLROnPlateau(optimizer())
    t.load_state_dict(s.state_dict())
    assert (t.best, t.num_bad_epochs, t.patience, t.last_epoch) == (1.0, 2, 3, 3)


def test_plateau_refuses() -> None:
    o = optimizer()
    with pytest.raises(ValueError, match=r"Factor should be < 1\.0"):
        schedules.ReduceLROnPlateau(o, factor=1.0)
    with pytest.raises(ValueError, match="mode best is unknown"):
        schedules.ReduceLROnPlateau(o, "best")
    with pytest.raises(ValueError, match="threshold mode other is unknown"):
        schedules.ReduceLROnPlateau(o, threshold_mode="other")
    with pytest.raises(ValueError, match="expected 2 min_lrs, got 1"):
        schedules.ReduceLROnPlateau(o, min_lr=[0.1])
    with pytest.raises(TypeError, match="int is not an Optimizer"):
        schedules.ReduceLROnPlateau(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        schedules.ReduceLROnPlateau(o).step()  # type: ignore[call-arg]


# ---- the order of steps


def test_a_scheduler_that_steps_first_warns() -> None:
    o = optimizer()
    o.step()  # before there was a scheduler: does not count
    s = schedules.StepLR(o, 3)
    with pytest.warns(UserWarning, match=r"Detected call of `lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        s.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        s.step()  # once is enough
        t = schedules.StepLR(o, 3)
        o.step()
        t.step()


def test_a_step_that_was_replaced_warns() -> None:
    o = optimizer()
    s = schedules.StepLR(o, 3)
    o.step = lambda: None  # type: ignore[method-assign, assignment, misc]
    with pytest.warns(UserWarning, match="has been overridden after learning rate scheduler initialization"):
        s.step()


def test_asking_for_the_rate_outside_a_step_warns() -> None:
    for make, _ in SCHEDULES.values():
        s = make(optimizer())
        if isinstance(s, (schedules.SequentialLR, schedules.ChainedScheduler)):
            continue
        with pytest.warns(UserWarning, match=r"please use `get_last_lr\(\)`"):
            s.get_lr()


def test_stepping_too_often() -> None:
    o = optimizer()
    s = schedules.OneCycleLR(o, 0.1, 3)
    o.step()
    for _ in range(3):
        s.step()
    with pytest.raises(ValueError, match=r"Tried to step 4 times\. The specified number of total steps is 3"):
        s.step()


# ---- errors


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda o: schedules.StepLR("o", 3), TypeError, "str is not an Optimizer"),
        (lambda o: schedules.LambdaLR(o, [abs]), ValueError, "Expected 2 lr_lambdas, but got 1"),
        (lambda o: schedules.MultiplicativeLR(o, 0.5), TypeError, "lr_lambda should be a function, but got float"),
        (lambda o: schedules.ConstantLR(o, 1.5), ValueError, "Constant multiplicative factor expected to be between 0 and 1"),
        (lambda o: schedules.LinearLR(o, 0.0), ValueError, "Starting multiplicative factor expected to be greater than 0"),
        (
            lambda o: schedules.LinearLR(o, end_factor=2),
            ValueError,
            "Ending multiplicative factor expected to be",
        ),
        (lambda o: schedules.CosineAnnealingWarmRestarts(o, 0), ValueError, "Expected positive integer T_0, but got 0"),
        (lambda o: schedules.CosineAnnealingWarmRestarts(o, 2, 0), ValueError, "Expected integer T_mult >= 1, but got 0"),
        (lambda o: schedules.OneCycleLR(o, 0.1), ValueError, "You must define either total_steps OR"),
        (lambda o: schedules.OneCycleLR(o, 0.1, 0), ValueError, "Expected positive integer total_steps, but got 0"),
        (lambda o: schedules.OneCycleLR(o, 0.1, 5, pct_start=2.0), ValueError, "Expected float between 0 and 1 pct_start"),
        (lambda o: schedules.OneCycleLR(o, 0.1, 5, anneal_strategy="x"), ValueError, "anneal_strategy must be one of"),
        (lambda o: schedules.OneCycleLR(o, [0.1], 5), ValueError, "max_lr must have the same length as optimizer.param_groups"),
        (lambda o: schedules.CyclicLR(o, 0.1, 0.2, mode="x"), ValueError, "mode is invalid and scale_fn is None"),
        (lambda o: schedules.SequentialLR(o, [], []), ValueError, "expects at least one scheduler"),
        (lambda o: schedules.ChainedScheduler([]), ValueError, "expects at least one scheduler to be chained"),
        (
            lambda o: schedules.SequentialLR(o, [schedules.StepLR(o, 1)], [3]),
            ValueError,
            "one more than the number of",
        ),
        (
            lambda o: schedules.ChainedScheduler([schedules.StepLR(o, 1), schedules.StepLR(optimizer(), 1)]),
            ValueError,
            "expects all schedulers to belong to the same optimizer",
        ),
        (
            lambda o: schedules.ChainedScheduler([schedules.ReduceLROnPlateau(o)]),
            ValueError,
            "does not support `ReduceLROnPlateau`",
        ),
        (
            lambda o: swa_utils.SWALR(o, 0.1, anneal_strategy="x"),
            ValueError,
            "anneal_strategy must be one of",
        ),
        (lambda o: swa_utils.SWALR(o, 0.1, -1), ValueError, "anneal_epochs must be equal or greater than 0, got -1"),
    ],
)
def test_bad_arguments(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(optimizer())


def test_momentum_to_cycle_is_needed() -> None:
    p = tj.zeros(1, requires_grad=True)
    for make in (lambda o: schedules.OneCycleLR(o, 0.1, 5), lambda o: schedules.CyclicLR(o, 0.1, 0.2)):
        with pytest.raises(ValueError, match="optimizer must support momentum or beta1"):
            make(optim.Adagrad([p]))


class Halving:
    """A schedule with a state of its own."""

    def __init__(self) -> None:
        self.factor = 0.5

    def __call__(self, epoch: float) -> float:
        return self.factor**epoch


def test_callable_objects_are_saved() -> None:
    o = optimizer()
    s = schedules.LambdaLR(o, [Halving(), lambda e: 1.0])
    saved = s.state_dict()
    assert saved["lr_lambdas"] == [{"factor": 0.5}, None]
    t = schedules.LambdaLR(optimizer(), [Halving(), lambda e: 1.0])
    t.load_state_dict({**saved, "lr_lambdas": [{"factor": 0.1}, None]})
    assert t.lr_lambdas[0].factor == 0.1  # type: ignore[attr-defined]
    c = schedules.CyclicLR(o, 0.1, 0.2, scale_fn=Halving(), cycle_momentum=False)
    assert c.state_dict()["_scale_fn_custom"] == {"factor": 0.5}
    c.load_state_dict(c.state_dict())


def test_pickle() -> None:
    o = optimizer()
    s = schedules.CyclicLR(o, 0.1, 0.2, 4, mode="exp_range", gamma=0.9)
    o.step()
    s.step()
    t = pickle.loads(pickle.dumps(s))
    assert t.get_last_lr() == s.get_last_lr()
    assert t.optimizer is not o
    s.step()
    t.step()
    assert [g["lr"] for g in t.optimizer.param_groups] == [g["lr"] for g in o.param_groups]


# ---- averaged models


def shifted(model: nn.Module, by: float) -> None:
    with tj.no_grad():
        for p in model.parameters():
            p.add_(by)


@pytest.mark.parametrize("multi", [True, False])
def test_exponential_moving_average(multi: bool) -> None:
    model = nn.Linear(3, 2)
    start = model.weight.detach().clone()
    function = swa_utils.get_ema_multi_avg_fn(0.9) if multi else swa_utils.get_ema_avg_fn(0.9)
    averaged = swa_utils.AveragedModel(model, **{"multi_avg_fn" if multi else "avg_fn": function})
    expected, offset = 0.0, 0.0
    for i in range(5):
        averaged.update_parameters(model)
        expected = 0.9 * expected + 0.1 * offset if i else offset
        np.testing.assert_allclose((averaged.module.weight - start).detach().numpy(), np.full((2, 3), expected), atol=1e-6)
        shifted(model, 1.0)
        offset += 1.0
    assert averaged.n_averaged.item() == 5
    assert averaged.n_averaged.dtype is tj.int64
    x = tj.ones(1, 3)
    np.testing.assert_array_equal(averaged(x).detach().numpy(), averaged.module(x).detach().numpy())


@pytest.mark.parametrize("single", [True, False])
def test_plain_average(single: bool) -> None:
    model = nn.Linear(3, 2)
    averaged = swa_utils.AveragedModel(model, avg_fn=swa_utils.get_swa_avg_fn() if single else None)
    seen = []
    for _ in range(4):
        averaged.update_parameters(model)
        seen.append(model.weight.detach().clone())
        shifted(model, 0.5)
    all_seen = tj.stack(seen).double()
    # each update is a difference, a quotient and a sum of numbers no larger than the largest
    assert_within(averaged.module.weight.detach(), all_seen.mean(0), spread(all_seen.abs().amax(0), 3 * len(seen)))
    assert set(averaged.state_dict()) == {"n_averaged", "module.weight", "module.bias"}


def test_buffers_of_averaged_models() -> None:
    model = nn.BatchNorm1d(2)
    follows, averages = swa_utils.AveragedModel(model), swa_utils.AveragedModel(model, use_buffers=True)
    for value in (1.0, 3.0):
        model.running_mean.fill_(value)
        model.num_batches_tracked.fill_(int(value))
        follows.update_parameters(model)
        averages.update_parameters(model)
    assert follows.module.running_mean[0].item() == 3.0
    assert averages.module.running_mean[0].item() == 2.0
    assert averages.module.num_batches_tracked.item() == 2


def test_update_bn() -> None:
    tj.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, momentum=0.3)).eval()
    batches = [tj.randn(8, 2) for _ in range(5)]
    swa_utils.update_bn([(x, None) for x in batches], model)
    norm = model[1]
    means = tj.stack([model[0](x).mean(0) for x in batches]).mean(0)
    np.testing.assert_allclose(norm.running_mean.numpy(), means.detach().numpy(), atol=1e-6)
    assert norm.momentum == 0.3
    assert not model.training
    swa_utils.update_bn(batches, nn.Linear(2, 2))


def test_averaged_models_refuse() -> None:
    with pytest.raises(ValueError, match=r"Invalid decay value 1\.5 provided"):
        swa_utils.get_ema_avg_fn(1.5)
    with pytest.raises(AssertionError, match="Only one of avg_fn and multi_avg_fn"):
        swa_utils.AveragedModel(
            nn.Linear(1, 1), avg_fn=swa_utils.get_swa_avg_fn(), multi_avg_fn=swa_utils.get_swa_multi_avg_fn()
        )
