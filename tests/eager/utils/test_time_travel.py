"""Time travel: an injected NaN or error is traced to its op, its line and its step, and all is put back. The lines are found by
their text in this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit import nn
from tapejit.eager.utils.training_snapshot import Snapshot

HERE = Path(__file__)


def line_of(comment: str) -> str:
    lines = HERE.read_text(encoding="utf-8").splitlines()
    return f"{HERE}:{next(i for i, line in enumerate(lines, 1) if line.endswith(comment))}"


both = pytest.mark.parametrize("compiled", [False, True])


def batches(count: int, bad: int = -1, value: float = -50.0) -> list[tj.Tensor]:
    """Positive numbers, but for the bad one."""
    rng = np.random.default_rng(0)
    found = [rng.uniform(0.5, 1.5, (4, 3)).astype(np.float32) for _ in range(count)]
    if bad >= 0:
        found[bad][1, 1] = value
    return [tj.tensor(x) for x in found]


def training(compiled: bool, every: int = 5) -> tuple[Any, nn.Module, Any]:
    tj.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = tj.optim.Adam(model.parameters(), lr=0.01)

    def step(x: tj.Tensor) -> tj.Tensor:
        y = x.log()  # the logarithm
        loss = model(y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    function = tj.compile(step) if compiled else step
    return tj.utils.time_travel(function, model, optimizer, every=every), model, optimizer


@both
@pytest.mark.parametrize("bad", [0, 4, 5, 12, 13])
def test_a_nan_in_the_forward_pass(compiled: bool, bad: int) -> None:
    step, model, _ = training(compiled)
    with pytest.raises(tj.utils.NaNError, match="made the first NaN") as found:
        for x in batches(20, bad):
            step(x)
    assert (found.value.op, found.value.line, found.value.step) == ("log", line_of("# the logarithm"), bad)
    assert f"step {bad}, run again eagerly from step {bad - bad % 5}" in str(found.value)
    assert "y = x.log()  # the logarithm" in str(found.value)
    assert all(not p.isnan().any() for p in model.parameters())


@both
def test_all_is_as_it_was_before_the_step(compiled: bool) -> None:
    """The same weights, statistics, moments and random numbers as of a training that ends before the bad step."""
    step, model, optimizer = training(compiled)
    with pytest.raises(tj.utils.NaNError):
        for x in batches(20, 8):
            step(x)
    drawn = tj.rand(3)
    other, same_model, same_optimizer = training(compiled)
    for x in batches(8, -1):
        other(x)
    assert tj.equal(drawn, tj.rand(3))
    for a, b in zip(model.state_dict().values(), same_model.state_dict().values(), strict=True):
        assert tj.allclose(a, b, rtol=1e-6)
    moments = [o.state_dict()["state"][0]["exp_avg"] for o in (optimizer, same_optimizer)]
    assert tj.allclose(*moments, rtol=1e-5)
    step(batches(1)[0])  # and it goes on from there


@both
def test_a_nan_in_the_backward_pass(compiled: bool) -> None:
    """The root of 0 has an infinite gradient, and 0 times that is none: nothing is wrong until the weights have it."""
    w = tj.ones(3, requires_grad=True)

    def step(x: tj.Tensor) -> tj.Tensor:
        y = (w * x).pow(2)
        loss = y.sqrt().sum()  # the root
        loss.backward()
        with tj.no_grad():
            w.sub_(0.1 * w.grad)  # type: ignore[operator]
        w.grad = None
        return loss.detach()

    travel = tj.utils.time_travel(tj.compile(step) if compiled else step, w, every=4)
    data = [tj.ones(3) for _ in range(10)]
    data[6] = tj.tensor([1.0, 0.0, 1.0])
    with pytest.raises(tj.utils.NaNError) as found:
        for x in data:
            travel(x)
    assert found.value.step == 6 and found.value.op == "PowBackward0"
    assert found.value.line == line_of("y = (w * x).pow(2)")
    assert w.tolist() == pytest.approx([0.4] * 3)


@both
def test_a_nan_in_the_weights_only(compiled: bool) -> None:
    """The step's result never has it: it is found when the next snapshot is due, or by `check()`."""
    w = tj.ones(3, requires_grad=True)

    def step(x: tj.Tensor) -> int:
        with tj.no_grad():
            w.mul_(x - x)  # zeros, unless x is infinite
        return 1

    travel = tj.utils.time_travel(tj.compile(step) if compiled else step, w, every=100)
    for value in (1.0, 2.0, float("inf"), 3.0):
        travel(tj.full((3,), value))
    with pytest.raises(tj.utils.NaNError) as found:
        travel.check()
    assert (found.value.op, found.value.step) == ("sub", 2)
    assert found.value.line == line_of("# zeros, unless x is infinite")


def test_nans_of_good_steps_are_not_blamed() -> None:
    """A masked NaN is made in each step, and is no harm; the other one is."""
    w = tj.ones(3, requires_grad=True)

    def step(x: tj.Tensor) -> tj.Tensor:
        masked = tj.where(x > 5, x, (x - 10).detach().sqrt().nan_to_num(0.0))  # harmless
        return (masked + (w * x).log()).sum()  # harmful

    travel = tj.utils.time_travel(step, w)
    for value in (1.0, 2.0):
        travel(tj.full((3,), value))
    with pytest.raises(tj.utils.NaNError) as found:
        travel(tj.full((3,), -1.0))
    assert (found.value.op, found.value.line) == ("log", line_of("# harmful"))


