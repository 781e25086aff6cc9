"""Deferred state shared by the recordings of one function that take turns, as with batches of several lengths.

Materialising everything that one recording has deferred, and deferring it again for the next, would cost more than the Python
that is skipped. The recordings have the same parameters: so the next one *borrows* the deferred state of its *owner*. It uses
the owner's memory of what both capture, hands over the gradients that it makes, and the owner counts its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..guards.memory_pattern import CapturedMemory
from .deferred_state import CapturedTensor, LeafGradient
from .optimizer_state import OptimizerStep


class SharedState:
    """How two recordings' captures correspond. `fit` if they capture the same things, so that one can borrow from the other."""

    def __init__(self, mine: Any, theirs: Any) -> None:
        captured = positions_of(mine.captured, theirs.captured, same_tensor)
        kept = positions_of(mine.leaf_gradients, theirs.leaf_gradients, same_gradient)
        optimizers = positions_of(mine.optimizers, theirs.optimizers, same_optimizer)
        self.fit = mine.simple and theirs.simple and None not in (*captured, *kept, *optimizers)
        self.captured: list[tuple[int, int]] = []  # slots of the borrower and of the owner
        self.gradients: list[tuple[int, int]] = []
        self.writes = {id(k.leaf): k.writes for k in mine.leaf_gradients}
        self.state_owners: list[Any] = []  # (optimizer, owner of its state, places of its step count)
        if self.fit:
            others = theirs.captured
            self.captured = [(a.value.slot, others[i].value.slot) for a, i in zip(mine.captured, captured, strict=True)]
            pairs = [(a.value, theirs.leaf_gradients[i].value) for a, i in zip(mine.leaf_gradients, kept, strict=True)]
            self.gradients = [(a.slot, b.slot) for a, b in pairs if a is not None]
            for o, i in zip(mine.optimizers, optimizers, strict=True):
                self.state_owners.append((o, theirs.optimizers[i], o.all_places()))


def positions_of(mine: list[Any], theirs: list[Any], same: Callable[[Any, Any], bool]) -> list[Any]:
    """Return for each item of `mine` the index of the same one in `theirs`, or None."""
    if len(mine) != len(theirs):
        return [None]
    return [next((i for i, b in enumerate(theirs) if same(a, b)), None) for a in mine]


def same_tensor(a: CapturedTensor, b: CapturedTensor) -> bool:
    one, other = a.value, b.value
    if a.tensor is not b.tensor or a.leaf is not None or b.leaf is not None or a.writes != b.writes:
        return False
    return one.form is other.form and one.requires_grad is other.requires_grad and one.tracked is other.tracked


def same_gradient(a: LeafGradient, b: LeafGradient) -> bool:
    if a.leaf is not b.leaf or a.required or b.required:
        return False
    return a.value is b.value is None or (a.value is not None and b.value is not None and a.value.form is b.value.form)


def same_optimizer(a: OptimizerStep, b: OptimizerStep) -> bool:
    if a.optimizer is not b.optimizer or a.counters.keys() != b.counters.keys() or a.updated != b.updated:
        return False
    one, other = ([*[id(p) for p in x.advanced], *[id(t) for _, held in x.held for t in held.values()]] for x in (a, b))
    return one == other


def can_own_state(theirs: Any, shared: SharedState) -> bool:
    """True if everything is still deferred, and each optimizer has one step count for all of its parameters."""
    return shared.fit and all(len(o.counts) == 1 and o.is_deferred() for o in theirs.optimizers)


class Borrowing:
    """The time while one recording runs on the deferred state of another."""

    def __init__(self, borrower: Any, owner: Any, shared: SharedState) -> None:
        self.borrower, self.owner = borrower, owner
        self.shared = shared
        arrays, others = borrower.arrays, owner.arrays
        for here, there in shared.captured:
            arrays[here] = others[there]
        borrower.memory, borrower.state_owners = owner.memory, shared.state_owners
        owner.borrowers.append(borrower)

    def take_gradients(self) -> None:
        """Take the memory of the last call's gradients, which this call may overwrite."""
        arrays, others = self.borrower.arrays, self.owner.arrays
        for here, there in self.shared.gradients:
            arrays[here], others[there] = others[there], None

    def give_gradients(self) -> None:
        arrays, others = self.borrower.arrays, self.owner.arrays
        for here, there in self.shared.gradients:
            others[there], arrays[here] = arrays[here], None
        self.owner.written = self.shared.writes

    def end(self) -> None:
        """Stop borrowing: the owner has materialised its state, or the borrower runs by itself."""
        borrower = self.borrower
        if borrower in self.owner.borrowers:
            self.owner.borrowers.remove(borrower)
        borrower.borrowing = None
        borrower.arrays[:] = [None] * len(borrower.arrays)
        borrower.memory, borrower.state_owners = CapturedMemory(), borrower.own_state_owners()
