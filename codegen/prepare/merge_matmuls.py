"""Merge matmuls: a sum of matmuls becomes one, for weights that are used several times (recurrent networks, tied layers).

The gradient of such a weight is a sum of matmuls, one for each use: a1' b1 + a2' b2 + ... That is the matmul of [a1; a2; ...]'
and [b1; b2; ...], so nothing is accumulated in memory, and there is one kernel instead of many. The operands are not copied
either: whoever makes one writes it where it belongs (`concat_layout.py`). Sums of their columns, the gradients of biases,
become one sum over the whole.

The operands live until the last one is there. Where they are much larger than the results, the matmuls are accumulated one
after the other instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...eager.ops.linalg.matmul import MATMUL
from ...eager.ops.shape.views import PERMUTE
from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, Node
from .concat_layout import ConcatLayouts
from .decompose import CPU
from .primitive_graph import PrimitiveGraph, add_value

TRANSPOSED = (1, 0)
MAX_OPERAND_RATIO = 2  # rows of an operand, to the smaller side of the result
FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class TransposedMatmul:
    """One matmul of a sum: a' b, of two matrices with equally many rows."""

    a: str
    b: str
    at: int  # number of the node that makes b
    place: int  # number of the matmul


def merge_matmuls(work: PrimitiveGraph) -> PrimitiveGraph:
    """Merge the sums of matmuls, and of column sums, of a graph."""
    merger = MatmulMerger(work.nodes, work.forms, work.results | work.external)
    nodes = merger.run()
    work.decisions += merger.decisions
    if not merger.stored and len(nodes) == len(work.nodes) and all(a is b for a, b in zip(nodes, work.nodes, strict=True)):
        return work
    return replace(work, nodes=nodes, stored=merger.stored)


