"""Who else refers to a tensor or an array, by Python's reference counts.

What the counts are when nobody else does depends on how the interpreter holds variables and arguments, which differs between
Python versions: each number here is measured once, at import, by the very function that is compared with it later.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..eager.tensor import Tensor, wrap

references = sys.getrefcount


def referred(results: list[int], tensors: list[Any], held: list[Any], tensor: int, array: int) -> list[int]:
    """Of some tensors in a list, whose arrays are in another, those that more refers to than these numbers."""
    return [n for n in results if (t := tensors[n]) is not None and (references(t) > tensor or references(held[n]) > array)]


def counts(tensors: list[Any], held: list[Any], n: int) -> tuple[int, int]:
    """How often a tensor in a list and its array in another are referred to."""
    t = tensors[n]
    return references(t), references(held[n])


def array_count(arrays: list[Any], slot: int) -> int:
    """How often an array in a list is referred to."""
    array = arrays[slot]
    return references(array)


def base_count(arrays: list[Any], slot: int) -> int:
    """How often the array that a view in a list shows is referred to."""
    base = arrays[slot].base
    return references(base)


def _lone() -> tuple[list[Tensor], list[Any]]:
    t = wrap(np.empty(1))
    return [t], [t._array]


def _least(which: int) -> int:
    """The least number for which `referred` finds that nobody else refers to a tensor, or to its array."""
    tensors, held = _lone()
    for n in range(10):
        if not referred([0], tensors, held, *((n, 99) if which == 0 else (99, n))):
            return n
    raise RuntimeError(f"Python {sys.version.split()[0]} counts references in a way that compile() does not know")


LONE = _least(0), _least(1)  # for `referred`
LONE_COUNTS = counts(*_lone(), 0)
_one = _lone()
LONE_ARRAY = array_count(_one[1], 0)  # the tensor and the list
LONE_BASE = base_count([np.empty(2)[:1]], 0)
