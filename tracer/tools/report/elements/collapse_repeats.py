"""Kernels that come again and again, such as those of a network's layers, as one: so that the drawing of a large program can be
read.

First neighbours that do the same ops on different tensors (an optimizer's updates), then runs that are repeated as a whole (the
layers, forwards and backwards).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FEWEST = 3  # neighbours that do the same become one


@dataclass
class Group:
    """Kernels that are drawn as one box: their places in the program."""

    members: list[int] = field(default_factory=list)
    repeat: int = -1  # the number of the repetition it belongs to


def folded(kernels: list[dict[str, Any]]) -> list[Group]:
    """All kernels, in groups, in the order of their first members."""
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
    """What a group is, without what was fused into its kernels: that differs at the ends of a network."""
    first = kernels[0]
    return str(first["what"]).partition(", then")[0] if len(kernels) == 1 else f"several: {sorted(set(first['ops']))}"


def repetitions(names: list[str]) -> list[tuple[int, int, int]]:
    """Runs that are repeated at once: where they begin, how long one is, and how often it comes. The longest first, then those
    that fit around it; of one kernel alone there are none."""
    found: list[tuple[int, int, int]] = []

    def search(low: int, high: int) -> None:
        best = (0, 0, 0)
        for period in range(2, (high - low) // 2 + 1):
            same = 0  # how many in a row are equal to the one a period further on
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
    """Several in a row that do the same are a group; each of the others is one."""
    found: list[Group] = []
    i = 0
    while i < len(kernels):
        j = i + 1
        while j < len(kernels) and alike(kernels[i], kernels[j]):
            j += 1
        if j - i >= FEWEST:
            found.append(Group(list(range(i, j))))
        else:
            found += [Group([n]) for n in range(i, j)]
        i = j
    return found


def alike(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether loops do the same ops, however often."""
    return a["kind"] == b["kind"] == "loops" and set(a["ops"]) == set(b["ops"])
