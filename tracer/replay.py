"""Replaying: Python runs again, and each op is compared with the next entry of a recording instead of being run.

What matches gives a tensor that is pending. At the end of a segment, when all has matched, the program runs once, and tensors
that are still alive get their arrays and their place on the tape. What does not match is a divergence: what was matched since
the last segment is run eagerly, from arrays that nobody has written to, and the rest of the call is recorded as another path.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from time import perf_counter
from types import MethodType
from typing import Any

import numpy as np

from ..eager.devices import device_of
from ..eager.exposure import exposed
from ..eager.nn.module import Module
from ..eager.op import Op, execute
from ..eager.optim.optimizer import Optimizer
from ..eager.pending import Pending, resolved
from ..eager.tape import FREED, PENDING, State, _numbers, edge_of
from ..eager.tensor import Tensor, tensor_changed, versions_of, wrap
from .blueprint import LateNode, Snapshot, build
from .checks import CHECKS
from .closing import LONE_TENSOR, Closing, make_closing
from .explain import logged, shown
from .fallback import Fallback
from .frame import expanded, refuses, run_parts
from .generators import Warming
from .joint import joint_of
from .passes import printed
from .program import Segment, used_slots
from .record import Recorder, backward_pass
from .references import LONE, LONE_COUNTS, counts, references, referred
from .regions import MISSED
from .source import LONE_HELD
from .steps import general
from .trace import WRITTEN, Alias, Backward, Break, Call, Constant, End, First, Number, Trace, Value, alike, users_line

CLOSINGS = 3  # how often the functions for the end of a call may be written anew
_new = object.__new__


class Replayer(Fallback):
    """A handler of `apply` that compares and promises."""

    broken = False  # a program failed in the middle

    def __init__(self, state: State, trace: Trace, function: Any) -> None:
        self.state = state
        self.trace = trace
        self.function = function  # the compiled function: its other paths, and whom to tell about divergences
        self.entries = trace.entries
        self.cursor = self.start = 0
        self.tensors = [None] * len(trace.values)
        self.held = [None] * len(trace.values)
        self.arrays = [None] * len(trace.roots)
        self.scalars = [None] * trace.numbers
        self.number = {}
        self.slots = {}
        self.moved = {}
        self.earlier = {}
        self.copies = {}
        self.used = []
        self.hidden = []
        self.outer_nodes = {}
        self.made = {}
        self.boxes = {}
        self.foreign = []
        self.begin = next(_numbers)

    # ---- ops

    def __call__(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        step = self.trace.steps[self.cursor]
        if step is not general:
            return step(self, op, inputs, attrs, out)
        entry = self.entries[self.cursor]
        if entry.op is op and self.matches(entry, inputs, attrs, out):
            return self.promise(entry, out)
        return self.otherwise(op, inputs, attrs, out)

    def promise(self, entry: Call, out: Tensor | None) -> Any:
        """The results of an entry that has matched, pending."""
        self.move(self.cursor + 1)
        made = [self.promised(value) for value in entry.results]
        if out is not None and entry.grad and (entry.turned or (out._requires_grad and out._node is not None)):
            if out._node is not PENDING and entry.out is not None:
                self.earlier.setdefault(entry.out, (out._node, out._requires_grad))
            out._requires_grad = True
            out._node = PENDING
        if entry.mutated:
            self.write(entry)
        if out is not None:
            return out
        return tuple(made) if entry.several else made[0] if made else None

    def promised(self, value: Value) -> Tensor:
        t = self.tensors[value.index]
        if t is None:
            t = self.tensors[value.index] = wrap(value.form(self, value.slot))
            self.held[value.index] = t._array
            if value.requires_grad:
                t._requires_grad = True
                t._node = PENDING
            if value.view is not None:
                self.link(t, value)
        return t  # type: ignore[no-any-return]

    def link(self, t: Tensor, value: Value) -> None:
        """Tell a view what it is a view of."""
        assert value.view is not None
        n, step, without_grad = value.view
        while self.tensors[n] is None:
            n = self.moved[n]
        x = self.tensors[n]
        base = x if x._base is None else x._base
        t._base, t._chain, t._made_without_grad = base, (*x._chain, step), without_grad or x._made_without_grad
        t._rebased = base._rebased
        t._versions = versions_of(base)

    def move(self, cursor: int) -> None:
        """The next op is compared with this entry."""
        self.cursor = cursor
        if self.state.autocast is None and self.state.handler is not None:
            self.state.handler = MethodType(self.trace.steps[cursor], self)

    def matches(self, entry: Call, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> bool:
        """Whether an op's inputs are what was recorded. Tensors that appear for the first time get their numbers."""
        if self.state.grad is not entry.grad or (attrs is not entry.attrs and not alike(attrs, entry.attrs)):
            return False
        given = inputs if out is None else (*inputs, out)
        if len(given) != len(entry.wants) or (out is None) is not (entry.out is None):
            return False
        for x, want, flag in zip(given, entry.wants, entry.flags, strict=True):
            if not self.fits(want, x, flag):
                return False
        return entry.check is None or entry.check.settled(self, inputs, attrs)

    def fits(self, want: Any, x: Any, flag: Any) -> bool:
        kind = want.__class__
        if kind is int:
            if want in self.copies:
                return x is self.tensors[want] and x._requires_grad is flag and self.unchanged(want)
            return x is self.tensors[want] and x._array is self.held[want] and x._requires_grad is flag
        if kind is Number:
            if x.__class__ is want.type:
                self.scalars[want.place] = x
                return True
            return False
        return want.is_(x) if kind is Constant else self.bind(want, x)  # type: ignore[no-any-return]

    def bind(self, want: Any, x: Any) -> bool:
        """Give a tensor that appears for the first time its number, if it is of the recorded form."""
        if not isinstance(x, Tensor):
            return False
        array = x._array
        if type(array) is np.ndarray and want.__class__ is First and want.plain is not None:  # the usual case at once
            n, slot, shape, dtype, strides, flag = want.plain
            box = x._versions
            if (
                array.dtype is dtype
                and array.shape == shape
                and array.strides == strides
                and x._requires_grad is flag
                and x._node is None
                and (box is None or len(box) == 1 or not exposed(box))
                and (i := id(x)) not in self.number
                and (j := id(array)) not in self.slots
            ):
                self.number[i] = n
                self.slots[j] = slot
                self.tensors[n] = x
                self.held[n] = self.arrays[slot] = array
                return True
        value = want.value
        if x._requires_grad is not value.requires_grad:
            return False
        if isinstance(array, Pending) and array.frame is not self:
            array = x._array = resolved(array)
        known = self.number.get(id(x))
        if known is not None and known >= value.index:
            known = None  # from an attempt to compare with another path
        if known is not None and self.held[known] is array:
            return False  # it should have been named by its number
        if want.__class__ is Alias:
            place = array.slot if isinstance(array, Pending) else self.slots.get(id(array))
            owner = self.trace.owners.get(value.slot)
            if place != value.slot or (owner in self.copies and not self.unchanged(owner)):
                return False
        else:
            if isinstance(array, Pending) or self.slots.get(id(array), value.slot) != value.slot:
                return False
            if (x._node is not None) is not value.tracked or not has_form(array, value.form):
                return False
            self.arrays[value.slot] = array
            if exposed(x._versions):  # somebody may write it before the program runs
                if value.slot not in self.trace.shared:
                    return False
                self.copies[value.index] = self.arrays[value.slot] = copied(array)
            self.slots[id(array)] = value.slot
            if x._node is not None:
                self.outer_nodes[value.index] = edge_of(x)
        if known is not None:
            self.tensors[known] = None  # it shows another array now
            self.moved[known] = value.index
        self.number[id(x)] = value.index
        self.tensors[value.index] = x
        self.held[value.index] = None if value.index in self.copies else array
        return True

    def versions(self, slot: int) -> list[int]:
        root = self.trace.roots[slot]
        owner = self.trace.owners.get(root)
        t = None if owner is None else self.tensors[owner]
        return versions_of(t) if t is not None else super().versions(slot)

    def owner(self, slot: int) -> int | None:
        return self.trace.owners.get(slot)

    def hidden_views(self, array: Any) -> int:
        kept = [v for node in self.used for v in node.saved.values() if type(v) is tuple and v]
        return sum(part[0] is array for v in kept for part in (v if type(v[0]) is tuple else (v,)) if type(part) is tuple)

    def write(self, entry: Any) -> None:
        """Memory from outside will be written: nobody may see it before. Where others can see it, it is written now."""
        tensors, held, arrays, values = self.tensors, self.held, self.arrays, self.trace.values
        for n in entry.mutated:
            t, value = tensors[n], values[n]
            slot = value.slot
            array = arrays[slot]
            if (  # the usual case at once: the array is its own memory, and nothing but the tensor and this frame has it
                t is not None
                and t._array is array
                and array is held[n]
                and type(array) is np.ndarray
                and array.base is None
                and references(array) <= LONE_HELD
                and not self.used
            ):
                pass
            elif t is not None and isinstance(t._array, Pending):
                continue
            else:
                held[n] = array = None
                if t is None or not self.sole(slot):
                    held[n] = None if t is None else t._array
                    self.written_now()
                    return
            self.hidden.append(n)
            t._array = held[n] = pending = _new(value.form)
            pending.frame = self
            pending.slot = slot
        self.have_written()

    def have_written(self) -> None:
        following = self.entries[self.cursor]
        if type(following) is Break and following.reason is WRITTEN:  # others could see it then
            self.segment()

    def written_now(self) -> None:
        if type(self.entries[self.cursor]) is Break:
            self.segment()
        else:
            self.diverge(WRITTEN)
            self.stop(WRITTEN)  # type: ignore[attr-defined]

    # ---- what is not the next entry

    def otherwise(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        if expanded(op, inputs, self.state):
            return run_parts(op, inputs, attrs, out)
        entry = self.entries[self.cursor]
        if self.copies and entry.op is op and self.matches(entry, inputs, attrs, out):
            return self.promise(entry, out)
        if out is not None and self.state.grad and any(isinstance(x, Tensor) and x._requires_grad for x in (*inputs, out)):
            return self.outside(execute, f"{op.name} writes into what has a history", op, inputs, attrs, out, self.state)
        if refuses(op, inputs):
            check = None if op.data_dependent else CHECKS.get(op.name)
            if check is None:
                return self.outside(execute, f"{op.name} depends on values", op, inputs, attrs, out, self.state)
            if not check.settled(self, inputs, attrs):
                if type(entry) is Break:
                    self.segment()
                else:
                    self.diverge(f"{op.name} looks at its indices")
                return self(op, inputs, attrs, out)
        if self.other_path(lambda e: e.op is op and self.matches(e, inputs, attrs, out)):
            return self.promise(self.entries[self.cursor], out)
        self.diverge(self.difference(entry, op, inputs, attrs))
        return self(op, inputs, attrs, out)

    def difference(self, entry: Any, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> str:
        """How an op differs from the recorded one, in words."""
        if not isinstance(entry, Call):
            return f"{op.name} comes where the recording has {entry!r}"
        if entry.op is not op:
            return f"{op.name} comes where the recording has {entry.op.name}"
        if not alike(attrs, entry.attrs):
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
            if isinstance(want, Constant) and not want.is_(x):
                return f"{op.name} is given the number {x!r}, and was given {want.value!r}"
        return f"{op.name} is given other tensors than in the recording"

    def other_path(self, fits: Callable[[Any], bool]) -> bool:
        """Change to another recording that began alike and goes on as Python does now."""
        for other in self.function.siblings(self.trace, self.cursor, bool(self.made)):
            mine = self.trace
            self.follow(other)
            if fits(other.entries[self.cursor]):
                self.move(self.cursor)
                return True
            self.follow(mine)
        return False

    def follow(self, trace: Trace) -> None:
        """Take another recording for the one to compare with: they are the same up to the cursor."""
        values, slots, numbers = trace.counts[self.cursor]
        for n in range(values, len(self.tensors)):
            if self.tensors[n] is not None and self.number.get(id(self.tensors[n])) == n:
                del self.number[id(self.tensors[n])]
        for slot in range(slots, len(self.arrays)):
            if self.arrays[slot] is not None:
                self.slots.pop(id(self.arrays[slot]), None)
        self.tensors[values:] = [None] * (len(trace.values) - values)
        self.held[values:] = [None] * (len(trace.values) - values)
        self.arrays[slots:] = [None] * (len(trace.roots) - slots)
        self.scalars[numbers:] = [None] * (trace.numbers - numbers)
        self.copies = {n: a for n, a in self.copies.items() if n < values}
        self.trace, self.entries = trace, trace.entries

    # ---- segments

    def read(self, pending: Pending) -> None:
        """A value is wanted."""
        self.run_now("a value is read")
        if pending.frame is self:
            raise AssertionError("a pending value was not computed")

    def run_now(self, reason: str) -> None:
        if type(self.entries[self.cursor]) is Break or self.other_path(lambda e: type(e) is Break):
            self.segment()
        else:
            self.diverge(reason)
            self.stop(reason)  # type: ignore[attr-defined]  # it is a recorder now

    def catch_up(self, reason: str) -> None:
        """What has matched has to run now."""
        if self.cursor > self.start:
            self.run_now(reason)

    def looked_at(self, t: Tensor) -> None:
        """Somebody looks at the tape: it has to be there."""
        if isinstance(t._array, Pending) and t._array.frame is self:
            self.read(t._array)

    def settle(self, t: Tensor) -> None:
        self.looked_at(t)

    def outside(self, function: Callable[..., Any], reason: str, *args: Any, **kwargs: Any) -> Any:
        """Run something that is not recorded, on tensors that are all there."""
        if type(self.entries[self.cursor]) is Break or self.other_path(lambda e: type(e) is Break):
            self.segment()
        elif self.cursor == 0 or not isinstance(self.entries[self.cursor - 1], Break):
            self.diverge(reason)
            return self.outside(function, reason, *args, **kwargs)
        return self.untraced(function, *args, **kwargs)

    def finish(self) -> None:
        """The function has returned."""
        entry = self.entries[self.cursor]
        if isinstance(entry, End) and entry.state is not None:
            known = self.trace.segments.get((self.start, self.cursor))
            if known is not None and known.closing is not None and self.ended(known, known.closing):
                return
        if isinstance(entry, End) or self.other_path(lambda e: isinstance(e, End)):
            self.segment()
        else:
            self.diverge("the function returns earlier")
            self.finish()

    def segment(self) -> None:
        """Everything up to the break that the cursor is at has matched: compute it."""
        stop = self.cursor
        snapshot = self.entries[stop].state
        if snapshot is None:
            self.interpret()
        else:
            self.compute(stop, snapshot)
        self.start = stop + 1
        if stop + 1 < len(self.entries):
            self.move(stop + 1)

    def compute(self, stop: int, snapshot: Snapshot) -> None:
        """Run the program of a segment and hand out what it made."""
        alive = self.alive(stop)
        nodes = self.wanted_nodes(snapshot, alive)
        known = self.trace.segments.get((self.start, stop))
        if known is None or known.alive != alive or known.nodes != nodes or (known.joint is not None and self.made):
            known = self.segment_for(stop, snapshot, alive, nodes)
        if type(self.entries[stop]) is End and known.closings < CLOSINGS and not (self.made or self.boxes or self.earlier):
            known.closings += 1
            known.closing = make_closing(self, known, self.start, stop)
        hidden = list(self.hidden)
        if hidden:
            self.reveal()
        self.earlier.clear()
        self.run_program(known)
        if known.writes:
            self.count_writes(known, hidden)
        self.hand_out(known, snapshot)

    def ended(self, known: Segment, closing: Closing) -> bool:
        """The usual end of a call, if this is one."""
        if closing.hidden != self.hidden or self.made or self.boxes or self.earlier or not closing.same(self):
            return False
        self.run_program(known)
        closing.after(self)
        if known.joint is not None:
            known.joint.place(self)
        elif closing.late is not None:
            self.tensors[known.nodes[0]]._node = LateNode(closing.late, self)
        return True

    def run_program(self, known: Segment) -> None:
        run = known.run
        if not known.writes:
            run(self.arrays, self.scalars)
            return
        self.broken = True  # if it fails in the middle, there is no way back
        if getattr(run, "whole", False):
            run(self.arrays, self.scalars)
        else:
            undisturbed(run, self.arrays, self.scalars)
        self.broken = False

    def count_writes(self, known: Segment, hidden: list[int]) -> None:
        """Version counters go on, also of what an earlier segment has made."""
        tensors = self.tensors
        if known.writes_inside:
            for n in (*known.alive, *hidden):
                box = versions_of(tensors[n]) if n in hidden else tensors[n]._versions
                if box is not None:
                    self.boxes.setdefault(self.trace.roots[self.trace.values[n].slot], box)
        for root, count, owner in known.writes:
            t = None if owner is None else tensors[owner]
            if t is None:
                self.versions(root)[0] += count
            elif t._versions is None:
                t._versions = [count]
            else:
                t._versions[0] += count

    def segment_for(self, stop: int, snapshot: Snapshot, alive: list[int], nodes: list[int]) -> Segment:
        """The program for what outlives a segment."""
        trace = self.trace
        key = (self.start, stop, tuple(alive), tuple(nodes), bool(self.made))
        found = trace.programs.get(key)
        if found is None:
            began = perf_counter()
            tops = [snapshot.nodes[n] for n in nodes]
            joint = None if self.made else joint_of(self.function, trace, self.start, stop, alive, nodes, snapshot)
            saved = snapshot.slots(tops) if joint is None else joint.saved
            keep = frozenset(trace.values[n].slot for n in alive) | saved | used_slots(trace, stop)
            found = trace.programs[key] = Segment(trace, self.start, stop, keep, alive, nodes, snapshot)
            found.joint = joint
            found.run = Warming(found, self.function, trace, self.start, stop, keep)
            self.function.compiling(perf_counter() - began, "replay")
            with self.eagerly():
                lines = f"from {shown(self.entries[self.start].line)} to {shown(self.entries[stop].line)}"
                logged("graph", f"{self.function.name} {lines}", lambda: printed(trace, self.start, stop, keep))
        trace.segments[self.start, stop] = found
        return found  # type: ignore[no-any-return]

    def alive(self, stop: int) -> list[int]:
        """Values that are pending and that somebody can still see, and what they are views of."""
        results, views = self.trace.promises(self.start, stop)
        return self.alive_with_views(results) if views else referred(results, self.tensors, self.held, *LONE)

    def alive_with_views(self, results: list[int]) -> list[int]:
        """The same where views refer to their bases, and keep them alive."""
        tensors, held, values = self.tensors, self.held, self.trace.values
        found: list[int] = []
        wanted: set[int] = set()  # bases of views that are wanted
        views: dict[int, int] = {}  # of each base: how many views refer to it
        for n in reversed(results):  # views before what they are views of
            if tensors[n] is None:
                continue
            view = values[n].view
            if view is not None:
                base = self.base(values[n])
                views[base] = views.get(base, 0) + 1
            tensor, array = counts(tensors, held, n)
            if n in wanted or tensor > LONE_COUNTS[0] + views.get(n, 0) or array > LONE_COUNTS[1]:
                found.append(n)
                if view is not None:
                    wanted.add(base)
        found.reverse()
        return found

    def wanted_nodes(self, snapshot: Snapshot, alive: list[int]) -> list[int]:
        """Values that need a place on the tape: those promised one whose tensor, not only its array, somebody can still see."""
        tensors, nodes = self.tensors, snapshot.nodes
        if self.earlier:  # in-place ops have promised a new history to what was there
            seen = dict.fromkeys((*alive, *self.hidden, *self.earlier))
            return [n for n in seen if tensors[n] is not None and tensors[n]._node is PENDING and n in nodes]
        return [n for n in alive if n in nodes and tensors[n]._node is PENDING and references(tensors[n]) > LONE_TENSOR]

    def base(self, value: Value) -> int:
        """What a value is a view of."""
        n = self.trace.base(value)
        return self.moved.get(n, n)

    def hand_out(self, known: Segment, snapshot: Snapshot) -> None:
        """Tensors that are alive get their arrays and their place on the tape."""
        tensors, values, arrays, held = self.tensors, self.trace.values, self.arrays, self.held
        for n in known.alive:
            slot, t = values[n].slot, tensors[n]
            array = arrays[slot]
            t._array.become(array)
            t._array = held[n] = array
            self.slots[id(array)] = slot
            self.number[id(t)] = n
            if known.tops or self.boxes or t._versions is not None:
                self.share_versions(t, slot, bool(known.tops))
        for plan in snapshot.freed & self.made.keys() if self.made else ():
            self.made[plan].saved = FREED
        self.used.clear()
        if known.joint is not None:
            known.joint.place(self)
        elif known.tops:
            build(known.order, snapshot, self)
            for n in known.nodes:
                tensors[n]._node = self.made[snapshot.nodes[n]]

    def share_versions(self, t: Tensor, slot: int, saved: bool) -> None:
        """All that shows a memory has one version counter."""
        root = self.trace.roots[slot]
        if t._versions is not None:
            self.boxes.setdefault(root, t._versions)
        elif saved or root in self.boxes:
            t._versions = self.versions(slot)

    # ---- divergence

    def diverge(self, reason: str) -> None:
        """Run what has matched eagerly, and go on recording."""
        self.function.diverged(self, reason, users_line())
        self.interpret()
        trace, self.trace = self.trace, Trace()
        values, slots, numbers = trace.counts[self.cursor]
        self.trace.entries = trace.entries[: self.cursor]
        self.trace.values, self.trace.roots, self.trace.numbers = trace.values[:values], trace.roots[:slots], numbers
        self.trace.outside = {s for s in trace.outside if s < slots}
        self.trace.shared = {s for s in trace.shared if s < slots}
        self.trace.sources = {s: source for s, source in trace.sources.items() if s < slots}
        self.trace.constants = {s: a for s, a in trace.constants.items() if s < slots}
        for first, regions in trace.regions.items():
            kept = {i: r for i, r in regions.items() if r.stop <= self.cursor}
            self.trace.regions.update({first: kept} if kept else {})
        del self.tensors[values:], self.arrays[slots:], self.scalars[numbers:]
        for n, t in enumerate(self.tensors):
            if t is not None and isinstance(t._array, Pending):
                self.tensors[n] = None  # of a segment before, which it did not outlive
        self.number = {id(t): n for n, t in enumerate(self.tensors) if t is not None}
        for n, t in enumerate(self.tensors):
            if t is not None and trace.values[n].slot in trace.outside:
                self.boxes[trace.values[n].slot] = versions_of(t)
        if self.state.autocast is None and self.state.handler is not None:
            self.state.handler = self
        self.held.clear()
        self.__class__ = Recorder  # type: ignore[assignment]
        self.prepare()  # type: ignore[attr-defined]
        written = [e.out for e in self.trace.entries[self.start :] if isinstance(e, Call) and e.out is not None]
        self.rewritten += written  # type: ignore[attr-defined]
        start = trace.counts[self.start]
        self.first, self.handed_out = start[0], start[1]
        self.conceal(start[0])  # type: ignore[attr-defined]

    # ---- regions

    def module(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A module is called: all of its ops at once, if it is certain what they are."""
        regions = self.trace.regions.get(self.cursor)
        if regions is not None and self.state.autocast is None:
            region = regions.get(id(module))
            if region is not None and region.owner() is module:
                result = (region.entering or region.entrance())(region, self, args, kwargs)
                if result is not MISSED:
                    return result
        return module.forward(*args, **kwargs)

    def functional(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of `nn.functional` is called."""
        regions = self.trace.regions.get(self.cursor)
        if regions is not None and self.state.autocast is None:
            region = regions.get(id(function))
            if region is not None and region.owner() is function:
                result = (region.entering or region.entrance())(region, self, args, kwargs)
                if result is not MISSED:
                    return result
        return function(*args, **kwargs)

    def optimizer_step(self, optimizer: Optimizer, step: Callable[..., Any]) -> Any:
        """An optimizer makes a step."""
        regions = self.trace.regions.get(self.cursor)
        if regions is not None and self.state.autocast is None:
            region = regions.get(id(optimizer))
            if region is not None and region.owner() is optimizer:
                result = (region.entering or region.entrance())(region, self, optimizer)
                if result is not MISSED:
                    return result
        return step(optimizer)

    # ---- backward

    def backward(
        self, roots: Any, seeds: Any, retain_graph: bool, create_graph: bool, wanted: Any, accumulate: bool
    ) -> list[Tensor | None]:
        entry = self.entries[self.cursor]
        if seeds is None and self.plain_pass(entry, roots, retain_graph, wanted, accumulate):
            return []
        given = (roots, seeds, retain_graph, create_graph, wanted, accumulate)
        if not (isinstance(entry, Backward) and self.same_pass(entry, *given)):
            if not self.other_path(lambda e: isinstance(e, Backward) and self.same_pass(e, *given)):
                if type(entry) is Break:
                    return self.outside(backward_pass, "backward", *given)  # type: ignore[no-any-return]
                self.diverge("another backward pass than in the recording")
                return self.backward(*given)
            entry = self.entries[self.cursor]
        self.move(self.cursor + 1)
        values, tensors = self.trace.values, self.tensors
        for leaf, value in entry.firsts:
            g = tensors[leaf]._grad
            tensors[value.index] = g
            self.number[id(g)] = value.index
            self.arrays[value.slot] = self.held[value.index] = g._array
            self.slots[id(g._array)] = value.slot
        if self.made:
            self.used += [self.made[plan] for plan in entry.freed if plan in self.made]
        for effect in entry.effects:
            if effect.before is None:
                tensors[effect.leaf]._grad = self.promised(values[effect.after])
                tensor_changed()
        found: list[Tensor | None] = [None if n is None else self.promised(values[n]) for n in entry.found]
        if entry.mutated:
            self.write(entry)
        return found

    def plain_pass(self, entry: Any, roots: Any, retain_graph: bool, wanted: Any, accumulate: bool) -> bool:
        """The usual case at once: `loss.backward()`, which gives each leaf its first gradient."""
        if type(entry) is not Backward or not entry.plain or wanted is not None or not accumulate or self.made or self.copies:
            return False
        n = entry.roots[0]
        if len(roots) != 1 or roots[0] is not self.tensors[n] or roots[0]._array is not self.held[n]:
            return False
        if retain_graph is not entry.retain or not entry.step(self):
            return False
        tensor_changed()
        self.move(self.cursor + 1)
        return True

    def same_pass(
        self, entry: Backward, roots: Any, seeds: Any, retain_graph: bool, create_graph: bool, wanted: Any, accumulate: bool
    ) -> bool:
        """Whether a backward pass is the recorded one. What it does follows from its roots, unless somebody added a hook or
        changed a gradient since."""
        tensors = self.tensors
        if create_graph or retain_graph is not entry.retain or accumulate is not entry.accumulate:
            return False
        if len(roots) != len(entry.roots):
            return False
        for r, n in zip(roots, entry.roots, strict=True):
            if r is not tensors[n] or r._array is not self.held[n]:
                return False
        if (seeds is None) is not entry.implicit:
            return False
        for s, want in zip(seeds or (), entry.seeds, strict=True):
            if not self.fits(want, s, s._requires_grad):
                return False
        if (wanted is None) is not (entry.wanted is None):
            return False
        if wanted is not None:
            if len(wanted) != len(entry.wanted) or any(w._hooks for w in wanted):
                return False
            if any(w is not tensors[n] for w, n in zip(wanted, entry.wanted, strict=True)):
                return False
        for node in self.made.values():
            if node.hooks or node.retained is not None or "gradients" in node.__dict__:
                return False
        if self.copies and not all(self.unchanged(n) for n in self.copies):
            return False
        return self.same_gradients(entry)

    def same_gradients(self, entry: Backward) -> bool:
        """Whether the leaves have hooks and gradients as they had."""
        tensors = self.tensors
        firsts = dict(entry.firsts) if entry.firsts else {}
        for effect in entry.effects:
            leaf = tensors[effect.leaf]
            if leaf._hooks or leaf._after_accumulate or leaf._node is not None:
                return False
            g = leaf._grad
            if effect.before is None:
                if g is not None:
                    return False
            elif effect.leaf in firsts:
                if g is None or g._requires_grad or id(g) in self.number or isinstance(g._array, Pending):
                    return False
                if not has_form(g._array, firsts[effect.leaf].form):
                    return False
            elif g is not tensors[effect.before] or g._array is not self.held[effect.before]:
                return False
        return True


def has_form(array: Any, form: type[Pending]) -> bool:
    if array.shape != form.shape or array.dtype is not form.dtype or array.strides != form.strides:
        return False
    return type(array) is np.ndarray if form.where.type == "cpu" else device_of(array) == form.where


def copied(array: Any) -> Any:
    """A copy with the same strides."""
    low, high = np.lib.array_utils.byte_bounds(array)
    memory = np.empty(high - low, np.uint8)
    found = np.ndarray(array.shape, array.dtype, memory, array.ctypes.data - low, array.strides)
    found[...] = array
    return found


def undisturbed(run: Callable[..., None], arrays: list[Any], scalars: list[Any]) -> None:
    """Run a program to its end, and let Ctrl-C come after it: half of an update is worse than none."""
    # _signal is what the module signal wraps in enums, which take longer than all the rest of this
    if _signal.getsignal(_SIGINT) is not _signal.default_int_handler or threading.get_ident() != _MAIN:
        run(arrays, scalars)
        return
    came: list[int] = []
    _signal.signal(_SIGINT, lambda number, frame: came.append(number))
    try:
        run(arrays, scalars)
    finally:
        _signal.signal(_SIGINT, _signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


_SIGINT = int(signal.SIGINT)
_MAIN = threading.main_thread().ident
