"""What is computed again rather than kept: a value that is used soon and then not for a long time, as activations are.

Between the forward and the backward pass everything that both use has to be kept. What follows from one large value that is
kept anyway, by element-wise ops, is computed again where it is wanted: so of `gelu(x @ w + b)` only the product is kept, and of
a layer norm nothing. Values that are handed out are in memory in any case.
"""

from __future__ import annotations

from dataclasses import replace

from ...tracer.graph.ir import Form, Node
from ..lowering.op_lowering import lowerable

LARGE = 1 << 16  # bytes of values that are worth it
LONG = 24  # nodes in which a value is not used, and is then worth computing again
MOST = 32  # ops that are done again


class Again:
    """Finds values that are computed again, and writes the nodes that do it."""

    def __init__(self, nodes: list[Node], forms: dict[str, Form], kept: set[str], writers: dict[str, int]) -> None:
        self.nodes = nodes
        self.forms = forms
        self.kept = kept
        self.writers = writers  # of inputs that are written: the node after which they are others
        self.maker = {name: (i, node) for i, node in enumerate(nodes) for name in node.results}
        self.anchors: dict[str, frozenset[str]] = {}  # of what can be computed again: what it is computed from
        self.ops: dict[str, int] = {}
        self.made: set[str] = set()  # the names of what is computed again
        for node in nodes:
            self.look_at(node)

    def look_at(self, node: Node) -> None:
        """Whether a node's value can be computed again from one large value."""
        if node.op.kind not in ("pointwise", "movement") or len(node.results) != 1 or not node.values():
            return
        (name,) = node.results
        if name in self.kept or not lowerable(node, self.forms):
            return
        found: set[str] = set()
        ops = int(node.op.kind == "pointwise")
        for x in node.values():
            found |= self.anchors.get(x, frozenset([x]))
            ops += self.ops.get(x, 0)
        large = [x for x in found if 2 * self.forms[x].size > self.forms[name].size]
        if len(large) <= 1 and ops <= MOST:
            self.anchors[name] = frozenset(found)
            self.ops[name] = ops

    def written(self) -> list[Node]:
        """The nodes, with those that compute again where values are wanted after a long time."""
        found: list[Node] = []
        self.last: dict[str, int] = {}  # of each value: where it, or what stands for it, was last used
        self.names: dict[str, str] = {}  # what stands for it
        for i, node in enumerate(self.nodes):
            for x in dict.fromkeys(node.values()):
                if x in self.anchors:
                    if self.long_ago(x, i) and self.forms[x].nbytes >= LARGE and self.allowed(x, i):
                        found += self.again(x, i)
                    self.last[x] = i
            operands = tuple(self.names.get(x, x) if isinstance(x, str) else x for x in node.operands)
            found.append(node if operands == node.operands else replace(node, operands=operands))
        return found

    def long_ago(self, name: str, at: int) -> bool:
        return at - self.last.get(name, self.maker[name][0]) > LONG

    def allowed(self, name: str, at: int) -> bool:
        """Whether nothing that it is computed from is overwritten by then."""
        return all(self.writers.get(x, at) >= at for x in self.anchors[name])

    def again(self, name: str, at: int) -> list[Node]:
        """The nodes that make a value again, from what was used just before or is kept; it has another name then."""
        chain: list[str] = []
        stack = [name]
        while stack:
            x = stack.pop()
            if x in self.anchors and x not in chain and self.long_ago(x, at):
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
        found = f"{name}_again"
        while found in self.forms:
            found += "_"
        self.forms[found] = self.forms[name]
        self.made.add(found)
        return found
