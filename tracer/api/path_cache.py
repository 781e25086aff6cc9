"""Cache the recordings of a function: a tree of paths, most recently used first, of which `budget` are kept.

A recording is a candidate until its path was taken `warmup` times; then it is confirmed, and replayed. A function whose calls
keep diverging from their recordings gives up and runs eagerly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from time import perf_counter
from typing import Any

from ...eager.core.errors import warn
from ..regions.region import finish_regions
from ..replay.entry_matchers import make_steps
from ..replay.replayer import Replayer
from ..skip.policy import SkipPolicy
from ..trace.logging import display_line, log_event, log_path
from ..trace.trace import Break, Trace
from ..trace.watchers import is_watched

STRICT_HINT = "With strict=True this is an error; without it the call goes on eagerly."
MAX_LISTED = 6  # shapes or numbers that a sentence lists


class CompileError(RuntimeError):
    """A function compiled with `strict=True` cannot be replayed."""


class PathCache(SkipPolicy):
    """Mixin of `CompiledFunction` that keeps its recordings."""

    name: str
    warmup: int
    strict: bool
    gave_up: str | None = None
    seconds: dict[str, float]

    def __init__(self) -> None:
        super().__init__()
        self.traces = []  # confirmed, most recently used first
        self.candidate: Trace | None = None  # recorded, but not seen `warmup` times: the next call may match it
        self.seen: Counter[Any] = Counter()  # number of recordings of each path
        self.hits = self.recordings = self.evictions = 0
        self.divergences: Counter[tuple[str, str]] = Counter()
        self.moves: Counter[str] = Counter()  # by user line: divergences only in where a slice starts
        self.moving: set[str] = set()  # user lines whose slices Python makes: see record/moving_slices.py
        self.fell_back = Counter()  # reasons why calls were not traced, or their recordings not kept

    def compiling(self, seconds: float, during: str) -> None:
        """Count time spent on building programs as compiling, not as recording or replaying."""
        self.seconds["compile"] += seconds
        self.seconds[during] -= seconds

    def add_recording(self, trace: Trace, before: Trace | None) -> None:
        """Add the recording of a call, made from its start or from where it diverged from the trace replayed before."""
        if not trace.keys:
            trace.complete()
        with self.lock:
            candidate, self.candidate = self.candidate, None
            diverged = before is not None and before is not candidate
            self.recordings += 1
            self.seen[trace.keys] += 1
            obstacle = trace.obstacle()
            if obstacle is not None:
                self.fell_back[obstacle] += 1
                if self.strict and self.seen[trace.keys] >= self.warmup:
                    raise CompileError(f"[compile] {self.name} cannot be replayed: {obstacle}")
            if self.recordings >= 4 * self.budget and not self.hits:
                self.give_up(trace.entries[-1].line, obstacle or describe_disagreement(self.seen))
            hot = diverged or self.seen[trace.keys] >= self.warmup
            if not hot and before is not None:
                return  # modules and optimizers in which it diverged are not its regions: the next call is recorded as a whole
            if any(t.keys == trace.keys for t in self.traces) or obstacle is not None:
                return
            began = perf_counter()
            trace.steps = make_steps(trace)
            finish_regions(trace)
            self.compiling(perf_counter() - began, "record")
            if hot:
                self._add(trace)
            else:
                self.candidate = trace

    def _seen_again(self, trace: Trace) -> None:
        """Count a warm-up call that matched the one before as recorded."""
        with self.lock:
            self.recordings += 1
            self.seen[trace.keys] += 1
            for region in (r for regions in trace.regions.values() for r in regions.values()):
                region.entered = 0
            if self.seen[trace.keys] >= self.warmup and trace is self.candidate:
                self.candidate = None
                self._add(trace)

    def _add(self, trace: Trace) -> None:
        self._use(trace)
        if len(self.traces) > self.budget:
            self.traces.pop()
            self.evictions += 1
        log_path(self.name, trace)

    def count_replay(self, trace: Trace) -> None:
        if trace is self.candidate:
            self._seen_again(trace)
            return
        self.hits += 1
        trace.replays += 1
        if self.traces and self.traces[0] is not trace:
            with self.lock:
                self._use(trace)

    def _use(self, trace: Trace) -> None:
        if trace in self.traces:
            self.traces.remove(trace)
        self.traces.insert(0, trace)

    # ---- for replayers

    def with_same_prefix(self, trace: Trace, cursor: int, after_nodes: bool) -> list[Trace]:
        """Return other recordings with the same entries up to the cursor."""
        found = []
        with self.lock:
            others = [t for t in self.traces if t is not trace]
        mine = trace.keys[:cursor]
        for other in others:
            if len(other.entries) <= cursor or other.keys[:cursor] != mine:
                continue
            pairs = zip(trace.entries[:cursor], other.entries[:cursor], strict=True)
            if after_nodes and any(isinstance(a, Break) and a is not b for a, b in pairs):
                continue  # their tape plans differ
            found.append(other)
        return found

    def diverged(self, frame: Replayer, reason: str, line: str) -> None:
        with self.lock:
            if frame.trace is self.candidate:
                return  # the first calls of a function may differ
            if is_watched() and not self.strict:
                return  # nothing is learned from this call
            self.divergences[line, reason] += 1
            total = sum(self.divergences.values())
            log_event("recompiles", f"{self.name} diverges at {display_line(line)}: {reason}")
            if self.strict:
                raise CompileError(
                    f"[compile] {self.name} diverges from its recording at {display_line(line)}: {reason}. {STRICT_HINT}"
                )
            if total >= 4 * self.budget and total > self.hits:
                self.give_up(line, reason)

    def has_moved(self, line: str, there: bool) -> None:
        """Count a slice that starts elsewhere than recorded; `there` if it can be made without ending a segment."""
        self.moves[line] += 1
        if there or self.moves[line] > self.budget // 2:
            self.moving.add(line)

    def give_up(self, line: str, reason: str) -> None:
        if self.gave_up is not None:
            return
        line = display_line(line)
        if self.strict:
            raise CompileError(f"[compile] {self.name} finds no recording to replay, last at {line}: {reason}. {STRICT_HINT}")
        self.gave_up = f"{line}: {reason}"
        log_event("recompiles", f"{self.name} gives up at {line}: {reason}")
        self.traces.clear()
        self.candidate = None
        self.forget_skipped()
        self.seen.clear()
        what = "breaks too often" if "in one call" in reason else "keeps diverging from its recordings"
        warn(
            f"{self.name} {what} and runs eagerly from now on. Last at {line}: {reason}. `{self.name}.explain()` lists all of "
            "it; keep shapes and Python numbers of a compiled function the same, read values outside of it, or compile a "
            "smaller part of it."
        )

    def forget(self) -> None:
        """Drop all recordings and their statistics."""
        self.traces.clear()
        self.candidate = None
        self.forget_skipped()
        self.notes.clear()
        self.seen.clear()
        self.divergences.clear()
        self.moves.clear()
        self.moving.clear()
        self.fell_back.clear()
        self.first_seen = self.undecided_calls = 0
        self.reads_source, self.stable_path = False, True
        self.gave_up = None
        self.hits = self.recordings = self.evictions = 0


def describe_disagreement(recordings: Iterable[Any]) -> str:
    """Explain why no path was taken often enough: the first difference between recordings, given by the keys of their
    entries."""
    never = "every call takes a new path"
    for entries in zip(*recordings, strict=False):
        if len(set(entries)) == 1:
            continue
        kind, op, wants = entries[0][:3] if len(entries[0]) > 2 else ("", "", ())
        if kind != "call" or any(e[:2] != (kind, op) or len(e[2]) != len(wants) for e in entries):
            return never
        for found in zip(*[e[2] for e in entries], strict=True):
            kinds = {w[0] if isinstance(w, tuple) else w for w in found}
            if kinds == {"first"} and len(shapes := {str(list(w[1].shape)): None for w in found}) > 1:
                return f"{never}: {op} gets tensors of {len(shapes)} shapes ({list_some(shapes)})"
            if kinds == {"constant"} and len(numbers := {w[2]: None for w in found}) > 1:
                return f"{never}: {op} gets {len(numbers)} numbers ({list_some(numbers)})"
        settings = {e[3]: None for e in entries}
        return f"{never}: {op} gets {list_some(settings)}" if len(settings) > 1 else never
    return never


def list_some(things: Iterable[str]) -> str:
    things = list(things)
    return ", ".join(things[:MAX_LISTED]) + ", ..." * (len(things) > MAX_LISTED)
