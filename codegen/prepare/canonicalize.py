"""Canonicalise a graph of primitive ops: no aliases, no duplicates, no dead nodes, and reductions that loops can compute.

A reduction over dims on both sides of others, or over few long rows, becomes two reductions. `own_outputs` then gives each
memory that the caller can see a value of its own. The passes run in the order of `pipeline.primitive_passes`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ...eager.ops.shape.views import CLONE, VIEW
from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, Graph, Node, Operand
from ...tracer.graph.simplify import is_same_node, key
from .decompose import CPU, SAME
from .primitive_graph import PrimitiveGraph, add_value

REDUCTIONS = {"sum", "prod", "amax", "amin", "all", "any"}
LONG_REDUCTION, REDUCTION_PARTS = 1 << 15, 64  # elements from which a full reduction is split, and into how many parts
MIN_ROW = 256  # elements of a row that are worth a total of their own


def canonicalize(graph: Graph) -> PrimitiveGraph:
    """Split reductions, replace aliases by what they name, and merge nodes that compute the same."""
    forms = dict(graph.forms)
    nodes: list[Node] = []
    names: dict[str, str] = {}
    known: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        for part in split_reduction(rename_operands(node, names), forms):
            if part.op is SAME:
                names[part.results[0]] = str(names.get(part.operands[0], part.operands[0]))
                continue
            part = rename_operands(part, names)
            alternatives = known.setdefault((part.op.name, *map(key, part.operands)), [])
            same = next((n for n in alternatives if is_same_node(n, part, forms)), None) if can_merge(part) else None
            if same is None:
                nodes.append(part)
                alternatives.append(part)
            else:
                names.update(zip(part.results, same.results, strict=True))
    outputs, write_backs = [(o, o.value) for o in graph.outputs], [(w, w.value) for w in graph.write_backs]
    return PrimitiveGraph(graph.inputs, nodes, forms, outputs, write_backs, names)


def own_outputs(work: PrimitiveGraph) -> PrimitiveGraph:
    """Give each output and each write-back a value of its own, by a copy where several would share one."""
    constants = {name for node in work.nodes if node.op.name == "constant" for name in node.results}
    nodes = list(work.nodes)
    memory = OutputMemory(nodes, work.forms, work.names, work.external | constants)
    write_backs = [(w, memory.own(w.value, w.input.name)) for w, _ in work.write_backs]
    outputs = [(o, o.value if o.value in work.external else memory.own(o.value)) for o, _ in work.outputs]
    if len(nodes) == len(work.nodes) and (outputs, write_backs) == (work.outputs, work.write_backs):
        return work
    return replace(work, nodes=nodes, outputs=outputs, write_backs=write_backs)


class OutputMemory:
    """Chooses the value that is stored in each memory the caller can see, and adds copies to `nodes`."""

    def __init__(self, nodes: list[Node], forms: dict[str, Form], names: dict[str, str], external: set[str]) -> None:
        self.nodes = nodes
        self.forms = forms
        self.names = names
        self.taken = set(external)
        self.chosen: dict[str, str] = {}  # by value of the recorded graph
        self.pointwise = {name for node in nodes if node.op.kind == "pointwise" for name in node.results}

    def own(self, value: str, target: str | None = None) -> str:
        """The value that becomes an output, or the memory of the input `target`: a copy, unless it can be stored directly."""
        found = self.names.get(value, value)
        if target is None and value in self.chosen:
            return self.chosen[value]  # several outputs show one memory
        if found in self.taken or (target is not None and found not in self.pointwise):
            name = add_value(self.forms, f"{value}_own", self.forms[found])
            after = next((i + 1 for i, node in enumerate(self.nodes) if found in node.results), 0)
            line = self.nodes[after - 1].line if after else ""
            self.nodes.insert(after, Node(CLONE, (found,), {}, (name,), False, line))
            found = name
        self.taken.add(found)
        if target is None:
            self.chosen[value] = found
        return found


def can_merge(node: Node) -> bool:
    """True if two nodes that are equal to this one give the same values."""
    return node.op.kind != "random" and not node.op.mutates and node.op.name != "empty"


def rename_operands(node: Node, names: dict[str, str]) -> Node:
    if not any(x in names for x in node.values()):
        return node
    return replace(node, operands=tuple(names.get(x, x) if isinstance(x, str) else x for x in node.operands))


def drop_dead_nodes(work: PrimitiveGraph) -> PrimitiveGraph:
    """Without the nodes that no result depends on. Random ops stay: each takes its number of the generator's calls."""
    live = work.results
    nodes: list[Node] = []
    for node in reversed(work.nodes):
        if node.op.kind == "random" or not live.isdisjoint(node.results):
            live.update(node.values())
            nodes.append(node)
    return work if len(nodes) == len(work.nodes) else replace(work, nodes=nodes[::-1])


