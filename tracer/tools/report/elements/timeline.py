"""Drawing of a function's first calls: the time to scale, and below it each call by itself.

Replays take a fraction of the compile time, so the bars of single calls are on a logarithmic scale.
"""

from __future__ import annotations

import math
from typing import Any

from .html import Markup, duration, joined, tag

WIDTH, LEFT, RIGHT = 960.0, 58.0, 8.0
STRIP, TOP, HEIGHT, BOTTOM = 26.0, 56.0, 190.0, 26.0
MAX_BARS = 40
GAP = 0.35  # between calls, as a fraction of a bar
WORDS = {
    "eager": "eager",
    "record": "recorded",
    "compile": "compiling",
    "diverge": "diverged",
    "replay": "replayed",
    "compare": "replayed by the reference program, to time it",
}


def timeline(facts: dict[str, Any]) -> Markup:
    spans = facts["spans"][:MAX_BARS]
    if not spans:
        return tag("p", "No call was observed.", class_="soft")
    whole = WIDTH - LEFT - RIGHT
    parts = [*strip(spans, whole), *grid(spans), *bars(spans, whole)]
    height = TOP + HEIGHT + BOTTOM
    label = f"The first {spans[-1]['call']} calls: " + ", ".join(f"{n} {WORDS[k]}" for k, n in counts(spans).items())
    picture = tag("svg", *parts, viewBox=f"0 0 {WIDTH:.0f} {height:.0f}", role="img", aria_label=label, class_="chart")
    return joined([legend(spans), tag("div", picture, class_="wide")])


def counts(spans: list[dict[str, Any]]) -> dict[str, int]:
    return {kind: n for kind in WORDS if (n := sum(s["kind"] == kind for s in spans))}


def legend(spans: list[dict[str, Any]]) -> Markup:
    items = []
    for kind, n in counts(spans).items():
        seconds = sum(s["seconds"] for s in spans if s["kind"] == kind)
        words = f"{WORDS[kind]} · {n}× · {duration(seconds)}"
        items.append(tag("li", tag("span", class_=f"dot fill-{kind}"), words))
    return tag("ul", *items, class_="legend")


def strip(spans: list[dict[str, Any]], whole: float) -> list[Markup]:
    """Draw all spans to scale, one after the other."""
    total = sum(s["seconds"] for s in spans) or 1.0
    parts: list[Markup] = []
    x = LEFT
    for s in spans:
        width = s["seconds"] / total * whole
        bar = tag("rect", tag("title", described(s)), x=x, y=4.0, width=max(width - 0.5, 0.4), height=STRIP - 8, rx=1.5,
                  class_=f"fill-{s['kind']}")  # fmt: skip
        parts.append(bar)
        x += width
    parts.append(tag("text", "to scale", x=LEFT - 8, y=17.0, text_anchor="end", class_="label"))
    parts.append(tag("text", duration(total), x=WIDTH - RIGHT, y=38.0, text_anchor="end", class_="label"))
    parts.append(tag("text", "0", x=LEFT, y=38.0, class_="label"))
    return parts


def limits(spans: list[dict[str, Any]]) -> tuple[int, int]:
    """Powers of ten below the shortest and above the longest span."""
    seconds = [max(s["seconds"], 1e-7) for s in spans]
    low = math.floor(math.log10(min(seconds) * 0.5))
    return low, max(math.ceil(math.log10(max(seconds))), low + 1)


def grid(spans: list[dict[str, Any]]) -> list[Markup]:
    low, high = limits(spans)
    parts = []
    for power in range(low, high + 1):
        y = TOP + HEIGHT * (1 - (power - low) / (high - low))
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(
            tag(
                "text",
                duration(10.0**power * 1.0000001),
                x=LEFT - 8,
                y=y + (4 if power > low else 0),
                text_anchor="end",
                class_="label",
            )
        )
    return parts


def bars(spans: list[dict[str, Any]], whole: float) -> list[Markup]:
    """Draw the bars; those of one call are adjacent."""
    low, high = limits(spans)
    calls = sorted({s["call"] for s in spans})
    step = whole / max(len(spans) + GAP * len(calls), 12)
    parts: list[Markup] = []
    x = LEFT
    for call in calls:
        inside = [s for s in spans if s["call"] == call]
        middle = x + step * (len(inside) + GAP) / 2
        if step > 14 or call % 5 == 0 or call == 1:
            parts.append(tag("text", call, x=middle, y=TOP + HEIGHT + 17, text_anchor="middle", class_="label"))
        x += step * GAP / 2
        for s in inside:
            parts += bar(s, x, step, (math.log10(max(s["seconds"], 1e-7)) - low) / (high - low))
            x += step
        x += step * GAP / 2
    parts.append(tag("text", "call", x=LEFT - 8, y=TOP + HEIGHT + 17, text_anchor="end", class_="label"))
    return parts


def bar(s: dict[str, Any], x: float, step: float, share: float) -> list[Markup]:
    height = max(share * HEIGHT, 2.0)
    y = TOP + HEIGHT - height
    found = [
        tag("rect", tag("title", described(s)), x=x + 0.5, y=y, width=step - 1, height=height, rx=min(3.0, step * 0.2),
            class_=f"fill-{s['kind']}")
    ]  # fmt: skip
    if step > 36:
        found.append(tag("text", duration(s["seconds"]), x=x + step / 2, y=y - 5, text_anchor="middle", class_="label"))
    return found


def described(s: dict[str, Any]) -> str:
    note = f" ({s['note']})" if s["note"] else ""
    return f"call {s['call']}, {WORDS[s['kind']]}: {duration(s['seconds'])}{note}"
