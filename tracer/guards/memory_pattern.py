"""Memory pattern: which tensors of a call lie in the same memory.

A program was recorded for one pattern: tensors on one array are one input of it, and memory that it writes overlaps no other
input. Guards ask for the same pattern at each call, by memory ranges and not by the identity of arrays: two views of one array
overlap, though they are different objects.

An array without a base owns its memory, and only views of it can overlap it. So the usual case, inputs that own their memory,
costs one test for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...eager.arrays.exported_memory import ExportedBuffer


def owner_of(array: Any) -> Any:
    """Return the object that owns an array's memory: the last base of a NumPy array, the allocation of one on a device."""
    if not isinstance(array, np.ndarray):
        return array.data.mem
    while True:
        base = array.base
        if isinstance(base, np.ndarray):
            array = base
        elif type(base) is ExportedBuffer:
            array = base.array
        else:
            return array


def is_owned(owner: Any) -> bool:
    """True if all arrays on this memory have this owner. A foreign object may hand its memory to several arrays."""
    return not isinstance(owner, np.ndarray) or owner.base is None


def may_overlap(a: Any, b: Any) -> bool:
    """True if the memory ranges of two arrays overlap."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.may_share_memory(a, b)
    return owner_of(a) is owner_of(b)


class MemoryRanges:
    """Arrays, found by the memory that they lie in."""

    def __init__(self, arrays: Iterable[Any] = ()) -> None:
        self.by_owner: dict[int, list[Any]] = {}
        self.foreign: list[Any] = []  # arrays on memory that is not owned by an array
        for a in arrays:
            owner = owner_of(a)
            self.by_owner.setdefault(id(owner), []).append(a)
            if not is_owned(owner):
                self.foreign.append(a)

    def overlap(self, array: Any) -> bool:
        """True if an array may overlap one of these, other than itself."""
        owner = owner_of(array)
        near = self.by_owner.get(id(owner), ())
        if not is_owned(owner):
            near = [a for arrays in self.by_owner.values() for a in arrays]
        return any(a is not array and may_overlap(a, array) for a in (*near, *self.foreign))


class Everything:
    """A set that holds all ids."""

    def __contains__(self, i: int) -> bool:
        return True


class CapturedMemory:
    """The memory of captured tensors, with which that of arguments is compared."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._take([], [])

    def _take(self, arrays: list[Any], written: list[Any]) -> None:
        self.ids = frozenset(map(id, arrays))
        self.all, self.written = MemoryRanges(arrays), MemoryRanges(written)
        # ids of what owns the memory that is written; anything may own what is foreign
        self.owners: Any = Everything() if self.written.foreign else frozenset(self.written.by_owner)

    def bind(self, arrays: list[Any], written: list[Any]) -> bool:
        """Take these arrays; False if two are one, or one that is written overlaps another."""
        self._take(arrays, written)
        return len(self.ids) == len(arrays) and not any(self.all.overlap(a) for a in written)
