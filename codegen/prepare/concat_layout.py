"""Concat layout: values that are stored one below the other in memory, so that concatenating them copies nothing.

`concat_layout` is an op of the compiler's own: its operands are matrices that are written directly into their part of the
result. They keep their names and kernels get addresses, so kernels that differ only in their part are the same code; the memory
plan places the parts (`codegen/program/builder.py`).

A value can be stored in one place only. It is copied if two layouts need it or if the caller can see it, and also if it is an
input, whose memory may be overwritten later.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ...eager.core.op import Op
from ...eager.ops.shape.views import CLONE, SLICE, VIEW
from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, Node
from .decompose import CPU
from .primitive_graph import add_value

CONCAT_LAYOUT = Op("concat_layout", "movement")
STORABLE_KINDS = ("pointwise", "create", "contraction", "movement")  # of ops whose results can be stored as a part


@dataclass(frozen=True)
class Concatenation:
    """Matrices as one value: its name, the nodes that make it (each with the number of the node it follows), bytes copied."""

    name: str
    nodes: tuple[tuple[int, Node], ...]
    parts: tuple[str, ...] = ()
    copied: int = 0


class ConcatLayouts:
    """The concat layouts of a graph, each made once."""

    def __init__(self, nodes: list[Node], forms: dict[str, Form], visible: set[str]) -> None:
        self.forms = forms
        self.visible = visible  # values that the caller can see, and inputs
        self.producer = {name: node for node in nodes for name in node.results}
        self.at = {name: i for i, node in enumerate(nodes) for name in node.results}
        self.known: dict[tuple[str, ...], str] = {}  # names of layouts, by their parts
        self.taken: set[str] = set()  # values that are stored as a part
        self.after: dict[int, list[Node]] = defaultdict(list)  # by number of a node: the nodes that follow it

    def resolve_alias(self, x: str) -> str:
        """The value that `x` is all of, through slices and concatenations of one operand."""
        while x in self.producer:
            node = self.producer[x]
            one = len(node.values()) == 1 and node.op.name in ("cat", "slice") and len(node.results) == 1
            if not one or self.forms[node.values()[0]].shape != self.forms[x].shape:
                break
            if node.op.name == "slice" and any(getattr(i, "step", None) not in (None, 1) for i in node.attrs["index"]):
                break
            x = node.values()[0]
        return x

    def concatenate(self, parts: list[str], readers: list[int]) -> Concatenation:
        """Plan matrices as one value: rows of another value, a known layout, or a new one; `make` then makes it. `readers` are
        the numbers of the nodes that read them one by one."""
        rows = sum(self.forms[x].shape[0] for x in parts)
        shape = (rows, self.forms[parts[0]].shape[1])
        if tuple(parts) in self.known:
            return Concatenation(self.known[tuple(parts)], ())
        found = self.as_rows(parts, shape)
        if found is not None:
            return found
        name = self.new("joined", shape, parts[0])
        nodes: list[tuple[int, Node]] = []
        stored: list[str] = []
        copied = 0
        for x, at in zip(parts, readers, strict=True):
            if x in stored or not self.can_be_part(x):
                copy = self.new(f"{x}_there", self.forms[x].shape, x)
                nodes.append((at, Node(CLONE, (x,), {}, (copy,), False, self.producer[x].line if x in self.producer else "")))
                copied += self.forms[x].nbytes
                stored.append(copy)
            else:
                stored.append(x)
        last = max([*[self.at.get(x, -1) for x in stored], *[at for at, _ in nodes]])
        nodes.append((last, Node(CONCAT_LAYOUT, tuple(stored), {"dim": 0}, (name,), False, "")))
        return Concatenation(name, tuple(nodes), tuple(parts), copied)

    def make(self, found: Concatenation) -> None:
        """Enter the nodes of a planned concatenation."""
        if found.parts:
            self.known[found.parts] = found.name
            self.taken.update(str(x) for x in found.nodes[-1][1].operands)
        for at, node in found.nodes:
            self.after[at].append(node)

    def find(self, parts: list[str]) -> str | None:
        """The layout of exactly these values, in any order."""
        names = sorted(parts)
        return next((name for known, name in self.known.items() if sorted(known) == names), None)

    def can_be_part(self, x: str) -> bool:
        """True if the op that makes a value can store it as a part, and nothing needs it elsewhere."""
        node = self.producer.get(x)
        if node is None or x in self.visible or x in self.taken or len(node.results) != 1:
            return False
        return node.op.kind in STORABLE_KINDS and node.op.name not in ("constant", "slice", "permute", "view", "expand")

    def as_rows(self, parts: list[str], shape: tuple[int, ...]) -> Concatenation | None:
        """A view, if the matrices are consecutive slices of one value."""
        makers = [self.producer.get(x) for x in parts]
        if not all(node is not None and node.op.name == "slice" for node in makers):
            return None
        sources = {node.operands[0] for node in makers if node is not None}
        firsts = [index_in_first_dim(node.attrs["index"]) for node in makers if node is not None]
        if len(sources) != 1 or None in firsts:
            return None
        (source,) = sources
        start = firsts[0]
        assert start is not None
        if self.forms[source].ndim != 3 or start < 0 or firsts != list(range(start, start + len(parts))):
            return None
        whole = self.new("rows", (len(parts), *self.forms[source].shape[1:]), source)
        name = self.new("rows", shape, source)
        cut = Node(SLICE, (source,), {"index": (slice(start, start + len(parts)),)}, (whole,), False, "")
        at = self.at.get(source, -1)
        return Concatenation(name, ((at, cut), (at, Node(VIEW, (whole,), {"shape": shape}, (name,), False, ""))))

    def new(self, name: str, shape: tuple[int, ...], like: str) -> str:
        return add_value(self.forms, name, contiguous(shape, self.forms[like].dtype, CPU))


def index_in_first_dim(index: object) -> int | None:
    """The index into the first dim, for a slice that takes all of the other dims; None for other slices."""
    if not isinstance(index, tuple) or not index or type(index[0]) is not int:
        return None
    return index[0] if all(i is Ellipsis or i == slice(None) for i in index[1:]) else None
