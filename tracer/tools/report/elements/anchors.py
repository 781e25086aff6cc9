"""Anchors that link the parts of a page: the user's lines, kernels, and lines of the trace.

An element has its own anchors (`data-is`) and those it belongs to (`data-of`), as words. The page's script highlights
related elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Marks:
    """Anchors of one function."""

    def __init__(self, function: int) -> None:
        self.function = function
        self.lines: dict[str, str] = {}

    def line(self, line: str) -> str:
        return self.lines.setdefault(line, f"l{self.function}-{len(self.lines)}")

    def kernel(self, program: str, step: int) -> str:
        return f"k{self.function}-{program}-{step}"

    def of(self, lines: Iterable[str], kernels: Iterable[str] = ()) -> dict[str, Any]:
        words = [*[self.line(x) for x in lines if x], *kernels]
        return {"data_of": " ".join(words) or None}
