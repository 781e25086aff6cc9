"""Counts and kernels of `bench/gpu_static.py`: launches and bytes of a GPT are within what is aimed at, and the kernels of
the examples' training steps are as they should be for devices that are not here. Here each is compiled for one of them; the
script does it for all."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tapejit[gpu]', on Linux")

BENCH = ROOT / "bench"
STEPS = [  # an example, the device, and whether it is trained in bfloat16
    ("MLP", "sm_80", True),
    ("batch-norm MLP", "sm_100", True),
    ("GRU", "gfx942", True),
    ("convnet", "gfx942", False),
    ("GPT", "sm_90", True),
]


@pytest.fixture
def static(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("gpu_static")


def small_gpt(static: Any) -> Any:
    """A GPT that is quickly trained on a CPU, and of which there are few kernels."""
    sizes = replace(static.GPT_MEDIUM, layers=1, width=64, heads=2, batch=4, context=64, vocabulary=128)
    return static.gpt_steps(sizes, static.tj, static.gpt(sizes))


def test_launches_and_bytes_of_a_gpt(static: Any, tmp_path: Path) -> None:
    """As the script counts them, of a GPT with few layers. The matmuls of its steps here are quickest in one thread."""
    file, script = tmp_path / "counts.json", BENCH / "gpu_static.py"
    command = [sys.executable, str(script), "--layers", "2", "--no-times", "--json", str(file)]
    result = subprocess.run(command, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True, check=True)
    found = json.loads(file.read_text())
    assert 1 <= found["layer"] <= static.MAX_LAUNCHES_PER_LAYER and 1 <= found["optimizer"] <= static.MAX_OPTIMIZER_LAUNCHES
    assert 1 <= found["ratio"] <= static.MAX_BYTES_RATIO and not found["called"]
    assert found["compiled"]["launches"] < found["one by one"]["launches"] < found["eager"]["launches"]
    assert result.stdout.count(": yes") == 3 and "NO" not in result.stdout


@pytest.mark.parametrize(("name", "target", "halves"), STEPS)
def test_kernels_of_training_steps(static: Any, name: str, target: str, halves: bool) -> None:
    """They compile, spill nothing, fit into shared memory, are given what they take, move rows in vectors, and multiply halves
    by matrix units. No op is called as it is."""
    make = partial(small_gpt, static) if name == "GPT" else static.workload(static.EXAMPLES[name])
    found = static.compiled_for(static.recorded(make, halves), target)
    assert found["kernels"] > 8 and not found["called"] and not found["faults"], found


def test_what_is_wrong_is_told(static: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = static.recorded(static.workload("micrograd"))
    assert not static.compiled_for(graphs, "sm_90")["faults"]
    monkeypatch.setattr(static, "launched_parameter_sizes", lambda kernel: [])
    monkeypatch.setattr(static, "shared_memory", lambda target: -1)
    (name, *_) = faults = static.compiled_for(graphs, "sm_90")["faults"]
    assert "bytes of shared memory" in name and any("has other parameters than are packed" in x for x in faults)
