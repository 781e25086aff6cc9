"""Simplify graphs: constant folding, algebra, common subexpressions, copy removal and dead code.

Each pass returns a graph that computes the same bits with less work. Passes only remove and replace nodes, so value names keep
their meaning from pass to pass. A pass that changes nothing returns the graph it was given, by which the runner detects a
fixpoint.

Values that own their memory (`Graph.owned`) are never merged with others: where their node is redundant, they become copies.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ...eager.arrays import dtypes
from ...eager.core.op import Op
from ...eager.ops.create import EMPTY, FULL
from ...eager.ops.shape.views import CLONE
from ..trace.trace import Constant, Number, same_setting
from .interpreter import CONSTANT, evaluate_node
from .ir import Form, Graph, Node, Operand, verified

MAX_FOLDED_SIZE = 4096  # elements: larger results stay an op, as their arrays would have to be kept


def with_nodes(graph: Graph, nodes: list[Node]) -> Graph:
    """Return the graph with other nodes; the same object if they are unchanged."""
    if len(nodes) == len(graph.nodes) and all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    return verified(replace(graph, nodes=tuple(nodes)))


def rename_operands(node: Node, names: dict[str, str]) -> Node:
    """Return a node with its operands renamed."""
    if names.keys().isdisjoint(node.values()):
        return node
    return replace(node, operands=tuple(names.get(x, x) if isinstance(x, str) else x for x in node.operands))


def remove_dead_code(graph: Graph) -> Graph:
    """Remove nodes, inputs and numbers that no output and no write-back depends on."""
    wanted = {w.value for w in graph.write_backs} | {o.value for o in graph.outputs}
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.results):
            wanted.update(node.values())
            nodes.append(node)
    wanted.update(w.input.name for w in graph.write_backs)
    places = {x.place for node in nodes for x in node.operands if isinstance(x, Number)}
    inputs = tuple(x for x in graph.inputs if x.name in wanted)
    numbers = tuple(n for n in graph.numbers if n.place in places)
    if len(inputs) < len(graph.inputs) or len(numbers) < len(graph.numbers):
        graph = replace(graph, inputs=inputs, numbers=numbers, nodes=())
    return with_nodes(graph, nodes[::-1])


def merge_common_subexpressions(graph: Graph) -> Graph:
    """Merge nodes that compute the same value."""
    owned = graph.owned()
    nodes: list[Node] = []
    names: dict[str, str] = {}
    known: dict[Any, list[Node]] = {}
    for original in graph.nodes:
        node = rename_operands(original, names)
        alternatives = known.setdefault((node.op.name, *map(key, node.operands)), [])
        same = next((n for n in alternatives if is_same_node(n, node, graph.forms)), None)
        if same is None or (node.op in (EMPTY, FULL, CONSTANT, CLONE) and owned & {*node.results}):
            nodes.append(node)
            alternatives.append(node)
            continue
        for mine, other in zip(node.results, same.results, strict=True):
            names[mine] = other
            if mine in owned:
                nodes.append(Node(CLONE, (other,), {}, (mine,), False, node.line))
    return with_nodes(graph, nodes)


def key(x: Operand) -> Any:
    return x if isinstance(x, str) else ("number", x.place) if isinstance(x, Number) else x.key()


def is_same_node(a: Node, b: Node, forms: dict[str, Form]) -> bool:
    """True if two nodes of one op on the same operands can be merged."""
    try:
        same = same_setting(a.attrs, b.attrs)
    except ValueError:  # arrays among them
        return False
    return same and all(same_form(forms[x], forms[y]) for x, y in zip(a.results, b.results, strict=True))


def fold_constants(graph: Graph) -> Graph:
    """Evaluate nodes that depend on constants alone."""
    known: dict[str, Any] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        found = evaluate(node, known, graph.forms)
        if found is None:
            nodes.append(node)
            continue
        known.update(zip(node.results, found, strict=True))
        if node.op in (FULL, CONSTANT):
            nodes.append(node)
        else:
            nodes += [constant(a, name, graph.forms[name], node.line) for a, name in zip(found, node.results, strict=True)]
    return with_nodes(graph, nodes)


def evaluate(node: Node, known: dict[str, Any], forms: dict[str, Form]) -> list[Any] | None:
    """Evaluate a node whose operands are constants; None if they are not, or if a result is too large."""
    if node.op is EMPTY or node.op.kind == "random" or any(isinstance(x, Number) for x in node.operands):
        return None
    if any(x not in known for x in node.values()) or any(
        not forms[x].on_cpu or forms[x].size > MAX_FOLDED_SIZE for x in node.results
    ):
        return None
    try:
        return evaluate_node(node, known, (), forms)
    except Exception:  # it rejects these values: the error belongs to the call
        return None


def constant(array: Any, name: str, form: Form, line: str) -> Node:
    """Build a node for a known array: `full` if all elements are one number."""
    if array.size:
        value = array.flat[0].item()
        attrs = {"shape": form.shape, "dtype": dtypes.from_numpy(form.dtype), "device": form.where}
        assert FULL.run is not None
        if FULL.run(np, value, **attrs).tobytes() == array.tobytes():
            return Node(FULL, (Constant(value),), attrs, (name,), False, line)
    return Node(CONSTANT, (), {"array": array.copy(order="K")}, (name,), False, line)


def simplify_algebra(graph: Graph) -> Graph:
    """Remove ops that return their input, bit for bit, for every input: -0.0 and NaN included."""
    owned = graph.owned()
    makers: dict[str, Node] = {}
    nodes: list[Node] = []
    names: dict[str, str] = {}
    for original in graph.nodes:
        node = rename_operands(original, names)
        same = find_identity(node, makers, graph.forms)
        if same is not None:
            names[node.results[0]] = same
            if node.results[0] not in owned:
                continue
            if node.op is not CLONE:
                node = Node(CLONE, (same,), {}, node.results, False, node.line)
        makers.update(dict.fromkeys(node.results, node))
        nodes.append(node)
    return with_nodes(graph, nodes)


VIEWS_OF_ALL = {"view", "permute", "expand", "slice"}  # identities where the result has the form of the input


def find_identity(node: Node, makers: dict[str, Node], forms: dict[str, Form]) -> str | None:
    """Return the existing value that a node's result equals, if there is one."""
    found: Operand = None
    if node.op is CLONE or node.op.name == "cast" or node.op.name in VIEWS_OF_ALL:
        found = node.operands[0]
    elif node.op.name == "neg":
        inner = makers.get(node.operands[0])
        found = inner.operands[0] if inner is not None and inner.op is node.op else None
    elif node.op.name in NEUTRAL:
        a, b = node.operands
        form = forms[node.results[0]]
        if is_neutral(node.op, constant_value(b, makers), form):
            found = a
        elif node.op.name in ("add", "mul") and is_neutral(node.op, constant_value(a, makers), form):
            found = b
    if not isinstance(found, str) or not same_form(forms[found], forms[node.results[0]]):
        return None
    return found if node.op.kind == "movement" or is_exact(forms[found]) else None


