"""Nests that are the same but for their buffers, their numbers and how many elements they have, as the updates of all
parameters by an optimizer: on a CPU, those of one round are one kernel, which finds all three in a table (`llvm/family.py`).

That is decided last, when it is known where buffers are and in which round each kernel is. So it changes neither: nobody waits
for anything that it would not wait for otherwise, and there is no barrier and no byte of memory more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..lowering.random_ops import DRAWN
from ..ir.expr import walk
from ..ir.index import Index, Var
from .kernels import Launch, inside
from .loop_nest import Nest


def elementwise(nest: Nest) -> bool:
    """Whether a nest is a single row of elements that are computed one by one, none of them by chance."""
    if nest.domain.rows != 1 or nest.totals() or nest.scatters or len(nest.stages) != 1 or nest.stages[0].before:
        return False
    return not any(e.kind == "op" and e.data[0] in DRAWN for e in walk(nest.expressions()))


def of_any_size(nest: Nest) -> bool:
    """Whether the code of a nest may be that of others with more elements, or fewer: places are multiples of the column, and
    nothing depends on where the row ends."""
    if not elementwise(nest) or not nest.domain.cols or any(s.past for s in nest.stores()):
        return False
    found = walk(nest.expressions())
    indices = [*[s.index for s in nest.stores()], *[i for e in found for i in e.indices]]
    guarded = any(e.kind == "inside" or (e.kind == "load" and e.data[2]) for e in found)
    return not guarded and all(isinstance(a, Var) for i in indices for a, _ in i.terms)


def form(nest: Nest) -> Any:
    """Equal for nests that differ only in buffers, numbers and sizes."""
    return inside(nest, nest.buffers(), nest.numbers(), lambda i: (i.const, *[n for _, n in i.terms]))


def first_element(nest: Nest) -> Any:
    """What a nest does with its first element: equal for one that has no other, and for those that would do it for that one."""

    def at_first(index: Index) -> int:
        return index.const

    return inside(nest, nest.buffers(), nest.numbers(), at_first)


def families(steps: Sequence[Launch]) -> dict[int, Any]:
    """Of nests that are not alone in theirs, by their places in the list: the family."""
    found = {i: x.nest for i, x in enumerate(steps) if x.kind == "nest" and not x.check and x.nest and of_any_size(x.nest)}
    known = {i: form(nest) for i, nest in found.items() if nest.domain.cols > 1}
    larger = {first_element(found[i]): key for i, key in known.items()}
    for i, nest in found.items():
        if i not in known:
            alone = first_element(nest)
            known[i] = larger.get(alone, alone)
    sizes = Counter(known.values())
    return {i: known[i] for i in found if sizes[known[i]] > 1}


Order = list[tuple[int, ...]]  # the places of steps, those together that are one kernel


def order(count: int, known: Mapping[int, Any], rounds: Mapping[int, int]) -> Order:
    """So many steps, with those of a family that are in the same round as one: where the last of them was, before what is in
    later rounds. Whoever waits for another is in a later round, so this is an order in which everything can be done."""
    groups: dict[Any, list[int]] = {}
    for i, family in known.items():
        if i in rounds:
            groups.setdefault((family, rounds[i]), []).append(i)
    found: Order = [(i,) for i in range(count)]
    for group in groups.values():
        if len(group) > 1:
            first, last = found.index((group[0],)), found.index((group[-1],))
            between = [x for x in found[first : last + 1] if x[0] not in group]
            later = [x for x in between if rounds.get(x[0], -1) > rounds[group[0]]]
            found[first : last + 1] = [*[x for x in between if x not in later], tuple(group), *later]
    return found


def one_of(launches: Sequence[Launch]) -> Launch:
    """Steps of a family as one. Those of a single element come last, as they do not say which buffers have more."""
    first = launches[0]
    if len(launches) == 1:
        return first
    nests = [x.nest for x in launches if x.nest is not None]
    head, *rest = sorted(nests, key=lambda nest: nest.domain.cols == 1)
    nest = replace(head, also=tuple(rest))
    members = {name: m for x in launches for name, m in x.step.members.items()}
    step = replace(first.step, domain=head.domain, members=members)
    reads, writes = set[str]().union(*[x.reads for x in launches]), set[str]().union(*[x.writes for x in launches])
    return Launch(step, "nest", None, nest, nest.buffers(), nest.numbers(), reads=reads, writes=writes)


def told(launches: Sequence[Launch]) -> str:
    """A note of it, for `explain`."""
    numbers = ", ".join(str(x.step.number) for x in launches)
    return f"steps {numbers}: one kernel, step {launches[0].step.number}: they differ in buffers, numbers and sizes alone"
