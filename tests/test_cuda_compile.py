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
