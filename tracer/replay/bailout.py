"""Going back to eager execution: what a replay has promised since the last segment is run, and the promises become the results.

Nothing has been written yet, so the ops find what they were given: tensors from outside with their own memory, numbers as they
were bound, gradients as they were before each backward pass. What the user did in between without any op (flags, gradients,
hooks) is put back afterwards.
"""

from __future__ import annotations

from typing import Any

from ...eager.core.op import execute
from ...eager.arrays.deferred import Pending
from ...eager.core.tape.node import PENDING, Node, _numbers
from ...eager.core.tensor import Tensor, versions_of, wrap
from ..trace.call_frame import Frame
from ..record.recorder import backward_pass
from ..trace.trace import Backward, Call, Entry, Number, Value


class Fallback(Frame):
    """The part of a replayer that knows how to do without the recording."""

    entries: list[Entry]
    cursor: int  # the entry to compare with next
    start: int  # where the segment begins
    held: list[Any]  # of each value the array it shows, pending or there
    slots: dict[int, int]  # id of an array that is there -> its slot
    earlier: dict[int, tuple[Any, bool]]  # tensors that were promised a new history: the one they had
    copies: dict[int, Any]  # of values whose memory others can write: what they held when they appeared
    used: list[Node]  # nodes that passes in this segment will use up: only they refer to what they keep
    hidden: list[int]  # values from outside whose memory this segment writes
    as_they_are: list[tuple[Tensor, bool, Any]]  # while entries run: flags and history that the user has changed since

    def unchanged(self, n: int) -> bool:
        """Whether memory that others can write still holds what was copied from it."""
        t = self.tensors[n]
        return self.slots.get(id(t._array)) == self.trace.values[n].slot and t._array.tobytes() == self.copies[n].tobytes()

    def reveal(self) -> None:
        """Tensors from outside show their own memory again."""
        tensors, arrays, held, values = self.tensors, self.arrays, self.held, self.trace.values
        for n in self.hidden:
            t, array = tensors[n], arrays[values[n].slot]
            pending = t._array
            if isinstance(pending, Pending):  # it may have been interrupted before
                pending.real = array
                pending.frame = None
                t._array = held[n] = array
        self.hidden.clear()

    # ---- running the entries

    def interpret(self) -> None:
        """Run the entries since the last segment eagerly. The tensors that were promised become the real results."""
        now = [(t, t._grad) for t in self.tensors if t is not None]
        flags = [(t, t._requires_grad, t._node) for t in self.tensors if t is not None and isinstance(t._array, Pending)]
        self.reveal()
        for n, (node, wanted) in self.earlier.items():
            if self.tensors[n] is not None:
                self.tensors[n]._node, self.tensors[n]._requires_grad = node, wanted
        self.earlier.clear()
        seen = [(n, self.tensors[n], a) for n, a in self.copies.items() if self.tensors[n] is not None]
        changed = [(t, t._array, a) for n, t, a in seen if not self.unchanged(n)]
        for t, _, copy in changed:  # the ops saw what was there then
            t._array = copy
        first = next(_numbers)
        state = self.state
        was = state.grad
        self.as_they_are = []
        try:
            with self.eagerly():
                for entry in self.entries[self.start : self.cursor]:
                    if isinstance(entry, Call):
                        state.grad = entry.grad
                        self.interpret_call(entry)
                    elif isinstance(entry, Backward):
                        self.interpret_backward(entry)
        finally:
            state.grad = was
            for t, array, _ in changed:
                t._array = array
            for t, wanted, node in reversed(self.as_they_are):
                t._requires_grad, t._node = wanted, node
            self.as_they_are = []
        if changed:
            self.keep_memory({id(copy): array for _, array, copy in changed}, first)
        for t, wanted, node in flags:  # what the user changed himself since
            if node is None and t._node is not None and not wanted:
                t._node, t._requires_grad = None, False
            elif wanted and not t._requires_grad:
                t._requires_grad = True
        for t, grad in now:
            if t._grad is not grad:
                t._grad = grad
        self.used.clear()
        for n, t in enumerate(self.tensors):
            if t is not None and not isinstance(t._array, Pending):
                slot = self.trace.values[n].slot
                self.held[n] = self.arrays[slot] = t._array
                self.copies.pop(n, None)
                self.slots[id(t._array)] = slot
                self.number[id(t)] = n

    def keep_memory(self, memory: dict[int, Any], first: int) -> None:
        """What the ops have kept for their gradients is memory that others write, not what it held when they ran."""

        def own(value: Any) -> Any:
            if type(value) is not tuple or not value:
                return value
            if type(value[0]) is tuple:
                return tuple(map(own, value))
            return (memory.get(id(value[0]), value[0]), *value[1:])

        stack = [t._node for t in self.tensors if t is not None]
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            if isinstance(node, Node) and node.number >= first and id(node) not in seen:
                seen.add(id(node))
                stack.extend(node.edges)
                if type(node.saved) is dict:
                    node.saved = {name: own(value) for name, value in node.saved.items()}

    def interpret_call(self, entry: Call) -> None:
        given: list[Any] = []
        for x, flag in zip(entry.inputs, entry.flags, strict=False):
            if isinstance(x, int):
                given.append(self.as_it_was(x, flag))
            else:
                given.append(self.scalars[x.place] if isinstance(x, Number) else x.value)
        out = None if entry.out is None else self.as_it_was(entry.out, entry.flags[-1])
        result = execute(entry.op, tuple(given), entry.attrs, out, self.state)
        made = result if entry.several else (result,)
        for value, real in zip(entry.results, made, strict=False):
            self.become(value, real)

    def as_it_was(self, n: int, flag: bool) -> Tensor:
        """A tensor as an op saw it: the user may have changed since whether it wants a gradient."""
        t = self.tensors[n]
        if isinstance(t._array, Pending):  # an alias
            t._array = self.arrays[self.trace.values[n].slot]
        if t._requires_grad is flag:
            return t  # type: ignore[no-any-return]
        if flag:
            self.as_they_are.append((t, t._requires_grad, t._node))
            t._requires_grad, t._node = True, self.outer_nodes.get(n, t._node)
            return t  # type: ignore[no-any-return]
        plain = wrap(t._array)
        plain._versions = versions_of(t)
        return plain

    def become(self, value: Value, real: Tensor) -> None:
        """A promised tensor is a real one from now on."""
        self.arrays[value.slot] = real._array
        t = self.tensors[value.index]
        if t is None:  # inside a region, or nobody's any more
            self.tensors[value.index] = real
            return
        if isinstance(t._array, Pending):
            t._array.become(real._array)
        box = t._versions
        t._requires_grad, t._node = False, None
        t.__dict__.update(real.__dict__)
        if box is not None and t._versions is not box:
            keep_counter(t, box)

    def interpret_backward(self, entry: Backward) -> None:
        tensors, values = self.tensors, self.trace.values
        for effect in entry.effects:
            tensors[effect.leaf]._grad = None if effect.before is None else tensors[effect.before]
        roots = [tensors[n] for n in entry.roots]
        seeds = [tensors[n] for n in entry.given]
        wanted = None if entry.wanted is None else [tensors[n] for n in entry.wanted]
        leaves = [tensors[n] for n, _ in entry.flags]
        hooks = [(leaf, leaf._hooks, leaf._after_accumulate) for leaf in leaves]
        kept = [(node, node.hooks, node.retained) for node in self.made.values()]
        for leaf in leaves:  # there were none: they came after the pass
            leaf._hooks = leaf._after_accumulate = None
        for node, _, _ in kept:
            node.hooks = node.retained = None
        try:
            found = backward_pass(roots, None if entry.implicit else seeds, entry.retain, False, wanted, entry.accumulate)
        finally:
            for leaf, before, after in hooks:
                leaf._hooks, leaf._after_accumulate = before, after
            for node, before, after in kept:
                node.hooks, node.retained = before, after
        for effect in entry.effects:
            leaf = tensors[effect.leaf]
            if effect.before != effect.after:
                self.become(values[effect.after], leaf._grad)
                leaf._grad = tensors[effect.after]
        for n, t in zip(entry.found, found, strict=True):
            if n is not None and t is not None:
                self.become(values[n], t)

    # ---- when there is no way back

    def wreck(self) -> None:
        """A program failed in the middle, after it may have written: what it has made is there, gradients are as they were."""
        for entry in self.entries[self.start : self.cursor]:
            for effect in entry.effects if isinstance(entry, Backward) else ():
                leaf = self.tensors[effect.leaf]
                if leaf._grad is self.tensors[effect.after] and isinstance(leaf._grad._array, Pending):
                    leaf._grad = None
        for n, t in enumerate(self.tensors):
            if t is not None and isinstance(t._array, Pending) and t._array.frame is self:
                array = self.arrays[self.trace.values[n].slot]
                if array is not None:
                    t._array.become(array)
                    t._array = array
                t._node = None if t._node is PENDING else t._node


def keep_counter(t: Tensor, box: list[int]) -> None:
    """What `detach()` made of a tensor while it was promised shares its version counter: so the tensor keeps it, and what the
    op has saved of its own result is counted by it."""
    made, t._versions = t._versions, box

    def counted(value: Any) -> Any:
        if type(value) is not tuple or not value:
            return value
        if type(value[0]) is tuple:
            return tuple(map(counted, value))
        return (value[0], box, box[0], *value[3:]) if len(value) == 4 and value[1] is made else value

    node = None if t._node is None else t._node.owner()
    if node is not None and type(node.saved) is dict:
        node.saved = {name: counted(value) for name, value in node.saved.items()}
