"""Detect by reference counts whether other code refers to a tensor or an array.

The count of an otherwise unreferenced object depends on how the interpreter holds variables and arguments, which differs
between Python versions. So each baseline here is measured once, at import, by the same function that is later compared with it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from ...eager.arrays.devices import module_of
from ...eager.core.tensor import Tensor, wrap

references = sys.getrefcount


def externally_referenced(results: list[int], tensors: list[Any], held: list[Any], tensor: int, array: int) -> list[int]:
    """Select the tensors of a list that have more references than `tensor`, or whose array in `held` has more than `array`."""
    return [n for n in results if (t := tensors[n]) is not None and (references(t) > tensor or references(held[n]) > array)]


def reference_counts(tensors: list[Any], held: list[Any], n: int) -> tuple[int, int]:
    """Return the reference counts of a tensor in a list and of its array in another."""
    t = tensors[n]
    return references(t), references(held[n])


def array_count(arrays: list[Any], slot: int) -> int:
    """Return the reference count of an array in a list."""
    array = arrays[slot]
    return references(array)


def base_count(arrays: list[Any], slot: int) -> int:
    """Return the reference count of the base of a view in a list."""
    base = arrays[slot].base
    return references(base)


def memory_counts(arrays: list[Any], slot: int) -> tuple[int, int]:
    """Return the reference counts of a CuPy array's memory pointer and of the memory itself. Every array on a memory refers to
    it, some through others, and arrays need not know of each other."""
    data = arrays[slot].data
    return references(data), references(data.mem)


@functools.cache
def _lone_on_device(xp: Any, view: bool) -> tuple[int, int]:
    """Measure these counts for an array without other references, or for the only view of one."""
    arrays = [xp.empty(2)[:1] if view else xp.empty(2)]
    return memory_counts(arrays, 0)


def lone_on_device(arrays: list[Any], slot: int, hidden: int) -> bool:
    """True if the memory of a CuPy array is visible only through that array, through its base (which has no other reference),
    and through `hidden` hidden views."""
    view = arrays[slot].base is not None
    if view and (arrays[slot].base.base is not None or base_count(arrays, slot) > LONE_BASE):
        return False
    pointers, memory = memory_counts(arrays, slot)
    most = _lone_on_device(module_of(arrays[slot]), view)
    return pointers <= most[0] and memory <= most[1] + hidden


def _lone() -> tuple[list[Tensor], list[Any]]:
    t = wrap(np.empty(1))
    return [t], [t.tj_array]


def _least(which: int) -> int:
    """Return the smallest count at which `externally_referenced` reports no other reference to a tensor, or to its array."""
    tensors, held = _lone()
    for n in range(10):
        if not externally_referenced([0], tensors, held, *((n, 99) if which == 0 else (99, n))):
            return n
    raise RuntimeError(f"Python {sys.version.split()[0]} counts references in a way that compile() does not know")


LONE = _least(0), _least(1)  # baselines for `externally_referenced`
LONE_COUNTS = reference_counts(*_lone(), 0)
_one = _lone()
LONE_ARRAY = array_count(_one[1], 0)  # one reference from the tensor and one from the list
LONE_BASE = base_count([np.empty(2)[:1]], 0)
