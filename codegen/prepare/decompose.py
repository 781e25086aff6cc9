"""From the ops of a recording to primitive ones: a composite is replaced by its meaning.

An op's `expand` is called with tensors that have no values, under a handler that notes the ops it applies. Numbers that each
call brings become tensors without dims there, so that arithmetic with them is noted too. What cannot be expanded (its Python
looks at a value) stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...eager.arrays import dtypes
from ...eager.arrays.devices import device
from ...eager.core.shape_inference import Spec, infer
from ...eager.core.op import STORE, Op
from ...eager.ops.pointwise import CAST, cast
from ...eager.arrays.deferred import Pending, form
from ...eager.core.tape.node import State, local
from ...eager.core.tensor import Tensor, wrap
from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, Graph, Node, Operand
from ...tracer.graph.interpreter import CONSTANT
from ...tracer.trace.trace import Constant, Number
from .meanings import MEANINGS, meaning_of

NUMBER = Op("number", "create")  # a number that each call brings, as a tensor without dims
CPU = device("cpu")
ADDED = {"row_sum", "scatter_sum", "index_sum"}  # what they add up is not to be rounded after each element


class OpaqueError(Exception):
    """An op that cannot be expanded."""


def nothing(node: Node) -> bool:
    return False


def expanded(graph: Graph, kept: Callable[[Node], bool], in_halves: Callable[[Node], bool] = nothing) -> Graph:
    """The graph in primitive ops; nodes that are to be kept stay. Halves are converted for these, if they have no kernels in
    halves."""
    nodes: list[Node] = []
    sketch = Sketch(dict(graph.forms), kept)
    for node in graph.nodes:
        if kept(node) or node.op.name in ADDED:
            nodes += [node] if in_halves(node) else sketch.in_single(node)
            continue
        if meaning_of(node.op) is None:
            nodes.append(node)
            continue
        try:
            nodes += sketch.of(node)
        except OpaqueError:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), forms=sketch.forms)


class Sketch:
    """A handler of `apply` that notes ops as nodes."""

    def __init__(self, forms: dict[str, Form], kept: Callable[[Node], bool]) -> None:
        self.forms = forms
        self.kept = kept
        self.count = 0
        self.names: list[str] = []  # by slot
        self.templates: dict[Any, tuple[Node, list[Node]] | None] = {}  # of composites on operands of the same forms
        self.nodes: list[Node] = []
        self.line = ""

    def of(self, node: Node) -> list[Node]:
        """The nodes that a composite stands for, the last of which make its results."""
        settings = tuple((name, type(x), hashed(x)) for name, x in node.attrs.items())
        key = (node.op, settings, *[self.kind_of(x) for x in (*node.operands, *node.results)])
        if key not in self.templates:
            self.templates[key] = None
            self.templates[key] = (node, self.first(node))
        known = self.templates[key]
        if known is None:
            raise OpaqueError("it was tried before")
        return known[1] if known[0] is node else self.again(node, *known)

    def kind_of(self, x: Operand) -> Any:
        return self.forms[x] if isinstance(x, str) else x.key()

    def again(self, node: Node, model: Node, nodes: list[Node]) -> list[Node]:
        """What another node of the same op on operands of the same forms stands for."""
        pairs = zip((*model.operands, *model.results), (*node.operands, *node.results), strict=True)
        names: dict[Any, Operand] = {}
        for old, new in pairs:
            names[old if isinstance(old, str) else id(old)] = new
        if len(names) != len(node.operands) + len(node.results):
            return self.first(node)  # an operand stands twice: once here, and not there
        found = []
        for part in nodes:
            for old in part.results:
                if old not in names:
                    names[old] = f"e{self.count}"
                    self.count += 1
                    self.forms[names[old]] = self.forms[old]
            operands = tuple(names.get(x, x) if isinstance(x, str) else names.get(id(x), x) for x in part.operands)
            found.append(Node(part.op, operands, part.attrs, tuple(names[x] for x in part.results), part.several, node.line))
        return found

    def first(self, node: Node) -> list[Node]:
        self.nodes, self.names, self.line = [], [], node.line
        self.viewed: set[int] = set()  # slots that views were taken of
        inputs = tuple(self.operand(x, node) for x in node.operands)
        state = local.state
        before, local.state = state, State()
        local.state.grad = False
        local.state.handler = self
        try:
            single = node.op.upcast or node.op.mutates  # halves are computed in float32 and rounded once
            if single:
                inputs = tuple(cast(x, dtypes.float32) if is_half(x) else x for x in inputs)
            found = meaning_of(node.op)(*inputs, **node.attrs)  # type: ignore[misc]
            if node.op.mutates:
                found = tuple(inputs[i] for i in node.op.mutates if isinstance(inputs[i], Tensor))
            found = self.rounded(found, node) if single else found
        except Exception as reason:
            raise OpaqueError(str(reason)) from reason
        finally:
            local.state = before
        results = found if isinstance(found, tuple) else (found,)
        if len(results) != len(node.results):
            raise OpaqueError("it makes another number of results")
        return self.nodes + [self.last(t, name) for t, name in zip(results, node.results, strict=True)]

    def rounded(self, found: Any, node: Node) -> Any:
        """Results in float32 as the halves that they are to be."""
        results = found if isinstance(found, tuple) else (found,)
        kinds = [self.forms[name].dtype for name in node.results]
        short = [cast(t, dtypes.from_numpy(k)) if k in dtypes.HALF else t for t, k in zip(results, kinds, strict=False)]
        return tuple(short) if isinstance(found, tuple) else short[0]

    def last(self, t: Tensor, name: str) -> Node:
        """The node that gives a result its name."""
        if t._array.shape != self.forms[name].shape or t._array.dtype != self.forms[name].dtype:
            raise OpaqueError("it makes another form")
        return Node(SAME, (self.named(t),), {}, (name,), False, self.line)

    def in_single(self, node: Node) -> list[Node]:
        """An op with a kernel of its own is done in single precision: halves are converted before and after."""
        self.nodes, self.names, self.line = [], [], node.line
        operands = tuple(self.converted(x) if isinstance(x, str) else x for x in node.operands)
        results, after = [], []
        for name in node.results:
            form = self.forms[name]
            if form.dtype in dtypes.HALF:
                single = f"e{self.count}"
                self.count += 1
                self.forms[single] = contiguous(form.shape, np.dtype(np.float32), CPU)
                attrs = {"dtype": dtypes.from_numpy(form.dtype), "source": dtypes.float32}
                after.append(Node(CAST, (single,), attrs, (name,), False, node.line))
                name = single
            results.append(name)
        return [*self.nodes, replace(node, operands=operands, results=tuple(results)), *after]

    def converted(self, x: str) -> str:
        form = self.forms[x]
        if form.dtype not in dtypes.HALF:
            return x
        attrs = {"dtype": dtypes.float32, "source": dtypes.from_numpy(form.dtype)}
        return self.named(self.made(CAST, (x,), attrs, [contiguous(form.shape, np.dtype(np.float32), CPU)])[0])

    def operand(self, x: Operand, node: Node) -> Any:
        if isinstance(x, str):
            return self.tensor(x)
        if isinstance(x, Number):
            return self.number(x)
        return x.value

    def number(self, x: Number) -> Tensor:
        kind = np.dtype(np.float64 if x.type is float else np.int64 if x.type is int else np.bool_)
        return self.made(NUMBER, (x,), {}, [form((), kind, (), CPU)])[0]

    def tensor(self, name: str) -> Tensor:
        self.names.append(name)
        known = self.forms[name]
        return wrap(contiguous(known.shape, known.dtype, known.where)(self, len(self.names) - 1))

    def named(self, t: Any) -> str:
        array = t._array
        if isinstance(array, Pending) and array.frame is self:
            return self.names[array.slot]
        if isinstance(array, Pending):
            raise OpaqueError("a tensor of its own")
        if array.size != 1:
            return self.named(self.made(CONSTANT, (), {"array": array}, [contiguous(array.shape, array.dtype, CPU)])[0])
        value = array.reshape(()).item()
        attrs = {"shape": array.shape, "dtype": dtypes.from_numpy(array.dtype), "device": CPU}
        from ...eager.ops.create import FULL

        return self.named(self.made(FULL, (Constant(value),), attrs, [contiguous(array.shape, array.dtype, CPU)])[0])

    def made(self, op: Op, operands: tuple[Operand, ...], attrs: dict[str, Any], forms: list[Form]) -> list[Tensor]:
        names = [f"e{self.count + i}" for i in range(len(forms))]
        self.count += len(forms)
        self.forms.update(zip(names, forms, strict=True))
        self.nodes.append(Node(op, operands, attrs, tuple(names), len(names) > 1, self.line))
        return [self.tensor(n) for n in names]

    def read(self, pending: Pending) -> None:
        raise OpaqueError("it looks at a value")

    def __call__(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        meaning = meaning_of(op) if op.kind == "composite" or op.mutates or op.name in MEANINGS else None
        if meaning is not None and not self.kept(self.as_node(op, inputs, attrs)):
            result = meaning(*inputs, **attrs)
        elif op.mutates or op.data_dependent:
            raise OpaqueError(f"{op.name} has no meaning in other ops")
        elif op is STORE:
            result = inputs[0]
        else:
            result = self.noted(op, inputs, attrs)
        return result if out is None else self.written(out, result)

    def as_node(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Node:
        operands = tuple(self.named(x) if isinstance(x, Tensor) else Constant(x) for x in inputs)
        return Node(op, operands, attrs, (), False, self.line)

    def noted(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        operands = self.as_node(op, inputs, attrs).operands
        specs = self.specs(op, operands, attrs)
        made = self.made(op, operands, attrs, [contiguous(s.shape, s.dtype.numpy, CPU) for s in specs])
        if op.view and isinstance(inputs[0]._array, Pending):
            self.viewed.add(inputs[0]._array.slot)
        return tuple(made) if len(made) > 1 or op.name in ("split", "unbind") else made[0]

    def specs(self, op: Op, operands: tuple[Operand, ...], attrs: dict[str, Any]) -> tuple[Spec, ...]:
        known = [
            Spec(self.forms[x].shape, dtypes.from_numpy(self.forms[x].dtype)) if isinstance(x, str) else x.value
            for x in operands
        ]
        first: Any = known[0] if known else None
        if op.name in ("view", "full"):
            return (Spec(attrs["shape"], first.dtype if op.name == "view" else attrs["dtype"]),)
        return infer(op, tuple(known), attrs)

    def written(self, out: Tensor, value: Tensor) -> Tensor:
        """An in-place op: the tensor is another value from here on."""
        if out._base is not None or out._array.slot in self.viewed:
            raise OpaqueError("it writes through views")
        if value._array.shape != out._array.shape:
            value = value.expand(out._array.shape)
        if value._array.dtype != out._array.dtype:
            value = cast(value, out.dtype)
        out._array = value._array
        return out


def hashed(x: Any) -> Any:
    """A setting as part of a key."""
    try:
        hash(x)
    except TypeError:
        return repr(x)
    return x


def is_half(x: Any) -> bool:
    return isinstance(x, Tensor) and x._array.dtype in dtypes.HALF


SAME = Op("same", "movement")  # another name of a value
