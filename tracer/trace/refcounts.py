"""Who else refers to a tensor or an array, by Python's reference counts.

What the counts are when nobody else does depends on how the interpreter holds variables and arguments, which differs between
Python versions: each number here is measured once, at import, by the very function that is compared with it later.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from ...eager.arrays.devices import module_of
from ...eager.core.tensor import Tensor, wrap

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


def memory_counts(arrays: list[Any], slot: int) -> tuple[int, int]:
    """How often what says where an array of CuPy is, and the memory itself, are referred to: each array on a memory does that,
    some through others, whether it knows of the others or not."""
    data = arrays[slot].data
    return references(data), references(data.mem)


@functools.cache
def _lone_on_device(xp: Any, view: bool) -> tuple[int, int]:
    """These counts for an array that is alone, or for the only view of one."""
    arrays = [xp.empty(2)[:1] if view else xp.empty(2)]
    return memory_counts(arrays, 0)


def lone_on_device(arrays: list[Any], slot: int, hidden: int) -> bool:
    """Whether nothing shows the memory of an array of CuPy but that, what it is itself a view of, which nobody else has, and so
    many hidden views."""
    view = arrays[slot].base is not None
    if view and (arrays[slot].base.base is not None or base_count(arrays, slot) > LONE_BASE):
        return False
    pointers, memory = memory_counts(arrays, slot)
    most = _lone_on_device(module_of(arrays[slot]), view)
    return pointers <= most[0] and memory <= most[1] + hidden


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
