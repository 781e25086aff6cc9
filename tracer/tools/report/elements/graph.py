"""Graph of a program: each kernel is a box with the ops fused into it; arrows are the data that one leaves in memory for
another, with the bytes.

Boxes are in rows, below everything they read. Arrows to one of the next rows are drawn through them; longer ones,
such as values that the forward pass saves for the backward pass, run at the side.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

from .....eager.viz.graph_layout import Box, follow_neighbours, place_columns, rank, settle
from .anchors import Marks
from .collapse_repeats import Group
from .html import Markup, duration, size, tag

CHARACTER, LINE, PADDING = 6.6, 15.0, 8.0
MAX_LINE_CHARACTERS = 44  # of a line in a box
NEAR = 3  # rows that an arrow may cross
LANE = 9.0  # between arrows at the side
TITLES = {"loops": "loops", "matmul": "matmul", "attention": "attention", "opaque": "opaque op"}


class Standing(Box):
    """Box of a top-to-bottom drawing; transposed for the layout, which runs from left to right."""

    group: BoxContent

    @property
    def width(self) -> float:
        return (1 + len(self.lines)) * LINE + PADDING if self.kind else 0.0

    @property
    def height(self) -> float:
        return max(len(text) for text in (self.title, *self.lines)) * CHARACTER + 2 * PADDING + 6 if self.kind else 4.0


@dataclass
class BoxContent:
    """Content of a box."""

    kernels: list[dict[str, Any]]
    repeat: int

    @property
    def steps(self) -> list[int]:
        return [k["step"] for k in self.kernels]


def graph(program: dict[str, Any], groups: list[Group], marks: Marks, number: str) -> Markup:
    kernels = program["native"]["kernels"]
    nodes = [BoxContent([kernels[i] for i in g.members], g.repeat) for g in groups]
    arrows = arrows_of(program["edges"], nodes)
    boxes = [box_of(node) for node in nodes]
    ranks = rank(len(boxes), [(a, b, "") for a, b in arrows])
    routes = arrange(boxes, ranks, [(a, b) for a, b in arrows if ranks[b] - ranks[a] <= NEAR])
    right = max(b.y + b.height / 2 for b in boxes)
    far = sorted(((a, b) for a, b in arrows if ranks[b] - ranks[a] > NEAR), key=lambda e: ranks[e[1]] - ranks[e[0]])
    parts = [side_arrow(boxes, e, arrows[e], right, i, marks, number) for i, e in enumerate(far)]
    parts += [arrow(route, arrows[a, b], boxes, (a, b), marks, number) for (a, b), route in routes]
    parts += [rectangle(b, marks, number) for b in boxes]
    width = right + 24 + LANE * min(len(far), 24)
    height = max(b.x + b.width / 2 for b in boxes) + 16
    label = f"{len(kernels)} kernels in {len(boxes)} boxes and {len(arrows)} arrows"
    return tag(
        "svg", *parts, viewBox=f"0 0 {width:.0f} {height:.0f}", width=width, height=height, role="img",
        aria_label=label, class_="graph",
    )  # fmt: skip


def arrows_of(edges: list[dict[str, Any]], nodes: list[BoxContent]) -> dict[tuple[int, int], int]:
    """Bytes from box to box. Data from one repetition to the next would point upwards, and is left out."""
    place = {step: i for i, node in enumerate(nodes) for step in node.steps}
    found: Counter[tuple[int, int]] = Counter()
    for e in edges:
        a, b = place[e["from"]], place[e["to"]]
        if a < b:
            found[a, b] += e["bytes"]
    return dict(found)


def box_of(node: BoxContent) -> Standing:
    first = node.kernels[0]
    times = f"  ×{len(node.kernels)}" if len(node.kernels) > 1 else ""
    title = f"{first['step']}  {TITLES.get(first['kind'], first['kind'])}{times}"
    found = Standing(first["kind"], title, [shortened(what_of(first)), *ops_of(first), measures(node)])
    found.group = node
    return found


def what_of(kernel: dict[str, Any]) -> str:
    return str(kernel["what"]).partition(", then")[0].partition(", an opaque op")[0]


def ops_of(kernel: dict[str, Any], most: int = 2) -> list[str]:
    """Summarise a box's ops in a few lines."""
    lines, line = [], ""
    for op in [f"{name} ×{n}" if n > 1 else name for name, n in Counter(kernel["ops"]).items()]:
        if line and len(line) + len(op) + 3 > MAX_LINE_CHARACTERS:
            lines.append(line)
            line = ""
        line = f"{line} · {op}" if line else op
    lines.append(line)
    return [x for x in (lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1] + " …"]) if x]


def measures(node: BoxContent) -> str:
    times = [k["seconds"] for k in node.kernels]
    moved = f"moves {size(sum(k['bytes'] for k in node.kernels))}"
    return moved if None in times else f"{duration(sum(times))} · {moved}"


def shortened(words: str) -> str:
    return words if len(words) <= MAX_LINE_CHARACTERS else words[: MAX_LINE_CHARACTERS - 1] + "…"


# ---- positions; x and y are the layout's, so y points right


