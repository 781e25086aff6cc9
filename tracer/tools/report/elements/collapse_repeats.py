"""Collapse repeated kernels, such as those of a network's layers, so that the drawing of a large program stays
readable.

First neighbours that run the same ops on different tensors (an optimizer's updates), then sequences that repeat as a whole (the
layers, forwards and backwards).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIN_REPEATS = 3  # from this many on, equal neighbours become one


@dataclass
class Group:
    """Kernels drawn as one box, by their indices in the program."""

    members: list[int] = field(default_factory=list)
    repeat: int = -1  # index of its repetition


def folded(kernels: list[dict[str, Any]]) -> list[Group]:
    """Group all kernels, in the order of their first members."""
    single = neighbours(kernels)
    names = [name_of([kernels[i] for i in g.members]) for g in single]
    found: list[Group] = []
    at = 0
    for number, (start, period, times) in enumerate(repetitions(names)):
        found += single[at:start]
        for i in range(start, start + period):
            members = [m for n in range(times) for m in single[i + n * period].members]
            found.append(Group(members, number))
        at = start + period * times
    return found + single[at:]


def name_of(kernels: list[dict[str, Any]]) -> str:
    """Name of a group, without its epilogues, which differ at the ends of a network."""
    first = kernels[0]
    return str(first["what"]).partition(", then")[0] if len(kernels) == 1 else f"several: {sorted(set(first['ops']))}"


def repetitions(names: list[str]) -> list[tuple[int, int, int]]:
    """Find sequences that repeat back to back: start, length and count. The longest first, then those
    that fit around it; single kernels are not counted."""
    found: list[tuple[int, int, int]] = []

    def search(low: int, high: int) -> None:
        best = (0, 0, 0)
        for period in range(2, (high - low) // 2 + 1):
            same = 0  # consecutive kernels equal to the one a period later
            for i in range(low, high - period + 1):
                if i < high - period and names[i] == names[i + period]:
                    same += 1
                    continue
                times = same // period + 1
                if times > 1 and varied(names, i - same, period) and period * times > best[1] * best[2]:
                    best = (i - same, period, times)
                same = 0
        start, period, times = best
        if times:
            search(low, start)
            found.append(best)
            search(start + period * times, high)

    search(0, len(names))
    return found


def varied(names: list[str], start: int, period: int) -> bool:
    return len(set(names[start : start + period])) > 1


def neighbours(kernels: list[dict[str, Any]]) -> list[Group]:
    """Group equal neighbours; every other kernel is its own group."""
    found: list[Group] = []
    i = 0
    while i < len(kernels):
        j = i + 1
        while j < len(kernels) and alike(kernels[i], kernels[j]):
            j += 1
        if j - i >= MIN_REPEATS:
            found.append(Group(list(range(i, j))))
        else:
            found += [Group([n]) for n in range(i, j)]
        i = j
    return found


def alike(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """True if two loop kernels run the same set of ops."""
    return a["kind"] == b["kind"] == "loops" and set(a["ops"]) == set(b["ops"])
