"""`report("report.html")`. In: compiled functions. Out: one self-contained page about them.

`data.py` gathers the facts as plain data; `page.py` and the files beside it render the page. `tapejit report script.py` runs
a script and writes the page at its end, with a timeline of each function's first calls. Dependencies are imported on
first use.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...api.compiled_function import ALL, CompiledFunction


def report(path: Any, *functions: Any) -> None:
    """Write a page about these compiled functions, or about all that were called."""
    from ..compare_speed import compiled_in
    from ..files import RefusalError, check_writable
    from .data import gather

    for f in functions:
        if compiled_in(f) is None:
            raise TypeError(f"[report] expected compiled functions, not {type(f).__name__}: put @tapejit.compile above it")
    wanted = [compiled_in(f) for f in functions] or in_order(f for f in ALL if f.calls)
    if not wanted:
        raise ValueError("[report] no compiled function was called: put @tapejit.compile above one, and call it")
    try:
        check_writable(Path(path))
        write(Path(path), gather(wanted, ", ".join(f.name for f in wanted)))
    except RefusalError as reason:
        raise OSError(f"[report] {reason}") from None


def write(path: Path, facts: dict[str, Any]) -> None:
    """Render the gathered facts and write the page."""
    from ..files import RefusalError
    from .page import page

    text = page(facts)
    try:
        path.write_text(text, encoding="utf-8", errors="replace")  # file names may hold undecodable bytes
    except OSError as error:
        raise RefusalError(f"{path} cannot be written: {error.strerror}") from None


def in_order(functions: Iterable[CompiledFunction]) -> list[CompiledFunction]:
    """Sort functions by time, longest first."""
    return sorted(functions, key=lambda f: (-sum(f.seconds.values()), f.name))
