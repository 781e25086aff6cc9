"""Arena of the programs on one GPU (`codegen/program/arena.py`).

Programs ask for its block each time they run, and notice then that it is another one. A program on another stream than the
last one waits for that stream.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ....eager.arrays.devices import device
from ...program.arena import SharedArena


class DeviceArena(SharedArena):
    """Arena block of one device. It never shrinks: allocating on a device synchronises."""

    def __init__(self, xp: Any) -> None:
        super().__init__()
        self.xp = xp
        self.lock = threading.RLock()
        self.busy = False
        self.stream: Any = None  # the last one that used it

    def allocate(self, size: int) -> Any:
        return self.xp.cuda.alloc(max(size, 1))

    def release(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()  # the device may still use the old block
        self.block, self.size = None, -1  # released before the new one is allocated, as both might not fit

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Take the block: threads take turns. Yields False to a program that is called while this thread runs one already."""
        with self.lock:
            if self.busy:
                yield False
                return
            self.busy = True
            try:
                yield True
            finally:
                self.busy = False

    def reserve(self, size: int) -> Any:
        """Reserve a block of at least `size` bytes, for the holder of the arena."""
        if size > self.size:
            self.replace(size)
        return self.block

    def follow(self, stream: Any) -> None:
        """Make a stream wait for the last one that used the block."""
        if self.stream is not None and self.stream.ptr != stream.ptr:
            stream.wait_event(self.stream.record())
        self.stream = stream


_arenas: dict[tuple[int, int], DeviceArena] = {}


def arena_of(xp: Any, where: device) -> DeviceArena:
    return _arenas.setdefault((id(xp), where.index or 0), DeviceArena(xp))
