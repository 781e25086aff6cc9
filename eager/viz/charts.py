"""Small pictures: distributions one above the other, and curves over steps. As SVG, with no help, or by matplotlib.

An SVG names its colours by classes, so that it follows a light or dark setting of whoever looks at it.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .graph_layout import escaped

LIGHT = {"paper": "#ffffff", "ink": "#1f2937", "soft": "#6b7280", "line": "#e5e7eb", "mark": "#dc2626"}
DARK = {"paper": "#0f172a", "ink": "#e5e7eb", "soft": "#94a3b8", "line": "#273449", "mark": "#f87171"}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
WIDTH, RIGHT = 620.0, 132.0  # of a picture, and of the labels at its right edge
BINS = 72


def style(colours: dict[str, str]) -> str:
    """Rules for the classes that pictures use."""
    rules = [f".{name}{{fill:{colours[name]}}}" for name in ("paper", "ink", "soft")]
    rules += [f".rule{{stroke:{colours['line']}}}", f".guide{{stroke:{colours['mark']}}}", f".marked{{fill:{colours['mark']}}}"]
    return "".join(rules) + f".edge{{stroke:{colours['paper']}}}"


def themed() -> str:
    """Rules for light and dark."""
    return style(LIGHT) + "@media (prefers-color-scheme: dark){" + style(DARK) + "}"


def colour(i: int, count: int) -> str:
    """From blue for the first layer through violet and red to amber for the last; readable on white and on black."""
    hue = (222 + 178 * (i / max(count - 1, 1))) % 360
    red, green, blue = colorsys.hls_to_rgb(hue / 360, 0.58, 0.72)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def text(x: float, y: float, words: str, kind: str = "soft", size: float = 11, anchor: str = "start", more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}"'
    return f'<text class="{kind}" {place} {more}>{escaped(words)}</text>'


def rule(x1: float, y1: float, x2: float, y2: float, kind: str = "rule", more: str = "") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'


def shortened(words: str, length: int) -> str:
    """Long names of layers lose their middle."""
    return words if len(words) <= length else words[: length // 2 - 1] + "…" + words[-(length - length // 2) :]


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two limits."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next((m for m in (1, 2, 5) if span / (step * m) <= most), 10)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float | None, digits: int = 2) -> str:
    """A number in few characters."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return (
        f"{value:.{digits}g}"
        if 1e-3 <= abs(value) < 1e4
        else f"{value:.{max(digits - 1, 0)}e}".replace("e-0", "e-").replace("e+0", "e")
    )


