"""`compile` on a GPU: the same programs run eagerly and compiled, on the stand-in with interpreted kernels, and on a real
device where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pretended
import pytest
import tapejit as tj
from tapejit.eager import devices

pytest.importorskip("triton", reason="Triton has no wheel for this platform", exc_type=ImportError)
F = tj.nn.functional
BACKENDS = ["stand-in", "cupy"] if devices._driver_device_count() else ["stand-in"]


@pytest.fixture(params=BACKENDS, autouse=True)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TAPEJIT_BACKEND", "auto")
    monkeypatch.setenv("TAPEJIT_STRICT_BACKEND", "1")
    with pretended.gpu(request.param == "stand-in") as xp:
        yield xp


def numbers(*shape: int, seed: int = 0) -> Any:
    found = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return tj.from_numpy(found).to("cuda")


def same(script: Callable[[Any], list[Any]], rtol: float = 1e-5, atol: float = 1e-6, **settings: Any) -> Any:
    """A script eagerly and compiled: what it returns has to agree. `script(compile)` makes all that it needs anew."""
    compiled: list[Any] = []

    def compile(function: Any) -> Any:
        compiled.append(tj.compile(function, **settings))
        return compiled[-1]

    tj.manual_seed(5)
    expected = script(lambda f: f)
    tj.manual_seed(5)
    found = script(compile)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.detach().cpu().numpy(), b.detach().cpu().numpy(), rtol, atol)
    assert all(f.hits for f in compiled)
    return compiled[0] if len(compiled) == 1 else compiled


def programs(compiled: Any) -> list[Any]:
    """The generated programs of a compiled function."""
    found = [s for trace in compiled.traces for s in trace.programs.values()]
    return [s.native for s in found if s.native is not None]


# ---- training steps


def test_elements() -> None:
    def script(compile: Any) -> list[Any]:
        w = numbers(3, 4).requires_grad_()

        @compile
        def step(x: Any) -> Any:
            loss = (x * w).tanh().sum()
            w.grad = None
            loss.backward()
            with tj.no_grad():
                w.sub_(w.grad * 0.1)
            return loss

        return [*[step(numbers(3, 4, seed=i)) for i in range(6)], w]

    (program,) = programs(same(script))
    assert type(program).__name__ == "Gpu"


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_training_of_a_small_network(kind: str) -> None:
    def script(compile: Any) -> list[Any]:
        model = tj.nn.Sequential(tj.nn.Linear(5, 8), tj.nn.GELU(), tj.nn.LayerNorm(8), tj.nn.Linear(8, 3)).to("cuda")
        settings = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(tj.optim, kind)(model.parameters(), lr=0.05, **settings)

        @compile
        def step(x: Any, y: Any) -> Any:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        losses = [step(numbers(4, 5, seed=i), numbers(4, 3, seed=10 + i)) for i in range(6)]
        return [*losses, *model.parameters()]

    (program,) = programs(same(script, rtol=1e-4))


def test_embedding_norm_dropout_and_cross_entropy() -> None:
    def script(compile: Any) -> list[Any]:
        table, norm, head = tj.nn.Embedding(11, 6), tj.nn.LayerNorm(6), tj.nn.Linear(6, 11)
        model = tj.nn.ModuleList([table, norm, head]).to("cuda")
        optimizer = tj.optim.Adam(model.parameters(), lr=0.01)

        @compile
        def step(x: Any, y: Any) -> Any:
            logits = head(F.dropout(norm(table(x)), 0.3))
            loss = F.cross_entropy(logits.reshape(-1, 11), y.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        tokens = [tj.from_numpy(np.random.default_rng(i).integers(0, 11, (2, 5))).to("cuda") for i in range(7)]
        losses = [step(x, y) for x, y in zip(tokens, tokens[1:], strict=False)]
        return [*losses, *model.parameters()]

    same(script, rtol=1e-4)
