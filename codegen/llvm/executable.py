"""Native executables: what is stored on disk and loaded, and its binding to a callable.

A program is bound from its executable, whether that was just built or comes from the disk cache, where it is found by the
graph: then nothing is lowered, fused or emitted. Executables are JSON, and refer to the object code of their kernels by
cache keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tracer.graph.ir import Graph
from ..program import disk_cache as cache
from ..program.cache_key import program_key
from ..program.call_wrapper import Program, make_call_wrapper
from ..program.executable import Executable, decode_array
from .ir.target import host
from .runtime import jit
from .runtime import thread_pool as threads
from .runtime.arena import allocate_aligned
from .runtime.entry import ArgumentBinding, bind
from .runtime.thread_pool_ir import MAX_THREADS
from .tuning.store import plans_are_current


@dataclass(kw_only=True)
class NativeExecutable(Executable):
    """An executable whose steps are functions of compiled objects. See the module docstring."""

    objects: list[str]  # cache keys of the object code
    parallel: bool  # may run on several threads
    releases: bool  # releases the GIL while it runs
    max_threads: int  # that have scratch memory; 0: any number
    again: list[int]  # new arrays that are written only after everything that may fail: their memory may be reused
    nontemporal: list[int]  # new arrays with non-temporal stores, used if memory is reused: one flag each, after all arrays
    plans: dict[str, str]  # of its matmuls, by encoded shape: see `codegen/llvm/tuning/store.py`

    @property
    def shares_arena(self) -> bool:
        """True if its arena is the process's shared one."""
        return len(self.steps) == 1 and bool(self.steps[0])

    def code_keys(self) -> list[str]:
        return self.objects


# ---- lookup by graph


def cache_key(graph: Graph, slots: int) -> str | None:
    """Cache key of a graph's executable; None if the graph holds something that cannot be keyed."""
    return program_key(graph, slots, "llvm", *jit.versions(), str(host()), host().features)


def load(name: str | None, tune: bool) -> tuple[NativeExecutable, list[bytes]] | None:
    """Load an executable and its object code; None if something is missing or its matmuls would get other plans now."""
    executable = NativeExecutable.load(name)
    if executable is None or not plans_are_current(executable.plans, host(), tune):
        return None
    found = [cache.get(k) for k in executable.code_keys()]
    return None if any(x is None for x in found) else (executable, [x for x in found if x is not None])


# ---- binding


def bind_executable(
    executable: NativeExecutable,
    graph: Graph,
    objects: list[bytes],
    opaque: Callable[[int, Any, int], Any] | None,
    reference: Program,
) -> Program:
    """The function that runs an executable. `opaque` makes the callable of a step without a name, on the arena's memory.

    A program of one step shares the process's arena. While another thread uses that, it runs on memory of its own. Several
    steps pass values through the arena, so they have one to themselves.
    """
    names = [n for n in executable.steps if n]
    library = jit.link(objects, threads.process_pool().imports(), names) if names else None
    constants = [decode_array(x) for x in executable.constants]
    binding = ArgumentBinding(tuple(executable.bound), tuple(executable.numbers))

    def bound(name: str, memory: Any, start: int) -> Any:
        assert library is not None
        return bind(
            library[name],
            binding,
            [start, *[c.ctypes.data for c in constants]],
            parallel=executable.parallel,
            releases_gil=executable.releases,
            max_threads=executable.max_threads or MAX_THREADS,
            keep=(library, memory, constants),
            shares=executable.arena if memory is None else None,
        )

    if executable.shares_arena:
        (name,) = names
        others = PrivateArenaProgram(lambda: bound(name, *allocate_aligned(executable.arena)))
        return make_call_wrapper(
            executable,
            graph,
            [bound(name, None, 0)],
            reference,
            np,
            again=executable.again,
            nontemporal=executable.nontemporal,
            spare=others,
        )
    memory, start = allocate_aligned(executable.arena)
    programs = []
    for i, name in enumerate(executable.steps):
        if name:
            programs.append(bound(name, memory, start))
        else:
            assert opaque is not None
            programs.append(opaque(i, memory, start - memory.ctypes.data))
    return make_call_wrapper(
        executable, graph, programs, reference, np, again=executable.again, nontemporal=executable.nontemporal
    )


class PrivateArenaProgram:
    """A program with an arena of its own, bound when first needed."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.program: Any = None

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> Any:
        if self.program is None:
            self.program = self.make()
        return self.program(arrays, scalars)
