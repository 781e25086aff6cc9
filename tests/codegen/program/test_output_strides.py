"""Outputs of native programs have the strides that eager execution gives them, also in dims of size 1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.harness import ALL, Case, flat
from tapejit.codegen.program.call_wrapper import has_c_strides
from tapejit.tracer.tools.compare_speed import segments

KEPT = [case for case in ALL if case.sample.kwargs.get("keepdim")]


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """Native code from the first call on."""
    before = tj.are_deterministic_algorithms_enabled()
    tj.use_deterministic_algorithms(True)
    yield
    tj.use_deterministic_algorithms(before)


@pytest.mark.parametrize("case", KEPT, ids=repr)
def test_reductions_that_keep_dims(case: Case) -> None:
    arrays = [np.asfortranarray(a.astype(np.float32) if a.dtype.kind == "f" else a) for a in case.arrays()]
    compiled = tj.compile(lambda *given: case.call(list(given)), backend="llvm")
    expected = strides(case.call([tj.from_numpy(a) for a in arrays]))
    for _ in range(3):
        assert strides(compiled(*[tj.from_numpy(a) for a in arrays])) == expected


def strides(result: Any) -> list[Any]:
    return [t.stride() for t in flat(result)]


def test_there_are_reductions() -> None:
    assert len({case.key for case in KEPT}) > 10


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 1), (2, 1, 3), (1, 1), ()])
def test_memory_is_dense_in_the_recorded_order(shape: tuple[int, ...]) -> None:
    a = np.asfortranarray(np.random.default_rng(0).random(shape, np.float32))
    compiled = tj.compile(lambda x: x.amax(tuple(range(x.ndim - 1)), keepdim=True) if x.ndim else x * 2, backend="llvm")
    for _ in range(3):
        found = compiled(tj.from_numpy(a))
        expected = tj.from_numpy(a).amax(tuple(range(a.ndim - 1)), keepdim=True) if a.ndim else tj.from_numpy(a) * 2
        assert found.stride() == expected.stride() and found.tolist() == expected.tolist()
    assert all(s.native for s in segments(compiled))


def test_c_strides_are_exact() -> None:
    a = np.zeros((1, 3, 1), np.float32)
    assert has_c_strides(a) and has_c_strides(np.zeros((2, 0, 3))) and has_c_strides(np.zeros(()))
    odd = np.lib.stride_tricks.as_strided(a, strides=(4, 4, 12))
    assert odd.flags.c_contiguous and not has_c_strides(odd)
