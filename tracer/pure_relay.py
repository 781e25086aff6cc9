"""Recordings of one function that take turns, as with batches of several lengths: what one has lent goes over to the next.

Settling all that one recording has lent, and lending it again for the next, would cost more than the Python that is skipped.
They have the same parameters, so the pending arrays, the memory behind them and the optimizers' counts only change hands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .pure_loans import Captured
from .pure_updates import Stepped, in_steps


class Twins:
    """Whether two recordings capture the same things, and where the other one has each of them."""

    def __init__(self, mine: Any, theirs: Any) -> None:
        self.captured = places(mine.captured, theirs.captured, same_tensor)
        self.optimizers = places(mine.optimizers, theirs.optimizers, same_optimizer)
        kept = {id(k.leaf) for k in mine.kept} == {id(k.leaf) for k in theirs.kept}
        simple = mine.simple and theirs.simple and not any(k.required for k in (*mine.kept, *theirs.kept))
        self.fit = simple and kept and None not in (*self.captured, *self.optimizers)
        self.slots: list[tuple[int, int]] = []  # of each captured tensor, here and there
        self.steps: list[tuple[Any, int]] = []  # of each optimizer: the places of its count, and how many
        if self.fit:
            self.slots = [
                (a.value.slot, theirs.captured[i].value.slot) for a, i in zip(mine.captured, self.captured, strict=True)
            ]
            for o in mine.optimizers:
                found = [o.counters[id(p)] for p in o.advanced if id(p) in o.counters]
                self.steps.append((in_steps(found), len(found)))


def places(mine: list[Any], theirs: list[Any], same: Callable[[Any, Any], bool]) -> list[Any]:
    """For each of some things the place of the same one among others, or None."""
    if len(mine) != len(theirs):
        return [None]
    return [next((i for i, b in enumerate(theirs) if same(a, b)), None) for a in mine]


def same_tensor(a: Captured, b: Captured) -> bool:
    one, other = a.value, b.value
    if a.tensor is not b.tensor or a.leaf is not None or b.leaf is not None or a.writes != b.writes:
        return False
    return one.form is other.form and one.requires_grad is other.requires_grad and one.tracked is other.tracked


def same_optimizer(a: Stepped, b: Stepped) -> bool:
    if a.optimizer is not b.optimizer or a.counters.keys() != b.counters.keys():
        return False
    one, other = ([*[id(p) for p in x.advanced], *[id(t) for _, held in x.held for t in held.values()]] for x in (a, b))
    return one == other


def taken_over(mine: Any, theirs: Any, twins: Twins) -> bool:
    """Let a recording that has lent nothing go on where another one is; False if it has to begin by itself."""
    if any(len(o.counts) > 1 or not o.is_away() for o in theirs.optimizers):
        return False
    unlent, count = {id(x) for x in theirs.seen}, theirs.count
    mine.count = 0
    mine.seen = list(mine.kept)
    arrays, others, all_theirs = mine.arrays, theirs.arrays, theirs.captured
    for a, i, (here, there) in zip(mine.captured, twins.captured, twins.slots, strict=True):
        arrays[here] = others[there]
        b = all_theirs[i]
        pending = b.pending
        if pending is not None:
            a.pending, b.pending = pending, None
            pending.frame, pending.slot, a.since = a, here, b.since - count
        elif id(b) in unlent:
            mine.seen.append(a)
    for k in theirs.kept:
        k.settle()
        k.away = False
    for a, i, steps in zip(mine.optimizers, twins.optimizers, twins.steps, strict=True):
        change_hands(a, theirs.optimizers[i], *steps)
    mine.ids |= theirs.ids
    mine.tensor_mark, mine.module_mark = theirs.tensor_mark, theirs.module_mark
    theirs.forget()
    return True


def change_hands(a: Stepped, b: Stepped, steps: Any, many: int) -> None:
    """The optimizer's state, which is away, and its count."""
    a.state, b.state = b.state, None
    a.counts, b.counts = [[n, steps, many, dicts] for n, _, _, dicts in b.counts], []
    a.optimizer.__dict__["_lender"] = a
