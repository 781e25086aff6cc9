"""Pool of output memory: once no reference to an output of an earlier call is left, the next call reuses its memory.

So addresses stay the same from call to call, which CUDA graphs need. The pool owns the memory; an array borrows it through a
`Borrower`, an object that lives exactly as long as any array or view on it.
"""

from __future__ import annotations

import weakref
from typing import Any

from ....eager.arrays.devices import device

SMALL = 1 << 16  # bytes of outputs of which several are kept: a loss is looked at while the next one is computed
MAX_SMALL_PLACES = 3


class Borrower:
    """Memory in use by an array."""

    __slots__ = ("__weakref__", "memory")

    def __init__(self, memory: Any) -> None:
        self.memory = memory


class OutputPool:
    """Allocates the arrays of one output."""

    def __init__(self, xp: Any, where: device) -> None:
        self.xp = xp
        self.where = where
        self.places: list[tuple[Any, weakref.ref[Borrower]]] = []

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> Any:
        for i, (memory, borrower) in enumerate(self.places):
            if borrower() is None:
                found, new = self.borrow(shape, dtype, memory)
                self.places[i] = memory, new
                return found
        size = dtype.itemsize
        for n in shape:
            size *= n
        if not size or len(self.places) >= (MAX_SMALL_PLACES if size <= SMALL else 1):
            return self.xp.empty(shape, dtype)
        memory = self.xp.cuda.alloc(size)
        found, new = self.borrow(shape, dtype, memory)
        self.places.append((memory, new))
        return found

    def borrow(self, shape: tuple[int, ...], dtype: Any, memory: Any) -> tuple[Any, weakref.ref[Borrower]]:
        """Make an array on some memory, and a reference that dies with the last view of it."""
        cuda, borrower = self.xp.cuda, Borrower(memory)
        whole = cuda.UnownedMemory(memory.ptr, memory.mem.size, borrower, self.where.index or 0)
        return self.xp.ndarray(shape, dtype, cuda.MemoryPointer(whole, 0)), weakref.ref(borrower)

    def forget(self) -> None:
        self.places.clear()
