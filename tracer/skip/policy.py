"""Decide when calls of a compiled function skip Python: which calls are observed, and what becomes of an observation.

A path is observed once it was replayed `REPLAYS_BEFORE_PROOF` times (with `pure=True`, at each call). Two observed calls that
agree make guards and a plan that stand for Python from then on. Whatever speaks against it is kept in `Trace.impure`, for
`explain()`.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from ...eager.core.tape.node import State
from ..purity.prover import prove
from ..purity.verified_source import UnprovedError
from ..trace.call_frame import CallFrame
from ..trace.logging import display_line
from ..trace.trace import Trace
from .skipped_call import GUARDS_FAIL, CallNotes, NotPureError, ObservedCall, SkippedCall, UndecidedError

REPLAYS_BEFORE_PROOF = 4  # replays of a path before it is worth reading its source for a proof
MAX_FIRST_SEEN = 32  # see `first_seen`
MAX_UNDECIDED = 8  # see `undecided_calls`: after so many,
OBSERVE_EVERY = 17  # one call of so many is observed; an odd number, as batches take turns


def unproved(reason: str, line: str | None = None) -> str:
    """The sentence for a function whose source does not prove that Python may be skipped."""
    place = "it" if line is None else display_line(line)
    return f"could not prove that {place} only touches tensors ({reason})"


class SkipPolicy:
    """The part of a compiled function that decides whether its Python is skipped."""

    function: Callable[..., Any]
    pure: bool  # the user's promise
    budget: int
    calls: int
    traces: list[Trace]
    fell_back: Counter[str]

    def __init__(self) -> None:
        self.lock = threading.RLock()  # for the recordings of this function, whoever keeps them
        self.pure_lock = threading.RLock()
        self.skipped_calls: list[SkippedCall] = []  # recordings that do without Python, the last used first
        self.notes: dict[Any, CallNotes] = {}  # observations of the last calls, by their paths
        self.first_seen = 0  # calls that were given objects no other call was given, since guards were made
        self.reads_source = False  # if the captures of a function that is promised to be pure are known from its source only
        self.undecided_calls = 0  # calls whose captures were not known
        self.stable_path = True  # calls that follow each other take the same path, as far as is known

    def is_observed(self, trace: Trace | None) -> bool:
        return self.pure or (self.stable_path and trace is not None and trace.replays >= REPLAYS_BEFORE_PROOF)

    def observe(self, state: State, trace: Trace | None, args: Any, kwargs: Any) -> ObservedCall | None:
        """Note what a function can reach, before a call that runs its Python; None if this call is not observed."""
        if trace is not None and trace.impure is not None:
            return None
        if state.autocast is not None:  # guards only know that there is none
            return None
        # an observer holds references to gradients, so that their memory is not reused
        if self.undecided_calls >= MAX_UNDECIDED and self.calls % OBSERVE_EVERY:
            return None
        try:
            proof = prove(self.function, args, kwargs) if not self.pure or self.reads_source else None
            return ObservedCall(state, self.function, args, kwargs, proof, self.pure)
        except UnprovedError as reason:
            if self.pure:
                self.reads_source = False
                return ObservedCall(state, self.function, args, kwargs, None, True)
            assert trace is not None
            trace.impure = unproved(str(reason), reason.line)
        except NotPureError as reason:
            self._needs_python(trace, reason)
        except Exception as reason:  # whatever a user's objects do when they are looked at, no step fails for it
            if trace is None or os.environ.get("TAPEJIT_STRICT_BACKEND"):
                raise
            trace.impure = unproved(f"{type(reason).__name__}: {reason}")
        return None

    def _needs_python(self, trace: Trace | None, reason: NotPureError) -> None:
        if self.pure:
            self.fell_back[f"pure=True, but {reason}: replayed with Python"] += 1
        elif trace is not None:
            trace.impure = str(reason)

    def decide(self, frame: CallFrame, before: ObservedCall, args: Any, kwargs: Any, result: Any, state: State) -> None:
        """After an observed call: make guards and a plan that repeat it without Python, or note what speaks against it."""
        trace = frame.trace
        if trace.impure is not None:
            return
        path = before.path(trace)
        notes = self.notes.pop(path, None)
        self.notes[path] = CallNotes(frame, before, args, kwargs)
        for old in list(self.notes)[: -self.budget]:
            del self.notes[old]
        if notes is None or trace not in self.traces or not notes.can_be_compared(before):
            self.first_seen += bool(before.objects)
            if self.first_seen > MAX_FIRST_SEEN:
                trace.impure = "it gets other objects at each call"
            return  # one call more, to compare with
        try:
            if trace.purified > 8 and trace.skipped < 4 * trace.purified:
                self.stable_path = False
                raise NotPureError(GUARDS_FAIL)
            before.rest_on_code(trace)
            found = SkippedCall(frame, before, notes, self, args, kwargs, result, state)
        except UndecidedError as reason:
            self.reads_source = self.pure  # what the source says may tell, or a few more calls
            self.undecided_calls += 1
            trace.purified += not self.pure
            self._needs_python(None, reason)
            return
        except NotPureError as reason:
            trace.impure = str(reason)
            self._needs_python(trace, reason)
            return
        trace.purified += 1
        self.first_seen = self.undecided_calls = 0
        with self.lock:
            self.skipped_calls = [found, *self.skipped_calls]
            self.forget_skipped(self.budget)

    def forget_skipped(self, keep: int = 0) -> None:
        for pure in self.skipped_calls[keep:]:
            pure.materialise()
        self.skipped_calls = self.skipped_calls[:keep]
        for pure in self.skipped_calls:
            pure.after = pure.after if pure.after in self.skipped_calls else None

    def use_first(self, pure: SkippedCall) -> None:
        with self.lock:
            if pure in self.skipped_calls:
                self.skipped_calls[0].after = pure
                self.skipped_calls = [pure, *[p for p in self.skipped_calls if p is not pure]]
