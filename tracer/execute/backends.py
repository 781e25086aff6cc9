"""Registry of backends. A backend compiles a segment's graph to an executable.

`codegen` registers two, so the tracer does not depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ..graph.functionalize import graph_of
from ..graph.ir import Graph
from ..graph.passes import GRAPH_PASSES, Pipeline, run_passes
from ..trace.queries import calls_between, values_used
from ..trace.trace import Trace
from .reference_program import Program

tuning: ContextVar[bool] = ContextVar("tuning", default=False)  # True if a program compiled now may take time for tuning


@dataclass
class Backend:
    """Interface between the tracer and a backend. Only `name` and `compile` are required."""

    name: str  # name used by `compile(backend=...)` and TAPEJIT_BACKEND
    # (graph, slots, reference) -> an executable, which has `run(arrays, scalars)`. `graph` is the output of `passes` on a
    # segment's graph, `slots` the length of `arrays`; `reference` handles inputs that the executable cannot take.
    compile: Callable[[Any, int, Program], Any]
    passes: Pipeline = GRAPH_PASSES  # run on the graph before `compile` is called
    preload: Callable[[], Callable[[], None]] | None = None  # imports modules, and returns a function for the rest of the setup
    export: Callable[[], Any] | None = None  # imports the module that compiles for devices not present here
    check: Callable[[], str | None] | None = None  # a sentence if something here prevents it from working: for the command line
    # (executable, llvm, assembly) -> plain data for `explain(kernels=True)`
    describe: Callable[..., dict[str, Any]] | None = None

    def compile_graph(self, graph: Graph, slots: int, reference: Program) -> Any:
        """Run the passes, then compile. GraphError if the backend cannot do it."""
        return self.compile(run_passes(self.passes, graph), slots, reference)

    def compile_entries(self, trace: Trace, start: int, stop: int, keep: frozenset[int], reference: Program) -> Any:
        """Compile some entries of a trace; the slots in `keep` are outputs."""
        return self.compile_graph(graph_of(trace, start, stop, keep), len(trace.roots), reference)


BACKENDS: dict[str, Backend] = {}


def add_backend(backend: Backend) -> None:
    """Register a backend, so that `compile(backend=name)` takes it."""
    BACKENDS[backend.name] = backend


def backend_names() -> list[str]:
    """Return the names that users may pass: "auto" chooses by device, "plain" is the reference program alone."""
    return ["auto", *BACKENDS, "plain"]


def backend_of(wanted: str, on_gpu: bool = False) -> str:
    """Return the name of the backend to use. If the function does not choose one, TAPEJIT_BACKEND does, else the device."""
    if wanted == "auto":
        wanted = os.environ.get("TAPEJIT_BACKEND", "auto")
    if wanted not in backend_names():
        raise ValueError(f"[compile] TAPEJIT_BACKEND is {wanted!r}: it may be {' or '.join(backend_names())}")
    return ("triton" if on_gpu else "llvm") if wanted == "auto" else wanted


def uses_gpu(trace: Trace, start: int, stop: int) -> bool:
    """True if an op of these entries produces or reads an array that is not on the CPU."""
    ops = calls_between(trace, start, stop)
    read = any(not trace.values[n].form.on_cpu for call in ops for n in values_used(call))
    return read or any(not v.form.on_cpu for call in ops for v in call.results)
