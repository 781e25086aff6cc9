"""Tuning store: outcomes of tuning, in the process and in one small entry of the disk cache.

`plans_are_current` tells whether an executable from disk would be built with the same plans now. This module knows plans as
text only, so that loading an executable need not import `plans.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache as once

from ...program import disk_cache as disk
from ...program.cache_key import source_hash
from ..ir.target import Target
from ..runtime import jit

MODEL_PLAN = ""  # stands for "the model's plan"


@dataclass(frozen=True)
class Outcome:
    """Result of tuning a shape."""

    plan: str  # as encoded by `plans.encode_fields`, or MODEL_PLAN
    gain: float  # speedup over the model's plan


class TuningStore:
    """Outcomes for one CPU, by encoded shape."""

    def __init__(self, target: Target) -> None:
        self.key = disk.key("plans", source_hash("llvm"), *jit.versions(), str(target), target.features)
        self.outcomes: dict[str, Outcome] = {}
        self.read()

    def read(self) -> None:
        """Merge the entry on disk, which other processes write, too."""
        data = disk.get(self.key)
        if data is not None:
            self.outcomes.update(parse_outcomes(data))

    def add(self, shape: str, outcome: Outcome) -> None:
        self.read()
        self.outcomes[shape] = outcome
        rows = {name: [x.plan, x.gain] for name, x in self.outcomes.items()}
        disk.put(self.key, json.dumps(rows).encode())

    def plan(self, shape: str) -> str:
        found = self.outcomes.get(shape)
        return MODEL_PLAN if found is None else found.plan


def parse_outcomes(data: bytes) -> dict[str, Outcome]:
    """Outcomes of an entry; empty if it is malformed."""
    try:
        return {str(name): Outcome(str(plan), float(gain)) for name, (plan, gain) in json.loads(data).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def tuning_store(target: Target) -> TuningStore:
    """The store of the current cache folder for a CPU: read once."""
    folder = disk.current()
    return _tuning_store(target, None if folder is None else str(folder.folder))


@once
def _tuning_store(target: Target, folder: str | None) -> TuningStore:
    return TuningStore(target)


def plans_are_current(used: Mapping[str, str], target: Target, tune: bool) -> bool:
    """True if an executable built with the plans `used` would be built with the same plans now; with `tune`, also only if
    all its shapes are tuned."""
    if not used:
        return True
    known = tuning_store(target)
    if tune and not all(name in known.outcomes for name in used):
        return False
    if all(known.plan(name) == plan for name, plan in used.items()):
        return True
    known.read()  # another process may have tuned the shapes, and built the executable
    return all(known.plan(name) == plan for name, plan in used.items())
