"""Rematerialisation: values that are computed again rather than kept, from what was there then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.shadow import Seen, shadowed
from tapejit import nn
from tapejit.tracer.execute import reference_program as program


@pytest.fixture
def seen(monkeypatch: Any) -> Seen:
    """Everything that is replayed also runs as native code, and is compared."""
    found = Seen()
    found.tolerance = 5  # sums of up to 256 terms, of which each is such a sum, and so on through all layers
    monkeypatch.setattr(program, "make_program", shadowed(found))
    return found


def deep(layers: int = 4, width: int = 128, lr: float = 0.05) -> tuple[Any, Any]:
    tj.manual_seed(0)
    parts = [(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(layers)]
    model = nn.Sequential(*[nn.Sequential(*part) for part in parts])
    return model, tj.optim.SGD(model.parameters(), lr=lr)


def run(step: Callable[..., Any], *args: Any) -> Any:
    compiled = tj.compile(step)
    for _ in range(5):
        compiled(*args)
    return compiled


def kept(build: Any) -> dict[str, int]:
    """The bytes of buffers that live in many steps."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, launch in enumerate(build.steps):
        for name in launch.reads | launch.writes:
            first.setdefault(name, i)
            last[name] = i
    return {n: build.arena.sizes[n] for n in build.arena.offsets if n in first and last[n] - first[n] > 10}


def test_of_a_gelu_and_a_layer_norm_one_value_each_is_kept(seen: Seen) -> None:
    model, optimizer = deep()
    x = tj.randn(64, 128)

    def step(x: Any) -> Any:
        loss = (model(x) * x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run(step, x)
    assert seen.runs > 0
    build = max(seen.programs, key=lambda p: len(p.launches)).build
    assert any("again" in name for launch in build.steps for name in launch.writes)
    wide = [n for n, size in kept(build).items() if size == 64 * 256 * 4]
    assert len(wide) <= 4  # of each of the four layers the matmul before gelu


def test_weights_that_are_updated_between_are_not_read_afterwards(seen: Seen) -> None:
    model, optimizer = deep(3, lr=3.0)  # so that it makes a difference
    x = tj.randn(64, 128)

    def two_steps(x: Any) -> Any:
        hidden = F.gelu(model[0][1](x) * 2)
        for _ in range(2):
            loss = (model(x) * x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.detach(), (F.gelu(hidden) * hidden).sum().detach()

    run(two_steps, x)
    assert seen.runs > 0
