"""What `bench/gpu_static.py` counts and compiles: launches and bytes of a GPT are within what is aimed at, and the kernels of
the examples' training steps are as they should be for devices that are not here. Here each is compiled for one of them; the
script does it for all."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tapejit[gpu]', on Linux")

STEPS = [  # an example, the device, and whether it is trained in bfloat16
    ("MLP", "sm_80", True),
    ("batch-norm MLP", "sm_100", True),
    ("GRU", "gfx942", True),
    ("convnet", "gfx942", False),
    ("GPT", "sm_90", True),
]


@pytest.fixture
def static(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "bench"))
    return importlib.import_module("gpu_static")


def small_gpt(static: Any) -> Any:
    """A GPT that is quickly trained on a CPU, and of which there are few kernels."""
    sizes = replace(static.GPT_MEDIUM, layers=1, width=64, heads=2, batch=4, context=64, vocabulary=128)
    return static.gpt_steps(sizes, static.tj, static.gpt(sizes))


def test_launches_and_bytes_of_a_gpt(static: Any) -> None:
    """What each layer adds to both is what counts."""
    graphs = [static.recorded(static.gpt_of(layers))[0] for layers in (1, 2)]
    units, forms = zip(*[static.units_of(g, "sm_90") for g in graphs], strict=True)
    assert len(units[1]) - len(units[0]) <= static.MOST_PER_LAYER
    assert not any(x.called for x in units[1])
    moved = [static.of_units(x, f).bytes for x, f in zip(units, forms, strict=True)]
    least = [static.Groups(static.prepared_for_gpu(g)).counts().bytes for g in graphs]
    assert moved[1] - moved[0] <= static.MOST_BYTES * (least[1] - least[0])
    assert moved[1] <= static.MOST_BYTES * least[1]
    assert 1 <= static.for_optimizer(units[1], graphs[1]) <= static.MOST_FOR_OPTIMIZER


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
    monkeypatch.setattr(static, "packed", lambda kernel: [])
    monkeypatch.setattr(static, "shared_memory", lambda target: -1)
    (name, *_) = told = static.compiled_for(graphs, "sm_90")["faults"]
    assert "bytes of shared memory" in name and any("has other parameters than are packed" in x for x in told)
