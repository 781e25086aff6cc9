"""What every target makes of a graph before there is code: steps, where each value is in memory, what is in danger.

A value is an input, a constant, an output, or in the arena, the memory that a program has to itself. Targets add what their
kernels need there.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol

from ...tracer.graph.ir import Form, Graph
from ...tracer.graph.interpreter import run_op
from ...tracer.trace.trace import Number
from ..lowering.random_ops import DRAWN
from ..schedule.fusion import Schedule
from ..nests.kernels import Launch, heirs, launches
from ..schedule.memory_plan import Arena, Life, planned
from ..prepare.canonicalize import Prepared


class Stop(Protocol):
    """Something that is run at a time: one launch, or several at once."""

    @property
    def launches(self) -> Sequence[Launch]: ...
    @property
    def reads(self) -> AbstractSet[str]: ...
    @property
    def writes(self) -> AbstractSet[str]: ...


@dataclass(frozen=True)
class Single:
    """One launch at a time."""

    launches: tuple[Launch]
    reads: AbstractSet[str]
    writes: AbstractSet[str]


def singles(steps: list[Launch]) -> list[Single]:
    return [Single((x,), x.reads, x.writes) for x in steps]


class Build:
    """The steps of a graph; a list of so many arrays (`slots`) will be given."""

    apart = False  # whether the elements of a kernel are read and written by threads that do not wait for each other

    def __init__(self, graph: Graph, slots: int, work: Prepared, schedule: Schedule) -> None:
        self.graph = graph
        self.slots = slots
        self.work = work
        self.decisions = schedule.decisions
        self.layout = schedule.layout
        self.blocks = schedule.blocks
        self.forms: dict[str, Form] = work.forms
        self.steps = launches(schedule)
        self.inputs = {x.name: x.slot for x in work.inputs}
        self.constants = {n.results[0]: n.attrs["array"] for n in work.nodes if n.op.name == "constant"}
        self.outputs = {v: i for i, v in enumerate(dict.fromkeys(v for _, v in work.outputs if v not in self.inputs))}

    def plan(self, stops: Sequence[Stop], others: list[Life], sizes: dict[str, int] | None = None) -> Arena:
        """Places for what is in the arena, and for other things that kernels need there. `sizes` are those of buffers that are
        no values."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for i, x in enumerate(stops):
            for name in sorted(x.writes | x.reads):  # in the same order in each process: the disk cache finds it
                if name in self.inputs or name in self.constants or name in self.outputs:
                    continue
                first.setdefault(name, i)
                last[name] = i
        for x in stops:  # flags are looked at later, at different times: nobody overwrites them
            for launch in x.launches:
                if launch.check:
                    last[launch.check] = len(stops) - 1
        known = {name: self.forms[name].nbytes if name in self.forms else (sizes or {})[name] for name in first}
        inside = {*self.blocks, *[x for parts in self.blocks.values() for x, _ in parts]}
        pairs = [
            (old, new)
            for i, x in enumerate(stops)
            for launch in x.launches
            for old, new in heirs(launch, self.apart)
            if last.get(old) == first.get(new) == i and known[old] == known[new] and not {old, new} & inside
            if self.forms[old].itemsize == self.forms[new].itemsize  # else an element would not be where the other was
            if all(y is launch or old not in y.buffers for y in x.launches)  # who runs at the same time may read it later
        ]
        alone = [Life(n, known[n], first[n], last[n]) for n in first if n not in inside]
        return planned([*alone, *self.wholes(first, last), *others], frozenset(pairs))

    def wholes(self, first: dict[str, int], last: dict[str, int]) -> list[Life]:
        """Buffers that others are parts of. A part is wanted as long as somebody uses it, or the whole."""
        found = []
        for name, parts in self.blocks.items():
            if name in first:
                lives = tuple(
                    (at, Life(x, self.forms[x].nbytes, min(first[x], first[name]), max(last[x], last[name]))) for x, at in parts
                )
                ends = [life.last for _, life in lives]
                found.append(Life(name, self.forms[name].nbytes, min(x.first for _, x in lives), max(ends), lives))
        return found

    def memories(self) -> list[int]:
        """Of each new memory: the output whose form it has."""
        forms = {v: i for i, (_, v) in reversed(list(enumerate(self.work.outputs)))}
        return [forms[v] for v in self.outputs]

    def shown(self) -> list[int]:
        """Of each output: the slot of the memory that it shows. New memories are after all arrays."""
        return [self.inputs[v] if v in self.inputs else self.slots + self.outputs[v] for _, v in self.work.outputs]

    def number_kinds(self) -> dict[int, str]:
        """Of numbers that each call brings, by place: double, i64, or bits, which are 64 of any meaning."""
        return {
            x.place: "double" if x.type is float else "bits" if node.op.name in DRAWN and i < 2 else "i64"  # seed and call
            for node in self.work.nodes
            for i, x in enumerate(node.operands)
            if isinstance(x, Number)
        }

    def in_danger(self, stops: Sequence[Stop], fails: list[bool]) -> list[int]:
        """Slots of inputs that are written before something that may still fail."""
        last = max((i for i, x in enumerate(fails) if x), default=0)
        return sorted({self.inputs[b] for x in stops[:last] for b in x.writes if b in self.inputs})


class Opaque:
    """An op that is called as it is, on arrays of a module (`xp`). `place` gives a part of the arena as an array: of a form,
    from so many bytes on, with strides in bytes."""

    def __init__(self, build: Build, launch: Launch, arena: Arena, place: Any, xp: Any) -> None:
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
        """What the op makes: an array, or a tuple of them."""
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
        """The array that a buffer outside of the arena is."""
        build = self.build
        if buffer in build.inputs:
            return arrays[build.inputs[buffer]]
        if buffer in build.constants:
            return build.constants[buffer]
        return arrays[build.slots + build.outputs[buffer]]