class MatmulMerger:
    """Rewrites the sums of a graph. What it decides is noted in `decisions`."""

    def __init__(self, nodes: list[Node], forms: dict[str, Form], visible: set[str]) -> None:
        self.nodes = nodes
        self.forms = forms
        self.visible = visible  # values that the caller can see, and inputs
        self.layouts = ConcatLayouts(nodes, forms, visible)
        self.producer = self.layouts.producer
        self.readers: dict[str, list[Node]] = {}
        for node in nodes:
            for x in node.values():
                self.readers.setdefault(x, []).append(node)
        self.decisions: list[str] = []
        self.stored: set[str] = set()  # partial sums to keep in memory, so that what was added up need not be

    def run(self) -> list[Node]:
        """The nodes with merged sums; nodes that are dead by then are still among them."""
        instead: dict[str, list[Node]] = {}  # by the result of a sum: its nodes
        later: list[tuple[Node, list[str]]] = []
        for node in self.nodes:
            if self.is_whole_sum(node):
                terms = self.terms(node)
                found = self.merge_terms(node, terms)
                if found is not None:
                    instead[node.results[0]] = found
                else:
                    later.append((node, terms))
        for node, terms in later:
            found = self.merge_column_sums(node, terms)
            if found is not None:
                instead[node.results[0]] = found
        rows = [[node] for node in self.nodes]
        for i, node in enumerate(self.nodes):
            rows[i] = instead.get(node.results[0], rows[i])
        return [*self.layouts.after[-1], *[x for i, row in enumerate(rows) for x in (*row, *self.layouts.after[i])]]

    # ---- finding sums

    def is_addition(self, node: Node) -> bool:
        """True if a node adds two tensors of the same shape and dtype."""
        if node.op.name != "add" or not all(isinstance(x, str) for x in node.operands):
            return False
        form = self.forms[node.results[0]]
        return form.dtype.name in FLOATS and all(
            self.forms[x].shape == form.shape and self.forms[x].dtype == form.dtype for x in node.operands
        )

    def is_private(self, name: str) -> bool:
        """True if one node alone reads a value, and the caller cannot see it."""
        return name not in self.visible and len(self.readers.get(name, [])) == 1

    def is_whole_sum(self, node: Node) -> bool:
        (name, *_) = node.results
        return self.is_addition(node) and not (self.is_private(name) and self.is_addition(self.readers[name][0]))

    def terms(self, node: Node) -> list[str]:
        found: list[str] = []
        stack = [str(x) for x in reversed(node.operands)]
        while stack:
            x = stack.pop()
            made = self.producer.get(x)
            if made is not None and self.is_private(x) and self.is_addition(made):
                stack += [str(y) for y in reversed(made.operands)]
            else:
                found.append(x)
        return found

    # ---- matmuls

    def merge_terms(self, root: Node, terms: list[str]) -> list[Node] | None:
        matmuls = {x: found for x in terms if (found := self.as_transposed(x)) is not None}
        if len(matmuls) < 2:
            return None
        (name,), form = root.results, self.forms[root.results[0]]
        merged = sorted(matmuls.values(), key=lambda x: x.at)
        rows = max(self.forms[x.a].shape[0] for x in merged)
        if rows > MAX_OPERAND_RATIO * min(form.shape):
            self.accumulate(root, name, rows)
            return None
        readers = [x.place for x in merged]
        left, right = (self.layouts.concatenate(parts, readers) for parts in ([x.a for x in merged], [x.b for x in merged]))
        saved = 2 * (len(merged) - 1) * form.nbytes
        copied = 2 * (left.copied + right.copied)
        if copied >= saved:
            self.note(name, f"matmuls not merged: concatenating their operands would copy {copied} bytes to save {saved}")
            return None
        self.note(name, f"{len(merged)} matmuls merged into one, score {saved - copied} bytes not moved")
        self.layouts.make(left)
        self.layouts.make(right)
        turned = self.new(f"{name}_left", self.forms[left.name].shape[::-1], form)
        nodes = [Node(PERMUTE, (left.name,), {"dims": TRANSPOSED}, (turned,), False, root.line)]
        rest = [x for x in terms if x not in matmuls]
        whole = name if not rest else self.new(f"{name}_matmul", form.shape, form)
        nodes.append(Node(MATMUL, (turned, right.name), {}, (whole,), False, root.line))
        for i, x in enumerate(rest):
            after = name if i == len(rest) - 1 else self.new(f"{name}_sum", form.shape, form)
            nodes.append(replace(root, operands=(whole, x), results=(after,)))
            whole = after
        return nodes

    def as_transposed(self, x: str) -> TransposedMatmul | None:
        """A term as the matmul of a transposed matrix and another one, if it is one that nothing else reads."""
        node = self.producer.get(x)
        if node is None or node.op.name != "matmul" or not self.is_private(x) or self.forms[x].ndim != 2:
            return None
        a, b = node.operands
        turned = self.producer.get(a)
        if turned is None or turned.op.name != "permute" or tuple(turned.attrs["dims"]) != TRANSPOSED:
            return None
        a, b = self.layouts.resolve_alias(turned.operands[0]), self.layouts.resolve_alias(b)
        if self.forms[b].ndim != 2:
            return None
        return TransposedMatmul(a, b, self.layouts.at.get(b, -1), self.layouts.at[x])

    def accumulate(self, root: Node, name: str, rows: int) -> None:
        """Keep each partial sum in memory, in place of the one before, so that no matmul's result is."""
        found, stack = 0, [root]
        while stack:
            for x in stack.pop().operands:
                made = self.producer.get(x)
                if made is not None and self.is_private(x) and self.is_addition(made):
                    self.stored.add(x)
                    stack.append(made)
                    found += 1
        if found:
            limit = f"{rows} rows of operands are more than {MAX_OPERAND_RATIO} times a side of the result"
            self.note(name, f"matmuls accumulated one after the other: {limit}")

    # ---- column sums

    def merge_column_sums(self, root: Node, terms: list[str]) -> list[Node] | None:
        """A sum of column sums as one, if their operands are concatenated in memory anyway."""
        parts = [self.summed(x) for x in terms]
        joined = self.layouts.find([x for x in parts if x is not None])
        if joined is None or None in parts:
            return None
        (name,) = root.results
        total = self.producer[terms[0]]
        self.note(name, f"{len(terms)} column sums merged into one over their concat layout")
        return [replace(total, operands=(joined,), results=(name,), line=root.line)]

    def summed(self, x: str) -> str | None:
        """The matrix that a term is the column sum of."""
        node = self.producer.get(x)
        if node is None or node.op.name != "sum" or not self.is_private(x) or node.attrs["keepdim"]:
            return None
        whole = self.layouts.resolve_alias(node.operands[0])
        return whole if tuple(node.attrs["dims"]) == (0,) and self.forms[whole].ndim == 2 else None

    def new(self, name: str, shape: tuple[int, ...], like: Any) -> str:
        return add_value(self.forms, name, contiguous(shape, like.dtype, CPU))

    def note(self, name: str, what: str) -> None:
        self.decisions.append(f"{name}: {what}")
