"""Passes: each makes of a graph one that gives the same bits with less work. They only take away and replace, so names keep
their meaning from pass to pass; a pass that finds nothing returns the graph it was given.

Values that become memory of their own (`Graph.owned`) are never merged with others: where their node can be spared, they are
copies instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ...eager.arrays import dtypes
from ...eager.core.op import Op
from ...eager.ops.create import EMPTY, FULL
from ...eager.ops.shape.views import CLONE
from .functionalize import graph_of
from .ir import Form, Graph, GraphError, Node, Operand, verified
from .interpreter import CONSTANT, results
from ..trace.trace import Constant, Number, Trace, alike

EVALUATED = 4096  # elements: what is larger stays an op, as arrays of it would have to be kept


def optimised(graph: Graph) -> Graph:
    """All passes, until none finds anything."""
    while True:
        before = graph
        for simplify in (constants, algebra, common_subexpressions, copies, dead_code):
            graph = simplify(graph)
        if graph is before:
            return graph


def printed(trace: Trace, start: int, stop: int, outputs: Iterable[int]) -> str:
    """The graph of some entries as text, or why there is none."""
    try:
        return str(optimised(graph_of(trace, start, stop, outputs)))
    except GraphError as reason:
        return str(reason)


def changed(graph: Graph, nodes: list[Node]) -> Graph:
    """The graph with other nodes; itself if they are the same."""
    if len(nodes) == len(graph.nodes) and all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    return verified(replace(graph, nodes=tuple(nodes)))


def renamed(node: Node, names: dict[str, str]) -> Node:
    """A node that reads other values."""
    if names.keys().isdisjoint(node.values()):
        return node
    return replace(node, operands=tuple(names.get(x, x) if isinstance(x, str) else x for x in node.operands))


# ---- dead code


def dead_code(graph: Graph) -> Graph:
    """Without nodes, inputs and numbers that nothing which is handed out or written back depends on."""
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
    return changed(graph, nodes[::-1])


# ---- common subexpressions


def common_subexpressions(graph: Graph) -> Graph:
    """What is computed twice is computed once."""
    owned = graph.owned()
    nodes: list[Node] = []
    names: dict[str, str] = {}
    known: dict[Any, list[Node]] = {}
    for original in graph.nodes:
        node = renamed(original, names)
        alternatives = known.setdefault((node.op.name, *map(key, node.operands)), [])
        same = next((n for n in alternatives if equal(n, node, graph.forms)), None)
        if same is None or (node.op in (EMPTY, FULL, CONSTANT, CLONE) and owned & {*node.results}):
            nodes.append(node)
            alternatives.append(node)
            continue
        for mine, other in zip(node.results, same.results, strict=True):
            names[mine] = other
            if mine in owned:
                nodes.append(Node(CLONE, (other,), {}, (mine,), False, node.line))
    return changed(graph, nodes)


def key(x: Operand) -> Any:
    return x if isinstance(x, str) else ("number", x.place) if isinstance(x, Number) else x.key()


def equal(a: Node, b: Node, forms: dict[str, Form]) -> bool:
    """Whether two nodes of one op on the same operands are one."""
    try:
        same = alike(a.attrs, b.attrs)
    except ValueError:  # arrays among them
        return False
    return same and all(same_form(forms[x], forms[y]) for x, y in zip(a.results, b.results, strict=True))


# ---- constants


def constants(graph: Graph) -> Graph:
    """What depends on nothing is computed now."""
    known: dict[str, Any] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        found = evaluated(node, known, graph.forms)
        if found is None:
            nodes.append(node)
            continue
        known.update(zip(node.results, found, strict=True))
        if node.op in (FULL, CONSTANT):
            nodes.append(node)
        else:
            nodes += [constant(a, name, graph.forms[name], node.line) for a, name in zip(found, node.results, strict=True)]
    return changed(graph, nodes)


def evaluated(node: Node, known: dict[str, Any], forms: dict[str, Form]) -> list[Any] | None:
    """What a node makes, if that is known and not too large."""
    if node.op is EMPTY or node.op.kind == "random" or any(isinstance(x, Number) for x in node.operands):
        return None
    if any(x not in known for x in node.values()) or any(
        not forms[x].on_cpu or forms[x].size > EVALUATED for x in node.results
    ):
        return None
    try:
        return results(node, known, (), forms)
    except Exception:  # it refuses these values: the error belongs to the call
        return None


def constant(array: Any, name: str, form: Form, line: str) -> Node:
    """A node that makes an array which is known; one number over and over is `full`."""
    if array.size:
        value = array.flat[0].item()
        attrs = {"shape": form.shape, "dtype": dtypes.from_numpy(form.dtype), "device": form.where}
        assert FULL.run is not None
        if FULL.run(np, value, **attrs).tobytes() == array.tobytes():
            return Node(FULL, (Constant(value),), attrs, (name,), False, line)
    return Node(CONSTANT, (), {"array": array.copy(order="K")}, (name,), False, line)


# ---- algebra


def algebra(graph: Graph) -> Graph:
    """Without ops that give back what they are given, bit for bit, whatever that is: -0.0 and NaN included."""
    owned = graph.owned()
    makers: dict[str, Node] = {}
    nodes: list[Node] = []
    names: dict[str, str] = {}
    for original in graph.nodes:
        node = renamed(original, names)
        same = unchanged(node, makers, graph.forms)
        if same is not None:
            names[node.results[0]] = same
            if node.results[0] not in owned:
                continue
            if node.op is not CLONE:
                node = Node(CLONE, (same,), {}, node.results, False, node.line)
        makers.update(dict.fromkeys(node.results, node))
        nodes.append(node)
    return changed(graph, nodes)


VIEWS_OF_ALL = {"view", "permute", "expand", "slice"}  # which show all of their input where they have its form


def unchanged(node: Node, makers: dict[str, Node], forms: dict[str, Form]) -> str | None:
    """The value that a node's result is, if it is one that is there already."""
    found: Operand = None
    if node.op is CLONE or node.op.name == "cast" or node.op.name in VIEWS_OF_ALL:
        found = node.operands[0]
    elif node.op.name == "neg":
        inner = makers.get(node.operands[0])
        found = inner.operands[0] if inner is not None and inner.op is node.op else None
    elif node.op.name in NEUTRAL:
        a, b = node.operands
        form = forms[node.results[0]]
        if neutral(node.op, number(b, makers), form):
            found = a
        elif node.op.name in ("add", "mul") and neutral(node.op, number(a, makers), form):
            found = b
    if not isinstance(found, str) or not same_form(forms[found], forms[node.results[0]]):
        return None
    return found if node.op.kind == "movement" or exact(forms[found]) else None


