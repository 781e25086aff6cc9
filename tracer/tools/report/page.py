"""Page of a report: one file with its styles and its script, that needs no network. `function_section.py` renders its
content.
"""

from __future__ import annotations

import datetime
from importlib.resources import files
from typing import Any

from ....eager.viz.charts import Curves
from .elements.graph import tip
from .elements.html import Markup, joined, size, tag
from .function_section import SECTIONS, available, function

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
    printed_at = f"tapejit report · {when.day} {when:%B %Y, %H:%M}"
    words = tag("div", tag("h1", facts["title"]), tag("span", printed_at, class_="soft"), class_="name")
    symbol = tag("span", "◐", aria_hidden="true")
    switch = tag("button", symbol, tag("span", "Light or dark", class_="words"), type="button", id="theme")
    failure = None
    if facts["failure"]:
        ended = f"{facts['failure'][:1].upper()}{facts['failure'][1:]}. The page covers the run up to that point."
        failure = tag("p", ended, class_="failure")
    return joined([tag("header", words, switch, class_="banner"), failure, remarks(facts)])


def remarks(facts: dict[str, Any]) -> Markup | None:
    """Remarks of the report's author: text and curves."""
    parts = [tag("pre", facts["note"], tabindex=0)] if facts["note"] else []
    if facts["curves"]:
        found = facts["curves"]
        steps = list(range(1, 1 + max(len(row) for _, row in found["rows"])))
        rows = [(name, [*row, *[None] * (len(steps) - len(row))]) for name, row in found["rows"]]
        parts.append(tag("div", Markup(Curves(found["title"], found["subtitle"], steps, rows).svg()), class_="curves"))
    return tag("div", *parts, class_="note") if parts else None


def navigation(facts: dict[str, Any]) -> Markup:
    items = []
    for i, f in enumerate(facts["functions"]):
        links = [tag("a", title, href=f"#{key}-{i}") for key, title in SECTIONS.items() if key in available(f)]
        items.append(tag("div", tag("a", f["name"], href=f"#function-{i}", class_="function"), *links, class_="group"))
    return tag("nav", *items, aria_label="parts of this page")


def about(facts: dict[str, Any]) -> Markup:
    roof = facts["machine"]["roof"]
    limits = ""
    if roof is not None:
        near, far = roof["copies"][0], roof["copies"][-1]
        limits = f" Measured for this page: one thread copies {size(near[1])}/s in the nearest cache and {size(far[1])}/s in "
        limits += f"memory, and computes {roof['flops'] / 1e9:.0f} GFLOP/s."
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return tag("footer", f"{versions}; {facts['machine']['target']}.{limits}", class_="soft small")
