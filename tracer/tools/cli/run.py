"""`tapejit run script.py`: run a script, and tell at its end what became of each compiled function.

A few calls of each function are run eagerly, to know what a call would take without compiling: eager and compiled do the same,
so the script does not notice. That happens after 8, 16, 32 ... replays, and counts neither as a call nor as a replay. The next
call is measured too, to compare with.
"""

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

from ....eager.core.tape.node import local
from ..files import module_of
from ...api.compile import Compiled, switched_off
from ..explain.explain import counted, often, shown

FIRST = 8  # replays before the first eager sample: by then native code has been compared with a plain program


class Samples:
    """What calls of one function took, eagerly and replayed."""

    def __init__(self) -> None:
        self.eager: list[float] = []
        self.replayed: list[float] = []
        self.next = FIRST

    def due(self, compiled: Compiled) -> bool:
        if compiled.hits < self.next or compiled.off or compiled.gave_up is not None or switched_off():
            return False
        self.next = 2 * compiled.hits
        return True

    def compiled_call(self, call: Any, compiled: Compiled, args: Any, kwargs: Any) -> Any:
        began, hits = perf_counter(), compiled.hits
        result = call(compiled, *args, **kwargs)
        if compiled.hits > hits and len(self.replayed) < len(self.eager):
            self.replayed.append(perf_counter() - began)
        return result

    def eager_call(self, compiled: Compiled, args: Any, kwargs: Any) -> Any:
        began = perf_counter()
        result = compiled.function(*args, **kwargs)
        self.eager.append(perf_counter() - began)
        return result


def run(script: str, arguments: list[str]) -> int:
    """The script's exit code."""
    with module_of(script, "__main__", arguments) as (module, code), watched() as found:
        status, _ = executed(code, module)
        sys.stdout.flush()
        print("\n".join(summary(script, found)))
    return status


def executed(code: types.CodeType, module: types.ModuleType) -> tuple[int, str | None]:
    """Run a script: its exit code, and in a few words how it ended if not well. Its traceback is printed."""
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
def watched() -> Iterator[dict[Compiled, Samples]]:
    """In this block: all compiled functions that are called, and samples of what they take eagerly."""
    found: dict[Compiled, Samples] = {}
    call = Compiled.__call__
    sampling = False

    def sampled(self: Compiled, /, *args: Any, **kwargs: Any) -> Any:
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

    Compiled.__call__ = sampled  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        Compiled.__call__ = call  # type: ignore[method-assign]


# ---- words


def summary(script: str, found: dict[Compiled, Samples]) -> list[str]:
    if not found:
        return ["", f"tapejit: no compiled function was called in {script}"]
    lines = ["", f"tapejit: compiled functions of {script}"]
    for compiled, samples in found.items():
        lines += ["", *told(compiled, samples)]
    return lines


def told(compiled: Compiled, samples: Samples) -> list[str]:
    facts = compiled.explain().to_dict()
    code = getattr(compiled.function, "__code__", None)
    where = "" if code is None else f" ({shown(f'{code.co_filename}:{code.co_firstlineno}')})"
    calls, replays = facts["calls"], facts["replays"]
    rate = f"{replays / calls:.1%}" if calls else "0%"
    lines = [f"{facts['name']}{where}"]
    lines.append(f"  {counted(calls, 'call')}, {replays} replayed: hit rate {rate}; {facts['recordings']} recorded")
    lines += [f"  break {often(n)} at {line}: {reason}" for (line, reason), n in breaks(facts).items()] or ["  no breaks"]
    lines += fallbacks(facts) or ["  no fallbacks"]
    lines += [f"  from {p['from']} to {p['to']}: {p['told']}" for path in facts["paths"] for p in path["programs"]]
    lines.append(f"  {time_saved(facts, samples)}")
    return [*lines, *[f"  advice: {a}" for a in facts["advice"]]]


def breaks(facts: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Where and why segments ended, and in how many replayed calls."""
    found: dict[tuple[str, str], int] = {}
    for path in facts["paths"]:
        for b in path["breaks"]:
            key = b["line"], b["reason"]
            found[key] = found.get(key, 0) + path["replays"]
    return found


def fallbacks(facts: dict[str, Any]) -> list[str]:
    lines = [f"  diverged {often(d['times'])} at {d['line']}: {d['reason']}" for d in facts["divergences"]]
    lines += [f"  ran eagerly {often(d['times'])}: {d['reason']}" for d in facts["fell_back"]]
    if facts["gave_up"]:
        lines.append(f"  runs eagerly for good: {facts['gave_up']}")
    return lines


def time_saved(facts: dict[str, Any], samples: Samples) -> str:
    """What compiling saved in all, with all that it took counted against it."""
    replays = facts["replays"]
    if not samples.replayed:
        return f"time saved: not measured: {counted(replays, 'replay')}, and the first eager call is taken after {FIRST}"
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
    return f"time saved: none yet, {duration(-saved)} to go, about {counted(more, 'call')}. {measured}{taken}"


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
