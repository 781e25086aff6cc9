"""Memory plan: offsets of buffers in one arena, by their lifetimes.

Buffers whose lifetimes do not overlap may share memory. Large ones are placed first, each at the lowest offset that is free for
its whole lifetime. A buffer that is written elementwise where another is read for the last time may be placed onto that one (in
place). A concat layout is placed as a whole, but each part's memory is free for others outside of the part's own lifetime.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...tracer.trace.logging import counted

ALIGNMENT = 64


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `size` bytes that is used from launch `first` to launch `last`, both included."""

    name: str
    size: int
    first: int
    last: int
    parts: tuple[tuple[int, Lifetime], ...] = ()  # of a concat layout, with their offsets in bytes

    @property
    def pieces(self) -> tuple[tuple[int, Lifetime], ...]:
        """The pieces of memory that it needs, each with its own lifetime."""
        return self.parts or ((0, self),)

    def meets(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass
class MemoryPlan:
    """Offsets and sizes of all buffers in the arena, in bytes."""

    offsets: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    size: int = 0
    lives: dict[str, tuple[int, int]] = field(default_factory=dict)  # first and last launch of each

    def place(self, life: Lifetime, at: int, size: int) -> None:
        self.offsets[life.name] = at
        self.sizes[life.name] = size
        self.lives[life.name] = (life.first, life.last)

    def overlap(self, a: str, b: str) -> bool:
        """True if two buffers share memory."""
        if a not in self.offsets or b not in self.offsets:
            return False
        return self.offsets[a] < self.offsets[b] + self.sizes[b] and self.offsets[b] < self.offsets[a] + self.sizes[a]

    def sharing(self, a: str) -> list[str]:
        """The other buffers that share memory with one."""
        if a not in self.offsets:
            return []
        start, stop, sizes = self.offsets[a], self.offsets[a] + self.sizes[a], self.sizes
        return [b for b, at in self.offsets.items() if at < stop and start < at + sizes[b] and b != a]

    def summary(self) -> str:
        return f"{counted(len(self.offsets), 'buffer')} in {self.size:,} bytes"

    def __str__(self) -> str:
        rows = [f"{self.offsets[n]:>10} {self.sizes[n]:>10}  {n}" for n in sorted(self.offsets, key=self.offsets.__getitem__)]
        return "\n".join([f"{self.size} bytes", *rows])


def plan_memory(lives: list[Lifetime], in_place: frozenset[tuple[str, str]] = frozenset()) -> MemoryPlan:
    """Place all buffers. `in_place` are pairs of buffers of the same size, of which the second may overwrite the first."""
    arena = MemoryPlan()
    placed: list[tuple[Lifetime, int, int]] = []  # with begin and end
    for life in sorted(lives, key=lambda x: (-x.size, x.first)):
        size = align(life.size)
        at = in_place_offset(life, placed, in_place)
        if at is None:
            at = first_fit(life, size, placed)
        arena.place(life, at, size)
        for offset, part in life.parts:
            arena.place(part, at + offset, part.size)
        placed += [(part, at + offset, at + offset + (part.size if life.parts else size)) for offset, part in life.pieces]
        arena.size = max(arena.size, at + size)
    return arena


def align(size: int) -> int:
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT


def first_fit(life: Lifetime, size: int, placed: list[tuple[Lifetime, int, int]]) -> int:
    """The lowest offset at which all pieces of a buffer are free during their lifetimes."""
    at = 0
    for begin, end in sorted(conflicts(life, size, placed)):
        if at <= begin:
            break
        if at < end:
            at = align(end)
    return at


def conflicts(life: Lifetime, size: int, placed: list[tuple[Lifetime, int, int]]) -> list[tuple[int, int]]:
    """The open intervals of offsets at which a buffer would overlap another one."""
    found = []
    for offset, part in life.pieces:
        length = part.size if life.parts else size
        found += [(start - offset - length, stop - offset) for other, start, stop in placed if part.meets(other)]
    return found


def in_place_offset(life: Lifetime, placed: list[tuple[Lifetime, int, int]], pairs: frozenset[tuple[str, str]]) -> int | None:
    """The offset of an in-place partner that is placed already, if nothing else is there meanwhile; else None."""
    related = [(x, start, stop) for x, start, stop in placed if (x.name, life.name) in pairs or (life.name, x.name) in pairs]
    for relative, start, stop in related:
        others = [x for x, begin, end in placed if x is not relative and begin < stop and start < end and life.meets(x)]
        if relative.size == life.size and not others:
            return start
    return None
