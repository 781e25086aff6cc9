"""Sums of products as one product, for weights that are used again and again: in loops of recurrent networks, in tied layers.

The gradient of such a weight is a sum of products, one for each use: a1' b1 + a2' b2 + ... That is the product of [a1; a2; ...]
and [b1; b2; ...], one below the other: nothing is added up in memory, and there is one kernel instead of many. Nor are the
operands copied: whoever makes one writes it where it is wanted (`joins.py`). Sums of their columns, the gradients of biases,
are sums of the columns of all of it.

The operands live until the last one is there. Where they are much larger than the products, the products are added up one after
the other instead, each to the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...eager.ops.linalg.matmul import MATMUL
from ...eager.ops.shape.views import PERMUTE
from ...tracer.graph.functionalize import contiguous
from ...tracer.graph.ir import Form, Node
from .decompose import CPU
from .concat_layout import Joins

TURNED = (1, 0)
LARGER = 2  # times as large as products operands may be
FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class Outer:
    """One product of a sum: a' b, of two matrices with as many rows."""

    a: str
    b: str
    at: int  # the place of the node that makes b
    place: int  # and that of the product


class Sums:
    """Rewrites the sums of a graph. What it decides is noted in `decisions`."""

    def __init__(self, nodes: list[Node], forms: dict[str, Form], seen: set[str], added: Callable[..., str]) -> None:
        self.nodes = nodes
        self.forms = forms
        self.seen = seen  # values that somebody can see, or that come from outside
        self.added = added
        self.joins = Joins(nodes, forms, seen, added)
        self.maker = self.joins.maker
        self.readers: dict[str, list[Node]] = {}
        for node in nodes:
            for x in node.values():
                self.readers.setdefault(x, []).append(node)
        self.decisions: list[str] = []
        self.stored: set[str] = set()  # sums that are stored, so that what was added up is not kept

    def run(self) -> list[Node]:
        """The nodes with sums of products as one, and what is not needed any more."""
        instead: dict[str, list[Node]] = {}  # of the last addition of a sum: the nodes for it
        later: list[tuple[Node, list[str]]] = []
        for node in self.nodes:
            if self.is_whole_sum(node):
                terms = self.terms(node)
                found = self.one_product(node, terms) or None
                if found is not None:
                    instead[node.results[0]] = found
                else:
                    later.append((node, terms))
        for node, terms in later:
            found = self.one_total(node, terms)
            if found is not None:
                instead[node.results[0]] = found
        rows = [[node] for node in self.nodes]
        for i, node in enumerate(self.nodes):
            rows[i] = instead.get(node.results[0], rows[i])
        return [*self.joins.after[-1], *[x for i, row in enumerate(rows) for x in (*row, *self.joins.after[i])]]

    # ---- finding sums

    def adds(self, node: Node) -> bool:
        """Whether a node adds two tensors of one form."""
        if node.op.name != "add" or not all(isinstance(x, str) for x in node.operands):
            return False
        form = self.forms[node.results[0]]
        return form.dtype.name in FLOATS and all(
            self.forms[x].shape == form.shape and self.forms[x].dtype == form.dtype for x in node.operands
        )

    def inside(self, name: str) -> bool:
        """Whether only one node reads a value, and nobody sees it."""
        return name not in self.seen and len(self.readers.get(name, [])) == 1

    def is_whole_sum(self, node: Node) -> bool:
        (name, *_) = node.results
        return self.adds(node) and not (self.inside(name) and self.adds(self.readers[name][0]))

    def terms(self, node: Node) -> list[str]:
        found: list[str] = []
        stack = [str(x) for x in reversed(node.operands)]
        while stack:
            x = stack.pop()
            made = self.maker.get(x)
            if made is not None and self.inside(x) and self.adds(made):
                stack += [str(y) for y in reversed(made.operands)]
            else:
                found.append(x)
        return found

    # ---- products

    def one_product(self, root: Node, terms: list[str]) -> list[Node] | None:
        outers = {x: found for x in terms if (found := self.outer(x)) is not None}
        if len(outers) < 2:
            return None
        (name,), form = root.results, self.forms[root.results[0]]
        products = sorted(outers.values(), key=lambda x: x.at)
        rows = max(self.forms[x.a].shape[0] for x in products)
        if rows > LARGER * min(form.shape):
            self.add_up(root, name, rows)
            return None
        places = [x.place for x in products]
        left, right = (self.joins.together(parts, places) for parts in ([x.a for x in products], [x.b for x in products]))
        saved = 2 * (len(products) - 1) * form.nbytes
        copied = 2 * (left.copied + right.copied)
        if copied >= saved:
            self.note(name, f"products are added up, as joining their operands would copy {copied} bytes to save {saved}")
            return None
        self.note(name, f"the sum of {len(products)} products is one, score {saved - copied} bytes that are not moved")
        self.joins.make(left)
        self.joins.make(right)
        turned = self.new(f"{name}_left", self.forms[left.name].shape[::-1], form)
        nodes = [Node(PERMUTE, (left.name,), {"dims": TURNED}, (turned,), False, root.line)]
        rest = [x for x in terms if x not in outers]
        whole = name if not rest else self.new(f"{name}_product", form.shape, form)
        nodes.append(Node(MATMUL, (turned, right.name), {}, (whole,), False, root.line))
        for i, x in enumerate(rest):
            after = name if i == len(rest) - 1 else self.new(f"{name}_sum", form.shape, form)
            nodes.append(replace(root, operands=(whole, x), results=(after,)))
            whole = after
        return nodes

    def outer(self, x: str) -> Outer | None:
        """A term as the product of a turned matrix and another one, if it is one that nothing else reads."""
        node = self.maker.get(x)
        if node is None or node.op.name != "matmul" or not self.inside(x) or self.forms[x].ndim != 2:
            return None
        a, b = node.operands
        turned = self.maker.get(a)
        if turned is None or turned.op.name != "permute" or tuple(turned.attrs["dims"]) != TURNED:
            return None
        a, b = self.joins.itself(turned.operands[0]), self.joins.itself(b)
        if self.forms[b].ndim != 2:
            return None
        return Outer(a, b, self.joins.at.get(b, -1), self.joins.at[x])

    def add_up(self, root: Node, name: str, rows: int) -> None:
        """Products are added one after the other: what is added up so far is stored each time, in the place of what was."""
        found, stack = 0, [root]
        while stack:
            for x in stack.pop().operands:
                made = self.maker.get(x)
                if made is not None and self.inside(x) and self.adds(made):
                    self.stored.add(x)
                    stack.append(made)
                    found += 1
        if found:
            self.note(
                name, f"products are added up one after the other, as {rows} rows are more than {LARGER} times what they make"
            )

    # ---- totals of columns

    def one_total(self, root: Node, terms: list[str]) -> list[Node] | None:
        """A sum of totals of columns, if what they are totals of is one below the other anyway."""
        parts = [self.total(x) for x in terms]
        joined = self.joins.existing([x for x in parts if x is not None])
        if joined is None or None in parts:
            return None
        (name,) = root.results
        total = self.maker[terms[0]]
        self.note(name, f"the sum of {len(terms)} totals is one, of values that stand together")
        return [replace(total, operands=(joined,), results=(name,), line=root.line)]

    def total(self, x: str) -> str | None:
        node = self.maker.get(x)
        if node is None or node.op.name != "sum" or not self.inside(x) or node.attrs["keepdim"]:
            return None
        whole = self.joins.itself(node.operands[0])
        return whole if tuple(node.attrs["dims"]) == (0,) and self.forms[whole].ndim == 2 else None

    def new(self, name: str, shape: tuple[int, ...], like: Any) -> str:
        return self.added(self.forms, name, contiguous(shape, like.dtype, CPU))

    def note(self, name: str, what: str) -> None:
        self.decisions.append(f"{name}: {what}")
