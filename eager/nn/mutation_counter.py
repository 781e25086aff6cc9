"""How often anything about modules has changed in this process: a setting, a child, a hook.

A compiled function skips the code of library modules as long as they are what they were when it was recorded. That this count
has not moved is one comparison that stands for all of them; when it has, they are looked at one by one.
"""

from __future__ import annotations

import itertools

COUNT = [0]
_numbers = itertools.count(1)


def note_change() -> None:
    COUNT[0] = next(_numbers)
