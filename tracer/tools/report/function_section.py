"""Section of the page for one function, part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import source_view as code
from . import tables
from .elements.anchors import Marks
from .elements.collapse_repeats import Group, folded
from .elements.graph import graph
from .elements.html import Markup, duration, joined, percent, plural, size, tag
from .elements.memory import memory, needed
from .elements.roofline import roofline
from .elements.timeline import timeline

SECTIONS = {
    "timeline": "Timeline",
    "advice": "Breaks and advice",
    "trace": "Source and trace",
    "graph": "Graph",
    "kernels": "Kernels",
    "memory": "Memory",
    "guards": "Guards",
}
LEADS = {
    "timeline": "The first calls, one by one.",
    "advice": "Where it leaves the compiled program, why, and what helps.",
    "trace": "Point at a line to see what it was compiled to; click to go there. Percentages are shares of the kernels' time.",
    "graph": "A box is a kernel with the ops fused into it; an arrow is a buffer that one kernel writes and another reads.",
    "kernels": "Timed one by one, in one thread, on synthetic values. The roofline is the measured peak bandwidth and "
    "arithmetic of this machine; a kernel near it cannot get much faster.",
    "memory": "Lifetime of each buffer, and its offset in the arena.",
    "guards": "What must hold for a recording to be used.",
}
UNTIMED = "Kernels as launched, with their loops and source. They are not timed on a GPU."


@dataclass
class Program:
    """Segment of a path, with the name that anchors its kernels and a label for lists."""

    name: str
    words: str
    facts: dict[str, Any]


def function(f: dict[str, Any], i: int) -> Markup:
    marks, programs, parts = Marks(i), programs_of(f), available(f)
    native = with_kernels(programs)
    contents: dict[str, Callable[[], Markup]] = {
        "timeline": lambda: timeline(f["timeline"]),
        "advice": lambda: advice(f, marks),
        "trace": lambda: source_and_trace(f, i, programs, marks),
        "graph": lambda: choice(f"program-{i}", [(p, drawing(p, marks)) for p in native]),
        "kernels": lambda: choice(f"program-{i}", [(p, measured(p, marks)) for p in native]),
        "memory": lambda: choice(f"program-{i}", [(p, memory(p.facts, marks, p.name)) for p in native]),
        "guards": lambda: guards(f, i),
    }
    untimed = {"kernels": UNTIMED} if all(k["seconds"] is None for p in native for k in p.facts["native"]["kernels"]) else {}
    leads = LEADS | untimed
    sections = [section(key, i, leads[key], make()) for key, make in contents.items() if key in parts]
    return tag("section", heading(f), *sections, class_="function", id=f"function-{i}", aria_label=f["name"])


def programs_of(f: dict[str, Any]) -> list[Program]:
    """Programs that run something, longest time first."""
    found = []
    for n, path in enumerate(f["paths"]):
        for m, facts in enumerate(path["programs"]):
            kernels = facts.get("native", {}).get("kernels", [])
            if not kernels and not any(row["line"] for row in facts["python"]):
                continue
            back = "backward pass, " if facts["description"].startswith("backward") else ""
            words = f"path {n}, replayed {path['replays']:,}×: {back}{brief(facts['from'])} to {brief(facts['to'])}"
            weight = path["replays"] * sum(k["seconds"] or 0.0 for k in kernels)
            found.append((-weight, Program(f"{n}-{m}", f"{words}, {plural(len(kernels), 'kernel')}", facts)))
    return [program for _, program in sorted(found, key=lambda x: x[0])]


def with_kernels(programs: list[Program]) -> list[Program]:
    return [p for p in programs if p.facts.get("native", {}).get("kernels")]


def brief(line: str) -> str:
    return line.replace("\\", "/").rpartition("/")[2]


def available(f: dict[str, Any]) -> set[str]:
    """Keys of the parts that a function has."""
    programs = programs_of(f)
    found = {"advice"} | ({"timeline"} if f["timeline"] else set()) | ({"trace"} if f["sources"] or programs else set())
    native = {"graph", "kernels", "memory"} if with_kernels(programs) else set()
    return found | native | ({"guards"} if f["paths"] else set())


def section(key: str, i: int, words: str, content: Markup) -> Markup:
    name = f"{key}-{i}"
    head = tag("h3", SECTIONS[key], id=f"title-{name}")
    lead = tag("p", words, class_="soft lead")
    return tag("section", head, lead, content, id=name, class_="part", aria_labelledby=f"title-{name}")


def choice(name: str, each: list[tuple[Program, Markup]]) -> Markup:
    """Drop-down list with the chosen program. All lists of one name change together; without the script
    everything is shown."""
    if len(each) == 1:
        return each[0][1]
    options = [tag("option", p.words, value=p.name) for p, _ in each]
    label = tag("label", "Program ", tag("select", *options, data_choose=name), class_="choose")
    return tag("div", label, *[tag("div", x, data_value=p.name) for p, x in each], data_choices=name)


# ---- the head


def heading(f: dict[str, Any]) -> Markup:
    shown = [
        tag("div", tag("dt", name), tag("dd", value), tag("dd", words, class_="soft small"), class_="tile")
        for name, value, words in tiles(f)
    ]
    where = tag("p", f["where"], class_="mono soft") if f["where"] else None
    saved = tag("p", f["saved"], class_="soft small saved") if f["saved"] else None
    return tag("div", tag("h2", f["name"]), where, tag("dl", *shown, class_="tiles"), saved, class_="heading")


def tiles(f: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Summary tiles: a name, a number, and its meaning."""
    found = []
    if f["each"] is not None:
        ratio = f["each"]["eager"] / f["each"]["replayed"]
        words = f"{duration(f['each']['replayed'])} per call, {duration(f['each']['eager'])} eagerly"
        found.append(("speed", f"{ratio:.1f}×", words))
    found.append(("calls", f"{f['calls']:,}", f"{f['replays']:,} replayed, {f['recordings']:,} recorded"))
    rate = percent(f["replays"] / f["calls"]) if f["calls"] else "-"
    found.append(("hit rate", rate, "of the calls ran a compiled program"))
    native = [p.facts for p in with_kernels(programs_of(f))]
    if native:
        kernels = sum(len(p["native"]["kernels"]) for p in native)
        ops = sum(len(k["ops"]) for p in native for k in p["native"]["kernels"])
        found.append(("kernels", f"{kernels:,}", f"fused from {ops:,} ops, in {plural(len(native), 'program')}"))
        moved, apart = (sum(p["traffic"][key] for p in native) for key in ("moved", "op_by_op"))
        found.append(("memory traffic", size(moved), f"{size(apart)} op by op"))
        largest = max(native, key=needed)
        eager = largest["eager_memory"]
        words = "results included" if eager is None else f"eager: at least {size(eager['peak'])}"
        found.append(("peak memory", size(needed(largest)), words))
    return found


