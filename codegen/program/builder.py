"""Build a program: the part that all targets share. Holds the launches of a graph, and where each value is in memory.

A value is an input, a constant, an output, or in the arena, the memory that exists only while a program runs. Targets add what
their kernels need there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol

from ...tracer.graph.interpreter import run_op
from ...tracer.graph.ir import Form, Graph
from ...tracer.trace.trace import Number
from ..lowering.random_ops import RANDOM_OPS
from ..nests.kernels import Launch, in_place_pairs, make_launches
from ..prepare.primitive_graph import PrimitiveGraph
from ..schedule.fusion import Schedule
from ..schedule.memory_plan import Lifetime, MemoryPlan, plan_memory


class LaunchGroup(Protocol):
    """Launches that run at the same time."""

    @property
    def launches(self) -> Sequence[Launch]: ...
    @property
    def reads(self) -> AbstractSet[str]: ...
    @property
    def writes(self) -> AbstractSet[str]: ...


@dataclass(frozen=True)
class SingleLaunch:
    """A launch that runs alone."""

    launches: tuple[Launch]
    reads: AbstractSet[str]
    writes: AbstractSet[str]


def single_launches(steps: list[Launch]) -> list[SingleLaunch]:
    return [SingleLaunch((x,), x.reads, x.writes) for x in steps]


class Build:
    """The launches of a graph whose program is called with `slots` arrays."""

    unordered_threads = False  # True if a kernel's threads run without a barrier (GPU)

    work: PrimitiveGraph
    steps: list[Launch]
    decisions: list[str]  # of fusion and of merged matmuls, for `explain(kernels=True)`
    layout: Callable[[str], tuple[int, ...]]  # strides of a value, in elements
    blocks: dict[str, list[tuple[str, int]]]  # concat layouts: their parts, and the byte at which each begins

    def __init__(self, graph: Graph, slots: int) -> None:
        self.graph = graph
        self.slots = slots

    def make_loop_nests(self, schedule: Schedule) -> list[Launch]:
        """The pass from steps to launches. All that follows it relies on what it sets."""
        self.work = work = schedule.graph
        self.decisions = schedule.decisions
        self.layout = schedule.layout
        self.blocks = schedule.blocks
        self.forms: dict[str, Form] = work.forms
        self.inputs = {x.name: x.slot for x in work.inputs}
        self.constants = {n.results[0]: n.attrs["array"] for n in work.nodes if n.op.name == "constant"}
        self.outputs = {v: i for i, v in enumerate(dict.fromkeys(v for _, v in work.outputs if v not in self.inputs))}
        self.steps = make_launches(schedule)
        return self.steps

    def plan(self, stops: Sequence[LaunchGroup], others: list[Lifetime], sizes: dict[str, int] | None = None) -> MemoryPlan:
        """The memory plan of the arena. `others` are buffers that kernels need besides values; `sizes` are those of
        buffers that are no values."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for i, x in enumerate(stops):
            for name in sorted(x.writes | x.reads):  # the same order in each process, for the disk cache
                if name in self.inputs or name in self.constants or name in self.outputs:
                    continue
                first.setdefault(name, i)
                last[name] = i
        for x in stops:  # flags are read later: nothing may reuse their memory
            for launch in x.launches:
                if launch.check:
                    last[launch.check] = len(stops) - 1
        known = {name: self.forms[name].nbytes if name in self.forms else (sizes or {})[name] for name in first}
        inside = {*self.blocks, *[x for parts in self.blocks.values() for x, _ in parts]}
        pairs = [
            (old, new)
            for i, x in enumerate(stops)
            for launch in x.launches
            for old, new in in_place_pairs(launch, self.unordered_threads)
            if last.get(old) == first.get(new) == i and known[old] == known[new] and not {old, new} & inside
            if self.forms[old].itemsize == self.forms[new].itemsize  # else elements would be at other addresses
            if all(y is launch or old not in y.buffers for y in x.launches)  # a concurrent launch may still read it
        ]
        alone = [Lifetime(n, known[n], first[n], last[n]) for n in first if n not in inside]
        return plan_memory([*alone, *self.wholes(first, last), *others], frozenset(pairs))

    def wholes(self, first: dict[str, int], last: dict[str, int]) -> list[Lifetime]:
        """The lifetimes of concat layouts. A part lives as long as it, or the whole, is used."""
        found = []
        for name, parts in self.blocks.items():
            if name in first:
                lives = tuple(
                    (at, Lifetime(x, self.forms[x].nbytes, min(first[x], first[name]), max(last[x], last[name])))
                    for x, at in parts
                )
                ends = [life.last for _, life in lives]
                found.append(Lifetime(name, self.forms[name].nbytes, min(x.first for _, x in lives), max(ends), lives))
        return found

    def memories(self) -> list[int]:
        """By new memory: the output that has its form."""
        forms = {v: i for i, (_, v) in reversed(list(enumerate(self.work.outputs)))}
        return [forms[v] for v in self.outputs]

    def shown(self) -> list[int]:
        """By output: the slot of its memory. New memories come after all arrays."""
        return [self.inputs[v] if v in self.inputs else self.slots + self.outputs[v] for _, v in self.work.outputs]

    def number_kinds(self) -> dict[int, str]:
        """By place of a runtime scalar: "double", "i64", or "bits" for 64 bits of any meaning."""
        return {
            x.place: "double" if x.type is float else "bits" if node.op.name in RANDOM_OPS and i < 2 else "i64"  # seed and call
            for node in self.work.nodes
            for i, x in enumerate(node.operands)
            if isinstance(x, Number)
        }

    def in_danger(self, stops: Sequence[LaunchGroup], fails: list[bool]) -> list[int]:
        """Slots of inputs that are written before a launch that may still fail: a bailout has to restore them."""
        last = max((i for i, x in enumerate(fails) if x), default=0)
        return sorted({self.inputs[b] for x in stops[:last] for b in x.writes if b in self.inputs})


