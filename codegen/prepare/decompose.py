"""Decompose composites: replace each by the primitive ops of its definition.

An op's `expand` is called with tensors that have no values, under a handler that notes the ops it applies as nodes. Runtime
scalars become tensors without dims there, so that arithmetic with them is noted too. An op whose definition looks at a value
cannot be decomposed, and stays an opaque op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...eager.arrays import dtypes
from ...eager.arrays.deferred import DeferredArray, form
from ...eager.arrays.devices import device
from ...eager.core.cast import CAST, cast
from ...eager.core.dispatch import STORE
from ...eager.core.op import Op
from ...eager.core.shape_inference import Spec, infer
from ...eager.core.tape.node import State, local
from ...eager.core.tensor import Tensor, wrap
from ...eager.ops.create import FULL, arange
from ...eager.ops.pointwise import where
from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.interpreter import CONSTANT
from ...tracer.graph.ir import Form, Graph, Node, Operand
from ...tracer.trace.trace import Constant, Number

NUMBER = Op("number", "create")  # a runtime scalar as a tensor without dims
CPU = device("cpu")
SCATTER_ADDS = {"row_sum", "scatter_sum", "index_sum"}  # they must not round after each addition


class OpaqueError(Exception):
    """An op cannot be decomposed."""


def decompose(graph: Graph, kept: Callable[[Node], bool], in_halves: Callable[[Node], bool] | None = None) -> Graph:
    """The graph in primitive ops. Nodes for which `kept` is true stay; unless `in_halves` is true for them too, their 16-bit
    floats are converted to float32 and back."""
    nodes: list[Node] = []
    sketch = Decomposer(dict(graph.forms), kept)
    for node in graph.nodes:
        if kept(node) or node.op.name in SCATTER_ADDS:
            nodes += [node] if in_halves is not None and in_halves(node) else sketch.in_single(node)
            continue
        if decomposition_of(node.op) is None:
            nodes.append(node)
            continue
        try:
            nodes += sketch.of(node)
        except OpaqueError:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), forms=sketch.forms)


class Decomposer:
    """A handler of `apply` that notes ops as nodes. Composites on operands of equal forms are expanded once."""

    def __init__(self, forms: dict[str, Form], kept: Callable[[Node], bool]) -> None:
        self.forms = forms
        self.kept = kept
        self.count = 0
        self.names: list[str] = []  # by slot
        self.templates: dict[Any, tuple[Node, list[Node]] | None] = {}  # expansions, by op, attributes and forms
        self.nodes: list[Node] = []
        self.line = ""

    def of(self, node: Node) -> list[Node]:
        """The nodes of a composite's definition, the last of which make its results."""
        settings = tuple((name, type(x), hashable(x)) for name, x in node.attrs.items())
        key = (node.op, settings, *[self.kind_of(x) for x in (*node.operands, *node.results)])
        if key not in self.templates:
            self.templates[key] = None
            self.templates[key] = (node, self.first(node))
        known = self.templates[key]
        if known is None:
            raise OpaqueError("it could not be decomposed before")
        return known[1] if known[0] is node else self.again(node, *known)

    def kind_of(self, x: Operand) -> Any:
        return self.forms[x] if isinstance(x, str) else x.key()

    def again(self, node: Node, model: Node, nodes: list[Node]) -> list[Node]:
        """The expansion of a node, renamed from that of an equal one."""
        pairs = zip((*model.operands, *model.results), (*node.operands, *node.results), strict=True)
        names: dict[Any, Operand] = {}
        for old, new in pairs:
            names[old if isinstance(old, str) else id(old)] = new
        if len(names) != len(node.operands) + len(node.results):
            return self.first(node)  # the same value is two operands of one node, and not of the other
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
        self.viewed: set[int] = set()  # slots that have views
        inputs = tuple(self.operand(x, node) for x in node.operands)
        state = local.state
        before, local.state = state, State()
        local.state.grad = False
        local.state.handler = self
        try:
            single = node.op.upcast or node.op.mutates  # 16-bit floats are computed in float32 and rounded once
            if single:
                inputs = tuple(cast(x, dtypes.float32) if is_half(x) else x for x in inputs)
            found = decomposition_of(node.op)(*inputs, **node.attrs)  # type: ignore[misc]
            if node.op.mutates:
                found = tuple(inputs[i] for i in node.op.mutates if isinstance(inputs[i], Tensor))
            found = self.rounded(found, node) if single else found
        except Exception as reason:
            raise OpaqueError(str(reason)) from reason
        finally:
            local.state = before
        results = found if isinstance(found, tuple) else (found,)
        if len(results) != len(node.results):
            raise OpaqueError("its definition gives another number of results")
        return self.nodes + [self.last(t, name) for t, name in zip(results, node.results, strict=True)]

    def rounded(self, found: Any, node: Node) -> Any:
        """Round results in float32 to the 16-bit floats that the op returns."""
        results = found if isinstance(found, tuple) else (found,)
        kinds = [self.forms[name].dtype for name in node.results]
        short = [cast(t, dtypes.from_numpy(k)) if k in dtypes.HALF else t for t, k in zip(results, kinds, strict=False)]
        return tuple(short) if isinstance(found, tuple) else short[0]

    def last(self, t: Tensor, name: str) -> Node:
        """The node that gives a result its name."""
        if t.tj_array.shape != self.forms[name].shape or t.tj_array.dtype != self.forms[name].dtype:
            raise OpaqueError("its definition gives another shape or dtype")
        return Node(SAME, (self.named(t),), {}, (name,), False, self.line)

    def in_single(self, node: Node) -> list[Node]:
        """Run an op's own kernel in float32: convert 16-bit floats before and after it."""
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
        array = t.tj_array
        if isinstance(array, DeferredArray) and array.frame is self:
            return self.names[array.slot]
        if isinstance(array, DeferredArray):
            raise OpaqueError("it uses a tensor that is not among its operands")
        if array.size != 1:
            return self.named(self.made(CONSTANT, (), {"array": array}, [contiguous(array.shape, array.dtype, CPU)])[0])
        value = array.reshape(()).item()
        attrs = {"shape": array.shape, "dtype": dtypes.from_numpy(array.dtype), "device": CPU}
        return self.named(self.made(FULL, (Constant(value),), attrs, [contiguous(array.shape, array.dtype, CPU)])[0])

    def made(self, op: Op, operands: tuple[Operand, ...], attrs: dict[str, Any], forms: list[Form]) -> list[Tensor]:
        names = [f"e{self.count + i}" for i in range(len(forms))]
        self.count += len(forms)
        self.forms.update(zip(names, forms, strict=True))
        self.nodes.append(Node(op, operands, attrs, tuple(names), len(names) > 1, self.line))
        return [self.tensor(n) for n in names]

    def read(self, pending: DeferredArray) -> None:
        raise OpaqueError("its definition looks at a value")

    def __call__(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        decomposition = decomposition_of(op) if op.kind == "composite" or op.mutates or op.name in DECOMPOSITIONS else None
        if decomposition is not None and not self.kept(self.as_node(op, inputs, attrs)):
            result = decomposition(*inputs, **attrs)
        elif op.mutates or op.data_dependent:
            raise OpaqueError(f"{op.name} has no decomposition")
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
        if op.view and isinstance(inputs[0].tj_array, DeferredArray):
            self.viewed.add(inputs[0].tj_array.slot)
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
        """Functionalise a write: the tensor stands for another value from here on."""
        if out.tj_base is not None or out.tj_array.slot in self.viewed:
            raise OpaqueError("it writes through views")
        if value.tj_array.shape != out.tj_array.shape:
            value = value.expand(out.tj_array.shape)
        if value.tj_array.dtype != out.tj_array.dtype:
            value = cast(value, out.dtype)
        out.tj_array = value.tj_array
        return out


def hashable(x: Any) -> Any:
    """An attribute as part of a key."""
    try:
        hash(x)
    except TypeError:
        return repr(x)
    return x


def is_half(x: Any) -> bool:
    return isinstance(x, Tensor) and x.tj_array.dtype in dtypes.HALF


SAME = Op("same", "movement")  # an alias of a value


# ---- decompositions of ops that eager execution only has a kernel for


def index_of_extreme(reduce: str) -> Callable[..., Tensor]:
    """Decomposition of argmax (`amax`) or argmin (`amin`): the index of the first extreme element, where NaN is extreme."""

    def decomposition(x: Tensor, *, dims: tuple[int, ...], keepdim: bool) -> Tensor:
        shape = x.tj_array.shape
        if len(dims) != 1 or not shape:
            flat = decomposition(x.reshape(-1), dims=(0,), keepdim=False)
            return flat.reshape((1,) * len(shape) if keepdim else ())
        (dim,) = dims
        extreme = getattr(x, reduce)(dim, keepdim=True)
        here = (x == extreme) | (x != x)
        places = arange(shape[dim]).reshape((-1,) + (1,) * (len(shape) - 1 - dim))
        return where(here, places, shape[dim]).amin(dim, keepdim=keepdim)  # type: ignore[no-any-return]

    return decomposition


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {"argmax": index_of_extreme("amax"), "argmin": index_of_extreme("amin")}


def decomposition_of(op: Op) -> Callable[..., Any] | None:
    """The function that computes an op by other ops; None if there is none."""
    return op.expand or DECOMPOSITIONS.get(op.name)
