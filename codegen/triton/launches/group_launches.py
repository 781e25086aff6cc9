"""Fewer launches: kernels that do not depend on each other are one launch, and nests that are the same but for their sizes are
one kernel over a table.

A launch on a device costs some microseconds however small it is. So the list of launches is put in another order: in each round
whoever the most others wait for goes first, and all that is ready and of its kind goes along. Gradients of weights, for which
nobody waits, go along with the next product on the way; second stages of totals with the next loops. Loops that nobody waits
for and that are the same for many buffers, an optimizer's, wait for each other until nothing else is left.

Who reads what and who writes it is looked up by names of buffers, before it is planned where these are: the plan is made for
the list that comes out here.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...nests.kernels import Launch
from .table_kernel import Member, member_of, printed_alike, printed_family
from .merge_kernels import mergeable, merged
from .print_launch import Prints
from ..printing.kernel_text import Printed
from .launch_unit import Unit, Units

MOST_BODIES = {"nest": 8, "product": 3}  # different kernels in a launch: more would take long to compile
PATIENCE = 6  # rounds that a unit waits for others to go along with: what it reads has to be kept meanwhile


def grouped(launches: Sequence[Launch], prints: Prints, unaligned: frozenset[str] = frozenset()) -> list[Unit]:
    """The kernels of a program, in the order in which they are launched. Checks, which may end the program, stay where they
    are. Tables hold no addresses of buffers that may be `unaligned`."""
    found: list[Unit] = []
    writer = Units(prints)
    run: list[Launch] = []
    for x in [*launches, None]:
        if x is None or (run and bool(x.check) is not bool(run[0].check)):
            found += Grouping(writer, run, unaligned).groups()
            run = []
        if x is not None:
            run.append(x)
    return found


class Grouping:
    """Puts units into rounds: see the module's text."""

    def __init__(self, writer: Units, launches: list[Launch], unaligned: frozenset[str]) -> None:
        self.writer = writer
        self.units = given = [x for launch in launches for x in writer.of(launch, in_parts=False)]
        self.odd = {i for i, x in enumerate(given) if not unaligned.isdisjoint(x.reads | x.writes)}
        self.members = [None if i in self.odd else self.member(x) for i, x in enumerate(given)]
        self.after: list[list[int]] = [[] for _ in given]  # who waits for a unit
        self.waits = [0] * len(given)  # for how many a unit waits
        self.height = [0] * len(given)  # how many launches come after a unit, one after the other
        for i, x in enumerate(given):
            for k in range(i):
                if given[k].before(x):
                    self.after[k].append(i)
                    self.waits[i] += 1
        for i in reversed(range(len(given))):
            self.height[i] = max((1 + self.height[k] for k in self.after[i]), default=0)

    def member(self, x: Unit) -> Member | None:
        (launch,) = x.launches
        if x.kind != "nest" or launch.kind != "nest" or launch.check:
            return None
        assert launch.nest is not None
        return member_of(launch.nest)

    def groups(self) -> list[Unit]:
        found: list[Unit] = []
        ready = [i for i, n in enumerate(self.waits) if not n]
        since = dict.fromkeys(ready, 0)
        while ready:
            late = {i for i in ready if len(found) - since[i] >= PATIENCE and not self.last(i)}
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

    # ---- who goes along with whom

    def last(self, i: int) -> bool:
        """Whether a unit is one of many that nobody waits for."""
        return self.members[i] is not None and not self.height[i]

    def choose(self, ready: list[int], late: set[int]) -> list[int]:
        """The units of a launch: who most others wait for, or who is late itself, and who goes along."""
        order = sorted(ready, key=lambda i: (i not in late, self.last(i), -self.height[i], i))
        leader = order[0]
        chosen, bodies = [leader], {self.body(leader)}
        ending = not any(self.waits)
        for i in order[1:]:
            if (self.last(i) and not self.last(leader) and not ending) or not self.together(leader, i):
                continue
            if len(bodies | {self.body(i)}) <= MOST_BODIES[self.units[leader].kind]:
                bodies.add(self.body(i))
                chosen.append(i)
        return chosen

    def body(self, i: int) -> str:
        """Units with the same body are told apart by their arguments alone."""
        x, member = self.units[i], self.members[i]
        if member is not None:
            return member.text
        return f"{x.kernel.name} {x.printed.source}" if x.printed is not None and x.kernel is not None else ""

    def together(self, i: int, k: int) -> bool:
        """Whether two units can be one launch: of the same kind, as what takes many registers has no good of what takes few."""
        a, b = self.units[i], self.units[k]
        if a.printed is None or b.printed is None or a.kind not in MOST_BODIES:
            return False
        return (a.kind, a.dtype) == (b.kind, b.dtype) and mergeable(a.printed) and mergeable(b.printed)

    # ---- several as one

    def joined(self, chosen: list[int]) -> list[Unit]:
        """The units of a round: one, or a product in parts and what adds them."""
        given = [self.units[i] for i in chosen]
        first = given[0]
        if first.kind == "product" and first.printed is not None:
            if len(given) == 1:
                return self.writer.of(first.launches[0])
            stages = self.writer.together([x.launches[0] for x in given])
            return [one(x, [y.printed for y in x if y.printed is not None]) for x in stages if x]
        return given if len(given) == 1 else [one(given, self.parts(chosen))]

    def parts(self, chosen: list[int]) -> list[Printed]:
        """The kernels of nests: one for each that is for itself, and one for all that are the same."""
        families: dict[str, list[int]] = {}
        for i in chosen:
            families.setdefault(f"{i}" if i in self.odd else self.body(i), []).append(i)
        found: list[Printed] = []
        for same in families.values():
            members = [m for m in (self.members[i] for i in same) if m is not None]
            texts = [x for x in (self.units[i].printed for i in same) if x is not None]
            table = f"table of {self.units[same[0]].launches[0].step.number}, {texts[0].kernels[0].name}"
            if len(same) == 1:
                found += texts
            else:
                found.append(printed_family(members, table) if members else printed_alike(texts, table))
        return found


def one(given: list[Unit], parts: list[Printed]) -> Unit:
    """Some units as one, whose kernel is made of these."""
    return Unit(
        tuple(y for x in given for y in x.launches),
        parts[0] if len(parts) == 1 else merged(parts),
        given[0].kind,
        frozenset[str]().union(*[x.reads for x in given]),
        frozenset[str]().union(*[x.writes for x in given]),
        given[0].dtype,
    )
