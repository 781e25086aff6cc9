"""Rematerialise values that would be kept for a long time between two uses, as activations are.

Everything that both the forward and the backward pass use has to be kept in between. What follows from one large kept value by
elementwise ops is computed again where it is used: so of `gelu(x @ w + b)` only the matmul's result is kept, and of a layer
norm nothing. Values that the caller can see are in memory in any case.
"""

from __future__ import annotations

from dataclasses import replace

from ...tracer.graph.ir import Form, Node
from ..lowering.op_lowering import is_lowerable
from .concat_layout import CONCAT_LAYOUT
from .primitive_graph import PrimitiveGraph, add_value

MIN_BYTES = 1 << 16  # smaller values are kept
MIN_DISTANCE = 24  # nodes between two uses
MAX_OPS = 32  # ops to compute a value again


def rematerialize(work: PrimitiveGraph) -> PrimitiveGraph:
    """Insert second copies of values before uses that are far from the last one."""
    places = {name: i for i, node in enumerate(work.nodes) for name in node.results}
    writers = {w.input.name: places[v] for w, v in work.write_backs}
    parts = {x for node in work.nodes if node.op is CONCAT_LAYOUT for x in node.values()}
    found = Rematerializer(work.nodes, work.forms, work.results | parts, writers)
    nodes = found.run()
    return replace(work, nodes=nodes, rematerialized=found.copies) if found.copies else work


class Rematerializer:
    """Finds values to compute again, and inserts the nodes that do it."""

    def __init__(self, nodes: list[Node], forms: dict[str, Form], stored: set[str], writers: dict[str, int]) -> None:
        self.nodes = nodes
        self.forms = forms
        self.stored = stored  # values that are in memory in any case
        self.writers = writers  # by input that is overwritten: the number of the node that does it
        self.maker = {name: (i, node) for i, node in enumerate(nodes) for name in node.results}
        self.anchors: dict[str, frozenset[str]] = {}  # by value that can be computed again: the kept values it follows from
        self.ops: dict[str, int] = {}  # how many ops that takes
        self.copies: set[str] = set()  # names of the second copies
        for node in nodes:
            self.find_anchors(node)

    def find_anchors(self, node: Node) -> None:
        """Note the anchors of a node's value, if it can be computed again from at most one large value."""
        if node.op.kind not in ("pointwise", "movement") or len(node.results) != 1 or not node.values():
            return
        (name,) = node.results
        if name in self.stored or not is_lowerable(node, self.forms):
            return
        found: set[str] = set()
        ops = int(node.op.kind == "pointwise")
        for x in node.values():
            found |= self.anchors.get(x, frozenset([x]))
            ops += self.ops.get(x, 0)
        large = [x for x in found if 2 * self.forms[x].size > self.forms[name].size]
        if len(large) <= 1 and ops <= MAX_OPS:
            self.anchors[name] = frozenset(found)
            self.ops[name] = ops

    def run(self) -> list[Node]:
        """The nodes, with copies inserted before distant uses."""
        found: list[Node] = []
        self.last: dict[str, int] = {}  # by value: the node that last used it or its copy
        self.names: dict[str, str] = {}  # by value: its latest copy
        for i, node in enumerate(self.nodes):
            for x in dict.fromkeys(node.values()):
                if x in self.anchors:
                    if self.is_distant(x, i) and self.forms[x].nbytes >= MIN_BYTES and self.has_anchors(x, i):
                        found += self.copy(x, i)
                    self.last[x] = i
            operands = tuple(self.names.get(x, x) if isinstance(x, str) else x for x in node.operands)
            found.append(node if operands == node.operands else replace(node, operands=operands))
        return found

    def is_distant(self, name: str, at: int) -> bool:
        return at - self.last.get(name, self.maker[name][0]) > MIN_DISTANCE

    def has_anchors(self, name: str, at: int) -> bool:
        """True if none of the anchors has been overwritten at node `at`."""
        return all(self.writers.get(x, at) >= at for x in self.anchors[name])

    def copy(self, name: str, at: int) -> list[Node]:
        """Nodes that compute a value again under a new name, from values that were used recently or are kept."""
        chain: list[str] = []
        stack = [name]
        while stack:
            x = stack.pop()
            if x in self.anchors and x not in chain and self.is_distant(x, at):
                chain.append(x)
                stack += self.maker[x][1].values()
        chain.sort(key=lambda x: self.maker[x][0])
        fresh = {x: self.fresh(x) for x in chain}
        found = []
        for x in chain:
            node = self.maker[x][1]
            self.last[x] = at
            self.names[x] = fresh[x]
            operands = tuple(self.names.get(v, v) if isinstance(v, str) else v for v in node.operands)
            found.append(replace(node, operands=operands, results=(fresh[x],)))
        return found

    def fresh(self, name: str) -> str:
        found = add_value(self.forms, f"{name}_again", self.forms[name])
        self.copies.add(found)
        return found
