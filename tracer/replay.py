"""Replaying: Python runs again, and each op is compared with the next entry of a recording instead of being run.

What matches gives a tensor that is pending. At the end of a segment, when all has matched, the program runs once, and tensors
that are still alive get their arrays and their place on the tape. What does not match is a divergence: what was matched since
the last segment is run eagerly, from arrays that nobody has written to, and the rest of the call is recorded as another path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..eager.devices import device_of
from ..eager.op import Op, execute
from ..eager.pending import Pending, form_of, resolved
from ..eager.tape import FREED, PENDING, State, edge_of, run_backward
from ..eager.tensor import Tensor, versions_of, wrap
from .blueprint import Plan, Snapshot, build
from .checks import CHECKS
from .frame import Frame, expanded, refuses, run_parts
from .program import make_program, used_slots, writes
from .record import Recorder
from .trace import Alias, Backward, Break, Call, Constant, End, First, Number, Trace, users_line

_new = object.__new__


class Replayer(Frame):
    """A handler of `apply` that compares and promises."""

    broken = False  # a program failed in the middle

    def __init__(self, state: State, trace: Trace, function: Any) -> None:
        super().__init__(state, trace)
        self.function = function  # the compiled function: its other paths, and whom to tell about divergences
        self.entries = trace.entries
        self.cursor = 0
        self.start = 0  # where the segment begins
        self.scalars = [None] * trace.numbers
        self.slots: dict[int, int] = {}  # id of an array that is there -> its slot
        self.hidden: list[tuple[Tensor, int]] = []  # tensors from outside whose memory this segment writes, and their slots

    # ---- ops

    def __call__(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        entry = self.entries[self.cursor]
        if (
            entry.op is not op
            or self.state.grad is not entry.grad
            or (attrs is not entry.attrs and attrs != entry.attrs)
            or not self.matches(entry, inputs, out)
        ):
            return self.otherwise(op, inputs, attrs, out)
        return self.promise(entry, out)

    def promise(self, entry: Call, out: Tensor | None) -> Any:
        """The results of an entry that has matched, pending."""
        self.cursor += 1
        if out is not None:
            if entry.turned:
                out._requires_grad = True
            if out._requires_grad and (entry.turned or out._node is not None) and entry.grad:
                out._node = PENDING
            self.write(entry)
            return out
        tensors, arrays = self.tensors, self.arrays
        made = None
        for value in entry.results:
            made = _new(Tensor)
            made._array = array = _new(value.form)
            array.frame = self
            array.slot = value.slot
            array.real = None
            if value.requires_grad:
                made._requires_grad = True
                made._node = PENDING
            tensors.append(made)
            arrays.append(None)
        if entry.mutated:
            self.write(entry)
        if not entry.several:
            return made
        return tuple(tensors[-len(entry.results) :])

    def matches(self, entry: Call, inputs: tuple[Any, ...], out: Tensor | None) -> bool:
        """Whether inputs are what was recorded. Tensors that appear for the first time get their numbers."""
        if out is not None:
            inputs = (*inputs, out)
        if len(inputs) != len(entry.wants) or (out is None) is not (entry.out is None):
            return False
        before = len(self.tensors)
        if not self.all_match(entry, inputs):
            self.forget(before)
            return False
        return True

    def all_match(self, entry: Call, inputs: tuple[Any, ...]) -> bool:
        tensors = self.tensors
        for x, want, flag in zip(inputs, entry.wants, entry.flags, strict=True):
            kind = want.__class__
            if kind is int:
                if x is not tensors[want] or x._requires_grad is not flag:
                    return False
            elif kind is Number:
                if x.__class__ is not want.type:
                    return False
                self.scalars[want.place] = x
            elif kind is Constant:
                if x.__class__ is not want.value.__class__ or not same(x, want.value):
                    return False
            elif isinstance(x, Tensor) and self.fits(want, x):
                self.bind(want, x)
            else:
                return False
        if entry.check is not None:
            if entry.check.pending(inputs):
                return False
            entry.check(inputs, entry.attrs)
        return True

    def forget(self, count: int) -> None:
        """Take back the numbers of tensors that came after the first `count`."""
        for n in range(len(self.tensors) - 1, count - 1, -1):
            t, value = self.tensors.pop(), self.trace.values[n]
            del self.number[id(t)]
            if value.slot == len(self.arrays) - 1:
                self.slots.pop(id(self.arrays.pop()), None)

    def fits(self, want: Any, x: Tensor) -> bool:
        """Whether a tensor that appears for the first time is of the recorded form."""
        value, array = want.value, x._array
        if x._requires_grad is not value.requires_grad or id(x) in self.number:
            return False
        if isinstance(array, Pending):
            if array.frame is not self:
                array = x._array = resolved(array)
            elif want.__class__ is Alias:
                return array.slot == value.slot  # type: ignore[no-any-return]
            else:
                return False
        if want.__class__ is Alias:
            return array is self.arrays[value.slot]
        form = value.form
        if array.shape != form.shape or array.dtype is not form.dtype or array.strides != form.strides:
            return False
        return device_of(array) == form.where and (x._node is not None) is value.tracked and id(array) not in self.slots

    def bind(self, want: Any, x: Tensor) -> None:
        """Give a tensor its number."""
        self.number[id(x)] = want.value.index
        self.tensors.append(x)
        if want.__class__ is First:
            slot = want.value.slot
            self.arrays.append(x._array)
            self.slots[id(x._array)] = slot
            self.boxes[slot] = versions_of(x)
            if x._node is not None:
                self.outer_nodes[want.value.index] = edge_of(x)

    def write(self, entry: Any) -> None:
        """Memory from outside will be written: nobody may see it before. Where others can see it, it is written now."""
        for n in entry.mutated:
            t, value = self.tensors[n], self.trace.values[n]
            if isinstance(t._array, Pending):
                continue
            if not self.sole(value.slot):
                following = self.entries[self.cursor]
                if isinstance(following, Break) and not isinstance(following, End):
                    self.segment()
                else:
                    self.diverge("memory that others can see is written")
                return
            self.hidden.append((t, value.slot))
            t._array = value.form(self, value.slot)

    # ---- what is not the next entry

    def otherwise(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        if expanded(op, inputs, self.state):
            return run_parts(op, inputs, attrs, out)
        entry = self.entries[self.cursor]
        planned = isinstance(entry, Break) and not isinstance(entry, End)
        if refuses(op, inputs):
            check = None if op.data_dependent else CHECKS.get(op.name)
            if check is None:
                return self.outside(execute, f"{op.name} depends on values", op, inputs, attrs, out, self.state)
            if check.pending(inputs):
                if planned:
                    self.segment()
                    return self(op, inputs, attrs, out)
                self.diverge(f"{op.name} looks at its indices")
                return self(op, inputs, attrs, out)
        if self.other_path(
            lambda e: e.op is op and e.grad is self.state.grad and e.attrs == attrs and self.matches(e, inputs, out)
        ):
            return self.promise(self.entries[self.cursor], out)
        self.diverge(self.difference(entry, op, inputs, attrs))
        return self(op, inputs, attrs, out)

    def difference(self, entry: Any, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> str:
        """How an op differs from the recorded one, in words."""
        if not isinstance(entry, Call):
            return f"{op.name} comes where the recording has {entry!r}"
        if entry.op is not op:
            return f"{op.name} comes where the recording has {entry.op.name}"
        if attrs != entry.attrs:
            return f"{op.name} is given {attrs}, and was given {entry.attrs}"
        if self.state.grad is not entry.grad:
            return f"{op.name} runs {'with' if self.state.grad else 'without'} gradients, unlike the recording"
        for x, want in zip(inputs, entry.wants, strict=False):
            if isinstance(want, First) and isinstance(x, Tensor):
                found, form = x._array, want.value.form
                if found.shape != form.shape:
                    return f"{op.name} is given a tensor of shape {list(found.shape)}, and was given {list(form.shape)}"
                if found.dtype != form.dtype:
                    return f"{op.name} is given {found.dtype}, and was given {form.dtype}"
                if x._requires_grad is not want.value.requires_grad:
                    return f"{op.name} is given a tensor with requires_grad={x._requires_grad}, unlike before"
            if isinstance(want, Constant) and not same(x, want.value):
                return f"{op.name} is given the number {x!r}, and was given {want.value!r}"
        return f"{op.name} is given other tensors than in the recording"

    def other_path(self, fits: Callable[[Any], bool]) -> bool:
        """Change to another recording that began alike and goes on as Python does now."""
        for other in self.function.siblings(self.trace, self.cursor, bool(self.made)):
            mine = self.trace
            self.trace, self.entries = other, other.entries
            if len(self.scalars) < other.numbers:
                self.scalars.extend([None] * (other.numbers - len(self.scalars)))
            if fits(other.entries[self.cursor]):
                return True
            self.trace, self.entries = mine, mine.entries
        return False

    # ---- segments

    def read(self, pending: Pending) -> Any:
        """A value is wanted."""
        if pending.real is None:
            if isinstance(self.entries[self.cursor], End) or not isinstance(self.entries[self.cursor], Break):
                if self.other_path(lambda e: type(e) is Break):
                    self.segment()
                else:
                    self.diverge("a value is read")
            else:
                self.segment()
        return pending.real

    def settle(self, t: Tensor) -> None:
        self.diverge("the tape is looked at")

    def outside(self, function: Callable[..., Any], reason: str, *args: Any, **kwargs: Any) -> Any:
        """Run something that is not recorded, on tensors that are all there."""
        entry = self.entries[self.cursor]
        if type(entry) is Break or self.other_path(lambda e: type(e) is Break):
            self.segment()
        elif self.start != self.cursor or self.cursor == 0 or not isinstance(self.entries[self.cursor - 1], Break):
            self.diverge(reason)
            return self.outside(function, reason, *args, **kwargs)
        return self.untraced(function, *args, **kwargs)

    def finish(self) -> None:
        """The function has returned."""
        if not isinstance(self.entries[self.cursor], End) and not self.other_path(lambda e: isinstance(e, End)):
            self.diverge("the function returns earlier")
            self.finish()
            return
        self.segment()

    def segment(self) -> None:
        """Everything up to the break that the cursor is at has matched: compute it."""
        stop = self.cursor
        entry = self.entries[stop]
        if entry.state is None:
            self.interpret()
        else:
            self.compute(stop, entry.state)
        self.cursor = self.start = stop + 1

    def compute(self, stop: int, snapshot: Snapshot) -> None:
        """Run the program of a segment and hand out what it made."""
        trace, values, tensors = self.trace, self.trace.values, self.tensors
        alive = self.alive()
        seen = set(alive)
        slots = {values[n].slot for n in alive}
        tops = set()
        for n, plan in snapshot.nodes.items():
            t = tensors[n] if n < len(tensors) else None
            if t is not None and t._node is PENDING and (n in seen or values[n].slot in trace.outside):
                tops.add(plan)
        key = (self.start, stop, frozenset(slots), frozenset(tops))
        program = trace.programs.get(key)
        if program is None:
            keep = frozenset(slots) | snapshot.slots(tops) | used_slots(trace, stop)
            program = trace.programs[key] = (make_program(trace, self.start, stop, keep), writes(trace, self.start, stop))
        for t, slot in self.hidden:
            t._array.real = self.arrays[slot]
            t._array.frame = None
            t._array = self.arrays[slot]
        self.hidden.clear()
        run, written = program
        self.broken = True
        run(self.arrays, self.scalars)
        self.broken = False
        for root, count in written.items():
            self.versions(root)[0] += count
        self.hand_out(alive, snapshot, tops)

    def alive(self) -> list[int]:
        """Values that are pending and that somebody can still see, and what they are views of."""
        found = set()
        tensors, values = self.tensors, self.trace.values
        count, references = len(tensors), sys.getrefcount
        for n in range(count):
            t = tensors[n]
            if t is None or not isinstance(t._array, Pending):
                continue
            # `tensors` and `t` and the argument; for the array the tensor and the argument
            if references(t) > 3 or references(t._array) > 2:
                found.add(n)
                view = values[n].view
                if view is not None and isinstance(tensors[view[0]]._array, Pending):
                    found.add(view[0])
        hidden = {id(t) for t, _ in self.hidden}
        return sorted(n for n in found if id(tensors[n]) not in hidden)

    def hand_out(self, alive: list[int], snapshot: Snapshot, tops: set[Plan]) -> None:
        tensors, values, arrays = self.tensors, self.trace.values, self.arrays
        for n in alive:
            value, t = values[n], tensors[n]
            pending = t._array
            pending.real = arrays[value.slot]
            pending.frame = None
            t._array = pending.real
            self.slots[id(pending.real)] = value.slot
            self.number[id(t)] = n
            if value.view is not None:
                base = tensors[value.view[0]]
                t._base, t._chain, t._made_without_grad = base, value.view[1], value.view[2]
                t._rebased = base._rebased
            if t._versions is None:
                t._versions = self.versions(value.slot)
        for plan in snapshot.freed & self.made.keys():
            self.made[plan].saved = FREED
        build(tops, snapshot, self)
        for n, plan in snapshot.nodes.items():
            t = tensors[n] if n < len(tensors) else None
            if t is not None and t._node is PENDING and plan in self.made:
                t._node = self.made[plan]
        for n, t in enumerate(tensors):
            if t is not None and isinstance(t._array, Pending):
                tensors[n] = None  # dead: nobody can hand it to an op again

    # ---- divergence

    def diverge(self, reason: str) -> None:
        """Run what has matched eagerly, and go on recording."""
        self.function.diverged(self, reason, users_line())
        self.interpret()
        trace, self.trace = self.trace, Trace()
        self.trace.entries = trace.entries[: self.cursor]
        self.trace.values = trace.values[: len(self.tensors)]
        self.trace.roots = trace.roots[: len(self.arrays)]
        self.trace.outside = {s for s in trace.outside if s < len(self.arrays)}
        places = [w.place for e in self.trace.entries if isinstance(e, Call) for w in e.wants if isinstance(w, Number)]
        self.trace.numbers = 1 + max(places, default=-1)
        del self.scalars[self.trace.numbers :]
        self.__class__ = Recorder  # type: ignore[assignment]
        self.prepare()  # type: ignore[attr-defined]

    def interpret(self) -> None:
        """Run the entries since the last segment eagerly. The tensors that were promised become the real results."""
        now = {id(t): t._grad for t in self.tensors if t is not None}
        flags = [(t, t._requires_grad, t._node) for t in self.tensors if t is not None and isinstance(t._array, Pending)]
        for t, slot in self.hidden:
            t._array.real = self.arrays[slot]
            t._array.frame = None
            t._array = self.arrays[slot]
        self.hidden.clear()
        for n, t in enumerate(self.tensors):  # those from outside that were promised a history get it when it is made
            if t is not None and t._node is PENDING and not isinstance(t._array, Pending):
                t._node, t._requires_grad = self.outer_nodes.get(n), self.trace.values[n].requires_grad
        state = self.state
        was = state.grad
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
        for t, wanted, node in flags:  # what the user changed himself since
            if node is None and t._node is not None and not wanted:
                t._node, t._requires_grad = None, False
            elif wanted and not t._requires_grad:
                t._requires_grad = True
        for t in self.tensors:
            if t is not None and id(t) in now and now[id(t)] is not t._grad:
                t._grad = now[id(t)]

    def interpret_call(self, entry: Call) -> None:
        given: list[Any] = []
        for x, flag in zip(entry.inputs, entry.flags, strict=False):
            if isinstance(x, int):
                given.append(self.as_it_was(self.tensors[x], self.trace.values[x].slot, flag))
            else:
                given.append(self.scalars[x.place] if isinstance(x, Number) else x.value)
        out = None
        if entry.out is not None:
            out = self.as_it_was(self.tensors[entry.out], self.trace.values[entry.out].slot, entry.flags[-1])
        result = execute(entry.op, tuple(given), entry.attrs, out, self.state)
        made = result if entry.several else (result,)
        for value, real in zip(entry.results, made, strict=False):
            self.become(value.index, real)

    def as_it_was(self, t: Tensor, slot: int, flag: bool) -> Tensor:
        """A tensor as an op saw it: the user may have changed since whether it wants a gradient."""
        if isinstance(t._array, Pending):  # an alias
            t._array = self.arrays[slot]
        if t._requires_grad is flag:
            return t
        if flag:
            t._requires_grad = True
            return t
        plain = wrap(t._array)
        plain._versions = versions_of(t)
        return plain

    def become(self, n: int, real: Tensor) -> None:
        """A promised tensor is a real one from now on."""
        slot = self.trace.values[n].slot
        self.arrays[slot] = real._array
        t = self.tensors[n]
        if t is None:
            return
        if isinstance(t._array, Pending):
            t._array.real = real._array
            t._array.frame = None
        t._requires_grad, t._node = False, None
        t.__dict__.update(real.__dict__)
        self.number[id(t)] = n

    def interpret_backward(self, entry: Backward) -> None:
        tensors = self.tensors
        for effect in entry.effects:
            tensors[effect.leaf]._grad = None if effect.before is None else tensors[effect.before]
        roots = [tensors[n] for n in entry.roots]
        seeds = [tensors[n] for n in entry.given]
        wanted = None if entry.wanted is None else [tensors[n] for n in entry.wanted]
        found = run_backward(roots, seeds, entry.retain, False, wanted, entry.accumulate)
        for effect in entry.effects:
            leaf = tensors[effect.leaf]
            if effect.before != effect.after:
                self.become(effect.after, leaf._grad)
                leaf._grad = tensors[effect.after]
        for n, t in zip(entry.found, found, strict=True):
            if n is not None and t is not None:
                self.become(n, t)

    # ---- backward

    def backward(
        self, roots: Any, seeds: Any, retain_graph: bool, create_graph: bool, wanted: Any, accumulate: bool
    ) -> list[Tensor | None]:
        entry = self.entries[self.cursor]
        given = (roots, seeds, retain_graph, create_graph, wanted, accumulate)
        if not (isinstance(entry, Backward) and self.same_pass(entry, *given)):
            if not self.other_path(lambda e: isinstance(e, Backward) and self.same_pass(e, *given)):
                if type(entry) is Break:
                    return self.outside(run_backward, "backward", *given)  # type: ignore[no-any-return]
                self.diverge("another backward pass than in the recording")
                return self.backward(*given)
            entry = self.entries[self.cursor]
        self.cursor += 1
        values, tensors = self.trace.values, self.tensors
        for leaf, value in entry.firsts:
            g = tensors[leaf]._grad
            self.number[id(g)] = value.index
            self.boxes[value.slot] = versions_of(g)
            self.slots[id(g._array)] = value.slot
            self.place(value.index, g)
            while len(self.arrays) <= value.slot:
                self.arrays.append(None)
            self.arrays[value.slot] = g._array
        end = entry.end
        tensors.extend([None] * (end[0] - len(tensors)))
        self.arrays.extend([None] * (end[1] - len(self.arrays)))
        for effect in entry.effects:
            if effect.before is None:
                tensors[effect.leaf]._grad = self.promised(values[effect.after])
        found = [None if n is None else self.promised(values[n]) for n in entry.found]
        if entry.mutated:
            self.write(entry)
        return found

    def place(self, n: int, t: Tensor) -> None:
        self.tensors.extend([None] * (n + 1 - len(self.tensors)))
        self.tensors[n] = t

    def promised(self, value: Any) -> Tensor:
        known = self.tensors[value.index]
        if known is not None:
            return known  # type: ignore[no-any-return]
        t = wrap(value.form(self, value.slot))
        self.tensors[value.index] = t
        return t

    def same_pass(
        self, entry: Backward, roots: Any, seeds: Any, retain_graph: bool, create_graph: bool, wanted: Any, accumulate: bool
    ) -> bool:
        """Whether a backward pass is the recorded one. What it does follows from its roots, unless somebody added a hook or
        changed a gradient since."""
        tensors = self.tensors
        if create_graph or retain_graph is not entry.retain or accumulate is not entry.accumulate:
            return False
        if len(roots) != len(entry.roots) or any(r is not tensors[n] for r, n in zip(roots, entry.roots, strict=True)):
            return False
        for s, want in zip(seeds, entry.seeds, strict=True):
            if not isinstance(want, int) or s is not tensors[want]:
                return False
        if (wanted is None) is not (entry.wanted is None):
            return False
        if wanted is not None and (
            len(wanted) != len(entry.wanted) or any(w is not tensors[n] for w, n in zip(wanted, entry.wanted, strict=True))
        ):
            return False
        for node in self.made.values():
            if node.hooks or node.retained is not None or "gradients" in node.__dict__:
                return False
        firsts = dict(entry.firsts)
        for effect in entry.effects:
            leaf = tensors[effect.leaf]
            if leaf._hooks or leaf._after_accumulate or leaf._node is not None:
                return False
            g = leaf._grad
            if effect.before is None:
                if g is not None:
                    return False
            elif effect.leaf in firsts:
                if g is None or g._requires_grad or id(g) in self.number or not self.has_form(g, firsts[effect.leaf].form):
                    return False
            elif g is not tensors[effect.before]:
                return False
        return True

    def has_form(self, t: Tensor, form: type[Pending]) -> bool:
        return not isinstance(t._array, Pending) and form_of(t._array, device_of(t._array)) is form


def same(a: Any, b: Any) -> bool:
    """Equal, also if both are NaN, and zeros of one sign."""
    return bool(a == b and str(a) == str(b)) or (a != a and b != b)