def same_form(a: Form, b: Form) -> bool:
    return a is b or (a.shape, a.dtype, a.strides, a.where) == (b.shape, b.dtype, b.strides, b.where)


def exact(form: Form) -> bool:
    """Half precision is computed in float32, and NaN loses its payload on the way back."""
    return form.dtype.kind in "iu" or (form.dtype.kind == "f" and form.itemsize > 2)


NEUTRAL = {"mul": 1.0, "true_divide": 1.0, "add": -0.0, "sub": 0.0}  # for floats: -0.0 + 0.0 is 0.0


def neutral(op: Op, value: Any, form: Form) -> bool:
    """Whether an op with this number gives back its other operand, of a form that the result has too."""
    wanted = NEUTRAL[op.name]
    if value is None or value != wanted:
        return False
    return form.dtype.kind in "iu" or math.copysign(1.0, value) == math.copysign(1.0, wanted)


def number(x: Operand, makers: dict[str, Node]) -> Any:
    """The number that all elements of an operand are; None if that is not known."""
    if isinstance(x, Constant):
        return x.value
    node = makers.get(x) if isinstance(x, str) else None
    if node is None:
        return None
    if not node.op.view and node.op is not FULL:
        return None
    found = number(node.operands[0], makers)
    whole = node.op is FULL and not node.attrs["dtype"].is_floating_point
    return 0 if whole and found == 0 else found  # integers have no -0.0


# ---- copies


def copies(graph: Graph) -> Graph:
    """What is only a copy for the sake of memory of its own takes over the memory of what it is a copy of."""
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
