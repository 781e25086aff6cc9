"""`compile(pure=True)`: Python is skipped, and only guards run."""

from __future__ import annotations

import pytest
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn


def test_python_is_skipped() -> None:
    runs = []

    @tj.compile(pure=True)
    def f(x):
        runs.append(x)
        return x * 2 + 1

    for i in range(6):
        assert f(tj.full((3,), float(i))).tolist() == [2.0 * i + 1] * 3
    assert len(runs) == 2 and f.hits == 4


def test_containers_views_and_constants_come_back() -> None:
    @tj.compile(pure=True)
    def f(x, scale, *, flag):
        y = x * scale
        return {"y": y, "parts": [y[1:], x], "name": "n", "flag": flag}

    for i in range(5):
        x = tj.arange(3.0) + i
        found = f(x, 2.0, flag=True)
        assert found["y"].tolist() == [2.0 * (i + k) for k in range(3)] and found["parts"][0]._base is found["y"]
        assert found["parts"][1] is x and found["name"] == "n"
    assert f.hits == 3
    assert f(tj.ones(3), 3.0, flag=True)["y"].tolist() == [3.0] * 3  # another number: Python runs
    assert f(tj.ones(2), 2.0, flag=True)["y"].tolist() == [2.0] * 2  # another shape


def test_gradients_flow_through() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    fast = tj.compile(lambda x: model(x), pure=True)
    for i in range(5):
        x = tj.full((2, 3), float(i))
        for p in model.parameters():
            p.grad = None
        fast(x).sum().backward()
        found = [p.grad.clone() for p in model.parameters()]
        for p in model.parameters():
            p.grad = None
        model(x).sum().backward()
        assert all((a == p.grad).all() for a, p in zip(found, model.parameters(), strict=True))
    assert fast.hits == 3


def test_changed_modules_are_noticed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    fast = tj.compile(lambda x: model(x), pure=True)
    x = tj.ones(2, 3)
    model.eval()
    expected = model(x)
    for _ in range(4):
        assert (fast(x) == expected).all()
    with tj.no_grad():
        model[0].weight.mul_(2)  # memory is read at each call
    assert (fast(x) == model(x)).all()
    model[0].weight = nn.Parameter(tj.zeros(3, 3))
    assert (fast(x) == model(x)).all()
    model.train()
    tj.manual_seed(1)
    found = fast(x)
    tj.manual_seed(1)
    assert (found == model(x)).all()


def test_dropout_draws_on() -> None:
    fast = tj.compile(lambda x: F.dropout(x, 0.5), pure=True)
    x = tj.ones(64)
    tj.manual_seed(0)
    expected = [F.dropout(x, 0.5).tolist() for _ in range(6)]
    tj.manual_seed(0)
    assert [fast(x).tolist() for _ in range(6)] == expected and fast.hits == 4


def test_writes_into_arguments() -> None:
    @tj.compile(pure=True)
    def f(x, y):
        x.add_(y)
        return x.sum()

    x = tj.zeros(3)
    for i in range(5):
        assert f(x, tj.ones(3)).item() == 3.0 * (i + 1)
    assert x._version == 5 and f.hits == 3


def test_a_training_step_is_replayed_with_python() -> None:
    w = tj.ones(3, requires_grad=True)
    optimizer = tj.optim.Adam([w], lr=0.1)

    @tj.compile(pure=True)
    def step(x):
        loss = (w * x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(6):
        step(tj.ones(3))
    assert optimizer.state[w]["step"] == 6 and step.hits >= 3
    assert "pure=True" in str(step.explain().to_dict())


def test_a_wrong_index_is_an_error() -> None:
    table = tj.randn(4, 2)
    fast = tj.compile(lambda i: F.embedding(i, table), pure=True)
    for _ in range(4):
        fast(tj.tensor([0, 3]))
    with pytest.raises(IndexError):
        fast(tj.tensor([4, 0]))
    assert (fast(tj.tensor([1, 2])) == table[1:3]).all()
