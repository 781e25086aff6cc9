"""Printing, character by character: what PyTorch prints with its name replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tapejit as tj
import torch

TENSORS: dict[str, Callable[[Any], Any]] = {
    "scalar": lambda lib: lib.tensor(1.5),
    "whole scalar": lambda lib: lib.tensor(3.0),
    "integer": lambda lib: lib.tensor(3),
    "bool": lambda lib: lib.tensor([True, False]),
    "vector": lambda lib: lib.tensor([1.0, 2.5, -3.25]),
    "whole floats": lambda lib: lib.tensor([1.0, 2.0, 300.0]),
    "small and large": lambda lib: lib.tensor([1e-6, 1.0, 1e6]),
    "very small": lambda lib: lib.tensor([1e-20, 2e-20]),
    "very large": lambda lib: lib.tensor([1e20, -2e20]),
    "nan and inf": lambda lib: lib.tensor([float("nan"), float("inf"), -1.0]),
    "only nan": lambda lib: lib.tensor([float("nan")]),
    "matrix": lambda lib: lib.arange(6.0).reshape(2, 3) / 7,
    "negative matrix": lambda lib: -lib.arange(6).reshape(2, 3),
    "three dims": lambda lib: lib.arange(24).reshape(2, 3, 4),
    "four dims": lambda lib: lib.ones(2, 1, 2, 2),
    "empty": lambda lib: lib.zeros(0),
    "empty matrix": lambda lib: lib.zeros(2, 0),
    "empty integers": lambda lib: lib.zeros(0, 3, dtype=lib.int64),
    "float64": lambda lib: lib.tensor([1.0, 2.5], dtype=lib.float64),
    "float16": lambda lib: lib.tensor([1.0, 2.5], dtype=lib.float16),
    "bfloat16": lambda lib: lib.tensor([1.0, 2.5], dtype=lib.bfloat16),
    "int32": lambda lib: lib.tensor([1, -20], dtype=lib.int32),
    "uint8": lambda lib: lib.tensor([1, 200], dtype=lib.uint8),
    "requires grad": lambda lib: lib.tensor([1.0], requires_grad=True),
    "grad_fn": lambda lib: lib.tensor([1.0, 2.0], requires_grad=True) * 2,
    "grad_fn of sum": lambda lib: lib.tensor([1.0, 2.0], requires_grad=True).sum(),
    "grad_fn of exp": lambda lib: lib.tensor([1.0, 2.0], requires_grad=True).exp(),
    "long vector": lambda lib: lib.arange(30.0),
    "wide": lambda lib: lib.arange(60.0).reshape(2, 30),
    "large": lambda lib: lib.arange(2000),
    "large matrix": lambda lib: lib.arange(40000.0).reshape(200, 200),
    "large three dims": lambda lib: lib.arange(20 * 20 * 20).reshape(20, 20, 20),
    "not contiguous": lambda lib: lib.arange(6.0).reshape(2, 3).T,
    "size": lambda lib: lib.zeros(2, 3).shape,
    "dtype": lambda lib: lib.float32,
    "device": lambda lib: lib.device("cpu"),
    "cuda device": lambda lib: lib.device("cuda", 1),
    "finfo": lambda lib: lib.finfo(lib.float32),
    "finfo of half": lambda lib: lib.finfo(lib.float16),
    "iinfo": lambda lib: lib.iinfo(lib.int8),
}


@pytest.mark.parametrize("name", TENSORS)
def test_repr(name: str) -> None:
    theirs = TENSORS[name](torch)
    mine = TENSORS[name](tj)
    assert repr(mine) == repr(theirs).replace("torch.", "tapejit.")
    assert str(mine) == str(theirs).replace("torch.", "tapejit.")


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": 2},
        {"precision": 8},
        {"threshold": 5},
        {"threshold": 5, "edgeitems": 1},
        {"linewidth": 40},
        {"sci_mode": True},
        {"sci_mode": False},
        {"profile": "short"},
        {"profile": "full"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["vector", "small and large", "matrix", "three dims", "long vector", "nan and inf"])
def test_options(name: str, settings: dict[str, Any]) -> None:
    found = []
    for lib in (tj, torch):
        lib.set_printoptions(**settings)
        found.append(repr(TENSORS[name](lib)))
        lib.set_printoptions(profile="default")
    assert found[0] == found[1].replace("torch.", "tapejit.")


@pytest.mark.parametrize("spec", ["", ".2f", ".3e", "8.1f"])
def test_format(spec: str) -> None:
    assert format(tj.tensor(2.71828), spec) == format(torch.tensor(2.71828), spec)
