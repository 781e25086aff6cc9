"""The thresholds of docs/lifecycle.md are those of the code: number, name and file of each row."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from typing import Any

import pytest
import tapejit as tj
from support.paths import ROOT

HEADER = "| number | name | what it decides | file |"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
OPTIONS = {name: inspect.signature(tj.compile).parameters[name].default for name in ("warmup", "budget")}
PAIR = "observed calls that must agree"  # two calls are compared: no number in the code says so


def rows() -> list[tuple[str, str, str, str]]:
    found, inside = [], False
    for line in (ROOT / "docs" / "lifecycle.md").read_text(encoding="utf-8").splitlines():
        inside = line == HEADER or (inside and line.startswith("|"))
        if inside and line != HEADER and not line.startswith("|---"):
            number, name, what, file = (cell.strip() for cell in line.strip("|").split(" | "))
            found.append((number, name, what, file.strip("`")))
    return found


def numbers_in(cell: str) -> list[float]:
    found = []
    for text in cell.split(", "):
        digits, _, unit = text.partition(" ")
        found.append(float(digits.replace(",", "")) * UNITS.get(unit, 1))
    return found


def test_all_tables_are_found() -> None:
    names = {name for _, name, _, _ in rows()}
    assert len(rows()) > 30 and {"`budget`", "`MARGIN`", "`MAX_REACHABLE_OBJECTS`", "`MAX_GRAPHS`, `MAX_NEW_KEYS`"} <= names


@pytest.mark.parametrize("number, name, what, file", rows(), ids=[f"{row[1]} {row[0]}" for row in rows()])
def test_a_threshold_is_that_of_the_code(number: str, name: str, what: str, file: str) -> None:
    assert compared(number, name, what, file) == numbers_in(number)


def compared(number: str, name: str, what: str, file: str) -> list[Any]:
    """Return the numbers that the code has for a row."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if name == "-":
        literals = {n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant)}
        return [n for n in numbers_in(number) if n in literals or what == PAIR]
    found = []
    for one in re.findall("`(.+?)`", name):
        if one.isupper():
            module = importlib.import_module("tapejit." + file.removesuffix(".py").replace("/", "."))
            assert re.search(rf"^[A-Z_, ]*\b{one}\b[A-Z_, ]* = ", text, re.M), f"{file} has no constant {one}"
            found.append(getattr(module, one))
        else:
            assert one in text or re.sub(r"\bbudget", "self.budget", one) in text, f"{file} has no {one}"
            found.append(eval(one, dict(OPTIONS)))
    return found


@pytest.mark.parametrize(
    "row",
    [
        ("5", "`TRIALS`", "", "tracer/execute/tiering.py"),
        ("4", "`TRIED`", "", "tracer/execute/tiering.py"),
        ("4", "`TRIALS`", "", "tracer/execute/backends.py"),
        ("17", "`budget`", "", "tracer/api/path_cache.py"),
        ("64", "`5 * budget`", "", "tracer/api/path_cache.py"),
        ("8, 123456", "-", "", "tracer/skip/policy.py"),
    ],
)
def test_a_row_that_is_wrong_is_found(row: tuple[str, str, str, str]) -> None:
    try:
        found = compared(*row)
    except AssertionError:
        return
    assert found != numbers_in(row[0])
