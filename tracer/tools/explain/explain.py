"""What happened to a compiled function: as text, as a dict, and while it happens as log lines (`TAPEJIT_LOG=recompiles`).

Each path is told by what it expects (guards), what may differ from call to call (runtime scalars), where it is cut (breaks) and
how its segments run; what fell back, by its line and the reason. Where there is something to do about it, the advice says what.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .advice import advise, listed
from .kernels import indented, kernels_in_words
from ...trace.trace import Backward, Call, Constant, End, First, Number, Trace, Value

if TYPE_CHECKING:
    from ...api.compile import Compiled

MOST = 6  # of a kind are listed in the text; the dict has them all


class Explanation:
    """`print(step.explain())`."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    def to_dict(self) -> dict[str, Any]:
        return self.facts

    def __str__(self) -> str:
        f = self.facts
        diverged = sum(d["times"] for d in f["divergences"])
        lines = [
            f"{f['name']}: {counted(f['calls'], 'call')}, "
            f"{f['replays']} replayed, {f['recordings']} recorded, {diverged} diverged",
            f"  {counted(f['traces'], 'path')} of {counted(f['segments'], 'segment')} in all",
        ]
        if f["warming_up"]:
            lines[1] += f", {f['warming_up']} more recorded but not often enough"
        if f["evictions"]:
            lines[1] += f", {f['evictions']} evicted"
        if f["disagreement"]:
            lines.append(f"  {f['disagreement']}")
        if f["gave_up"]:
            lines.append(f"  runs eagerly for good: {f['gave_up']}")
        for i, path in enumerate(f["paths"]):
            lines += path_in_words(i, path)
        lines += [f"  diverged {often(d['times'])} at {d['line']}: {d['reason']}" for d in f["divergences"]]
        lines += [f"  ran eagerly {often(d['times'])}: {d['reason']}" for d in f["fell_back"]]
        lines.append("  time: " + ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in f["seconds"].items()))
        return "\n".join([*lines, *[f"  advice: {a}" for a in f["advice"]]])

    __repr__ = __str__


def path_in_words(i: int, path: dict[str, Any]) -> list[str]:
    without = f", {path['skipped']} of them without Python" if path["skipped"] else ""
    size = f"{counted(path['ops'], 'op')} in {counted(path['segments'], 'segment')}"
    lines = [f"  path {i}: {size}, replayed {often(path['replays'])}{without}"]
    if path["python"]:
        lines.append(f"    runs its Python at each call: {path['python']}")
    if path["guards"]:
        lines.append(f"    expects {several(grouped(g['words'] for g in path['guards']))}")
    if path["constants"]:
        lines.append(f"    expects {several(grouped(c['words'] for c in path['constants']))}")
    if path["scalars"]:
        where = grouped(f"in {s['op']} at {s['line']}" for s in path["scalars"])
        lines.append(f"    {counted(path['numbers'], 'runtime scalar')}: {several(where)}")
    if path["regions"]:
        words = [f"{r['name']} ({counted(r['ops'], 'op')}) at {r['line']}" for r in path["regions"]]
        lines.append(f"    {counted(len(words), 'region')} taken as a whole: {several(words)}")
    for b in path["breaks"]:
        lines.append(f"    break at {b['line']}: {b['reason']}")
    lines += [f"    up to {line} it runs eagerly: its tape cannot be planned" for line in path["eager_segments"]]
    for program in path["programs"]:
        lines.append(f"    from {program['from']} to {program['to']}: {program['told']}")
        if "native" in program:
            lines += indented(kernels_in_words(program["native"]), 6)
    return lines


def counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"


