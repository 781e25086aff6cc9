"""The arena of a device: one block of memory in which all programs on it keep what lives only while they run, one at a time.

It is as large as the largest program wants it. When it grows it is another block, and programs find that out when they run
next. Programs on another stream wait for those on the last one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ....eager.arrays.devices import device


class Shared:
    """See the module's text."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.lock = threading.RLock()
        self.busy = False
        self.block: Any = None
        self.size = -1
        self.stream: Any = None  # the last one that used it

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Threads take turns. False for a program that is called while this thread runs one already."""
        with self.lock:
            if self.busy:
                yield False
                return
            self.busy = True
            try:
                yield True
            finally:
                self.busy = False

    def reserved(self, size: int) -> Any:
        """A block of at least so many bytes."""
        if size > self.size:
            if self.stream is not None:
                self.stream.synchronize()  # nobody uses the old one any more
            self.block, self.size = None, -1  # which goes first, as both might not fit
            self.block, self.size = self.xp.cuda.alloc(max(size, 1)), size
        return self.block

    def follow(self, stream: Any) -> None:
        """A stream that is not the last one waits for that."""
        if self.stream is not None and self.stream.ptr != stream.ptr:
            stream.wait_event(self.stream.record())
        self.stream = stream


_arenas: dict[tuple[int, int], Shared] = {}


def arena_of(xp: Any, where: device) -> Shared:
    return _arenas.setdefault((id(xp), where.index or 0), Shared(xp))