# ---- the parts


def advice(f: dict[str, Any], marks: Marks) -> Markup:
    sums = tag("ul", *[tag("li", tables.ticked(a)) for a in f["advice"]], class_="sums") if f["advice"] else None
    return joined([sums, tables.findings(f, marks)])


def source_and_trace(f: dict[str, Any], i: int, programs: list[Program], marks: Marks) -> Markup:
    source = code.Source(f, [p.facts for p in programs], marks).pane()
    if not programs:
        return source
    traces = choice(f"program-{i}", [(p, shown_trace(p, marks)) for p in programs])
    if not f["sources"]:  # typed in, not in a file
        return traces
    columns = [tag("h4", "Your source"), source], [tag("h4", "What runs"), traces]
    return tag("div", *[tag("div", *column, class_="column") for column in columns], class_="beside")


def shown_trace(program: Program, marks: Marks) -> Markup:
    """Trace of a program, with its generated code if it has no kernel report."""
    facts = program.facts
    text = tables.text("generated code", facts["code"], False) if "code" in facts else None
    return joined([code.trace(facts, marks, program.name), text])


def measured(program: Program, marks: Marks) -> Markup:
    facts, name = program.facts, program.name
    return joined([traffic(facts), roofline(facts["native"], marks, name), tables.kernels(facts, marks, name)])


def traffic(facts: dict[str, Any]) -> Markup:
    """Compare the bytes moved with the least possible."""
    found = facts["traffic"]
    most = max(found.values()) or 1
    rows = [
        ("least possible", found["least"], "inputs read once, results written once, no temporaries in memory"),
        ("moved", found["moved"], "read and written by the kernels, each element once per kernel"),
        ("op by op", found["op_by_op"], "if each primitive op were a kernel of its own"),
    ]
    bars = [
        tag("div", tag("span", name), tag("span", tag("span", style=f"width:{n / most:.1%}"), class_="bar"),
            tag("span", size(n), class_="number"), title=words, class_="measure")
        for name, n, words in rows
    ]  # fmt: skip
    return tag("div", *bars, class_="measures", role="group", aria_label="bytes moved")


def drawing(program: Program, marks: Marks) -> Markup:
    """Draw the graph in full and, if layers repeat, with these collapsed."""
    kernels = program.facts["native"]["kernels"]
    groups = folded(kernels)
    views = [graph(program.facts, groups, marks, program.name)]
    tools: list[Any] = [
        tag("button", words, type="button", data_zoom=way, aria_label=label)
        for words, way, label in (("-", "out", "smaller"), ("+", "in", "larger"), ("fit", "fit", "fit into the frame"))
    ]
    if len(groups) < len(kernels):
        views.append(graph(program.facts, [Group([k]) for k in range(len(kernels))], marks, program.name))
        tools.append(tag("label", tag("input", type="checkbox", data_full=True), " show every kernel", class_="check"))
        words = f"{len(kernels)} kernels, {len(groups)} drawn: repeated layers are drawn once"
        tools.append(tag("span", words, class_="soft small"))
    frames = [
        tag("div", view, class_="canvas", hidden=bool(i), tabindex=0, role="region", aria_label="graph")
        for i, view in enumerate(views)
    ]
    return tag("div", tag("div", *tools, class_="tools"), *frames, class_="drawing")


def guards(f: dict[str, Any], i: int) -> Markup:
    paths = [Program(str(n), f"path {n}, replayed {p['replays']:,}×", p) for n, p in enumerate(f["paths"])]
    return choice(f"path-{i}", [(p, tables.guards(p.facts)) for p in paths])
