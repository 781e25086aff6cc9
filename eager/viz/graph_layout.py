"""Drawing a graph of boxes: columns by distance from the sources, few crossings, smooth arrows; SVG out.

Arrows that pass over columns get a place to pass through in each of them (a box of kind ""). Columns are then sorted by
where their neighbours stand, and each box is moved as near to the mean of its neighbours as the others allow.
"""

from __future__ import annotations

import itertools

CHARACTER, LINE, PADDING = 6.7, 15.0, 9.0  # of the font, at 11 pixels
BETWEEN_COLUMNS, BETWEEN_BOXES, MARGIN = 44.0, 16.0, 14.0
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Box:
    """A box with a title and lines below it; `x` and `y` are its centre."""

    def __init__(self, kind: str, title: str, lines: list[str]) -> None:
        self.kind, self.title, self.lines = kind, title, lines
        self.x = self.y = 0.0

    @property
    def width(self) -> float:
        return max(len(text) for text in (self.title, *self.lines)) * CHARACTER + 2 * PADDING if self.kind else 0.0

    @property
    def height(self) -> float:
        return (1 + len(self.lines)) * LINE + PADDING if self.kind else 4.0


Arrow = tuple[int, int, str]


def to_svg(boxes: list[Box], arrows: list[Arrow], fills: dict[str, str], lines: dict[str, str]) -> str:
    columns, routes = arrange(boxes, arrows)
    places = [box for column in columns for box in column]
    width = max((b.x + b.width / 2 for b in places), default=0.0) + MARGIN
    height = max((b.y + b.height / 2 for b in places), default=0.0) + MARGIN
    spans = {id(b): max(c.width for c in column) for column in columns for b in column}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{FONT}" font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0.8 L8,4 L0,7.2 z" fill="#64748b"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    parts += [_curve(route, label, spans) for route, label in routes]
    parts += [_rectangle(b, fills[b.kind], lines[b.kind]) for b in places if b.kind]
    return "\n".join([*parts, "</svg>"]) + "\n"


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _rectangle(b: Box, fill: str, line: str) -> str:
    left, top = b.x - b.width / 2, b.y - b.height / 2
    corner = 8 if b.kind in ("op", "more") else 2
    texts = [
        f'<text x="{b.x:.1f}" y="{top + PADDING / 2 + LINE * (i + 0.75):.1f}" text-anchor="middle"'
        + (' font-weight="bold" fill="#0f172a">' if i == 0 else ' fill="#475569">')
        + f"{escaped(text)}</text>"
        for i, text in enumerate((b.title, *b.lines))
    ]
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{b.width:.1f}" height="{b.height:.1f}" rx="{corner}" '
        f'fill="{fill}" stroke="{line}"/>' + "".join(texts)
    )


def _curve(route: list[Box], label: str, spans: dict[int, float]) -> str:
    """An arrow from the right of its first box to the left of its last, level where it passes a column."""
    x, y = route[0].x + route[0].width / 2, route[0].y
    path = f"M{x:.1f},{y:.1f}"
    for b in route[1:]:
        last = b is route[-1]
        half = b.width / 2 if last else spans[id(b)] / 2
        near = b.x - half
        middle = (x + near) / 2
        path += f" C{middle:.1f},{y:.1f} {middle:.1f},{b.y:.1f} {near:.1f},{b.y:.1f}"
        x, y = near, b.y
        if not last:
            x = b.x + half
            path += f" H{x:.1f}"
    drawn = f'<path d="{path}" fill="none" stroke="#64748b" marker-end="url(#tip)"/>'
    if label:
        side = 12 if route[-2].y < y - 1 else -5  # the side of the arrow that it does not come from
        place = f'x="{x - 8:.1f}" y="{y + side:.1f}" text-anchor="end"'
        drawn += f'<text {place} fill="#64748b" font-size="9">{escaped(label)}</text>'
    return drawn


# ---- where things go


