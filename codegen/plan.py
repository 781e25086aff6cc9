"""Where buffers are: one block of memory for all that lives only while a program runs.

Buffers whose lives do not overlap may share memory. Large ones are placed first, each at the lowest place that is free for all
of its life. One that is written where another is read for the last time, element by element, may take over its memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ALIGNMENT = 64


@dataclass(frozen=True)
class Life:
    """A buffer of so many bytes that is used from one step to another, both included."""

    name: str
    size: int
    first: int
    last: int

    def meets(self, other: Life) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass
class Arena:
    """Offsets of buffers, in bytes, and how much there is in all."""

    offsets: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    size: int = 0
    lives: dict[str, tuple[int, int]] = field(default_factory=dict)  # the first and the last step of each

    def overlap(self, a: str, b: str) -> bool:
        """Whether two buffers share memory."""
        if a not in self.offsets or b not in self.offsets:
            return False
        return self.offsets[a] < self.offsets[b] + self.sizes[b] and self.offsets[b] < self.offsets[a] + self.sizes[a]

    def sharing(self, a: str) -> list[str]:
        """The others that share memory with a buffer."""
        if a not in self.offsets:
            return []
        start, stop, sizes = self.offsets[a], self.offsets[a] + self.sizes[a], self.sizes
        return [b for b, at in self.offsets.items() if at < stop and start < at + sizes[b] and b != a]

    def __str__(self) -> str:
        rows = [f"{self.offsets[n]:>10} {self.sizes[n]:>10}  {n}" for n in sorted(self.offsets, key=self.offsets.__getitem__)]
        return "\n".join([f"{self.size} bytes", *rows])


def planned(lives: list[Life], heirs: frozenset[tuple[str, str]] = frozenset()) -> Arena:
    """`heirs` are pairs of buffers of the same size, of which the second may be where the first is."""
    arena = Arena()
    placed: list[tuple[Life, int, int]] = []  # with where it begins and ends
    for life in sorted(lives, key=lambda x: (-x.size, x.first)):
        size = max(-(-life.size // ALIGNMENT), 1) * ALIGNMENT
        at = inherited(life, placed, heirs)
        if at is None:
            at = 0
            for start, stop in sorted((start, stop) for other, start, stop in placed if life.meets(other)):
                if at + size <= start:
                    break
                at = max(at, stop)
        placed.append((life, at, at + size))
        arena.offsets[life.name] = at
        arena.sizes[life.name] = size
        arena.lives[life.name] = (life.first, life.last)
        arena.size = max(arena.size, at + size)
    return arena


def inherited(life: Life, placed: list[tuple[Life, int, int]], heirs: frozenset[tuple[str, str]]) -> int | None:
    """The place of a buffer that another one takes over, or that is taken over, if nothing else is there meanwhile."""
    related = [(x, start, stop) for x, start, stop in placed if (x.name, life.name) in heirs or (life.name, x.name) in heirs]
    for relative, start, stop in related:
        others = [x for x, begin, end in placed if x is not relative and begin < stop and start < end and life.meets(x)]
        if relative.size == life.size and not others:
            return start
    return None