class OpaqueCall:
    """Calls the eager kernel of an opaque op, on arrays of the module `xp`. `place(form, offset, strides)` is a part of the
    arena as an array, in bytes."""

    def __init__(self, build: Build, launch: Launch, arena: MemoryPlan, place: Any, xp: Any) -> None:
        assert launch.node is not None
        self.node = launch.node
        self.build = build
        self.arena = arena
        self.place = place
        self.xp = xp
        self.operands = [launch.operands[x] if isinstance(x, str) else x for x in self.node.operands]
        self.attrs = self.node.attrs

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> bool:
        found = self.computed(arrays, scalars)
        results = found if isinstance(found, tuple) else (found,)
        for name, value in zip(self.node.results, results, strict=True):
            self.view(arrays, name, name, 0, self.build.layout(name))[...] = value
        return True

    def computed(self, arrays: list[Any], scalars: list[Any]) -> Any:
        """Run the op: an array, or a tuple of them."""
        given = []
        for x, name in zip(self.operands, self.node.operands, strict=True):
            if isinstance(x, Number):
                given.append(scalars[x.place])
            elif isinstance(x, tuple):
                given.append(self.view(arrays, name, *x))
            else:
                given.append(x.value)
        return run_op(self.node.op, tuple(given), self.attrs)

    def view(self, arrays: list[Any], name: str, buffer: str, offset: int, strides: tuple[int, ...]) -> Any:
        """An operand or a result as an array."""
        build, xp = self.build, self.xp
        form = build.forms[name]
        steps = tuple(s * form.itemsize for s in strides)
        if buffer in self.arena.offsets:
            return self.place(form, self.arena.offsets[buffer] + offset * form.itemsize, steps)
        if not form.size:
            return xp.empty(form.shape, form.dtype)
        base = self.base(arrays, buffer)
        as_strided = xp.lib.stride_tricks.as_strided
        first = base[(slice(0, 1),) * base.ndim].reshape(()) if base.ndim else base
        whole = as_strided(first, (1,), (0,)) if not base.ndim else base
        del first
        begin = as_strided(whole, (abs(offset) + 1,), (base.itemsize,))[abs(offset) :]
        return as_strided(begin, form.shape, steps)

    def base(self, arrays: list[Any], buffer: str) -> Any:
        """The array of a buffer outside of the arena."""
        build = self.build
        if buffer in build.inputs:
            return arrays[build.inputs[buffer]]
        if buffer in build.constants:
            return build.constants[buffer]
        return arrays[build.slots + build.outputs[buffer]]
