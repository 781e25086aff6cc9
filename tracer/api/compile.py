"""`compile`: the decorator, and the function it makes, which keeps recordings, replays them and falls back.

A call replays the recording it last replayed; where Python goes another way the replayer looks for a recording that goes this
way too, and if there is none the call goes on eagerly and is recorded. So a function's recordings form a tree of paths.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from ...eager.core.errors import warn
from ...eager.nn.module import Module
from ...eager.core.tape.node import State, local
from ..first_call.abstract_recorder import Dry
from ..tools.explain.explain import Explanation, disagreement, explain, log_path, logged, shown
from ..trace.call_frame import Frame
from ..execute.backends import BACKENDS
from ..execute.preload import prepare
from ..purity.prover import prove
from ..purity.verified_source import UnprovedError
from ..skip.skipped_call import MISS, UNSTEADY, Before, Notes, NotPureError, Pure, UndecidedError, armed, settle_all
from ..record.recorder import MAX_BREAKS, Recorder
from ..regions.region import settle_regions
from ..replay.replayer import Replayer
from ..replay.entry_matchers import make_steps
from ..trace.trace import Break, Trace

UNCERTAIN = "it cannot be told that it only touches tensors"
SETTLED = 4  # replays of a path after which it is worth a look whether its Python can be skipped
MOST_STRANGERS = 32  # see `strangers`
RIDDLES, RARELY = 8, 17  # see `riddles`: after so many, one call of so many is watched; an odd number, as batches take turns
STRICT = "With strict=True this is an error; without it the call goes on eagerly."


class _Switch(threading.local):
    off = False


_switch = _Switch()
_all: weakref.WeakSet[Compiled] = weakref.WeakSet()


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Within this block compiled functions run eagerly."""
    before = _switch.off
    _switch.off = True
    try:
        yield
    finally:
        _switch.off = before


class EagerPackage(types.ModuleType):
    """The package `tapejit.eager`, which can be called: `with tapejit.eager():`."""

    def __call__(self) -> contextlib.AbstractContextManager[None]:
        """A block in which compiled functions run eagerly."""
        return eager()


def switched_off() -> bool:
    return _switch.off


class CompileError(RuntimeError):
    """A function compiled with `strict=True` cannot be replayed."""


