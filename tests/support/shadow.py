"""Running programs twice from the same memory, plainly and as native code: they must agree, and write nowhere else.

What a test goes on with are the reference program's results, so that what Python makes of values is the same in both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import tapejit as tj
from tapejit.codegen.llvm import build as native_module
from tapejit.codegen.llvm import executable
from tapejit.codegen.llvm import step_function as assemble
from tapejit.codegen.llvm.program import compile_graph
from tapejit.codegen.program import builder as build
from tapejit.codegen.schedule.memory_plan import Lifetime, MemoryPlan, plan_memory
from tapejit.tracer.execute import reference_program as program
from tapejit.tracer.execute import tiering
from tapejit.tracer.graph.functionalize import graph_of
from tapejit.tracer.graph.interpreter import has_aliased_inputs
from tapejit.tracer.graph.ir import Graph, GraphError
from tapejit.tracer.graph.passes import optimize

TOLERANCE = {"f2": 2e-3, "V2": 2e-2, "f4": 2e-5, "f8": 1e-11}


class Seen:
    """Record of what was run: native programs, how often, and why some were not."""

    def __init__(self) -> None:
        self.programs: list[Any] = []
        self.runs = 0
        self.left: list[str] = []
        self.tolerance = 1.0  # in units of what is usual
        self.zero = 1e-6  # numbers that count as large as this: what was left when larger ones cancelled out
        self.exact = False  # whether they have to agree to the bit
        self.after: Callable[[], None] = lambda: None  # called after each run of native code

    def opaque(self) -> set[str]:
        """The opaque ops."""
        steps = [x for p in self.programs for x in zip(p.launches, p.made, strict=True)]
        return {launch.node.op.name for launch, made in steps if made is None}


@contextmanager
def watching(monkeypatch: Any) -> Iterator[Seen]:
    """Everything that is replayed also runs natively, and is compared."""
    found = Seen()
    monkeypatch.setattr(program, "make_program", shadowed(found))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about infinities
        yield found
    assert found.runs


def bits_by_threads(monkeypatch: Any, function: Callable[[], list[Any]]) -> set[bytes]:
    """Return a function's results, compiled, with one thread, two and three."""
    monkeypatch.setattr(native_module, "MIN_PARALLEL_OPS", 0)
    monkeypatch.setattr(native_module, "MIN_THREAD_SPEEDUP", 0)
    monkeypatch.setattr(tiering, "MARGIN", float("inf"))  # native code, whatever a busy machine measures
    before, found = tj.get_num_threads(), set()
    try:
        for threads in (1, 2, 3):
            tj.set_num_threads(threads)
            compiled = tj.compile(function, backend="llvm", strict=True)
            for _ in range(6):
                results = compiled()
            found.add(b"".join(y.numpy().tobytes() for y in results))
    finally:
        tj.set_num_threads(before)
    return found