# ---- reductions


def split_reduction(node: Node, forms: dict[str, Form]) -> list[Node]:
    """A reduction as two, where loops are better that way: trailing dims first, then the others; or rows, then their totals."""
    if node.op.name not in REDUCTIONS or not isinstance(node.operands[0], str):
        return [node]
    form, dims = forms[node.operands[0]], tuple(sorted(node.attrs["dims"]))
    if not dims or not form.size:
        return [node]
    trailing = trailing_dims(dims, form.ndim)
    if trailing and len(trailing) < len(dims):
        rest = tuple(d for d in dims if d not in trailing)
        first = reduce_over(node, node.operands[0], trailing, True, forms)
        return [first, *reduce_and_reshape(node, first.results[0], rest, forms)]
    rows = form.size // math.prod(form.shape[d] for d in dims)
    length = form.size // max(rows, 1)
    row_dims = long_row_dims(form.shape)
    if len(dims) == form.ndim and length >= LONG_REDUCTION and row_dims:
        first = reduce_over(node, node.operands[0], row_dims, True, forms)
        last = reduce_and_reshape(node, first.results[0], tuple(d for d in dims if d not in row_dims), forms)
        return [first, *[part for n in last for part in split_reduction(n, forms)]]
    if len(dims) == form.ndim and length >= LONG_REDUCTION and length % REDUCTION_PARTS == 0:
        parts = contiguous((REDUCTION_PARTS, length // REDUCTION_PARTS), form.dtype, CPU)
        flat = add_value(forms, node.results[0] + "_flat", parts)
        view = Node(VIEW, (node.operands[0],), {"shape": parts.shape}, (flat,), False, node.line)
        first = reduce_over(node, flat, (1,), False, forms)
        return [view, first, *reduce_and_reshape(node, first.results[0], (0,), forms)]
    return [node]


def long_row_dims(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The last dims that together are long rows, if there are many of these: other loops over the tensor go by rows too."""
    length = 1
    for d in reversed(range(1, len(shape))):
        length *= shape[d]
        if length >= MIN_ROW:
            return tuple(range(d, len(shape))) if math.prod(shape[:d]) >= REDUCTION_PARTS else ()
    return ()


def trailing_dims(dims: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """Those of `dims` that are the last ones of a tensor, without a gap."""
    found: list[int] = []
    for d in reversed(range(ndim)):
        if d not in dims:
            break
        found.append(d)
    return tuple(reversed(found))


def reduce_over(node: Node, operand: Operand, dims: tuple[int, ...], keepdim: bool, forms: dict[str, Form]) -> Node:
    """The same reduction of `operand` over other dims, with a result of its own."""
    shape, kind = forms[operand].shape, forms[node.results[0]].dtype
    left = tuple(1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims)
    name = add_value(forms, node.results[0] + "_part", contiguous(left, kind, CPU))
    return Node(node.op, (operand,), {"dims": dims, "keepdim": keepdim}, (name,), False, node.line)


def reduce_and_reshape(node: Node, operand: str, dims: tuple[int, ...], forms: dict[str, Form]) -> list[Node]:
    """The last part of a split reduction, which gives the node's own result in its shape."""
    last = reduce_over(node, operand, dims, False, forms)
    shape = forms[node.results[0]].shape
    if forms[last.results[0]].shape == shape:
        return [replace(last, results=node.results)]
    return [last, Node(VIEW, last.results, {"shape": shape}, node.results, False, node.line)]
