"""Memory while a call is recorded. A recorder keeps every tensor that it has seen, so that what it knows them by, their `id`,
stays theirs. Their arrays it needs no longer than anybody else: once nothing but the recorder refers to a tensor and to its
array, the array is let go, as it would be without a recorder. Otherwise a recorded call would need the memory of all that it
ever made, and most of its time would go into getting that from the system."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ...eager.arrays.devices import device_of
from ...eager.arrays.deferred import Pending, form_of
from ...eager.core.tensor import Tensor, wrap
from ..trace.refcounts import array_count, references

FEWEST, EACH = 1 << 24, 1 << 16  # bytes that are made before all values are looked at again: at least, and for each of them


def count_in(items: list[Any], n: int) -> int:
    """How often something in a list is referred to."""
    item = items[n]
    return references(item)


def pending_count(t: Tensor) -> int:
    """How often what stands for a tensor's array is referred to."""
    pending = t._array
    return references(pending)


def is_time(recorder: Any) -> bool:
    """Whether so much was made that looking is worth it."""
    made: int = recorder.bytes
    return made > FEWEST and made > EACH * len(recorder.trace.values)


def let_go(recorder: Any, views: Counter[int]) -> None:
    """Drop the arrays of tensors that nobody else has. `views` counts, by value, the views of a tensor whose arrays were
    dropped: these still refer to it, but nobody can ask them for it."""
    tensors, arrays, values, outside = recorder.tensors, recorder.arrays, recorder.trace.values, recorder.trace.outside
    hidden = Counter(map(id, recorder.concealed))
    last = len(values) - 1
    makers: dict[int, int] = {}  # of each slot: its first value
    for n in range(recorder.first, last + 1):
        makers.setdefault(values[n].slot, n)
    lone: dict[int, list[int]] = {}  # of slots that nobody was found to see: their values
    seen: set[int] = set()
    for n in range(last, recorder.first - 1, -1):  # views before what they are views of
        slot = values[n].slot
        if slot in outside or slot in seen or arrays[slot] is None:
            continue
        if tensors[n] is not None:
            if count_in(tensors, n) > LONE_TENSOR + hidden[id(tensors[n])] + views[n]:
                seen.add(slot)
                continue
            lone.setdefault(slot, []).append(n)
        if makers[slot] == n and is_lone(tensors, arrays, slot, lone.get(slot, [])):
            drop(recorder, slot, lone[slot], views)


def is_lone(tensors: list[Any], arrays: list[Any], slot: int, values: list[int]) -> bool:
    """Whether an array is referred to by some values alone, each by itself or by what stands for it."""
    pending = Counter(id(tensors[n]._array) for n in values if isinstance(tensors[n]._array, Pending))
    for n in values:
        if isinstance(tensors[n]._array, Pending):
            if pending_count(tensors[n]) > LONE_PENDING - 1 + pending[id(tensors[n]._array)]:
                return False
            if tensors[n]._array.real is not arrays[slot]:
                return False
        elif tensors[n]._array is not arrays[slot]:
            return False
    holders = len(pending) + len(values) - pending.total()
    return holders > 0 and array_count(arrays, slot) <= LONE_ARRAY - 1 + holders


def drop(recorder: Any, slot: int, values: list[int], views: Counter[int]) -> None:
    del recorder.slot_of[id(recorder.arrays[slot])]
    recorder.arrays[slot] = None
    for n in values:
        t = recorder.tensors[n]
        base = -1 if t._base is None else recorder.number.get(id(t._base), -1)
        if base >= 0 and recorder.tensors[base] is t._base:
            views[base] += 1
        if isinstance(t._array, Pending):
            t._array.real = None
        else:
            t._array = recorder.trace.values[n].form(None, slot)
            t._array.real = None


def _measured() -> tuple[int, int, int]:
    """These counts where nobody else refers to anything, but for the recorder's list of hidden tensors."""
    arrays = [np.empty(1)]
    tensors = [wrap(form_of(arrays[0], device_of(arrays[0]))(None, 0, arrays[0]))]
    return count_in(tensors, 0), pending_count(tensors[0]), array_count(arrays, 0)


LONE_TENSOR, LONE_PENDING, LONE_ARRAY = _measured()
