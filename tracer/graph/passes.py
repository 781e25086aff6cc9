"""Run pipelines of named passes, and log what each changed and how long it took.

A pipeline is a tuple of `Pass` (run once) and `Fixpoint` (run in rounds until none changes anything). The backends' build
pipelines use the same records, so that `explain(passes=True)` can print all passes in the order in which they ran. A pass that
changes nothing must return the object it was given; if it makes something besides, `made` says what. The rest of a compilation,
such as looking on disk or linking, is logged by `run_step`, so that the times of a log add up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from ..trace.trace import Trace
from .functionalize import graph_of
from .ir import Graph, GraphError
from .simplify import fold_constants, merge_common_subexpressions, remove_copies, remove_dead_code, simplify_algebra

Result = TypeVar("Result")


@dataclass(frozen=True)
class Pass:
    """Named step of a pipeline. `unit` names what the size of its value counts: see `size_of`. `made`, called with the value
    afterwards, says in words what the pass made besides, such as machine code; nothing if that is "" or None."""

    name: str
    run: Callable[[Any], Any]
    unit: str = "node"
    made: Callable[[Any], str] | None = None


@dataclass(frozen=True)
class Fixpoint:
    """Passes that run in turn, round after round, until a round changes nothing."""

    passes: tuple[Pass, ...]


Pipeline = tuple[Pass | Fixpoint, ...]


def on_each(*passes: Pass | Fixpoint) -> Pipeline:
    """Lift passes to a tuple of values, such as the graphs of several devices: each element goes through each pass."""

    def mapped(step: Pass) -> Pass:
        def run(values: tuple[Any, ...]) -> tuple[Any, ...]:
            results = tuple(step.run(x) for x in values)
            return values if all(a is b for a, b in zip(results, values, strict=True)) else results

        made = step.made
        return Pass(step.name, run, step.unit, made and (lambda values: "; ".join(filter(None, map(made, values)))))

    return tuple(mapped(p) if isinstance(p, Pass) else Fixpoint(tuple(map(mapped, p.passes))) for p in passes)


@dataclass(frozen=True)
class PassRun:
    """Record of one run of a pass: the sizes of its value before and after (None if it has none), whether it changed
    anything, and what it made besides."""

    name: str
    unit: str
    before: int | None
    after: int | None
    changed: bool
    seconds: float
    made: str = ""


@dataclass
class PassLog:
    """Log of all passes that a program went through, in order."""

    runs: list[PassRun] = field(default_factory=list)

    def run(self, step: Pass, value: Any) -> Any:
        """Run one pass and log it. A pass that raises is not logged."""
        began = perf_counter()
        result = step.run(value)
        seconds = perf_counter() - began
        changed, made = result is not value, step.made(result) if step.made is not None else ""
        self.runs.append(PassRun(step.name, step.unit, size_of(value), size_of(result), changed, seconds, made))
        return result


_current: ContextVar[PassLog | None] = ContextVar("pass_log", default=None)


@contextlib.contextmanager
def logging_passes(log: PassLog) -> Iterator[PassLog]:
    """Context manager: in this thread, pipelines without a log of their own log their passes to `log`."""
    before = _current.set(log)
    try:
        yield log
    finally:
        _current.reset(before)


def run_step(name: str, run: Callable[[], Result], made: Callable[[Result], str]) -> Result:
    """Run a part of a compilation that is no rewrite of a value, and log it among the passes. `made` describes its result."""
    log = _current.get() or PassLog()
    found: Result = log.run(Pass(name, lambda _: run(), "", made), None)
    return found


def run_passes(passes: Pipeline, value: Any, log: PassLog | None = None) -> Any:
    """Run a pipeline on a value and return the final value. Without `log`, that of `logging_passes` is used."""
    log = log or _current.get() or PassLog()
    for step in passes:
        if isinstance(step, Pass):
            value = log.run(step, value)
            continue
        while True:
            before = value
            for inner in step.passes:
                value = log.run(inner, value)
            if value is before:
                break
    return value


def size_of(value: Any) -> int | None:
    """Return the size that a log shows: nodes of a graph, the sum over a tuple of graphs, the length of other sized values."""
    if hasattr(value, "nodes"):
        return len(value.nodes)
    if isinstance(value, tuple) and value and all(hasattr(x, "nodes") for x in value):
        return sum(len(x.nodes) for x in value)
    return len(value) if hasattr(value, "__len__") else None


# ---- the graph pipeline

DEAD_CODE = Pass("dead code", remove_dead_code)
SIMPLIFY = Fixpoint(
    (
        Pass("constant folding", fold_constants),
        Pass("algebra", simplify_algebra),
        Pass("common subexpressions", merge_common_subexpressions),
        Pass("copy removal", remove_copies),
        DEAD_CODE,
    )
)
GRAPH_PASSES: Pipeline = (SIMPLIFY,)


def optimize(graph: Graph, log: PassLog | None = None) -> Graph:
    """Run the backend-independent passes."""
    found = run_passes(GRAPH_PASSES, graph, log)
    assert isinstance(found, Graph)
    return found


def graph_text(trace: Trace, start: int, stop: int, outputs: Iterable[int]) -> str:
    """Print the optimised graph of some entries, or the reason why there is none."""
    try:
        return str(optimize(graph_of(trace, start, stop, outputs)))
    except GraphError as reason:
        return str(reason)
