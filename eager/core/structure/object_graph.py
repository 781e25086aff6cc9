"""Depth-first traversal of an object graph, with rules that the caller gives for what to follow.

Guards walk everything that a function can reach by name (`tracer/guards/reachable_state.py`), `diff` what a call may change
(`tracer/tools/diff/state_snapshot.py`), `time_travel` what a training step changes (`eager/utils/training_snapshot.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def walk_objects(
    starts: Iterable[Any],
    is_skipped: Callable[[Any], bool],
    children: Callable[[Any], Iterable[Any]],
    revisited: set[int] | None = None,
) -> Iterator[Any]:
    """Walk an object graph depth first and yield each object once.

    `children` says where to go on and is called after an object was yielded. The walk keeps all objects alive until it is done,
    so that no id is used twice. `revisited` gets the ids of objects that were met more than once.
    """
    seen: dict[int, Any] = {}
    stack = list(starts)
    while stack:
        x = stack.pop()
        if is_skipped(x):
            continue
        if id(x) in seen:
            if revisited is not None:
                revisited.add(id(x))
            continue
        seen[id(x)] = x
        yield x
        stack.extend(children(x))
