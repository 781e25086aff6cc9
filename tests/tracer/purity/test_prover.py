"""Functions whose Python is proved to touch tensors only are skipped without a promise; whatever could be noticed is not."""

from __future__ import annotations

import functools
import linecache
import math
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.tolerances import assert_within, spread
from tapejit import nn
from tapejit.tracer.skip.skipped_call import materialise_all
from tapejit.tracer.trace.logging import display_line

CALLS = 12
SCALE = 2.0
HALVES = [0.5, 0.5]
LOG: list[Any] = []
CONFIG = types.SimpleNamespace(scale=0.5, shift=(1.0, 2.0))


def skipped(f: Any) -> int:
    return sum(trace.skipped for trace in f.traces)


def why(f: Any) -> str:
    return str(f.traces[0].impure)


def batch(i: int, rows: int = 5) -> tuple[Any, Any]:
    random = np.random.default_rng(i)
    return tuple(tj.tensor(random.normal(size=(rows, n)), dtype=tj.float32) for n in (3, 1))  # type: ignore[return-value]


class Net(nn.Module):
    """A user's module: attributes, a branch, a loop, a helper."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.last = nn.Sequential(nn.Tanh(), nn.Linear(4, 1))
        self.factor = 1.0
        self.residual = True

    def mixed(self, h: Any) -> Any:
        for i, layer in enumerate(self.layers):
            h = h + layer(h) * (self.factor + i) if self.residual else layer(h)
        return h

    def forward(self, x: Any) -> Any:
        h = F.relu(self.first(x))
        if self.training:
            h = h * 1.5
        return self.last(self.mixed(h))


@dataclass
class Training:
    """A step as the method of a plain object."""

    model: Any
    optimizer: Any
    factor: float = 1.0
    penalty: Any = None
    log: list[Any] = field(default_factory=list)

    def step(self, *batch: Any) -> Any:
        x, y = batch
        loss = F.mse_loss(self.model(x), y) * self.factor
        if self.penalty is not None:
            loss = loss + self.penalty(self.model.first.weight)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def training(optimizer: Any = tj.optim.SGD) -> Training:
    tj.manual_seed(0)
    model = Net()
    return Training(model, optimizer(model.parameters(), lr=0.05))


Between = Callable[[int, Any], Any]


def trained(compiled: bool, between: Between, calls: int) -> tuple[list[Any], Any]:
    made = training()
    step = tj.compile(made.step) if compiled else made.step
    losses = []
    for i in range(calls):
        between(i, made)
        losses.append(step(*batch(i)).item())
    return [losses, [p.tolist() for p in made.model.parameters()]], step


def both(between: Between = lambda i, made: None, calls: int = CALLS) -> Any:
    """Train eagerly and compiled, with something done between calls; the results are the same. Returns the compiled step."""
    expected, _ = trained(False, between, calls)
    found, step = trained(True, between, calls)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    return step


# ---- what is skipped


def test_a_training_step_is_skipped() -> None:
    step = both()
    assert skipped(step) >= CALLS - 8, why(step)
    assert "without Python" in str(step.explain())


def test_with_state_in_the_optimizer() -> None:
    made = training(tj.optim.Adam)
    step = tj.compile(made.step)
    for i in range(CALLS):
        step(*batch(i))
    assert skipped(step) > 0, why(step)
    counts = [s["step"] for s in made.optimizer.state.values()]
    assert counts == [CALLS] * len(counts)


def add_up(x: Any, *more: Any) -> Any:
    found = x
    for m in more:
        found = found + m
    return found


def scaled(x: Any, by: float = 3.0) -> Any:
    return x * by


PROVED: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x: (-x * 2 + 1) / (x @ x.T).sum() ** 2 - x[0, :2].mean(),
    "globals": lambda x: x * SCALE + HALVES[0],
    "other functions": lambda x: scaled(add_up(x, x, x), by=0.5) + scaled(x),
    "a choice": lambda x: x if x.shape[0] > 100 else x + 1,
    "python": lambda x: x * max(len(x), 2) + sum([1, 2]),
    "lists": lambda x: tj.cat([x + i for i in range(3)]) + sum(h.sum() for h in (x, x * 2)),
    "settings": lambda x: x * CONFIG.scale + CONFIG.shift[1],
    "partial": functools.partial(scaled, by=0.25),
    "random numbers": lambda x: F.dropout(x, 0.5) + tj.rand(5, 3),
}


@pytest.mark.parametrize("name", PROVED)
def test_skipped(name: str) -> None:
    function = PROVED[name]
    f = tj.compile(function)
    for seed in range(CALLS):
        x, _ = batch(seed)
        tj.manual_seed(seed)
        found = f(x)
        tj.manual_seed(seed)
        np.testing.assert_allclose(found.numpy(), function(x).numpy(), rtol=1e-6)
    assert skipped(f) > 0, why(f)


def test_the_form_of_a_captured_tensor_is_guarded() -> None:
    """Where only its shape or dtype is read, no op would notice that it has another one."""
    like = tj.ones(5, 3)

    def function(x: Any) -> Any:
        return (x.reshape(like.shape) * like.ndim + like.size(0)).to(like.dtype)

    f = tj.compile(function)
    x, _ = batch(0)
    for _ in range(CALLS):
        f(x)
    assert skipped(f) > 0, why(f)
    for other in (tj.ones(3, 5), tj.ones(15), tj.ones(5, 3).double(), tj.ones(5, 3)):
        like.data = other
        for _ in range(3):
            found, wanted = f(x), function(x)
            assert found.dtype == wanted.dtype and found.tolist() == wanted.tolist()


def test_loops_and_contexts() -> None:
    def function(x: Any) -> Any:
        outs = []
        h = tj.zeros(3)
        for row in x:
            h = (h + row).tanh()
            outs.append(h)
        with tj.no_grad():
            scale = h.abs().max()
        if h.shape[0] > 10 or h.ndim != 1:
            raise ValueError("too long")
        return tj.stack(outs) / scale

    f = tj.compile(function)
    for seed in range(CALLS):
        x, _ = batch(seed)
        np.testing.assert_allclose(f(x).numpy(), function(x).numpy(), rtol=1e-6)
    assert skipped(f) > 0, why(f)


class Rich(Training):
    """A step with a batch that is a dict, a mode, clipped gradients, a penalty, and several results."""

    def step(self, batch: Any) -> Any:  # type: ignore[override]
        self.model.train()
        out = self.model(batch["x"])
        loss = F.mse_loss(out, batch["y"]) + 0.01 * sum(p.square().sum() for p in self.model.parameters())
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return {"loss": loss, "norm": norm, "out": out.detach()}


def unused_gradient(made: Any) -> None:
    made.model.extra = nn.Parameter(tj.ones(2))
    made.model.extra.grad = tj.full((2,), 5.0)


class Shy(nn.Sequential):
    """A module that does not show its parameters."""

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return iter(())


RICH: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda made: None,
    "evaluation": lambda made: made.model.eval(),
    "a gradient that was not there": unused_gradient,
    "one that was there without one": lambda made: setattr(made.model.idle, "grad", tj.full((2,), 5.0)),
    "parameters that are not shown": lambda made: setattr(made.model, "last", Shy(nn.Linear(4, 1))),
}


@pytest.mark.parametrize("name", RICH)
def test_a_rich_step(name: str) -> None:
    results = []
    for compiled in (False, True):
        tj.manual_seed(0)
        model = Net()
        model.idle = nn.Parameter(tj.ones(2))
        made = Rich(model, tj.optim.SGD([p for n, p in model.named_parameters() if n != "idle"], lr=0.05))
        step = tj.compile(made.step) if compiled else made.step
        found = []
        for i in range(2 * CALLS):
            x, y = batch(i)
            if i == CALLS:
                RICH[name](made)
            found.append([v.tolist() for v in step({"x": x, "y": y}).values()])
        results.append([*found, [p.tolist() for p in model.parameters()]])
    for a, b in zip(*results, strict=True):
        for one, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert skipped(step) > 0, why(step)


# ---- what is not


class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.values: list[float] = []

    @property
    def next(self) -> int:
        self.count += 1
        return self.count

    def __call__(self, x: Any) -> Any:
        self.count += 1
        return x

    def __getitem__(self, i: int) -> int:
        return self.next


COUNTER = Counter()
GIVEN = np.ones(3, np.float32)


def counting(x: Any) -> Any:
    COUNTER.count += 1
    return x + 1


def by_global(x: Any) -> Any:
    global SCALE_NOW
    SCALE_NOW = 1
    return x + 1


def printing(x: Any) -> Any:
    print("here")
    return x + 1


def in_a_branch(x: Any) -> Any:
    if x.shape[0] > 1000:
        COUNTER.count = 7
    return x + 1


def opening(x: Any) -> Any:
    with Context():
        return x + 1


class Context:
    def __enter__(self) -> None:
        COUNTER.count += 1

    def __exit__(self, *_: Any) -> None:
        pass


def trying(x: Any) -> Any:
    try:
        return x + 1
    finally:
        COUNTER.count += 1


def collecting(x: Any, into: Any = LOG) -> Any:
    into.append(1)
    return x + 1


def generating(x: Any) -> Any:
    return x + sum(made())


def made() -> Any:
    COUNTER.count += 1
    yield 1


def walking(x: Any) -> Any:
    return x + (y := 2) * y


def spreading(x: Any) -> Any:
    settings = HALVES and {"other": 1}
    return tj.add(x, **settings)


def outer(x: Any) -> Any:
    def inner() -> Any:
        return x + 1

    return inner()


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "an attribute": (counting, "writes to an object other than a tensor"),
    "a global": (by_global, "global statement"),
    "prints": (printing, "print"),
    "a branch that is not taken": (in_a_branch, "writes to an object other than a tensor"),
    "a context": (opening, "context"),
    "try": (trying, "try statement"),
    "a list": (collecting, "`append` of a list|list customises"),
    "a generator": (generating, "not a plain function"),
    "an assignment inside": (walking, "namedexpr"),
    "a function inside": (outer, "functiondef"),
    "a dict": (spreading, "objects"),
    "a property": (lambda x: x + COUNTER.next, "computed"),
    "an object that is called": (lambda x: COUNTER(x) + 1, "calls `Counter"),
    "an object with elements": (lambda x: x + COUNTER[0], "objects"),
    "an array": (lambda x: x + tj.from_numpy(GIVEN), "may change"),
    "time": (lambda x: x + tj.tensor(COUNTER.count), "may change"),
    "a class": (lambda x: x + Counter().count, "calls `Counter"),
    "others": (lambda x: x + np.float32(1), "float32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_not_skipped(name: str, capsys: Any) -> None:
    function, reason = REFUSED[name]
    f = tj.compile(function)
    for seed in range(CALLS):
        f(batch(seed)[0])
    assert skipped(f) == 0
    assert any(part in why(f) for part in reason.split("|")), why(f)
    assert capsys.readouterr().out == "here\n" * CALLS * (name == "prints")
    assert "Python still runs: could not prove that " in str(f.explain())


def test_the_reason_names_the_line() -> None:
    f = tj.compile(printing)
    for seed in range(CALLS):
        f(batch(seed)[0])
    path, first = printing.__code__.co_filename, printing.__code__.co_firstlineno
    assert f"could not prove that {display_line(f'{path}:{first + 1}')} only touches tensors (it calls `print`)" in str(
        f.explain()
    )


def test_side_effects_happen_at_each_call() -> None:
    for function in (counting, opening, trying, REFUSED["a property"][0], REFUSED["an object that is called"][0]):
        before = COUNTER.count
        f = tj.compile(function)
        for seed in range(CALLS):
            f(batch(seed)[0])
        assert COUNTER.count == before + CALLS


class Loud(tj.Tensor):
    """A tensor with a method of the user's."""

    def __add__(self, other: Any) -> Any:
        COUNTER.count += 1
        return tj.add(self.detach(), other)


