"""`draw`: a picture of the tape, values and ops as boxes, from the leaves on the left to the result on the right.

This file collects the graph from nodes and leaves and describes it in Graphviz's language; `graph_layout.py` draws it as SVG.
A node knows neither its output nor its shape, so shapes are worked out from what consumers have saved, where they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..arrays import devices
from ..core.tape.node import Node, Pick, edge_of
from ..core.tensor import Tensor
from .graph_layout import Box, to_svg

FILLS = {"leaf": "#dbeafe", "data": "#f1f5f9", "op": "#fef3c7", "result": "#dcfce7", "more": "#ffffff"}
LINES = {"leaf": "#2563eb", "data": "#94a3b8", "op": "#d97706", "result": "#16a34a", "more": "#94a3b8"}

Shape = tuple[int, ...]


def draw(loss: Any, path: str | Path | None = None, *, names: Mapping[str, Tensor] | None = None, limit: int = 400) -> Drawing:
    """A picture of how a tensor (or several) was computed: `.svg`, `.dot`, shown by notebooks, and saved to `path` if given.

    `names` labels tensors, for example `dict(model.named_parameters())`; of more than `limit` ops only the last are drawn.
    """
    roots = (loss,) if isinstance(loss, Tensor) else tuple(loss)
    picture = Drawing(*_Collector(roots, names or {}, limit).graph())
    if path is not None:
        picture.save(path)
    return picture


class Drawing:
    """Boxes and arrows: (from, to, label) by the boxes' positions in the list."""

    def __init__(self, boxes: list[Box], arrows: list[tuple[int, int, str]]) -> None:
        self.boxes, self.arrows = boxes, arrows

    @property
    def dot(self) -> str:
        """The graph in Graphviz's language."""
        lines = [
            "digraph tape {",
            "  rankdir=LR;",
            '  node [shape=box, style="rounded,filled", fontname="monospace", fontsize=11];',
        ]
        for i, box in enumerate(self.boxes):
            label = "\\n".join(_escaped(text) for text in (box.title, *box.lines))
            lines.append(f'  n{i} [label="{label}", fillcolor="{FILLS[box.kind]}", color="{LINES[box.kind]}"];')
        for source, target, label in self.arrows:
            lines.append(f"  n{source} -> n{target}" + (f' [label="{_escaped(label)}"];' if label else ";"))
        return "\n".join([*lines, "}"]) + "\n"

    @property
    def svg(self) -> str:
        """The picture."""
        return to_svg(self.boxes, self.arrows, FILLS, LINES)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<drawing of {len(self.boxes)} boxes and {len(self.arrows)} arrows: .svg, .dot, .save(path)>"

    def save(self, path: str | Path) -> None:
        """Write `.svg`, `.dot` or `.gv`; other endings (`.png`, `.pdf`) need the program `dot` of Graphviz."""
        path = Path(path)
        kind = path.suffix.lstrip(".").lower()
        if kind == "svg":
            path.write_text(self.svg, encoding="utf-8")
        elif kind in ("dot", "gv"):
            path.write_text(self.dot, encoding="utf-8")
        elif not kind:
            raise ValueError(f"save: {str(path)!r} does not say which kind of picture; end it in .svg, .dot, .png or .pdf")
        else:
            import shutil  # only here: neither is needed to import the package, which is to be quick
            import subprocess

            program = shutil.which("dot")
            if program is None:
                raise RuntimeError(f"save: .{kind} needs the program `dot` (install Graphviz); .svg and .dot work without it")
            subprocess.run([program, f"-T{kind}", "-o", str(path)], input=self.dot.encode(), check=True)


