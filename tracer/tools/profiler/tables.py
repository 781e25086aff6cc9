"""Tables of a profile: rows, text, and a file for trace viewers.

A native program cannot be timed from inside. Its kernels are measured afterwards, one by one, and
the time of each run is divided in proportion: rows of kind "kernel" are estimates that add up to the measured time.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...execute.tiering import Tiering
from ...trace.logging import display_line
from ...trace.trace import Trace


class Event:
    """Timed event: start and end in nanoseconds, and the nanoseconds that belong to nested events."""

    __slots__ = ("end", "inner", "kind", "line", "name", "segment", "start", "trace")

    def __init__(self, name: str, kind: str, line: str, start: int) -> None:
        self.name, self.kind, self.line, self.start = name, kind, line, start
        self.end = start
        self.inner = 0
        self.segment: Any = None  # the segment of a native program
        self.trace: Trace | None = None

    @property
    def total(self) -> float:
        """Seconds, nested events included."""
        return (self.end - self.start) / 1e9

    @property
    def own(self) -> float:
        return (self.end - self.start - self.inner) / 1e9

    def ran(self, segment: Any, trace: Trace) -> None:
        """Mark this event as a run of a segment."""
        native = segment.native is not None and segment.run == segment.native.run
        on_trial = isinstance(segment.run, Tiering)
        first, last = extent(segment, trace)
        self.line = first if first == last else f"{first} to {last}"
        self.name = f"{'native' if native else 'new' if on_trial else 'reference'} program at {in_brief(self.line)}"
        if native:
            self.segment = segment


def extent(segment: Any, trace: Trace) -> tuple[str, str]:
    """First and last line of a segment."""
    bounds = next(((key[0], key[1]) for key, s in list(trace.programs.items()) if s is segment), (0, len(trace.entries) - 1))
    return trace.entries[bounds[0]].line, trace.entries[bounds[1]].line


def in_brief(lines: str) -> str:
    return " to ".join(os.path.basename(line) for line in lines.split(" to "))


class Row:
    """Events of one name or one line: their `count`, total seconds and self seconds."""

    def __init__(self, key: str, kind: str) -> None:
        self.key = key
        self.kind = kind
        self.count: float = 0
        self.total = self.own = 0.0
        self.lines: dict[str, None] = {}

    def add(self, own: float, total: float, count: float, lines: list[str]) -> None:
        self.count += count
        self.own += own
        self.total += total
        self.lines.update(dict.fromkeys(lines))

    def __repr__(self) -> str:
        return f"<{self.kind} {self.key}: {self.count:g} times, {self.own:.6f} s>"


class Averages(list[Row]):
    """Rows sorted by self time."""

    def table(self, limit: int = 25, *, sort_by: str | None = None, row_limit: int | None = None) -> str:
        """Format as text. `sort_by` and `row_limit` are PyTorch's: by self time, total time or count."""
        if row_limit is not None:
            limit = row_limit if row_limit >= 0 else len(self)
        if sort_by is not None:
            what = "count" if sort_by == "count" else "own" if sort_by.startswith("self_") else "total"
            return Averages(sorted(self, key=lambda row: -getattr(row, what))).table(limit)
        whole = sum(row.own for row in self) or 1.0
        lines = [f"{'self':>10} {'%':>6} {'total':>10} {'each':>10} {'times':>7}  {'kind':9} what"]
        for row in self[:limit]:
            each = duration(row.own / row.count) if row.count else "-"
            what = row.key if row.kind == "line" else f"{row.key:28} {placed(row.lines)}".rstrip()
            figures = f"{duration(row.own):>10} {row.own / whole:6.1%} {duration(row.total):>10} {each:>10} {row.count:7.0f}"
            lines.append(f"{figures}  {row.kind:9} {what}")
        if len(self) > limit:
            lines.append(f"{'':10} and {len(self) - limit} more")
        return "\n".join(lines)

    __str__ = table

    def find(self, text: str) -> Row:
        """Find the first row whose name contains this text."""
        for row in self:
            if text in row.key:
                return row
        raise KeyError(f"[profiler] no row has {text!r} in its name")


