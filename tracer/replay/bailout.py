"""Bailout to eager execution: the entries matched since the last segment are run, and pending tensors become their results.

Nothing has been written yet, so ops see their recorded inputs: tensors from outside with their own memory, runtime scalars as
bound, gradients as they were before each backward pass. Changes that the user made in between without an op (flags, gradients,
hooks) are restored afterwards.
"""

from __future__ import annotations

from typing import Any

from ...eager.arrays.deferred import DeferredArray
from ...eager.core.dispatch import execute
from ...eager.core.tape.node import PLACEHOLDER_NODE, Node, _numbers
from ...eager.core.tensor import Tensor, versions_of, wrap
from ..record.backward_recorder import backward_pass
from ..trace.call_frame import CallFrame
from ..trace.trace import Backward, Call, Entry, Number, Value


class Bailout(CallFrame):
    """Mixin of `Replayer` that continues without the trace."""

    entries: list[Entry]
    cursor: int  # index of the next entry to match
    start: int  # index of the first entry of the segment
    held: list[Any]  # array of each value, deferred or computed
    slots: dict[int, int]  # id of a computed array -> its slot
    earlier: dict[int, tuple[Any, bool]]  # tensors with a pending new history: the one they had
    copies: dict[int, Any]  # values whose memory other code can write: a copy from when they appeared
    used: list[Node]  # nodes that passes in this segment will free: the only references to their saved values
    hidden: list[int]  # values from outside whose memory this segment writes
    as_they_are: list[tuple[Tensor, bool, Any]]  # while entries run: flags and history changed by the user since

    def unchanged(self, n: int) -> bool:
        """True if memory that other code can write still equals its copy."""
        t = self.tensors[n]
        return self.slots.get(id(t.tj_array)) == self.trace.values[n].slot and t.tj_array.tobytes() == self.copies[n].tobytes()

    def reveal(self) -> None:
        """Show the own memory of tensors from outside again."""
        tensors, arrays, held, values = self.tensors, self.arrays, self.held, self.trace.values
        for n in self.hidden:
            t, array = tensors[n], arrays[values[n].slot]
            pending = t.tj_array
            if isinstance(pending, DeferredArray):  # an earlier attempt may have been interrupted
                pending.real = array
                pending.frame = None
                t.tj_array = held[n] = array
        self.hidden.clear()

    # ---- running the entries

    def interpret(self) -> None:
        """Run the entries since the last segment eagerly. Pending tensors become the real results."""
        now = [(t, t.tj_grad) for t in self.tensors if t is not None]
        flags = [
            (t, t.tj_requires_grad, t.tj_node) for t in self.tensors if t is not None and isinstance(t.tj_array, DeferredArray)
        ]
        self.reveal()
        for n, (node, wanted) in self.earlier.items():
            if self.tensors[n] is not None:
                self.tensors[n].tj_node, self.tensors[n].tj_requires_grad = node, wanted
        self.earlier.clear()
        seen = [(n, self.tensors[n], a) for n, a in self.copies.items() if self.tensors[n] is not None]
        changed = [(t, t.tj_array, a) for n, t, a in seen if not self.unchanged(n)]
        for t, _, copy in changed:  # the ops saw the memory as it was then
            t.tj_array = copy
        self.separate_numbers()
        first = next(_numbers)
        state = self.state
        was = state.grad
        self.as_they_are = []
        self.broken = True  # an op that raises has done its part, and must not run again
        try:
            with self.eagerly():
                for entry in self.entries[self.start : self.cursor]:
                    if isinstance(entry, Call):
                        state.grad = entry.grad
                        self.interpret_call(entry)
                    elif isinstance(entry, Backward):
                        self.interpret_backward(entry)
            self.broken = False
        finally:
            state.grad = was
            for t, array, _ in changed:
                t.tj_array = array
            for t, wanted, node in reversed(self.as_they_are):
                t.tj_requires_grad, t.tj_node = wanted, node
            self.as_they_are = []
        if changed:
            self.keep_memory({id(copy): array for _, array, copy in changed}, first)
        for t, wanted, node in flags:  # changed by the user since
            if node is None and t.tj_node is not None and not wanted:
                t.tj_node, t.tj_requires_grad = None, False
            elif wanted and not t.tj_requires_grad:
                t.tj_requires_grad = True
        for t, grad in now:
            if t.tj_grad is not grad:
                t.tj_grad = grad
        self.used.clear()
        for n, t in enumerate(self.tensors):
            if t is not None and not isinstance(t.tj_array, DeferredArray):
                slot = self.trace.values[n].slot
                self.held[n] = self.arrays[slot] = t.tj_array
                self.copies.pop(n, None)
                self.slots[id(t.tj_array)] = slot
                self.number[id(t)] = n

    def keep_memory(self, memory: dict[int, Any], first: int) -> None:
        """Keep memory that ops saved for their gradients and that other code writes: the tape must hold that memory, not a
        copy."""

        def own(value: Any) -> Any:
            if type(value) is not tuple or not value:
                return value
            if type(value[0]) is tuple:
                return tuple(map(own, value))
            return (memory.get(id(value[0]), value[0]), *value[1:])

        stack = [t.tj_node for t in self.tensors if t is not None]
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            if isinstance(node, Node) and node.number >= first and id(node) not in seen:
                seen.add(id(node))
                stack.extend(node.edges)
                if type(node.saved) is dict:
                    node.saved = {name: own(value) for name, value in node.saved.items()}

    def separate_numbers(self) -> None:
        """Make each runtime scalar since the last segment an object of its own, before nodes save it: a recording that goes on
        from here tells numbers apart by identity, and one float may have been given to several ops."""
        if self.trace.counts:  # not in a first call, whose recorder has done so
            first = self.trace.counts[self.start][2]
            self.scalars[first:] = [x * 1.0 if type(x) is float else x for x in self.scalars[first:]]

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
        """Return a tensor as an op saw it: the user may have changed requires_grad since."""
        t = self.tensors[n]
        if isinstance(t.tj_array, DeferredArray):  # an alias
            t.tj_array = self.arrays[self.trace.values[n].slot]
        if t.tj_requires_grad is flag:
            return t  # type: ignore[no-any-return]
        if flag:
            self.as_they_are.append((t, t.tj_requires_grad, t.tj_node))
            t.tj_requires_grad, t.tj_node = True, self.outer_nodes.get(n, t.tj_node)
            return t  # type: ignore[no-any-return]
        plain = wrap(t.tj_array)
        plain.tj_versions = versions_of(t)
        return plain

    def become(self, value: Value, real: Tensor) -> None:
        """Turn a pending tensor into a real one."""
        self.arrays[value.slot] = real.tj_array
        t = self.tensors[value.index]
        if t is None:  # inside a region, or no longer referenced
            self.tensors[value.index] = real
            return
        if isinstance(t.tj_array, DeferredArray):
            t.tj_array.become(real.tj_array)
        box = t.tj_versions
        t.tj_requires_grad, t.tj_node = False, None
        t.__dict__.update(real.__dict__)
        if box is not None and t.tj_versions is not box:
            keep_counter(t, box)

    def interpret_backward(self, entry: Backward) -> None:
        tensors, values = self.tensors, self.trace.values
        for effect in entry.effects:
            tensors[effect.leaf].tj_grad = None if effect.before is None else tensors[effect.before]
        roots = [tensors[n] for n in entry.roots]
        seeds = [tensors[n] for n in entry.given]
        wanted = None if entry.wanted is None else [tensors[n] for n in entry.wanted]
        leaves = [tensors[n] for n, _ in entry.flags]
        hooks = [(leaf, leaf.tj_hooks, leaf.tj_accumulate_hooks) for leaf in leaves]
        kept = [(node, node.hooks, node.retained) for node in self.made.values()]
        for leaf in leaves:  # there were none: they were set after the pass
            leaf.tj_hooks = leaf.tj_accumulate_hooks = None
        for node, _, _ in kept:
            node.hooks = node.retained = None
        try:
            found = backward_pass(roots, None if entry.implicit else seeds, entry.retain, False, wanted, entry.accumulate)
        finally:
            for leaf, before, after in hooks:
                leaf.tj_hooks, leaf.tj_accumulate_hooks = before, after
            for node, before, after in kept:
                node.hooks, node.retained = before, after
        for effect in entry.effects:
            leaf = tensors[effect.leaf]
            if effect.before != effect.after:
                self.become(values[effect.after], leaf.tj_grad)
                leaf.tj_grad = tensors[effect.after]
        for n, t in zip(entry.found, found, strict=True):
            if n is not None and t is not None:
                self.become(values[n], t)

    # ---- failures after writes, where no bailout is possible

    def expose_partial_results(self) -> None:
        """Expose the results of a program that failed after it may have written: computed arrays are shown, gradients are
        unchanged."""
        for entry in self.entries[self.start : self.cursor]:
            for effect in entry.effects if isinstance(entry, Backward) else ():
                leaf = self.tensors[effect.leaf]
                if leaf.tj_grad is self.tensors[effect.after] and isinstance(leaf.tj_grad.tj_array, DeferredArray):
                    leaf.tj_grad = None
        for n, t in enumerate(self.tensors):
            if t is not None and isinstance(t.tj_array, DeferredArray) and t.tj_array.frame is self:
                array = self.arrays[self.trace.values[n].slot]
                if array is not None:
                    t.tj_array.become(array)
                    t.tj_array = array
                t.tj_node = None if t.tj_node is PLACEHOLDER_NODE else t.tj_node


def keep_counter(t: Tensor, box: list[int]) -> None:
    """Keep the version counter of a pending tensor: its `detach()` shares that counter, so the real tensor takes it over, and
    values that the op saved of its own result refer to it too."""
    made, t.tj_versions = t.tj_versions, box

    def counted(value: Any) -> Any:
        if type(value) is not tuple or not value:
            return value
        if type(value[0]) is tuple:
            return tuple(map(counted, value))
        return (value[0], box, box[0], *value[3:]) if len(value) == 4 and value[1] is made else value

    node = None if t.tj_node is None else t.tj_node.owner()
    if node is not None and type(node.saved) is dict:
        node.saved = {name: counted(value) for name, value in node.saved.items()}
