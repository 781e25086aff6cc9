"""Values that stand one below the other in memory, as if they were one: nothing is copied for that.

`joined` is an op of the compiler's own: its operands are matrices that are written where the result is, each in its place. They
keep their names, and kernels get addresses, so those that differ only in which part they are of are the same; the plan of the
memory sees to the addresses (`build.py`).

A value can stand in one place only. Where it is wanted in two, or where somebody sees it, it is copied; where it is read
otherwise, as memory from outside may be overwritten later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...eager.core.op import Op
from ...eager.ops.shape.views import CLONE, SLICE, VIEW
from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, Node
from .decompose import CPU

if TYPE_CHECKING:
    from ..schedule.fusion import Schedule

JOINED = Op("joined", "movement")
WRITTEN = ("pointwise", "create", "contraction", "movement")  # what parts may be made by


@dataclass(frozen=True)
class Together:
    """Matrices as one: its name, the nodes that make it and after which others they come, how many bytes these copy."""

    name: str
    nodes: tuple[tuple[int, Node], ...]
    parts: tuple[str, ...] = ()
    copied: int = 0


class Joins:
    """Joins the values of a graph."""

    def __init__(self, nodes: list[Node], forms: dict[str, Form], seen: set[str], added: Callable[..., str]) -> None:
        self.forms = forms
        self.seen = seen
        self.added = added
        self.maker = {name: node for node in nodes for name in node.results}
        self.at = {name: i for i, node in enumerate(nodes) for name in node.results}
        self.known: dict[tuple[str, ...], str] = {}  # what joins of values are called
        self.taken: set[str] = set()  # values that stand in a join
        self.after: dict[int, list[Node]] = defaultdict(list)  # of nodes: those that come after them

    def itself(self, x: str) -> str:
        """The value that another name, or a view of all of it, is."""
        while x in self.maker:
            node = self.maker[x]
            one = len(node.values()) == 1 and node.op.name in ("cat", "slice") and len(node.results) == 1
            if not one or self.forms[node.values()[0]].shape != self.forms[x].shape:
                break
            if node.op.name == "slice" and any(getattr(i, "step", None) not in (None, 1) for i in node.attrs["index"]):
                break
            x = node.values()[0]
        return x

    def together(self, parts: list[str], places: list[int]) -> Together:
        """Matrices as one: rows of another value, a join that there is, or a new one; it is made by `make`. `places` are the
        nodes that read them one by one."""
        rows = sum(self.forms[x].shape[0] for x in parts)
        shape = (rows, self.forms[parts[0]].shape[1])
        if tuple(parts) in self.known:
            return Together(self.known[tuple(parts)], ())
        found = self.slices(parts, shape)
        if found is not None:
            return found
        name = self.new("joined", shape, parts[0])
        nodes: list[tuple[int, Node]] = []
        standing: list[str] = []
        copied = 0
        for x, at in zip(parts, places, strict=True):
            if x in standing or not self.may_stand_here(x):
                copy = self.new(f"{x}_there", self.forms[x].shape, x)
                nodes.append((at, Node(CLONE, (x,), {}, (copy,), False, self.maker[x].line if x in self.maker else "")))
                copied += self.forms[x].nbytes
                standing.append(copy)
            else:
                standing.append(x)
        last = max([*[self.at.get(x, -1) for x in standing], *[at for at, _ in nodes]])
        nodes.append((last, Node(JOINED, tuple(standing), {"dim": 0}, (name,), False, "")))
        return Together(name, tuple(nodes), tuple(parts), copied)

    def make(self, found: Together) -> None:
        """A join is made after all."""
        if found.parts:
            self.known[found.parts] = found.name
            self.taken.update(str(x) for x in found.nodes[-1][1].operands)
        for at, node in found.nodes:
            self.after[at].append(node)

    def existing(self, parts: list[str]) -> str | None:
        """A join of just these values, in any order."""
        wanted = sorted(parts)
        return next((name for known, name in self.known.items() if sorted(known) == wanted), None)

    def may_stand_here(self, x: str) -> bool:
        node = self.maker.get(x)
        if node is None or x in self.seen or x in self.taken or len(node.results) != 1:
            return False
        return node.op.kind in WRITTEN and node.op.name not in ("constant", "slice", "permute", "view", "expand")

    def slices(self, parts: list[str], shape: tuple[int, ...]) -> Together | None:
        """Matrices that follow on each other in another value: a view of that."""
        makers = [self.maker.get(x) for x in parts]
        if not all(node is not None and node.op.name == "slice" for node in makers):
            return None
        sources = {node.operands[0] for node in makers if node is not None}
        firsts = [whole_at(node.attrs["index"]) for node in makers if node is not None]
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
        return Together(name, ((at, cut), (at, Node(VIEW, (whole,), {"shape": shape}, (name,), False, ""))))

    def new(self, name: str, shape: tuple[int, ...], like: str) -> str:
        return self.added(self.forms, name, contiguous(shape, self.forms[like].dtype, CPU))


def place(schedule: Schedule, node: Node) -> None:
    """Parts are in memory, each in its place of the whole, which is there when the last of them is."""
    (name,), offset = node.results, 0
    schedule.blocks[name] = []
    for x in node.values():
        if x in schedule.transparent:
            schedule.materialise(x, f"it is a part of {name}")
        schedule.kept.add(x)
        schedule.blocks[name].append((x, offset))
        offset += schedule.forms[x].nbytes
    schedule.home[name] = max(schedule.home[x] for x in node.values())


def whole_at(index: object) -> int | None:
    """The number of a slice that takes one of the first dim, and all of the others."""
    if not isinstance(index, tuple) or not index or type(index[0]) is not int:
        return None
    return index[0] if all(i is Ellipsis or i == slice(None) for i in index[1:]) else None
