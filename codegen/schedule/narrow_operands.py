"""Products of halves that were made longer read the halves themselves: they are converted as they are read anyway.

Many composites compute in float32 and round once, so their products and convolutions are of casts. A cast to something longer
changes no value, nor does it matter whether a view is taken before or after it. So operands become views of the halves, and
sums stay what they are, float32: there is no longer copy in memory, and kernels may multiply halves (`llvm/contraction.py`).
Halves from outside that were overwritten between the cast and the product are no longer what the product wants.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...eager.ops.shape.views import CLONE
from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, Node
from ..prepare.decompose import CPU
from .prologue_fusion import widens
from ..prepare.canonicalize import Prepared, added

CERTAIN = ("matmul", "conv", "conv_input_grad")  # eager execution would round sums: it is asked for these if there are none


def narrowed(work: Prepared) -> Prepared:
    """The graph with products of halves in place of those of longer copies."""
    narrow = Narrow(work.forms, {value: back.input.name for back, value in work.write_backs})
    for node in work.nodes:
        narrow.add(node)
    read = {value for _, value in (*work.outputs, *work.write_backs)}
    nodes: list[Node] = []
    for node in reversed(narrow.nodes):  # without what only products have read
        if not (moves(node) or widens(node, work.forms)) or not read.isdisjoint(node.results):
            nodes.append(node)
            read.update(node.values())
    return replace(work, nodes=nodes[::-1])


class Narrow:
    """Nodes one after the other, with views of halves where products want them."""

    def __init__(self, forms: dict[str, Form], backs: dict[str, str]) -> None:
        self.forms = forms
        self.backs = backs  # of values: the input that they are written to
        self.written: set[str] = set()  # inputs that hold something else by now
        self.nodes: list[Node] = []
        self.maker: dict[str, Node] = {}
        self.shorter: dict[str, str] = {}  # of values that halves were made longer for, or views of those: the same as halves

    def add(self, node: Node) -> None:
        if node.op.name in CERTAIN and all(isinstance(x, str) and self.forms[x].ndim > 1 for x in node.operands):
            node = self.product(node)
        self.nodes.append(node)
        self.maker.update(dict.fromkeys(node.results, node))
        self.written |= {self.backs[x] for x in node.results if x in self.backs}

    def product(self, node: Node) -> Node:
        sources = {self.source(x) for x in node.values()}
        if None in sources or len(sources) > 1:
            return node
        return replace(node, operands=tuple(self.as_half(x) for x in node.values()))

    def source(self, x: str) -> np.dtype[Any] | None:
        """The dtype of the halves that an operand was made of; None if it was not."""
        node = self.maker.get(x)
        while node is not None and moves(node):
            node = self.maker.get(node.values()[0])
        if node is None or not widens(node, self.forms) or self.outside(node.values()[0]) in self.written:
            return None
        return self.forms[node.values()[0]].dtype

    def outside(self, x: str) -> str:
        """The input that a value is, or is a view of; or the value itself."""
        while x in self.maker and moves(self.maker[x]):
            x = self.maker[x].values()[0]
        return x

    def as_half(self, x: str) -> str:
        """An operand as halves, for which views may have to be taken of these."""
        node = self.maker[x]
        if widens(node, self.forms):
            return node.values()[0]
        if node.op is CLONE:
            return self.as_half(node.values()[0])
        if x not in self.shorter:
            source = self.as_half(node.values()[0])
            form = contiguous(self.forms[x].shape, self.forms[source].dtype, CPU)
            self.shorter[x] = added(self.forms, f"{x}_half", form)
            self.nodes.append(replace(node, operands=(source, *node.operands[1:]), results=(self.shorter[x],)))
        return self.shorter[x]


def moves(node: Node) -> bool:
    """Whether a node only says where the elements of one value are."""
    return (node.op.view or node.op is CLONE) and len(node.values()) == len(node.results) == 1 and not node.op.mutates
