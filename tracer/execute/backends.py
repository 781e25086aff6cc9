"""Who makes fast programs of segments, and whether they are faster.

`codegen` enters itself here, so that the tracer need not know it. A segment's first run makes its native program; with
`background=True` that happens beside, and the plain program runs meanwhile. A few runs later both have been measured, and the
quicker one stays.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from time import perf_counter
from typing import Any

from ...eager.backends import are_deterministic_algorithms_enabled
from ..tools.explain.explain import logged
from ..graph.functionalize import graph_of
from ..graph.ir import Graph, GraphError
from .reference_program import Plain, Program, calls, values_of
from ..trace.trace import WRITTEN, Break, Trace

BACKENDS = ["auto", "llvm", "triton", "plain"]
Generator = Callable[[Trace, int, int, frozenset[int], Program], Any]  # gives what has a `run`
GraphGenerator = Callable[[Graph, int, Program], Any]  # the same for a graph, and how many arrays it will be given
GENERATORS: dict[str, Generator] = {}
GRAPH_GENERATORS: dict[str, GraphGenerator] = {}
AHEAD_OF_TIME: dict[str, Callable[[], Any]] = {}  # by backend: gives the module that compiles for devices that are not here
tuning: ContextVar[bool] = ContextVar("tuning", default=False)  # whether a program that is made now may take time to be tuned
TRIALS = 4  # runs of the native program, the first of which does not count, before the plain one is measured
MARGIN = 1.2  # how much slower it may seem: a run of the plain program says little, and the same results twice are worth more


def add_backend(name: str, generator: Generator) -> None:
    """Enter a backend, so that `compile(backend=name)` takes it."""
    GENERATORS[name] = generator
    if name not in BACKENDS:
        BACKENDS.append(name)


def add_graph_backend(name: str, generator: GraphGenerator) -> None:
    """Enter a backend that makes programs of graphs: `diff` can ask it for values in the middle of one."""

    def of_entries(trace: Trace, start: int, stop: int, keep: frozenset[int], plain: Program) -> Any:
        return generator(graph_of(trace, start, stop, keep), len(trace.roots), plain)

    GRAPH_GENERATORS[name] = generator
    add_backend(name, of_entries)


def backend_of(wanted: str, on_gpu: bool = False) -> str:
    """The backend that is used: TAPEJIT_BACKEND decides where the function leaves it open, else where the tensors are."""
    if wanted == "auto":
        wanted = os.environ.get("TAPEJIT_BACKEND", "auto")
    if wanted not in BACKENDS:
        raise ValueError(f"[compile] TAPEJIT_BACKEND is {wanted!r}: it may be {' or '.join(BACKENDS)}")
    return ("triton" if on_gpu else "llvm") if wanted == "auto" else wanted


def tunes(wanted: bool | None) -> bool:
    """Whether programs are tuned: TAPEJIT_TUNE decides where the function leaves it open."""
    return os.environ.get("TAPEJIT_TUNE") == "1" if wanted is None else wanted


def uses_gpu(trace: Trace, start: int, stop: int) -> bool:
    """Whether some op of some entries makes or reads something that is not on the CPU."""
    ops = calls(trace, start, stop)
    read = any(not trace.values[n].form.on_cpu for call in ops for n in values_of(call))
    return read or any(not v.form.on_cpu for call in ops for v in call.results)


def at_once(function: Any) -> bool:
    """Whether a function's programs are made when they are first wanted, even of a recording that is not complete."""
    return not function.background or are_deterministic_algorithms_enabled()


def nothing() -> None: ...


def finished(program: Program) -> Program:
    """A program that is there: a plain one is written now, not while its run is timed."""
    return program.write() if isinstance(program, Plain) else program


class Warming:
    """The program of a segment that is new: it puts a better one in its own place."""

    def __init__(self, segment: Any, function: Any, trace: Trace, start: int, stop: int, keep: frozenset[int]) -> None:
        self.segment = segment
        self.function = function
        self.given = (trace, start, stop, keep)
        self.plain: Program = segment.run
        self.native: Program | None = None
        self.thread: threading.Thread | None = None
        self.times: list[float] = []

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> None:
        if self.native is None:
            if not self.ready():
                self.plain(arrays, scalars)
                return
            if self.native is None:
                self.settle(self.plain, self.segment.told)
                self.plain(arrays, scalars)
                return
        if are_deterministic_algorithms_enabled():
            self.settle(self.native, f"{self.what}, not compared with the plain program: use_deterministic_algorithms(True)")
            self.native(arrays, scalars)
            return
        program = self.native if len(self.times) < TRIALS else finished(self.plain)
        wait = getattr(self.segment.native, "wait", nothing)  # a device goes on when the program has returned
        wait()
        began = perf_counter()
        program(arrays, scalars)
        wait()
        self.times.append(perf_counter() - began)
        if len(self.times) > TRIALS:
            self.decide(min(self.times[1:TRIALS]), self.times[-1])

    def ready(self) -> bool:
        """Whether the native program is there, or it is known that there is none. When it is made beside, a clock decides from
        which call on it runs."""
        if at_once(self.function):
            self.generate()
            return True
        if self.thread is None:
            if not self.given[0].keys:  # it is being recorded, and would grow while it is read
                return False
            self.thread = threading.Thread(target=self.generate, name="tapejit-compile", daemon=True)
            self.thread.start()
        return not self.thread.is_alive()

    @property
    def what(self) -> str:
        return getattr(self.segment.native, "what", "native code")

    def decide(self, native: float, plain: float) -> None:
        quicker = native <= plain * MARGIN
        told = f"{self.what}: {1e6 * native:.0f} us a run, {1e6 * plain:.0f} us without"
        assert self.native is not None
        self.settle(self.native if quicker else self.plain, told if quicker else told + ", so it is not used")

    def settle(self, program: Program, told: str) -> None:
        self.segment.run = finished(program)
        self.segment.told = told

    def generate(self) -> None:
        """Make the native program; without one there is a reason, and a warning if it is nobody's intention."""
        trace, start, stop, _ = self.given
        name, backend = self.function.name, backend_of(self.function.backend, uses_gpu(trace, start, stop))
        end = trace.entries[stop]
        if backend not in GENERATORS:
            self.segment.told = f"a plain program: the backend is {backend}"
        elif type(end) is Break and end.reason is WRITTEN:
            self.segment.told = "a plain program: its arrays may share memory"
        elif not calls(trace, start, stop):
            self.segment.told = "nothing to run"
        else:
            began = perf_counter()
            before = tuning.set(tunes(self.function.tune))
            try:
                self.segment.native = GENERATORS[backend](*self.given, self.plain)
                self.native = self.segment.native.run
            except GraphError as reason:
                self.segment.told = f"a plain program: {reason}"
            except Exception as reason:
                self.segment.told = f"a plain program, as generating code failed: {reason}"
                if os.environ.get("TAPEJIT_STRICT_BACKEND"):
                    raise
                warnings.warn(f"[compile] {name} runs without native code: {reason}", RuntimeWarning, stacklevel=2)
            finally:
                tuning.reset(before)
            self.function.compiling(perf_counter() - began, "replay")
            logged("code", f"{name}: {self.segment.told or 'native code'}", lambda: str(self.segment.native or ""))
