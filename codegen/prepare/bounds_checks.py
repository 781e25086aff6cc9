"""Add bounds checks for indices that come from memory, and zero checks for integer divisors.

An op that reads by indices gets a copy of them in which negative ones are wrapped, if the op allows them. The loop that copies
also sets a flag if one is out of bounds, or if a divisor is 0. The program then stops before it has read or written anything
by it, and the reference program runs instead, which raises what eager execution raises. Checks of values that depend on inputs
alone come first of all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...eager.core.op import PRIMITIVES, Op
from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, Node
from ...tracer.trace.trace import Number
from ..ir.expr import Expr, ExprBuilder
from ..lowering.op_lowering import DIVISIONS, is_lowerable, is_scatter_add
from .decompose import CPU, NUMBER
from .primitive_graph import PrimitiveGraph, add_value

BOUNDS_CHECK = Op("within", "index")  # results: wrapped indices, and a flag that one is out of bounds
ANY = PRIMITIVES["any"]
BOOL, INT64 = np.dtype(np.bool_), np.dtype(np.int64)
NON_NEGATIVE = 1 << 62  # as a size: allows every number that is not negative


@dataclass(frozen=True)
class CheckedOperand:
    """Operand number `place` must lie in [0, size), or in [-size, size) if it `wraps`. A size of 0 marks a divisor: not 0."""

    place: int
    size: int
    wraps: bool = False


def checked_operands(node: Node, forms: dict[str, Form]) -> list[CheckedOperand]:
    """The operands of a node that are indices or divisors."""
    name, attrs = node.op.name, node.attrs
    if not is_lowerable(node, forms) and not is_scatter_add(node, forms):
        return []  # its eager kernel checks them itself
    if name in DIVISIONS and forms[node.results[0]].dtype.kind in "iu":
        return [CheckedOperand(1, 0)]
    if name == "pow" and forms[node.results[0]].dtype.kind in "iu" and not isinstance(node.operands[1], str):
        return [CheckedOperand(1, NON_NEGATIVE)]
    if name == "embedding":
        return [CheckedOperand(1, forms[node.operands[0]].shape[0])]
    if name == "row_sum":
        return [CheckedOperand(1, attrs["rows"])]
    if name in ("gather", "scatter") and forms[node.operands[0]].shape:
        return [CheckedOperand(1, forms[node.operands[0]].shape[attrs["dim"]])]
    if name == "scatter_sum" and attrs["shape"]:
        return [CheckedOperand(1, attrs["shape"][attrs["dim"]])]
    if name in ("index", "index_sum"):
        shape = forms[node.operands[0]].shape if name == "index" else attrs["shape"]
        return [CheckedOperand(1 + i, shape[d], not attrs.get("strict", False)) for i, d in enumerate(attrs["dims"])]
    return []


def add_bounds_checks(work: PrimitiveGraph) -> PrimitiveGraph:
    """Insert a check before each use of indices and divisors that are not known to be valid."""
    checker = BoundsChecker(work.nodes, work.forms)
    nodes = checker.run()
    return replace(work, nodes=nodes) if checker.known else work


class BoundsChecker:
    """Inserts checks into a list of nodes; each value is checked once for each size."""

    def __init__(self, nodes: list[Node], forms: dict[str, Form]) -> None:
        self.nodes = nodes
        self.forms = forms
        self.producer = {name: node for node in nodes for name in node.results}
        self.early: dict[str, bool] = {}
        self.hoisted: dict[int, Node] = {}  # nodes that the first checks depend on, by id
        self.checks: list[Node] = []  # those of values that depend on inputs alone
        self.known: dict[Any, str] = {}  # checked values, by value and bounds
        self.numbers: dict[int, str] = {}  # runtime scalars as values, by place

    def run(self) -> list[Node]:
        later: list[Node] = []
        for node in self.nodes:
            operands = list(node.operands)
            for use in checked_operands(node, self.forms):
                x = operands[use.place]
                if isinstance(x, Number):
                    x = self.number(x, node.line)
                if isinstance(x, str) and self.forms[x].size and self.forms[x].dtype.kind in "iu":
                    operands[use.place] = self.checked(x, use, node.line, later)
            later.append(replace(node, operands=tuple(operands)) if tuple(operands) != node.operands else node)
        return [*self.hoisted.values(), *self.checks, *[n for n in later if id(n) not in self.hoisted]]

    def number(self, x: Number, line: str) -> str:
        """A runtime scalar as a value."""
        if x.place not in self.numbers:
            name = self.numbers[x.place] = add_value(self.forms, f"n{x.place}", contiguous((), INT64, CPU))
            self.producer[name] = Node(NUMBER, (x,), {}, (name,), False, line)
        return self.numbers[x.place]

    def checked(self, x: str, use: CheckedOperand, line: str, later: list[Node]) -> str:
        """The checked copy of a value, or the value itself if it needs no check."""
        if self.is_known_valid(x, use):
            return x
        key = (x, use.size, use.wraps)
        if key not in self.known:
            form = self.forms[x]
            good = add_value(self.forms, f"{x}_within", contiguous(form.shape, INT64 if use.size else form.dtype, CPU))
            bad = add_value(self.forms, f"{x}_outside", contiguous((), BOOL, CPU))
            node = Node(BOUNDS_CHECK, (x,), {"size": use.size, "wraps": use.wraps}, (good, bad), True, line)
            if self.is_early(x):
                self.hoist(x)
                self.checks.append(node)
            else:
                later.append(node)
            self.known[key] = good
        return self.known[key]

    def is_known_valid(self, x: str, use: CheckedOperand) -> bool:
        """True for constants within the bounds."""
        node = self.producer.get(x)
        if node is None or node.op.name != "constant":
            return False
        values = node.attrs["array"]
        return bool((values != 0).all() if use.size == 0 else values.min() >= 0 and values.max() < use.size)

    def is_early(self, x: str) -> bool:
        """True if a value depends on inputs by elementwise ops and views alone, so that it can be checked first."""
        if x not in self.early:
            node = self.producer.get(x)
            simple = node is None or node.op.kind in ("pointwise", "movement", "create") or node.op.name == "class_index"
            self.early[x] = simple and (node is None or all(map(self.is_early, node.values())))
        return self.early[x]

    def hoist(self, x: str) -> None:
        node = self.producer.get(x)
        if node is not None and id(node) not in self.hoisted:
            for y in node.values():
                self.hoist(y)
            self.hoisted[id(node)] = node


def check_exprs(exprs: ExprBuilder, x: Expr, attrs: dict[str, Any]) -> tuple[Expr, Expr]:
    """The value that readers of a checked operand use, and the condition under which it is invalid."""
    if attrs["size"] == 0:
        return x, exprs.op("eq", "bool", x, exprs.const(0, x.dtype))
    found = exprs.cast(x, "int64")
    zero, size = exprs.const(0, "int64"), exprs.const(attrs["size"], "int64")
    if attrs["wraps"]:
        found = exprs.where(exprs.op("lt", "bool", found, zero), exprs.op("add", "int64", found, size), found)
    below, above = exprs.op("lt", "bool", found, zero), exprs.op("ge", "bool", found, size)
    return found, exprs.op("bitwise_or", "bool", below, above)


def any_reduction(node: Node) -> Node:
    """The reduction by which a check sets its flag."""
    return replace(node, op=ANY, attrs={"dims": (), "keepdim": False}, results=node.results[1:], several=False)
