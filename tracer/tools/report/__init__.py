"""`report("report.html")`: what became of compiled functions, as one page that needs nothing else.

`data.py` gathers what is known, as plain data; `page.py` and the files beside it make the page. `tapejit report script.py` runs
a script and writes the page at its end, with the first calls of each function one by one. What it takes is imported when it is
asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...api.compile import Compiled, _all


def report(path: Any, *functions: Any) -> None:
    """Write a page about compiled functions: these, or all that were called."""
    from ..cli.bench import compiled_in
    from ..files import RefusalError, check_writable
    from .data import gather

    for f in functions:
        if compiled_in(f) is None:
            raise TypeError(f"[report] expected compiled functions, not {type(f).__name__}: put @tapejit.compile above it")
    wanted = [compiled_in(f) for f in functions] or in_order(f for f in _all if f.calls)
    if not wanted:
        raise ValueError("[report] no compiled function was called: put @tapejit.compile above one, and call it")
    try:
        check_writable(Path(path))
        write(Path(path), gather(wanted, ", ".join(f.name for f in wanted)))
    except RefusalError as reason:
        raise OSError(f"[report] {reason}") from None


def write(path: Path, facts: dict[str, Any]) -> None:
    """Make the page of what was gathered."""
    from ..files import RefusalError
    from .page import page

    text = page(facts)
    try:
        path.write_text(text, encoding="utf-8", errors="replace")  # names of files may hold what is no text
    except OSError as error:
        raise RefusalError(f"{path} cannot be written: {error.strerror}") from None


def in_order(functions: Iterable[Compiled]) -> list[Compiled]:
    """Those that took most time first."""
    return sorted(functions, key=lambda f: (-sum(f.seconds.values()), f.name))