def test_a_nan_that_is_given() -> None:
    step, _, _ = training(False)
    with pytest.raises(tj.utils.NaNError, match="step 2, run again eagerly from step 0: argument 0 has a NaN in it"):
        for x in batches(4, 2, float("nan")):
            step(x)


def test_a_nan_that_no_op_made() -> None:
    w = tj.ones(3)

    def step(x: tj.Tensor) -> tj.Tensor:
        other = tj.from_numpy(np.full(3, np.nan, np.float32) if x.item() > 1 else np.ones(3, np.float32))
        return other * w  # it is met

    travel = tj.utils.time_travel(step, w)
    travel(tj.tensor(1.0))
    with pytest.raises(tj.utils.NaNError, match=r"mul at .* was given a NaN that no op made") as found:
        travel(tj.tensor(2.0))
    assert found.value.line == line_of("# it is met")


@both
def test_an_exception_is_raised_again_with_its_op_and_line(compiled: bool) -> None:
    weight = nn.Parameter(tj.ones(3, 2))

    def step(x: tj.Tensor, i: int = 0) -> tj.Tensor:
        y = x @ weight  # the product
        return y[tj.tensor([i])].sum()  # the place

    travel = tj.utils.time_travel(tj.compile(step) if compiled else step, weight)
    for _ in range(4):
        travel(tj.ones(2, 3))
    with pytest.raises(RuntimeError) as found:
        travel(tj.ones(2, 4))
    note = next(n for n in found.value.__notes__ if n.startswith("[time_travel]"))
    assert note.startswith("[time_travel] step 4, run again eagerly from step 0: it failed at " + line_of("# the product"))
    with pytest.raises(IndexError) as found:
        for i in range(4):
            travel(tj.ones(2, 3), 1 + 2 * (i == 3))
    note = next(n for n in found.value.__notes__ if n.startswith("[time_travel]"))
    assert note.startswith("[time_travel] step 7, run again eagerly from step 4: index failed at " + line_of("# the place"))


def test_an_exception_that_does_not_come_again() -> None:
    w, calls = tj.ones(3), []

    def step() -> None:
        calls.append(0)
        if len(calls) == 2:
            raise KeyError("once")

    travel = tj.utils.time_travel(step, w)
    travel()
    with pytest.raises(KeyError, match="once") as found:
        travel()
    assert found.value.__notes__ == [
        "[time_travel] step 1, run again eagerly from step 0: it did not happen. All is as it was before this step."
    ]


def test_a_nan_that_does_not_come_again() -> None:
    w, calls = tj.ones(3), []

    def step() -> tj.Tensor:
        calls.append(0)
        return w * (float("nan") if len(calls) == 2 else 1.0)

    travel = tj.utils.time_travel(step, w)
    travel()
    with pytest.raises(tj.utils.NaNError, match=r"step 1 made a NaN, but not when it was run again eagerly .*tj\.diff"):
        travel()


def test_what_a_step_does_to_its_arguments_is_not_done_twice() -> None:
    w = tj.ones(3)

    def step(x: tj.Tensor) -> tj.Tensor:
        x.sub_(1)
        return (w * x).sqrt()

    travel = tj.utils.time_travel(step, w)
    travel(tj.full((3,), 1.0))
    with pytest.raises(tj.utils.NaNError) as found:
        travel(tj.full((3,), 0.5))
    assert found.value.step == 1


def test_modules_by_all_they_hold() -> None:
    """Buffers that are replaced, the mode, a scheduler, a generator of one's own and Python's random numbers."""
    model = nn.Module()
    model.register_buffer("seen", tj.zeros(1), persistent=False)
    w = nn.Parameter(tj.ones(1))
    optimizer = tj.optim.SGD([w], lr=1.0)
    scheduler = tj.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    generator = tj.Generator().manual_seed(3)

    def step(bad: bool) -> tj.Tensor:
        model.seen = model.seen + 1
        model.train(not model.training)
        draws.append((tj.rand(1, generator=generator).item(), float(np.random.rand())))
        optimizer.step()
        scheduler.step()
        return w * (float("nan") if bad else 1.0)

    travel = tj.utils.time_travel(step, model, optimizer, scheduler, generator)
    draws: list[tuple[float, float]] = []
    travel(False)
    travel(False)
    with pytest.raises(tj.utils.NaNError):
        travel(True)
    assert model.seen.item() == 2 and model.training and scheduler.last_epoch == 2
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert draws[:3] == draws[3:]


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="give it what the step changes"):
        tj.utils.time_travel(lambda: None)
    with pytest.raises(ValueError, match="every must be at least 1"):
        tj.utils.time_travel(lambda: None, tj.ones(1), every=0)
    with pytest.raises(TypeError, match="a dict has no state_dict"):
        tj.utils.time_travel(lambda: None, {})


def test_modules_and_tied_tensors_are_put_back_once() -> None:
    """Objects that are given twice, or that others hold, are copied once; those of modules below are found."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))
    model[1][1].weight = model[0].weight
    optimizer = tj.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    snapshot = Snapshot((model, optimizer, model[0], model[0].bias))
    tensors = [*model.parameters(), *model.buffers()]
    assert sorted(id(c.tensor) for c in snapshot.copies) == sorted(map(id, tensors))
    assert {m for m, _ in snapshot.training} == set(model.modules()) and len(snapshot.training) == 5
    before = [t.tolist() for t in tensors]
    model.eval()
    with tj.no_grad():
        for t in tensors:
            t += 1
    snapshot.restore()
    assert [t.tolist() for t in tensors] == before and all(m.training for m in model.modules())
