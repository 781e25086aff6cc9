"""The end of a segment, when all has matched: its program runs, and tensors that are still alive get their arrays and their
place on the tape."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ...eager.core.tape.node import FREED, PENDING
from ...eager.core.tensor import Tensor, versions_of
from ..trace.tape_plan import LateNode, Snapshot, build
from .call_epilogue import LONE_TENSOR, Closing, make_closing
from ..tools.explain.explain import logged, shown
from ..execute.backends import Warming, at_once
from ..backward.compiled_backward import joint_of
from .matcher import Matching
from ..graph.passes import printed
from ..execute.reference_program import Segment, used_slots
from ..trace.refcounts import LONE, LONE_COUNTS, counts, references, referred
from ..trace.trace import End, Value

CLOSINGS = 3  # how often the functions for the end of a call may be written anew


class Computing(Matching):
    """The part of a replayer that runs programs."""

    broken = False  # a program failed in the middle
    late: BaseException | None = None  # an interrupt that waits until what a program has made is handed out
    recorded = False  # whether it was a recorder, which did not run what it noted

    def compute(self, stop: int, snapshot: Snapshot) -> None:
        """Run the program of a segment and hand out what it made."""
        alive = self.alive(stop)
        nodes = self.wanted_nodes(snapshot, alive)
        known = self.trace.segments.get((self.start, stop))
        if known is None or known.alive != alive or known.nodes != nodes or (known.joint is not None and self.made):
            known = self.segment_for(stop, snapshot, alive, nodes)
        plain = type(self.entries[stop]) is End and not (self.made or self.boxes or self.earlier)
        if plain and known.closings < CLOSINGS and not self.recorded:  # the first call should be over soon
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
        arrays = self.arrays if known.slots is None else self.arrays[: known.slots]
        try:
            if not known.writes:
                run(arrays, self.scalars)
            else:
                self.broken = True  # if it fails in the middle, there is no way back
                if getattr(run, "whole", False):
                    run(arrays, self.scalars)
                else:
                    undisturbed(run, arrays, self.scalars)
        except BaseException as error:
            if not is_done(error):
                raise
            self.late = error
        self.broken = False
        if known.slots is not None:
            self.arrays[: known.slots] = arrays

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
            found.slots = None if trace.keys or not at_once(self.function) else len(trace.roots)
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
        error = KeyboardInterrupt()
        error.done = True  # type: ignore[attr-defined]
        raise error


def is_done(error: BaseException) -> bool:
    """Whether a program that raised something has come to its end: it was interrupted late, what it made is in its place."""
    return getattr(error, "done", False)


_SIGINT = int(signal.SIGINT)
_MAIN = threading.main_thread().ident