def placed(lines: dict[str, None]) -> str:
    """Format a few of the lines that a row comes from."""
    known = [in_brief(line) for line in list(lines)[:2]]
    return ("from " + ", ".join(known) + ", ..." * (len(lines) > 2)) if known else ""


def by_name(events: list[Event], kernels: bool) -> Averages:
    rows: dict[tuple[str, str], Row] = {}
    for _, name, kind, own, total, lines, count in parts(events, kernels):
        rows.setdefault((kind, name), Row(name, kind)).add(own, total, count, lines)
    return ordered(rows)


def by_line(events: list[Event], kernels: bool) -> Averages:
    rows: dict[tuple[str, str], Row] = {}
    for event, _, _, own, _, lines, count in parts(events, kernels):
        for line in lines or [event.line]:
            key = " to ".join(display_line(part) for part in line.split(" to "))
            share = 1 / max(len(lines), 1)
            rows.setdefault(("line", key), Row(key, "line")).add(own * share, own * share, count, [line])
    return ordered(rows)


def ordered(rows: dict[tuple[str, str], Row]) -> Averages:
    return Averages(sorted(rows.values(), key=lambda row: -row.own))


Part = tuple[Event, str, str, float, float, list[str], float]  # event, name, kind, self and total seconds, lines, count


def parts(events: list[Event], kernels: bool) -> Iterator[Part]:
    """Expand native programs among the events into their kernels."""
    known: dict[int, list[Any]] = {}
    for event in events:
        found = known.setdefault(id(event.segment), shares(event.segment)) if kernels and event.segment is not None else []
        if not found:
            yield event, event.name, event.kind, event.own, event.total, [event.line], 1
        for what, share, lines in found:
            yield event, what, "kernel", event.own * share, event.own * share, lines or [event.line], 1


def shares(segment: Any) -> list[tuple[str, float, list[str]]]:
    """Kernels of a native program: description, share of the time, lines. Empty if one could not be measured."""
    kernels = segment.native.report()["kernels"] if hasattr(segment.native, "report") else []
    times = [k["seconds"] for k in kernels]
    if not kernels or None in times or not sum(times):
        return []
    return [(k["what"], k["seconds"] / sum(times), list(k["lines"])) for k in kernels]


def rest_in_words(events: list[Event], nanoseconds: int) -> str:
    seen, whole = sum(e.own for e in events), nanoseconds / 1e9
    kernels = (
        "; kernel times are estimates: shares of their program's time" if any(e.segment is not None for e in events) else ""
    )
    return f"{duration(whole)} in total, {duration(max(whole - seen, 0.0))} of it in Python outside of these rows{kernels}"


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


# ---- trace viewers


def chrome_trace(events: list[Event], kernels: bool, began: int, path: Any) -> None:
    entries: list[dict[str, Any]] = []
    process, thread = os.getpid(), threading.get_ident()
    known: dict[int, list[Any]] = {}

    def add(name: str, kind: str, start: float, length: float, lines: list[str]) -> None:
        where = {"pid": process, "tid": thread, "ph": "X", "ts": start / 1e3, "dur": length / 1e3}
        entries.append({"name": name, "cat": kind, **where, "args": {"lines": [display_line(line) for line in lines]}})

    for event in sorted(events, key=lambda e: (e.start, -e.end)):
        add(event.name, event.kind, event.start - began, event.end - event.start, event.line.split(" to "))
        if event.segment is None or not kernels:
            continue
        at = float(event.start - began)
        for what, share, lines in known.setdefault(id(event.segment), shares(event.segment)):
            length = event.own * 1e9 * share
            add(what, "kernel (estimated)", at, length, lines)
            at += length
    try:
        Path(path).write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": entries}), encoding="utf-8")
    except OSError as error:
        raise OSError(f"[profiler] the trace cannot be written to {path}: {error.strerror}") from error
