"""Arena of native programs (`codegen/program/arena.py`), which they take without Python.

A program takes the block by an atomic word. One that finds it taken by another thread returns at once, and may be run on
memory of its own instead (`codegen/llvm/executable.py`). Programs hold the block's address: when it grows, or shrinks because
the largest program is gone, the new address is written into all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ...program.arena import SharedArena
from .fork_safety import init_lock, no_fork

ALIGNMENT = 64


def allocate_aligned(size: int) -> tuple[Any, int]:
    """Allocate `size` bytes; returns the array that owns the memory, and an address in it that is a multiple of 64."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = memory.ctypes.data
    return memory, start + -start % ALIGNMENT


class HostArena(SharedArena):
    """The block of this process, and the programs that use it. `take(address)` takes the word at an address as native code
    does; 0 if another thread has it."""

    def __init__(self, take: Callable[[int], int]) -> None:
        super().__init__()
        self.user = np.zeros(ALIGNMENT // 8, np.int64)  # the word, with a cache line to itself
        self.take = take
        self.programs: dict[int, tuple[weakref.ref[Any], int, int]] = {}  # words, which of them is the address, bytes needed
        self.changing = False
        self.replace(0)

    @property
    def start(self) -> int:
        """The address of the first byte."""
        return int(self.block[1])

    def allocate(self, size: int) -> tuple[Any, int]:
        return allocate_aligned(size)

    def announce(self, block: tuple[Any, int]) -> None:
        for found, place, _ in list(self.programs.values()):
            words = found()
            if words is not None:
                words[place] = block[1]

    def admit(self, words: Any, place: int, lock: int, size: int) -> bool:
        """Let a program use the block: `words[place]` is set to the block's address, `words[lock]` to that of the word by which
        it is taken. False if the block would have to grow while a program uses it."""
        with no_fork, init_lock:
            number = id(words)
            self.programs[number] = (weakref.ref(words), place, size)
            if size > self.size and not self.resize(size):
                del self.programs[number]
                return False
            words[place], words[lock] = self.start, self.user.ctypes.data
            weakref.finalize(words, self.leave, number).atexit = False
            return True

    def leave(self, number: int) -> None:
        """Forget a program that was collected. This may happen anywhere, even during a fork, so it must not wait."""
        self.programs.pop(number, None)
        if not self.changing and init_lock.acquire(blocking=False):
            try:
                wanted = max((size for _, _, size in list(self.programs.values())), default=0)
                if wanted < self.size and not self.changing:
                    self.resize(wanted)
            finally:
                init_lock.release()

    def resize(self, size: int) -> bool:
        """Replace the block; False if a program uses it. Meanwhile it counts as in use."""
        if not self.take(self.user.ctypes.data):
            return False
        self.changing = True
        try:
            self.replace(size)
        finally:
            self.changing = False
            self.user[0] = 0
        return True
