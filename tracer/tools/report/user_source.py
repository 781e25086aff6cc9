"""The user's source around the lines that a recording names: the enclosing functions, file by file."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable
from typing import Any

from ...trace.logging import display_line

AROUND = 2  # context lines outside functions
SHORT = 60  # functions up to this length are shown whole
NEAR = 6  # context lines in a longer function


def sources_of(lines: Iterable[str], where: str | None) -> list[dict[str, Any]]:
    """Collect rows by file: line number and text, None between parts that are not adjacent. `where` is the
    compiled function, whose file comes first."""
    named: dict[str, set[int]] = {}
    for line in [where, *lines] if where is not None else lines:
        file, _, number = str(line).rpartition(":")
        if number.isdigit():
            named.setdefault(file, set()).add(int(number))
    found = []
    for file, numbers in named.items():
        linecache.checkcache(file)  # the file may have changed or been replaced
        text = [x.rstrip("\n") for x in linecache.getlines(file)]
        wanted = sorted(n for n in widened(text, numbers) if 1 <= n <= len(text))
        if wanted:
            found.append({"file": display_line(file), "rows": rows(text, wanted)})
    return found


def rows(text: list[str], wanted: list[int]) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = []
    for before, n in zip([wanted[0] - 1, *wanted], wanted, strict=False):
        if n != before + 1:
            found.append(None)
        found.append({"number": n, "text": text[n - 1]})
    return found


def widened(text: list[str], numbers: set[int]) -> set[int]:
    """Extend lines by their enclosing functions or context."""
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
    """First and last lines of all functions, decorators included."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # a notebook cell with magics, or a file changed since
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [(min([f.lineno, *[d.lineno for d in f.decorator_list]]), f.end_lineno or f.lineno) for f in functions]
