"""Recordings of one function that take turns, as with batches of several lengths: one has lent, and the others run for it.

Settling all that one recording has lent, and lending it again for the next, would cost more than the Python that is skipped.
They have the same parameters: so who runs next is the *guest* of the one that has lent, its *host*. It knows the memory of what
they capture, gives the host the gradients that it makes, and has the host count its calls. The loans stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .deferred_state import Captured, Kept
from .optimizer_state import Stepped


class Twins:
    """Whether two recordings capture the same things, and where the other one has each of them."""

    def __init__(self, mine: Any, theirs: Any) -> None:
        captured = places(mine.captured, theirs.captured, same_tensor)
        kept = places(mine.kept, theirs.kept, same_gradient)
        optimizers = places(mine.optimizers, theirs.optimizers, same_optimizer)
        self.fit = mine.simple and theirs.simple and None not in (*captured, *kept, *optimizers)
        self.captured: list[tuple[int, int]] = []  # slots, here and there
        self.gradients: list[tuple[int, int]] = []
        self.writes = {id(k.leaf): k.writes for k in mine.kept}
        self.lenders: list[Any] = []  # of each optimizer: who has its state, and which numbers of the program are its count
        if self.fit:
            others = theirs.captured
            self.captured = [(a.value.slot, others[i].value.slot) for a, i in zip(mine.captured, captured, strict=True)]
            pairs = [(a.value, theirs.kept[i].value) for a, i in zip(mine.kept, kept, strict=True)]
            self.gradients = [(a.slot, b.slot) for a, b in pairs if a is not None]
            for o, i in zip(mine.optimizers, optimizers, strict=True):
                self.lenders.append((o, theirs.optimizers[i], o.all_places()))


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


def same_gradient(a: Kept, b: Kept) -> bool:
    if a.leaf is not b.leaf or a.required or b.required:
        return False
    return a.value is b.value is None or (a.value is not None and b.value is not None and a.value.form is b.value.form)


def same_optimizer(a: Stepped, b: Stepped) -> bool:
    if a.optimizer is not b.optimizer or a.counters.keys() != b.counters.keys() or a.updated != b.updated:
        return False
    one, other = ([*[id(p) for p in x.advanced], *[id(t) for _, held in x.held for t in held.values()]] for x in (a, b))
    return one == other


def can_be_host(theirs: Any, twins: Twins) -> bool:
    """Whether what one has lent is all there, and one count of steps is all that an optimizer needs."""
    return twins.fit and all(len(o.counts) == 1 and o.is_away() for o in theirs.optimizers)


class Stay:
    """A recording as the guest of another one."""

    def __init__(self, guest: Any, host: Any, twins: Twins) -> None:
        self.guest, self.host = guest, host
        self.twins = twins
        arrays, others = guest.arrays, host.arrays
        for here, there in twins.captured:
            arrays[here] = others[there]
        guest.ids, guest.lenders = host.ids, twins.lenders
        host.guests.append(guest)

    def take_gradients(self) -> None:
        """The memory of the gradients of the last call, which this one may write into."""
        arrays, others = self.guest.arrays, self.host.arrays
        for here, there in self.twins.gradients:
            arrays[here], others[there] = others[there], None

    def give_gradients(self) -> None:
        arrays, others = self.guest.arrays, self.host.arrays
        for here, there in self.twins.gradients:
            others[there], arrays[here] = arrays[here], None
        self.host.written = self.twins.writes

    def end(self) -> None:
        """The host has settled, or the guest runs by itself."""
        guest = self.guest
        if guest in self.host.guests:
            self.host.guests.remove(guest)
        guest.stay = None
        guest.arrays[:] = [None] * len(guest.arrays)
        guest.ids, guest.lenders = set(), guest.own_lenders()
