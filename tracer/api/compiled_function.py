"""Compiled function: the object that `compile` returns. Each call skips Python, replays a recording, or records.

A call replays the recording that was replayed last. Where Python diverges from it, the replayer looks for a recording with the
same prefix that matches; if there is none, the call continues eagerly and is recorded. So the recordings of a function form a
tree of paths, which `PathCache` keeps.
"""

from __future__ import annotations

import functools
import os
import types
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ...eager.core.tape.node import State, local
from ..execute.preload import preload_backend
from ..first_call.abstract_recorder import AbstractRecorder
from ..record.recorder import MAX_BREAKS, Recorder
from ..replay.replayer import Replayer
from ..skip.skipped_call import MISS, REENTERED, bound_calls, materialise_all
from ..trace.call_frame import CallFrame
from ..trace.trace import Trace
from ..trace.watchers import WATCHED, is_watched
from .eager_switch import switch
from .path_cache import PathCache

ALL: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()


class CompiledFunction(PathCache):
    """Function that is recorded, and then replayed."""

    explain: Callable[..., Any]  # attached by tracer/tools/explain, which the core does not import

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
        super().__init__()
        functools.update_wrapper(self, function)
        self.function = function
        self.name = str(name or getattr(function, "__qualname__", type(function).__name__))
        self.warmup, self.backend, self.strict, self.pure, self.budget = warmup, backend, strict, pure, budget
        self.background, self.tune = background, tune
        self.calls = 0
        self.off = os.environ.get("TAPEJIT") == "eager"
        self.seconds = {"record": 0.0, "compile": 0.0, "replay": 0.0}
        ALL.add(self)
        if not self.off:
            preload_backend(backend)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<compiled {self.name}>"

    def __reduce__(self) -> Any:
        return self.__dict__["__qualname__"]  # by reference, as functions are pickled

    # ---- a call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state = local.state
        if state.tracer is not None:
            return self.function(*args, **kwargs)  # inlined into the caller's recording
        self.calls += 1
        if self.off or self.gave_up is not None or state.anomaly is not None or state.inference or switch.off:
            self.fell_back[self._why_eager(state)] += 1
            return self.function(*args, **kwargs)
        began = perf_counter()
        watched = is_watched()
        pures = self.skipped_calls if not watched else []
        if pures and pures[0].after is not None:  # recordings that alternate usually do so in the same order
            pures = [pures[0].after, *pures]
        for pure in pures:
            result = MISS if pure.fast_path is None else pure.fast_path(pure, state, args, kwargs)
            if result is MISS:
                result = pure.run(state, args, kwargs)
            if result is REENTERED:
                self.fell_back["called by a signal handler while it runs"] += 1
                return self.function(*args, **kwargs)
            if result is not MISS:
                self.count_replay(pure.trace)
                pure.trace.skipped += 1
                if pure is not self.skipped_calls[0]:
                    self.use_first(pure)
                elif pure.after is not None:
                    pure.after = None
                took = perf_counter() - began
                self.seconds["replay"] += took
                if took < pure.quickest:
                    pure.quickest = took
                return result
        if bound_calls:
            materialise_all()
        trace = self.traces[0] if self.traces else self.candidate
        if watched:
            self.fell_back[WATCHED] += 1
            if trace is None:
                return self.function(*args, **kwargs)
        before = self.observe(state, trace, args, kwargs) if not watched and self.is_observed(trace) else None
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
        if watched or is_watched():  # nothing is learned from this call
            if type(frame) is not Recorder and not frame.recorded:
                self.count_replay(frame.trace)
        elif type(frame) is Recorder or frame.recorded:
            compiled -= self.seconds["compile"]  # already counted as a replay's, which this is not
            self.seconds["replay"] -= compiled
            if len(frame.trace.breaks()) >= MAX_BREAKS:
                self.give_up(frame.trace.breaks()[0].line, f"it reads values {MAX_BREAKS} times or more in one call")
            else:
                self.add_recording(frame.trace, trace)
            self.seconds["record"] += perf_counter() - began + compiled
        else:
            self.count_replay(frame.trace)
            took = perf_counter() - began
            self.seconds["replay"] += took
            if took < frame.trace.quickest:
                frame.trace.quickest = took
        if before is not None and not is_watched():
            self.decide(frame, before, args, kwargs, result, state)
        frame.close()
        return result

    def _recorder(self, state: State) -> Any:
        """Create the recorder of a new call. The first call is compiled at once; later paths must be seen again before they
        are."""
        if self.recordings or self.warmup > 2:
            return Recorder(state, Trace()).prepare(self.moving)
        return AbstractRecorder(state, self)

    def _abandon(self, frame: CallFrame) -> None:
        """Handle an exception that leaves the function: everything before it takes effect, as in eager mode."""
        if type(frame) is Recorder:
            frame.reveal()
        elif type(frame) is AbstractRecorder:
            frame.run_recorded()
        elif isinstance(frame, Replayer):
            if frame.broken:
                frame.expose_partial_results()
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

    def reset(self) -> None:
        """Drop all recordings."""
        with self.lock:
            self.forget()
            self.seconds = dict.fromkeys(self.seconds, 0.0)
            self.calls = 0
