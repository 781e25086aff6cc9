"""The graph that loops are made of: primitive ops, each value once, reductions in a shape that loops can have.

Values that are only other names of values, computed twice or not needed are gone; a reduction over dims on both sides of
others, or of few long rows, is two reductions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ...eager.ops.shape.views import CLONE, VIEW
from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, Graph, Input, Node, Operand, Output, WriteBack
from ...tracer.graph.passes import equal, key
from .bounds_checks import guarded
from .decompose import CPU, SAME, expanded, nothing
from .concat_layout import JOINED
from .rematerialize import Again
from .merge_matmuls import Sums

REDUCTIONS = {"sum", "prod", "amax", "amin", "all", "any"}
LONG, PARTS = 1 << 15, 64  # rows from which a reduction of a few is done in parts, and how many parts
ROW = 256  # elements of a row that are worth a total of their own


@dataclass
class Prepared:
    """A graph of primitive ops, and where its results go."""

    inputs: tuple[Input, ...]
    nodes: list[Node]
    forms: dict[str, Form]
    outputs: list[tuple[Output, str]]  # with the value that its memory gets
    write_backs: list[tuple[WriteBack, str]]
    again: set[str]  # values that are there twice, so as not to be kept: where they are wanted, and not before
    names: dict[str, str]  # what values of the graph are called here, if not as they are there
    stored: set[str] = field(default_factory=set)  # values that are in memory, whatever it costs to compute them again
    decisions: list[str] = field(default_factory=list)


def prepared(
    graph: Graph, kept: Callable[[Node], bool], in_halves: Callable[[Node], bool] = nothing, joining: bool = False
) -> Prepared:
    """`kept` are composites with kernels of their own; those `in_halves` have them for halves too. Targets that are `joining`
    have values stand one below the other in memory, for products that take them as one."""
    whole = expanded(graph, kept, in_halves)
    forms = dict(whole.forms)
    nodes: list[Node] = []
    names: dict[str, str] = {}
    known: dict[Any, list[Node]] = {}
    for node in whole.nodes:
        for part in halves(renamed(node, names), forms):
            if part.op is SAME:
                names[part.results[0]] = str(names.get(part.operands[0], part.operands[0]))
                continue
            part = renamed(part, names)
            alternatives = known.setdefault((part.op.name, *map(key, part.operands)), [])
            same = next((n for n in alternatives if equal(n, part, forms)), None) if repeatable(part) else None
            if same is None:
                nodes.append(part)
                alternatives.append(part)
            else:
                names.update(zip(part.results, same.results, strict=True))
    outside = {x.name for x in graph.inputs}
    constants = {name for node in nodes if node.op.name == "constant" for name in node.results}
    ends = Ends(nodes, forms, names, outside | constants)
    backs = [(w, ends.own(w.value, w.input.name)) for w in graph.write_backs]
    outputs = [(o, o.value if o.value in outside else ends.own(o.value)) for o in graph.outputs]
    wanted = {v for _, v in outputs} | {v for _, v in backs}
    nodes = needed(nodes, wanted)
    sums = Sums(nodes, forms, wanted | outside, added) if joining else None
    nodes = guarded(nodes if sums is None else needed(sums.run(), wanted), forms, added)
    places = {name: i for i, node in enumerate(nodes) for name in node.results}
    writers = {w.input.name: places[v] for w, v in backs}
    parts = {x for node in nodes if node.op is JOINED for x in node.values()}
    again = Again(nodes, forms, wanted | parts, writers)
    found = Prepared(graph.inputs, again.written(), forms, outputs, backs, again.made, names)
    if sums is not None:
        found.stored, found.decisions = sums.stored, sums.decisions
    return found


class Ends:
    """Sees to it that each memory somebody can see has a value of its own."""

    def __init__(self, nodes: list[Node], forms: dict[str, Form], names: dict[str, str], outside: set[str]) -> None:
        self.nodes = nodes
        self.forms = forms
        self.names = names
        self.taken = set(outside)
        self.given: dict[str, str] = {}
        self.elements = {name for node in nodes if node.op.kind == "pointwise" for name in node.results}

    def own(self, value: str, target: str | None = None) -> str:
        """The value that becomes an output, or the memory of an input (`target`): a copy, unless it can be taken as it is."""
        found = self.names.get(value, value)
        if target is None and value in self.given:
            return self.given[value]  # several outputs show one memory
        if found in self.taken or (target is not None and found not in self.elements):
            name = added(self.forms, f"{value}_own", self.forms[found])
            after = next((i + 1 for i, node in enumerate(self.nodes) if found in node.results), 0)
            line = self.nodes[after - 1].line if after else ""
            self.nodes.insert(after, Node(CLONE, (found,), {}, (name,), False, line))
            found = name
        self.taken.add(found)
        if target is None:
            self.given[value] = found
        return found


def repeatable(node: Node) -> bool:
    return node.op.kind != "random" and not node.op.mutates and node.op.name != "empty"


def renamed(node: Node, names: dict[str, str]) -> Node:
    if not any(x in names for x in node.values()):
        return node
    return replace(node, operands=tuple(names.get(x, x) if isinstance(x, str) else x for x in node.operands))


def needed(nodes: list[Node], wanted: set[str]) -> list[Node]:
    """The nodes that something depends on."""
    found: list[Node] = []
    wanted = set(wanted)
    for node in reversed(nodes):
        if node.op.kind == "random" or not wanted.isdisjoint(node.results):
            wanted.update(node.values())
            found.append(node)
    return found[::-1]


def halves(node: Node, forms: dict[str, Form]) -> list[Node]:
    """A reduction as two of them, where one after the other is better."""
    if node.op.name not in REDUCTIONS or not isinstance(node.operands[0], str):
        return [node]
    form, dims = forms[node.operands[0]], tuple(sorted(node.attrs["dims"]))
    if not dims or not form.size:
        return [node]
    trailing = trailing_of(dims, form.ndim)
    if trailing and len(trailing) < len(dims):
        rest = tuple(d for d in dims if d not in trailing)
        first = reduction(node, node.operands[0], trailing, True, forms)
        return [first, *in_view(node, first.results[0], rest, forms)]
    rows = form.size // math.prod(form.shape[d] for d in dims)
    length = form.size // max(rows, 1)
    along = rows_of(form.shape)
    if len(dims) == form.ndim and length >= LONG and along:
        first = reduction(node, node.operands[0], along, True, forms)
        last = in_view(node, first.results[0], tuple(d for d in dims if d not in along), forms)
        return [first, *[part for n in last for part in halves(n, forms)]]
    if len(dims) == form.ndim and length >= LONG and length % PARTS == 0:
        parts = contiguous((PARTS, length // PARTS), form.dtype, CPU)
        flat = added(forms, node.results[0] + "_flat", parts)
        view = Node(VIEW, (node.operands[0],), {"shape": parts.shape}, (flat,), False, node.line)
        first = reduction(node, flat, (1,), False, forms)
        return [view, first, *in_view(node, first.results[0], (0,), forms)]
    return [node]


def rows_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The last dims, such that they are long rows of which there are many: what else is done with a tensor is done by rows."""
    length = 1
    for d in reversed(range(1, len(shape))):
        length *= shape[d]
        if length >= ROW:
            return tuple(range(d, len(shape))) if math.prod(shape[:d]) >= PARTS else ()
    return ()


