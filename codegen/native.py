"""A segment as native code: graph, loops, plan, kernels, and the function that binds arrays and runs it all.

`native(graph, slots)` gives what a plain program is too: a function of arrays by slot and numbers by place, which puts the
outputs into the arrays and writes back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..tracer.functional import overlaps
from ..tracer.graph import Form, Graph, GraphError
from ..tracer.interpret import run_op
from ..tracer.trace import Number
from .kernels import Launch, kept, launches, scheduled
from .llvm.assemble import FAILED, Kernels, Made, Steps, Table, aligned, built
from .llvm.entry import Binding, bind
from .llvm.target import host
from .plan import Arena, Life, planned
from .prepare import Prepared, prepared

PARALLEL = 500_000  # scalar ops from which more than one thread is worth a try
BRIEF = 5_000_000  # and from which others may run Python meanwhile

Program = Callable[[list[Any], list[Any]], None]


@dataclass
class Native:
    """A program, and what there is to be told about it."""

    graph: Graph
    prepared: Prepared
    launches: list[Launch]
    made: list[Made | None]
    arena: Arena
    decisions: list[str]
    run: Program
    texts: list[str] = field(default_factory=list)
    build: Build | None = None

    def report(self, llvm: bool = False, assembly: bool = False) -> dict[str, Any]:
        """All there is to be told, with times that are measured now."""
        from .report import report

        return report(self, llvm, assembly)

    def __str__(self) -> str:
        """The steps, as loops."""
        rows = []
        for x in self.launches:
            what = (
                ""
                if x.node is None
                else f"{', '.join(x.node.results)} = {x.node.op.name}({', '.join(map(str, x.node.values()))})\n"
            )
            rows.append(f"# step {x.step.number}\n{what}{'' if x.nest is None else x.nest}")
        return "\n".join(rows)


def native(graph: Graph, slots: int, plain: Program) -> Native:
    """The program of a graph; a list of so many arrays will be given. `plain` runs while another thread runs this one."""
    for o in graph.outputs:
        if overlaps(graph.forms[o.value]):
            raise GraphError(f"[compile] output {o.slot} shares memory with itself")
    work = prepared(graph, kept)
    schedule = scheduled(work)
    steps = launches(schedule)
    kernels = Kernels(schedule.forms, host(), schedule.layout)
    made = [kernels.make(x) for x in steps]
    build = Build(graph, work, schedule.layout, steps, made, slots, plain)
    return build.finished(schedule.decisions)


class Build:
    """Puts a program together."""

    def __init__(
        self,
        graph: Graph,
        work: Prepared,
        layout: Callable[[str], tuple[int, ...]],
        steps: list[Launch],
        made: list[Made | None],
        slots: int,
        plain: Program,
    ) -> None:
        self.plain = plain
        self.graph = graph
        self.work = work
        self.forms: dict[str, Form] = work.forms
        self.layout = layout
        self.steps = steps
        self.made = made
        self.slots = slots
        self.inputs = {x.name: x.slot for x in work.inputs}
        self.constants = {n.results[0]: n.attrs["array"] for n in work.nodes if n.op.name == "constant"}
        self.outputs = {v: i for i, v in enumerate(dict.fromkeys(v for _, v in work.outputs if v not in self.inputs))}
        self.arena = self.plan()

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
        for i in reversed(range(len(self.steps) - 1)):  # flags are looked at after the last of several checks
            if self.steps[i].check and self.steps[i + 1].check:
                last[self.steps[i].check] = last[self.steps[i + 1].check]
        return planned([Life(n, sizes[n], first[n], last[n]) for n in first])

    def finished(self, decisions: list[str]) -> Native:
        table, binding = self.table()
        steps = Steps(self.arena, table)
        parts: list[Any] = []  # names of step functions, and launches that are called as they are
        rows: list[Made] = []
        for launch, made in [*zip(self.steps, self.made, strict=True), (None, None)]:
            if made is not None:
                rows.append(made)
                continue
            if rows:
                name = f"step{len(parts)}"
                steps.step(name, rows)
                parts.append(name)
                rows = []
            if launch is not None:
                parts.append(launch)
        texts = [m.text for m in self.made if m is not None]
        names = [p for p in parts if isinstance(p, str)]
        library = built(texts, steps, names) if names else None
        memory, start = aligned(self.arena.size)
        words = [start, *[c.ctypes.data for c in self.constants.values()]]
        cost = work_of(self.steps)
        programs: list[Any] = []
        for part in parts:
            if isinstance(part, str):
                assert library is not None
                keep = (library, memory, self.constants)
                programs.append(
                    bind(library[part], binding, words, parallel=cost > PARALLEL, releases_gil=cost > BRIEF, keep=keep)
                )
            else:
                programs.append(Opaque(self, part, memory, start - memory.ctypes.data))
        run = self.runner(programs)
        return Native(
            self.graph,
            self.work,
            self.steps,
            self.made,
            self.arena,
            decisions,
            run,
            [*texts, str(steps.module)],
            self,
        )

    def table(self) -> tuple[Table, Binding]:
        table = Table()
        bound = [*self.inputs.items(), *[(v, self.slots + i) for v, i in self.outputs.items()]]
        if any(x.check for x in self.steps):
            bound.append((FAILED, self.slots + len(self.outputs)))
        for i, (name, _) in enumerate(bound):
            table.slots[name] = i
        numbers = sorted({n for m in self.made if m is not None for n in m.numbers})
        kinds = {
            x.place: "double" if x.type is float else "i64"
            for node in self.work.nodes
            for x in node.operands
            if isinstance(x, Number)
        }
        for i, n in enumerate(numbers):
            table.numbers[n] = len(bound) + i
        for i, name in enumerate(["arena", *self.constants]):
            table.fixed[name] = len(bound) + len(numbers) + i
        return table, Binding(tuple(s for _, s in bound), tuple((n, kinds[n]) for n in numbers))

    def runner(self, programs: list[Any]) -> Program:
        """The function that makes room for outputs, runs, and hands out, as straight Python."""
        space: dict[str, Any] = {"empty": np.empty, "zeros": np.zeros, "plain": self.plain}
        lines = ["def run(a, s):"]
        lines += [f"    old{i} = a[{i}].copy(order='K')" for i in self.in_danger()]
        failed = [f"del a[{self.slots}:]", *[f"a[{i}][...] = old{i}" for i in self.in_danger()], "return plain(a, s)"]
        form_of = {v: self.forms[o.value] for o, v in self.work.outputs}
        for value in self.outputs:
            lines.append(f"    a.append({made_like(form_of[value], value, space)})")
        checked = any(x.check for x in self.steps)
        if checked:
            lines.append("    a.append(zeros((), '?'))")
        for i, program in enumerate(programs):
            space[f"p{i}"] = program
            if isinstance(program, Opaque):  # what it raises, the plain program raises in the right place
                lines += ["    try:", f"        p{i}(a, s)", "    except Exception:"]
            else:
                stopped = f" or a[{self.slots + len(self.outputs)}]" if checked else ""
                lines.append(f"    if not p{i}(a, s){stopped}:")
            lines += [f"        {line}" for line in failed]
        for k, (o, value) in enumerate(self.work.outputs):
            view = f"a[{self.inputs[value] if value in self.inputs else self.slots + self.outputs[value]}]"
            for j, (op, attrs, index) in enumerate(o.chain):
                space[f"v{k}_{j}"] = shown(op, attrs)
                view = f"v{k}_{j}({view})" + ("" if index is None else f"[{index}]")
            lines.append(f"    a[{o.slot}] = {view}")
        if self.outputs or checked:
            lines.append(f"    del a[{self.slots}:]")
        if len(lines) == 1:
            lines.append("    pass")
        exec(compile("\n".join(lines), "<tapejit native>", "exec"), space)
        return space["run"] if len(programs) == 1 else one_at_a_time(space["run"], self.plain)

    def in_danger(self) -> list[int]:
        """Slots of inputs that are written before something that may still fail."""
        last = max(
            (i for i, (x, made) in enumerate(zip(self.steps, self.made, strict=True)) if x.check or made is None), default=0
        )
        return sorted({self.inputs[b] for x in self.steps[:last] for b in x.writes if b in self.inputs})


def one_at_a_time(run: Program, plain: Program) -> Program:
    """Of a program in several parts, which share their memory."""
    lock = threading.Lock()

    def locked(arrays: list[Any], scalars: list[Any]) -> None:
        if not lock.acquire(blocking=False):
            plain(arrays, scalars)
            return
        try:
            run(arrays, scalars)
        finally:
            lock.release()

    return locked


def made_like(form: Form, value: str, space: dict[str, Any]) -> str:
    """Python for a new array of a form."""
    space[f"shape_{value}"], space[f"dtype_{value}"] = form.shape, form.dtype
    if form.flags.c_contiguous:
        return f"empty(shape_{value}, dtype_{value})"
    order = sorted(range(form.ndim), key=lambda d: -form.strides[d])
    dense = tuple(form.shape[d] for d in order)
    back = tuple(order.index(d) for d in range(form.ndim))
    space[f"shape_{value}"] = dense
    if np.empty(dense, form.dtype).transpose(back).strides != form.strides and form.size:
        raise GraphError(f"[compile] {value} has gaps in its memory")
    return f"empty(shape_{value}, dtype_{value}).transpose({back})"


def shown(op: Any, attrs: dict[str, Any]) -> Callable[[Any], Any]:
    run = op.run
    return lambda x: run(np, x, **attrs)


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
