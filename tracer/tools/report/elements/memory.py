"""Memory plan drawing: buffers as rectangles, lifetime by offset; beside it, to the same scale, the memory eager execution
needs."""

from __future__ import annotations

from typing import Any

from .anchors import Marks
from .html import Markup, plural, size, tag

WIDTH, LEFT, GAP, TOP, HEIGHT, BOTTOM = 960.0, 64.0, 70.0, 26.0, 280.0, 30.0
SHARE = 0.62  # the plan's share of the width
NAMED = 46.0  # least width, in pixels, of a rectangle with its name


def memory(program: dict[str, Any], marks: Marks, number: str) -> Markup:
    """Draw the memory plan and, if known, eager execution's memory beside it."""
    plan, eager = program["native"]["memory"], program["eager_memory"]
    top = max(needed(program), 1 if eager is None else eager["peak"], 1)
    whole = WIDTH - LEFT - GAP - 8
    left = whole * SHARE
    steps, below = len(program["native"]["kernels"]), TOP + HEIGHT + 20
    parts = [*axis(top, LEFT, left), *buffers(program, marks, number, top, left)]
    results = needed(program) - plan["bytes"]
    words = f"compiled: an arena of {size(plan['bytes'])}" + f", and {size(results)} of results" * bool(results)
    parts.append(tag("text", words, x=LEFT, y=14.0, class_="heading"))
    parts.append(tag("text", f"{plural(steps, 'kernel')}, in order →", x=LEFT, y=below, class_="label"))
    label = f"{plural(plan['buffers'], 'buffer')} in {size(plan['bytes'])}"
    if eager is not None:
        x, right = LEFT + left + GAP, whole - left
        limit = TOP + HEIGHT * (1 - eager["peak"] / top)
        parts += [*axis(top, x, right), *curve(eager["bytes"], top, x, right)]
        parts.append(tag("line", x1=LEFT, x2=WIDTH - 8, y1=limit, y2=limit, class_="limit"))
        parts.append(tag("text", f"eager: a peak of at least {size(eager['peak'])}", x=x, y=14.0, class_="heading"))
        parts.append(tag("text", f"{plural(len(eager['bytes']), 'op')}, in order →", x=x, y=below, class_="label"))
        label += f"; eager execution needs {size(eager['peak'])}"
    box = f"0 0 {WIDTH:.0f} {TOP + HEIGHT + BOTTOM:.0f}"
    return tag("div", tag("svg", *parts, viewBox=box, role="img", aria_label=label, class_="chart"), class_="wide")


def axis(top: float, x: float, width: float) -> list[Markup]:
    parts = []
    for value in ticks(top):
        y = TOP + HEIGHT * (1 - value / top)
        parts.append(tag("line", x1=x, x2=x + width, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", size(value), x=x - 8, y=y + 4, text_anchor="end", class_="label"))
    return parts


def ticks(top: float) -> list[float]:
    """Round tick values up to the top."""
    step = 1.0
    while top / step > 5:
        step *= 2.5 if str(int(step)).startswith("2") else 2
    return [i * step for i in range(int(top / step) + 1)]


def buffers(program: dict[str, Any], marks: Marks, number: str, top: float, width: float) -> list[Markup]:
    native = program["native"]
    steps = max(len(native["kernels"]), 1)
    order = [k["step"] for k in native["kernels"]]
    known = native["buffers"]
    parts = []
    for life in sorted(native["memory"]["lives"], key=lambda x: x["offset"]):
        first, last = life["first"], min(life["last"], steps - 1)
        x, w = LEFT + first / steps * width, (last - first + 1) / steps * width
        h = life["size"] / top * HEIGHT
        y = TOP + HEIGHT - (life["offset"] + life["size"]) / top * HEIGHT
        form = known.get(life["name"])
        shape = "" if form is None else f", {form['dtype']} {form['shape']}"
        title = f"{life['name']}{shape}: {size(life['size'])} from kernel {order[first]} to kernel {order[last]}"
        made = marks.kernel(number, order[first])
        parts.append(
            tag("rect", tag("title", title), x=x, y=y, width=max(w - 0.6, 0.8), height=max(h - 0.6, 0.8), rx=min(2.0, h / 4),
                class_=f"buffer hue-{sum(map(ord, life['name'])) % 6}", data_of=made)
        )  # fmt: skip
        if w > NAMED and h > 13:
            parts.append(tag("text", life["name"], x=x + 5, y=y + min(h / 2 + 4, 14), class_="on-buffer"))
    above = native["memory"]["bytes"]
    for result in program["results"]:  # caller's memory, alive from the start, drawn above the arena
        h = result["size"] / top * HEIGHT
        title = f"{result['name']}, a result: {size(result['size'])}, written by kernel {order[result['first']]}"
        above += result["size"]
        parts.append(
            tag("rect", tag("title", title), x=LEFT, y=TOP + HEIGHT * (1 - above / top), width=width, height=h,
                class_="result", data_of=marks.kernel(number, order[result["first"]]))
        )  # fmt: skip
    return parts


def needed(program: dict[str, Any]) -> int:
    """Bytes of the arena and the results."""
    return int(program["native"]["memory"]["bytes"] + sum(r["size"] for r in program["results"]))


def curve(alive: list[int], top: float, x: float, width: float) -> list[Markup]:
    """Curve of live bytes while each op runs."""
    if not alive:
        return []
    step = width / len(alive)
    points = [f"M{x:.1f},{TOP + HEIGHT:.1f}"]
    for i, value in enumerate(alive):
        y = TOP + HEIGHT * (1 - value / top)
        points.append(f"L{x + i * step:.1f},{y:.1f}L{x + (i + 1) * step:.1f},{y:.1f}")
    points.append(f"L{x + width:.1f},{TOP + HEIGHT:.1f}Z")
    return [tag("path", d="".join(points), class_="area")]
