"""A program is made: kernels, the plan of its memory, the functions that call the kernels, and the recipe of all that.

This is imported when there is something to make: a program that comes from disk needs nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ...eager.backends import get_num_threads
from ...tracer.graph.ir import Form, Graph
from ..program.builder import Build, Opaque, singles
from ..nests.cost_model import flops
from ..schedule.fusion import PRODUCTS
from ..nests.kernels import Launch, in_halves, kept, scheduled
from .runtime import jit
from .step_function import FAILED, ON_STACK, SCRATCH, Kernels, Made, Rounds, Steps, Table, rounded
from .runtime.entry import Binding
from .ir.target import host
from .thread_cost import gain
from ..schedule.narrow_operands import narrowed
from ..nests.loop_nest import Store
from .nontemporal_stores import send_past
from ..schedule.memory_plan import Life
from ..prepare.canonicalize import Prepared, prepared
from .executable import Recipe, encoded
from ..nests.horizontal_fusion import families, one_of, order, told

if TYPE_CHECKING:
    from .prologue_cost import OnPacking
    from .tuning.plans import Plans

PARALLEL = 500_000  # scalar ops from which more than one thread is worth a try
WORTH = 1.3  # how many times as quick as one two threads have to be for that, if it is brief
QUICK = 8  # floats that products compute in the time of one of another op
BRIEF = 5_000_000  # scalar ops up to which a program is brief; while others run, there may be Python meanwhile


class NativeBuild(Build):
    """Puts a program together. Texts go to `batch` as soon as they are written."""

    def __init__(
        self,
        graph: Graph,
        slots: int,
        batch: jit.Batch | None = None,
        tune: bool = False,
        given: Mapping[str, str] | None = None,
    ) -> None:
        """`tune` measures plans for products, where that was not done before; or plans are `given`, as in a recipe."""
        work = narrowed(prepared(graph, kept, in_halves, joining=True))
        packing, self.plans = for_products(work, tune, given)
        super().__init__(graph, slots, work, scheduled(work, packing=packing))
        send_past(self.steps, set(self.outputs), self.forms, host())
        kernels = Kernels(self.forms, host(), self.layout, self.plans)
        self.made: list[Made | None] = []
        known = families(self.steps)
        for i, x in enumerate(self.steps):
            self.made.append(made := kernels.later(x) if i in known else kernels.make(x))
            if made is not None and made.text and batch is not None and not tune:  # which wants nobody else to be at work
                batch.add(made.text)
        self.arena = self.plan(singles(self.steps), self.own_memory())
        self.join(known, kernels)
        self.parts: list[tuple[str, Launch | None]] = []  # names of step functions, and launches that are called as they are
        self.texts = [*[m.text for m in self.made if m is not None], self.step_functions()]
        if batch is not None:
            for text in self.texts[:-1]:  # those that had to wait
                batch.add(text)
            batch.add(self.texts[-1], opt=0)  # it only calls, and whatever takes time is in the kernels

    def join(self, known: dict[int, Any], kernels: Kernels) -> None:
        """Make one kernel of those that are of one family (`known`, by their places) and in one round."""
        groups = order(len(self.steps), known, self.rounds() if known else {})
        given, made, place = self.steps, self.made, dict[int, int]()
        self.steps, self.made = [], []
        for group in groups:
            self.steps.append(one_of([given[i] for i in group]))
            self.made.append(kernels.make(self.steps[-1]) if group[0] in known else made[group[0]])
            self.decisions += [told([given[i] for i in group])] if len(group) > 1 else []
            place.update(dict.fromkeys(group, len(self.steps) - 1))
        self.arena.lives = {name: (place[first], place[last]) for name, (first, last) in self.arena.lives.items()}

    def rounds(self) -> dict[int, int]:
        """The round of each kernel that does anything, by its place. Those after an op that is called as it is come later."""
        found: dict[int, int] = {}
        for places in self.stretches():
            kernels = {id(made): (i, made) for i in places if (made := self.made[i]) is not None}
            before = max(found.values(), default=-1) + 1
            for k, items in enumerate(Rounds(self.arena).of([made for _, made in kernels.values()])):
                for made, _ in items:
                    found.setdefault(kernels[id(made)][0], before + k)
        return found

    def own_memory(self) -> list[Life]:
        """What kernels need in the arena besides values."""
        found = [Life(m.shared, m.kernel.shared, i, i) for i, m in enumerate(self.made) if m is not None and m.kernel.shared]
        most = max((m.kernel.scratch for m in self.made if m is not None), default=0)
        if most > ON_STACK:
            found.append(Life(SCRATCH, rounded(most) * self.threads(), 0, len(self.steps) - 1))
        return found

    def threads(self) -> int:
        """How many threads have memory of their own in the arena."""
        return max(os.cpu_count() or 1, get_num_threads())

    def step_functions(self) -> str:
        """The text of the functions that call the kernels."""
        steps = Steps(self.arena, self.table()[0])
        for places in self.stretches():
            kernels = [made for i in places if (made := self.made[i]) is not None]
            if kernels:
                name = f"step{len(self.parts)}"
                steps.step(name, kernels)
                self.parts.append((name, None))
            else:
                self.parts += [("", self.steps[i]) for i in places]
        return str(steps.module)

    def stretches(self) -> list[list[int]]:
        """The places of steps, cut where ops are called as they are: kernels, such ops, kernels, and so on."""
        return [list(places) for _, places in groupby(range(len(self.steps)), lambda i: self.made[i] is None)]

    def recipe(self, objects: list[str]) -> Recipe:
        _, binding = self.table()
        cost = work_of(self.steps, self.forms)
        return Recipe(
            objects=objects,
            steps=[name for name, _ in self.parts],
            slots=self.slots,
            bound=list(binding.slots),
            numbers=list(binding.numbers),
            arena=self.arena.size,
            constants=[encoded(c) for c in self.constants.values()],
            memories=self.memories(),
            shown=self.shown(),
            checked=self.checked(),
            danger=self.in_danger(singles(self.steps), self.fails()),
            parallel=cost > PARALLEL and (cost > BRIEF or self.gain() >= WORTH),
            releases=cost > BRIEF,
            most_threads=self.threads() if SCRATCH in self.arena.offsets else 0,
            again=self.safe_outputs(),
            past=[self.outputs[s.buffer] for s in self.past()],
            plans={} if self.plans is None else self.plans.used,
        )

    def gain(self) -> float:
        """How many times as quick as one thread two are, roughly."""
        return gain(Rounds(self.arena).of([m for m in self.made if m is not None]), self.forms)

    def safe_outputs(self) -> list[int]:
        """New memories that nothing is written to before all that may fail is over."""
        last = max((i for i, fails in enumerate(self.fails()) if fails), default=-1)
        early = {b for x in self.steps[: last + 1] for b in x.writes}
        return [i for v, i in self.outputs.items() if v not in early]

    def past(self) -> list[Store]:
        """Results that go past the caches if their memory is not new."""
        return [s for x in self.steps if x.nest is not None for s in x.nest.stores() if s.past]

    def checked(self) -> bool:
        """Whether something may end it before it is done."""
        return any(x.check for x in self.steps)

    def fails(self) -> list[bool]:
        """Of each step: whether it may fail."""
        return [bool(x.check) or made is None for x, made in zip(self.steps, self.made, strict=True)]

    def opaque(self, part: int, memory: Any, start: int) -> Opaque:
        launch = self.parts[part][1]
        assert launch is not None
        return self.called(launch, memory, start)

    def called(self, launch: Launch, memory: Any, start: int) -> Opaque:
        """An op as it is, on an arena that begins so many bytes into some memory."""

        def place(form: Form, at: int, strides: tuple[int, ...]) -> Any:
            return np.ndarray(form.shape, form.dtype, memory, start + at, strides)

        return Opaque(self, launch, self.arena, place, np)

    def table(self) -> tuple[Table, Binding]:
        table = Table()
        bound = [*self.inputs.items(), *[(v, self.slots + i) for v, i in self.outputs.items()]]
        if self.checked():
            bound.append((FAILED, self.slots + len(self.outputs)))
        bound += [(s.flag, self.slots + len(self.outputs) + self.checked() + i) for i, s in enumerate(self.past())]
        for i, (name, _) in enumerate(bound):
            table.slots[name] = i
        numbers, kinds = sorted({n for m in self.made if m is not None for n in m.numbers}), self.number_kinds()
        for i, n in enumerate(numbers):
            table.numbers[n] = len(bound) + i
        for i, name in enumerate(["arena", *self.constants]):
            table.fixed[name] = len(bound) + len(numbers) + i
        return table, Binding(tuple(s for _, s in bound), tuple((n, kinds[n]) for n in numbers))


def for_products(work: Prepared, tune: bool, given: Mapping[str, str] | None) -> tuple[OnPacking | None, Plans | None]:
    """What judges prologues, and what chooses plans. Without products neither is imported: that takes half as long as all else
    that makes a program."""
    if all(node.op.name not in PRODUCTS for node in work.nodes):
        return None, None
    from .prologue_cost import OnPacking
    from .tuning.plans import Plans

    return OnPacking(host()), Plans(host(), tune, given)


def work_of(steps: list[Launch], forms: dict[str, Form]) -> int:
    """Roughly how many scalar ops there are."""
    total = 0
    for x in steps:
        for nest in () if x.nest is None else x.nest.all:
            total += nest.domain.rows * nest.domain.cols * max(len(nest.ops), 1)
        if x.kind == "scan" and x.node is not None:
            total += 4 * forms[x.node.results[0]].size
        if x.kind in ("product", "attention"):
            total += (flops(x, forms) or 0) // QUICK
    return total
