"""What happened to a compiled function: as text, as a dict, and while it happens as log lines (`TAPEJIT_LOG=recompiles`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .trace import Backward, Break, Call, End, Trace

if TYPE_CHECKING:
    from .compile import Compiled


class Explanation:
    """`print(step.explain())`."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    def to_dict(self) -> dict[str, Any]:
        return self.facts

    def __str__(self) -> str:
        f = self.facts
        lines = [
            f"{f['name']}: {f['calls']} calls, {f['replays']} replayed, {f['recordings']} recorded, "
            f"{sum(d['times'] for d in f['divergences'])} diverged"
        ]
        if f["gave_up"]:
            lines.append(f"  runs eagerly for good: {f['gave_up']}")
        for i, path in enumerate(f["paths"]):
            lines.append(
                f"  path {i}: {path['ops']} ops in {path['segments']} segment{'s' * (path['segments'] != 1)}, "
                f"{path['numbers']} runtime scalars, {path['inputs']} tensors from outside, replayed {path['replays']} times"
            )
            lines += [f"    break at {b['line']}: {b['reason']}" for b in path["breaks"]]
        lines += [f"  diverged {d['times']} times at {d['line']}: {d['reason']}" for d in f["divergences"]]
        seconds = ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in f["seconds"].items() if value)
        return "\n".join([*lines, f"  time: {seconds}"])

    __repr__ = __str__


def explain(compiled: Compiled) -> Explanation:
    divergences = [
        {"line": line, "reason": reason, "times": times} for (line, reason), times in compiled.divergences.most_common()
    ]
    return Explanation(
        {
            "name": compiled.name, "calls": compiled.calls, "replays": compiled.hits, "recordings": compiled.recordings,
            "gave_up": compiled.gave_up, "paths": [path_facts(t) for t in compiled.traces], "divergences": divergences,
            "seconds": dict(compiled.seconds), "evictions": compiled.evictions,
        }
    )  # fmt: skip


def path_facts(trace: Trace) -> dict[str, Any]:
    ops = sum(1 if isinstance(e, Call) else len(e.calls) if isinstance(e, Backward) else 0 for e in trace.entries)
    breaks = [{"line": b.line, "reason": b.reason} for b in trace.entries if isinstance(b, Break) and not isinstance(b, End)]
    return {
        "ops": ops, "segments": len(breaks) + 1, "breaks": breaks, "numbers": trace.numbers, "inputs": len(trace.outside),
        "replays": trace.replays,
    }  # fmt: skip


def shown(line: str) -> str:
    """A file:line as people read it: relative to the current directory where the file is below it."""
    try:
        relative = os.path.relpath(line)
    except (OSError, ValueError):  # the directory is gone, or on another drive
        return line
    return line if relative.startswith(os.pardir) or line.startswith("<") else relative


def logged(kind: str, line: str, details: Callable[[], str] | None = None) -> None:
    """Print a line to stderr if the user asked for this kind."""
    wanted = os.environ.get("TAPEJIT_LOG", "")
    if wanted and kind in wanted.split(","):
        print(f"[tapejit {kind}] {line}", file=sys.stderr)
        if details is not None:
            print(details(), file=sys.stderr)
