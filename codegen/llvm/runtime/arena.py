"""The memory that programs have in common: one block, in which each keeps what lives only while it runs, one at a time.

It is as large as the largest program wants it. When it grows, or when that program is gone, it is another block, and all
programs are told. Their outputs are never in it, so nothing is in it between two runs.

Whoever runs has taken the block, by a word that says so. A program that finds it taken by another thread returns at once, and
may be run on memory of its own instead (`recipe.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from .fork_safety import at_work, making

ALIGNMENT = 64


def aligned(size: int) -> tuple[Any, int]:
    """Memory for so many bytes, and an address in it that is a multiple of 64."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = memory.ctypes.data
    return memory, start + -start % ALIGNMENT


class Shared:
    """A block, and the programs that use it. `take` takes a word as a program does, if nobody has it; `taken` is what that
    word is then."""

    def __init__(self, take: Callable[[int], int]) -> None:
        self.user = np.zeros(ALIGNMENT // 8, np.int64)  # the word, with a cache line to itself
        self.take = take
        self.size = 0
        self.memory, self.start = aligned(0)
        self.programs: dict[int, tuple[weakref.ref[Any], int, int]] = {}  # words, which of them is the address, bytes wanted
        self.changing = False

    def admit(self, words: Any, place: int, lock: int, size: int) -> bool:
        """Let a program use the block: of its words one is where it begins, and one where the word is that says who uses it.
        False if it would have to grow while somebody uses it."""
        with at_work, making:
            number = id(words)
            self.programs[number] = (weakref.ref(words), place, size)
            if size > self.size and not self.resize(size):
                del self.programs[number]
                return False
            words[place], words[lock] = self.start, self.user.ctypes.data
            weakref.finalize(words, self.leave, number).atexit = False
            return True

    def leave(self, number: int) -> None:
        """A program is gone. This may happen anywhere, while somebody forks too: nobody is waited for."""
        self.programs.pop(number, None)
        if not self.changing and making.acquire(blocking=False):
            try:
                wanted = max((size for _, _, size in list(self.programs.values())), default=0)
                if wanted < self.size and not self.changing:
                    self.resize(wanted)
            finally:
                making.release()

    def resize(self, size: int) -> bool:
        """Another block, unless somebody uses this one. While that is done, the block counts as used."""
        if not self.take(self.user.ctypes.data):
            return False
        self.changing = True
        try:
            memory, start = aligned(size)
            for found, place, _ in list(self.programs.values()):
                words = found()
                if words is not None:
                    words[place] = start
            self.memory, self.start, self.size = memory, start, size
        finally:
            self.changing = False
            self.user[0] = 0
        return True