class _Collector:
    """Walks the tape from the results down, and makes a box for each thing it meets."""

    def __init__(self, roots: tuple[Tensor, ...], names: Mapping[str, Tensor], limit: int) -> None:
        self.roots, self.limit = roots, limit
        self.names: dict[Any, tuple[str, Tensor]] = {}  # a tensor's place on the tape, or its memory if it has none
        for name, t in names.items():
            place = edge_of(t)
            self.names[id(t.tj_array) if place is None else place] = (name, t)
        self.boxes: list[Box] = []
        self.arrows: list[tuple[int, int, str]] = []
        self.found: dict[Any, int] = {}  # node, leaf or id(array) -> its box
        self.shapes: dict[Node, Shape] = {}
        self.values: dict[Node, Any] = {}  # arrays of outputs, where somebody saved them

    def graph(self) -> tuple[list[Box], list[tuple[int, int, str]]]:
        places = [edge_of(t) for t in self.roots]
        order = _newest_first([p for p in places if isinstance(p, Node)])
        for t, place in zip(self.roots, places, strict=True):
            if isinstance(place, Node):
                self.shapes[place] = t.tj_array.shape
        for node in order:  # shapes first: they are known from the consumers down
            self._learn_from(node)
        shown = [n for n in order if not isinstance(n, Pick)][: self.limit]
        hidden = len([n for n in order if not isinstance(n, Pick)]) - len(shown)
        for node in shown:
            self.found[node] = self._box("op", _op_title(node), self._op_lines(node))
        more = self._box("more", "…", [f"{hidden} more ops"]) if hidden else -1
        for t, place in zip(self.roots, places, strict=True):
            self._result(t, place)
        for node in shown:
            self._inputs(node, more)
        return self.boxes, _merged(self.arrows)

    def _learn_from(self, node: Node) -> None:
        """Return the shapes that a node knows of its inputs and of its output."""
        own = _saved_array(node.saved.get("out"))
        if own is not None:
            self.values.setdefault(node, own)
            self.shapes.setdefault(node, own.shape)
        for i, edge in enumerate(node.edges):
            if isinstance(edge, Node):
                array = _saved_input(node, i)
                shape = _input_shape(node, i, self.shapes.get(node)) if array is None else array.shape
                if array is not None:
                    self.values.setdefault(edge, array)
                if shape is not None:
                    self.shapes.setdefault(edge, shape)

    def _box(self, kind: str, title: str, lines: Iterable[str]) -> int:
        self.boxes.append(Box(kind, title, list(lines)))
        return len(self.boxes) - 1

    def _result(self, t: Tensor, place: Any) -> None:
        if not isinstance(place, Node):
            self._leaf(t)
            return
        name = self.names[place][0] if place in self.names else "result"
        box = self._box("result", name, _value_lines(t))
        self.arrows.append((self.found[place.owner()], box, _which(place)))

    def _inputs(self, node: Node, more: int) -> None:
        target = self.found[node]
        for edge in node.edges:
            if isinstance(edge, Node):
                self.arrows.append((self.found.get(edge.owner(), more), target, _which(edge)))
            elif edge is not None:
                self.arrows.append((self._leaf(edge), target, ""))
        for array in _constants(node):
            self.arrows.append((self._data(array), target, ""))

    def _leaf(self, t: Tensor) -> int:
        if t not in self.found:
            place = edge_of(t)
            known = self.names.get(id(t.tj_array) if place is None else place)
            title = known[0] if known else type(t).__name__.lower()
            self.found[t] = self._box("leaf" if t.tj_requires_grad else "data", title, _value_lines(t))
        return self.found[t]

    def _data(self, array: Any) -> int:
        """An input that wants no gradient: known only when it was saved."""
        if id(array) not in self.found:
            known = self.names.get(id(array))
            self.found[id(array)] = self._box("data", known[0] if known else "data", _array_lines(array))
        return self.found[id(array)]

    def _op_lines(self, node: Node) -> Iterator[str]:
        tensor = None if node.retained is None else node.retained()
        if node in self.names:
            name, tensor = self.names[node]
            yield name
        if tensor is not None:
            yield from _value_lines(tensor)
        elif node in self.values and self.values[node].size == 1:
            yield _number(self.values[node])
        elif self.shapes.get(node):
            yield str(list(self.shapes[node]))


def _merged(arrows: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """One arrow for several between the same boxes, as for x * x."""
    found: dict[tuple[int, int], list[str]] = {}
    for source, target, label in arrows:
        found.setdefault((source, target), []).append(label)
    return [
        (source, target, ", ".join(filter(None, labels)) or (f"{len(labels)} times" if len(labels) > 1 else ""))
        for (source, target), labels in found.items()
    ]


def _newest_first(starts: list[Node]) -> list[Node]:
    seen: set[Node] = set()
    stack = list(starts)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(e for e in node.edges if isinstance(e, Node))
    return sorted(seen, key=lambda n: -n.number)


def _op_title(node: Node) -> str:
    function = getattr(node, "function", None)
    return function.__name__ if function is not None else node.op.name.strip("_")


def _which(place: Node) -> str:
    """An arrow's label: which of an op's several outputs it is."""
    return str(place.output_nr) if isinstance(place, Pick) else ""


def _saved_array(value: Any) -> Any:
    """The array in a saved value, if it is one of a tensor."""
    return value[0] if type(value) is tuple and len(value) == 4 and isinstance(value[1], list) else None


def _saved_input(node: Node, i: int) -> Any:
    names = node.op.input_names or ()
    return _saved_array(node.saved.get(names[i])) if i < len(names) else None


def _input_shape(node: Node, i: int, own: Shape | None) -> Shape | None:
    """The shape of a node's i-th input, from what the node has saved or, for ops that keep it, from its own shape."""
    if isinstance(node, Pick):
        return None
    if node.broadcast is not None:
        return tuple(node.broadcast[i])
    given = getattr(node, "inputs", None)
    if given is not None:
        return None if given[i] is None else tuple(given[i][0])
    names = node.op.input_names or ()
    name = names[i] if i < len(names) else ""
    saved = node.saved
    if f"{name}_shape" in saved:
        return tuple(saved[f"{name}_shape"])
    if "shapes" in saved:
        return tuple(saved["shapes"][i])
    if node.op.name == "permute" and own is not None and "dims" in saved:
        return tuple(own[saved["dims"].index(d)] for d in range(len(own)))
    return own if node.op.kind == "pointwise" or node.op.name in ("clone", "store", "flip") else None


def _constants(node: Node) -> Iterator[Any]:
    """Arrays of inputs that want no gradient, as far as they were saved."""
    for i, edge in enumerate(node.edges):
        array = None if edge is not None else _saved_input(node, i)
        if array is not None:
            yield array


def _value_lines(t: Tensor) -> Iterator[str]:
    yield from _array_lines(t.tj_array)
    if t.tj_grad is not None:
        g = devices.to_numpy(t.tj_grad.tj_array).astype("float64")
        yield f"grad {g.item():.4g}" if g.size == 1 else f"grad, norm {float((g * g).sum() ** 0.5):.4g}"


def _array_lines(array: Any) -> Iterator[str]:
    yield f"{array.dtype} {list(array.shape)}" if array.ndim else str(array.dtype)
    if array.size == 1:
        yield _number(array)


def _number(array: Any) -> str:
    return f"value {float(devices.to_numpy(array).reshape(())[()]):.4g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
