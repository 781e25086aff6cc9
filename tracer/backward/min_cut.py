"""Choose by min-cut which values a forward pass saves for its backward pass: the fewest bytes from which the rest is
rematerialised.

Gradient rules read certain values. Of those that a segment produces, some follow from others by views and pointwise ops, which
cost less than the memory they save. A minimum cut between the values that are expensive to compute and those that are read,
each value weighted by its bytes, selects the ones to save.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..trace.queries import calls_between
from ..trace.trace import Call, Number, Trace

CHEAP_KINDS = {"pointwise", "movement"}
CHEAP = {
    "relu", "leaky_relu", "gelu", "silu", "elu", "hardtanh", "softplus", "logsigmoid", "masked_scale", "tril", "triu",
}  # fmt: skip
ENDLESS = 1 << 62
SOURCE, SINK = -1, -2


class MinCut:
    """Minimum cut: the slots to save (`saved`), and the ops that rematerialise the others (`again`)."""

    def __init__(
        self, trace: Trace, start: int, stop: int, wanted: Iterable[int], written: set[int], visible: set[int]
    ) -> None:
        self.trace = trace
        self.written = written  # roots of memory that the segment writes
        self.visible = visible  # roots of memory that outlives it, which other code may write
        self.wanted = set(wanted)
        entries = [(i, e) for i, e in enumerate(trace.entries[start:stop]) if isinstance(e, Call)]
        self.makers = {v.slot: (i, e) for i, e in entries for v in e.results}
        self.made = {v.slot for call in calls_between(trace, start, stop) for v in call.results}
        self.sizes: dict[int, int] = {}
        for value in trace.values:
            self.sizes.setdefault(value.slot, value.form.nbytes)
        self.saved = self.fewest_bytes()
        self.again = self.needed()

    def inside(self, slot: int) -> bool:
        """True if the segment produces this slot's memory."""
        return self.trace.roots[slot] in self.made

    def private(self, slot: int) -> bool:
        """True if no other code can write this slot's memory, so values rematerialised from it are the same in the backward
        pass."""
        root = self.trace.roots[slot]
        return root in self.made and root not in self.visible and root not in self.written

    def cost(self, slot: int) -> int:
        """Return the bytes needed to save a slot: a view keeps all of its memory. Memory that other code can write is saved
        only if it is itself read by a rule: eager execution would not raise if it is written."""
        if self.private(slot) or slot in self.wanted:
            return self.sizes[self.trace.roots[slot]] + 1
        return ENDLESS

    def operands(self, slot: int) -> list[int] | None:
        """Return the slots from which a value is cheap to rematerialise; None if it is not."""
        if slot not in self.makers or not self.private(slot):
            return None
        call = self.makers[slot][1]
        op = call.op
        if op.mutates or call.out is not None or op.data_dependent or not (op.kind in CHEAP_KINDS or op.name in CHEAP):
            return None
        if any(isinstance(x, Number) and x.type is not float for x in call.inputs):
            return None
        found = [self.trace.values[n].slot for n in call.inputs if isinstance(n, int)]
        return found if all(map(self.private, found)) else None

    def fewest_bytes(self) -> frozenset[int]:
        """Compute the minimum cut nearest to the values that are read, so that the least is rematerialised."""
        edges = self.network()
        while self.augment(edges):
            pass
        backwards: dict[int, list[int]] = {}
        for a, nexts in edges.items():
            for b, room in nexts.items():
                if room > 0:
                    backwards.setdefault(b, []).append(a)
        reach, stack = {SINK}, [SINK]
        while stack:
            for a in backwards.get(stack.pop(), ()):
                if a not in reach:
                    reach.add(a)
                    stack.append(a)
        slots = {v // 2 for v in edges if v >= 0}
        return frozenset(s for s in slots if 2 * s + 1 in reach and 2 * s not in reach)

    def network(self) -> dict[int, dict[int, int]]:
        """Build the flow network: each value is an edge from 2 * slot to 2 * slot + 1, with its bytes as capacity."""
        edges: dict[int, dict[int, int]] = {SOURCE: {}, SINK: {}}

        def add(a: int, b: int, room: int) -> None:
            edges.setdefault(a, {})[b] = room
            edges.setdefault(b, {}).setdefault(a, 0)

        stack = [s for s in self.wanted if self.inside(s)]
        for slot in stack:
            add(2 * slot + 1, SINK, ENDLESS)
        seen = set(stack)
        while stack:
            slot = stack.pop()
            add(2 * slot, 2 * slot + 1, self.cost(slot))
            below = self.operands(slot)
            if below is None:
                add(SOURCE, 2 * slot, ENDLESS)
                continue
            for s in below:
                add(2 * s + 1, 2 * slot, ENDLESS)
                if s not in seen:
                    seen.add(s)
                    stack.append(s)
        return edges

    def augment(self, edges: dict[int, dict[int, int]]) -> bool:
        """Augment the flow along one shortest path."""
        came: dict[int, int] = {SOURCE: SOURCE}
        queue = deque([SOURCE])
        while queue and SINK not in came:
            a = queue.popleft()
            for b, room in edges[a].items():
                if room > 0 and b not in came:
                    came[b] = a
                    queue.append(b)
        if SINK not in came:
            return False
        path, b = [], SINK
        while b != SOURCE:
            path.append((came[b], b))
            b = came[b]
        amount = min(edges[a][b] for a, b in path)
        for a, b in path:
            edges[a][b] -= amount
            edges[b][a] += amount
        return True

    def needed(self) -> list[Call]:
        """Return the ops that rematerialise values which are read but not saved, in order."""
        found: dict[int, Call] = {}
        stack = [s for s in self.wanted if self.inside(s) and s not in self.saved]
        while stack:
            slot = stack.pop()
            place, call = self.makers[slot]
            if place not in found:
                found[place] = call
                stack.extend(s for s in self.operands(slot) or () if s not in self.saved)
        return [found[place] for place in sorted(found)]

    def bytes_of(self, slots: Iterable[int]) -> int:
        """Return the bytes of memory behind some of the values that the segment produces."""
        return sum(self.sizes[root] for root in {self.trace.roots[s] for s in slots if self.inside(s)})