def trailing_of(dims: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """Those of the dims that stand at the end without a gap."""
    found: list[int] = []
    for d in reversed(range(ndim)):
        if d not in dims:
            break
        found.append(d)
    return tuple(reversed(found))


def added(forms: dict[str, Form], name: str, form: Form) -> str:
    while name in forms:
        name += "_"
    forms[name] = form
    return name


def reduction(node: Node, operand: Operand, dims: tuple[int, ...], keepdim: bool, forms: dict[str, Form]) -> Node:
    """The same reduction over other dims."""
    shape, kind = forms[operand].shape, forms[node.results[0]].dtype
    left = tuple(1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims)
    name = added(forms, node.results[0] + "_part", contiguous(left, kind, CPU))
    return Node(node.op, (operand,), {"dims": dims, "keepdim": keepdim}, (name,), False, node.line)


def in_view(node: Node, operand: str, dims: tuple[int, ...], forms: dict[str, Form]) -> list[Node]:
    """A reduction to the end, and its result in the shape that is wanted."""
    last = reduction(node, operand, dims, False, forms)
    wanted = forms[node.results[0]].shape
    if forms[last.results[0]].shape == wanted:
        return [replace(last, results=node.results)]
    return [last, Node(VIEW, last.results, {"shape": wanted}, node.results, False, node.line)]
