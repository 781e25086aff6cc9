"""`tapejit run script.py`: run a script, then summarise each compiled function.

A few calls of each function run eagerly, to measure a call without compilation: eager and compiled results are the same,
so the script does not notice. That happens after 8, 16, 32 ... replays, and counts neither as a call nor as a replay. The next
call is measured too, for comparison.
"""

from __future__ import annotations

import sys
from typing import Any

from ...api.compiled_function import CompiledFunction
from ...trace.logging import counted, display_line
from ..explain.explain import often
from ..files import module_of
from ..observe_run import Samples, executed, time_saved, watched


def run(script: str, arguments: list[str]) -> int:
    """Run the script, print the summary and return the script's exit code."""
    with module_of(script, "__main__", arguments) as (module, code), watched() as found:
        status, _ = executed(code, module)
        sys.stdout.flush()
        print("\n".join(summary(script, found)))
    return status


# ---- printed text


def summary(script: str, found: dict[CompiledFunction, Samples]) -> list[str]:
    if not found:
        return ["", f"tapejit: no compiled function was called in {script}"]
    lines = ["", f"tapejit: compiled functions of {script}"]
    for compiled, samples in found.items():
        lines += ["", *description_lines(compiled, samples)]
    return lines


def description_lines(compiled: CompiledFunction, samples: Samples) -> list[str]:
    facts = compiled.explain().to_dict()
    code = getattr(compiled.function, "__code__", None)
    where = "" if code is None else f" ({display_line(f'{code.co_filename}:{code.co_firstlineno}')})"
    calls, replays = facts["calls"], facts["replays"]
    rate = f"{replays / calls:.1%}" if calls else "0%"
    lines = [f"{facts['name']}{where}"]
    lines.append(f"  {counted(calls, 'call')}, {replays} replayed: hit rate {rate}; {facts['recordings']} recorded")
    lines += [f"  break {often(n)} at {line}: {reason}" for (line, reason), n in breaks(facts).items()] or ["  no breaks"]
    lines += bailouts(facts) or ["  no bailouts"]
    lines += [f"  from {p['from']} to {p['to']}: {p['description']}" for path in facts["paths"] for p in path["programs"]]
    lines.append(f"  {time_saved(facts, samples)}")
    return [*lines, *[f"  advice: {a}" for a in facts["advice"]]]


def breaks(facts: dict[str, Any]) -> dict[tuple[str, str], int]:
    """List where and why segments ended, and in how many replayed calls."""
    found: dict[tuple[str, str], int] = {}
    for path in facts["paths"]:
        for b in path["breaks"]:
            key = b["line"], b["reason"]
            found[key] = found.get(key, 0) + path["replays"]
    return found


def bailouts(facts: dict[str, Any]) -> list[str]:
    lines = [f"  diverged {often(d['times'])} at {d['line']}: {d['reason']}" for d in facts["divergences"]]
    lines += [f"  ran eagerly {often(d['times'])}: {d['reason']}" for d in facts["fell_back"]]
    if facts["gave_up"]:
        lines.append(f"  runs eagerly for good: {facts['gave_up']}")
    return lines
