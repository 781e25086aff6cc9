"""The user's source around the lines that a recording names: the functions they stand in, file by file."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable
from typing import Any

from ..explain.explain import shown

AROUND = 2  # lines around one that is in no function
SHORT = 60  # functions up to this length are shown whole
NEAR = 6  # lines around one in a longer function


def sources_of(lines: Iterable[str], where: str | None) -> list[dict[str, Any]]:
    """For each file its name and rows: a number and a text, None between parts that are not next to each other. `where` is the
    function that was compiled: its file is the first."""
    named: dict[str, set[int]] = {}
    for line in [where, *lines] if where is not None else lines:
        file, _, number = str(line).rpartition(":")
        if number.isdigit():
            named.setdefault(file, set()).add(int(number))
    found = []
    for file, numbers in named.items():
        linecache.checkcache(file)  # it may have changed, or be another one of this name
        text = [x.rstrip("\n") for x in linecache.getlines(file)]
        wanted = sorted(n for n in widened(text, numbers) if 1 <= n <= len(text))
        if wanted:
            found.append({"file": shown(file), "rows": rows(text, wanted)})
    return found


def rows(text: list[str], wanted: list[int]) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = []
    for before, n in zip([wanted[0] - 1, *wanted], wanted, strict=False):
        if n != before + 1:
            found.append(None)
        found.append({"number": n, "text": text[n - 1]})
    return found


def widened(text: list[str], numbers: set[int]) -> set[int]:
    """Lines, and those around them that belong to them."""
    functions = spans("\n".join(text))
    found: set[int] = set()
    for n in numbers:
        around = [(first, last) for first, last in functions if first <= n <= last]
        if not around:
            found.update(range(n - AROUND, n + AROUND + 1))
            continue
        first, last = max(around)  # the innermost
        if last - first < SHORT:
            found.update(range(first, last + 1))
        else:
            found.update(range(max(first, n - NEAR), min(last, n + NEAR) + 1), (first,))
    return found


def spans(text: str) -> list[tuple[int, int]]:
    """The first and last lines of all functions, decorators included."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # a notebook's cell with magic in it, or a file that has changed since
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [(min([f.lineno, *[d.lineno for d in f.decorator_list]]), f.end_lineno or f.lineno) for f in functions]
