"""How often anything about modules has changed in this process: a setting, a child, a hook, a function that layers call.

A compiled function skips the code of library modules as long as they are what they were when it was recorded. That this count
has not moved is one comparison that stands for all of them; when it has, they are looked at one by one.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

COUNT = [0]
PATCHED: set[str] = set()  # names of nn.functional that are not what the library put there
_numbers = itertools.count(1)
_originals: dict[str, Any] = {}


def note_change() -> None:
    COUNT[0] = next(_numbers)


class Watched(ModuleType):
    """A namespace whose functions layers call by name, so that it matters if somebody puts others there."""

    def __setattr__(self, name: str, value: Any) -> None:
        _originals.setdefault(name, self.__dict__.get(name))
        if value is _originals[name]:
            PATCHED.discard(name)
        else:
            PATCHED.add(name)
        note_change()
        super().__setattr__(name, value)
