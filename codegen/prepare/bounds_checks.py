"""Indices that come from memory, and integers that are divided by: they are looked at before anything is done with them.

An op that picks by indices gets copies of them, in which negative ones are counted from the end where that is meant. The loops
that copy also find out whether one is out of bounds, or a divisor 0. Then the program stops before it has read or written
there, and the plain program runs instead, which raises what eager execution raises. What depends on nothing but inputs is
looked at first of all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...eager.core.op import PRIMITIVES, Op
from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, Node
from ...tracer.trace.trace import Number
from .decompose import CPU, NUMBER
from ..ir.expr import Expr, Exprs
from ..lowering.op_lowering import DIVISIONS, lowerable, scatters

WITHIN = Op("within", "index")  # of indices: the same, counted from 0, and whether one of them is out of bounds
ANY = PRIMITIVES["any"]
BOOL, INT64 = np.dtype(np.bool_), np.dtype(np.int64)
NATURAL = 1 << 62  # as a size: any number that is not negative


@dataclass(frozen=True)
class Use:
    """An operand that is looked at: it is from 0 to before `size`, and negative ones may count from the end (`wraps`); with a
    size of 0 it is a divisor, and anything but 0."""

    place: int
    size: int
    wraps: bool = False


def uses(node: Node, forms: dict[str, Form]) -> list[Use]:
    """The operands of a node that are indices, or must not be 0."""
    name, attrs = node.op.name, node.attrs
    if not lowerable(node, forms) and not scatters(node, forms):
        return []  # it looks itself
    if name in DIVISIONS and forms[node.results[0]].dtype.kind in "iu":
        return [Use(1, 0)]
    if name == "pow" and forms[node.results[0]].dtype.kind in "iu" and not isinstance(node.operands[1], str):
        return [Use(1, NATURAL)]
    if name == "embedding":
        return [Use(1, forms[node.operands[0]].shape[0])]
    if name == "row_sum":
        return [Use(1, attrs["rows"])]
    if name in ("gather", "scatter") and forms[node.operands[0]].shape:
        return [Use(1, forms[node.operands[0]].shape[attrs["dim"]])]
    if name == "scatter_sum" and attrs["shape"]:
        return [Use(1, attrs["shape"][attrs["dim"]])]
    if name in ("index", "index_sum"):
        shape = forms[node.operands[0]].shape if name == "index" else attrs["shape"]
        return [Use(1 + i, shape[d], not attrs.get("strict", False)) for i, d in enumerate(attrs["dims"])]
    return []


def guarded(nodes: list[Node], forms: dict[str, Form], added: Callable[[dict[str, Form], str, Form], str]) -> list[Node]:
    """The nodes, with a look at all indices before they are used."""
    return Guarding(nodes, forms, added).nodes()


class Guarding:
    """Puts checks into a list of nodes."""

    def __init__(self, nodes: list[Node], forms: dict[str, Form], added: Callable[[dict[str, Form], str, Form], str]) -> None:
        self.given = nodes
        self.forms = forms
        self.added = added
        self.maker = {name: node for node in nodes for name in node.results}
        self.early: dict[str, bool] = {}
        self.first: dict[int, Node] = {}  # what the first checks need, by id
        self.checks: list[Node] = []  # that come first of all
        self.known: dict[Any, str] = {}
        self.numbers: dict[int, str] = {}  # by place: numbers that each call brings, as values

    def nodes(self) -> list[Node]:
        later: list[Node] = []
        for node in self.given:
            operands = list(node.operands)
            for use in uses(node, self.forms):
                x = operands[use.place]
                if isinstance(x, Number):
                    x = self.number(x, node.line)
                if isinstance(x, str) and self.forms[x].size and self.forms[x].dtype.kind in "iu":
                    operands[use.place] = self.checked(x, use, node.line, later)
            later.append(replace(node, operands=tuple(operands)) if tuple(operands) != node.operands else node)
        return [*self.first.values(), *self.checks, *[n for n in later if id(n) not in self.first]]

    def number(self, x: Number, line: str) -> str:
        """A number that each call brings, as a value."""
        if x.place not in self.numbers:
            name = self.numbers[x.place] = self.added(self.forms, f"n{x.place}", contiguous((), INT64, CPU))
            self.maker[name] = Node(NUMBER, (x,), {}, (name,), False, line)
        return self.numbers[x.place]

    def checked(self, x: str, use: Use, line: str, later: list[Node]) -> str:
        """A value that was looked at."""
        if self.inside(x, use):
            return x
        key = (x, use.size, use.wraps)
        if key not in self.known:
            form = self.forms[x]
            good = self.added(self.forms, f"{x}_within", contiguous(form.shape, INT64 if use.size else form.dtype, CPU))
            bad = self.added(self.forms, f"{x}_outside", contiguous((), BOOL, CPU))
            node = Node(WITHIN, (x,), {"size": use.size, "wraps": use.wraps}, (good, bad), True, line)
            if self.is_early(x):
                self.bring_forward(x)
                self.checks.append(node)
            else:
                later.append(node)
            self.known[key] = good
        return self.known[key]

    def inside(self, x: str, use: Use) -> bool:
        """Whether what is looked at is known to be right."""
        node = self.maker.get(x)
        if node is None or node.op.name != "constant":
            return False
        values = node.attrs["array"]
        return bool((values != 0).all() if use.size == 0 else values.min() >= 0 and values.max() < use.size)

    def is_early(self, x: str) -> bool:
        """Whether a value depends on inputs by simple ops alone."""
        if x not in self.early:
            node = self.maker.get(x)
            simple = node is None or node.op.kind in ("pointwise", "movement", "create") or node.op.name == "class_index"
            self.early[x] = simple and (node is None or all(map(self.is_early, node.values())))
        return self.early[x]

    def bring_forward(self, x: str) -> None:
        node = self.maker.get(x)
        if node is not None and id(node) not in self.first:
            for y in node.values():
                self.bring_forward(y)
            self.first[id(node)] = node


def looked_at(exprs: Exprs, x: Expr, attrs: dict[str, Any]) -> tuple[Expr, Expr]:
    """An index or a divisor as it is used, and whether it must not be used."""
    if attrs["size"] == 0:
        return x, exprs.op("eq", "bool", x, exprs.const(0, x.dtype))
    found = exprs.cast(x, "int64")
    zero, size = exprs.const(0, "int64"), exprs.const(attrs["size"], "int64")
    if attrs["wraps"]:
        found = exprs.where(exprs.op("lt", "bool", found, zero), exprs.op("add", "int64", found, size), found)
    below, above = exprs.op("lt", "bool", found, zero), exprs.op("ge", "bool", found, size)
    return found, exprs.op("bitwise_or", "bool", below, above)


def any_of(node: Node) -> Node:
    """The reduction that a check does."""
    return replace(node, op=ANY, attrs={"dims": (), "keepdim": False}, results=node.results[1:], several=False)
