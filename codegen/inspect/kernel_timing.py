"""How long each kernel of a program takes, by itself: in one thread, in its place among the others.

The program's own memory is left alone: there is another arena, other tables, and a step function for each kernel. As no call
brings arrays, they are made up: small random floats, and zeros, which are good as indices. All kernels run in their order, so
each finds in memory what it would find there, and each is repeated at once, with what it needs still in the caches.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time_ns
from typing import Any

import numpy as np

from ..llvm.step_function import Steps, built
from ..llvm.runtime.entry import bind
from ..llvm.runtime.arena import aligned
from ..llvm.build import NativeBuild

ROUNDS = 3  # through the whole program
SAMPLES = 3  # of each kernel in a round, the best of which counts
LONG = 50_000  # nanoseconds that a sample takes, about
MOST = 100  # runs in a sample


def seconds(build: NativeBuild) -> list[float | None]:
    """For each step the best time that was seen; None where it could not run on made-up arrays."""
    programs, memory, start, nothing = parts(build)
    arrays, numbers = given(build)
    best: list[Any] = [None] * len(programs)
    empty = sample(nothing, arrays, numbers, MOST)
    often = [1] * len(programs)
    for _ in range(ROUNDS):
        for i, (program, launch) in enumerate(zip(programs, build.steps, strict=True)):
            try:
                found = sample(program, arrays, numbers, often[i])
            except Exception:  # an op that these values are not good for; what comes after it needs its results
                break
            often[i] = max(1, min(MOST, int(LONG / max(found, 1.0))))
            alone = max(found - empty, 1.0) if build.made[i] is not None else found
            best[i] = min(alone, alone if best[i] is None else best[i])
            if launch.check and memory[start + build.arena.offsets[launch.check]]:
                break
    return [None if t is None else t / 1e9 for t in best]


def sample(program: Callable[[list[Any], list[Any]], Any], arrays: list[Any], numbers: list[Any], times: int) -> float:
    """Nanoseconds of this thread for a run: the best of a few samples of so many."""
    best = float("inf")
    for _ in range(SAMPLES):
        began = thread_time_ns()
        for _ in range(times):
            program(arrays, numbers)
        best = min(best, (thread_time_ns() - began) / times)
    return best


def parts(build: NativeBuild) -> tuple[list[Any], Any, int, Any]:
    """A program for each step; the arena, where in it buffers begin, and a program that does nothing."""
    table, binding = build.table()
    steps = Steps(build.arena, table)
    names = {i: f"kernel{i}" for i, made in enumerate(build.made) if made is not None}
    for i, name in names.items():
        made = build.made[i]
        assert made is not None
        steps.step(name, [made])
    steps.step("nothing", [])
    library = built([m.text for m in build.made if m is not None], steps, [*names.values(), "nothing"])
    memory, address = aligned(build.arena.size)
    memory[:] = 0
    words = [address, *[c.ctypes.data for c in build.constants.values()]]

    def bound(name: str) -> Any:
        keep = (library, memory, build.constants)
        return bind(library[name], binding, words, parallel=False, releases_gil=False, keep=keep)

    start = address - memory.ctypes.data
    found = [bound(names[i]) if i in names else build.called(launch, memory, start) for i, launch in enumerate(build.steps)]
    return found, memory, start, bound("nothing")


def given(build: NativeBuild) -> tuple[list[Any], list[Any]]:
    """Arrays and numbers, as a call would bring them."""
    rng = np.random.default_rng(0)
    written = {w.input.name for w, _ in build.work.write_backs}
    arrays: list[Any] = [None] * build.slots
    for x in build.work.inputs:
        arrays[x.slot] = made_up(build.forms[x.name], rng, x.name in written)
    wanted = {value: build.forms[o.value] for o, value in build.work.outputs}
    arrays += [made_up(wanted[value], rng, False) for value in build.outputs]
    arrays += [np.zeros((), np.bool_)] * build.checked()  # the flag that a check sets
    arrays += [np.ones((), np.bool_) for _ in build.past()]  # results are where they were in the run before
    numbers: list[Any] = [0] * (1 + max((n.place for n in build.graph.numbers), default=-1))
    for n in build.graph.numbers:
        numbers[n.place] = n.type(1e-3 if n.type is float else 1)
    return arrays, numbers


def made_up(form: Any, rng: np.random.Generator, positive: bool) -> Any:
    """An array of a form. What a step updates is positive: an optimizer takes roots of it."""
    span = 1 + max(0, sum((n - 1) * abs(s) for n, s in zip(form.shape, form.strides, strict=True)) // form.itemsize)
    memory = np.zeros(span, form.dtype)
    if form.dtype.kind == "f":
        memory[...] = rng.standard_normal(span) * 0.1
        if positive:
            memory = np.abs(memory)
    offset = sum((n - 1) * -s for n, s in zip(form.shape, form.strides, strict=True) if s < 0 < n)
    return np.ndarray(form.shape, form.dtype, memory, offset, form.strides)
