"""The graph of a segment: what its entries compute, as values that are each defined once.

A trace writes into memory and looks at it through views. A graph has no memory: a write makes a new value of the whole memory,
a view that is read after a write is taken again from the value that is current, and what memory from outside holds at the end
is written back then. So passes and generators may reorder, merge and drop nodes by looking at nothing but names. Each value has
the form (shape, dtype, strides, device) that it had in the recording.

`functional.py` makes graphs, `passes.py` makes better ones of them, `interpret.py` runs them. `str(graph)` is Python that runs
as well.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import numpy as np

from ...eager.arrays import dtypes
from ...eager.arrays.devices import device
from ...eager.core.shape_inference import Spec, infer
from ...eager.core.op import Op
from ...eager.arrays.deferred import Pending
from ..trace.trace import Number

Form = type[Pending]
Operand = Any  # str, the name of a value | Number, which each call brings | Constant, which is what it was
Chain = tuple[tuple[Op, dict[str, Any], int | None], ...]  # view ops, one after the other; of several results the index


class GraphError(Exception):
    """A graph that is not well formed, or entries that have none."""


@dataclass(frozen=True)
class Input:
    """An array from outside the segment."""

    name: str
    slot: int


@dataclass(frozen=True, eq=False)
class Node:
    """One op. Where it writes into its operands (`op.mutates`), its results are what these hold afterwards."""

    op: Op
    operands: tuple[Operand, ...]
    attrs: dict[str, Any]
    results: tuple[str, ...]
    several: bool  # it makes a tuple, if only of one
    line: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "_values", [x for x in self.operands if isinstance(x, str)])  # asked for many times

    def values(self) -> list[str]:
        """The names of the values that it reads."""
        return self._values[:]  # type: ignore[attr-defined, no-any-return]


@dataclass(frozen=True)
class Output:
    """A slot that is wanted, shown by a chain of views on memory: that of an input at the end, or what a node made."""

    slot: int
    value: str
    chain: Chain


@dataclass(frozen=True)
class WriteBack:
    """What the memory of an input holds at the end."""

    input: Input
    value: str


@dataclass(frozen=True)
class Graph:
    """See the module's text."""

    inputs: tuple[Input, ...]
    numbers: tuple[Number, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    write_backs: tuple[WriteBack, ...]
    forms: dict[str, Form]  # of each value; a name has the same form in all graphs that passes make of one

    def owned(self) -> set[str]:
        """Values of nodes that become memory somebody can see: no two of them may be one, nor show another's memory."""
        outside = {x.name for x in self.inputs}
        return {w.value for w in self.write_backs} | {o.value for o in self.outputs if o.value not in outside}

    def __str__(self) -> str:
        return text(self)


# ---- verifying

SMALL = 1 << 16  # elements; kernels are run on zeros to learn what they make, which is not worth it for more
_checked: WeakSet[Node] = WeakSet()  # nodes whose results are known to be of the forms they are said to be of


def verified(graph: Graph) -> Graph:
    verify(graph)
    return graph


def verify(graph: Graph) -> None:
    """Raise GraphError unless all is defined once and before its use, and ops make what they are said to make."""
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
    """Whether a node's results are what its op makes of its operands, where that can be told."""
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
        except Exception:  # it looks at values, and refuses zeros
            return
    if found != said:
        raise wrong(node, f"makes {', '.join(map(str, found))}, and is said to make {', '.join(map(str, said))}")


@lru_cache(4096)  # how many forms there are
def spec_of(form: Form) -> Spec:
    return Spec(form.shape, dtypes.from_numpy(form.dtype))


def as_spec(x: Operand, forms: dict[str, Form]) -> Any:
    """What `infer` is to be told about an operand."""
    return spec_of(forms[x]) if isinstance(x, str) else x.type(1) if isinstance(x, Number) else x.value


def check_ends(graph: Graph, defined: set[str]) -> None:
    """Whether what is written back and handed out are defined, and memories of their own."""
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
    """A function of the inputs and numbers that writes back and returns the outputs."""
    return "".join(row + "\n" for row, _ in rows(graph))


def rows(graph: Graph) -> list[tuple[str, Node | None]]:
    """The lines of that function, with the node that a line is."""
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
    """As in `float32[3, 4]`; strides where they are not those of contiguous memory."""
    name = dtypes.from_numpy(form.dtype).name
    odd = "" if form.flags.c_contiguous else f" strides {tuple(s // form.itemsize for s in form.strides)}"
    return f"{name}{list(form.shape)}{odd}" + ("" if form.on_cpu else f" on {form.where}")


def literal(x: Any, odd: list[Any]) -> str:
    """Python for a setting; what has none gets a name of its own and is put into `odd`."""
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
