"""A counter of mutations of modules in this process: a setting, a child, a hook.

A compiled function skips the code of library modules as long as they are unchanged since it was recorded. One comparison of
this counter covers all of them; only when it has moved are they checked one by one.
"""

from __future__ import annotations

import itertools

MUTATION_COUNT = [0]
_numbers = itertools.count(1)


def count_mutation() -> None:
    MUTATION_COUNT[0] = next(_numbers)
