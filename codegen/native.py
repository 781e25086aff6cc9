"""A segment as native code: graph, loops, plan, kernels, and the recipe that a program is put together by.

`native(graph, slots)` gives what a plain program is too: a function of arrays by slot and numbers by place, which puts the
outputs into the arrays and writes back.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import numpy as np

from ..eager.backends import get_num_threads
from ..tracer.functional import overlaps
from ..tracer.graph import Form, Graph, GraphError
from ..tracer.interpret import run_op
from ..tracer.trace import Number
from . import cache
from .chance import DRAWN
from .kernels import Launch, heirs, kept, launches, scheduled
from .llvm import jit
from .llvm.assemble import FAILED, ON_STACK, SCRATCH, Kernels, Made, Steps, Table, rounded
from .llvm.entry import Binding
from .llvm.target import host
from .plan import Arena, Life, planned
from .prepare import Prepared, prepared
from .recipe import Program, Recipe, encoded, kept_on_disk, put_together
from .recipe import key as key_of

PARALLEL = 500_000  # scalar ops from which more than one thread is worth a try
BRIEF = 5_000_000  # and from which others may run Python meanwhile


class Native:
    """A program, and what there is to be told about it. If it comes from the disk cache, that is made when it is asked for."""

    def __init__(self, graph: Graph, slots: int, recipe: Recipe, run: Program, build: Build | None) -> None:
        self.graph = graph
        self.slots = slots
        self.recipe = recipe
        self.run = run
        self._build = build

    @cached_property
    def build(self) -> Build:
        return self._build or Build(self.graph, self.slots)

    @property
    def from_disk(self) -> bool:
        return self._build is None

    @property
    def prepared(self) -> Prepared:
        return self.build.work

    @property
    def launches(self) -> list[Launch]:
        return self.build.steps

    @property
    def made(self) -> list[Made | None]:
        return self.build.made

    @property
    def arena(self) -> Arena:
        return self.build.arena

    @property
    def decisions(self) -> list[str]:
        return self.build.decisions

    @property
    def texts(self) -> list[str]:
        return self.build.texts

    def report(self, llvm: bool = False, assembly: bool = False) -> dict[str, Any]:
        """All there is to be told, with times that are measured now."""
        from .report import report

        return report(self, llvm, assembly)

    def __str__(self) -> str:
        """The steps, as loops."""
        rows = []
        for x in self.launches:
            node = x.node
            given = "" if node is None else ", ".join(map(str, node.values()))
            what = "" if node is None else f"{', '.join(node.results)} = {node.op.name}({given})\n"
            rows.append(f"# step {x.step.number}\n{what}{'' if x.nest is None else x.nest}")
        return "\n".join(rows)


def native(graph: Graph, slots: int, plain: Program) -> Native:
    """The program of a graph; a list of so many arrays will be given. `plain` runs while another thread runs this one."""
    for o in graph.outputs:
        if overlaps(graph.forms[o.value]):
            raise GraphError(f"[compile] output {o.slot} shares memory with itself")
    name = key_of(graph, slots)
    known = kept_on_disk(name)
    if known is not None:
        recipe, objects = known
        return Native(graph, slots, recipe, put_together(recipe, graph, objects, None, plain), None)
    build = Build(graph, slots)
    texts = list(dict.fromkeys(build.texts))
    objects = jit.objects(texts)
    recipe = build.recipe(texts)
    run = put_together(recipe, graph, objects, build.opaque, plain)
    if name is not None and all(recipe.steps):
        cache.put(name, recipe.text())
    return Native(graph, slots, recipe, run, build)


class Build:
    """Puts a program together."""

    def __init__(self, graph: Graph, slots: int) -> None:
        work = prepared(graph, kept)
        schedule = scheduled(work)
        self.graph = graph
        self.slots = slots
        self.work = work
        self.decisions = schedule.decisions
        self.layout = schedule.layout
        self.forms: dict[str, Form] = work.forms
        self.steps = launches(schedule)
        kernels = Kernels(schedule.forms, host(), schedule.layout)
        self.made = [kernels.make(x) for x in self.steps]
        self.inputs = {x.name: x.slot for x in work.inputs}
        self.constants = {n.results[0]: n.attrs["array"] for n in work.nodes if n.op.name == "constant"}
        self.outputs = {v: i for i, v in enumerate(dict.fromkeys(v for _, v in work.outputs if v not in self.inputs))}
        self.arena = self.plan()
        self.parts: list[tuple[str, Launch | None]] = []  # names of step functions, and launches that are called as they are
        self.texts = [*[m.text for m in self.made if m is not None], self.step_functions()]

    def plan(self) -> Arena:
        """Lives of what is in the arena."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for i, (launch, made) in enumerate(zip(self.steps, self.made, strict=True)):
            for name in sorted(launch.writes | launch.reads):  # in the same order in each process: the disk cache finds it
                if name in self.inputs or name in self.constants or name in self.outputs:
                    continue
                first.setdefault(name, i)
                last[name] = i
                sizes[name] = self.forms[name].nbytes
            if made is not None and made.kernel.shared:
                first[made.shared] = last[made.shared] = i
                sizes[made.shared] = made.kernel.shared
        for x in self.steps:  # threads look at flags at different times: nobody overwrites them
            if x.check:
                last[x.check] = len(self.steps) - 1
        most = max((m.kernel.scratch for m in self.made if m is not None), default=0)
        if most > ON_STACK:
            first[SCRATCH], last[SCRATCH] = 0, len(self.steps) - 1
            sizes[SCRATCH] = rounded(most) * self.threads()
        pairs = [
            (old, new)
            for i, launch in enumerate(self.steps)
            for old, new in heirs(launch)
            if last.get(old) == first.get(new) == i and sizes[old] == sizes[new]
            if self.forms[old].itemsize == self.forms[new].itemsize  # else an element would not be where the other was
        ]
        return planned([Life(n, sizes[n], first[n], last[n]) for n in first], frozenset(pairs))

    def threads(self) -> int:
        """How many threads have memory of their own in the arena."""
        return max(os.cpu_count() or 1, get_num_threads())

    def step_functions(self) -> str:
        """The text of the functions that call the kernels."""
        steps = Steps(self.arena, self.table()[0])
        rows: list[Made] = []
        for launch, made in [*zip(self.steps, self.made, strict=True), (None, None)]:
            if made is not None:
                rows.append(made)
                continue
            if rows:
                name = f"step{len(self.parts)}"
                steps.step(name, rows)
                self.parts.append((name, None))
                rows = []
            if launch is not None:
                self.parts.append(("", launch))
        return str(steps.module)

    def recipe(self, texts: list[str]) -> Recipe:
        _, binding = self.table()
        cost = work_of(self.steps)
        forms = {v: i for i, (_, v) in reversed(list(enumerate(self.work.outputs)))}
        return Recipe(
            objects=[jit.key_of(text) for text in texts],
            steps=[name for name, _ in self.parts],
            slots=self.slots,
            bound=list(binding.slots),
            numbers=list(binding.numbers),
            arena=self.arena.size,
            constants=[encoded(c) for c in self.constants.values()],
            memories=[forms[v] for v in self.outputs],
            shown=[self.inputs[v] if v in self.inputs else self.slots + self.outputs[v] for _, v in self.work.outputs],
            checked=any(x.check for x in self.steps),
            danger=self.in_danger(),
            parallel=cost > PARALLEL,
            releases=cost > BRIEF,
            most_threads=self.threads() if SCRATCH in self.arena.offsets else 0,
        )

    def opaque(self, part: int, memory: Any, start: int) -> Opaque:
        launch = self.parts[part][1]
        assert launch is not None
        return Opaque(self, launch, memory, start)

    def table(self) -> tuple[Table, Binding]:
        table = Table()
        bound = [*self.inputs.items(), *[(v, self.slots + i) for v, i in self.outputs.items()]]
        if any(x.check for x in self.steps):
            bound.append((FAILED, self.slots + len(self.outputs)))
        for i, (name, _) in enumerate(bound):
            table.slots[name] = i
        numbers = sorted({n for m in self.made if m is not None for n in m.numbers})
        kinds = {
            x.place: "double" if x.type is float else "bits" if node.op.name in DRAWN and i < 2 else "i64"  # seed and call
            for node in self.work.nodes
            for i, x in enumerate(node.operands)
            if isinstance(x, Number)
        }
        for i, n in enumerate(numbers):
            table.numbers[n] = len(bound) + i
        for i, name in enumerate(["arena", *self.constants]):
            table.fixed[name] = len(bound) + len(numbers) + i
        return table, Binding(tuple(s for _, s in bound), tuple((n, kinds[n]) for n in numbers))

    def in_danger(self) -> list[int]:
        """Slots of inputs that are written before something that may still fail."""
        last = max(
            (i for i, (x, made) in enumerate(zip(self.steps, self.made, strict=True)) if x.check or made is None), default=0
        )
        return sorted({self.inputs[b] for x in self.steps[:last] for b in x.writes if b in self.inputs})


