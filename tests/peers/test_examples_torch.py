"""The examples with both libraries: from the same initial weights and the same data, the same loss at each of 50 steps."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import torch
from support.paths import ROOT

EXAMPLES = ROOT / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "common")
STEPS = 50


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def chooser(library: Any) -> Any:
    """Draws actions with NumPy's numbers, which are the same for both."""
    rng = np.random.default_rng(5)

    def choose(distribution: Any) -> Any:
        ends = np.cumsum(distribution.probs.detach().numpy().astype(np.float64))
        return library.tensor(int(np.searchsorted(ends, rng.random() * ends[-1])))

    return choose


def setup(name: str, library: Any) -> Any:
    extra = {"choose": chooser(library)} if name == "reinforce" else {}
    return importlib.import_module(name).setup(library, STEPS, **extra)


@pytest.mark.parametrize("name", NAMES)
def test_loss_curve(name: str) -> None:
    torch.manual_seed(0)
    theirs, mine = setup(name, torch), setup(name, tj)
    mine.model.load_state_dict({key: tj.from_numpy(value.numpy().copy()) for key, value in theirs.model.state_dict().items()})
    curves = [[float(run.step(*next(run.batches)).detach()) for _ in range(STEPS)] for run in (mine, theirs)]
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-4)
    assert np.isfinite(curves[0]).all() and len(set(curves[0])) > STEPS / 2


@pytest.mark.parametrize("name", NAMES)
def test_the_model_prints_alike(name: str) -> None:
    assert repr(setup(name, tj).model) == repr(setup(name, torch).model)


def test_they_are_all_here() -> None:
    assert len(NAMES) >= 8
    assert all(name not in sys.modules or hasattr(sys.modules[name], "setup") for name in NAMES)
