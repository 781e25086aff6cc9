"""`explain()`: describe a compiled function, as text and as a dict.

For each path: its guards, its runtime scalars, its graph breaks, and how its segments run. Then divergences and calls that ran
eagerly, each with the user's line and the reason, and advice where something can be done about it (`advice.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from ...api.compiled_function import CompiledFunction
from ...api.path_cache import describe_disagreement
from ...api.path_state import path_state
from ...trace.logging import counted, display_line
from ...trace.trace import Backward, Call, Constant, End, NewInput, Number, Trace, Value
from .advice import advise
from .kernels import duration, indented, kernels_in_words

MAX_LISTED = 6  # items of a kind in the text; the dict has all of them


class Explanation:
    """The facts about a compiled function. `str()` gives the text, `to_dict()` the facts."""

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
            f"  {counted(f['traces'], 'path')}, {counted(f['segments'], 'segment')} in total",
        ]
        if f["warming_up"]:
            lines[1] += f", {f['warming_up']} more still warming up"
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
        lines.append(f"    Python still runs: {path['python']}")
    if path["guards"]:
        lines.append(f"    expects {several(grouped(g['words'] for g in path['guards']))}")
    if path["constants"]:
        lines.append(f"    expects {several(grouped(c['words'] for c in path['constants']))}")
    if path["scalars"]:
        where = grouped(f"in {s['op']} at {s['line']}" for s in path["scalars"])
        lines.append(f"    {counted(path['numbers'], 'runtime scalar')}: {several(where)}")
    if path["regions"]:
        words = [f"{r['name']} ({counted(r['ops'], 'op')}) at {r['line']}" for r in path["regions"]]
        lines.append(f"    {counted(len(words), 'region')} replayed as a whole: {several(words)}")
    for b in path["breaks"]:
        lines.append(f"    break at {b['line']}: {b['reason']}")
    lines += [f"    runs eagerly up to {line}: its tape cannot be planned" for line in path["eager_segments"]]
    for program in path["programs"]:
        lines.append(f"    from {program['from']} to {program['to']}: {program['description']}")
        if "native" in program:
            lines += indented(kernels_in_words(program["native"]), 6)
        if "passes" in program:
            lines += indented(passes_in_words("passes", program["passes"]), 6)
            for i, backward in enumerate(program["backward"], 1):
                which = f", program {i}" if len(program["backward"]) > 1 else ""
                lines += indented(passes_in_words(f"passes of its compiled backward{which}", backward["passes"]), 6)
    return lines


def passes_in_words(title: str, runs: list[dict[str, Any]]) -> list[str]:
    total = duration(sum(run["seconds"] for run in runs))
    return [f"{title}:", *indented([pass_in_words(run) for run in runs]), *([f"  in all: {total}"] if runs else [])]


def pass_in_words(run: dict[str, Any]) -> str:
    """Describe one run of a pass. A pass may change its value without changing its size, and make something without changing
    its value."""
    before, after = run["before"], run["after"]
    if run["made"] and (not run["changed"] or before is None or before == after):
        did = run["made"]
    elif not run["changed"]:
        did = "no change"
    elif before is None or after is None:
        did = run["made"] or "changed"
    else:
        did = f"{before} -> {counted(after, run['unit'])}" + (f": {run['made']}" if run["made"] else "")
    return f"{run['name']}: {did}, {duration(run['seconds'])}"


def often(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def grouped(words: Iterable[str]) -> list[str]:
    """List equal words once, with their count in front."""
    return [w if n == 1 else f"{n} x {w}" for w, n in Counter(words).items()]


def several(things: list[str]) -> str:
    more = len(things) - MAX_LISTED
    return "; ".join(things[:MAX_LISTED]) + (f"; and {more} more" if more > 0 else "")


# ---- facts


def explain(
    compiled: CompiledFunction, kernels: bool = False, llvm: bool = False, assembly: bool = False, passes: bool = False
) -> Explanation:
    traces = list(compiled.traces)
    paths = [path_facts(t) for t in traces]
    for trace, path in zip(traces, paths, strict=True):
        path["state"] = path_state(compiled, trace).value
        pures = [p.segment for p in compiled.skipped_calls if p.trace is trace]
        path["programs"] = list(programs(trace, pures, kernels, llvm, assembly, passes))
    divergences = [
        {"line": display_line(line), "reason": reason, "times": times}
        for (line, reason), times in compiled.divergences.most_common()
    ]
    hot = {t.keys for t in compiled.traces}
    names = {"record": "recording", "compile": "compiling", "replay": "running"}
    facts = {
        "name": compiled.name, "calls": compiled.calls, "replays": compiled.hits, "recordings": compiled.recordings,
        "traces": len(paths), "segments": sum(p["segments"] for p in paths), "warming_up": len(compiled.seen.keys() - hot),
        "disagreement": describe_disagreement(compiled.seen) if len(compiled.seen) > 1 and not paths else None,
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
        "ops": ops, "segments": len(breaks) + 1, "breaks": [{"line": display_line(b.line), "reason": b.reason} for b in breaks],
        "guards": list(guards(trace)), "constants": list(constants(trace)), "scalars": list(scalars(trace)),
        "numbers": trace.numbers, "inputs": len(trace.outside), "replays": trace.replays, "regions": list(regions(trace)),
        "skipped": trace.skipped, "python": trace.impure,
        "eager_segments": [display_line(b.line) for b in trace.breaks() if b.state is None],
    }  # fmt: skip


def programs(
    trace: Trace, pures: list[Any], kernels: bool, llvm: bool, assembly: bool, passes: bool
) -> Iterator[dict[str, Any]]:
    """Describe how each segment runs."""
    for segment, start, stop in segments_of(trace, pures):
        description = segment.status or (
            "native code, not yet timed against the reference program" if segment.native else "not yet compiled"
        )
        if segment.joint is not None:
            description += "; " + segment.joint.status()
        found: dict[str, Any] = {
            "from": display_line(trace.entries[start].line),
            "to": display_line(trace.entries[stop].line),
            "description": description,
        }
        if kernels and hasattr(segment.native, "report"):  # not every program: those of a user's backend need not
            found["native"] = segment.native.report(llvm=llvm, assembly=assembly)
            for kernel in found["native"]["kernels"]:
                kernel["lines"] = [display_line(line) for line in kernel["lines"]]
        if passes:
            found["passes"] = [asdict(run) for run in segment.passes.runs]
            backward = () if segment.joint is None else segment.joint.passes.values()
            found["backward"] = [{"told": p.words(), "passes": [asdict(run) for run in p.passes.runs]} for p in backward]
        yield found


def segments_of(trace: Trace, pures: list[Any]) -> list[tuple[Any, int, int]]:
    """Return the segments of a path, each with its first entry and the one before which it ends.

    A segment whose results do not always outlive it has several programs.
    """
    known = {id(segment): (segment, start, stop) for (start, stop, *_), segment in list(trace.programs.items())}
    known |= {id(segment): (segment, 0, len(trace.entries) - 1) for segment in pures if id(segment) not in known}
    return list(known.values())


def guards(trace: Trace) -> Iterator[dict[str, Any]]:
    """List the guards on tensors from outside."""
    grads = {
        e.leaf: e.before is not None for entry in trace.entries if isinstance(entry, Backward) for e in reversed(entry.effects)
    }
    for entry in trace.entries:
        if isinstance(entry, Call):
            found = [w.value for w in entry.wants if isinstance(w, NewInput)]
            op = entry.op.name
        elif isinstance(entry, Backward):
            found = [w.value for w in entry.seeds if isinstance(w, NewInput)] + [v for _, v in entry.firsts]
            op = "backward"
        else:
            continue
        for value in found:
            yield guard(value, op, display_line(entry.line), grads.get(value.index))


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
    """List the Python numbers that are constants of the recording."""
    for call in (e for e in trace.entries if isinstance(e, Call)):
        for want in call.wants:
            if isinstance(want, Constant) and want.value is not None:
                line = display_line(call.line)
                words = f"the number {want.value!r} in {call.op.name} at {line}"
                yield {"value": want.value, "op": call.op.name, "line": line, "words": words}


def regions(trace: Trace) -> Iterator[dict[str, Any]]:
    """List backward passes, and library calls that were replayed without running their Python."""
    found = [(r.start, r.title, len(r.entries), r.line, r.entered) for r in trace.outermost() if r.entered]
    passes = [(k, e) for k, e in enumerate(trace.entries) if isinstance(e, Backward)]
    found += [(k, "backward", len(e.calls), e.line, trace.replays) for k, e in passes]
    for _, name, ops, line, times in sorted(found):
        yield {"name": name, "ops": ops, "line": display_line(line), "times": times}


def scalars(trace: Trace) -> Iterator[dict[str, Any]]:
    """List the runtime scalars: Python numbers that may differ from call to call."""
    for call in (e for e in trace.entries if isinstance(e, Call)):
        for want in call.wants:
            if isinstance(want, Number):
                yield {"place": want.place, "type": want.type.__name__, "op": call.op.name, "line": display_line(call.line)}


def _explain(
    self: CompiledFunction, kernels: bool = False, llvm: bool = False, assembly: bool = False, passes: bool = False
) -> Explanation:
    """Describe what was recorded, where it breaks and diverges, how often it was replayed, and how it runs.

    `kernels=True` adds the kernels of native programs, with times that are measured now; `llvm=True` and `assembly=True` add
    their code; `passes=True` adds what each compiler pass changed or made, of the compiled backward too, and how long it took.
    """
    return explain(self, kernels or llvm or assembly, llvm, assembly, passes)


CompiledFunction.explain = _explain  # tracer/api does not know the tools
