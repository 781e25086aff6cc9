"""Narrow operands: contractions of widened 16-bit floats read these themselves, and convert as they load.

Many composites compute in float32 and round once, so their matmuls and convolutions read casts. A widening cast changes no
value, and commutes with views. So operands become views of the narrow values; sums stay float32. There is no wide copy in
memory, and kernels may multiply 16-bit floats (`codegen/llvm/gemm/problem.py`). An input that was overwritten between the cast
and the contraction cannot be read there any more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...eager.ops.shape.views import CLONE
from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, Node
from ..prepare.decompose import CPU
from ..prepare.primitive_graph import PrimitiveGraph, add_value
from .prologue_fusion import is_widening_cast

NARROWABLE = (
    "matmul",
    "conv",
    "conv_input_grad",
)  # the others may be opaque ops, and these round sums


def narrow_operands(work: PrimitiveGraph) -> PrimitiveGraph:
    """Make contractions read 16-bit operands in place of widened copies."""
    narrow = OperandNarrower(work.forms, {value: back.input.name for back, value in work.write_backs})
    for node in work.nodes:
        narrow.add(node)
    read = {value for _, value in (*work.outputs, *work.write_backs)}
    nodes: list[Node] = []
    for node in reversed(narrow.nodes):  # drops casts and views that only contractions have read
        if not (is_movement(node) or is_widening_cast(node, work.forms)) or not read.isdisjoint(node.results):
            nodes.append(node)
            read.update(node.values())
    nodes.reverse()
    if len(nodes) == len(work.nodes) and all(a is b for a, b in zip(nodes, work.nodes, strict=True)):
        return work
    return replace(work, nodes=nodes)


class OperandNarrower:
    """Takes nodes in order, and adds narrow views where contractions read them."""

    def __init__(self, forms: dict[str, Form], backs: dict[str, str]) -> None:
        self.forms = forms
        self.backs = backs  # by value: the input it overwrites
        self.written: set[str] = set()  # inputs that have been overwritten
        self.nodes: list[Node] = []
        self.producer: dict[str, Node] = {}
        self.shorter: dict[str, str] = {}  # by widened value or view of one: the same before widening

    def add(self, node: Node) -> None:
        if node.op.name in NARROWABLE and all(isinstance(x, str) and self.forms[x].ndim > 1 for x in node.operands):
            node = self.narrow(node)
        self.nodes.append(node)
        self.producer.update(dict.fromkeys(node.results, node))
        self.written |= {self.backs[x] for x in node.results if x in self.backs}

    def narrow(self, node: Node) -> Node:
        sources = {self.source(x) for x in node.values()}
        if None in sources or len(sources) > 1:
            return node
        return replace(node, operands=tuple(self.as_half(x) for x in node.values()))

    def source(self, x: str) -> np.dtype[Any] | None:
        """The dtype that an operand was widened from; None if it was not."""
        node = self.producer.get(x)
        while node is not None and is_movement(node):
            node = self.producer.get(node.values()[0])
        if node is None or not is_widening_cast(node, self.forms) or self.outside(node.values()[0]) in self.written:
            return None
        return self.forms[node.values()[0]].dtype

    def outside(self, x: str) -> str:
        """The value that a value is a view of."""
        while x in self.producer and is_movement(self.producer[x]):
            x = self.producer[x].values()[0]
        return x

    def as_half(self, x: str) -> str:
        """An operand before widening; adds views for it if needed."""
        node = self.producer[x]
        if is_widening_cast(node, self.forms):
            return node.values()[0]
        if node.op is CLONE:
            return self.as_half(node.values()[0])
        if x not in self.shorter:
            source = self.as_half(node.values()[0])
            form = contiguous(self.forms[x].shape, self.forms[source].dtype, CPU)
            self.shorter[x] = add_value(self.forms, f"{x}_half", form)
            self.nodes.append(replace(node, operands=(source, *node.operands[1:]), results=(self.shorter[x],)))
        return self.shorter[x]


def is_movement(node: Node) -> bool:
    """True for views and copies of one value."""
    return (node.op.view or node.op is CLONE) and len(node.values()) == len(node.results) == 1 and not node.op.mutates
