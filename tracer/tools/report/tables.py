"""Tables of the page: findings with advice, guards, and kernels."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .elements.anchors import Marks
from .elements.html import Markup, count, duration, joined, percent, plural, size, tag
from .source_view import KINDS, kind_of

FEW = 4  # ops named in a row
SHOWN = 14  # kernels shown without folding


# ---- findings


def findings(function: dict[str, Any], marks: Marks) -> Markup:
    found = function["findings"]
    if not found:
        return tag("p", "No findings: no breaks, no divergences, no eager calls after recording.", class_="good")
    return tag("ul", *[finding(f, marks) for f in found], class_="findings")


def finding(f: dict[str, Any], marks: Marks) -> Markup:
    where = None
    if f["line"]:
        where = joined([" at ", tag("a", f["line"], href=f"#{marks.line(f['line'])}", **marks.of([f["line"]]), class_="place")])
    often = "once" if f["times"] == 1 else f"{f['times']:,} times"
    times = "" if f["kind"] in ("gave up", "never replayed", "no native code") else f" · {often}"
    head = tag("div", tag("span", KINDS[f["kind"]], class_=f"chip {kind_of(f)}"), where, times, class_="head")
    advice = tag("div", tag("b", "What helps: "), ticked(f["advice"]), class_="advice") if f["advice"] else None
    return tag("li", head, tag("div", f["reason"], class_="reason"), advice)


def ticked(text: str) -> Markup:
    """Render text, with backquoted parts as code."""
    parts = text.split("`")
    return joined([tag("code", part) if i % 2 else part for i, part in enumerate(parts)])


# ---- guards


def guards(path: dict[str, Any]) -> Markup:
    """Guards of a path, its runtime scalars, and its regions."""
    rows = []
    for words, places in grouped(path["guards"], lambda g: g["words"]):
        rows.append(("tensor", words, places))
    for words, places in grouped(path["constants"], lambda c: f"the number {c['value']!r}"):
        rows.append(("constant", words, places))
    for words, places in grouped(path["scalars"], lambda s: f"a {s['type']} that may change between calls"):
        rows.append(("runtime scalar", words, places))
    for words, places in grouped(path["regions"], lambda r: f"{r['name']}, {plural(r['ops'], 'op')}"):
        rows.append(("region", words, places))
    head = tag("tr", *[tag("th", x, scope="col") for x in ("kind", "value", "count", "lines")])
    body = [
        tag("tr", tag("td", kind), tag("td", words, class_="mono"), tag("td", sum(places.values()), class_="number"),
            tag("td", ", ".join(list(places)[:3]) + ", …" * (len(places) > 3), class_="mono soft"))
        for kind, words, places in rows
    ]  # fmt: skip
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="wide", tabindex=0)


def grouped(things: list[dict[str, Any]], words: Any) -> list[tuple[str, Counter[str]]]:
    found: dict[str, Counter[str]] = {}
    for thing in things:
        found.setdefault(words(thing), Counter())[thing["line"]] += 1
    return list(found.items())


# ---- kernels


def kernels(program: dict[str, Any], marks: Marks, number: str) -> Markup:
    native = program["native"]
    whole = sum(k["seconds"] or 0.0 for k in native["kernels"]) or 1.0
    longest = max((k["seconds"] or 0.0 for k in native["kernels"]), default=0.0) or 1.0
    order = sorted(native["kernels"], key=lambda k: -(k["seconds"] or 0.0))
    rows = [kernel(k, whole, longest, marks, number) for k in order]
    columns = ("kernel", "description", "time", "of the roofline", "moves", "op by op")
    head = tag("div", *[tag("span", x) for x in columns], class_="kernel-head", aria_hidden="true")
    rest = rows[SHOWN:]
    more = None
    if rest:
        short = sum(k["seconds"] or 0.0 for k in order[SHOWN:])
        words = f"{plural(len(rest), 'shorter kernel')}, {percent(short / whole)} of the time"
        more = tag("details", tag("summary", words), *rest, class_="more")
    return tag("div", tools() if more else None, head, *rows[:SHOWN], more, class_="kernels")


def tools() -> Markup:
    """Search field and sort switch, for programs of many kernels."""
    search = tag("input", type="search", placeholder="an op, a shape, a line", aria_label="show kernels with", data_search=True)
    order = tag("label", tag("input", type="checkbox", data_order=True), " in execution order", class_="check")
    return tag("div", search, order, class_="tools")


def kernel(k: dict[str, Any], whole: float, longest: float, marks: Marks, number: str) -> Markup:
    token = marks.kernel(number, k["step"])
    seconds = k["seconds"]
    time = "not measured" if seconds is None else f"{duration(seconds)} · {percent(seconds / whole)}"
    cells = [
        tag("span", tag("span", class_=f"dot fill-{k['kind']}"), k["step"], class_="step"),
        tag("span", k["what"], tag("span", f" {in_short(k['ops'])}", class_="soft"), class_="what"),
        tag("span", meter((seconds or 0.0) / longest, f"fill-{k['kind']}"), time, class_="cell"),
        tag("span", *roof_cell(k), class_="cell"),
        tag("span", size(k["bytes"]), class_="number"),
        tag("span", size(k["op_by_op"]), class_="number soft"),
    ]
    known = {"data_is": token, **marks.of(k["lines"])}
    return tag("details", tag("summary", *cells, **known), detail(k, marks, number), id=f"kernel-{token}", class_="kernel-row",
               data_step=k["step"])  # fmt: skip


def in_short(ops: list[str]) -> str:
    """Name a few of the ops, the most frequent first."""
    found = [op for op, _ in Counter(ops).most_common()]
    return ", ".join(found[:FEW]) + ", …" * (len(found) > FEW)


def roof_cell(k: dict[str, Any]) -> list[Any]:
    share = k.get("roofline")
    if share is None:
        measured = k["seconds"] is not None and k["flops"] is not None
        return [tag("span", "too short to measure" if measured else "not known", class_="soft")]
    kind = "good" if share >= 0.6 else "fair" if share >= 0.25 else "poor"
    return [meter(min(share, 1.0), f"level-{kind}"), f"{percent(min(share, 1.0))} · {k['bound']}"]


def meter(share: float, kind: str) -> Markup:
    return tag("span", tag("span", class_=kind, style=f"width:{min(share, 1.0):.1%}"), class_="meter", aria_hidden="true")


def detail(k: dict[str, Any], marks: Marks, number: str) -> Markup:
    lines = [tag("a", line, href=f"#{marks.line(line)}", class_="place", **marks.of([line])) for line in k["lines"]]
    facts = [
        ("ops", ", ".join(f"{op} ×{n}" if n > 1 else op for op, n in Counter(k["ops"]).items()) or "copies elements"),
        (
            "source lines",
            joined([joined([", ", x]) if i else x for i, x in enumerate(lines)]) if lines else "inserted by the compiler",
        ),
        ("reads", buffers(k["read"])),
        ("writes", buffers(k["written"])),
    ]
    if k["flops"] is not None:
        facts.append(("computes", f"{count(k['flops'])} flops, {k['flops'] / max(k['bytes'], 1):.2g} per byte"))
    if k["seconds"]:
        least = k.get("least_seconds")
        speed = f"{k['gigabytes_per_second']:.1f} GB/s" + (f", {k['gigaflops']:.1f} GFLOP/s" if k["gigaflops"] else "")
        limit = "" if least is None else f"; the {k['bound']} limit of this machine allows {duration(least)}"
        facts.append(("speed", f"{speed} in one thread{limit}"))
    saved = 1 - k["bytes"] / k["op_by_op"] if k["op_by_op"] else 0.0
    if saved > 0.005:
        facts.append(("fusion", f"{size(k['bytes'])} instead of {size(k['op_by_op'])}: {percent(saved)} less memory traffic"))
    parts = [tag("dl", *[joined([tag("dt", name), tag("dd", value)]) for name, value in facts])]
    if k["call"]:
        parts.append(text("the op", k["call"], True))
    if k["nest"]:
        parts.append(text("the loops", k["nest"].rstrip(), True))
    parts += texts(k, marks, number)
    return tag("div", *parts, class_="detail")


def texts(k: dict[str, Any], marks: Marks, number: str) -> list[Markup]:
    if k.get("same_code_as") is not None:
        token = marks.kernel(number, k["same_code_as"])
        return [tag("p", "Same code as ", tag("a", f"kernel {k['same_code_as']}", href=f"#kernel-{token}"), ".")]
    if "same_code_as" in k and not {"llvm", "triton"} & k.keys():
        return [tag("p", "Its code is left out: the page would be too large.", class_="soft")]
    found = [text("LLVM IR", k["llvm"], False)] if "llvm" in k else []
    if k.get("triton"):
        found.append(text("the same loops in Triton, for a GPU" if found else "Triton", k["triton"], False))
    if k.get("assembly"):
        found.append(text("assembly", k["assembly"], False))
    return found


def text(title: str, content: str, open_: bool) -> Markup:
    lines = content.count("\n") + 1
    summary = tag("summary", title, tag("span", f" · {plural(lines, 'line')}", class_="soft"))
    return tag("details", summary, tag("pre", content, tabindex=0), class_="text", open=open_)


def buffers(sizes: dict[str, int]) -> str:
    shown = [f"{name} ({size(n)})" for name, n in list(sizes.items())[:8]]
    return ", ".join(shown) + f", and {len(sizes) - 8} more" * (len(sizes) > 8) if shown else "nothing"