def arrange(boxes: list[Standing], ranks: list[int], near: list[tuple[int, int]]) -> list[tuple[tuple[int, int], list[Box]]]:
    """Set the boxes' positions. Returns each arrow with the boxes and waypoints that it passes through."""
    rows: list[list[Box]] = [[] for _ in range(max(ranks, default=0) + 1)]
    for box, r in zip(boxes, ranks, strict=True):
        rows[r].append(box)
    routes: list[tuple[tuple[int, int], list[Box]]] = []
    before: dict[int, list[Box]] = {}
    after: dict[int, list[Box]] = {}
    for a, b in near:
        route: list[Box] = [boxes[a]]
        for r in range(ranks[a] + 1, ranks[b]):
            rows[r].append(Standing("", "", []))
            route.append(rows[r][-1])
        route.append(boxes[b])
        routes.append(((a, b), route))
        for x, y in itertools.pairwise(route):
            after.setdefault(id(x), []).append(y)
            before.setdefault(id(y), []).append(x)
    for row in rows:
        settle(row, [0.0] * len(row))
    for sweep in range(12):
        forward = sweep % 2 == 0
        for row in rows if forward else rows[::-1]:
            follow_neighbours(row, before if forward else after, reorder=sweep < 8)
    place_columns(rows)
    return routes


# ---- drawing


def tip() -> Markup:
    """Arrowhead marker, once per page."""
    shape = tag("path", d="M0,1 L8,4 L0,7 z", class_="tip")
    return tag("marker", shape, id="tip", viewBox="0 0 8 8", refX=7, refY=4, markerWidth=6, markerHeight=6, orient="auto")


def rectangle(b: Standing, marks: Marks, number: str) -> Markup:
    left, top = b.y - b.height / 2, b.x - b.width / 2
    texts = [
        tag("text", text, x=left + PADDING + 6, y=top + PADDING / 2 + LINE * (i + 0.78), class_="title" if i == 0 else "line")
        for i, text in enumerate((b.title, *b.lines))
    ]
    tokens = [marks.kernel(number, step) for step in b.group.steps]
    lines = list(dict.fromkeys(line for k in b.group.kernels for line in k["lines"]))
    known = {"data_is": " ".join(tokens), **marks.of(lines)}
    words = f"kernels {', '.join(map(str, b.group.steps))}" if len(tokens) > 1 else f"kernel {b.group.steps[0]}"
    return tag(
        "g", tag("title", f"{words}: {b.group.kernels[0]['what']}"),
        tag("rect", x=left, y=top, width=b.height, height=b.width, rx=6, class_="box"),
        tag("rect", x=left, y=top, width=4, height=b.width, rx=2, class_=f"fill-{b.kind}"),
        *texts, class_="kernel" + " again" * (b.group.repeat >= 0), data_go=f"kernel-{tokens[0]}", **known,
    )  # fmt: skip


def arrow(
    route: list[Box], moved: int, boxes: list[Standing], ends: tuple[int, int], marks: Marks, number: str
) -> Markup:  # fmt: skip
    x, y = route[0].y, route[0].x + route[0].width / 2
    path = f"M{x:.1f},{y:.1f}"
    for b in route[1:]:
        near = b.x - b.width / 2
        middle = (y + near) / 2
        path += f"C{x:.1f},{middle:.1f} {b.y:.1f},{middle:.1f} {b.y:.1f},{near:.1f}"
        x, y = b.y, near
    words = size(moved)
    label = tag("text", words, x=(route[-2].y + x) / 2 + 5, y=(route[-2].x + route[-2].width / 2 + y) / 2 + 4, class_="bytes")
    return joined_arrow(path, words, label, boxes, ends, marks, number, "near")


def side_arrow(
    boxes: list[Standing], ends: tuple[int, int], moved: int, right: float, lane: int, marks: Marks, number: str
) -> Markup:
    """Draw an arrow from the right of a box, along a lane at the side, to the right of another."""
    a, b = boxes[ends[0]], boxes[ends[1]]
    x = right + 14 + LANE * (lane % 24)
    start, end = a.y + a.height / 2, b.y + b.height / 2
    path = f"M{start:.1f},{a.x:.1f}C{x:.1f},{a.x:.1f} {x:.1f},{a.x:.1f} {x:.1f},{a.x + 26:.1f}V{b.x - 26:.1f}"
    path += f"C{x:.1f},{b.x:.1f} {x:.1f},{b.x:.1f} {end:.1f},{b.x:.1f}"
    words = size(moved)
    label = tag("text", words, x=end + 10, y=b.x - 5, class_="bytes")
    return joined_arrow(path, words, label, boxes, ends, marks, number, "far")


def joined_arrow(
    path: str, words: str, label: Markup, boxes: list[Standing], ends: tuple[int, int], marks: Marks, number: str, kind: str
) -> Markup:
    tokens = [marks.kernel(number, step) for end in ends for step in boxes[end].group.steps]
    a, b = (boxes[end].group.steps[0] for end in ends)
    title = tag("title", f"{words} from kernel {a} to kernel {b}")
    return tag(
        "g", title, tag("path", d=path, marker_end="url(#tip)"), label, class_=f"arrow {kind}", data_with=" ".join(tokens)
    )
