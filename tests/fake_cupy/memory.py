"""The pretended GPU's memory: NumPy's, in blocks that begin at multiples of 512 bytes and hold garbage at first."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from .device import local
from .errors import OutOfMemoryError
from .streams import refuse_while_capturing

ALIGNMENT = 512


class Memory:
    """A block."""

    def __init__(self, size: int) -> None:
        self._np = np.full(size + ALIGNMENT, 0xAB, np.uint8)
        self._start = -self._np.ctypes.data % ALIGNMENT
        self.ptr = self._np.ctypes.data + self._start
        self.size = size
        self.device_id = local.current


class UnownedMemory:
    """A block that somebody else keeps."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr = ptr
        self.size = size
        self.device_id = local.current if device_id < 0 else device_id
        self._owner = owner


class MemoryPointer:
    """A place in a block."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        ctypes.memset(self.ptr, value, size)

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)


class MemoryPool:
    """Pool that blocks come from. Tests may set a limit."""

    def __init__(self) -> None:
        self._limit = 0
        self._used = 0

    def malloc(self, size: int) -> MemoryPointer:
        refuse_while_capturing("allocating")
        if self._limit and self._used + size > self._limit:
            limits = f"(allocated so far: {self._used:,} bytes, limit set to: {self._limit:,} bytes)"
            raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes {limits}.")
        found = Memory(size)
        self._used += size
        weakref.finalize(found, self._free, size)
        return MemoryPointer(found, 0)

    def _free(self, size: int) -> None:
        self._used -= size

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        self._limit = size or 0

    def used_bytes(self) -> int:
        return self._used

    def total_bytes(self) -> int:
        return self._used

    def free_all_blocks(self, stream: Any = None) -> None: ...


_pool = MemoryPool()


def get_default_memory_pool() -> MemoryPool:
    return _pool


def alloc(size: int) -> MemoryPointer:
    return _pool.malloc(size)


def alloc_pinned_memory(size: int) -> Any:
    """Memory of the CPU that the device can write."""
    refuse_while_capturing("allocating")
    return PinnedMemory(size)


class PinnedMemory(bytearray):
    @property
    def ptr(self) -> int:
        return int(np.frombuffer(self, np.uint8).ctypes.data)
