"""Prologue fusion: operands that contractions compute while they read them, so that they are never in memory.

A contraction reads each element of an operand several times, once for each tile, so what it computes there has to be light. A
widening cast is, and reads fewer bytes as well. So is a short chain of ops on an input that nothing else reads: storing its
result would take a kernel of its own. What steps make is better computed once, where it is made. On a CPU, operands are
computed while packing, once for each block, and a cost model decides (`codegen/llvm/prologue_cost.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...tracer.graph.ir import Form, Node
from ..ir.expr import EXPENSIVE_OPS, Expr, walk
from ..lowering.op_lowering import is_lowerable

MAX_PROLOGUE_OPS = 8  # ops of an operand that is computed as it is loaded
MAX_REUSE = 1024  # times an element may be read, if its sources have more bytes than it has
WIDENING = (2, 4)  # bytes before and after a widening cast


def is_widening_cast(node: Node, forms: dict[str, Form]) -> bool:
    """True for a cast from a 16-bit float to float32."""
    if node.op.name != "cast":
        return False
    before, after = forms[node.operands[0]], forms[node.results[0]]
    return after.dtype.kind == "f" and before.dtype.kind in "fV" and (before.itemsize, after.itemsize) == WIDENING


class ViewChains:
    """Follows values through views, in both directions."""

    def __init__(self, nodes: list[Node], forms: dict[str, Form], fusable: Callable[[Node], bool]) -> None:
        self.forms = forms
        self.fusable = fusable
        self.producer = {name: node for node in nodes for name in node.results}
        self.readers: dict[str, list[Node]] = {}
        for node in nodes:
            for name in node.values():
                self.readers.setdefault(name, []).append(node)

    def end(self, x: str, widening: bool) -> str:
        """The value that an operand is a view of; also through widening casts, if `widening`."""
        while x in self.producer:
            node = self.producer[x]
            moves = node.op.kind == "movement" and is_lowerable(node, self.forms)
            if not (moves or (widening and is_widening_cast(node, self.forms))) or len(node.values()) != 1:
                break
            x = node.values()[0]
        return x

    def ends(self, x: str) -> list[Node]:
        """The nodes that read a value, directly or through views, and are no views themselves."""
        found: dict[int, Node] = {}
        for node in self.readers.get(x, []):
            moves = node.op.kind == "movement" and is_lowerable(node, self.forms) and len(node.values()) == 1
            for reader in [r for name in node.results for r in self.ends(name)] if moves else [node]:
                found[id(reader)] = reader
        return list(found.values())

    def follows_from_input(self, x: str, matmul: Node) -> bool:
        """True if a value is a few light ops of one input, and a contraction alone reads it. One that reads it many times is
        better off with fewer bytes."""
        size, ops, large, stack = self.forms[x].size, 0, set(), [x]
        while stack:
            name = stack.pop()
            node = self.producer.get(name)
            if node is None or node.op.name == "constant":
                if 2 * self.forms[name].size > size:
                    large.add(name)
                continue
            if (
                len(self.readers.get(name, [])) != 1
                or node.op.kind not in ("pointwise", "movement")
                or node.op.name in EXPENSIVE_OPS
            ):
                return False
            if not self.fusable(node):
                return False
            ops += node.op.kind == "pointwise"
            stack += node.values()
        if not 0 < ops <= MAX_PROLOGUE_OPS or len(large) != 1:
            return False
        before, after = self.forms[large.pop()].nbytes, self.forms[x].nbytes
        return before <= after or (before <= 2 * after and multiply_adds(matmul, self.forms) <= MAX_REUSE * size)


def multiply_adds(node: Node, forms: dict[str, Form]) -> int:
    """The number of multiply-adds of a contraction."""
    first, second, result = (forms[x] for x in (*node.operands, *node.results))
    if node.op.name == "matmul":
        return int(result.size * first.shape[-1])
    if node.op.name == "conv_weight_grad":
        return int(second.size * math.prod(result.shape[1:]))
    outputs = result if node.op.name == "conv" else first
    return int(outputs.size * math.prod(second.shape[1:]))


def is_light(e: Expr, size: int, forms: dict[str, Form]) -> bool:
    """True if an operand of `size` elements is cheap enough to be computed as it is loaded."""
    parts = walk([e])
    ops = [x.data[0] for x in parts if x.kind == "op"]
    loads = {x.data[:2] for x in parts if x.kind == "load" and 2 * forms[x.data[0]].size > size}
    return len(ops) <= MAX_PROLOGUE_OPS and not EXPENSIVE_OPS.intersection(ops) and len(loads) <= 1 and not e.totals