def test_a_kind_of_tensor_of_the_users() -> None:
    f = tj.compile(lambda x: x + 1)
    before = COUNTER.count
    for _ in range(CALLS):
        f(Loud([1.0, 2.0]))
    assert COUNTER.count == before + CALLS and skipped(f) == 0


def test_a_list_that_is_given_is_not_the_functions_own() -> None:
    def function(x: Any, into: Any) -> Any:
        into.append(x + 1)
        return x

    f = tj.compile(function)
    for i in range(CALLS):
        given: list[Any] = []
        f(batch(i)[0], given)
        assert len(given) == 1


def test_a_function_without_a_source() -> None:
    space: dict[str, Any] = {}
    exec("def function(x):\n    return x + 1\n", space)
    f = tj.compile(space["function"])
    for i in range(CALLS):
        f(batch(i)[0])
    assert skipped(f) == 0 and "source" in why(f)


def test_a_source_that_is_not_what_runs(tmp_path: Any) -> None:
    """The file was edited after it was imported: what runs counts things, what stands there does not."""
    file = tmp_path / "edited.py"
    text = "SEEN = []\ndef function(x):\n    SEEN.append(1)\n    return x + 1\n"
    file.write_text(text)
    space: dict[str, Any] = {"__name__": "edited"}
    exec(compile(text, str(file), "exec"), space)
    file.write_text(text.replace("SEEN.append(1)", "x = x * 1   "))
    linecache.clearcache()
    f = tj.compile(space["function"])
    for i in range(CALLS):
        f(batch(i)[0])
    assert len(space["SEEN"]) == CALLS and "not what runs" in why(f)


