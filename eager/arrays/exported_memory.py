"""Who else can write a tensor's memory: NumPy arrays that show it, and whatever DLPack and buffers were handed to.

The tracer computes ops later than Python comes to them, so it has to know whether memory can change in between without any op.
The note is the second element of a version counter, which all tensors on the memory share. NumPy arrays are made on a *lease*,
an object that lives exactly as long as an array on the memory does: views of such an array refer to it, and it to the lease.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np


class Lease:
    """The memory of an array, as NumPy's array interface describes it."""

    __slots__ = ("__array_interface__", "__weakref__", "array")

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


def leased(lease: Lease) -> Any:
    """An array on a lease."""
    array: Any = np.asarray(lease)
    dtype = lease.array.dtype
    return array if array.dtype == dtype else array.view(dtype)


class Exposure:
    """The note on a memory."""

    __slots__ = ("beneath", "for_good", "given", "parent", "taken")

    def __init__(self, parent: list[Any] | None = None) -> None:
        self.for_good = False  # nobody can tell any more
        self.given: list[weakref.ref[Lease]] = []  # to arrays that NumPy's side has
        self.taken: list[Lease] = []  # of arrays that NumPy's side had first
        self.beneath: list[Lease] = []  # of these, what those are on that show a tensor's memory
        self.parent = parent  # of `x.data`, which has a counter of its own: x's

    def lasts(self) -> bool:
        """Whether somebody still has the memory."""
        if self.for_good:
            return True
        if self.given:
            self.given = [r for r in self.given if r() is not None]
            if self.given:
                return True
        for lease in (*self.taken, *self.beneath) if self.beneath else self.taken:
            if sys.getrefcount(lease.array) > 2:
                return True
        return self.parent is not None and exposed(self.parent)


def exposed(box: list[Any] | None) -> bool:
    """Whether memory with this version counter can be written by others than ops."""
    return box is not None and len(box) > 1 and box[1].lasts()


def notes(box: list[Any]) -> list[Exposure]:
    """The notes to write to: the memory's own, and for `x.data` that of x."""
    if len(box) == 1:
        box.append(Exposure())
    note: Exposure = box[1]
    return [note] if note.parent is None else [note, *notes(note.parent)]


def lend(array: Any, box: list[Any]) -> Any:
    """A NumPy array on a tensor's memory, to be handed to the user."""
    lease = Lease(array)
    for note in notes(box):
        note.given.append(weakref.ref(lease))
    return leased(lease)


def borrow(array: Any, box: list[Any]) -> Any:
    """A NumPy array of the user's as a tensor's memory."""
    lease, owner = Lease(array), array
    while type(owner) is np.ndarray:
        owner = owner.base
    for note in notes(box):
        note.taken.append(lease)
        if type(owner) is Lease:
            note.beneath.append(owner)
    return leased(lease)


def give_away(box: list[Any]) -> None:
    """Memory is handed to somebody of whom nothing more will be known."""
    for note in notes(box):
        note.for_good = True
