"""Roofline plot: kernels by flops per byte and flops per second, below the machine's limits."""

from __future__ import annotations

import math
from typing import Any

from .anchors import Marks
from .html import Markup, duration, percent, size, tag

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960.0, 330.0, 64.0, 16.0, 12.0, 40.0
MAX_RADIUS = 22.0


class Scale:
    """Logarithmic scale between two values."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = math.log10(low), math.log10(high)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * share

    def powers(self) -> list[float]:
        return [10.0**n for n in range(math.ceil(self.low), math.floor(self.high) + 1)]


def roofline(native: dict[str, Any], marks: Marks, number: str) -> Markup | None:
    """Draw the plot; None if nothing was measured."""
    roof = native["roof"]
    kernels = [k for k in native["kernels"] if roof is not None and k.get("roofline") and k["flops"] and k["bytes"]]
    if not kernels:
        return None
    slow, fast = roof["copies"][-1][1], roof["copies"][0][1]
    intensities = [k["flops"] / k["bytes"] for k in kernels]
    speeds = [k["flops"] / k["seconds"] / 1e9 for k in kernels]
    peak = roof["flops"] / 1e9
    across = Scale(min(intensities) / 3, max([*intensities, roof["flops"] / slow]) * 3, LEFT, WIDTH - RIGHT)
    up = Scale(min(speeds) / 3, max(*speeds, peak) * 2, HEIGHT - BOTTOM, TOP)
    lines, labels = roofs(roof, across, up)
    parts = [*grid(across, up), *lines]
    most = max(k["seconds"] for k in kernels)
    for k in sorted(kernels, key=lambda k: -k["seconds"]):
        radius = max(MAX_RADIUS * math.sqrt(k["seconds"] / most), 2.5)
        words = f"kernel {k['step']}: {k['what']}; {duration(k['seconds'])}, {percent(k['roofline'])} of the {k['bound']} limit"
        parts.append(
            tag("circle", tag("title", words), cx=across(k["flops"] / k["bytes"]), cy=up(k["flops"] / k["seconds"] / 1e9),
                r=radius, class_=f"spot fill-{k['kind']}", data_is=marks.kernel(number, k["step"]),
                data_go=f"kernel-{marks.kernel(number, k['step'])}")
        )  # fmt: skip
    parts += labels
    label = f"{len(kernels)} kernels between {percent(min(k['roofline'] for k in kernels))} and "
    label += f"{percent(max(k['roofline'] for k in kernels))} of the roofline; one thread; at most {peak:.0f} GFLOP/s and "
    label += f"{size(slow)}/s from memory, {size(fast)}/s from the nearest cache"
    picture = tag("svg", *parts, viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}", role="img", aria_label=label, class_="chart")
    return tag("div", picture, class_="wide")


def grid(across: Scale, up: Scale) -> list[Markup]:
    parts = []
    for value in across.powers():
        x = across(value)
        parts.append(tag("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="grid"))
        parts.append(tag("text", f"{value:g}", x=x, y=HEIGHT - BOTTOM + 16, text_anchor="middle", class_="label"))
    for value in up.powers():
        y = up(value)
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", f"{value:g}", x=LEFT - 8, y=y + 4, text_anchor="end", class_="label"))
    parts.append(tag("text", "flops per byte moved", x=WIDTH - RIGHT, y=HEIGHT - 6, text_anchor="end", class_="label"))
    parts.append(tag("text", "GFLOP/s", x=LEFT + 6, y=TOP + 10, class_="label"))
    return parts


def roofs(roof: dict[str, Any], across: Scale, up: Scale) -> tuple[list[Markup], list[Markup]]:
    """Lines with labels: measured bandwidth of memory and caches, and peak arithmetic."""
    peak = roof["flops"] / 1e9
    lowest, highest = 10.0**across.low, 10.0**across.high
    lines, labels = [], []
    middle = roof["copies"][len(roof["copies"]) // 2]
    for n, rate in (roof["copies"][0], middle, roof["copies"][-1]):
        begin, end = max(lowest, 10.0**up.low / (rate / 1e9)), peak / (rate / 1e9)
        if end <= begin:
            continue
        x1, y1, x2, y2 = across(begin), up(begin * rate / 1e9), across(end), up(peak)
        lines.append(tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="limit"))
        angle = math.degrees(math.atan2(y2 - y1, x2 - x1))
        x, y = x1 + (x2 - x1) * 0.12, y1 + (y2 - y1) * 0.12 - 6
        words = f"{size(rate)}/s for {size(n)}"
        labels.append(tag("text", words, x=x, y=y, transform=f"rotate({angle:.1f} {x:.1f} {y:.1f})", class_="label"))
    top = across(min(peak / (roof["copies"][0][1] / 1e9), highest))
    lines.append(tag("line", x1=top, x2=across(highest), y1=up(peak), y2=up(peak), class_="limit"))
    words = f"{peak:.0f} GFLOP/s of multiply-adds"
    labels.append(tag("text", words, x=across(highest) - 4, y=TOP + 10, text_anchor="end", class_="label"))
    return lines, labels
