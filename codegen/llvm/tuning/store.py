"""What tuning has found, and is remembered: in the process, and in one small entry of the disk cache.

This says whether a program from disk would be made of the same plans now. What plans are is `tuned.py`'s to know, and a program
that comes from disk need not import that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache as once

from ...program import disk_cache as disk
from ...program.cache_key import source
from ..runtime import jit
from ..ir.target import Target

MODEL = ""  # stands for the model's plan


@dataclass(frozen=True)
class Outcome:
    """What tuning a shape has found."""

    plan: str  # as `spelled`, or MODEL
    gain: float  # how many times as quick as the model's


class Remembered:
    """The outcomes for a CPU, by shape as it is `spelled`."""

    def __init__(self, target: Target) -> None:
        self.key = disk.key("plans", source("llvm"), *jit.versions(), str(target), target.features)
        self.outcomes: dict[str, Outcome] = {}
        self.read()

    def read(self) -> None:
        """Take in what is on disk; other processes write there, too."""
        data = disk.get(self.key)
        if data is not None:
            self.outcomes.update(outcomes_of(data))

    def add(self, shape: str, outcome: Outcome) -> None:
        self.read()
        self.outcomes[shape] = outcome
        rows = {name: [x.plan, x.gain] for name, x in self.outcomes.items()}
        disk.put(self.key, json.dumps(rows).encode())

    def plan(self, shape: str) -> str:
        found = self.outcomes.get(shape)
        return MODEL if found is None else found.plan


def outcomes_of(data: bytes) -> dict[str, Outcome]:
    """What an entry says; nothing, if it is none of these."""
    try:
        return {str(name): Outcome(str(plan), float(gain)) for name, (plan, gain) in json.loads(data).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def remembered(target: Target) -> Remembered:
    """The outcomes that the environment's folder has for a CPU: read once."""
    folder = disk.current()
    return _remembered(target, None if folder is None else str(folder.folder))


@once
def _remembered(target: Target, folder: str | None) -> Remembered:
    return Remembered(target)


def agree(used: Mapping[str, str], target: Target, tune: bool) -> bool:
    """Whether a program that was made by some plans would be made by them now; and if it is to be tuned, whether it is."""
    if not used:
        return True
    known = remembered(target)
    if tune and not all(name in known.outcomes for name in used):
        return False
    if all(known.plan(name) == plan for name, plan in used.items()):
        return True
    known.read()  # another process may have tuned them, and made it
    return all(known.plan(name) == plan for name, plan in used.items())
