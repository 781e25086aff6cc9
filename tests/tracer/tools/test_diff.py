"""`diff` names the first op whose compiled result is not eager's, and leaves no trace of having run the step."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import fake_cupy
import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.traced import seen
from tapejit import nn
from tapejit.eager.arrays import devices
from tapejit.eager.core.tape.node import local
from tapejit.tracer.execute import reference_program as program
from tapejit.tracer.tools.diff.comparison import Observer
from tapejit.tracer.tools.diff.state_snapshot import Before, Memory
from tapejit.tracer.tools.diff.ulps import distance


def here(offset: int = 0) -> str:
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno + offset}"


class Training:
    """A model with everything that has a state."""

    def __init__(self) -> None:
        tj.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = tj.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = tj.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.x, self.y = tj.randn(5, 4), tj.randn(5, 1)
        self.lines: dict[str, str] = {}

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.lines["update"] = here(-1)
        self.scheduler.step()
        if loss.item() > 1e9:
            print("it explodes")
        doubled = loss * 2
        self.lines["mul"] = here(-1)
        return doubled

    def state(self):
        grads = [p.grad for p in self.model.parameters()]
        learned = self.optimizer.state_dict(), self.scheduler.state_dict()
        return seen([dict(self.model.state_dict()), grads, repr(learned), tj.get_rng_state(), self.x, self.y])


def wrong(monkeypatch, name, change):
    """Break the kernel of one op."""
    right = program.kernel

    def kernel(trace, call):
        run = right(trace, call)
        return (lambda *arrays: change(run, *arrays)) if call.op.name == name else run

    monkeypatch.setattr(program, "kernel", kernel)


@pytest.mark.parametrize("calls", [0, 1, 4])
def test_a_training_step_agrees_and_is_undone(calls) -> None:
    t = Training()
    step = tj.compile(t.step)
    for _ in range(calls):
        step(t.x, t.y)
    before = t.state()
    found = tj.diff(step, t.x, t.y)
    assert found.agrees and found.ulps == 0 and found.ops > 20 and found.op is None
    assert str(found) == f"eager and compiled agree: {found.ops} ops, the largest error is 0 ulps"
    assert t.state() == before


def test_what_is_kept_to_be_put_back_makes_no_breaks() -> None:
    t = Training()
    step = tj.compile(t.step)
    for _ in range(3):
        step(t.x, t.y)
    before = Before(step, (t.x, t.y), {})
    observer = Observer(local.state, before)
    observer.observe(step, (t.x, t.y), {})
    assert observer.trace.keys == step.traces[0].keys


def test_a_diff_in_the_middle_of_training_changes_nothing() -> None:
    losses = []
    for look in (False, True):
        t = Training()
        step = tj.compile(t.step)
        losses.append([])
        for _ in range(6):
            losses[-1].append(step(t.x, t.y).item())
            if look:
                assert tj.diff(step, t.x, t.y).agrees
    assert losses[0] == losses[1]


def test_a_wrong_kernel_after_a_break(monkeypatch) -> None:
    t = Training()
    t.step(t.x, t.y)
    wrong(monkeypatch, "mul", lambda run, *arrays: np.nextafter(run(*arrays), np.float32(np.inf)))
    assert tj.diff(t.step, t.x, t.y).agrees  # one ulp is within the tolerance
    found = tj.diff(t.step, t.x, t.y, ulps=0)
    assert not found.agrees and found.op == "mul" and found.line.endswith(t.lines["mul"])
    assert found.ulps == 1 and found.index == ()
    assert found.compiled == np.nextafter(found.eager, np.float32(np.inf))
    text = str(found)
    assert "mul at tests/tracer/tools/test_diff.py:" in text or found.line in text
    assert "1 ulps" in text and str(found.eager[()]) in text and str(found.compiled[()]) in text


def test_a_wrong_kernel_that_writes(monkeypatch) -> None:
    t = Training()
    t.step(t.x, t.y)
    before = t.state()

    def change(run, p, *rest):
        run(p, *rest)
        if p.shape == (8,):
            p[3] += 0.5

    wrong(monkeypatch, "adam_update", change)
    found = tj.diff(tj.compile(t.step), t.x, t.y)
    assert found.op == "adam_update" and found.line.endswith(t.lines["update"]) and found.index == (3,)
    assert abs(found.compiled[3] - found.eager[3] - 0.5) < 1e-6 and found.ulps > 1e5
    assert t.state() == before


def test_a_wrong_kernel_in_a_backward_pass(monkeypatch) -> None:
    w = tj.ones(3, requires_grad=True)
    lines = []

    def step(x):
        loss = (w * x).tanh().sum()
        loss.backward()
        lines.append(here(-1))

    wrong(monkeypatch, "tanh_backward", lambda run, *arrays: run(*arrays) + np.float32([0, 0, 1]))
    found = tj.diff(step, tj.tensor([1.0, 2.0, 3.0]))
    assert w.grad is None and not lines
    step(tj.ones(3))
    assert found.op == "tanh_backward" and found.line.endswith(lines[0]) and found.index == (2,)


def test_only_the_wrong_one_of_two_lines_is_named(monkeypatch) -> None:
    def step(x):
        a = x.exp()
        b = (a + 1).exp()
        return b, here(-1)

    line = step(tj.ones(2))[1]
    wrong(monkeypatch, "exp", lambda run, x: run(x) if x[0] < 2 else run(x) * np.float32(1.01))
    found = tj.diff(step, tj.ones(2))
    assert found.op == "exp" and found.line.endswith(line)


def test_rtol_allows_more(monkeypatch) -> None:
    wrong(monkeypatch, "exp", lambda run, x: run(x) * np.float32(1.001))
    assert not tj.diff(tj.exp, tj.ones(3)).agrees
    assert tj.diff(tj.exp, tj.ones(3), rtol=0.01).agrees


def test_integers_are_compared_exactly(monkeypatch) -> None:
    wrong(monkeypatch, "add", lambda run, *arrays: run(*arrays) + 3)
    found = tj.diff(lambda x: x + 1, tj.tensor([2**60, 7]))
    assert found.op == "add" and found.ulps == 3 and "off by 3" in str(found)


def test_a_kernel_that_fails_or_makes_another_shape(monkeypatch) -> None:
    def fail(run, *arrays):
        raise ZeroDivisionError("no")

    with monkeypatch.context() as m:
        wrong(m, "exp", fail)
        found = tj.diff(tj.exp, tj.ones(3))
        assert found.op == "exp" and found.index is None and "ZeroDivisionError: no" in str(found)
    wrong(monkeypatch, "exp", lambda run, x: run(x)[:2])
    found = tj.diff(tj.exp, tj.ones(3))
    assert "float32 of shape [3]" in str(found) and "float32 of shape [2]" in str(found)


def test_arguments_that_overlap() -> None:
    base = tj.arange(6.0)

    def step(a, b):
        a.add_(1)
        b.mul_(a.sum())
        return base * 1

    before = base.tolist()
    found = tj.diff(step, base[:4], base[2:])
    assert found.agrees and found.ops >= 3
    assert base.tolist() == before


def test_state_that_only_attributes_show() -> None:
    x, y = tj.ones(3), tj.ones(2, requires_grad=True)
    y.grad = tj.full((2,), 5.0)
    grad = y.grad

    def step():
        x.requires_grad_()
        y.grad = None
        y.data = tj.zeros(2)
        (x.sum() * y.sum()).backward()

    assert tj.diff(step).agrees
    assert not x.requires_grad and x.grad is None
    assert y.grad is grad and grad.tolist() == [5, 5] and y.tolist() == [1, 1]


COUNT = 0


def test_python_state_that_the_step_reaches() -> None:
    generator = tj.Generator().manual_seed(1)
    losses, names, ema, state = [], {"a"}, {"w": tj.zeros(2)}, SimpleNamespace(last=None, cache=tj.ones(1))
    steps = 0

    def step(x):
        global COUNT
        nonlocal steps
        COUNT += 1
        steps += 1
        losses.append(x.sum())
        names.add("b")
        ema["w"] = ema["w"] * 0.9 + x
        state.last = x
        return x + tj.randn(2, generator=generator)

    before, stream = ema["w"], generator.get_state().tolist()
    assert tj.diff(step, tj.ones(2)).agrees
    assert COUNT == 0 and steps == 0 and losses == [] and names == {"a"} and ema == {"w": before} and state.last is None
    assert generator.get_state().tolist() == stream
    step(tj.ones(2))
    assert COUNT == 1 and steps == 1 and len(losses) == 1


def test_a_tape_from_before_is_not_used_up() -> None:
    w = tj.ones(3, requires_grad=True)
    loss = w.exp().sum()
    assert tj.diff(lambda: loss.backward()).agrees
    assert w.grad is None
    loss.backward()
    assert w.grad is not None


def test_in_place_with_a_history_runs_eagerly_and_is_undone() -> None:
    w = tj.ones(4, requires_grad=True)
    total = tj.zeros(4)

    def step(x):
        y = w * x
        y[1:].mul_(3)
        total.add_(y.detach())
        (y * y).sum().backward()
        return total * 2

    assert tj.diff(step, tj.arange(4.0)).agrees
    assert w.grad is None and total.tolist() == [0] * 4


def test_an_exception_is_the_callers_and_the_state_is_as_before() -> None:
    total = tj.zeros(2)

    def step(x):
        total.add_(x)
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        tj.diff(step, tj.ones(2))
    assert total.tolist() == [0, 0]
    assert (total + 1).tolist() == [1, 1]


def test_half_precision() -> None:
    for dtype in (tj.float16, tj.bfloat16, tj.float64):
        found = tj.diff(lambda x: (x * 3).exp().sum(), tj.ones(5, dtype=dtype))
        assert found.agrees and found.ops == 3


def test_random_numbers_are_the_same_and_taken_back() -> None:
    tj.manual_seed(3)
    state = tj.get_rng_state().tolist()
    assert tj.diff(lambda x: F.dropout(x, 0.5) + tj.randn(4), tj.ones(4)).agrees
    assert tj.get_rng_state().tolist() == state


def test_under_autocast() -> None:
    with tj.autocast("cpu", dtype=tj.bfloat16):
        found = tj.diff(lambda x: x @ x, tj.ones(3, 3))
        assert found.agrees and found.ops > 0
        assert (tj.ones(2, 2) @ tj.ones(2, 2)).dtype is tj.bfloat16


def test_on_a_device(monkeypatch) -> None:
    before = devices.use_cuda_module(fake_cupy)
    try:
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.BatchNorm1d(8), nn.Linear(8, 1)).to("cuda")
        optimizer = tj.optim.Adam(model.parameters())

        def step(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss

        x = tj.ones(5, 4, device="cuda")
        step(x)
        state = [[p.tolist(), p.grad.tolist()] for p in model.parameters()]
        found = tj.diff(step, x)
        assert found.agrees and found.ops > 10
        wrong(monkeypatch, "gelu", lambda run, a: run(a) * 2)
        assert tj.diff(step, x).op == "gelu"
        assert [[p.tolist(), p.grad.tolist()] for p in model.parameters()] == state
    finally:
        devices.use_cuda_module(before)


def test_modules_and_keywords() -> None:
    model = tj.compile(nn.Linear(3, 2))
    assert tj.diff(model, tj.ones(1, 3)).agrees
    assert tj.diff(lambda *, x: x + 1, x=tj.ones(2)).ops == 1


def test_a_function_that_is_never_replayed_is_said_to_be() -> None:
    array = np.zeros(3, np.float32)
    x = tj.from_numpy(array)
    found = tj.diff(lambda: x.add_(1))
    assert found.agrees and "clone() the tensor first" in str(found)
    assert array.tolist() == [0, 0, 0]


def test_not_inside_of_compiled_functions() -> None:
    f = tj.compile(lambda x: tj.diff(tj.exp, x))
    with pytest.raises(RuntimeError, match="inside a compiled function"):
        f(tj.ones(2))


def test_of_tensors_it_is_pytorchs() -> None:
    x = tj.tensor([1, 4, 9])
    assert tj.diff(x).tolist() == [3, 5] and tj.diff(x, 2).tolist() == [2] and tj.diff(input=x, n=1).tolist() == [3, 5]
    with pytest.raises(TypeError):
        tj.diff()


def test_distance_in_ulps() -> None:
    one = np.float32([1, -1, 0, np.nan, np.nan, np.inf, np.inf, -0.0])
    other = np.float32([np.nextafter(np.float32(1), np.float32(2)), -1, 1e-45, np.nan, 1, np.inf, 3e38, 0])
    assert distance(one, other).tolist() == [1, 0, 1, 0, np.inf, 0, np.inf, 0]
    assert distance(np.float64([-1e-300]), np.float64([1e-300]))[0] > 1e17


def test_memory_keeps_what_overlaps_as_it_was_first() -> None:
    base = np.arange(10.0)
    memory = Memory()
    first = memory.save(base[2:5])
    base[:] = 7
    second = memory.save(base[4:8])
    third = memory.save(base[::-1])
    base[:] = 0
    assert first.array().tolist() == [2, 3, 4]
    assert second.array().tolist() == [4, 7, 7, 7]
    assert third.array().tolist() == [7, 7, 7, 7, 7, 4, 3, 2, 7, 7]
    assert memory.save(base[:0]).array().tolist() == []
    second.array()[0] = 50
    assert first.array()[2] == 50
