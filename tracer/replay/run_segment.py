"""Run a matched segment: its program runs, and tensors that are still alive get their arrays and their nodes on the tape."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ...eager.core.tape.node import FREED, PLACEHOLDER_NODE
from ...eager.core.tensor import Tensor, versions_of
from ..backward.compiled_backward import compile_backward
from ..execute.segment import Segment
from ..execute.tiering import Tiering, compiles_synchronously
from ..graph.passes import graph_text
from ..trace.logging import display_line, log_event
from ..trace.queries import used_slots
from ..trace.refcounts import LONE, LONE_COUNTS, externally_referenced, reference_counts, references
from ..trace.tape_plan import DeferredNode, TapePlan, build_nodes
from ..trace.trace import End, Value
from .call_epilogue import LONE_TENSOR, CallEpilogue, make_epilogue
from .matcher import Matcher

MAX_EPILOGUES = 3  # limit on regenerating the epilogue of a segment


class SegmentRunner(Matcher):
    """Mixin of `Replayer` that runs programs."""

    broken = False  # True if a program failed after it may have written
    late: BaseException | None = None  # an interrupt deferred until the program's results are handed out
    recorded = False  # True if this frame was a recorder that did not run its ops

    def compute(self, stop: int, snapshot: TapePlan) -> None:
        """Run the program of a segment and hand out its results."""
        alive = self.alive(stop)
        nodes = self.wanted_nodes(snapshot, alive)
        known = self.trace.segments.get((self.start, stop))
        if known is None or known.alive != alive or known.nodes != nodes or (known.joint is not None and self.made):
            known = self.segment_for(stop, snapshot, alive, nodes)
        plain = type(self.entries[stop]) is End and not (self.made or self.boxes or self.earlier)
        if plain and known.epilogues < MAX_EPILOGUES and not self.recorded:  # keep the first call short
            known.epilogues += 1
            known.epilogue = make_epilogue(self, known, self.start, stop)
        hidden = list(self.hidden)
        if hidden:
            self.reveal()
        self.earlier.clear()
        self.run_program(known)
        if known.writes:
            self.count_writes(known, hidden)
        self.hand_out(known, snapshot)

    def run_epilogue(self, known: Segment, epilogue: CallEpilogue) -> bool:
        """Run the generated end of a call; False if this call does not qualify."""
        if epilogue.hidden != self.hidden or self.made or self.boxes or self.earlier or not epilogue.same(self):
            return False
        self.run_program(known)
        epilogue.after(self)
        if known.joint is not None:
            known.joint.place(self)
        elif epilogue.late is not None:
            self.tensors[known.nodes[0]].tj_node = DeferredNode(epilogue.late, self)
        return True

    def run_program(self, known: Segment) -> None:
        run = known.ready()
        arrays = self.arrays if known.slots is None else self.arrays[: known.slots]
        try:
            if not known.writes:
                run(arrays, self.scalars)
            else:
                self.broken = True  # if it fails in the middle, no bailout is possible
                if getattr(run, "whole", False):
                    run(arrays, self.scalars)
                else:
                    run_uninterrupted(run, arrays, self.scalars)
        except BaseException as error:
            if not ran_to_end(error):
                raise
            self.late = error
        self.broken = False
        if known.slots is not None:
            self.arrays[: known.slots] = arrays

    def count_writes(self, known: Segment, hidden: list[int]) -> None:
        """Increment version counters, also of memory that an earlier segment produced."""
        tensors = self.tensors
        if known.writes_inside:
            for n in (*known.alive, *hidden):
                box = versions_of(tensors[n]) if n in hidden else tensors[n].tj_versions
                if box is not None:
                    self.boxes.setdefault(self.trace.roots[self.trace.values[n].slot], box)
        for root, count, owner in known.writes:
            t = None if owner is None else tensors[owner]
            if t is None:
                self.versions(root)[0] += count
            elif t.tj_versions is None:
                t.tj_versions = [count]
            else:
                t.tj_versions[0] += count

    def segment_for(self, stop: int, snapshot: TapePlan, alive: list[int], nodes: list[int]) -> Segment:
        """Return the program for the values that outlive a segment."""
        trace = self.trace
        key = (self.start, stop, tuple(alive), tuple(nodes), bool(self.made))
        found = trace.programs.get(key)
        if found is None:
            began = perf_counter()
            tops = [snapshot.nodes[n] for n in nodes]
            joint = None if self.made else compile_backward(self.function, trace, self.start, stop, alive, nodes, snapshot)
            saved = snapshot.slots(tops) if joint is None else joint.saved
            keep = frozenset(trace.values[n].slot for n in alive) | saved | used_slots(trace, stop)
            found = trace.programs[key] = Segment(trace, self.start, stop, keep, alive, nodes, snapshot)
            found.joint = joint
            found.slots = None if trace.keys or not compiles_synchronously(self.function) else len(trace.roots)
            Tiering(found, self.function, trace, self.start, stop, keep)
            self.function.compiling(perf_counter() - began, "replay")
            with self.eagerly():
                lines = f"from {display_line(self.entries[self.start].line)} to {display_line(self.entries[stop].line)}"
                log_event("graph", f"{self.function.name} {lines}", lambda: graph_text(trace, self.start, stop, keep))
        trace.segments[self.start, stop] = found
        return found  # type: ignore[no-any-return]

    def alive(self, stop: int) -> list[int]:
        """Return the pending values that other code can still see, and their bases."""
        results, views = self.trace.promises(self.start, stop)
        return self.alive_with_views(results) if views else externally_referenced(results, self.tensors, self.held, *LONE)

    def alive_with_views(self, results: list[int]) -> list[int]:
        """Return the same where views refer to their bases, and keep them alive."""
        tensors, held, values = self.tensors, self.held, self.trace.values
        found: list[int] = []
        wanted: set[int] = set()  # bases of views that are alive
        views: dict[int, int] = {}  # base -> number of views that refer to it
        for n in reversed(results):  # views before their bases
            if tensors[n] is None:
                continue
            view = values[n].view
            if view is not None:
                base = self.base(values[n])
                views[base] = views.get(base, 0) + 1
            tensor, array = reference_counts(tensors, held, n)
            if n in wanted or tensor > LONE_COUNTS[0] + views.get(n, 0) or array > LONE_COUNTS[1]:
                found.append(n)
                if view is not None:
                    wanted.add(base)
        found.reverse()
        return found

    def wanted_nodes(self, snapshot: TapePlan, alive: list[int]) -> list[int]:
        """Return the values that need a node on the tape: those with a pending one whose tensor, not only its array, is still
        referenced."""
        tensors, nodes = self.tensors, snapshot.nodes
        if self.earlier:  # in-place ops have a new history pending for existing tensors
            seen = dict.fromkeys((*alive, *self.hidden, *self.earlier))
            return [n for n in seen if tensors[n] is not None and tensors[n].tj_node is PLACEHOLDER_NODE and n in nodes]
        return [
            n for n in alive if n in nodes and tensors[n].tj_node is PLACEHOLDER_NODE and references(tensors[n]) > LONE_TENSOR
        ]

    def base(self, value: Value) -> int:
        """Return the base value of a view."""
        n = self.trace.base(value)
        return self.moved.get(n, n)

    def hand_out(self, known: Segment, snapshot: TapePlan) -> None:
        """Give tensors that are alive their arrays and their nodes on the tape."""
        tensors, values, arrays, held = self.tensors, self.trace.values, self.arrays, self.held
        for n in known.alive:
            slot, t = values[n].slot, tensors[n]
            array = arrays[slot]
            t.tj_array.become(array)
            t.tj_array = held[n] = array
            self.slots[id(array)] = slot
            self.number[id(t)] = n
            if known.tops or self.boxes or t.tj_versions is not None:
                self.share_versions(t, slot, bool(known.tops))
        for plan in snapshot.freed & self.made.keys() if self.made else ():
            self.made[plan].saved = FREED
        self.used.clear()
        if known.joint is not None:
            known.joint.place(self)
        elif known.tops:
            build_nodes(known.order, snapshot, self)
            for n in known.nodes:
                tensors[n].tj_node = self.made[snapshot.nodes[n]]

    def share_versions(self, t: Tensor, slot: int, saved: bool) -> None:
        """Share one version counter among all tensors on a memory."""
        root = self.trace.roots[slot]
        if t.tj_versions is not None:
            self.boxes.setdefault(root, t.tj_versions)
        elif saved or root in self.boxes:
            t.tj_versions = self.versions(slot)


def run_uninterrupted(run: Callable[..., None], arrays: list[Any], scalars: list[Any]) -> None:
    """Run a program to its end and defer Ctrl-C until then: half of an update is worse than none."""
    # `signal` wraps `_signal` in enums, which take longer than all the rest of this
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


def ran_to_end(error: BaseException) -> bool:
    """True if a program that raised has run to its end: it was interrupted late, and its results are in place."""
    return getattr(error, "done", False)


_SIGINT = int(signal.SIGINT)
_MAIN = threading.main_thread().ident
