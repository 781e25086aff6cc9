"""Tiering: compile a segment, time its native program against its reference program, and keep the faster one.

A program starts as a reference program. `compile` makes native code of it, synchronously or (`background=True`) in another
thread while the reference program runs. A few runs later both have been timed, and the slower one is dropped.
"""

from __future__ import annotations

import os
import threading
import warnings
from time import perf_counter
from typing import Any

from ...eager.backends import are_deterministic_algorithms_enabled
from ..graph.ir import GraphError
from ..graph.passes import logging_passes
from ..trace.logging import log_event
from ..trace.queries import calls_between
from ..trace.trace import WRITTEN, Break, Trace
from .backends import BACKENDS, backend_of, tuning, uses_gpu
from .reference_program import Program, ReferenceProgram
from .segment import TieredProgram

TRIALS = 4  # runs of the native program, the first not counted, before the reference program is timed
# Tolerated slowdown of native code: one run of the reference program says little, and reproducible results matter more.
MARGIN = 1.2


def is_tuning_requested(wanted: bool | None) -> bool:
    """True if tuning is requested: by the function, or by TAPEJIT_TUNE where the function leaves it open."""
    return os.environ.get("TAPEJIT_TUNE") == "1" if wanted is None else wanted


def compiles_synchronously(function: Any) -> bool:
    """True if programs are compiled before their first run, even those of a recording that is not complete."""
    return not function.background or are_deterministic_algorithms_enabled()


def nothing() -> None: ...


def ready_to_time(program: Program) -> Program:
    """Generate the source of a reference program now, so that its timed run does not include it."""
    return program.write() if isinstance(program, ReferenceProgram) else program


class Tiering:
    """Timing wrapper: a new program's `run` until the faster tier is known, which then replaces it."""

    def __init__(self, target: TieredProgram, function: Any, trace: Trace, start: int, stop: int, keep: frozenset[int]) -> None:
        self.target = target
        self.function = function
        self.entries = (trace, start, stop, keep)
        self.reference: Program = target.run
        self.native: Program | None = None
        self.thread: threading.Thread | None = None
        self.times: list[float] = []
        target.run, target.tiering, target.compiled = self, self, False

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> None:
        """Run the program and time it: the reference program while there is no native one."""
        if self.native is None or not self.target.compiled:
            self.reference(arrays, scalars)
            return
        if are_deterministic_algorithms_enabled():
            why = "not timed against the reference program: use_deterministic_algorithms(True)"
            self.settle(self.native, f"{self.what}, {why}")
            self.native(arrays, scalars)
            return
        program = self.native if len(self.times) < TRIALS else ready_to_time(self.reference)
        wait = getattr(self.target.native, "wait", nothing)  # a device still runs after the program has returned
        wait()
        began = perf_counter()
        program(arrays, scalars)
        wait()
        self.times.append(perf_counter() - began)
        if len(self.times) > TRIALS:
            self.decide(min(self.times[1:TRIALS]), self.times[-1])

    def compile(self) -> None:
        """Compile now, or start to in another thread: then the first call that runs native code depends on when the thread
        finishes."""
        if compiles_synchronously(self.function):
            self.compile_native()
        elif self.thread is None:
            if not self.entries[0].keys:  # it is still being recorded, and would grow while it is read
                return
            self.thread = threading.Thread(target=self.compile_native, name="tapejit-compile", daemon=True)
            self.thread.start()
        if self.thread is not None and self.thread.is_alive():
            return
        self.target.compiled = True
        if self.native is None:
            self.settle(self.reference, self.target.status)

    @property
    def what(self) -> str:
        return getattr(self.target.native, "what", "native code")

    def decide(self, native: float, reference: float) -> None:
        faster = native <= reference * MARGIN
        status = f"{self.what}: {1e6 * native:.0f} us a run, {1e6 * reference:.0f} us by the reference program"
        assert self.native is not None
        self.settle(self.native if faster else self.reference, status if faster else status + ", so it is not used")

    def settle(self, program: Program, status: str) -> None:
        self.target.run = ready_to_time(program)
        self.target.status = status

    def compile_native(self) -> None:
        """Compile the native program. If there is none, the status has the reason, with a warning unless that was intended."""
        trace, start, stop, _ = self.entries
        name, backend = self.function.name, backend_of(self.function.backend, uses_gpu(trace, start, stop))
        end, target = trace.entries[stop], self.target
        if backend not in BACKENDS:
            target.status = f"reference program: the backend is {backend}"
        elif type(end) is Break and end.reason is WRITTEN:
            target.status = "reference program: its arrays may share memory"
        elif not calls_between(trace, start, stop):
            target.status = "nothing to run"
        else:
            began = perf_counter()
            before = tuning.set(is_tuning_requested(self.function.tune))
            try:
                with logging_passes(target.passes):
                    target.native = BACKENDS[backend].compile_entries(*self.entries, self.reference)
                self.native = target.native.run
            except GraphError as reason:
                target.status = f"reference program: {reason}"
            except Exception as reason:
                target.status = f"reference program, as compiling failed: {reason}"
                if os.environ.get("TAPEJIT_STRICT_BACKEND"):
                    raise
                warnings.warn(f"[compile] {name} runs without native code: {reason}", RuntimeWarning, stacklevel=2)
            finally:
                tuning.reset(before)
            self.function.compiling(perf_counter() - began, "replay")
            log_event("code", f"{name}: {target.status or 'native code'}", lambda: str(target.native or ""))