class Opaque:
    """An op that is called as it is, on arrays."""

    def __init__(self, build: Build, launch: Launch, memory: Any, start: int) -> None:
        assert launch.node is not None
        self.node = launch.node
        self.build = build
        self.memory = memory
        self.start = start
        self.operands = [launch.operands[x] if isinstance(x, str) else x for x in self.node.operands]

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> bool:
        given = []
        for x, name in zip(self.operands, self.node.operands, strict=True):
            if isinstance(x, Number):
                given.append(scalars[x.place])
            elif isinstance(x, tuple):
                given.append(self.view(arrays, name, *x))
            else:
                given.append(x.value)
        found = run_op(self.node.op, tuple(given), self.node.attrs)
        results = found if isinstance(found, tuple) else (found,)
        for name, value in zip(self.node.results, results, strict=True):
            self.view(arrays, name, name, 0, self.build.layout(name))[...] = value
        return True

    def view(self, arrays: list[Any], name: str, buffer: str, offset: int, strides: tuple[int, ...]) -> Any:
        """An operand or a result as an array."""
        build = self.build
        form = build.forms[name]
        steps = tuple(s * form.itemsize for s in strides)
        if buffer in build.arena.offsets:
            at = self.start + build.arena.offsets[buffer] + offset * form.itemsize
            return np.ndarray(form.shape, form.dtype, self.memory, at, steps)
        if buffer in build.inputs:
            base = arrays[build.inputs[buffer]]
        elif buffer in build.constants:
            base = build.constants[buffer]
        else:
            base = arrays[build.slots + build.outputs[buffer]]
        if not form.size:
            return np.empty(form.shape, form.dtype)
        first = base[(slice(0, 1),) * base.ndim].reshape(()) if base.ndim else base
        whole = np.lib.stride_tricks.as_strided(first, (1,), (0,)) if not base.ndim else base
        del first
        begin = np.lib.stride_tricks.as_strided(whole, (abs(offset) + 1,), (base.itemsize,))[abs(offset) :]
        return np.lib.stride_tricks.as_strided(begin, form.shape, steps)


def work_of(steps: list[Launch]) -> int:
    """Roughly how many scalar ops there are."""
    total = 0
    for x in steps:
        if x.nest is not None:
            total += x.nest.domain.rows * x.nest.domain.cols * max(len(x.nest.ops), 1)
        if x.kind == "product" and x.node is not None and x.nest is not None:
            total += x.nest.domain.rows * x.nest.domain.cols
        total += 100_000 * (x.kind == "attention")
    return total
