"""Indices that come from memory: they are looked at before anything is done with them.

An op that picks by indices gets copies of them, in which negative ones are counted from the end where that is meant. The loops
that copy also find out whether one is out of bounds. Then the program stops before it has read or written there, and the plain
program runs instead, which raises what eager execution raises. Indices that depend on nothing but inputs are looked at first
of all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..eager.op import PRIMITIVES, Op
from ..tracer.functional import contiguous
from ..tracer.graph import Form, Node
from .expand import CPU
from .expr import Expr, Exprs
from .lower import lowerable, scatters

WITHIN = Op("within", "index")  # of indices: the same, counted from 0, and whether one of them is out of bounds
ANY = PRIMITIVES["any"]
BOOL, INT64 = np.dtype(np.bool_), np.dtype(np.int64)
Use = tuple[int, int, bool]  # which operand is an index, into how many, and whether negative ones count from the end


def uses(node: Node, forms: dict[str, Form]) -> list[Use]:
    """The operands of a node that are indices."""
    name, attrs = node.op.name, node.attrs
    if not lowerable(node, forms) and not scatters(node, forms):
        return []  # it looks itself
    if name == "embedding":
        return [(1, forms[node.operands[0]].shape[0], False)]
    if name == "row_sum":
        return [(1, attrs["rows"], False)]
    if name in ("gather", "scatter") and forms[node.operands[0]].shape:
        return [(1, forms[node.operands[0]].shape[attrs["dim"]], False)]
    if name == "scatter_sum" and attrs["shape"]:
        return [(1, attrs["shape"][attrs["dim"]], False)]
    if name in ("index", "index_sum"):
        shape = forms[node.operands[0]].shape if name == "index" else attrs["shape"]
        return [(1 + i, shape[d], not attrs.get("strict", False)) for i, d in enumerate(attrs["dims"])]
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
        self.known: dict[tuple[str, int, bool], str] = {}

    def nodes(self) -> list[Node]:
        later: list[Node] = []
        for node in self.given:
            operands = list(node.operands)
            for place, size, wraps in uses(node, self.forms):
                x = operands[place]
                if isinstance(x, str) and self.forms[x].size and self.forms[x].dtype.kind in "iu":
                    operands[place] = self.checked(x, size, wraps, node.line, later)
            later.append(replace(node, operands=tuple(operands)) if tuple(operands) != node.operands else node)
        return [*self.first.values(), *self.checks, *[n for n in later if id(n) not in self.first]]

    def checked(self, x: str, size: int, wraps: bool, line: str, later: list[Node]) -> str:
        """The indices, looked at."""
        if self.inside(x, size):
            return x
        key = (x, size, wraps)
        if key not in self.known:
            good = self.added(self.forms, f"{x}_within", contiguous(self.forms[x].shape, INT64, CPU))
            bad = self.added(self.forms, f"{x}_outside", contiguous((), BOOL, CPU))
            node = Node(WITHIN, (x,), {"size": size, "wraps": wraps}, (good, bad), True, line)
            if self.is_early(x):
                self.bring_forward(x)
                self.checks.append(node)
            else:
                later.append(node)
            self.known[key] = good
        return self.known[key]

    def inside(self, x: str, size: int) -> bool:
        """Whether indices are known to be right."""
        node = self.maker.get(x)
        if node is None or node.op.name != "constant":
            return False
        values = node.attrs["array"]
        return bool(values.min() >= 0 and values.max() < size)

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
    """An index as it is used, and whether it is out of bounds."""
    found = exprs.cast(x, "int64")
    zero, size = exprs.const(0, "int64"), exprs.const(attrs["size"], "int64")
    if attrs["wraps"]:
        found = exprs.where(exprs.op("lt", "bool", found, zero), exprs.op("add", "int64", found, size), found)
    below, above = exprs.op("lt", "bool", found, zero), exprs.op("ge", "bool", found, size)
    return found, exprs.op("bitwise_or", "bool", below, above)


def any_of(node: Node) -> Node:
    """The reduction that a check does."""
    return replace(node, op=ANY, attrs={"dims": (), "keepdim": False}, results=node.results[1:], several=False)
