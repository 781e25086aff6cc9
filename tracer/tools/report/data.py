"""Facts of a report, as plain data that can be written as JSON. `page.py` renders them.

The user's lines are "file:line" everywhere, as `explain` shows them; kernels are named by the number of their step.
"""

from __future__ import annotations

import datetime
import platform
import re
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from ...api.compiled_function import CompiledFunction
from ...graph.functionalize import graph_of
from ...graph.ir import Graph, GraphError, rows
from ...graph.passes import optimize
from ...trace.logging import display_line
from ...trace.queries import calls_between, used_slots
from ...trace.trace import End, Trace
from ..explain.advice import advice_for
from ..explain.explain import explain, segments_of
from ..observe_run import time_saved
from ..profiler.timeline import Timelines
from .eager_memory import eager_memory
from .user_source import sources_of

Facts = dict[str, Any]
PLACED = re.compile(r"^(.*?:\d+): (.*)$")
TEXTS = ("llvm", "triton")
MAX_CODE_CHARACTERS = 6_000_000  # of the kernels of one function


def gather(
    functions: Iterable[CompiledFunction],
    title: str,
    timelines: Timelines | None = None,
    samples: Mapping[CompiledFunction, Any] | None = None,
    failure: str | None = None,
    note: str | None = None,
    curves: Facts | None = None,
) -> Facts:
    """Gather the facts about functions. `timelines` are their first calls, if recorded; `samples` are the times of calls, eager
    and replayed; `failure` says how the script ended, if it failed; `note` is text for the head of the page, and `curves`
    is the data of a plot beside it: a title, and rows with one number per step."""
    from .... import __version__

    found = [function_facts(f, timelines or {}, samples or {}) for f in functions]
    natives = [p["native"] for f in found for path in f["paths"] for p in path["programs"] if "native" in p]
    roofs = [native["roof"] for native in natives if native["roof"] is not None]
    targets = [native["target"] for native in natives]
    return {
        "title": title,
        "note": note,
        "curves": curves,
        "failure": failure,
        "made": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": {"tapejit": __version__, "python": platform.python_version()},
        "machine": {"target": next(iter(targets), platform.machine()), "roof": next(iter(roofs), None)},
        "functions": found,
    }


def function_facts(compiled: CompiledFunction, timelines: Timelines, samples: Mapping[CompiledFunction, Any]) -> Facts:
    facts = explain(compiled, kernels=True, llvm=True).to_dict()
    traces = list(compiled.traces)
    lines: dict[str, None] = {}  # the user's lines, with full paths
    for trace, path in zip(traces, facts["paths"], strict=True):
        pures = [p.segment for p in compiled.skipped_calls if p.trace is trace]
        segments = list(zip(segments_of(trace, pures), path["programs"], strict=True))
        for (segment, start, stop), program in segments:
            program.update(program_facts(trace, segment, start, stop, program))
            path["programs"] += backward_programs(segment)
        lines.update((e.line, None) for e in trace.entries if not isinstance(e, End))
    shorten(facts["paths"])
    lines.update((line, None) for line, _ in compiled.divergences)
    lines.update({line: None for line, _ in [gave_up(facts)] if line is not None})
    code = getattr(compiled.function, "__code__", None)
    where = None if code is None else f"{code.co_filename}:{code.co_firstlineno}"
    facts |= {
        "where": None if where is None else display_line(where),
        "timeline": timelines[compiled].to_dict() if compiled in timelines else None,
        "each": each(samples.get(compiled)),
        "saved": time_saved(facts, samples[compiled]) if compiled in samples else None,
        "sources": sources_of(lines, where),
        "findings": findings(facts),
    }
    return facts


def shorten(paths: list[Facts]) -> None:
    """Drop kernel code, from the least-run programs first, if all of it would be too much for a page."""
    room = MAX_CODE_CHARACTERS
    every = [(path["replays"], program["native"]) for path in paths for program in path["programs"] if "native" in program]
    for _, native in sorted(every, key=lambda x: -x[0]):
        room -= sum(len(k.get(name, "")) for k in native["kernels"] for name in TEXTS)
        for k in native["kernels"] if room < 0 else ():
            for name in TEXTS:
                k.pop(name, None)


def each(samples: Any) -> Facts | None:
    """Median seconds per call, eager and replayed."""
    if samples is None or not samples.eager or not samples.replayed:
        return None
    return {"eager": statistics.median(samples.eager), "replayed": statistics.median(samples.replayed)}


# ---- one segment


def program_facts(trace: Trace, segment: Any, start: int, stop: int, known: Facts) -> Facts:
    keep = frozenset(trace.values[n].slot for n in segment.alive) | used_slots(trace, stop)
    native = known.get("native")
    graph = segment.native.graph if native is not None else plain_graph(trace, start, stop, keep)
    found: Facts = {"python": python(graph, native) if graph is not None else as_recorded(trace, start, stop)}
    found["eager_memory"] = eager_memory(trace, start, stop, keep)
    if segment.native is not None and native is None:
        found["code"] = str(segment.native)
    if native is not None:
        found["edges"] = edges(native)
        found["traffic"] = traffic(native)
        found["results"] = results(native)
    return found


