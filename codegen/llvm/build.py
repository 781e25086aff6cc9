"""Builds a native program: kernels, memory plan, step functions that call the kernels, and the executable.

Imported only when there is something to build: an executable from disk needs nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ...eager.backends import get_num_threads
from ...tracer.graph.ir import Form, Graph
from ...tracer.graph.passes import Pass, Pipeline, run_passes
from ...tracer.trace.logging import counted
from ..nests.cost_model import flops
from ..nests.horizontal_fusion import fusable_groups, fuse_launches, fused_order, fusion_decision
from ..nests.kernels import Launch, has_half_kernel, has_own_kernel, make_schedule
from ..nests.loop_nest import Store
from ..prepare.pipeline import primitive_passes
from ..prepare.primitive_graph import PrimitiveGraph
from ..program.builder import Build, OpaqueCall, single_launches
from ..program.executable import encode_array
from ..schedule.fusion import CONTRACTIONS, Schedule
from ..schedule.memory_plan import Lifetime
from ..schedule.narrow_operands import narrow_operands
from .executable import NativeExecutable
from .ir.target import host
from .nontemporal_stores import mark_nontemporal_stores
from .runtime import jit
from .runtime.entry import ArgumentBinding
from .step_function import (
    FAILED,
    MAX_STACK_BYTES,
    SCRATCH,
    KernelCall,
    KernelEmitter,
    RoundScheduler,
    StepWriter,
    WordTable,
    rounded,
)
from .thread_cost import two_thread_speedup

if TYPE_CHECKING:
    from .prologue_cost import PrologueCost
    from .tuning.plans import TunedPlans

MIN_PARALLEL_OPS = 500_000  # scalar ops of a program that is worth trying on several threads
MIN_THREAD_SPEEDUP = 1.3  # of two threads over one, for a brief program to be tried on several
MATMUL_FLOPS_PER_OP = 8  # flops of a matmul in the time of one scalar op
MAX_BRIEF_OPS = 5_000_000  # up to here a program is brief: it keeps the GIL


class NativeBuild(Build):
    """Builds a program. Texts go to `batch` as soon as they are emitted."""

    def __init__(
        self,
        graph: Graph,
        slots: int,
        batch: jit.Batch | None = None,
        tune: bool = False,
        recorded: Mapping[str, str] | None = None,
    ) -> None:
        """`tune` measures plans of matmuls whose shapes are not tuned yet; or plans are `recorded` in an executable."""
        super().__init__(graph, slots)
        self.batch = batch
        self.tune = tune
        self.recorded = recorded
        self.made: list[KernelCall | None] = []  # by launch; None for an opaque op
        self.parts: list[tuple[str, Launch | None]] = []  # names of step functions, and opaque launches
        run_passes(self.passes(), graph)

    def passes(self) -> Pipeline:
        """The passes from a graph to LLVM IR, in order."""
        return (
            *primitive_passes(has_own_kernel, has_half_kernel, merging=True),
            Pass("narrow operands", narrow_operands),
            Pass("fusion", self.fuse, "step"),  # producers with consumers, epilogues and prologues
            Pass("loop nests", self.make_loop_nests, "kernel"),  # with simplification of each nest
            Pass("non-temporal stores", self.choose_stores, "kernel", lambda _: self.stores_in_words()),
            Pass("emit kernels", self.emit, "kernel", lambda _: self.kernels_in_words()),  # splits loops
            Pass("memory plan", self.place_buffers, "kernel", lambda _: self.arena.summary()),
            Pass("horizontal fusion", self.fuse_horizontally, "kernel"),
            Pass("step functions", self.write_step_functions, "kernel", lambda _: self.step_functions_in_words()),
        )

    def stores_in_words(self) -> str:
        found = len(self.nontemporal_stores())
        return counted(found, "store") if found else ""

    def kernels_in_words(self) -> str:
        """Count the kernels that have their IR, and the launches that do not get it here."""
        made = [m for m in self.made if m is not None]
        texts = [m.text for m in made if m.text]
        found = f"{counted(len(texts), 'kernel')}, {sum(map(len, texts)):,} bytes of LLVM IR"
        found += f", {len(made) - len(texts)} left to horizontal fusion" if len(texts) < len(made) else ""
        opaque = len(self.made) - len(made)
        return found + (f", {counted(opaque, 'opaque op')}" if opaque else "")

    def step_functions_in_words(self) -> str:
        functions = sum(bool(name) for name, _ in self.parts)
        return f"{counted(functions, 'function')}, {len(self.texts[-1]):,} bytes of LLVM IR"

    def fuse(self, work: PrimitiveGraph) -> Schedule:
        packing, self.plans = matmul_choosers(work, self.tune, self.recorded)
        return make_schedule(work, packing=packing)

    def choose_stores(self, launches: list[Launch]) -> list[Launch]:
        mark_nontemporal_stores(launches, set(self.outputs), self.forms, host())
        return list(launches) if self.nontemporal_stores() else launches

    def emit(self, launches: list[Launch]) -> list[Launch]:
        """Emit the kernels. Those that horizontal fusion may take get their IR there."""
        self.emitter = KernelEmitter(self.forms, host(), self.layout, self.plans)
        self.groups = fusable_groups(launches)
        for i, x in enumerate(launches):
            self.made.append(made := self.emitter.placeholder(x) if i in self.groups else self.emitter.make(x))
            if (
                made is not None and made.text and self.batch is not None and not self.tune
            ):  # nothing may compile while tuning measures
                self.batch.add(made.text)
        return launches

    def place_buffers(self, launches: list[Launch]) -> list[Launch]:
        self.arena = self.plan(single_launches(launches), self.kernel_memory())
        return launches

    def fuse_horizontally(self, launches: list[Launch]) -> list[Launch]:
        """Fuse launches of one group that are in the same round into table kernels."""
        order = fused_order(len(launches), self.groups, self.rounds() if self.groups else {})
        made, place = self.made, dict[int, int]()
        self.steps, self.made = [], []
        for group in order:
            self.steps.append(fuse_launches([launches[i] for i in group]))
            self.made.append(self.emitter.make(self.steps[-1]) if group[0] in self.groups else made[group[0]])
            self.decisions += [fusion_decision([launches[i] for i in group])] if len(group) > 1 else []
            place.update(dict.fromkeys(group, len(self.steps) - 1))
        self.arena.lives = {name: (place[first], place[last]) for name, (first, last) in self.arena.lives.items()}
        return launches if len(order) == len(launches) else self.steps

    def write_step_functions(self, launches: list[Launch]) -> list[Launch]:
        self.texts = [*[m.text for m in self.made if m is not None], self.step_functions()]
        if self.batch is not None:
            for text in self.texts[:-1]:  # of fused kernels, which had to wait
                self.batch.add(text)
            self.batch.add(self.texts[-1], opt=0)  # it only calls kernels: optimising it pays nothing
        return launches

    def rounds(self) -> dict[int, int]:
        """Round of each kernel, by position. Kernels after an opaque op are in later rounds."""
        found: dict[int, int] = {}
        for places in self.native_runs():
            kernels = {id(made): (i, made) for i in places if (made := self.made[i]) is not None}
            before = max(found.values(), default=-1) + 1
            for k, items in enumerate(RoundScheduler(self.arena).schedule([made for _, made in kernels.values()])):
                for made, _ in items:
                    found.setdefault(kernels[id(made)][0], before + k)
        return found

    def kernel_memory(self) -> list[Lifetime]:
        """Memory that kernels need in the arena besides values."""
        found = [
            Lifetime(m.shared, m.kernel.shared, i, i) for i, m in enumerate(self.made) if m is not None and m.kernel.shared
        ]
        most = max((m.kernel.scratch for m in self.made if m is not None), default=0)
        if most > MAX_STACK_BYTES:
            found.append(Lifetime(SCRATCH, rounded(most) * self.threads(), 0, len(self.steps) - 1))
        return found

    def threads(self) -> int:
        """Number of threads that have scratch memory in the arena."""
        return max(os.cpu_count() or 1, get_num_threads())

    def step_functions(self) -> str:
        """IR of the functions that call the kernels."""
        steps = StepWriter(self.arena, self.table()[0])
        for places in self.native_runs():
            kernels = [made for i in places if (made := self.made[i]) is not None]
            if kernels:
                name = f"step{len(self.parts)}"
                steps.step(name, kernels)
                self.parts.append((name, None))
            else:
                self.parts += [("", self.steps[i]) for i in places]
        return str(steps.module)

    def native_runs(self) -> list[list[int]]:
        """Positions of steps, split at opaque ops: kernels, an opaque op, kernels, and so on."""
        return [list(places) for _, places in groupby(range(len(self.steps)), lambda i: self.made[i] is None)]

    def executable(self, objects: list[str]) -> NativeExecutable:
        _, binding = self.table()
        cost = count_scalar_ops(self.steps, self.forms)
        return NativeExecutable(
            objects=objects,
            steps=[name for name, _ in self.parts],
            slots=self.slots,
            bound=list(binding.slots),
            numbers=list(binding.numbers),
            arena=self.arena.size,
            constants=[encode_array(c) for c in self.constants.values()],
            memories=self.memories(),
            shown=self.shown(),
            checked=self.checked(),
            danger=self.in_danger(single_launches(self.steps), self.may_fail()),
            parallel=cost > MIN_PARALLEL_OPS and (cost > MAX_BRIEF_OPS or self.thread_speedup() >= MIN_THREAD_SPEEDUP),
            releases=cost > MAX_BRIEF_OPS,
            max_threads=self.threads() if SCRATCH in self.arena.offsets else 0,
            again=self.safe_outputs(),
            nontemporal=[self.outputs[s.buffer] for s in self.nontemporal_stores()],
            plans={} if self.plans is None else self.plans.used,
        )

    def thread_speedup(self) -> float:
        """Rough speedup of two threads over one."""
        return two_thread_speedup(RoundScheduler(self.arena).schedule([m for m in self.made if m is not None]), self.forms)

    def safe_outputs(self) -> list[int]:
        """New arrays that are written only after everything that may fail."""
        last = max((i for i, fails in enumerate(self.may_fail()) if fails), default=-1)
        early = {b for x in self.steps[: last + 1] for b in x.writes}
        return [i for v, i in self.outputs.items() if v not in early]

    def nontemporal_stores(self) -> list[Store]:
        """Non-temporal stores: used if the result's memory is not new."""
        return [s for x in self.steps if x.nest is not None for s in x.nest.stores() if s.nontemporal]

    def checked(self) -> bool:
        """True if a bounds check may end the program early."""
        return any(x.check for x in self.steps)

    def may_fail(self) -> list[bool]:
        """Per step: True if it may fail."""
        return [bool(x.check) or made is None for x, made in zip(self.steps, self.made, strict=True)]

    def opaque(self, part: int, memory: Any, start: int) -> OpaqueCall:
        launch = self.parts[part][1]
        assert launch is not None
        return self.called(launch, memory, start)

    def called(self, launch: Launch, memory: Any, start: int) -> OpaqueCall:
        """An opaque op on an arena that begins `start` bytes into `memory`."""

        def place(form: Form, at: int, strides: tuple[int, ...]) -> Any:
            return np.ndarray(form.shape, form.dtype, memory, start + at, strides)

        return OpaqueCall(self, launch, self.arena, place, np)

    def table(self) -> tuple[WordTable, ArgumentBinding]:
        table = WordTable()
        bound = [*self.inputs.items(), *[(v, self.slots + i) for v, i in self.outputs.items()]]
        if self.checked():
            bound.append((FAILED, self.slots + len(self.outputs)))
        flags = self.slots + len(self.outputs) + self.checked()
        bound += [(s.flag, flags + i) for i, s in enumerate(self.nontemporal_stores())]
        for i, (name, _) in enumerate(bound):
            table.slots[name] = i
        numbers, kinds = sorted({n for m in self.made if m is not None for n in m.numbers}), self.number_kinds()
        for i, n in enumerate(numbers):
            table.numbers[n] = len(bound) + i
        for i, name in enumerate(["arena", *self.constants]):
            table.fixed[name] = len(bound) + len(numbers) + i
        return table, ArgumentBinding(tuple(s for _, s in bound), tuple((n, kinds[n]) for n in numbers))


def matmul_choosers(
    work: PrimitiveGraph, tune: bool, recorded: Mapping[str, str] | None
) -> tuple[PrologueCost | None, TunedPlans | None]:
    """The cost model of prologues and the chooser of plans. Without matmuls neither is imported: that takes half as long as
    everything else in a build."""
    if all(node.op.name not in CONTRACTIONS for node in work.nodes):
        return None, None
    from .prologue_cost import PrologueCost
    from .tuning.plans import TunedPlans

    return PrologueCost(host()), TunedPlans(host(), tune, recorded)


def count_scalar_ops(steps: list[Launch], forms: dict[str, Form]) -> int:
    """Estimate the scalar ops of a program."""
    total = 0
    for x in steps:
        for nest in () if x.nest is None else x.nest.all:
            total += nest.domain.rows * nest.domain.cols * max(len(nest.ops), 1)
        if x.kind == "scan" and x.node is not None:
            total += 4 * forms[x.node.results[0]].size
        if x.kind in ("matmul", "attention"):
            total += (flops(x, forms) or 0) // MATMUL_FLOPS_PER_OP
    return total
