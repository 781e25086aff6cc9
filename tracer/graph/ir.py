"""SSA graph of a segment: the computation of its entries, as values that are each defined once.

A trace writes into memory and reads it through views. A graph has no memory: a write defines a new value of the whole memory, a
view that is read after a write is taken again from the current value, and the final value of memory from outside is written
back at the end. So passes and code generators may reorder, merge and drop nodes by looking at names alone. Each value has the
form (shape, dtype, strides, device) that it had in the recording.

`functionalize.py` builds graphs, `passes.py` optimises them, `interpreter.py` runs them. `str(graph)` is Python source that
runs as well.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import numpy as np

from ...eager.arrays import dtypes
from ...eager.arrays.deferred import DeferredArray
from ...eager.arrays.devices import CPU, device
from ...eager.core.op import Op
from ...eager.core.shape_inference import Spec, infer
from ..trace.trace import Number

Form = type[DeferredArray]
Operand = Any  # str (name of a value) | Number (runtime scalar) | Constant (fixed when recorded)
Chain = tuple[tuple[Op, dict[str, Any], int | None], ...]  # consecutive view ops; for ops with several results, the index


class GraphError(Exception):
    """A graph is malformed, or entries cannot be expressed as a graph."""


@dataclass(frozen=True)
class Input:
    """Array from outside the segment."""

    name: str
    slot: int


@dataclass(frozen=True, eq=False)
class Node:
    """One op. If it writes into its operands (`op.mutates`), its results are their new values."""

    op: Op
    operands: tuple[Operand, ...]
    attrs: dict[str, Any]
    results: tuple[str, ...]
    several: bool  # True if it returns a tuple, even of one
    line: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "_values", [x for x in self.operands if isinstance(x, str)])  # cached: read many times

    def values(self) -> list[str]:
        """Return the names of the values it reads."""
        return self._values[:]  # type: ignore[attr-defined, no-any-return]


@dataclass(frozen=True)
class Output:
    """Requested slot, shown by a chain of views on memory: the final memory of an input, or the result of a node."""

    slot: int
    value: str
    chain: Chain


@dataclass(frozen=True)
class WriteBack:
    """Final value of the memory of an input."""

    input: Input
    value: str


@dataclass(frozen=True)
class Graph:
    """SSA graph: see the module docstring."""

    inputs: tuple[Input, ...]
    numbers: tuple[Number, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    write_backs: tuple[WriteBack, ...]
    forms: dict[str, Form]  # form of each value; a name keeps its form in all graphs that passes derive from one
    where: device = CPU  # the device of its memory, after device placement has set all forms to CPU

    def owned(self) -> set[str]:
        """Return the values of nodes that become externally visible memory: no two may be merged or share memory."""
        outside = {x.name for x in self.inputs}
        return {w.value for w in self.write_backs} | {o.value for o in self.outputs if o.value not in outside}

    def __str__(self) -> str:
        return text(self)


# ---- verifying

SMALL = 1 << 16  # elements; kernels run on zeros to learn their result forms, which is not worth it for more
_checked: WeakSet[Node] = WeakSet()  # nodes whose result forms have been verified


def verified(graph: Graph) -> Graph:
    verify(graph)
    return graph


def verify(graph: Graph) -> None:
    """Raise GraphError unless every value is defined once and before its use, and ops produce the declared forms."""
    defined: set[str] = set()
    numbers = {n.place for n in graph.numbers}
    for x in graph.inputs:
        define(graph, defined, x.name, None)
    for node in graph.nodes:
        names = node.values()
        if not defined.issuperset(names):
            missing = next(name for name in names if name not in defined)
            raise wrong(node, f"reads {missing}, which is not defined before it")
        for operand in node.operands if len(names) < len(node.operands) else ():
            if isinstance(operand, Number) and operand.place not in numbers:
                raise wrong(node, f"reads s{operand.place}, which is no parameter")
        for name in node.results:
            define(graph, defined, name, node)
        if node not in _checked:
            check_forms(graph, node)
            _checked.add(node)
    check_ends(graph, defined)


def wrong(node: Node | None, what: str) -> GraphError:
    return GraphError(f"[compile] {'an input' if node is None else f'{statement(node, [])} ({place(node)})'} {what}")


def define(graph: Graph, defined: set[str], name: str, node: Node | None) -> None:
    if name in defined:
        raise wrong(node, f"defines {name}, which is defined before it")
    if name not in graph.forms:
        raise wrong(node, f"defines {name}, which has no form")
    defined.add(name)


def check_forms(graph: Graph, node: Node) -> None:
    """Raise GraphError unless a node's declared results are what its op produces from its operands, where that can be
    inferred."""
    forms = graph.forms
    said = [spec_of(forms[name]) for name in node.results]
    if node.op.mutates:
        found = [spec_of(forms[x]) for i in node.op.mutates if isinstance(x := node.operands[i], str)]
    else:
        cheap = node.op.infer is not None or node.op.kind in ("pointwise", "reduce")
        if node.op.kind == "random" or not (cheap or sum(forms[n].size for n in (*node.values(), *node.results)) <= SMALL):
            return
        try:
            found = list(infer(node.op, tuple(as_spec(x, forms) for x in node.operands), node.attrs))
        except Exception:  # it reads values, and rejects zeros
            return
    if found != said:
        raise wrong(node, f"makes {', '.join(map(str, found))}, and is said to make {', '.join(map(str, said))}")


@lru_cache(4096)  # bounds the number of forms
def spec_of(form: Form) -> Spec:
    return Spec(form.shape, dtypes.from_numpy(form.dtype))


def as_spec(x: Operand, forms: dict[str, Form]) -> Any:
    """Convert an operand to the argument that `infer` takes."""
    return spec_of(forms[x]) if isinstance(x, str) else x.type(1) if isinstance(x, Number) else x.value


def check_ends(graph: Graph, defined: set[str]) -> None:
    """Raise GraphError unless write-backs and outputs are defined, and each has its own memory."""
    outside = {x.name for x in graph.inputs}
    views = {name for node in graph.nodes if node.op.view for name in node.results}
    memories = {o.value: f"output {o.slot}" for o in graph.outputs if o.value not in outside}
    ends = [*memories.items(), *((w.value, f"what {w.input.name} holds at the end") for w in graph.write_backs)]
    seen: dict[str, str] = {}
    for name, what in ends:
        if name not in defined:
            raise GraphError(f"[compile] {what} is {name}, which is not defined")
        if name in outside or name in views:
            raise GraphError(f"[compile] {what} is {name}, which has no memory of its own")
        if name in seen:
            raise GraphError(f"[compile] {what} and {seen[name]} are both {name}, and have to be two memories")
        seen[name] = what
    inputs = set(graph.inputs)
    for w in graph.write_backs:
        if w.input not in inputs:
            raise GraphError(f"[compile] {w.input.name} is written back, and is not an input")


# ---- printing


def text(graph: Graph) -> str:
    """Print a graph as a function of its inputs and runtime scalars that writes back and returns the outputs."""
    return "".join(row + "\n" for row, _ in rows(graph))


def rows(graph: Graph) -> list[tuple[str, Node | None]]:
    """Return the lines of that function, each with the node it prints."""
    odd: list[Any] = []
    given = [f"    {x.name},  # {described(graph.forms[x.name])}" for x in graph.inputs]
    if graph.numbers:
        names = ", ".join(f"s{n.place}" for n in graph.numbers)
        given.append(f"    {names},  # {', '.join(n.type.__name__ for n in graph.numbers)}")
    found: list[tuple[str, Node | None]] = [
        (x, None) for x in (["def segment(", *given, "):"] if given else ["def segment():"])
    ]
    for node in graph.nodes:
        forms = ", ".join(described(graph.forms[name]) for name in node.results)
        found.append((f"    {statement(node, odd)}  # {forms}  {place(node)}", node))
    found += [(f"    {w.input.name}[...] = {w.value}", None) for w in graph.write_backs]
    outputs = [shown(o, odd) for o in graph.outputs]
    return [*found, (f"    return ({', '.join(outputs)}{',' * (len(outputs) == 1)})", None)]


def statement(node: Node, odd: list[Any]) -> str:
    made = f"({node.results[0]},)" if node.several and len(node.results) == 1 else ", ".join(node.results)
    return f"{made} = {called(node.op, [argument(x, odd) for x in node.operands], node.attrs, odd)}"


def argument(x: Operand, odd: list[Any]) -> str:
    return x if isinstance(x, str) else f"s{x.place}" if isinstance(x, Number) else literal(x.value, odd)


def called(op: Op, given: list[str], attrs: dict[str, Any], odd: list[Any]) -> str:
    return f"ops.{op.name}({', '.join(given + [f'{k}={literal(v, odd)}' for k, v in attrs.items()])})"


def shown(output: Output, odd: list[Any]) -> str:
    found = output.value
    for op, attrs, index in output.chain:
        found = called(op, [found], attrs, odd) + ("" if index is None else f"[{index}]")
    return found


def place(node: Node) -> str:
    return os.path.basename(node.line)


def described(form: Form) -> str:
    """Format a form as in `float32[3, 4]`, with strides unless contiguous."""
    name = dtypes.from_numpy(form.dtype).name
    odd = "" if form.flags.c_contiguous else f" strides {tuple(s // form.itemsize for s in form.strides)}"
    return f"{name}{list(form.shape)}{odd}" + ("" if form.on_cpu else f" on {form.where}")


def literal(x: Any, odd: list[Any]) -> str:
    """Format a setting as Python source; a value without a literal gets a name, and is added to `odd`."""
    kind = type(x)
    if x is None or kind in (bool, int, str):
        return repr(x)
    if kind is float:
        return repr(x) if np.isfinite(x) else f"float('{x}')"
    if x is ...:
        return "..."
    if kind is slice:
        parts = (x.start, x.stop, x.step) if x.step is not None else (x.start, x.stop) if x.start is not None else (x.stop,)
        return f"slice({', '.join(literal(p, odd) for p in parts)})"
    if kind is tuple:
        return f"({', '.join(literal(v, odd) for v in x)}{',' * (len(x) == 1)})"
    if kind is list:
        return f"[{', '.join(literal(v, odd) for v in x)}]"
    if kind is dict:
        return f"{{{', '.join(f'{literal(k, odd)}: {literal(v, odd)}' for k, v in x.items())}}}"
    if isinstance(x, dtypes.dtype):
        return repr(x)
    if isinstance(x, device):
        return f"tapejit.device('{x}')"
    if isinstance(x, Op):
        return f"ops.{x.name}"
    odd.append(x)
    return f"c{len(odd) - 1}"
