"""Interpret a graph node by node with the ops' eager kernels: the reference for generated code.

Every value gets the strides it had in the recording, because kernels may sum in another order where the layout differs.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ...eager.arrays import dtypes
from ...eager.arrays.devices import device, module_of
from ...eager.core.dispatch import execute
from ...eager.core.op import PRIMITIVES, Op
from ...eager.core.tape.node import State
from ...eager.core.tensor import wrap
from ..trace.trace import Number
from .ir import Form, Graph, Node, Operand, shown, statement

CONSTANT = Op("constant", "create")  # a known array: an op created by passes, never by users
CONSTANT.run = lambda xp, *, array: array.copy(order="K")

_plain = State()
_plain.grad = False


def run_graph(graph: Graph, arrays: Any, scalars: Any) -> None:
    """Run a graph on arrays by slot and runtime scalars by position: stores the outputs in `arrays`, and writes back."""
    known = {x.name: arrays[x.slot] for x in graph.inputs}
    for node in graph.nodes:
        known.update(zip(node.results, evaluate_node(node, known, scalars, graph.forms), strict=True))
    memories = {name: copied(known[name], graph.forms[name]) for name in graph.owned()}
    for back in graph.write_backs:
        known[back.input.name][...] = memories[back.value]
    for output in graph.outputs:
        view = memories.get(output.value, known[output.value])
        for op, attrs, index in output.chain:
            found = run_op(op, (view,), attrs)
            view = found if index is None else found[index]
        arrays[output.slot] = view


def evaluate_node(node: Node, known: dict[str, Any], scalars: Any, forms: dict[str, Form]) -> list[Any]:
    """Run a node on the values computed so far."""
    operands = [operand_of(x, known, scalars) for x in node.operands]
    for i in node.op.mutates:
        if isinstance(x := node.operands[i], str):
            operands[i] = copied(operands[i], forms[x])
    found = run_op(node.op, tuple(operands), node.attrs, fresh=True)
    made = list(found) if node.several else [found]
    return made if node.op.view else [with_layout(a, forms[name]) for a, name in zip(made, node.results, strict=True)]


def operand_of(x: Operand, known: dict[str, Any], scalars: Any) -> Any:
    return known[x] if isinstance(x, str) else scalars[x.place] if isinstance(x, Number) else x.value


def run_op(op: Op, operands: tuple[Any, ...], attrs: dict[str, Any], fresh: bool = False) -> Any:
    """Run an op on arrays and return an array, or a tuple of them. Operands that the op writes are copied, unless they are in
    `fresh`."""
    if op.mutates and not fresh:
        operands = tuple(x.copy(order="K") if i in op.mutates and hasattr(x, "shape") else x for i, x in enumerate(operands))
    tensors = tuple(wrap(x) if hasattr(x, "shape") else x for x in operands)
    made = execute(op, tensors, attrs, None, _plain)
    if op.mutates:
        made = tuple(tensors[i] for i in op.mutates if hasattr(tensors[i], "tj_array"))
        made = made[0] if len(made) == 1 else made
    return tuple(t.tj_array for t in made) if isinstance(made, tuple) else made.tj_array


def with_layout(array: Any, form: Form) -> Any:
    """Return an array with the strides of a form: the same object if it has them already."""
    same = all(n < 2 or s == t for n, s, t in zip(array.shape, array.strides, form.strides, strict=True))
    return array if same or not array.size else copied(array, form)


def copied(array: Any, form: Form) -> Any:
    """Copy an array with the strides of a form."""
    if type(array) is not np.ndarray:
        return array.copy()
    steps = [(n - 1) * s for n, s in zip(form.shape, form.strides, strict=True) if form.size]
    memory = np.empty(sum(map(abs, steps)) + form.itemsize * bool(form.size), np.uint8)
    found = np.ndarray(form.shape, form.dtype, memory, -sum(min(s, 0) for s in steps), form.strides)
    found[...] = array
    return found


def has_aliased_inputs(graph: Graph, arrays: Any) -> bool:
    """True if an input that is written back shares memory with another input, which a graph cannot express."""
    written = [arrays[w.input.slot] for w in graph.write_backs]
    others = [arrays[x.slot] for x in graph.inputs]
    return any(a is not b and type(a) is type(b) and module_of(a).may_share_memory(a, b) for a in written for b in others)


# ---- running the printed graph


class OpCallable:
    """Callable of an op over arrays, as the printed graph calls it."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.run = op.run  # for chains of views

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        return run_op(self.op, operands, attrs)


class Kernels:
    """Namespace with `ops.name` for every op."""

    def __getattr__(self, name: str) -> OpCallable:
        return OpCallable(CONSTANT if name == CONSTANT.name else PRIMITIVES[name])


def namespace(graph: Graph) -> dict[str, Any]:
    """Return the globals that the printed graph refers to."""
    odd: list[Any] = []
    for node in graph.nodes:
        statement(node, odd)
    for output in graph.outputs:
        shown(output, odd)
    settings = SimpleNamespace(device=device, **{d.name: d for d in dtypes.ALL})
    return {"ops": Kernels(), "tapejit": settings, **{f"c{i}": x for i, x in enumerate(odd)}}
