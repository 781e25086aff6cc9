"""Where buffers are: one block of memory for all that lives only while a program runs.

Buffers whose lives do not overlap may share memory. Large ones are placed first, each at the lowest place that is free for all
of its life. One that is written where another is read for the last time, element by element, may take over its memory. One that
others are parts of is placed as a whole, but each part's memory is free for others before it and after it.
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
    parts: tuple[tuple[int, Life], ...] = ()  # buffers in it, with the byte at which they begin

    @property
    def pieces(self) -> tuple[tuple[int, Life], ...]:
        """What it needs, and when."""
        return self.parts or ((0, self),)

    def meets(self, other: Life) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass
class Arena:
    """Offsets of buffers, in bytes, and how much there is in all."""

    offsets: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    size: int = 0
    lives: dict[str, tuple[int, int]] = field(default_factory=dict)  # the first and the last step of each

    def place(self, life: Life, at: int, size: int) -> None:
        self.offsets[life.name] = at
        self.sizes[life.name] = size
        self.lives[life.name] = (life.first, life.last)

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
        size = rounded(life.size)
        at = inherited(life, placed, heirs)
        if at is None:
            at = lowest(life, size, placed)
        arena.place(life, at, size)
        for offset, part in life.parts:
            arena.place(part, at + offset, part.size)
        placed += [(part, at + offset, at + offset + (part.size if life.parts else size)) for offset, part in life.pieces]
        arena.size = max(arena.size, at + size)
    return arena


def rounded(size: int) -> int:
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT


def lowest(life: Life, size: int, placed: list[tuple[Life, int, int]]) -> int:
    """The lowest place where all that a buffer needs is free when it needs it."""
    at = 0
    for begin, end in sorted(forbidden(life, size, placed)):
        if at <= begin:
            break
        if at < end:
            at = rounded(end)
    return at


def forbidden(life: Life, size: int, placed: list[tuple[Life, int, int]]) -> list[tuple[int, int]]:
    """Between which places a buffer must not begin."""
    found = []
    for offset, part in life.pieces:
        length = part.size if life.parts else size
        found += [(start - offset - length, stop - offset) for other, start, stop in placed if part.meets(other)]
    return found


def inherited(life: Life, placed: list[tuple[Life, int, int]], heirs: frozenset[tuple[str, str]]) -> int | None:
    """The place of a buffer that another one takes over, or that is taken over, if nothing else is there meanwhile."""
    related = [(x, start, stop) for x, start, stop in placed if (x.name, life.name) in heirs or (life.name, x.name) in heirs]
    for relative, start, stop in related:
        others = [x for x, begin, end in placed if x is not relative and begin < stop and start < end and life.meets(x)]
        if relative.size == life.size and not others:
            return start
    return None
