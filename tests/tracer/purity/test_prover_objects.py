"""Functions that are given a model, an optimizer or another object: skipped for each of them, and none is kept alive."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn
from tapejit.tracer.skip import skipped_call as pure

CALLS = 12


def skipped(f: Any) -> int:
    return sum(trace.skipped for trace in f.traces)


def batch(i: int, rows: int = 5) -> tuple[Any, Any]:
    random = np.random.default_rng(i)
    return tuple(tj.tensor(random.normal(size=(rows, n)), dtype=tj.float32) for n in (3, 1))  # type: ignore[return-value]


class Net(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        self.head = nn.Linear(4, 1)
        self.factor = factor

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x)) * self.factor


def step(model: Any, opt: Any, x: Any, y: Any) -> Any:
    loss = F.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


def made(seed: int = 0, optimizer: Any = tj.optim.Adam, **settings: Any) -> tuple[Net, Any]:
    tj.manual_seed(seed)
    model = Net(**settings)
    return model, optimizer(model.parameters(), lr=0.05)


def look(model: Any, opt: Any) -> list[Any]:
    """All that can be seen of them."""
    found: list[Any] = [[p.tolist(), None if p.grad is None else p.grad.tolist(), p._version] for p in model.parameters()]
    return [*found, *[s["step"] for s in opt.state.values() if "step" in s]]


def run(function: Any, sides: list[Any], order: list[int], between: Any = lambda i, sides: None) -> list[Any]:
    losses = []
    for i, k in enumerate(order):
        between(i, sides)
        losses.append(function(*sides[k], *batch(i)).item())
    return [losses, [look(*side[:2]) for side in sides]]


def both(order: list[int], between: Any = lambda i, sides: None, make: Any = lambda: [made(0), made(1, factor=2.0)]) -> Any:
    """Eagerly and compiled, bit for bit; the compiled function."""
    function = tj.compile(step)
    assert run(step, make(), order, between) == run(function, make(), order, between)
    return function


def test_a_model_and_its_optimizer() -> None:
    function = both([0] * CALLS)
    assert skipped(function) >= 4 and "without Python" in str(function.explain())


@pytest.mark.parametrize("order", [[0] * 10 + [1] * 10, [0, 1] * 12, [0, 0, 1] * 9])
def test_two_models_take_turns(order: list[int]) -> None:
    assert skipped(both(order)) >= 5


def test_a_model_of_another_class_or_with_other_settings() -> None:
    class Other(Net):
        def forward(self, x: Any) -> Any:
            return super().forward(x) + 1

    def make() -> list[Any]:
        model = Other()
        for mine, other in zip(model.parameters(), made(3)[0].parameters(), strict=True):
            mine.data.copy_(other)
        return [made(0), (model, tj.optim.Adam(model.parameters(), lr=0.1)), made(2, tj.optim.SGD)]

    both([0] * 10 + [1] * 10 + [2] * 10 + [0, 1, 2] * 4, make=make)


@pytest.mark.parametrize(
    "change",
    [
        lambda model, opt: opt.param_groups[0].update(lr=0.5),
        lambda model, opt: setattr(model, "factor", 3.0),
        lambda model, opt: setattr(model, "head", nn.Linear(4, 1)),
        lambda model, opt: model.body[0].register_forward_hook(lambda m, given, out: out * 2),
        lambda model, opt: setattr(model.head, "forward", lambda x: x.sum(1, keepdim=True)),
        lambda model, opt: opt.load_state_dict(opt.state_dict()),
        lambda model, opt: model.head.weight.requires_grad_(False),
        lambda model, opt: setattr(model, "__class__", Doubled),
    ],
)
def test_what_changes_in_them_is_seen(change: Any) -> None:
    def between(i: int, sides: list[Any]) -> None:
        if i == 11:
            tj.manual_seed(5)
            change(*sides[0])

    assert skipped(both([0] * 16, between)) >= 2


class Doubled(Net):
    def forward(self, x: Any) -> Any:
        return Net.forward(self, x) * 2


# ---- nobody is kept alive


def test_a_model_is_gone_when_its_users_drop_it() -> None:
    function = tj.compile(step)
    model, opt = made()
    run(function, [(model, opt)], [0] * CALLS)
    assert skipped(function) and function.skipped_calls
    gone = [weakref.ref(x) for x in (model, opt, model.head.weight)]
    gc.disable()
    try:
        del model, opt
        assert [x() for x in gone] == [None] * 3 and not function.skipped_calls  # at once, by reference counts
    finally:
        gc.enable()


def test_parameters_outlive_their_model() -> None:
    """What was lent is settled for those who still have it."""
    results = []
    for function in (step, tj.compile(step)):
        model, opt = made()
        for i in range(CALLS):
            function(model, opt, *batch(i))
        kept = list(model.parameters())
        del model
        seen = [[p.tolist(), p.grad.tolist(), p._version] for p in kept]
        results.append([seen, [s["step"] for s in opt.state.values()], repr(opt.state_dict())])
    assert results[0] == results[1]


def test_a_model_outlives_its_optimizer() -> None:
    results = []
    for function in (step, tj.compile(step)):
        model, opt = made()
        state = None
        for i in range(2 * CALLS):
            if i == CALLS:
                state, opt = opt.state, tj.optim.SGD(model.parameters(), lr=0.01)
                del opt.param_groups[0]["params"][0]
            function(model, opt, *batch(i))
        results.append([look(model, opt), [s["step"] for s in state.values()]])
    assert results[0] == results[1]


def test_ids_are_used_again() -> None:
    results = []
    for function in (step, tj.compile(step)):
        losses = []
        for k in range(12):
            model, opt = made(k, factor=float(k % 3 + 1))
            for i in range(8):
                losses.append(function(model, opt, *batch(i)).item())
            del model, opt
        results.append(losses)
    assert results[0] == results[1]
    assert skipped(function) >= 12 and not function.skipped_calls


def test_one_that_refers_to_itself_is_right_and_not_kept() -> None:
    class Cyclic(Net):
        pass

    def make() -> list[Any]:
        tj.manual_seed(0)
        model = Cyclic()
        model.__dict__["itself"] = [model]
        return [(model, tj.optim.SGD(model.parameters(), lr=0.1))]

    function = both([0] * CALLS, make=make)
    assert skipped(function) == 0 and "a guard would keep alive" in str(function.traces[0].impure)
    sides = make()
    run(function, sides, [0] * CALLS)
    gone = weakref.ref(sides[0][0])
    sides.clear()
    gc.collect()
    assert gone() is None


def test_one_that_is_known_by_a_name_as_well() -> None:
    model, _ = made()

    def named(given: Any, x: Any) -> Any:
        return given(x).sum() + model(x).sum()

    function = tj.compile(named)
    for i in range(CALLS):
        assert function(model, batch(i)[0]).item() == named(model, batch(i)[0]).item()


def test_while_another_thread_uses_the_function() -> None:
    """Then it is put off."""
    function = tj.compile(step)
    model, opt = made()
    run(function, [(model, opt)], [0] * CALLS)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with function.pure_lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    gone = weakref.ref(model)
    del model, opt
    assert gone() is None and len(pure.calls_to_discard) == 1
    done.set()
    thread.join()
    run(function, [made(2)], [0] * CALLS)
    assert not pure.calls_to_discard


# ---- objects of the user's


@dataclass
class Trainer:
    model: Any
    opt: Any
    scale: float = 1.0

    @tj.compile
    def step(self, x: Any, y: Any) -> Any:
        return self.plain(x, y)

    def plain(self, x: Any, y: Any) -> Any:
        loss = F.mse_loss(self.model(x), y) * self.scale
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss


def test_a_method_of_an_object() -> None:
    results = []
    for compiled in (False, True):
        trainers = [Trainer(*made(k)) for k in range(2)]
        losses = []
        for i in range(30):
            trainer = trainers[i // 10 % 2]
            trainer.scale = 1.0 if i < 25 else 0.5
            losses.append((trainer.step if compiled else trainer.plain)(*batch(i)).item())
        results.append([losses, [look(t.model, t.opt) for t in trainers]])
    assert results[0] == results[1] and skipped(Trainer.step) >= 8
    gone = weakref.ref(trainers[1])
    del trainers, trainer
    assert gone() is None


def test_an_object_for_each_call_is_not_looked_at_for_ever() -> None:
    @dataclass
    class Batch:
        x: Any
        y: Any

    def loss(model: Any, given: Any) -> Any:
        return F.mse_loss(model(given.x), given.y).detach()

    function, (model, _) = tj.compile(loss), made()
    for i in range(45):
        assert function(model, Batch(*batch(i))).item() == loss(model, Batch(*batch(i))).item()
    assert skipped(function) == 0 and "other objects at each call" in str(function.traces[0].impure)


def test_with_a_promise_they_are_not_kept_either() -> None:
    function = tj.compile(step, pure=True)
    model, opt = made()
    other = made()
    assert run(function, [(model, opt)], [0] * CALLS) == run(step, [other], [0] * CALLS)
    gone = weakref.ref(model)
    del model, opt
    assert gone() is None and not function.skipped_calls


def test_none_in_the_place_of_one_that_is_gone() -> None:
    def maybe(model: Any, x: Any) -> Any:
        return x.sum() if model is None else model(x).sum()

    function, (model, _) = tj.compile(maybe), made()
    with tj.no_grad():
        for i in range(CALLS):
            function(model, batch(i)[0])
        with function.pure_lock:  # so that nothing is thrown away yet
            del model
            x = batch(0)[0]
            assert function(None, x).item() == x.sum().item()
