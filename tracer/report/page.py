"""The page of a report: one file with its styles and its script, that needs no network."""

from __future__ import annotations

import datetime
from importlib.resources import files
from typing import Any

from . import code, tables
from .draw_graph import graph, tip
from .draw_memory import memory
from .draw_roofline import roofline
from .draw_timeline import timeline
from .fold import Group, folded
from .marks import Marks
from .markup import Markup, duration, joined, percent, plural, size, tag

SECTIONS = {
    "timeline": "Timeline",
    "advice": "Breaks and advice",
    "trace": "Source and trace",
    "graph": "Graph",
    "kernels": "Kernels",
    "memory": "Memory",
    "guards": "Guards",
}
NOTHING = tag("p", "No compiled function was called.", class_="soft")


def page(facts: dict[str, Any]) -> str:
    functions = [function(f, i) for i, f in enumerate(facts["functions"])]
    body = tag(
        "body",
        tag("svg", tag("defs", tip()), width=0, height=0, class_="hidden", aria_hidden="true"),
        tag("a", "To the content", href="#content", class_="skip"),
        banner(facts),
        tag("div", navigation(facts), tag("main", *(functions or [NOTHING]), about(facts), id="content"), class_="frame"),
        tag("script", Markup(asset("page.js"))),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{facts['title']} · tapejit report"),
        tag("style", Markup(asset("page.css"))),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def banner(facts: dict[str, Any]) -> Markup:
    when = datetime.datetime.fromisoformat(facts["made"])
    told = f"tapejit report · {when.day} {when:%B %Y, %H:%M}"
    words = tag("div", tag("strong", facts["title"]), tag("span", told, class_="soft"), class_="name")
    switch = tag(
        "button", tag("span", "◐", aria_hidden="true"), tag("span", "Light or dark", class_="words"), type="button", id="theme"
    )
    failure = None
    if facts["failure"]:
        ended = f"{facts['failure'][:1].upper()}{facts['failure'][1:]}. The page shows what was seen up to there."
        failure = tag("p", ended, class_="failure")
    note = tag("pre", facts["note"], class_="note", tabindex=0) if facts["note"] else None
    return joined([tag("header", words, switch, class_="banner"), failure, note])


def navigation(facts: dict[str, Any]) -> Markup:
    items = []
    for i, f in enumerate(facts["functions"]):
        links = [tag("a", title, href=f"#{key}-{i}") for key, title in SECTIONS.items() if key in available(f)]
        items.append(tag("div", tag("a", f["name"], href=f"#function-{i}", class_="function"), *links, class_="group"))
    return tag("nav", *items, aria_label="parts of this page")


def programs_of(f: dict[str, Any]) -> list[dict[str, Any]]:
    return [program for path in f["paths"] for program in path["programs"]]


def available(f: dict[str, Any]) -> set[str]:
    """The parts that a function has."""
    native = [p for p in programs_of(f) if "native" in p]
    found = {"advice"} | ({"timeline"} if f["timeline"] else set()) | ({"trace"} if programs_of(f) else set())
    return found | ({"graph", "kernels", "memory"} if native else set()) | ({"guards"} if f["paths"] else set())


# ---- one function


def function(f: dict[str, Any], i: int) -> Markup:
    marks = Marks(i)
    parts = [heading(f, i)]
    if f["timeline"]:
        parts.append(section("timeline", i, "Its first calls, one by one.", timeline(f["timeline"])))
    parts.append(section("advice", i, "Where it leaves the compiled program, why, and what helps.", advice(f, marks)))
    programs = [
        (f"{p}-{n}", path, program) for p, path in enumerate(f["paths"]) for n, program in enumerate(path["programs"])
    ]  # fmt: skip
    if programs:
        every = [program for _, _, program in programs]
        panes = [tag("div", tag("h4", "Your source"), code.source(f, every, marks), class_="column")]
        traces = choice("trace", i, [(title(f, n, program), shown_trace(program, marks, n)) for n, _, program in programs])
        panes.append(tag("div", tag("h4", "What runs"), traces, class_="column"))
        words = "Point at a line to see what became of it; select it to go there. Percentages are shares of the kernels' time."
        parts.append(section("trace", i, words, tag("div", *panes, class_="beside")))
    native = [(n, program) for n, _, program in programs if "native" in program]
    if native:
        parts += of_kernels(f, i, native, marks)
    if f["paths"]:
        each = [(f"path {n}, replayed {path['replays']:,} times", tables.guards(path)) for n, path in enumerate(f["paths"])]
        parts.append(
            section("guards", i, "What a call has to find so that a recording stands for it.", choice("guards", i, each))
        )
    return tag("section", *parts, class_="function", id=f"function-{i}", aria_label=f["name"])


def shown_trace(program: dict[str, Any], marks: Marks, n: str) -> Markup:
    """The trace, and of a program that is not taken apart the code that it became."""
    text = tables.text("the code that it became", program["code"], False) if "code" in program else None
    return joined([code.trace(program, marks, n), text])


def of_kernels(f: dict[str, Any], i: int, native: list[tuple[str, dict[str, Any]]], marks: Marks) -> list[Markup]:
    """The parts about native programs."""
    drawn = [(title(f, n, program), drawing(program, marks, n)) for n, program in native]
    measured = [
        (title(f, n, p), joined([traffic(p), roofline(p["native"], marks, n), tables.kernels(p, marks, n)])) for n, p in native
    ]
    planned = [(title(f, n, program), memory(program, marks, n)) for n, program in native]
    return [
        section(
            "graph", i, "A box is a kernel, with the ops that were fused into it; an arrow is what one leaves in memory.",
            choice("graph", i, drawn),
        ),
        section(
            "kernels", i,
            "Measured one after the other, in one thread, on made-up values. The roofline is what this machine copies and "
            "computes at most; a kernel near it cannot get much faster.",
            choice("kernels", i, measured),
        ),
        section(
            "memory", i, "When each buffer lives, and where in the block of memory; beside it what eager execution holds.",
            choice("memory", i, planned),
        ),
    ]  # fmt: skip


def heading(f: dict[str, Any], i: int) -> Markup:
    tiles = [
        ("calls", f"{f['calls']:,}", f"{f['replays']:,} replayed, {f['recordings']:,} recorded"),
        ("hit rate", percent(f["replays"] / f["calls"]) if f["calls"] else "-", "of the calls ran a compiled program"),
    ]
    if f["each"] is not None:
        ratio = f["each"]["eager"] / f["each"]["replayed"]
        tiles.insert(
            0, ("speed", f"{ratio:.1f}×", f"{duration(f['each']['replayed'])}, eagerly {duration(f['each']['eager'])}")
        )
    native = [p for p in programs_of(f) if "native" in p]
    if native:
        kernels = sum(len(p["native"]["kernels"]) for p in native)
        ops = sum(len(k["ops"]) for p in native for k in p["native"]["kernels"])
        tiles.append(("kernels", f"{kernels:,}", f"of {ops:,} ops, in {plural(len(native), 'program')}"))
        moved, apart = (sum(p["traffic"][key] for p in native) for key in ("moved", "op_by_op"))
        tiles.append(("memory traffic", size(moved), f"op by op it would be {size(apart)}"))
        arena, eager = max((p["native"]["memory"]["bytes"], p["eager_memory"]["peak"]) for p in native)
        tiles.append(("working memory", size(arena), f"eagerly {size(eager)} or more"))
    shown = [
        tag("div", tag("dt", name), tag("dd", value), tag("dd", words, class_="soft small"), class_="tile")
        for name, value, words in tiles
    ]
    where = tag("p", f["where"], class_="mono soft") if f["where"] else None
    return tag("div", tag("h2", f["name"]), where, tag("dl", *shown, class_="tiles"), class_="heading", id=f"top-{i}")


def advice(f: dict[str, Any], marks: Marks) -> Markup:
    sums = tag("ul", *[tag("li", tables.ticked(a)) for a in f["advice"]], class_="sums") if f["advice"] else None
    return joined([sums, tables.findings(f, marks)])


def section(key: str, i: int, words: str, content: Markup) -> Markup:
    name = f"{key}-{i}"
    head = tag("h3", SECTIONS[key], id=f"title-{name}")
    return tag(
        "section", head, tag("p", words, class_="soft lead"), content, id=name, class_="part", aria_labelledby=f"title-{name}"
    )


def choice(name: str, i: int, each: list[tuple[str, Markup]]) -> Markup:
    """One of several: a list to choose from, and what was chosen. Without the script all are shown."""
    if len(each) == 1:
        return each[0][1]
    options = [tag("option", words, value=str(n)) for n, (words, _) in enumerate(each)]
    label = tag("label", "which one ", tag("select", *options, data_choose=f"{name}-{i}"), class_="choose")
    return tag("div", label, *[tag("div", x, data_choice=f"{name}-{i}") for _, x in each])


def title(f: dict[str, Any], number: str, program: dict[str, Any]) -> str:
    path, _, nth = number.partition("-")
    return f"path {path}, program {nth}: {program['from'].rpartition('/')[2]} to {program['to'].rpartition('/')[2]}"


def traffic(program: dict[str, Any]) -> Markup:
    """Bytes against the least possible."""
    found = program["traffic"]
    most = max(found.values()) or 1
    rows = [
        ("least possible", found["least"], "inputs once, results once: as if all that stays inside were never in memory"),
        ("moved", found["moved"], "what the kernels read and write, each element once for each kernel"),
        ("op by op", found["op_by_op"], "if each op ran by itself, as eager execution does"),
    ]
    bars = [
        tag("div", tag("span", name), tag("span", tag("span", style=f"width:{n / most:.1%}"), class_="bar"),
            tag("span", size(n), class_="number"), title=words, class_="measure")
        for name, n, words in rows
    ]  # fmt: skip
    return tag("div", *bars, class_="measures", role="group", aria_label="bytes moved")


def drawing(program: dict[str, Any], marks: Marks, n: str) -> Markup:
    """The graph, with repeated layers as one where there are any, and in full."""
    kernels = program["native"]["kernels"]
    groups = folded(kernels)
    single = [Group([k]) for k in range(len(kernels))]
    views = [graph(program, groups, marks, n)]
    buttons = [tag("button", words, type="button", data_zoom=way, aria_label=label) for words, way, label in (
        ("-", "out", "smaller"), ("+", "in", "larger"), ("fit", "fit", "fit into the frame"),
    )]  # fmt: skip
    words = None
    if len(groups) < len(kernels):
        views.append(graph(program, single, marks, n))
        words = tag("label", tag("input", type="checkbox", data_full=True), " every kernel by itself", class_="check")
        remark = (
            f"{len(kernels)} kernels in {len(groups)} boxes: what is repeated is drawn once, without arrows to its next turn"
        )
        words = joined([words, tag("span", remark, class_="soft small")])
    frames = [
        tag("div", v, class_="canvas", hidden=bool(i), tabindex=0, role="region", aria_label="graph")
        for i, v in enumerate(views)
    ]
    return tag("div", tag("div", *buttons, words, class_="tools"), *frames, class_="drawing")


def about(facts: dict[str, Any]) -> Markup:
    roof = facts["machine"]["roof"]
    limits = ""
    if roof is not None:
        near, far = roof["copies"][0], roof["copies"][-1]
        limits = f" One thread copies {size(near[1])}/s in the nearest cache and {size(far[1])}/s in memory, and computes "
        limits += f"{roof['flops'] / 1e9:.0f} GFLOP/s, as measured for this page."
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return tag("footer", f"{versions}; {facts['machine']['target']}.{limits}", class_="soft small")