def often(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def grouped(words: Iterable[str]) -> list[str]:
    """The same words once, with their number in front."""
    return [w if n == 1 else f"{n} x {w}" for w, n in Counter(words).items()]


def several(things: list[str]) -> str:
    return "; ".join(things[:MOST]) + (f"; and {len(things) - MOST} more" if len(things) > MOST else "")


# ---- facts


def explain(compiled: Compiled, kernels: bool = False, llvm: bool = False, assembly: bool = False) -> Explanation:
    traces = list(compiled.traces)
    paths = [path_facts(t) for t in traces]
    for trace, path in zip(traces, paths, strict=True):
        pures = [p.segment for p in compiled.pures if p.trace is trace]
        path["programs"] = list(programs(trace, pures, kernels, llvm, assembly))
    divergences = [
        {"line": shown(line), "reason": reason, "times": times} for (line, reason), times in compiled.divergences.most_common()
    ]
    hot = {t.keys for t in compiled.traces}
    names = {"record": "recording", "compile": "compiling", "replay": "running"}
    facts = {
        "name": compiled.name, "calls": compiled.calls, "replays": compiled.hits, "recordings": compiled.recordings,
        "traces": len(paths), "segments": sum(p["segments"] for p in paths), "warming_up": len(compiled.seen.keys() - hot),
        "disagreement": disagreement(compiled.seen) if len(compiled.seen) > 1 and not paths else None,
        "evictions": compiled.evictions, "gave_up": compiled.gave_up, "paths": paths, "divergences": divergences,
        "fell_back": [{"reason": reason, "times": times} for reason, times in compiled.fell_back.most_common()],
        "seconds": {names[name]: max(value, 0.0) for name, value in compiled.seconds.items()},
    }  # fmt: skip
    facts["advice"] = advise(facts, compiled.budget)
    return Explanation(facts)


def path_facts(trace: Trace) -> dict[str, Any]:
    ops = sum(1 if isinstance(e, Call) else len(e.calls) if isinstance(e, Backward) else 0 for e in trace.entries)
    breaks = [b for b in trace.breaks() if not isinstance(b, End)]
    return {
        "ops": ops, "segments": len(breaks) + 1, "breaks": [{"line": shown(b.line), "reason": b.reason} for b in breaks],
        "guards": list(guards(trace)), "constants": list(constants(trace)), "scalars": list(scalars(trace)),
        "numbers": trace.numbers, "inputs": len(trace.outside), "replays": trace.replays, "regions": list(regions(trace)),
        "skipped": trace.skipped, "python": trace.impure,
        "eager_segments": [shown(b.line) for b in trace.breaks() if b.state is None],
    }  # fmt: skip


def programs(trace: Trace, pures: list[Any], kernels: bool, llvm: bool, assembly: bool) -> Iterator[dict[str, Any]]:
    """How each segment runs."""
    for segment, start, stop in segments_of(trace, pures):
        told = segment.told or ("native code, not yet compared with a plain program" if segment.native else "not yet compiled")
        if segment.joint is not None:
            told += "; " + segment.joint.told()
        found: dict[str, Any] = {"from": shown(trace.entries[start].line), "to": shown(trace.entries[stop].line), "told": told}
        if kernels and hasattr(segment.native, "report"):  # programs for GPUs are not taken apart
            found["native"] = segment.native.report(llvm=llvm, assembly=assembly)
            for kernel in found["native"]["kernels"]:
                kernel["lines"] = [shown(line) for line in kernel["lines"]]
        yield found


def segments_of(trace: Trace, pures: list[Any]) -> list[tuple[Any, int, int]]:
    """The segments of a path, each with its first entry and the one it ends before; there are several programs of one whose
    results do not always outlive it."""
    known = {id(segment): (segment, start, stop) for (start, stop, *_), segment in list(trace.programs.items())}
    known |= {id(segment): (segment, 0, len(trace.entries) - 1) for segment in pures if id(segment) not in known}
    return list(known.values())


def guards(trace: Trace) -> Iterator[dict[str, Any]]:
    """The tensors from outside, and what a call has to find in their place."""
    grads = {
        e.leaf: e.before is not None for entry in trace.entries if isinstance(entry, Backward) for e in reversed(entry.effects)
    }
    for entry in trace.entries:
        if isinstance(entry, Call):
            found = [w.value for w in entry.wants if isinstance(w, First)]
            op = entry.op.name
        elif isinstance(entry, Backward):
            found = [w.value for w in entry.seeds if isinstance(w, First)] + [v for _, v in entry.firsts]
            op = "backward"
        else:
            continue
        for value in found:
            yield guard(value, op, shown(entry.line), grads.get(value.index))


def guard(value: Value, op: str, line: str, grad: bool | None) -> dict[str, Any]:
    form = value.form
    words = f"{form.dtype.name} {list(form.shape)}"
    if form.where.type != "cpu":
        words += f" on {form.where}"
    if not form.flags.c_contiguous:
        words += f" with strides {[s // form.itemsize for s in form.strides]}"
    if value.requires_grad:
        words += " with a history" if value.tracked else " that requires grad"
    if grad is not None:
        words += ", with a gradient" if grad else ", with no gradient yet"
    return {
        "shape": list(form.shape), "dtype": form.dtype.name, "device": str(form.where), "strides": list(form.strides),
        "requires_grad": value.requires_grad, "has_history": value.tracked, "has_grad": grad, "op": op, "line": line,
        "words": words,
    }  # fmt: skip


def constants(trace: Trace) -> Iterator[dict[str, Any]]:
    """Python numbers that have to be what they were."""
    for call in (e for e in trace.entries if isinstance(e, Call)):
        for want in call.wants:
            if isinstance(want, Constant) and want.value is not None:
                line = shown(call.line)
                words = f"the number {want.value!r} in {call.op.name} at {line}"
                yield {"value": want.value, "op": call.op.name, "line": line, "words": words}


def regions(trace: Trace) -> Iterator[dict[str, Any]]:
    """Backward passes, and calls of the library's code that were replayed without running it."""
    found = [(r.start, r.title, len(r.entries), r.line, r.entered) for r in trace.outermost() if r.entered]
    passes = [(k, e) for k, e in enumerate(trace.entries) if isinstance(e, Backward)]
    found += [(k, "backward", len(e.calls), e.line, trace.replays) for k, e in passes]
    for _, name, ops, line, times in sorted(found):
        yield {"name": name, "ops": ops, "line": shown(line), "times": times}


def scalars(trace: Trace) -> Iterator[dict[str, Any]]:
    """Python numbers that may be others at each call."""
    for call in (e for e in trace.entries if isinstance(e, Call)):
        for want in call.wants:
            if isinstance(want, Number):
                yield {"place": want.place, "type": want.type.__name__, "op": call.op.name, "line": shown(call.line)}


def disagreement(recordings: Iterable[Any]) -> str:
    """Why no path was taken often enough: how recordings, told by the keys of their entries, differ first."""
    never = "its recordings never agree"
    for entries in zip(*recordings, strict=False):
        if len(set(entries)) == 1:
            continue
        kind, op, wants = entries[0][:3] if len(entries[0]) > 2 else ("", "", ())
        if kind != "call" or any(e[:2] != (kind, op) or len(e[2]) != len(wants) for e in entries):
            return never
        for found in zip(*[e[2] for e in entries], strict=True):
            kinds = {w[0] if isinstance(w, tuple) else w for w in found}
            if kinds == {"first"} and len(shapes := {str(list(w[1].shape)): None for w in found}) > 1:
                return f"{never}: {op} is given tensors of {len(shapes)} shapes ({listed(shapes)})"
            if kinds == {"constant"} and len(numbers := {w[2]: None for w in found}) > 1:
                return f"{never}: {op} is given {len(numbers)} numbers ({listed(numbers)})"
        settings = {e[3]: None for e in entries}
        return f"{never}: {op} is given {listed(settings)}" if len(settings) > 1 else never
    return never


# ---- words


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


def log_path(name: str, trace: Trace) -> None:
    """The breaks of a new path."""
    for b in trace.breaks():
        if not isinstance(b, End):
            logged("breaks", f"{name} breaks at {shown(b.line)}: {b.reason}")