class Odd:
    """An object that does not like to be looked at."""

    __dict__ = property(lambda self: 1 / 0)  # type: ignore[assignment]


ODD = Odd()


def test_objects_that_cannot_be_looked_at() -> None:
    f = tj.compile(lambda x: x + (ODD.factor if x.ndim == 7 else 1))
    for i in range(CALLS):
        f(batch(i)[0])
    assert skipped(f) == 0 and "division by zero" in why(f)


# ---- what has to be noticed once Python is skipped


def at(n: int, change: Callable[[Any], Any]) -> Between:
    return lambda i, made: change(made) if i == n else None


class Replacement(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 0.5


def other_forward(self: Any, x: Any) -> Any:
    return self.last(F.relu(self.first(x)) * 3)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an attribute of an object": lambda made: setattr(made, "factor", 0.5),
    "an attribute behind its back": lambda made: made.__dict__.update(factor=0.5),
    "a function where there was none": lambda made: setattr(made, "penalty", lambda w: (w * w).sum()),
    "an attribute of a module": lambda made: setattr(made.model, "factor", 2.0),
    "a branch": lambda made: setattr(made.model, "residual", False),
    "evaluation": lambda made: made.model.eval(),
    "a child": lambda made: setattr(made.model, "last", nn.Sequential(nn.Linear(4, 1))),
    "a child behind its back": lambda made: made.model._modules.update(first=nn.Linear(3, 4, dtype=tj.float32)),
    "a child of a list": lambda made: made.model.layers._modules.update({"0": Replacement()}),
    "one child more": lambda made: made.model.layers.append(Replacement()),
    "a parameter behind its back": lambda made: made.model.first._parameters.update(bias=nn.Parameter(tj.ones(4))),
    "the model": lambda made: setattr(made, "model", nn.Sequential(nn.Linear(3, 1))),
    "the learning rate": lambda made: made.optimizer.param_groups[0].update(lr=0.5),
    "the optimizer": lambda made: setattr(made, "optimizer", tj.optim.Adam(made.model.parameters(), lr=0.01)),
    "a forward of its own": lambda made: setattr(made.model, "forward", types.MethodType(other_forward, made.model)),
    "a step of its own": lambda made: setattr(made.optimizer, "step", lambda: None),
    "a hook": lambda made: made.model.first.register_forward_hook(lambda m, x, y: y * 2),
    "a frozen parameter": lambda made: made.model.first.weight.requires_grad_(False),
    "the data of a parameter": lambda made: setattr(made.model.first.weight, "data", tj.ones(4, 3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed(name: str) -> None:
    step = both(at(CALLS, CHANGES[name]), calls=2 * CALLS)
    assert skipped(step) > 0, why(step)


def replaced(where: Any, name: str, value: Any, monkeypatch: Any) -> Any:
    """Train with something else in the place of a function from the middle on."""

    def between(i: int, made: Any) -> None:
        if i == 0:
            monkeypatch.undo()
        if i == CALLS:
            monkeypatch.setattr(where, name, value)

    return both(between, calls=2 * CALLS)


def test_replaced_functions_are_noticed(monkeypatch: Any) -> None:
    places = [
        (F, "relu", lambda x: x * 0.25),
        (F, "linear", lambda x, w, b=None: tj.matmul(x, w.t())),
        (Net, "mixed", lambda self, h: h),
        (Net, "forward", other_forward),
        (nn.Tanh, "forward", lambda self, x: x),
        (sys.modules[__name__], "F", types.SimpleNamespace(relu=lambda x: x, mse_loss=F.mse_loss)),
        (tj.Tensor, "__mul__", lambda self, other: tj.mul(self, other) + 1),
        (tj.optim.SGD, "step", lambda self: None),
        (Net.mixed, "__code__", (lambda self, h: h - 1).__code__),
    ]
    for place in places:
        step = replaced(*place, monkeypatch)
        assert skipped(step) > 0, (place, why(step))
        monkeypatch.undo()


def test_globals_and_lists_are_noticed(monkeypatch: Any) -> None:
    f = tj.compile(PROVED["globals"])
    monkeypatch.setitem(globals(), "HALVES", [0.5, 0.5])
    x = tj.ones(2)
    for _ in range(CALLS):
        assert f(x).tolist() == [2.5, 2.5]
    assert skipped(f) > 0
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    assert f(x).tolist() == [4.5, 4.5]
    HALVES[0] = 1.0
    assert f(x).tolist() == [5.0, 5.0]


def test_settings_are_noticed(monkeypatch: Any) -> None:
    f = tj.compile(PROVED["settings"])
    for _ in range(CALLS):
        assert f(tj.ones(2)).tolist() == [2.5, 2.5]
    assert skipped(f) > 0
    monkeypatch.setattr(CONFIG, "scale", 1.0)
    assert f(tj.ones(2)).tolist() == [3.0, 3.0]


def test_shadowed_builtins_are_noticed(monkeypatch: Any) -> None:
    f = tj.compile(lambda x: x * max(2, 3))
    x = tj.ones(2)
    for _ in range(CALLS):
        assert f(x).tolist() == [3.0, 3.0]
    assert skipped(f) > 0
    monkeypatch.setitem(globals(), "max", min)
    assert f(x).tolist() == [2.0, 2.0]


def test_defaults_are_noticed(monkeypatch: Any) -> None:
    f = tj.compile(lambda x: scaled(x))
    x = tj.ones(2)
    for _ in range(CALLS):
        assert f(x).tolist() == [3.0, 3.0]
    assert skipped(f) > 0
    monkeypatch.setattr(scaled, "__defaults__", (5.0,))
    assert f(x).tolist() == [5.0, 5.0]


def test_a_debugger_sees_the_lines() -> None:
    made = training()
    step = tj.compile(made.step)
    for i in range(CALLS):
        step(*batch(i))
    assert skipped(step) > 0
    before, lines = skipped(step), []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is Training.step.__code__:
            lines.append(event)
        return trace

    watching = sys.gettrace()
    sys.settrace(trace)
    try:
        step(*batch(0))
    finally:
        sys.settrace(watching)
    assert "line" in lines and skipped(step) == before
    step(*batch(1))
    assert skipped(step) == before + (watching is None)


def test_guards_that_are_not_worth_it() -> None:
    """Where binding what is captured at each call takes longer than Python does, Python runs."""
    made = training()
    step = tj.compile(made.step)

    def run(calls: int) -> int:
        before = skipped(step)
        for i in range(calls):
            step(*batch(i))
            materialise_all()  # as another function that has the same parameters would
        return skipped(step) - before

    run(CALLS)
    assert skipped(step) > 0, why(step)
    for trace in step.traces:  # the clock's part: on a busy machine either way may seem the quicker
        trace.quickest = math.inf
    run(40)
    assert run(10) == 10
    for trace in step.traces:
        trace.quickest = 0.0
    run(40)
    assert run(10) == 0 and not step.stable_path


def test_arguments_that_can_be_reached_are_arguments() -> None:
    """The batches are an attribute of the object whose method is compiled, but it does not read them."""
    made = training()
    made.log = [batch(i) for i in range(2)]
    step = tj.compile(made.step)
    for _ in range(CALLS):
        step(*made.log[0])
    assert skipped(step) > 0, why(step)
    expected = F.mse_loss(made.model(made.log[1][0]), made.log[1][1]).item()
    assert abs(step(*made.log[1]).item() - expected) < 1e-6


def test_results_that_are_differentiated_later_need_python() -> None:
    w = tj.ones(3, requires_grad=True)
    f = tj.compile(lambda x: (x * w).tanh().sum())
    for i in range(CALLS):
        x, _ = batch(i)
        w.grad = None
        f(x).backward()
        terms = x.double() * (1 - (x.double() * w.detach().double()).tanh() ** 2)
        # 1 - tanh(x)^2 is rounded as a number of size 1
        assert_within(w.grad, terms.sum(0), spread(x.double().abs().sum(0), len(x) + 4))
    assert skipped(f) == 0 and "differentiated later" in why(f)