@dataclass
class Ridges:
    """Distributions, one row each, on a common axis: each row is scaled to its own height."""

    title: str
    subtitle: str
    rows: list[tuple[str, np.ndarray[Any, Any], str]] = field(
        default_factory=list
    )  # label, values, a remark for the right edge

    @property
    def row_height(self) -> float:
        return min(max(32.0, 250.0 / max(len(self.rows), 1)), 46.0)

    @property
    def peak(self) -> float:
        return 0.88 * self.row_height

    def limits(self) -> tuple[float, float]:
        """Return the range that holds nearly all values of every row."""
        found = [np.quantile(values, (0.01, 0.99)) for _, values, _ in self.rows if values.size]
        if not found:
            return -1.0, 1.0
        low, high = float(min(f[0] for f in found)), float(max(f[1] for f in found))
        room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
        return low - room, high + room

    def height(self) -> float:
        return 54.0 + self.row_height * len(self.rows) + 34

    def heights(self, values: np.ndarray[Any, Any], low: float, high: float) -> np.ndarray[Any, Any]:
        """A histogram between 0 and 1. A bin that towers over all others (the zeros of relu) is cut off."""
        counts, _ = np.histogram(values, BINS, (low, high))
        second = float(np.sort(counts)[-3]) * 1.3
        highest = float(counts.max())
        return np.minimum(counts / max(highest if highest < 3 * second else second, highest / 20, 1.0), 1.0)

    def svg(self) -> str:
        low, high = self.limits()
        left, right, top = 150.0, 70.0, 54.0
        bottom = top + self.row_height * len(self.rows) + 6
        inner = WIDTH - left - right

        def across(value: float) -> float:
            return left + inner * (value - low) / (high - low)

        parts = [text(16, 26, self.title, "ink", 14, more='font-weight="600"'), text(16, 44, self.subtitle)]
        for tick in ticks(low, high):
            parts.append(rule(across(tick), 54, across(tick), bottom))
            parts.append(text(across(tick), bottom + 16, f"{tick:g}", anchor="middle"))
        parts.append(text(WIDTH - 16, bottom + 16, "std", anchor="end"))
        edges = np.linspace(low, high, BINS + 1)
        for i, (label, values, remark) in enumerate(self.rows):
            base = top + self.row_height * (i + 1)
            shade = colour(i, len(self.rows))
            points = [(across(float(edges[0])), base)]
            for k, h in enumerate(self.heights(values, low, high) if values.size else np.zeros(BINS)):
                points += [(across(float(edges[k])), base - self.peak * h), (across(float(edges[k + 1])), base - self.peak * h)]
            outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*points, (across(float(edges[-1])), base)])
            parts.append(f'<polygon class="edge" points="{outline}" fill="{shade}" fill-opacity="0.85" stroke-width="0.8"/>')
            parts.append(text(left - 10, base - 2, shortened(label, 20), "ink", anchor="end"))
            parts.append(text(WIDTH - 16, base - 2, remark, "ink", anchor="end"))
        return framed(parts, self.height())

    def draw(self, axes: Any, colours: dict[str, str]) -> None:
        """The same with matplotlib."""
        low, high = self.limits()
        edges = np.linspace(low, high, BINS + 1)
        for i, (_, values, remark) in enumerate(self.rows):
            base = len(self.rows) - 1 - i
            found = self.heights(values, low, high) if values.size else np.zeros(BINS)
            heights = np.repeat(found * self.peak / self.row_height, 2) + base
            axes.fill_between(
                np.repeat(edges, 2)[1:-1], base, heights, color=colour(i, len(self.rows)), alpha=0.85, lw=0.6,
                ec=colours["paper"], zorder=2 + i,
            )  # fmt: skip
            axes.text(1.02, base + 0.2, remark, transform=axes.get_yaxis_transform(), fontsize=8, color=colours["ink"])
        axes.set_yticks([len(self.rows) - 1 - i + 0.3 for i in range(len(self.rows))])
        axes.set_yticklabels([shortened(label, 20) for label, _, _ in self.rows], fontsize=8)
        axes.tick_params(length=0)
        axes.set_xlim(low, high)
        axes.text(1.02, -0.1, "std", transform=axes.get_yaxis_transform(), fontsize=8, color=colours["soft"], va="top")
        axes.grid(visible=False, axis="y")
        axes.set_ylim(-0.1, len(self.rows))


@dataclass
class Curves:
    """Curves over steps, with a line to compare them with."""

    title: str
    subtitle: str
    steps: list[int]
    rows: list[tuple[str, list[float | None]]] = field(default_factory=list)
    guide: float | None = None
    bounds: tuple[float, float] | None = None

    def height(self) -> float:
        return 62.0 + max(250.0, 15.0 * len(self.rows)) + 44

    def limits(self) -> tuple[float, float]:
        if self.bounds is not None:
            return self.bounds
        values = [v for _, row in self.rows for v in row if v is not None and math.isfinite(v)]
        values += [] if self.guide is None else [self.guide]
        low, high = min(values, default=0.0), max(values, default=1.0)
        room = 0.08 * (high - low) or 0.5
        return low - room, high + room

    def svg(self) -> str:
        low, high = self.limits()
        left, top, bottom = 54.0, 62.0, self.height() - 44
        first, last = (self.steps[0], self.steps[-1]) if self.steps else (0, 1)
        inner = WIDTH - left - RIGHT - 24

        def across(step: float) -> float:
            return left + inner * ((step - first) / (last - first) if last > first else 0.5)

        def up(value: float) -> float:
            return bottom - (bottom - top) * (value - low) / (high - low)

        parts = [text(16, 26, self.title, "ink", 14, more='font-weight="600"'), text(16, 44, self.subtitle)]
        for tick in ticks(low, high):
            parts.append(rule(left, up(tick), left + inner, up(tick)))
            parts.append(text(left - 8, up(tick) + 4, f"{tick:g}", anchor="end"))
        for tick in sorted({round(t) for t in ticks(first, last)}):
            parts.append(text(across(tick), bottom + 18, f"{tick}", anchor="middle"))
        parts.append(text(left + inner, bottom + 34, "step", anchor="end"))
        if self.guide is not None:
            parts.append(rule(left, up(self.guide), left + inner, up(self.guide), "guide", 'stroke-dasharray="5 4"'))
        for i, (label, values) in enumerate(self.rows):
            shade = colour(i, len(self.rows))
            parts += self._curve(values, shade, across, up, low, high)
            y = top + 9 + 15 * i
            parts.append(f'<circle cx="{WIDTH - RIGHT - 6:.1f}" cy="{y - 4:.1f}" r="4" fill="{shade}"/>')
            parts.append(text(WIDTH - RIGHT + 4, y, shortened(label, 18), "ink"))
        return framed(parts, self.height())

    def _curve(self, values: list[float | None], shade: str, across: Any, up: Any, low: float, high: float) -> list[str]:
        """A line, in pieces where there are gaps; a dot where a piece is one point."""
        pieces: list[list[tuple[float, float]]] = [[]]
        for step, value in zip(self.steps, values, strict=True):
            if value is None or not math.isfinite(value):
                pieces.append([])
            else:
                pieces[-1].append((across(step), up(min(max(value, low), high))))
        parts = []
        for piece in pieces:
            if len(piece) == 1:
                parts.append(f'<circle cx="{piece[0][0]:.1f}" cy="{piece[0][1]:.1f}" r="3" fill="{shade}"/>')
            elif piece:
                points = " ".join(f"{x:.1f},{y:.1f}" for x, y in piece)
                parts.append(
                    f'<polyline points="{points}" fill="none" stroke="{shade}" stroke-width="1.4" stroke-linejoin="round"/>'
                )
        return parts

    def draw(self, axes: Any, colours: dict[str, str]) -> None:
        """The same with matplotlib."""
        for i, (label, values) in enumerate(self.rows):
            found = [math.nan if v is None else v for v in values]
            mark = "o" if len(self.steps) == 1 else None
            axes.plot(self.steps, found, color=colour(i, len(self.rows)), lw=1.2, label=shortened(label, 18), marker=mark)
        if self.guide is not None:
            axes.axhline(self.guide, color=colours["mark"], ls="--", lw=1)
        axes.set_ylim(*self.limits())
        axes.set_xlabel("step", fontsize=8, color=colours["soft"])
        if self.rows:
            axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, labelcolor=colours["ink"])


