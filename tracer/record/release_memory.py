"""Release memory while a call is recorded. A recorder keeps every tensor it has seen, because it identifies tensors by `id`,
which must stay unique. It needs their arrays no longer than other code does: once only the recorder refers to a tensor and to
its array, the array is released, as it would be without a recorder. Otherwise a recorded call would need the memory of
everything it ever produced, and would spend most of its time allocating it from the system."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ...eager.arrays.deferred import DeferredArray, form_of
from ...eager.arrays.devices import device_of
from ...eager.core.tensor import Tensor, wrap
from ..trace.refcounts import array_count, references

# Bytes allocated before all values are scanned again: minimum, and per value.
MIN_BYTES, MIN_BYTES_PER_VALUE = 1 << 24, 1 << 16


def count_in(items: list[Any], n: int) -> int:
    """Return the reference count of an item of a list."""
    item = items[n]
    return references(item)


def pending_count(t: Tensor) -> int:
    """Return the reference count of the deferred array of a tensor."""
    pending = t.tj_array
    return references(pending)


def should_release(recorder: Any) -> bool:
    """True if enough was allocated for a scan to be worth it."""
    made: int = recorder.bytes
    return made > MIN_BYTES and made > MIN_BYTES_PER_VALUE * len(recorder.trace.values)


def release_unreferenced(recorder: Any, views: Counter[int]) -> None:
    """Release the arrays of tensors without other references. `views` counts, by value, the views of a tensor whose arrays were
    released: these still refer to it, but it cannot be reached through them."""
    tensors, arrays, values, outside = recorder.tensors, recorder.arrays, recorder.trace.values, recorder.trace.outside
    hidden = Counter(map(id, recorder.concealed))
    last = len(values) - 1
    makers: dict[int, int] = {}  # slot -> its first value
    for n in range(recorder.first, last + 1):
        makers.setdefault(values[n].slot, n)
    lone: dict[int, list[int]] = {}  # slots without other references -> their values
    seen: set[int] = set()
    for n in range(last, recorder.first - 1, -1):  # views before their bases
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
    """True if only some values refer to an array, each directly or through its deferred array."""
    pending = Counter(id(tensors[n].tj_array) for n in values if isinstance(tensors[n].tj_array, DeferredArray))
    for n in values:
        if isinstance(tensors[n].tj_array, DeferredArray):
            if pending_count(tensors[n]) > LONE_PENDING - 1 + pending[id(tensors[n].tj_array)]:
                return False
            if tensors[n].tj_array.real is not arrays[slot]:
                return False
        elif tensors[n].tj_array is not arrays[slot]:
            return False
    holders = len(pending) + len(values) - pending.total()
    return holders > 0 and array_count(arrays, slot) <= LONE_ARRAY - 1 + holders


def drop(recorder: Any, slot: int, values: list[int], views: Counter[int]) -> None:
    del recorder.slot_of[id(recorder.arrays[slot])]
    recorder.arrays[slot] = None
    for n in values:
        t = recorder.tensors[n]
        base = -1 if t.tj_base is None else recorder.number.get(id(t.tj_base), -1)
        if base >= 0 and recorder.tensors[base] is t.tj_base:
            views[base] += 1
        if isinstance(t.tj_array, DeferredArray):
            t.tj_array.real = None
        else:
            t.tj_array = recorder.trace.values[n].form(None, slot)
            t.tj_array.real = None


def _measured() -> tuple[int, int, int]:
    """Measure these counts without any other reference, except the recorder's list of hidden tensors."""
    arrays = [np.empty(1)]
    tensors = [wrap(form_of(arrays[0], device_of(arrays[0]))(None, 0, arrays[0]))]
    return count_in(tensors, 0), pending_count(tensors[0]), array_count(arrays, 0)


LONE_TENSOR, LONE_PENDING, LONE_ARRAY = _measured()
