"""Horizontal fusion: elementwise nests with equal bodies become one kernel driven by a table of (size, pointers, scalars), as
the updates of all parameters by an optimizer (`codegen/llvm/loops/table_kernel.py`).

It is decided last, when the memory plan and the round of each kernel are known, and changes neither: no kernel waits for
anything that it would not wait for otherwise, and there is no barrier and no byte of memory more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..ir.expr import walk
from ..ir.index import Index, Var
from ..lowering.random_ops import RANDOM_OPS
from .kernels import Launch, body_signature
from .loop_nest import Nest


def is_elementwise(nest: Nest) -> bool:
    """True for a single row of elements, without reductions, scatters and random ops."""
    if nest.domain.rows != 1 or nest.totals() or nest.scatters or len(nest.stages) != 1 or nest.stages[0].before:
        return False
    return not any(e.kind == "op" and e.data[0] in RANDOM_OPS for e in walk(nest.expressions()))


def is_size_independent(nest: Nest) -> bool:
    """True if a nest's code is right for any number of elements: addresses are affine in the column, and no guard depends on
    where the row ends."""
    if not is_elementwise(nest) or not nest.domain.cols or any(s.nontemporal for s in nest.stores()):
        return False
    found = walk(nest.expressions())
    indices = [*[s.index for s in nest.stores()], *[i for e in found for i in e.indices]]
    guarded = any(e.kind == "inside" or (e.kind == "load" and e.data[2]) for e in found)
    return not guarded and all(isinstance(a, Var) for i in indices for a, _ in i.terms)


def sizeless_signature(nest: Nest) -> Any:
    """A key that is equal for nests that differ only in buffers, scalars and sizes."""
    return body_signature(nest, nest.buffers(), nest.numbers(), lambda i: (i.const, *[n for _, n in i.terms]))


def same_work_key(nest: Nest) -> Any:
    """Key of an elementwise nest's work, by which every target decides who shares a table kernel: equal for nests that differ
    only in buffers, numbers and sizes. None if the code of a nest depends on its size."""
    return sizeless_signature(nest) if is_size_independent(nest) else None


def first_element_signature(nest: Nest) -> Any:
    """A key of the computation of the first element, by which a nest of one element finds larger ones with the same body."""

    def at_first(index: Index) -> int:
        return index.const

    return body_signature(nest, nest.buffers(), nest.numbers(), at_first)


def fusable_groups(steps: Sequence[Launch]) -> dict[int, Any]:
    """The groups of nests that may be fused: by place in the list, a key that at least one other nest has too."""
    found = {
        i: x.nest for i, x in enumerate(steps) if x.kind == "nest" and not x.check and x.nest and is_size_independent(x.nest)
    }
    known = {i: sizeless_signature(nest) for i, nest in found.items() if nest.domain.cols > 1}
    larger = {first_element_signature(found[i]): key for i, key in known.items()}
    for i, nest in found.items():
        if i not in known:
            alone = first_element_signature(nest)
            known[i] = larger.get(alone, alone)
    sizes = Counter(known.values())
    return {i: known[i] for i in found if sizes[known[i]] > 1}


Order = list[tuple[int, ...]]  # places of launches; a tuple is one kernel


def fused_order(count: int, known: Mapping[int, Any], rounds: Mapping[int, int]) -> Order:
    """The order of `count` launches, where those of one group and one round are fused: at the place of the last of them, before
    launches of later rounds. A launch that depends on another is in a later round, so the order respects all dependences."""
    groups: dict[Any, list[int]] = {}
    for i, name in known.items():
        if i in rounds:
            groups.setdefault((name, rounds[i]), []).append(i)
    found: Order = [(i,) for i in range(count)]
    for group in groups.values():
        if len(group) > 1:
            first, last = found.index((group[0],)), found.index((group[-1],))
            between = [x for x in found[first : last + 1] if x[0] not in group]
            later = [x for x in between if rounds.get(x[0], -1) > rounds[group[0]]]
            found[first : last + 1] = [*[x for x in between if x not in later], tuple(group), *later]
    return found


def fuse_launches(launches: Sequence[Launch]) -> Launch:
    """Fuse launches of one group. Nests of a single element come last, as they do not tell which buffers advance."""
    first = launches[0]
    if len(launches) == 1:
        return first
    nests = [x.nest for x in launches if x.nest is not None]
    head, *rest = sorted(nests, key=lambda nest: nest.domain.cols == 1)
    nest = replace(head, fused_with=tuple(rest))
    members = {name: m for x in launches for name, m in x.step.members.items()}
    step = replace(first.step, domain=head.domain, members=members)
    reads, writes = set[str]().union(*[x.reads for x in launches]), set[str]().union(*[x.writes for x in launches])
    return Launch(step, "nest", None, nest, nest.buffers(), nest.numbers(), reads=reads, writes=writes)


def fusion_decision(launches: Sequence[Launch]) -> str:
    """The decision that `explain` shows."""
    numbers, first = ", ".join(str(x.step.number) for x in launches), launches[0].step.number
    return f"steps {numbers}: horizontally fused into one kernel, step {first}: they differ only in buffers, scalars and sizes"