class Compiled:
    """A function that is recorded, and then replayed."""

    def __init__(
        self,
        function: Callable[..., Any],
        warmup: int,
        backend: str,
        strict: bool,
        pure: bool,
        budget: int,
        name: str | None,
        background: bool,
        tune: bool | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = str(name or getattr(function, "__qualname__", type(function).__name__))
        self.warmup, self.backend, self.strict, self.pure, self.budget = warmup, backend, strict, pure, budget
        self.background, self.tune = background, tune
        self.traces: list[Trace] = []  # ready to be replayed, the last used first
        self.candidate: Trace | None = None  # recorded, but not seen `warmup` times: the next call may be like it
        self.seen: Counter[Any] = Counter()  # paths that were recorded, and how often
        self.calls = self.hits = self.recordings = self.evictions = 0
        self.divergences: Counter[tuple[str, str]] = Counter()
        self.moves: Counter[str] = Counter()  # by the user's line: divergences by nothing but where a slice begins
        self.moving: set[str] = set()  # those whose slices are made by Python: see moving.py
        self.pure_lock = threading.RLock()
        self.pures: list[Pure] = []  # of a function that is pure: recordings that do without Python
        self.notes: dict[Any, Notes] = {}  # of its last calls, by their paths
        self.strangers = 0  # calls that were given objects and were like no other before, since guards were made
        self.undecided = False  # whether what a promised function captures is only told by its source
        self.riddles = 0  # calls of which that could not be told
        self.steady = True  # calls that follow each other take the same path, as far as is known
        self.gave_up: str | None = None
        self.off = os.environ.get("TAPEJIT") == "eager"
        self.fell_back: Counter[str] = Counter()  # why calls were not traced, or their recordings not kept
        self.seconds = {"record": 0.0, "compile": 0.0, "replay": 0.0}
        self._lock = threading.RLock()
        self._clock = 0
        _all.add(self)
        if not self.off:
            prepare(backend)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<compiled {self.name}>"

    def __reduce__(self) -> Any:
        return self.__dict__["__qualname__"]  # by reference, as functions are

    # ---- a call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state = local.state
        if state.tracer is not None:
            return self.function(*args, **kwargs)  # part of the caller's recording
        self.calls += 1
        if self.off or self.gave_up is not None or state.anomaly is not None or state.inference or _switch.off:
            self.fell_back[self._why_eager(state)] += 1
            return self.function(*args, **kwargs)
        began = perf_counter()
        pures = self.pures
        if pures and pures[0].after is not None:  # those that take turns do it in the same order, as a rule
            pures = [pures[0].after, *pures]
        for pure in pures:
            result = MISS if pure.usual is None else pure.usual(pure, state, args, kwargs)
            if result is MISS:
                result = pure.run(state, args, kwargs)
            if result is not MISS:
                self._replayed(pure.trace)
                pure.trace.skipped += 1
                if pure is not self.pures[0]:
                    self._use_first(pure)
                elif pure.after is not None:
                    pure.after = None
                took = perf_counter() - began
                self.seconds["replay"] += took
                if took < pure.quickest:
                    pure.quickest = took
                return result
        if armed:
            settle_all()
        trace = self.traces[0] if self.traces else self.candidate
        watched = self.pure or (self.steady and trace is not None and trace.replays >= SETTLED)
        before = self._watch(state, trace, args, kwargs) if watched else None
        frame = self._recorder(state) if trace is None else Replayer(state, trace, self)
        compiled = self.seconds["compile"]
        setting, handler = state.autocast, state.handler
        below = None if setting is None else setting.below
        try:
            state.tracer = frame
            if setting is None:
                state.handler = frame  # type: ignore[assignment]
            else:  # below mixed precision
                setting.below = frame
            result = self.function(*args, **kwargs) if before is None else before.seen(self.function, args, kwargs)
            frame.finish()  # type: ignore[attr-defined]
        except BaseException:
            self._abandon(frame)
            raise
        finally:
            state.tracer = None
            state.autocast, state.handler = setting, handler
            if setting is not None:
                setting.below = below
        if type(frame) is Recorder or frame.recorded:
            compiled -= self.seconds["compile"]  # counted as a replay's, which this is none of
            self.seconds["replay"] -= compiled
            if len(frame.trace.breaks()) >= MAX_BREAKS:
                self._give_up(frame.trace.breaks()[0].line, f"it reads values {MAX_BREAKS} times or more in one call")
            else:
                self._recorded(frame.trace, trace)
            self.seconds["record"] += perf_counter() - began + compiled
        else:
            self._replayed(frame.trace)
            took = perf_counter() - began
            self.seconds["replay"] += took
            if took < frame.trace.quickest:
                frame.trace.quickest = took
        if before is not None:
            self._purify(frame, before, args, kwargs, result, state)
        frame.close()
        return result

    def _recorder(self, state: State) -> Any:
        """What records a call from its beginning. The first call is compiled; others have to be seen again before they are."""
        if self.recordings or self.warmup > 2:
            return Recorder(state, Trace()).prepare(self.moving)
        return Dry(state, self)

    def _watch(self, state: State, trace: Trace | None, args: Any, kwargs: Any) -> Before | None:
        """What a pure function can reach before a call that runs its Python."""
        if trace is not None and trace.impure is not None:
            return None
        if state.autocast is not None:  # which no guard asks about but for there being none
            return None
        if self.riddles >= RIDDLES and self.calls % RARELY:  # who watches holds gradients: their memory is not taken again
            return None
        try:
            proof = prove(self.function, args, kwargs) if not self.pure or self.undecided else None
            return Before(state, self.function, args, kwargs, proof, self.pure)
        except UnprovedError as reason:
            if self.pure:
                self.undecided = False
                return Before(state, self.function, args, kwargs, None, True)
            assert trace is not None
            trace.impure = f"{UNCERTAIN}: {reason}"
        except NotPureError as reason:
            self._needs_python(trace, reason)
        except Exception as reason:  # whatever a user's objects do when they are looked at, no step fails for it
            if trace is None or os.environ.get("TAPEJIT_STRICT_BACKEND"):
                raise
            trace.impure = f"{UNCERTAIN}: {type(reason).__name__}, {reason}"
        return None

    def _needs_python(self, trace: Trace | None, reason: NotPureError) -> None:
        if self.pure:
            self.fell_back[f"pure=True, but {reason}: replayed with Python"] += 1
        elif trace is not None:
            trace.impure = str(reason)

    def _purify(self, frame: Frame, before: Before, args: Any, kwargs: Any, result: Any, state: State) -> None:
        """A call of a pure function can be repeated without Python, unless there is something in it for Python to do."""
        trace = frame.trace
        if trace.impure is not None:
            return
        path = before.path(trace)
        notes = self.notes.pop(path, None)
        self.notes[path] = Notes(frame, before, args, kwargs)
        for old in list(self.notes)[: -self.budget]:
            del self.notes[old]
        if notes is None or trace not in self.traces or not notes.can_be_compared(before):
            self.strangers += bool(before.objects)
            if self.strangers > MOST_STRANGERS:
                trace.impure = "it is given other objects at each call"
            return  # one call more, to compare with
        try:
            if trace.purified > 8 and trace.skipped < 4 * trace.purified:
                self.steady = False
                raise NotPureError(UNSTEADY)
            before.rest_on_code(trace)
            found = Pure(frame, before, notes, self, args, kwargs, result, state)
        except UndecidedError as reason:
            self.undecided = self.pure  # what the source says may tell, or a few more calls
            self.riddles += 1
            trace.purified += not self.pure
            self._needs_python(None, reason)
            return
        except NotPureError as reason:
            trace.impure = str(reason)
            self._needs_python(trace, reason)
            return
        trace.purified += 1
        self.strangers = self.riddles = 0
        with self._lock:
            self.pures = [found, *self.pures]
            self._forget_pures(self.budget)

    def _forget_pures(self, most: int = 0) -> None:
        for pure in self.pures[most:]:
            pure.settle()
        self.pures = self.pures[:most]
        for pure in self.pures:
            pure.after = pure.after if pure.after in self.pures else None

    def _use_first(self, pure: Pure) -> None:
        with self._lock:
            if pure in self.pures:
                self.pures[0].after = pure
                self.pures = [pure, *[p for p in self.pures if p is not pure]]

    def _abandon(self, frame: Frame) -> None:
        """An exception leaves the function: what was done up to it is done, as it is in eager mode."""
        if type(frame) is Recorder:
            frame.reveal()
        elif type(frame) is Dry:
            frame.run_noted()
        elif isinstance(frame, Replayer):
            if frame.broken:
                frame.wreck()
            else:
                frame.interpret()
        frame.close()

    def _why_eager(self, state: State) -> str:
        if self.gave_up is not None:
            return "it keeps diverging from its recordings"
        if self.off:
            return "TAPEJIT=eager"
        if state.anomaly is not None:
            return "anomaly detection"
        return "inference mode" if state.inference else "within `with eager():`"

    def compiling(self, seconds: float, during: str) -> None:
        """Time that recording or replaying took for making programs is not theirs."""
        self.seconds["compile"] += seconds
        self.seconds[during] -= seconds

    def _recorded(self, trace: Trace, before: Trace | None) -> None:
        """A call was recorded, from its beginning or from where it differed from what was replayed before."""
        if not trace.keys:
            trace.complete()
        with self._lock:
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
                self._give_up(trace.entries[-1].line, obstacle or disagreement(self.seen))
            hot = diverged or self.seen[trace.keys] >= self.warmup
            if not hot and before is not None:
                return  # modules and optimizers that it differed in are no regions of it: the next call is recorded as a whole
            if any(t.keys == trace.keys for t in self.traces) or obstacle is not None:
                return
            began = perf_counter()
            trace.steps = make_steps(trace)
            settle_regions(trace)
            self.compiling(perf_counter() - began, "record")
            if hot:
                self._add(trace)
            else:
                self.candidate = trace

    def _seen_again(self, trace: Trace) -> None:
        """A call in the warm-up was like the one before. It was compared with it, and counts as recorded."""
        with self._lock:
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

    def _replayed(self, trace: Trace) -> None:
        if trace is self.candidate:
            self._seen_again(trace)
            return
        self.hits += 1
        trace.replays += 1
        if self.traces and self.traces[0] is not trace:
            with self._lock:
                self._use(trace)

    def _use(self, trace: Trace) -> None:
        if trace in self.traces:
            self.traces.remove(trace)
        self.traces.insert(0, trace)

    # ---- what replayers ask

    def siblings(self, trace: Trace, cursor: int, after_nodes: bool) -> list[Trace]:
        """Other recordings that are the same up to an entry."""
        found = []
        with self._lock:
            others = [t for t in self.traces if t is not trace]
        mine = trace.keys[:cursor]
        for other in others:
            if len(other.entries) <= cursor or other.keys[:cursor] != mine:
                continue
            pairs = zip(trace.entries[:cursor], other.entries[:cursor], strict=True)
            if after_nodes and any(isinstance(a, Break) and a is not b for a, b in pairs):
                continue  # their plans of the tape are not the same
            found.append(other)
        return found

    def diverged(self, frame: Replayer, reason: str, line: str) -> None:
        with self._lock:
            if frame.trace is self.candidate:
                return  # the first calls of a function may differ
            self.divergences[line, reason] += 1
            total = sum(self.divergences.values())
            logged("recompiles", f"{self.name} diverges at {shown(line)}: {reason}")
            if self.strict:
                raise CompileError(f"[compile] {self.name} diverges from its recording at {shown(line)}: {reason}. {STRICT}")
            if total >= 4 * self.budget and total > self.hits:
                self._give_up(line, reason)

    def has_moved(self, line: str, there: bool) -> None:
        """A slice begins elsewhere than in its recording; `there` if it can be made without ending a segment."""
        self.moves[line] += 1
        if there or self.moves[line] > self.budget // 2:
            self.moving.add(line)

    def _give_up(self, line: str, reason: str) -> None:
        if self.gave_up is not None:
            return
        line = shown(line)
        if self.strict:
            raise CompileError(f"[compile] {self.name} finds no recording to replay, last at {line}: {reason}. {STRICT}")
        self.gave_up = f"{line}: {reason}"
        logged("recompiles", f"{self.name} gives up at {line}: {reason}")
        self.traces.clear()
        self.candidate = None
        self._forget_pures()
        self.seen.clear()
        what = "breaks too often" if "in one call" in reason else "keeps diverging from its recordings"
        warn(
            f"{self.name} {what} and runs eagerly from now on. Last at {line}: {reason}. `{self.name}.explain()` lists all of "
            "it; keep shapes and Python numbers of a compiled function the same, read values outside of it, or compile a "
            "smaller part of it."
        )

    # ---- what users ask

    def explain(self, kernels: bool = False, llvm: bool = False, assembly: bool = False) -> Explanation:
        """What was recorded, where it breaks and diverges, how often it was replayed, and how it runs.

        With `kernels` also what its native programs consist of, with times that are measured now; with `llvm` and `assembly`
        their code as well.
        """
        return explain(self, kernels or llvm or assembly, llvm, assembly)

    def reset(self) -> None:
        """Forget all recordings."""
        with self._lock:
            self.traces.clear()
            self.candidate = None
            self._forget_pures()
            self.notes.clear()
            self.seen.clear()
            self.divergences.clear()
            self.moves.clear()
            self.moving.clear()
            self.fell_back.clear()
            self.seconds = dict.fromkeys(self.seconds, 0.0)
            self.gave_up = None
            self.calls = self.hits = self.recordings = self.evictions = 0


def compile(
    fn: Any = None,
    *,
    warmup: int = 2,
    backend: str = "auto",
    strict: bool = False,
    pure: bool = False,
    budget: int = 16,
    name: str | None = None,
    background: bool = False,
    tune: bool | None = None,
    disable: bool = False,
    **of_torch: Any,
) -> Any:
    """Record a function, then replay it; whatever differs from the recording runs eagerly.

    For functions, methods, `nn.Module` objects and classes (their `forward`). Python runs at each replay and is compared with
    the recording, unless it is proved that it only touches tensors; `pure` is a promise that it does. The first call is noted
    and computed by its program; with a `warmup` above 2 it runs, and the second is the first compiled one. The first `warmup`
    calls may differ from each other: from the second on they are compared with the one before, and run compiled if they are
    the same. `budget` bounds the number of recordings kept. `strict` raises a `CompileError` where a call would have to go on
    eagerly after the warm-up. `backend` is "llvm" for native code or "plain" for none; "auto" takes what the machine has.
    `background` compiles beside, while calls go on without. `tune` takes a second or two for each shape of matrix product that
    is new to this CPU, measures plans for it that give the same bits, and remembers the quickest, on disk too; where it is left
    open, TAPEJIT_TUNE=1 asks for it. On a GPU it changes nothing: kernels for real devices are tuned in any case.

    What PyTorch's scripts say is understood: `disable` gives back what was given, the backend "inductor" is "auto" and "eager"
    is "plain"; the modes "max-autotune" and "max-autotune-no-cudagraphs" ask for `tune`; `fullgraph`, `dynamic`, other modes
    and `options` change nothing, as results are right in any case.
    """
    strange = [key for key in of_torch if key not in ("fullgraph", "dynamic", "mode", "options")]
    if strange:
        raise TypeError(f"compile: there is no option {strange[0]!r}")
    backend = {"inductor": "auto", "eager": "plain", "aot_eager": "plain"}.get(backend, backend)
    if backend not in BACKENDS:
        raise ValueError(f"compile: backend must be one of {BACKENDS}, not {backend!r}")
    if warmup < 1 or budget < 1:
        raise ValueError(f"compile: warmup and budget must be at least 1, not {warmup} and {budget}")
    if tune is None and str(of_torch.get("mode")).startswith("max-autotune"):
        tune = True
    if tune is not None and not isinstance(tune, bool):
        raise ValueError(f"compile: tune must be True or False, or None for what TAPEJIT_TUNE says, not {tune!r}")

    def make(function: Any) -> Any:
        if isinstance(function, Compiled) or disable:
            return function
        settings = (warmup, backend, strict, pure, budget, name, background, tune)
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(Compiled(function.__func__, *settings))
        if isinstance(function, Module):
            return compiled_module(function, settings)
        if isinstance(function, type) and issubclass(function, Module):
            function.forward = Compiled(function.forward, *settings)  # type: ignore[method-assign]
            return function
        if not callable(function):
            raise TypeError(f"compile: expected a function or a module, not {type(function).__name__}")
        return Compiled(function, *settings)

    return make if fn is None else make(fn)


def compiled_module(module: Module, settings: tuple[Any, ...]) -> Module:
    """A module that shares everything with the given one, and whose forward is compiled."""
    cls = type(module)
    forward = Compiled(cls.forward, *settings)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    subclass = type(cls.__name__, (cls,), {"forward": forward, "__reduce_ex__": _reduce_compiled, **names})
    subclass._compiled = (cls, settings)  # type: ignore[attr-defined]
    made = object.__new__(subclass)
    made.__dict__ = module.__dict__
    return made


def _compile_in_place(self: Module, *args: Any, **kwargs: Any) -> None:
    """`model.compile()`: from now on its own calls are compiled."""
    self.__class__ = type(compile(self, *args, **kwargs))


Module.compile = _compile_in_place  # type: ignore[attr-defined]  # eager/ does not know this package


def _reduce_compiled(self: Any, protocol: Any) -> Any:
    """A compiled module is pickled as the module, and compiled again when it is loaded."""
    cls, settings = type(self)._compiled
    plain = object.__new__(cls)
    plain.__dict__.update(self.__dict__)
    return compiled_module, (plain, settings)


def compile_stats() -> dict[str, dict[str, Any]]:
    """For each compiled function: calls, replays, recordings, divergences."""
    return {
        f.name: {
            "calls": f.calls, "replays": f.hits, "recordings": f.recordings, "divergences": sum(f.divergences.values()),
            "paths": len(f.traces), "evictions": f.evictions, "gave_up": f.gave_up,
        }
        for f in _all
    }  # fmt: skip
