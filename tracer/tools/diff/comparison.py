"""Compare an eager run of a step with its compiled program, op by op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import MethodType
from typing import Any

import numpy as np

from ....eager.arrays import devices
from ....eager.arrays.deferred import DeferredArray
from ....eager.core.dispatch import execute
from ....eager.core.op import Op
from ....eager.core.tape.node import State
from ....eager.core.tensor import Tensor
from ...api.compiled_function import CompiledFunction
from ...execute.backends import BACKENDS, backend_of, uses_gpu
from ...execute.reference_program import write_program
from ...graph.interpreter import copied
from ...graph.ir import GraphError
from ...record.recorder import Recorder
from ...record.release_memory import LONE_TENSOR, count_in
from ...trace.call_frame import calls_library
from ...trace.logging import display_line
from ...trace.queries import calls_between, used_slots
from ...trace.trace import WRITTEN, Break, Call, Trace
from .bisect import Inspection, NoProgramError
from .state_snapshot import Before, Copy, Memory
from .ulps import beyond, distance, on_cpu


class Comparison:
    """The result of `diff`. If eager and compiled disagree: the first op that differs, its line, both of its results, the index
    where they differ most, and by how much in units in the last place (for integers: the difference)."""

    agrees = True
    op: str | None = None
    line: str | None = None
    eager: Any = None
    compiled: Any = None
    index: tuple[int, ...] | None = None

    def __init__(self) -> None:
        self.ulps: float = 0  # error of the op that differs; the largest error if none does
        self.ops = 0  # ops compared
        self.native = 0  # ops whose native code was compared as well
        self.notes: list[str] = []  # segments that a replay runs eagerly or without native code, and why

    def differs(self, op: str, line: str, eager: Any, compiled: Any, index: tuple[int, ...] | None, ulps: float) -> None:
        self.agrees = False
        self.op, self.line, self.eager, self.compiled, self.index, self.ulps = op, line, eager, compiled, index, ulps

    def __str__(self) -> str:
        notes = "".join(f"\n  {note}" for note in self.notes)
        if self.agrees:
            how = f", {self.native} of them in native code" if self.native else ""
            return f"eager and compiled agree: {self.ops} ops{how}, the largest error is {self.ulps:.3g} ulps{notes}"
        head = f"eager and compiled differ first in op {self.ops}, {self.op} at {self.line}"
        if self.index is None:
            return f"{head}\n  eager     {described(self.eager)}\n  compiled  {described(self.compiled)}{notes}"
        return (
            f"{head}: {error_in_words(self.eager, self.ulps)} at index {list(self.index)} of {list(self.eager.shape)}\n"
            f"  eager     {self.eager[self.index]!s}\n  compiled  {self.compiled[self.index]!s}{notes}"
        )

    __repr__ = __str__


def described(x: Any) -> str:
    return f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, np.ndarray) else f"{type(x).__name__}: {x}"


def error_in_words(array: Any, ulps: float) -> str:
    if array.dtype.kind in "biu":
        return f"off by {ulps:g}"
    return "NaN or infinite in one of them" if np.isinf(ulps) else f"{ulps:.4g} ulps"


def wanted_backend(fn: Any) -> str:
    """The backend that a compiled function or module asks for."""
    fn = fn.__func__ if isinstance(fn, MethodType) else fn
    found = fn if isinstance(fn, CompiledFunction) else getattr(type(fn), "forward", None)
    return found.backend if isinstance(found, CompiledFunction) else "auto"


class Part:
    """The inputs of a segment, copied before it ran."""

    def __init__(self, first_slot: int) -> None:
        self.first_slot = first_slot
        self.memory = Memory()
        self.inputs: dict[int, Copy] = {}  # by slots that exist before it
        self.alive: set[int] = set()  # values that outlive it


class Observer(Recorder):
    """A recorder that keeps copies of each segment's inputs and of each op's results."""

    def __init__(self, state: State, before: Before) -> None:
        super().__init__(state, Trace())
        self.before = before
        self.results: list[list[Any]] = []  # one list per op, in order
        self.before_region = 0  # number of results before the last backward pass
        self.parts: dict[int, Part] = {}  # by the first entry of a segment
        self.scanned = 0  # entries searched for breaks
        self.part = self.parts[0] = Part(0)
        before.frame = self
        self.prepare()

    def observe(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Call a function the way a compiled one is called, while recording it."""
        state = self.state
        setting, handler = state.autocast, state.handler
        below = None if setting is None else setting.below
        state.tracer = self
        if setting is None:
            state.handler = self
        else:
            setting.below = self
        try:
            result = function(*args, **kwargs)
            self.finish()
            del result  # keeps it alive until here
        except BaseException:
            self.reveal()
            raise
        finally:
            state.tracer = None
            state.autocast, state.handler = setting, handler
            if setting is not None:
                setting.below = below
        self.trace.complete()

    def run(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        self.enter_segment()
        for x in (*inputs, out):
            if isinstance(x, Tensor):
                self.note_input(x.tj_array.real if isinstance(x.tj_array, DeferredArray) else x.tj_array)
        result = super().run(op, inputs, attrs, out)
        made = result if type(result) is tuple else [result]
        changed = (
            [inputs[i] for i in op.mutates if isinstance(inputs[i], Tensor)] if op.mutates else made if out is None else [out]
        )
        self.results.append(
            [devices.copy(t.tj_array.real if isinstance(t.tj_array, DeferredArray) else t.tj_array) for t in changed]
        )
        return result

    def stop(self, reason: str, kind: type[Break] = Break) -> None:
        self.enter_segment()
        hidden, views = Counter(map(id, self.concealed)), Counter(id(t.tj_base) for t in self.tensors if t is not None)
        self.part.alive |= {
            n
            for n in range(self.first, len(self.tensors))
            if self.tensors[n] is not None
            and count_in(self.tensors, n) > LONE_TENSOR + hidden[id(self.tensors[n])] + views[id(self.tensors[n])]
        }
        super().stop(reason, kind)

    def enter_segment(self) -> None:
        for i in range(self.scanned, len(self.trace.entries)):
            if isinstance(self.trace.entries[i], Break):
                self.part = self.parts[i + 1] = Part(len(self.trace.roots))
        self.scanned = len(self.trace.entries)

    def note_input(self, array: Any) -> None:
        slot = self.slot_of[id(array)]
        root = self.trace.roots[slot]
        inside = root >= self.part.first_slot and root not in self.trace.outside
        for s, a in () if inside else ((slot, array), (root, self.arrays[root])):
            if s not in self.part.inputs and a is not None:
                self.part.inputs[s] = self.part.memory.save(a)

    def outside_value(self, t: Tensor, array: Any) -> Any:
        self.before.touch(t)
        return super().outside_value(t, array)

    def sole(self, slot: int) -> bool:
        """Ignore the references of the snapshot."""
        kept, key = self.before.arrays, id(self.arrays[slot])
        was_kept = key in kept
        if was_kept:
            del kept[key]
        try:
            return super().sole(slot)
        finally:
            if was_kept:
                kept[key] = self.arrays[slot]

    # ---- unrecorded code still changes tensors

    def graph_break(self, function: Callable[..., Any], reason: str, *args: Any, **kwargs: Any) -> Any:
        for x in args:
            for t in x if isinstance(x, (tuple, list)) else (x,):
                if isinstance(t, Tensor):
                    self.before.touch(t)
        return super().graph_break(function, reason, *args, **kwargs)

    def run_untraced(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def watched() -> Any:
            self.state.handler = self.watch
            return function(*args, **kwargs)

        return super().run_untraced(watched)

    def watch(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        for t in (*inputs, out):
            if isinstance(t, Tensor):
                self.before.touch(t)
        return execute(op, inputs, attrs, out, self.state)

    @calls_library
    def backward(self, roots: Any, *rest: Any) -> Any:
        self.before.walk(roots)
        self.before_region = len(self.results)
        return super().backward(roots, *rest)

    def forget(self, mark: tuple[int, int]) -> None:
        del self.results[self.before_region :]
        super().forget(mark)


def compare(observer: Observer, wanted: str, ulps: float, rtol: float) -> Comparison:
    trace, found = observer.trace, Comparison()
    obstacle = trace.obstacle()
    if obstacle is not None:
        found.notes.append(f"the whole function runs eagerly: {obstacle}")
        return found
    start = done = 0
    for stop, entry in enumerate(trace.entries):
        if not isinstance(entry, Break) or not found.agrees:
            continue
        ops = calls_between(trace, start, stop)
        if ops and entry.state is None:
            found.notes.append(f"up to {display_line(entry.line)} it runs eagerly: its tape cannot be planned")
        elif ops:
            results = observer.results[done : done + len(ops)]
            native = inspection(observer, (start, stop), wanted, found, ulps, rtol)
            compare_segment(observer, (start, stop), ops, results, found, ulps, rtol)
            if native is not None and found.agrees:
                compare_native(native, ops, found)
        done += len(ops)
        start = stop + 1
    return found


def compare_segment(
    observer: Observer,
    bounds: tuple[int, int],
    ops: list[Call],
    results: list[list[Any]],
    found: Comparison,
    ulps: float,
    rtol: float,
) -> None:
    trace, (start, stop) = observer.trace, bounds
    snapshot = trace.entries[stop].state
    keep = frozenset(used_slots(trace, stop)) | snapshot.slots(snapshot.nodes.values())
    arrays: list[Any] = [None] * len(trace.roots)
    for slot, copy in observer.parts[start].inputs.items():
        if slot < len(arrays):
            arrays[slot] = copy.array()
    program: Any = write_program(trace, start, stop, keep, stepwise=True)(arrays, observer.scalars)
    for call, expected in zip(ops, results, strict=True):
        found.ops += 1
        where = call.op.name, display_line(call.line)
        try:
            made = next(program)
        except Exception as error:
            found.differs(*where, expected[0] if expected else None, error, None, np.inf)
            return
        for e, c in zip(expected, made, strict=True):
            e, c = on_cpu(e), on_cpu(c)
            if e.shape != c.shape or e.dtype != c.dtype:
                found.differs(*where, e, c, None, np.inf)
                return
            off = distance(e, c)
            worse = beyond(e, c, off, ulps, rtol)
            if worse.any():
                index = np.unravel_index(int(worse.argmax()), worse.shape)
                found.differs(*where, e, c.copy(), tuple(int(i) for i in index), float(worse[index]))
                return
            found.ulps = max(found.ulps, float(off.max(initial=0)))


def inspection(
    observer: Observer, bounds: tuple[int, int], wanted: str, found: Comparison, ulps: float, rtol: float
) -> Inspection | None:
    """Prepare the comparison of a segment's native program, before the reference program runs; None without native code."""
    trace, (start, stop) = observer.trace, bounds
    backend, end = backend_of(wanted, uses_gpu(trace, start, stop)), trace.entries[stop]
    if backend not in BACKENDS or end.reason is WRITTEN:
        return None
    part = observer.parts[start]
    nodes = [plan for n, plan in end.state.nodes.items() if n in part.alive]
    keep = {trace.values[n].slot for n in part.alive} | used_slots(trace, stop) | end.state.slots(nodes)
    try:
        arrays = {slot: copy.array() for slot, copy in part.inputs.items() if slot < len(trace.roots)}
        made = Inspection(trace, bounds, keep, arrays, observer.scalars, BACKENDS[backend].compile_graph, ulps, rtol)
    except GraphError as reason:
        found.notes.append(f"up to {display_line(end.line)} it runs without native code: {reason}")
        return None
    if made.shares_memory():
        found.notes.append(f"up to {display_line(end.line)} it runs without native code: its arrays share memory")
        return None
    made.inputs = {x.slot: copied(arrays[x.slot], made.graph.forms[x.name]) for x in made.graph.inputs}
    return made


def compare_native(native: Inspection, ops: list[Call], found: Comparison) -> None:
    first = found.ops - len(ops)
    try:
        fault = native.fault()
    except NoProgramError as reason:
        found.notes.append(f"up to {display_line(ops[-1].line)} it runs without native code: {reason}")
        return
    found.native += len(ops)
    found.ulps = max(found.ulps, native.largest)
    if fault is None:
        return
    found.ops = first + 1 + next(i for i, call in enumerate(ops) if call is fault.call)
    found.differs(fault.call.op.name, display_line(fault.call.line), fault.eager, fault.compiled, fault.index, fault.ulps)
    found.notes.append(fault.note or "only in native code: the reference program is right")
