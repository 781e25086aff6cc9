"""Recording needs no more memory than eager execution, and lets go of nothing that somebody can still see."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.scripts import batch, state_of
from support.snippets import SNIPPETS
from support.soundness_harness import both, snippet_script
from tapejit import nn
from tapejit.tracer.record import release_memory as release


@pytest.fixture
def at_once(monkeypatch: Any) -> None:
    """It is looked before each op what can be let go."""
    monkeypatch.setattr(release, "MIN_BYTES", -1)
    monkeypatch.setattr(release, "MIN_BYTES_PER_VALUE", -1)


def peak(function: Any, *args: Any) -> int:
    tracemalloc.start()
    function(*args)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def chain(x: Any) -> Any:
    for _ in range(12):
        x = (x * 0.5 + 1).tanh()
    return x.sum()


def trained(w: Any) -> None:
    w.grad = None
    (chain(w) * 2).backward()


@pytest.mark.parametrize("function", [chain, trained])
def test_memory_of_a_recorded_call(function: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(release, "MIN_BYTES", 1 << 20)
    x = tj.ones(1 << 19, requires_grad=function is trained)
    function(x)
    most = peak(function, x)
    assert peak(tj.compile(function), x) < most + (7 << 20)  # three arrays: two until it is looked again, and what is made then


@pytest.mark.parametrize("name", SNIPPETS)
def test_nothing_that_can_be_seen_is_let_go(name: str, at_once: None) -> None:
    both(snippet_script(name))


def test_views_and_what_they_show(at_once: None) -> None:
    def script(compile: Any, note: Any) -> None:
        kept: list[Any] = []

        @compile
        def f(x):
            y = x.repeat(2).exp()
            first, second = y[:2], y.reshape(2, -1).t()
            del y
            z = first.detach() * 2
            kept.append(second[1:])
            del second
            first.add_(1)
            return z, first.view(-1)[1:]

        for i in range(6):
            note(f(batch(i)), kept[-1])

    both(script)


def test_training_steps(at_once: None) -> None:
    def script(compile: Any, note: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.GELU(), nn.Linear(4, 2))
        opt = tj.optim.AdamW(model.parameters(), lr=0.1)

        @compile
        def step(x):
            opt.zero_grad()
            y = model(x)
            loss = y.pow(2).sum()
            seen = loss.item()
            loss.backward()
            opt.step()
            return y, seen

        for i in range(6):
            note(step(batch(i, 4, 3)), state_of(model))

    both(script, replayed=4)


def test_an_array_that_numpy_shows(at_once: None) -> None:
    def script(compile: Any, note: Any) -> None:
        @compile
        def f(x):
            y = (x * 2).sin()
            shown = y.numpy()
            y = y + 1
            z = y.exp() * 3
            return z, np.asarray(shown) + 1

        for i in range(6):
            note(f(batch(i)))

    both(script)
