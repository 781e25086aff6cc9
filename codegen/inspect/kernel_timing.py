"""Time each kernel of a program by itself: in one thread, in its place among the others.

The program's own memory is left alone: there is another arena, other tables, and a step function for each kernel. Arguments are
samples: small random floats, and zeros, which are valid indices. All kernels run in order, so each finds in memory what it
would find in a real call, and each is repeated at once, with its operands still in the caches.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time_ns
from typing import Any

import numpy as np

from ..llvm.build import NativeBuild
from ..llvm.runtime.arena import allocate_aligned
from ..llvm.runtime.entry import bind
from ..llvm.step_function import StepWriter, link_step

ROUNDS = 3  # runs of the whole program
SAMPLES = 3  # samples per kernel and round; the best counts
SAMPLE_NS = 50_000  # about how long a sample takes
MAX_RUNS = 100  # in a sample


def time_kernels(build: NativeBuild) -> list[float | None]:
    """Measure the best time of each launch; None for launches that could not run on sample arrays."""
    programs, memory, start, nothing = bind_kernels(build)
    arrays, numbers = sample_arguments(build)
    best: list[Any] = [None] * len(programs)
    empty = sample(nothing, arrays, numbers, MAX_RUNS)
    often = [1] * len(programs)
    for _ in range(ROUNDS):
        for i, (program, launch) in enumerate(zip(programs, build.steps, strict=True)):
            try:
                found = sample(program, arrays, numbers, often[i])
            except Exception:  # an op that refuses these values; later launches need its results
                break
            often[i] = max(1, min(MAX_RUNS, int(SAMPLE_NS / max(found, 1.0))))
            alone = max(found - empty, 1.0) if build.made[i] is not None else found
            best[i] = min(alone, alone if best[i] is None else best[i])
            if launch.check and memory[start + build.arena.offsets[launch.check]]:
                break
    return [None if t is None else t / 1e9 for t in best]


def sample(program: Callable[[list[Any], list[Any]], Any], arrays: list[Any], numbers: list[Any], times: int) -> float:
    """Nanoseconds of this thread for a run: the best of a few samples of `times` runs."""
    best = float("inf")
    for _ in range(SAMPLES):
        began = thread_time_ns()
        for _ in range(times):
            program(arrays, numbers)
        best = min(best, (thread_time_ns() - began) / times)
    return best


def bind_kernels(build: NativeBuild) -> tuple[list[Any], Any, int, Any]:
    """Bind one function per launch; also returns the arena, its start offset, and an empty function that measures overhead."""
    table, binding = build.table()
    steps = StepWriter(build.arena, table)
    names = {i: f"kernel{i}" for i, made in enumerate(build.made) if made is not None}
    for i, name in names.items():
        made = build.made[i]
        assert made is not None
        steps.step(name, [made])
    steps.step("nothing", [])
    library = link_step([m.text for m in build.made if m is not None], steps, [*names.values(), "nothing"])
    memory, address = allocate_aligned(build.arena.size)
    memory[:] = 0
    words = [address, *[c.ctypes.data for c in build.constants.values()]]

    def bound(name: str) -> Any:
        keep = (library, memory, build.constants)
        return bind(library[name], binding, words, parallel=False, releases_gil=False, keep=keep)

    start = address - memory.ctypes.data
    found = [bound(names[i]) if i in names else build.called(launch, memory, start) for i, launch in enumerate(build.steps)]
    return found, memory, start, bound("nothing")


def sample_arguments(build: NativeBuild) -> tuple[list[Any], list[Any]]:
    """Sample arrays and scalars for a call."""
    rng = np.random.default_rng(0)
    written = {w.input.name for w, _ in build.work.write_backs}
    arrays: list[Any] = [None] * build.slots
    for x in build.work.inputs:
        arrays[x.slot] = sample_array(build.forms[x.name], rng, x.name in written)
    wanted = {value: build.forms[o.value] for o, value in build.work.outputs}
    arrays += [sample_array(wanted[value], rng, False) for value in build.outputs]
    arrays += [np.zeros((), np.bool_)] * build.checked()  # the flag of bounds checks
    arrays += [np.ones((), np.bool_) for _ in build.nontemporal_stores()]  # outputs reuse memory
    numbers: list[Any] = [0] * (1 + max((n.place for n in build.graph.numbers), default=-1))
    for n in build.graph.numbers:
        numbers[n.place] = n.type(1e-3 if n.type is float else 1)
    return arrays, numbers


def sample_array(form: Any, rng: np.random.Generator, positive: bool) -> Any:
    """Make an array of the given form. Inputs that are overwritten are positive: optimizers take their square roots."""
    span = 1 + max(0, sum((n - 1) * abs(s) for n, s in zip(form.shape, form.strides, strict=True)) // form.itemsize)
    memory = np.zeros(span, form.dtype)
    if form.dtype.kind == "f":
        memory[...] = rng.standard_normal(span) * 0.1
        if positive:
            memory = np.abs(memory)
    offset = sum((n - 1) * -s for n, s in zip(form.shape, form.strides, strict=True) if s < 0 < n)
    return np.ndarray(form.shape, form.dtype, memory, offset, form.strides)