Picture = Ridges | Curves


def framed(parts: list[str], height: float) -> str:
    size = f'width="{WIDTH:.0f}" height="{height:.0f}" viewBox="0 0 {WIDTH:.0f} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}">'
    return "\n".join([head, '<rect class="paper" width="100%" height="100%" rx="10"/>', *parts, "</svg>"])


def sheet(pictures: list[Picture], rules: str) -> str:
    """Pictures in two columns in one SVG file."""
    parts, y = [], 0.0
    for i in range(0, len(pictures), 2):
        pair = pictures[i : i + 2]
        for k, picture in enumerate(pair):
            parts.append(picture.svg().replace("<svg ", f'<svg x="{k * WIDTH:.0f}" y="{y:.0f}" ', 1))
        y += max(picture.height() for picture in pair)
    size = f'width="{2 * WIDTH:.0f}" height="{y:.0f}" viewBox="0 0 {2 * WIDTH:.0f} {y:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{rules}</style>'
    return "\n".join([head, '<rect class="paper" width="100%" height="100%"/>', *parts, "</svg>"]) + "\n"


def with_matplotlib(pictures: list[Picture], path: Any, colours: dict[str, str]) -> None:
    """Draw all of them into one file of any kind that matplotlib knows."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # type: ignore[import-not-found]
        from matplotlib.figure import Figure  # type: ignore[import-not-found]
    except ImportError as error:
        raise ImportError(
            f"watch: drawing {path.name} needs matplotlib: pip install matplotlib. For .svg and .html it is not needed."
        ) from error
    rows = math.ceil(len(pictures) / 2)
    tallest = max(len(picture.rows) for picture in pictures)
    figure = Figure(
        figsize=(15, rows * max(3.4, 0.9 + 0.3 * tallest)), dpi=110, facecolor=colours["paper"], layout="constrained"
    )
    FigureCanvasAgg(figure)
    for i, picture in enumerate(pictures):
        axes = figure.add_subplot(rows, 2, i + 1, facecolor=colours["paper"])
        axes.set_axisbelow(True)
        axes.grid(color=colours["line"], lw=0.7)
        axes.spines[:].set_visible(False)
        axes.tick_params(colors=colours["soft"], labelsize=8)
        axes.set_title(picture.title, loc="left", fontsize=11, color=colours["ink"], fontweight="bold", pad=20)
        axes.text(0, 1.02, picture.subtitle, transform=axes.transAxes, fontsize=8, color=colours["soft"], va="bottom")
        picture.draw(axes, colours)
    figure.savefig(path, facecolor=colours["paper"])