def backward_programs(segment: Any) -> list[Facts]:
    """Compiled backward programs of a segment's results, for functions compiled without their backward pass."""
    passes = segment.joint.passes.values() if segment.joint is not None else ()
    found = []
    for one in passes:
        if not hasattr(one.native, "report"):
            continue
        native = one.native.report(llvm=True)
        lines = [node.line for node in one.native.graph.nodes if node.line]
        for kernel in native["kernels"]:
            kernel["lines"] = [display_line(line) for line in kernel["lines"]]
        ends = {"from": display_line(lines[0]), "to": display_line(lines[-1])} if lines else {"from": "", "to": ""}
        facts = {"python": python(one.native.graph, native), "edges": edges(native), "traffic": traffic(native)}
        facts["results"] = results(native)
        found.append({**ends, "description": one.words(), "native": native, "eager_memory": None, **facts})
    return found


def plain_graph(trace: Trace, start: int, stop: int, keep: frozenset[int]) -> Graph | None:
    """Graph of a segment without native code; None if it has none."""
    try:
        return optimize(graph_of(trace, start, stop, keep))
    except GraphError:
        return None


def python(graph: Graph, native: Facts | None) -> list[Facts]:
    """Lines of the graph's text, each with the user's line and the kernels."""
    makers: dict[str, list[int]] = {}
    for kernel in native["kernels"] if native is not None else ():
        for value in kernel["values"]:
            makers.setdefault(value, []).append(kernel["step"])
    names = native["names"] if native is not None else {}
    found = []
    for text, node in rows(graph):
        code, _, comment = text.partition("  # ")
        made = [names.get(x, x) for x in node.results] if node is not None else []
        steps = sorted({step for x in made for step in makers.get(x, ())})
        line = display_line(node.line) if node is not None and node.line else None
        found.append({"code": code, "comment": comment.rpartition("  ")[0] or comment, "line": line, "kernels": steps})
    return found


def as_recorded(trace: Trace, start: int, stop: int) -> list[Facts]:
    """Recorded calls of a segment that has no graph."""
    return [
        {"code": repr(c), "comment": "", "line": display_line(c.line), "kernels": []} for c in calls_between(trace, start, stop)
    ]


def edges(native: Facts) -> list[Facts]:
    """Edges between kernels: the bytes that one writes and another reads."""
    writer: dict[str, int] = {}
    found = []
    for kernel in native["kernels"]:
        for buffer, size in kernel["read"].items():
            if buffer in writer:
                found.append({"from": writer[buffer], "to": kernel["step"], "buffer": buffer, "bytes": size})
        writer.update(dict.fromkeys(kernel["written"], kernel["step"]))
    return found


def results(native: Facts) -> list[Facts]:
    """Outputs of a program: bytes, and the index of the kernel that first writes each."""
    found: dict[str, Facts] = {}
    for i, kernel in enumerate(native["kernels"]):
        for buffer, size in kernel["written"].items():
            if native["buffers"].get(buffer, {"kind": ""})["kind"].startswith("output"):
                found.setdefault(buffer, {"name": buffer, "size": size, "first": i})
    return list(found.values())


def traffic(native: Facts) -> Facts:
    """Memory traffic in bytes: of all kernels; the least possible, with no temporary in memory; and of the ops if each ran
    by itself."""
    least = 0
    for way in ("read", "written"):
        most: dict[str, int] = {}
        for kernel in native["kernels"]:
            for buffer, size in kernel[way].items():
                if not native["buffers"].get(buffer, {"kind": "arena"})["kind"].startswith("arena"):
                    most[buffer] = max(most.get(buffer, 0), size)
        least += sum(most.values())
    return {
        "moved": sum(k["bytes"] for k in native["kernels"]),
        "least": least,
        "op_by_op": sum(k["op_by_op"] for k in native["kernels"]),
    }


# ---- breaks, divergences, bailouts


def findings(facts: Facts) -> list[Facts]:
    """Breaks, divergences, bailouts and segments without native code, each with advice."""
    breaks: dict[tuple[str, str], int] = {}
    for path in facts["paths"]:
        for b in dict.fromkeys((b["line"], b["reason"]) for b in path["breaks"]):
            breaks[b] = breaks.get(b, 0) + path["replays"]
    found = [finding("break", reason, times, line) for (line, reason), times in breaks.items()]
    found += [finding("divergence", d["reason"], d["times"], d["line"]) for d in facts["divergences"]]
    found += [finding("eager", d["reason"], d["times"]) for d in facts["fell_back"]]
    if facts["gave_up"]:
        line, reason = gave_up(facts)
        found.append(finding("gave up", reason, 1, line))
    if facts["disagreement"]:
        found.append(finding("never replayed", facts["disagreement"], 1))
    for path in facts["paths"]:
        for program in path["programs"]:
            used = {"native", "code"} & program.keys() and "so it is not used" not in program["description"]
            if not used and program["description"] != "nothing to run":
                found.append(finding("no native code", program["description"], path["replays"], program["from"]))
    return found


def finding(kind: str, reason: str, times: int, line: str | None = None) -> Facts:
    return {"kind": kind, "reason": reason, "times": times, "line": line, "advice": advice_for(reason)}


def gave_up(facts: Facts) -> tuple[str | None, str]:
    """Line at which a function was given up, and the reason."""
    match = PLACED.match(facts["gave_up"] or "")
    return (match[1], match[2]) if match is not None else (None, facts["gave_up"])
