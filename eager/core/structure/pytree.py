"""Nested containers as trees: flatten lists, tuples and dicts to leaves, and rebuild them.

Two views, with the strictness that their callers need. `leaves`, `containers`, `replace_leaves` and `map_leaves` go into
subclasses too (named tuples among them): skipped calls guard the exact classes separately. `flatten` goes into exact lists,
tuples and dicts only, and returns the structure, which compares equal exactly when two calls are nested the same way, dict keys
included.

Walks with another meaning stay with their owners: snapshots keep the class of a dict (`eager/utils/training_snapshot.py`), an
optimizer's state is converted by its keys (`Optimizer._loaded`), guards compare copies (`tracer/guards/reachable_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def leaves(x: Any) -> Iterator[Any]:
    """Yield everything that is not a list, tuple or dict, in order."""
    if isinstance(x, (list, tuple)):
        for part in x:
            yield from leaves(part)
    elif isinstance(x, dict):
        for part in x.values():
            yield from leaves(part)
    else:
        yield x


def containers(x: Any) -> Iterator[Any]:
    """Yield the lists, tuples and dicts themselves, outer ones first."""
    if isinstance(x, (list, tuple, dict)):
        yield x
        for part in x.values() if isinstance(x, dict) else x:
            yield from containers(part)


def replace_leaves(x: Any, parts: Iterator[Any]) -> Any:
    """Copy nested containers, taking each leaf from `parts`."""
    if isinstance(x, (list, tuple)):
        found = [replace_leaves(part, parts) for part in x]
        return type(x)(*found) if hasattr(x, "_fields") else type(x)(found)
    return {k: replace_leaves(v, parts) for k, v in x.items()} if isinstance(x, dict) else next(parts)


def map_leaves(function: Callable[[Any], Any], x: Any) -> Any:
    """Copy nested containers, with `function` of each leaf."""
    return replace_leaves(x, map(function, leaves(x)))


def flatten(x: Any, found: list[Any]) -> Any:
    """Append the leaves to `found` and return the structure: None for a leaf, else (type, structure of each part...)."""
    if type(x) in (tuple, list):
        return (type(x), *[flatten(v, found) for v in x])
    if type(x) is dict:
        return (dict, *[(k, flatten(v, found)) for k, v in x.items()])
    found.append(x)
    return None


def unflatten(structure: Any, parts: Iterator[Any]) -> Any:
    """Build the containers of a structure that `flatten` returned, with leaves from `parts`."""
    if structure is None:
        return next(parts)
    kind = structure[0]
    if kind is dict:
        return {k: unflatten(s, parts) for k, s in structure[1:]}
    return kind([unflatten(s, parts) for s in structure[1:]])
