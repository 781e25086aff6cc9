"""Arena that programs share: one block of memory in which each keeps what lives only while it runs, one program at a time.

The block is as large as the largest program needs. To grow, it is replaced by another block: outputs are never in it, so
nothing has to be copied. The targets differ in who learns the new address, and when:

- on the CPU native code takes the block, by an atomic word, without Python; so programs are told the new address at once
  (`llvm/runtime/arena.py`), which is why the old block stays until all of them know;
- on a GPU Python takes the block and launches asynchronously; so a program asks for the address when it runs, and the old
  block is released first, once the device has finished with it, as both might not fit (`triton/runtime/arena.py`).
"""

from __future__ import annotations

from typing import Any


class SharedArena:
    """A block that grows. Whoever replaces it must have taken it, so that no program runs in it meanwhile."""

    def __init__(self) -> None:
        self.block: Any = None
        self.size = -1  # bytes; -1 without a block

    def allocate(self, size: int) -> Any:
        """A new block of so many bytes."""
        raise NotImplementedError

    def release(self) -> None:
        """Called before another block is allocated."""

    def announce(self, block: Any) -> None:
        """Called with a new block before the old one goes."""

    def replace(self, size: int) -> None:
        """Move to a block of so many bytes. If that cannot be allocated the error goes to the caller."""
        self.release()
        block = self.allocate(size)
        self.announce(block)
        self.block, self.size = block, size
