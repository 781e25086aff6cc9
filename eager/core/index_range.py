"""Index ranges: minimum and maximum of integer arrays on a GPU, cached when they are transferred from the CPU.

Indices are mostly made on the CPU and used on the device, where they have to be checked against bounds. Asking the device waits
for all work queued before; the CPU's answer costs next to nothing. Later writes show in the memory's version counter.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from .tensor import Tensor, versions_of

MAX_SCANNED_ELEMENTS = 1 << 22  # a batch, not a data set
_known: dict[int, tuple[Any, list[int], int, int, int]] = {}  # by id: array, version counter, version, min, max


def note_transfer(t: Tensor, source: Any) -> None:
    """Cache the range of a GPU tensor that was copied from a CPU array."""
    if type(source) is not np.ndarray or source.dtype.kind != "i" or not 0 < source.size <= MAX_SCANNED_ELEMENTS:
        return
    key, box = id(t.tj_array), versions_of(t)
    alive = weakref.ref(t.tj_array, lambda _: _known.pop(key, None))
    _known[key] = alive, box, box[0], int(source.min()), int(source.max())


def known_range(array: Any) -> tuple[int, int] | None:
    """Return the minimum and maximum of an array, if known without asking a device."""
    found = _known.get(id(array))
    if found is None:
        return None
    alive, box, version, least, largest = found
    return (least, largest) if alive() is array and box[0] == version else None
