"""Print log lines while functions are compiled (`TAPEJIT_LOG=recompiles,breaks,graph,code`); format lines and counts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from .trace import End, Trace


def display_line(line: str) -> str:
    """Format a file:line for display: relative to the current directory if the file is below it."""
    try:
        relative = os.path.relpath(line)
    except (OSError, ValueError):  # the directory is gone, or on another drive
        return line
    return line if relative.startswith(os.pardir) or line.startswith("<") else relative


def counted(n: int, noun: str) -> str:
    """Format a count: "1 kernel", "2 kernels"."""
    return f"{n} {noun}{'s' * (n != 1)}"


def log_event(kind: str, line: str, details: Callable[[], str] | None = None) -> None:
    """Print a line to stderr if TAPEJIT_LOG includes this kind."""
    wanted = os.environ.get("TAPEJIT_LOG", "")
    if wanted and kind in wanted.split(","):
        print(f"[tapejit {kind}] {line}", file=sys.stderr)
        if details is not None:
            print(details(), file=sys.stderr)


def log_path(name: str, trace: Trace) -> None:
    """Log the graph breaks of a new path."""
    for b in trace.breaks():
        if not isinstance(b, End):
            log_event("breaks", f"{name} breaks at {display_line(b.line)}: {b.reason}")
