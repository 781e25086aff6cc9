"""Every example runs, learns something in a few steps, and ends with a sane number."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fake_cupy
import pytest
import tapejit as tj
from support.paths import ROOT
from tapejit.eager.arrays import devices

EXAMPLES = ROOT / "examples"

# Steps for a short run, and what its number has to be by then: well away from what it is without training.
SHORT: dict[str, tuple[int, Callable[[float], bool]]] = {
    "chargpt": (25, lambda loss: 1 < loss < 3.2),  # 4.4 untrained
    "custom_function": (150, lambda accuracy: accuracy > 0.8),  # 0.1
    "digits": (40, lambda accuracy: accuracy > 0.4),  # 0.1
    "gan": (150, lambda distance: distance < 0.6),  # 0.9
    "makemore": (60, lambda loss: 1.5 < loss < 2.75),  # 3.3
    "moons": (100, lambda accuracy: accuracy > 0.8),  # 0.6
    "reinforce": (60, lambda length: 5 < length < 28),  # 40
    "sequences": (80, lambda accuracy: accuracy > 0.78),  # 0.68: most do not match
}


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_there_is_a_short_run_for_each() -> None:
    assert sorted(SHORT) == sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "common")


@pytest.mark.parametrize("name", SHORT)
def test_short_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    steps, sane = SHORT[name]
    value = importlib.import_module(name).main(["--steps", str(steps)])
    assert sane(value), value
    printed = capsys.readouterr()
    assert f"after {steps} " in printed.out
    assert printed.err == ""  # no bar where there is no terminal


@pytest.mark.parametrize("name", [name for name in SHORT if name not in ("gan", "reinforce")])
def test_the_loss_falls(name: str) -> None:
    tj.manual_seed(0)
    run = importlib.import_module(name).setup(tj, 30)
    losses = [float(run.step(*next(run.batches)).detach()) for _ in range(30)]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


@pytest.mark.parametrize("name", SHORT)
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    module = importlib.import_module(name)
    assert module.main(["--steps", "2"]) == module.main(["--steps", "2"])


@pytest.mark.parametrize("name", SHORT)
def test_on_a_gpu(name: str, tmp_path: Path) -> None:
    """On the stand-in for CuPy, watched: nothing is left on the CPU by mistake."""
    before = devices.use_cuda_module(fake_cupy)
    try:
        page = tmp_path / "page.html"
        importlib.import_module(name).main(["--steps", "1", "--device", "cuda", "--watch", str(page)])
        assert "Gradients of weights" in page.read_text(encoding="utf-8")
    finally:
        devices.use_cuda_module(before)


@pytest.mark.filterwarnings("ignore:.*runs eagerly from now on")  # reinforce reads values at every step of an episode
@pytest.mark.parametrize("name", SHORT)
def test_compiled_runs_are_the_same(name: str) -> None:
    module = importlib.import_module(name)
    assert module.main(["--steps", "6", "--compile"]) == module.main(["--steps", "6"])


def test_watch_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    importlib.import_module("makemore").main(["--steps", "5", "--watch", str(page)])
    assert "Update : data" in page.read_text(encoding="utf-8")
    assert str(page) in capsys.readouterr().out


def test_as_a_script() -> None:
    command = [sys.executable, str(EXAMPLES / "moons.py"), "--steps", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert re.fullmatch(r"loss \d\.\d{4}, accuracy \d+\.\d% after 20 steps\n", done.stdout)


def test_refuses_no_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        importlib.import_module("moons").main(["--steps", "0"])
    assert "--steps must be at least 1" in capsys.readouterr().err
