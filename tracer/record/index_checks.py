"""Bounds checks of indices, run at the op's line in Python rather than when the program runs, so that an IndexError is raised
at its own line. Pending indices are computed first, unless they are constants of the recording or views of a computed tensor
whose elements are all in range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...eager.arrays.deferred import DeferredArray
from ...eager.arrays.devices import module_of
from ...eager.core.index_range import known_range
from ...eager.ops.indexing.embedding import check_range
from ...eager.ops.indexing.primitives import wrap_and_check, wrap_and_check_all
from ...eager.ops.neural.cross_entropy import class_index


class IndexCheck:
    """Bounds check of an op: the inputs that it reads, and how."""

    def __init__(self, look: Callable[..., None], first: int, last: int | None) -> None:
        self.look = look
        self.first = first
        self.last = last

    def settled(self, frame: Any, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> bool:
        """True if the indices are in range; raises IndexError if they are not. False if that is unknown until they are
        computed."""
        arrays = [getattr(x, "tj_array", x) for x in inputs]
        exact = True
        for i in range(self.first, len(inputs) if self.last is None else self.last):
            if isinstance(arrays[i], DeferredArray):
                arrays[i], exact = frame.seen_through(arrays[i]), False
                if arrays[i] is None:
                    return False
        try:
            self.look(module_of(arrays[self.first]), arrays, attrs)
        except IndexError:
            if exact:
                raise
            return False  # the element out of range may be one that the view does not select
        return True


def surely_below(index: Any, n: int) -> bool:
    """Fast check that suffices in most cases: read as unsigned integers, negative indices are the largest. Synchronises with a
    GPU, unless the range of the transferred array is known."""
    if index.dtype is not INT64 or not index.size:
        return False
    if type(index) is not np.ndarray:
        known = known_range(index)
        return waited_for(index) < n if known is None else known[0] >= 0 and known[1] < n
    return bool(np.maximum.reduce(index.view(np.uint64), None) < n)


def waited_for(index: Any) -> int:
    """Return the largest element of an array on a GPU as an unsigned integer (synchronises)."""
    return int(index.view(np.uint64).max())


INT64 = np.dtype(np.int64)


def _embedding(xp: Any, arrays: list[Any], attrs: dict[str, Any]) -> None:
    if not surely_below(arrays[1], arrays[0].shape[0]):
        check_range(xp, arrays[1], arrays[0].shape[0])


def _cross_entropy(xp: Any, arrays: list[Any], attrs: dict[str, Any]) -> None:
    target, classes = arrays[1], arrays[0].shape[1]
    if target.size and not surely_below(target, classes):
        class_index(xp, target, classes, attrs["ignore_index"])


def _index(xp: Any, arrays: list[Any], attrs: dict[str, Any]) -> None:
    wrap_and_check_all(xp, arrays[0], tuple(arrays[1:]), attrs["dims"], attrs.get("strict", False))


def _gather(xp: Any, arrays: list[Any], attrs: dict[str, Any]) -> None:
    wrap_and_check(xp, arrays[1], attrs["dim"], arrays[0].shape[attrs["dim"]], True)


INDEX_CHECKS: dict[str, IndexCheck] = {
    "embedding": IndexCheck(_embedding, 1, 2),
    "class_cross_entropy": IndexCheck(_cross_entropy, 1, 2),
    "index": IndexCheck(_index, 1, None),
    "gather": IndexCheck(_gather, 1, 2),
}