def owner(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def tolerance(array: Any) -> float:
    return 0.0 if array.dtype.kind in "biu" else TOLERANCE["V2" if array.dtype.kind == "V" else array.dtype.str[1:]]


def close(found: Any, expected: Any, factor: float = 1.0, zero: float = 1e-6) -> bool:
    """Equal up to rounding, relative to what is around: a difference of large numbers is as imprecise as they are."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if found.dtype.kind in "biu":
        return bool((found == expected).all())
    a, b = found.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    scale = np.abs(b[finite]).max(initial=0.0)
    limit = factor * tolerance(found) * (np.abs(b) + 0.1 * scale + zero)
    return bool((same | (finite & (np.abs(a - b) <= limit))).all())


def shadowed(seen: Seen, make: Callable[..., Any] = program.make_program) -> Callable[..., Any]:
    """In the place of `make_program`: programs that are checked against native code each time that they run."""

    def make_both(trace: Any, start: int, stop: int, keep: frozenset[int]) -> Any:
        plain = make(trace, start, stop, keep)
        try:
            fast = compile_graph(optimize(graph_of(trace, start, stop, keep)), len(trace.roots), plain)
        except GraphError as reason:
            seen.left.append(str(reason))
            return plain
        seen.programs.append(fast)
        return lambda arrays, scalars: both(seen, fast, plain, arrays, scalars)

    return make_both


def both(seen: Seen, fast: Any, plain: Any, arrays: list[Any], scalars: list[Any]) -> None:
    graph = fast.graph
    if has_aliased_inputs(graph, arrays):
        plain(arrays, scalars)
        return
    before = list(arrays)
    memory = {id(owner(a)): (owner(a), owner(a).copy(order="K")) for a in arrays if type(a) is np.ndarray}
    fast.run(arrays, scalars)
    seen.after()
    wanted = [o.slot for o in graph.outputs] + [x.slot for x in graph.inputs]
    found = {s: (arrays[s].strides, arrays[s].copy()) for s in wanted}
    arrays[:] = before
    left = {}
    for key, (array, saved) in memory.items():
        left[key] = array.copy(order="K")
        if array.flags.writeable:
            array[...] = saved
    plain(arrays, scalars)
    seen.runs += 1
    for slot in wanted:
        strides, value = found[slot]
        good = close(value, arrays[slot], 0.0 if seen.exact else seen.tolerance, seen.zero)
        assert good, f"slot {slot} differs: {value} and {arrays[slot]}\n{graph}"
        if value.size > 1:
            steps = [(a, b) for a, b, n in zip(strides, arrays[slot].strides, value.shape, strict=True) if n > 1]
            assert all(a == b for a, b in steps), f"slot {slot} has other strides\n{graph}"
    for key, (array, _) in memory.items():
        assert close(left[key], array, seen.tolerance, seen.zero), f"something else is written\n{graph}"


# ---- graphs, without running anything


def recorded(function: Callable[..., Any], *args: Any, calls: int = 4) -> list[Graph]:
    """The graphs of the segments of a function, as they are compiled."""
    found: list[Graph] = []
    make = program.make_program

    def noting(trace: Any, start: int, stop: int, keep: frozenset[int]) -> Any:
        found.append(optimize(graph_of(trace, start, stop, keep)))
        return make(trace, start, stop, keep)

    program.make_program = noting  # type: ignore[assignment]
    try:
        compiled = tj.compile(function)
        for _ in range(calls):
            compiled(*args)
    finally:
        program.make_program = make
    return found


# ---- memory around buffers

GAP = 256
FILL = 0xFF  # as floats NaN, so that whoever reads it shows it


def forever(life: Lifetime) -> tuple[tuple[int, Lifetime], ...]:
    """The parts of a buffer, and at last the gap."""
    parts = [(at, replace(x, first=0, last=0)) for at, x in life.parts]
    return (*parts, (life.size, Lifetime("gap", GAP, 0, 0))) if parts else ()


class Guards:
    """Memory that is made while programs are put together has a margin that nobody may write to."""

    def __init__(self) -> None:
        self.margins: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)  # stands in for NumPy where programs are put together

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """In the middle of more."""
        kind = np.dtype(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        whole = np.full(size + 2 * GAP, FILL, np.uint8)
        self.margins.append((whole, size))
        return whole[GAP : GAP + size].view(kind).reshape(shape)

    def planned(self, lives: list[Lifetime], *_: Any) -> MemoryPlan:
        """In the place of `plan_memory`: no two buffers share memory, and there is a gap after each."""
        arena = plan_memory([replace(x, size=x.size + GAP, first=0, last=0, parts=forever(x)) for x in lives])
        self.sizes = {x.name: x.size for x in lives}
        self.arena = arena
        return arena

    def aligned(self, size: int) -> tuple[Any, int]:
        """In the place of `aligned`: filled."""
        memory = np.full(size + 64, FILL, np.uint8)
        start = memory.ctypes.data
        first = -start % 64
        for name, size in self.sizes.items():
            begin = first + self.arena.offsets[name] + size
            self.margins.append((memory[begin : begin + GAP], None))
        return memory, start + first

    def check(self) -> None:
        for whole, size in self.margins:
            parts = [whole] if size is None else [whole[:GAP], whole[GAP + size :]]
            assert all((p == FILL).all() for p in parts), "a program wrote beside its buffers"
        self.margins = [m for m in self.margins if m[1] is None]


def guard(seen: Seen, monkeypatch: Any) -> None:
    """From now on programs have margins around their buffers, which are looked at after each run."""
    guards = Guards()
    monkeypatch.setenv("TAPEJIT_CACHE", "0")  # whose programs have none
    monkeypatch.setattr(build, "plan_memory", guards.planned)
    monkeypatch.setattr(executable, "allocate_aligned", guards.aligned)
    monkeypatch.setattr(
        executable.NativeExecutable, "shares_arena", False
    )  # each has an arena of its own, with its own margins
    for module in (native_module, assemble):
        monkeypatch.setattr(module, "MAX_STACK_BYTES", 0)  # what a thread has for itself is there too, with a margin
    monkeypatch.setattr(native_module.NativeBuild, "threads", lambda _: 1)  # and for one: the next one's would have none
    monkeypatch.setattr(executable, "np", guards)
    seen.after = guards.check


def margined(array: Any) -> Any:
    """An array in the middle of a larger one, which is full of NaNs."""
    whole = np.full(tuple(n + 4 for n in array.shape), np.nan if array.dtype.kind == "f" else 99, array.dtype)
    inside = whole[(slice(2, -2),) * array.ndim]
    inside[...] = array
    return inside
