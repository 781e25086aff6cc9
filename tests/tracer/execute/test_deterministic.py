"""`use_deterministic_algorithms(True)`: no clock decides which program a compiled function runs, so runs repeat bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tapejit as tj
from tapejit.tracer.execute import tiering
from tapejit.tracer.execute.reference_program import ReferenceProgram


@pytest.fixture
def deterministic() -> Iterator[None]:
    tj.use_deterministic_algorithms(True)
    yield
    tj.use_deterministic_algorithms(False)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code that seems slower than the reference program, whatever is measured."""
    monkeypatch.setattr(tiering, "MARGIN", 0.0)


def description(function: Any) -> str:
    return str(function.explain())


def run(background: bool = False, calls: int = 12) -> tuple[Any, list[Any]]:
    tj.manual_seed(0)
    function = tj.compile(lambda x: (x.exp() * x).sum(1), backend="llvm", background=background)
    x = tj.randn(64, 33)
    return function, [function(x).numpy().tobytes() for _ in range(calls)]


def test_a_clock_decides_otherwise(slow: None) -> None:
    function, _ = run()
    assert "so it is not used" in description(function)


@pytest.mark.parametrize("background", [False, True])
def test_native_code_is_used_from_the_first_call_on(
    background: bool, slow: None, deterministic: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReferenceProgram, "write", lambda self: pytest.fail("the reference program ran"))
    function, results = run(background)
    assert len(set(results)) == 1
    assert "native code, not timed against the reference program" in description(function)


def test_what_has_no_native_code_runs_as_ever(deterministic: None) -> None:
    function = tj.compile(lambda x: x + 1, backend="plain")
    assert [function(tj.ones(2)).tolist() for _ in range(6)] == [[2.0, 2.0]] * 6
