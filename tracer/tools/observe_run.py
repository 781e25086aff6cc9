"""Run a script while sampling the time of its compiled functions, eager and replayed."""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import traceback
import types
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from ...eager.core.tape.node import local
from ..api.compiled_function import CompiledFunction
from ..api.eager_switch import switched_off
from ..trace.logging import counted

FIRST = 8  # replays before the first eager sample: by then native code has been timed against the reference program


class Samples:
    """Seconds that calls of one function took, eager and replayed."""

    def __init__(self) -> None:
        self.eager: list[float] = []
        self.replayed: list[float] = []
        self.next = FIRST

    def due(self, compiled: CompiledFunction) -> bool:
        if compiled.hits < self.next or compiled.off or compiled.gave_up is not None or switched_off():
            return False
        self.next = 2 * compiled.hits
        return True

    def compiled_call(self, call: Any, compiled: CompiledFunction, args: Any, kwargs: Any) -> Any:
        began, hits = perf_counter(), compiled.hits
        result = call(compiled, *args, **kwargs)
        if compiled.hits > hits and len(self.replayed) < len(self.eager):
            self.replayed.append(perf_counter() - began)
        return result

    def eager_call(self, compiled: CompiledFunction, args: Any, kwargs: Any) -> Any:
        began = perf_counter()
        result = compiled.function(*args, **kwargs)
        self.eager.append(perf_counter() - began)
        return result


def executed(code: types.CodeType, module: types.ModuleType) -> tuple[int, str | None]:
    """Run a script. Returns its exit code and, if it failed, a short reason. Its traceback is printed."""
    try:
        exec(code, module.__dict__)
        return 0, None
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        return status, f"the script ended with exit code {status}" if status else None
    except KeyboardInterrupt:
        return 130, "the script was stopped by Ctrl-C"
    except BaseException as error:
        stack = error.__traceback__  # without the frame of this function
        traceback.print_exception(type(error), error, stack.tb_next if stack else None)
        return 1, f"the script raised {type(error).__name__}: {error}"


@contextlib.contextmanager
def watched() -> Iterator[dict[CompiledFunction, Samples]]:
    """Collect the compiled functions called in this block, with samples of their eager time."""
    found: dict[CompiledFunction, Samples] = {}
    call = CompiledFunction.__call__
    sampling = False

    def sampled(self: CompiledFunction, /, *args: Any, **kwargs: Any) -> Any:
        nonlocal sampling
        state = local.state
        if state.tracer is not None or state.anomaly is not None or state.inference:
            return call(self, *args, **kwargs)
        if sampling:
            return self.function(*args, **kwargs)
        samples = found.setdefault(self, Samples())
        if not samples.due(self):
            return samples.compiled_call(call, self, args, kwargs)
        sampling = True
        try:
            return samples.eager_call(self, args, kwargs)
        finally:
            sampling = False

    CompiledFunction.__call__ = sampled  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        CompiledFunction.__call__ = call  # type: ignore[method-assign]


def time_saved(facts: dict[str, Any], samples: Samples) -> str:
    """Total time saved by compilation, net of recording and compiling."""
    replays = facts["replays"]
    if not samples.replayed:
        return f"time saved: not measured: {counted(replays, 'replay')}; the first eager sample is taken after {FIRST}"
    seconds = facts["seconds"]
    eager, replayed = statistics.median(samples.eager), statistics.median(samples.replayed)
    overhead = seconds["recording"] + seconds["compiling"]
    saved = (replays + facts["recordings"]) * eager - seconds["running"] - overhead
    measured = f"{duration(replayed)} a replayed call, {duration(eager)} eagerly (medians of {len(samples.eager)}); "
    taken = f"recording and compiling took {duration(overhead)}"
    if saved >= 0:
        return f"time saved: {duration(saved)}. {measured}{taken}"
    if eager <= replayed:
        return f"time saved: none, {duration(-saved)} lost. {measured}{taken}"
    more = math.ceil(-saved / (eager - replayed))
    return f"time saved: none yet, breaks even after about {counted(more, 'more call')}. {measured}{taken}"


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