def arrange(boxes: list[Box], arrows: list[Arrow]) -> tuple[list[list[Box]], list[tuple[list[Box], str]]]:
    """Sets the boxes' positions. Returns the columns, and each arrow as the boxes and passing places it goes through."""
    ranks = rank(len(boxes), arrows)
    columns: list[list[Box]] = [[] for _ in range(max(ranks, default=0) + 1)]
    for box, r in zip(boxes, ranks, strict=True):
        columns[r].append(box)
    routes: list[tuple[list[Box], str]] = []
    for source, target, label in arrows:
        route = [boxes[source]]
        for r in range(ranks[source] + 1, ranks[target]):
            columns[r].append(Box("", "", []))
            route.append(columns[r][-1])
        routes.append(([*route, boxes[target]], label))
    before: dict[int, list[Box]] = {}
    after: dict[int, list[Box]] = {}
    for route, _ in routes:
        for a, b in itertools.pairwise(route):
            after.setdefault(id(a), []).append(b)
            before.setdefault(id(b), []).append(a)
    for column in columns:
        settle(column, list(range(len(column))))
    for sweep in range(12):
        forward = sweep % 2 == 0
        for column in columns if forward else columns[::-1]:
            follow_neighbours(column, before if forward else after, reorder=sweep < 8)
    for column in columns:  # at last, look both ways
        follow_neighbours(column, {id(b): before.get(id(b), []) + after.get(id(b), []) for b in column}, reorder=False)
    place_columns(columns)
    return columns, routes


def rank(count: int, arrows: list[Arrow]) -> list[int]:
    """A column for each box: right of all it depends on; what depends on nothing stands next to its first use."""
    inputs: list[list[int]] = [[] for _ in range(count)]
    uses: list[list[int]] = [[] for _ in range(count)]
    for source, target, _ in arrows:
        inputs[target].append(source)
        uses[source].append(target)
    waiting = [len(i) for i in inputs]
    ready = [i for i in range(count) if not waiting[i]]
    ranks = [0] * count
    for i in ready:  # grows as it goes
        for j in uses[i]:
            ranks[j] = max(ranks[j], ranks[i] + 1)
            waiting[j] -= 1
            if not waiting[j]:
                ready.append(j)
    for i in range(count):
        if not inputs[i] and uses[i]:
            ranks[i] = min(ranks[j] for j in uses[i]) - 1
    return ranks


def follow_neighbours(column: list[Box], neighbours: dict[int, list[Box]], reorder: bool) -> None:
    wishes = {}
    for b in column:
        near = neighbours.get(id(b), [])
        wishes[id(b)] = sum(n.y for n in near) / len(near) if near else b.y
    if reorder:
        column.sort(key=lambda b: wishes[id(b)])
    settle(column, [wishes[id(b)] for b in column])


def settle(column: list[Box], wishes: list[float]) -> None:
    """Put boxes, in this order and apart from each other, as near to their wishes as possible (least squares).

    Without the distances between them that is isotonic regression: neighbours out of order are pooled at their mean.
    """
    offsets = [0.0]
    for a, b in itertools.pairwise(column):
        offsets.append(offsets[-1] + (a.height + b.height) / 2 + (BETWEEN_BOXES if a.kind or b.kind else 6.0))
    pools: list[tuple[float, int]] = []  # (sum, count)
    for wish, offset in zip(wishes, offsets, strict=False):
        total, count = wish - offset, 1
        while pools and pools[-1][0] / pools[-1][1] >= total / count:
            other = pools.pop()
            total, count = total + other[0], count + other[1]
        pools.append((total, count))
    levels = [total / count for total, count in pools for _ in range(count)]
    for b, level, offset in zip(column, levels, offsets, strict=False):
        b.y = level + offset


def place_columns(columns: list[list[Box]]) -> None:
    """From left to right, and all of it below and right of the margin."""
    top = min((b.y - b.height / 2 for column in columns for b in column), default=0.0)
    x = MARGIN
    for column in columns:
        width = max((b.width for b in column), default=0.0)
        for b in column:
            b.x = x + width / 2
            b.y += MARGIN - top
        x += width + BETWEEN_COLUMNS
