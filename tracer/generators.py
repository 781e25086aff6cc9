"""Who makes fast programs of segments. A segment runs as a plain program at first; when it runs again, it is worth compiling.

`codegen` enters itself here, so that the tracer need not know it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

from .explain import logged
from .graph import GraphError
from .program import Program, calls
from .trace import WRITTEN, Break, Trace

BACKENDS = ("auto", "llvm", "plain")
Generator = Callable[[Trace, int, int, frozenset[int], Program], Any]  # gives what has a `run`
GENERATORS: dict[str, Generator] = {}


def backend_of(wanted: str) -> str:
    """The backend that is used: TAPEJIT_BACKEND decides where the function leaves it open."""
    if wanted == "auto":
        wanted = os.environ.get("TAPEJIT_BACKEND", "llvm")
    if wanted not in BACKENDS:
        raise ValueError(f"[compile] TAPEJIT_BACKEND is {wanted!r}: it may be {' or '.join(BACKENDS[1:])}")
    return wanted


class Warming:
    """The program of a segment that has not run often: the next one it is given may be a fast one."""

    def __init__(self, segment: Any, function: Any, trace: Trace, start: int, stop: int, keep: frozenset[int]) -> None:
        self.segment = segment
        self.function = function
        self.given = (trace, start, stop, keep)
        self.plain: Program = segment.run
        self.runs = 0

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> None:
        self.runs += 1
        if self.runs > 1:
            self.segment.run = self.generated()
            self.segment.run(arrays, scalars)
        else:
            self.plain(arrays, scalars)

    def generated(self) -> Program:
        """Native code, or the plain program if there is none, with one warning."""
        trace, start, stop, _ = self.given
        generate = GENERATORS.get(backend_of(self.function.backend))
        end = trace.entries[stop]
        shown = type(end) is Break and end.reason is WRITTEN  # arrays may share memory
        if generate is None or shown or not calls(trace, start, stop):
            return self.plain
        began = perf_counter()
        try:
            self.segment.native = generate(*self.given, self.plain)
        except GraphError as reason:
            why = str(reason)
            logged("code", f"{self.function.name} stays plain", lambda: why)
            return self.plain
        except Exception as reason:
            if os.environ.get("TAPEJIT_STRICT_BACKEND"):
                raise
            warnings.warn(f"[compile] {self.function.name} runs without native code: {reason}", RuntimeWarning, stacklevel=2)
            return self.plain
        self.function.compiling(perf_counter() - began, "replay")
        return self.segment.native.run  # type: ignore[no-any-return]
