"""Functions, methods and modules under `tj.compile`, in threads and processes too: see `soundness_harness.py`."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import sys
import threading
import warnings
from typing import Any

import pytest
import tapejit as tj
from support.scripts import batch, state_of
from support.soundness_harness import both, mlp
from support.traced import seen
from tapejit import nn

# ---- the decorator


def test_nested_compile() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def inner(x):
            return x.exp() if x.shape[0] == 3 else x.sin()

        @compile
        def outer(x):
            return inner(x) * 2 + inner(x[:2]).sum()

        for i in range(12):
            note(outer(batch(i)))
            if i > 5:
                note(inner(batch(i)))

    f = both(script, replayed=10, divergences=0)
    assert len(f.traces) == 1


def test_compile_is_called_inside() -> None:
    def script(compile: Any, note: Any) -> None:
        def outer(x):
            inner = tj.compile(lambda y: y.tanh() + 1)
            return inner(x * 2)

        f = compile(outer)
        for i in range(8):
            note(f(batch(i)))

    both(script, replayed=6, divergences=0)


class Counter:
    """Methods of all kinds."""

    total = 0.0

    def __init__(self) -> None:
        self.count = tj.zeros(3)

    @tj.compile
    def method(self, x: tj.Tensor) -> tj.Tensor:
        """Adds."""
        self.count.add_(x)
        return self.count * 2

    @tj.compile
    @staticmethod
    def static(x: tj.Tensor) -> tj.Tensor:
        return x * 3

    @staticmethod
    @tj.compile
    def compiled_static(x: tj.Tensor) -> tj.Tensor:
        return x * 4

    @tj.compile
    @classmethod
    def of_the_class(cls, x: tj.Tensor) -> tj.Tensor:
        cls.total += 1
        return x * cls.total

    @classmethod
    @tj.compile
    def compiled_of_the_class(cls, x: tj.Tensor) -> tj.Tensor:
        return x - cls.total


def test_methods() -> None:
    first, second = Counter(), Counter()
    for i in range(8):
        counter = second if i % 3 == 2 else first
        expected = (counter.count + batch(i)) * 2
        assert counter.method(batch(i)).tolist() == expected.tolist()
        assert Counter.static(batch(i)).tolist() == counter.static(batch(i)).tolist() == (batch(i) * 3).tolist()
        assert Counter.compiled_static(batch(i)).tolist() == (batch(i) * 4).tolist()
        assert Counter.of_the_class(batch(i)).tolist() == (batch(i) * float(i + 1)).tolist()
        assert counter.compiled_of_the_class(batch(i)).tolist() == (batch(i) - float(i + 1)).tolist()
    assert Counter.method.hits == Counter.compiled_static.hits == Counter.of_the_class.__func__.hits == 6
    assert Counter.static.hits == 14
    assert first.method.__self__ is first and Counter.method.__doc__ == "Adds."


def test_a_module_instance() -> None:
    def script(compile: Any, note: Any) -> None:
        plain = mlp()
        model = compile(plain)
        note(isinstance(model, nn.Sequential), list(model.state_dict()), len(model), repr(model) == repr(plain))
        optimizer = tj.optim.SGD(model.parameters(), lr=0.1)
        for i in range(14):
            model.train(i % 6 < 3)
            if i == 10:
                model.load_state_dict(copy.deepcopy(plain.state_dict()))
            loss = model(batch(i, 4, 3)).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            note(loss, state_of(model), plain.training)

    both(script, replayed=9)


def test_a_module_instance_with_hooks_and_copies() -> None:
    def script(compile: Any, note: Any) -> None:
        model = compile(nn.Linear(3, 2))
        model.register_forward_hook(lambda m, args, out: out * 2)
        other = copy.deepcopy(model)
        for i in range(8):
            note(model(batch(i, 4, 3)), other(batch(i, 4, 3)))

    both(script, replayed=6)


def test_a_module_class() -> None:
    def script(compile: Any, note: Any) -> None:
        class Block(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.linear = nn.Linear(width, width)
                self.register_buffer("count", tj.zeros(()))

            def forward(self, x, depth=1):
                self.count += 1
                for _ in range(depth):
                    x = self.linear(x).tanh()
                return x

        Block = compile(Block)
        a, b = Block(3), Block(3)
        for i in range(12):
            y = b(a(batch(i, 4, 3)), depth=1 + i % 2)
            y.sum().backward()
            note(y, state_of(a), state_of(b))

    both(script, replayed=16)


@tj.compile(name="a name")
def documented(x: tj.Tensor, *, scale: float = 2.0) -> tj.Tensor:
    """What it says."""
    return x * scale


def test_signature_docs_and_pickling() -> None:
    assert documented.__doc__ == "What it says." and documented.__name__ == "documented"
    assert str(inspect.signature(documented)) == "(x: 'tj.Tensor', *, scale: 'float' = 2.0) -> 'tj.Tensor'"
    assert documented.__module__ == __name__ and documented.name == "a name"
    assert pickle.loads(pickle.dumps(documented)) is documented
    assert copy.copy(documented) is documented and copy.deepcopy(documented) is documented
    assert callable(documented) and documented(tj.ones(1), scale=3).item() == 3
    assert tj.compile(documented) is documented
    assert "a name" in repr(documented)


def test_a_compiled_module_is_pickled() -> None:
    model = tj.compile(mlp()).eval()
    for i in range(4):
        expected = model(batch(i, 4, 3))
    found = pickle.loads(pickle.dumps(model))
    assert found(batch(3, 4, 3)).tolist() == expected.tolist()


def test_wrong_arguments_are_refused_as_before() -> None:
    f = tj.compile(lambda x: x * 2)
    for i in range(6):
        with pytest.raises(TypeError, match="positional argument"):
            f(batch(i), 1)
        f(batch(i))
    assert f.hits >= 2
    with pytest.raises(TypeError):
        tj.compile(3)
    with pytest.raises(ValueError, match="backend"):
        tj.compile(lambda x: x, backend="none")


def test_switched_off() -> None:
    f = tj.compile(lambda x: x * 2)
    for i in range(4):
        f(batch(i))
    assert f.hits == 2
    with tj.eager():
        assert f(batch(0)).tolist() == (batch(0) * 2).tolist()
        with tj.eager():
            f(batch(1, 4))
        f(batch(1, 4))
    assert f.hits == 2 and f.calls == 7 and len(f.traces) == 1 and not f.divergences
    f(batch(0))
    assert f.hits == 3


def test_switched_off_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT", "eager")
    f = tj.compile(lambda x: x * 2)
    monkeypatch.delenv("TAPEJIT")
    for i in range(6):
        assert f(batch(i)).tolist() == (batch(i) * 2).tolist()
    assert f.hits == f.recordings == 0


def test_switched_off_in_the_middle() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def inner(x):
            return x * 2

        @compile
        def f(x):
            y = x + 1
            with tj.eager():
                y = inner(y)
            return y * 3

        for i in range(8):
            note(f(batch(i)))

    both(script, replayed=6)


def test_budget_and_eviction() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x):
            return x * 2 + 1

        for i in range(5):
            for _ in range(4):
                note(f(batch(i, i + 1)))
        note(f(batch(0, 1)))

    f = both(script, replayed=14, budget=2)
    assert len(f.traces) <= 2 and f.evictions >= 3


def test_the_least_recently_used_path_goes_first() -> None:
    f = tj.compile(lambda x: x * 2, budget=2)
    for n in (1, 1, 2, 1, 3, 1, 1):
        f(batch(0, n))
    before = sum(f.divergences.values())
    f(batch(0, 1))
    f(batch(0, 3))
    assert sum(f.divergences.values()) == before
    f(batch(0, 2))
    assert sum(f.divergences.values()) == before + 1


@pytest.mark.parametrize("first", [3, 0])
def test_a_function_that_keeps_diverging_goes_eager_with_one_warning(first: int) -> None:
    f = tj.compile(lambda x: (x * 2).sum(), budget=2)
    for _ in range(first):
        f(tj.ones(50))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 40):
            assert f(tj.ones(n)).item() == 2 * n
    assert (
        len(caught) == 1
        and "keeps diverging" in str(caught[0].message)
        and os.path.basename(__file__) in str(caught[0].message)
    )
    assert f.gave_up is not None and "runs eagerly" in str(f.explain())
    recordings = f.recordings
    for _ in range(5):
        f(tj.ones(3))
    assert f.recordings == recordings
    f.reset()
    for _ in range(5):
        f(tj.ones(3))
    assert f.hits == 3


def test_a_function_that_diverges_now_and_then_does_not_give_up() -> None:
    f = tj.compile(lambda x: (x * 2).sum(), budget=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(120):
            f(tj.ones(3 if i % 6 else 4 + i))
    assert f.gave_up is None and f.hits >= 60


# ---- threads and processes


def test_threads_call_the_same_function() -> None:
    w = tj.ones(4, requires_grad=True)

    @tj.compile
    def f(x, n):
        y = x * w
        for _ in range(n):
            y = (y + 1).tanh()
        if y.sum().item() > 0:
            y = y * 2
        return y

    def plain(x, n):
        return f.function(x, n).tolist()

    wrong: list[Any] = []

    def work(k: int) -> None:
        try:
            for i in range(40):
                x, n = batch(100 * k + i, 4), (k + i // 8) % 3
                if f(x, n).tolist() != plain(x, n):
                    wrong.append((k, i))
        except BaseException as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert f.hits > 80


def test_training_in_threads_each_with_its_model() -> None:
    @tj.compile
    def step(model, optimizer, x):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(6)]
    for m in models[3:]:
        m.load_state_dict(models[models.index(m) - 3].state_dict())
    optimizers = [tj.optim.Adam(m.parameters(), lr=0.1) for m in models]
    errors: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for i in range(15):
                step(models[k], optimizers[k], batch(i, 4, 3))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and step.hits > 20
    for k in range(3, 6):
        for i in range(15):
            step.function(models[k], optimizers[k], batch(i, 4, 3))
        assert seen(models[k].state_dict()) == seen(models[k - 3].state_dict())


def test_a_thread_started_inside() -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x):
            y = x * 2
            found = []
            t = threading.Thread(target=lambda: found.append((y + 1).tolist()))
            t.start()
            t.join()
            return y.exp(), found

        for i in range(8):
            note(f(batch(i)))

    both(script, replayed=3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_goes_on() -> None:
    model = nn.Linear(3, 2)
    f = tj.compile(lambda x: model(x).tanh().sum())
    for i in range(4):
        f(batch(i, 4, 3))
    expected = f.function(batch(9, 4, 3)).item()
    child = os.fork()
    if child == 0:
        ok = f(batch(9, 4, 3)).item() == expected and f.hits == 3
        f(batch(9, 5, 3)).backward()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert f(batch(9, 4, 3)).item() == expected and f.hits == 3
