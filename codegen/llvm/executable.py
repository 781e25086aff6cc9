"""What it takes to run a program: compiled code, what is bound to it, how large its memory is, where its outputs are.

A program is put together from its recipe, whether that was just made or comes from the disk cache, where it is found by the
graph: then there is nothing to lower, to fuse, or to emit. Recipes are JSON, and name the objects of their kernels by these'
keys in the cache.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...tracer.graph.ir import Graph
from ..program import disk_cache as cache
from .runtime import jit
from .runtime import thread_pool as threads
from .runtime.entry import Binding, bind
from .runtime.thread_pool_ir import MOST_THREADS
from .tuning.store import agree
from .runtime.arena import aligned
from .ir.target import host
from ..program.cache_key import name_of
from ..program.call_wrapper import Program, runner


@dataclass
class Recipe:
    """See the module's text."""

    objects: list[str]  # keys
    steps: list[str]  # names of the functions that are called, "" for an op that is called as it is
    slots: int  # how many arrays there are
    bound: list[int]  # slots, those after all arrays are new memories
    numbers: list[tuple[int, str]]
    arena: int  # bytes
    constants: list[tuple[str, list[int], str]]  # dtype, shape, bytes
    memories: list[int]  # of each new memory: the output whose form it has
    shown: list[int]  # of each output: the slot of the memory that it shows
    checked: bool  # a flag, which is the last new memory, says that indices were out of bounds
    danger: list[int]  # slots of inputs that are written before something may fail
    parallel: bool
    releases: bool
    most_threads: int  # that there is memory for; 0 for any number
    again: list[int]  # new memories that nothing is written to before all that may fail is over
    past: list[int]  # new memories that are written past the caches if they are not new: a flag for each is after all memories
    plans: dict[str, str]  # of its products, by their shapes: see `llvm/remembered.py`

    @property
    def shares(self) -> bool:
        """Whether its arena is memory that it has in common with other programs."""
        return len(self.steps) == 1 and bool(self.steps[0])

    def text(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def from_text(data: bytes) -> Recipe:
    return Recipe(**json.loads(data))


# ---- by graph


def key(graph: Graph, slots: int) -> str | None:
    """The name of a graph's recipe in the cache; None if the graph holds something that has no name."""
    return name_of(graph, slots, "llvm", *jit.versions(), str(host()), host().features)


def kept_on_disk(name: str | None, tune: bool) -> tuple[Recipe, list[bytes]] | None:
    """A recipe and its objects, if all of them are there, and its products would be cut up in the same way now."""
    data = None if name is None else cache.get(name)
    if data is None:
        return None
    try:
        recipe = from_text(data)
    except (ValueError, TypeError):
        return None
    if not agree(recipe.plans, host(), tune):
        return None
    found = [cache.get(k) for k in recipe.objects]
    return None if any(x is None for x in found) else (recipe, [x for x in found if x is not None])


# ---- programs


def put_together(
    recipe: Recipe, graph: Graph, objects: list[bytes], opaque: Callable[[int, Any, int], Any] | None, plain: Program
) -> Program:
    """The function that runs a recipe. `opaque` gives what is called for a step without a name, on the arena's memory.

    A program of one part shares its arena with others. While another thread uses that, it runs on memory of its own. Parts
    leave things in the arena for each other, so they have one to themselves.
    """
    names = [n for n in recipe.steps if n]
    library = jit.link(objects, threads.pool().imports(), names) if names else None
    constants = [np.frombuffer(base64.b64decode(data), kind).reshape(shape).copy() for kind, shape, data in recipe.constants]
    binding = Binding(tuple(recipe.bound), tuple((n, kind) for n, kind in recipe.numbers))

    def bound(name: str, memory: Any, start: int) -> Any:
        assert library is not None
        return bind(
            library[name],
            binding,
            [start, *[c.ctypes.data for c in constants]],
            parallel=recipe.parallel,
            releases_gil=recipe.releases,
            most_threads=recipe.most_threads or MOST_THREADS,
            keep=(library, memory, constants),
            shares=recipe.arena if memory is None else None,
        )

    if recipe.shares:
        (name,) = names
        others = Spare(lambda: bound(name, *aligned(recipe.arena)))
        return runner(recipe, graph, [bound(name, None, 0)], plain, np, again=recipe.again, past=recipe.past, spare=others)
    memory, start = aligned(recipe.arena)
    programs = []
    for i, name in enumerate(recipe.steps):
        if name:
            programs.append(bound(name, memory, start))
        else:
            assert opaque is not None
            programs.append(opaque(i, memory, start - memory.ctypes.data))
    return runner(recipe, graph, programs, plain, np, again=recipe.again, past=recipe.past)


class Spare:
    """A program on memory of its own, made when it is first wanted."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.program: Any = None

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> Any:
        if self.program is None:
            self.program = self.make()
        return self.program(arrays, scalars)


def encoded(array: Any) -> tuple[str, list[int], str]:
    return array.dtype.str, list(array.shape), base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