def same_form(a: Form, b: Form) -> bool:
    return a is b or (a.shape, a.dtype, a.strides, a.where) == (b.shape, b.dtype, b.strides, b.where)


def is_exact(form: Form) -> bool:
    """True unless half precision, which is computed in float32: NaN loses its payload on the way back."""
    return form.dtype.kind in "iu" or (form.dtype.kind == "f" and form.itemsize > 2)


NEUTRAL = {"mul": 1.0, "true_divide": 1.0, "add": -0.0, "sub": 0.0}  # for floats: -0.0 + 0.0 is 0.0


def is_neutral(op: Op, value: Any, form: Form) -> bool:
    """True if an op with this number returns its other operand, which has the form of the result."""
    wanted = NEUTRAL[op.name]
    if value is None or value != wanted:
        return False
    return form.dtype.kind in "iu" or math.copysign(1.0, value) == math.copysign(1.0, wanted)


def constant_value(x: Operand, makers: dict[str, Node]) -> Any:
    """Return the number that all elements of an operand equal; None if that is not known."""
    if isinstance(x, Constant):
        return x.value
    node = makers.get(x) if isinstance(x, str) else None
    if node is None:
        return None
    if not node.op.view and node.op is not FULL:
        return None
    found = constant_value(node.operands[0], makers)
    whole = node.op is FULL and not node.attrs["dtype"].is_floating_point
    return 0 if whole and found == 0 else found  # integers have no -0.0


def remove_copies(graph: Graph) -> Graph:
    """Remove copies that exist only to own memory: they take over the memory of their source."""
    owned = graph.owned()
    makers = {name: node for node in graph.nodes for name in node.results}
    taken: dict[str, str] = {}
    for node in graph.nodes:
        if node.op is not CLONE or node.results[0] not in owned:
            continue
        source, mine = node.operands[0], node.results[0]
        fresh = source in makers and not makers[source].op.view and source not in owned
        if fresh and same_form(graph.forms[source], graph.forms[mine]):
            taken[mine] = source
            owned.add(source)
    if not taken:
        return graph
    outputs = tuple(replace(o, value=taken.get(o.value, o.value)) for o in graph.outputs)
    backs = tuple(replace(w, value=taken.get(w.value, w.value)) for w in graph.write_backs)
    return verified(replace(graph, outputs=outputs, write_backs=backs))
