"""What a compiled forward pass saves for its backward pass: the fewest bytes from which the rest can be computed again cheaply.

Gradient rules ask for some values by name. Of those that a segment makes, some follow from others by views and pointwise ops,
which cost less than the memory they save. A minimal cut between what is costly to compute and what is asked for, each value
weighed by its bytes, says which ones to save.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..execute.reference_program import calls
from ..trace.trace import Call, Number, Trace

CHEAP_KINDS = {"pointwise", "movement"}
CHEAP = {
    "relu", "leaky_relu", "gelu", "silu", "elu", "hardtanh", "softplus", "logsigmoid", "masked_scale", "tril", "triu",
}  # fmt: skip
ENDLESS = 1 << 62
SOURCE, SINK = -1, -2


class Cut:
    """Which slots to save (`saved`), and the ops that make the other wanted ones again (`again`)."""

    def __init__(
        self, trace: Trace, start: int, stop: int, wanted: Iterable[int], written: set[int], visible: set[int]
    ) -> None:
        self.trace = trace
        self.written = written  # roots of memory that the segment writes
        self.visible = visible  # and of memory that outlives it: others may write that
        self.wanted = set(wanted)
        entries = [(i, e) for i, e in enumerate(trace.entries[start:stop]) if isinstance(e, Call)]
        self.makers = {v.slot: (i, e) for i, e in entries for v in e.results}
        self.made = {v.slot for call in calls(trace, start, stop) for v in call.results}
        self.sizes: dict[int, int] = {}
        for value in trace.values:
            self.sizes.setdefault(value.slot, value.form.nbytes)
        self.saved = self.fewest_bytes()
        self.again = self.needed()

    def inside(self, slot: int) -> bool:
        """Whether the segment makes its memory."""
        return self.trace.roots[slot] in self.made

    def private(self, slot: int) -> bool:
        """Whether nobody else can write its memory, so that what follows from it is the same when the backward pass comes."""
        root = self.trace.roots[slot]
        return root in self.made and root not in self.visible and root not in self.written

    def cost(self, slot: int) -> int:
        """The bytes to save it: a view keeps all of the memory it shows. What others can write is saved only if it is wanted
        itself: eager execution would not mind if it is written."""
        if self.private(slot) or slot in self.wanted:
            return self.sizes[self.trace.roots[slot]] + 1
        return ENDLESS

    def operands(self, slot: int) -> list[int] | None:
        """The slots that a value is cheap to compute from; None if it is not."""
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
        """The cut that is nearest to what is wanted, so that the least is computed again."""
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
        """Each value is an edge as wide as its bytes, from 2 * slot to 2 * slot + 1."""
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
        """Send as much as fits along one shortest path."""
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
        """The ops that make what is wanted and not saved, in order."""
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
        """The memory behind some of the values that the segment makes."""
        return sum(self.sizes[root] for root in {self.trace.roots[s] for s in slots if self.inside(s)})
