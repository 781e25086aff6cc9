"""Segments: the executable part of a trace between two graph breaks, and its outputs.

Compiling and running are separate: `ready()` compiles what is not `compiled` yet and returns the program, the caller runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..graph.passes import PassLog
from ..trace.queries import version_increments
from ..trace.tape_plan import DeferredTape, TapePlan, can_defer, topological_order
from ..trace.trace import Trace
from . import reference_program

if TYPE_CHECKING:
    from .tiering import Tiering


class TieredProgram:
    """Program that starts as a reference program, and may be replaced by native code."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.native: Any = None  # the executable compiled by a backend, if there is one
        self.status = ""  # how it runs, as text for people
        self.passes = PassLog()  # passes run on its graph
        self.tiering: Tiering | None = None  # chooses between the tiers
        self.compiled = True  # False while a backend has yet to compile it

    def compile(self) -> None:
        """Compile native code with the backend; with `background=True`, start to: `compiled` is true once it is there."""
        assert self.tiering is not None
        self.tiering.compile()

    def ready(self) -> Any:
        """Compile if a backend has yet to, and return the program that runs this time.

        Asked before each run: with `background=True` the native code is there at a later call.
        """
        if not self.compiled:
            self.compile()
        return self.run


class Segment(TieredProgram):
    """Program of a range of entries, for one set of values that outlive it."""

    def __init__(
        self, trace: Trace, start: int, stop: int, keep: frozenset[int], alive: list[int], nodes: list[int], snapshot: TapePlan
    ) -> None:
        super().__init__(reference_program.make_program(trace, start, stop, keep))
        tops = [snapshot.nodes[n] for n in nodes]
        self.alive = alive  # values that get their arrays
        self.nodes = nodes  # values that get a node on the tape
        self.tops = tops  # plans of their nodes
        self.order = topological_order(tops)
        self.slots: int | None = None  # number of slots when it was compiled, if the trace was not complete by then
        self.writes = version_increments(trace, start, stop)
        self.writes_inside = any(owner is None for _, _, owner in self.writes)
        self.epilogue: Any = None  # for the last segment of a call: see replay/call_epilogue.py
        self.epilogues = 0
        self.joint: Any = None  # compiled backward pass of its outputs, if there is one
        self.late = DeferredTape(self.order, tops[0], snapshot) if len(tops) == 1 and can_defer(self.order, snapshot) else None
