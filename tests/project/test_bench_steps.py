"""The benchmark of training steps: a tiny workload runs, and wrong results never become times. Nothing is timed here."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.paths import ROOT

BENCH = ROOT / "bench"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules of `bench/`, which are scripts beside each other and no package."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "steps.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_tiny_step_in_all_ways(tmp_path: Path) -> None:
    file, picture = tmp_path / "found.json", tmp_path / "found.png"
    few = ("--rounds", "1", "--seconds", "0.01", "--steps", "2", "--no-warm")
    ran = bench("tiny", "--peers", "jax", "--jax-python", "/no/python", *few, "--json", str(file), "--plot", str(picture))
    assert ran.returncode == 0, ran.stderr
    assert "JAX jit is skipped: there is no interpreter /no/python" in ran.stdout
    assert "6 losses agree" in ran.stdout and "floor" in ran.stdout
    (row,) = json.loads(file.read_text())
    assert list(row["variants"]) == ["eager", "compiled", "pure"]
    for found in row["variants"].values():
        assert 0 < found["best"] <= found["median"] and found["peak"] > 0
    found = row["variants"]["compiled"]
    assert (found["cold"] is not None) == found["compiled"] and "warm" not in found
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments, sentence", [
    (["nonsense"], "no workload is called 'nonsense'"),
    (["tiny", "--peers", "mlx2"], "no peer is called 'mlx2'"),
    (["tiny", "--rounds", "0"], "at least one round"),
    (["tiny", "--plot", "a.png"], "a picture needs matplotlib"),
])  # fmt: skip
def test_bad_input_is_one_sentence(load: Any, arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=sentence):
        load("steps").main(arguments)


def test_losses_that_differ_are_a_failure(load: Any) -> None:
    steps = load("steps")
    assert steps.agree({"a": [2.0, 1.0], "b": [2.0, 1.0001]}) == pytest.approx(1e-4)
    for wrong in ([2.0, 1.001], [2.0, math.nan], [2.0]):
        with pytest.raises(steps.UselessError, match="the losses of b differ from those of a"):
            steps.agree({"a": [2.0, 1.0], "b": wrong})


def test_ratios_are_against_eager_and_each_peer(load: Any) -> None:
    steps = load("steps")
    times = {"eager": 4.0, "compiled": 1.0, "pure": 0.5, "torch": 2.0, "mlx": 8.0}
    figures = {"quartiles": [1.0, 1.0], "median": 1.0, "peak": None, "threads": 0}
    variants = {name: {"best": t, **figures} for name, t in times.items()}
    text = "\n".join(steps.table({"workload": "tiny", "steps": 2, "difference": 0.0, "variants": variants}))
    assert "compiled: 0.50 x PyTorch eager, 0.12 x MLX compile" in text and "pure:     0.25 x PyTorch eager, 0.06 x" in text
    assert " 0.25 " in next(line for line in text.splitlines() if "tapejit compiled " in line)
    del variants["torch"], variants["mlx"]
    assert steps.against_peers(variants) == []


def test_floors_are_compared_with_the_fastest_peer(load: Any) -> None:
    floors = load("floors")
    times = {"compiled": 0.9, "eager": 3.0, "torch": 2.0, "jax": 1.0}
    row = {"workload": "gru", "variants": {name: {"best": t} for name, t in times.items()}}
    (line,) = floors.verdicts(row)
    assert "0.90 x jax" in line and line.endswith("floor 0.70: not reached")
    row["variants"]["jax"]["best"] = 1.5
    assert floors.verdicts(row)[0].endswith(": reached")


def test_a_replay_without_native_code_has_no_first_compiled_step(load: Any) -> None:
    sides, torchlike = load("sides"), load("workloads.torchlike")
    side = sides.Tapejit("compiled", "tiny")
    side.step = side.compiled = tj.compile(torchlike.training(tj, "tiny").step, backend="plain")
    answer = sides.start(side, 2)
    assert side.compiled.hits > 0 and answer["first"] is None and not answer["compiled"]


def test_every_workload_has_numbers_code_and_floors(load: Any) -> None:
    data, torchlike, floors = load("workloads.data"), load("workloads.torchlike"), load("floors")
    assert list(data.DATA) == list(torchlike.WORKLOADS) == list(floors.FLOORS)
    first, again = data.makemore(), data.makemore()
    assert all(np.array_equal(a, again.weights[name]) for name, a in first.weights.items())


@pytest.mark.parametrize("name", ["micrograd", "makemore", "gru", "tiny"])
def test_steps_train(load: Any, name: str) -> None:
    """On one batch, again and again, the loss has to fall."""
    training = load("workloads.torchlike").training(tj, name)
    losses = [training.step(*training.batches[0]).item() for _ in range(10)]
    assert losses[-1] < losses[0]


class Here:
    """The functions of the workloads that are functions, by tapejit: so they run without the libraries they are for."""

    channels_last, kernel = False, (0, 1, 2, 3)

    def __init__(self) -> None:
        self.relu, self.sigmoid, self.tanh, self.exp = tj.relu, tj.sigmoid, tj.tanh, tj.exp
        self.sqrt, self.rsqrt, self.gelu = tj.sqrt, tj.rsqrt, tj.nn.functional.gelu
        self.zeros, self.average, self.largest = tj.zeros, tj.mean, tj.amax

    def array(self, values: np.ndarray) -> tj.Tensor:
        return tj.from_numpy(values.copy())

    def logsumexp(self, x: tj.Tensor) -> tj.Tensor:
        return tj.logsumexp(x, -1)

    def mean(self, x: tj.Tensor, axis: int, keep: bool = False) -> tj.Tensor:
        return x.mean(axis, keepdim=keep)

    def variance(self, x: tj.Tensor, axis: int, keep: bool = False) -> tj.Tensor:
        return x.var(axis, correction=0, keepdim=keep)

    def rows(self, table: tj.Tensor, indices: tj.Tensor) -> tj.Tensor:
        return table[indices]

    def chosen(self, x: tj.Tensor, indices: tj.Tensor) -> tj.Tensor:
        return x.gather(-1, indices.unsqueeze(-1)).squeeze(-1)

    def thirds(self, x: tj.Tensor) -> Any:
        return x.chunk(3, -1)

    def attend(self, q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> tj.Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return tj.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    def convolve(self, x: tj.Tensor, weight: tj.Tensor, bias: tj.Tensor) -> tj.Tensor:
        return tj.nn.functional.conv2d(x, weight, bias, padding=1)


@pytest.mark.parametrize("name", ["micrograd", "makemore", "mnist", "convnet", "gru", "tiny"])
def test_workloads_are_the_same_as_functions(load: Any, name: str) -> None:
    """Losses of modules and optimizers, and of functions with updates written out, as JAX, MLX and tinygrad run them."""
    functional, torchlike = load("workloads.functional"), load("workloads.torchlike")
    other, step = torchlike.training(tj, name), functional.Functional(name, Here())
    assert step.update is not None
    for i in range(3):
        expected = other.step(*other.batches[i % len(other.batches)]).item()
        weights = {k: w.requires_grad_() for k, w in step.weights.items()}
        loss, new = step.model(weights, step.state, *step.batches[i % len(step.batches)])
        gradients = dict(zip(weights, tj.autograd.grad(loss, list(weights.values())), strict=True))
        with tj.no_grad():
            step.weights, step.state = step.update(step.lib, weights, gradients, {**step.state, **new})
        assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_peers_that_are_not_there_are_told(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = load("steps")
    options = steps.parse(["tiny", "--mlx-python", "/no/python"])
    assert steps.reason_to_skip("mlx", options) == "there is no interpreter /no/python"
    monkeypatch.setitem(steps.PACKAGES, "tinygrad", "no_such_package")
    assert steps.reason_to_skip("tinygrad", options) == "no_such_package is not installed"
    monkeypatch.setitem(steps.PACKAGES, "tinygrad", "numpy")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "it runs clang, which is not installed" in steps.reason_to_skip("tinygrad", options)


def test_gradients_of_steps_without_optimizer(load: Any) -> None:
    """The sizes that libraries are compared by, from NumPy in float64."""
    data, torchlike, sides = load("workloads.data"), load("workloads.torchlike"), load("sides")
    numbers = data.cross_entropy(rows=5, classes=7)
    side = sides.TorchLike.__new__(sides.TorchLike)
    side.training = torchlike.cross_entropy(tj, numbers)
    side.training.step(*side.training.batches[0])
    x, (targets,) = numbers.weights["x"].astype(np.float64), numbers.batches[0]
    softmax = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    softmax[np.arange(5), targets] -= 1
    assert side.gradient_size() == pytest.approx(np.linalg.norm(softmax / 5), rel=1e-5)
