"""Groups launches: independent kernels become one launch, and nests that differ only in size become one table kernel.

A launch on a device costs some microseconds however small it is, so the launches are list-scheduled: each round picks the unit
with the longest chain of dependents, and all ready units of its kind join it. Weight gradients, which nothing depends on, join
the next matmul; second stages of reductions join the next loops. Loops without dependents whose bodies are equal for many
buffers, an optimizer's, wait for each other until nothing else is left (horizontal fusion).

Dependences are found by names of buffers, before the arena is planned: the plan is made for the list that comes out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...nests.kernels import Launch
from ..printing.kernel_text import Printed
from .launch_unit import Unit, UnitBuilder
from .merge_kernels import can_merge, merge_kernels
from .print_launch import LaunchPrinter
from .table_kernel import TableMember, print_same_kernels, print_table_kernel, table_member

MAX_BODIES = {"nest": 8, "matmul": 3}  # different kernels in a launch: more would take long to compile
MAX_WAIT_ROUNDS = 6  # rounds that a unit waits for others to go along with: what it reads has to be kept meanwhile


def group_launches(launches: Sequence[Launch], prints: LaunchPrinter, unaligned: frozenset[str] = frozenset()) -> list[Unit]:
    """Group the kernels of a program, in launch order. Checks, which may end the program, stay where they are. Tables hold no
    addresses of buffers that may be `unaligned`."""
    found: list[Unit] = []
    writer = UnitBuilder(prints)
    run: list[Launch] = []
    for x in [*launches, None]:
        if x is None or (run and bool(x.check) is not bool(run[0].check)):
            found += Grouper(writer, run, unaligned).groups()
            run = []
        if x is not None:
            run.append(x)
    return found


class Grouper:
    """List scheduler that groups units into rounds: see the module's docstring."""

    def __init__(self, writer: UnitBuilder, launches: list[Launch], unaligned: frozenset[str]) -> None:
        self.writer = writer
        self.units = given = [x for launch in launches for x in writer.of(launch, in_parts=False)]
        self.odd = {i for i, x in enumerate(given) if not unaligned.isdisjoint(x.reads | x.writes)}
        self.members = [None if i in self.odd else self.member(x) for i, x in enumerate(given)]
        self.after: list[list[int]] = [[] for _ in given]  # dependents of each unit
        self.waits = [0] * len(given)  # for how many a unit waits
        self.height = [0] * len(given)  # length of the longest chain of dependents
        for i, x in enumerate(given):
            for k in range(i):
                if given[k].before(x):
                    self.after[k].append(i)
                    self.waits[i] += 1
        for i in reversed(range(len(given))):
            self.height[i] = max((1 + self.height[k] for k in self.after[i]), default=0)

    def member(self, x: Unit) -> TableMember | None:
        (launch,) = x.launches
        if x.kind != "nest" or launch.kind != "nest" or launch.check:
            return None
        assert launch.nest is not None
        return table_member(launch.nest)

    def groups(self) -> list[Unit]:
        found: list[Unit] = []
        ready = [i for i, n in enumerate(self.waits) if not n]
        since = dict.fromkeys(ready, 0)
        while ready:
            late = {i for i in ready if len(found) - since[i] >= MAX_WAIT_ROUNDS and not self.last(i)}
            chosen = self.choose(ready, late)
            found += self.joined(chosen)
            ready = [i for i in ready if i not in chosen]
            for i in chosen:
                for k in self.after[i]:
                    self.waits[k] -= 1
                    if not self.waits[k]:
                        ready.append(k)
                        since[k] = len(found)
        return found

    # ---- choice of the units of a launch

    def last(self, i: int) -> bool:
        """True for a table member without dependents: it is deferred, to share one launch with its equals."""
        return self.members[i] is not None and not self.height[i]

    def choose(self, ready: list[int], late: set[int]) -> list[int]:
        """Choose the units of one launch: a `late` unit, else the one with the longest chain of dependents, and those that
        join it."""
        order = sorted(ready, key=lambda i: (i not in late, self.last(i), -self.height[i], i))
        leader = order[0]
        chosen, bodies = [leader], {self.body(leader)}
        ending = not any(self.waits)
        for i in order[1:]:
            if (self.last(i) and not self.last(leader) and not ending) or not self.together(leader, i):
                continue
            if len(bodies | {self.body(i)}) <= MAX_BODIES[self.units[leader].kind]:
                bodies.add(self.body(i))
                chosen.append(i)
        return chosen

    def body(self, i: int) -> Any:
        """Key of a unit's body: units with equal bodies differ only in their arguments."""
        x, member = self.units[i], self.members[i]
        if member is not None:
            return member.key
        return f"{x.kernel.name} {x.printed.source}" if x.printed is not None and x.kernel is not None else ""

    def together(self, i: int, k: int) -> bool:
        """True if two units can share a launch: only units of one kind, as a light kernel would pay for the registers of a
        heavy one."""
        a, b = self.units[i], self.units[k]
        if a.printed is None or b.printed is None or a.kind not in MAX_BODIES:
            return False
        return (a.kind, a.dtype) == (b.kind, b.dtype) and can_merge(a.printed) and can_merge(b.printed)

    # ---- merging

    def joined(self, chosen: list[int]) -> list[Unit]:
        """Units of a round: one, or a split matmul and the kernel that adds its parts."""
        given = [self.units[i] for i in chosen]
        first = given[0]
        if first.kind == "matmul" and first.printed is not None:
            if len(given) == 1:
                return self.writer.of(first.launches[0])
            stages = self.writer.together([x.launches[0] for x in given])
            return [merge_units(x, [y.printed for y in x if y.printed is not None]) for x in stages if x]
        return given if len(given) == 1 else [merge_units(given, self.parts(chosen))]

    def parts(self, chosen: list[int]) -> list[Printed]:
        """Kernels of nests: one per distinct nest, and one table kernel for each set of equal ones."""
        equal_bodies: dict[Any, list[int]] = {}
        for i in chosen:
            equal_bodies.setdefault(i if i in self.odd else self.body(i), []).append(i)
        found: list[Printed] = []
        for same in equal_bodies.values():
            members = [m for m in (self.members[i] for i in same) if m is not None]
            texts = [x for x in (self.units[i].printed for i in same) if x is not None]
            table = f"table of {self.units[same[0]].launches[0].step.number}, {texts[0].kernels[0].name}"
            if len(same) == 1:
                found += texts
            else:
                found.append(print_table_kernel(members, table) if members else print_same_kernels(texts, table))
        return found


def merge_units(given: list[Unit], parts: list[Printed]) -> Unit:
    """Merge units into one, whose kernel is made of theirs."""
    return Unit(
        tuple(y for x in given for y in x.launches),
        parts[0] if len(parts) == 1 else merge_kernels(parts),
        given[0].kind,
        frozenset[str]().union(*[x.reads for x in given]),
        frozenset[str]().union(*[x.writes for x in given]),
        given[0].dtype,
    )
