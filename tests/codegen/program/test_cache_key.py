"""Programs on disk are found by what they depend on: also by what the user's own ops and rules mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.codegen.kernels import native_of
from tapejit.codegen.lowering import op_lowering as lower
from tapejit.codegen.program import cache_key as names
from tapejit.eager.core import library, op
from tapejit.eager.core.dispatch import apply


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPEJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TAPEJIT_CACHE", raising=False)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes ops of one's own: another one by a name takes the place of the one before, as in a script that was changed."""

    def made(name: str, *rest: Any, **settings: Any) -> Callable[..., Any]:
        monkeypatch.setattr(op, "PRIMITIVES", {k: v for k, v in op.PRIMITIVES.items() if k != name})
        found = op.primitive(name, *rest, **settings)
        return lambda *inputs: apply(found, inputs)

    return made


def test_programs_are_found_again() -> None:
    x = tj.ones(50)
    assert not native_of(lambda x: x.exp() + x, x).from_disk
    assert native_of(lambda x: x.exp() + x, x).from_disk


def test_an_op_of_ones_own_that_means_something_else_now(own: Callable[..., Any]) -> None:
    x = tj.ones(50)
    for factor in (2.0, 5.0):
        scaled = own("names_scaled", "composite", lambda xp, x, k=factor: x * k, expand=lambda x, k=factor: x * k)
        f = tj.compile(lambda x, scaled=scaled: scaled(x) + x, backend="llvm")
        for _ in range(5):
            np.testing.assert_array_equal(f(x).numpy(), 1 + factor)


def test_a_rule_of_ones_own_that_says_something_else_now(own: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = tj.arange(6.0).reshape(2, 3)
    turned = own("names_turned", "movement", lambda xp, x: x[:, ::-1].copy())
    for factor, offset, right in ((1, 0, [0.0, 1, 2]), (-1, 2, [2.0, 1, 0])):

        def rule(reader: Any, node: Any, which: int, place: Any, guard: Any, k: int = factor, at: int = offset) -> Any:
            return reader.get(node.operands[0], (place[0], place[1] * k + at), guard)

        monkeypatch.setitem(lower.DEFINITIONS, "names_turned", rule)
        f = tj.compile(lambda x: turned(x * 2) / 2, backend="llvm")
        for _ in range(3):
            found = f(x)
        np.testing.assert_array_equal(found.numpy()[0], right)


def test_another_text_of_the_library_is_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tj.ones(50)
    native_of(lambda x: x.exp() + x, x)
    monkeypatch.setattr(names, "source_hash", lambda target: "another")
    assert not native_of(lambda x: x.exp() + x, x).from_disk


def test_the_text_of_ops_is_a_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "library"
    for name in ("codegen/llvm", "codegen/triton", "eager/ops"):
        (root / name).mkdir(parents=True)
    (root / "eager" / "ops" / "activation.py").write_text("first")
    monkeypatch.setattr(library, "ROOT", str(root))
    of_text = names.source_hash.__wrapped__
    before = of_text("llvm")
    assert before == of_text("llvm")
    (root / "eager" / "ops" / "activation.py").write_text("other")
    after = of_text("llvm")
    assert after != before
    (root / "codegen" / "llvm" / "emit.py").write_text("more")
    assert len({before, after, of_text("llvm")}) == 3 and of_text("triton") == after
