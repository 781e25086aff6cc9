"""Operands that products compute while they read them, so that they are never in memory: only for targets that ask for it.

A product reads each element of an operand several times, once for each tile, so what is computed there has to be light. Halves
that are widened are, and are fewer bytes as well. So is a short chain of an input, if nobody else wants it: to put it into
memory would take a kernel of its own. What steps make is better computed once, where it is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...tracer.graph.ir import Form, Node
from ..ir.expr import HEAVY, Expr, walk
from ..lowering.op_lowering import lowerable

MOST_OPS = 8  # of what is computed while it is read
MOST_TIMES = 1024  # that an element is used, if more bytes are read for it than it has
WIDENED = (2, 4)  # bytes of halves, and of what they become


def widens(node: Node, forms: dict[str, Form]) -> bool:
    """Whether a node makes halves longer."""
    if node.op.name != "cast":
        return False
    before, after = forms[node.operands[0]], forms[node.results[0]]
    return after.dtype.kind == "f" and before.dtype.kind in "fV" and (before.itemsize, after.itemsize) == WIDENED


class Chains:
    """What lies between a value and those in memory."""

    def __init__(self, nodes: list[Node], forms: dict[str, Form], fusable: Callable[[Node], bool]) -> None:
        self.forms = forms
        self.fusable = fusable
        self.maker = {name: node for node in nodes for name in node.results}
        self.readers: dict[str, list[Node]] = {}
        for node in nodes:
            for name in node.values():
                self.readers.setdefault(name, []).append(node)

    def end(self, x: str, widening: bool) -> str:
        """The value that an operand is a view of, or that it is widened from."""
        while x in self.maker:
            node = self.maker[x]
            moves = node.op.kind == "movement" and lowerable(node, self.forms)
            if not (moves or (widening and widens(node, self.forms))) or len(node.values()) != 1:
                break
            x = node.values()[0]
        return x

    def ends(self, x: str) -> list[Node]:
        """What reads a value, or a view of it, and is no view itself."""
        found: dict[int, Node] = {}
        for node in self.readers.get(x, []):
            moves = node.op.kind == "movement" and lowerable(node, self.forms) and len(node.values()) == 1
            for reader in [r for name in node.results for r in self.ends(name)] if moves else [node]:
                found[id(reader)] = reader
        return list(found.values())

    def follows_from_input(self, x: str, product: Node) -> bool:
        """Whether a value is a few light ops of one input, and has one reader, a product. One that reads it many times is
        better off with fewer bytes."""
        size, ops, large, stack = self.forms[x].size, 0, set(), [x]
        while stack:
            name = stack.pop()
            node = self.maker.get(name)
            if node is None or node.op.name == "constant":
                if 2 * self.forms[name].size > size:
                    large.add(name)
                continue
            if len(self.readers.get(name, [])) != 1 or node.op.kind not in ("pointwise", "movement") or node.op.name in HEAVY:
                return False
            if not self.fusable(node):
                return False
            ops += node.op.kind == "pointwise"
            stack += node.values()
        if not 0 < ops <= MOST_OPS or len(large) != 1:
            return False
        before, after = self.forms[large.pop()].nbytes, self.forms[x].nbytes
        return before <= after or (before <= 2 * after and pairs_of(product, self.forms) <= MOST_TIMES * size)


def pairs_of(node: Node, forms: dict[str, Form]) -> int:
    """How many pairs of elements meet in a product."""
    first, second, result = (forms[x] for x in (*node.operands, *node.results))
    if node.op.name == "matmul":
        return int(result.size * first.shape[-1])
    if node.op.name == "conv_weight_grad":
        return int(second.size * math.prod(result.shape[1:]))
    outputs = result if node.op.name == "conv" else first
    return int(outputs.size * math.prod(second.shape[1:]))


def light(e: Expr, size: int, forms: dict[str, Form]) -> bool:
    """Whether an operand of so many elements can be computed while it is read."""
    parts = walk([e])
    ops = [x.data[0] for x in parts if x.kind == "op"]
    loads = {x.data[:2] for x in parts if x.kind == "load" and 2 * forms[x.data[0]].size > size}
    return len(ops) <= MOST_OPS and not HEAVY.intersection(ops) and len(loads) <= 1 and not e.totals
