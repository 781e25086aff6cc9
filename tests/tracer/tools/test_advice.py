"""Advice and the reasons it is for: each pattern of the table matches a reason that the code really gives."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import tapejit as tj
from support.paths import ROOT
from tapejit.tracer.execute.backends import BACKENDS
from tapejit.tracer.tools.explain import advice

# What f-strings of reasons put in: names of ops and dtypes, numbers, shapes, settings.
FILLED = ("op", "float32", "3", "[3]", "{'index': 1}")
MAX_FILLED = 4  # in one f-string: what has more is no reason
# Reasons that are another reason with a beginning, and the folder whose strings these others are.
PREFIXES = {"backward: ": "tracer/record", "reference program: ": "tracer/graph"}


def parts_of(node: ast.JoinedStr, names: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield the parts of an f-string, each as the texts that may stand there."""
    for part in node.values:
        if isinstance(part, ast.Constant):
            yield (str(part.value),)
            continue
        assert isinstance(part, ast.FormattedValue)
        inner = part.value
        if isinstance(inner, ast.Name) and inner.id in names:
            yield (names[inner.id],)
        elif isinstance(inner, ast.IfExp) and isinstance(inner.body, ast.Constant) and isinstance(inner.orelse, ast.Constant):
            yield (str(inner.body.value), str(inner.orelse.value))
        else:
            yield FILLED


def strings_of(path: Path) -> Iterator[str]:
    """Yield the strings of a file without its docstrings, with f-strings filled in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out, names = set[int](), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant):
            names[node.targets[0].id] = str(node.value.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = list(parts_of(node, names))
            if sum(len(part) > 1 for part in parts) <= MAX_FILLED:
                yield from map("".join, product(*parts))


@cache
def strings_in(folder: str) -> frozenset[str]:
    """All strings of a folder without the tools, which only read reasons."""
    files = [f for f in (ROOT / folder).rglob("*.py") if ROOT / "tracer" / "tools" not in f.parents]
    return frozenset(s for f in files for s in strings_of(f))


@cache
def reasons() -> frozenset[str]:
    """Everything that may be a reason."""
    found = strings_in("tracer") | strings_in("eager")
    for prefix, folder in PREFIXES.items():
        assert f"{prefix}op" in found, f"no reason begins with {prefix!r} any more"
        found |= {prefix + s for s in strings_in(folder)}
    return found


@pytest.mark.parametrize("rule", advice.RULES, ids=lambda rule: rule.pattern)
def test_each_pattern_matches_a_reason_of_the_code(rule: advice.Rule) -> None:
    found = next((s for s in reasons() if re.search(rule.pattern, s)), None)
    assert found is not None, f"nothing in tracer/ or eager/ gives a reason like {rule.pattern!r}: its advice is lost"
    assert rule.applied(found)


def test_a_pattern_without_a_reason_is_found() -> None:
    """The search has to be able to fail: docstrings and the table itself do not count."""
    for lost in ("generating code failed", "one table of patterns over the reasons", "Compile the native program"):
        assert not [s for s in reasons() if re.search(lost, s)]


def test_a_failed_compilation_gets_its_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status that `explain()` shows, as it is really made."""

    def failing(*_: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(BACKENDS["llvm"], "compile", failing)
    monkeypatch.delenv("TAPEJIT_STRICT_BACKEND", raising=False)
    step = tj.compile(lambda x: (x * 2).sum(), backend="llvm")
    with pytest.warns(RuntimeWarning, match="without native code"):
        for _ in range(3):
            step(tj.ones(3))
    (program,) = step.explain().to_dict()["paths"][0]["programs"]
    assert "no such luck" in program["description"]
    assert "please report it" in str(advice.advice_for(program["description"]))
