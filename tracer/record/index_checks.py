"""Ops that refuse some indices, checked when Python comes to them rather than when the program runs, so that an IndexError is
raised at its own line. Indices that are pending are computed first, unless they are views of a tensor that is there, all of
whose elements are good, or constants of the recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...eager.arrays.devices import module_of
from ...eager.core.index_range import extent
from ...eager.ops.neural.cross_entropy import class_index
from ...eager.ops.indexing.embedding import check_range
from ...eager.ops.indexing.primitives import all_within, within
from ...eager.arrays.deferred import Pending


class Check:
    """Which inputs are looked at, and how."""

    def __init__(self, look: Callable[..., None], first: int, last: int | None) -> None:
        self.look = look
        self.first = first
        self.last = last

    def settled(self, frame: Any, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> bool:
        """Whether the indices are good; an error if they are not. False if that cannot be told before they are computed."""
        arrays = [getattr(x, "_array", x) for x in inputs]
        exact = True
        for i in range(self.first, len(inputs) if self.last is None else self.last):
            if isinstance(arrays[i], Pending):
                arrays[i], exact = frame.seen_through(arrays[i]), False
                if arrays[i] is None:
                    return False
        try:
            self.look(module_of(arrays[self.first]), arrays, attrs)
        except IndexError:
            if exact:
                raise
            return False  # a wrong one may be among those that are not picked
        return True


def surely_below(index: Any, n: int) -> bool:
    """A quick look that is enough in most cases: as numbers without a sign, negative ones are the largest. A GPU is waited for,
    unless it is known what was brought there."""
    if index.dtype is not INT64 or not index.size:
        return False
    if type(index) is not np.ndarray:
        known = extent(index)
        return waited_for(index) < n if known is None else known[0] >= 0 and known[1] < n
    return bool(np.maximum.reduce(index.view(np.uint64), None) < n)


def waited_for(index: Any) -> int:
    """The largest element of an array on a GPU, as a number without a sign."""
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
    all_within(xp, arrays[0], tuple(arrays[1:]), attrs["dims"], attrs.get("strict", False))


def _gather(xp: Any, arrays: list[Any], attrs: dict[str, Any]) -> None:
    within(xp, arrays[1], attrs["dim"], arrays[0].shape[attrs["dim"]], True)


CHECKS: dict[str, Check] = {
    "embedding": Check(_embedding, 1, 2),
    "class_cross_entropy": Check(_cross_entropy, 1, 2),
    "index": Check(_index, 1, None),
    "gather": Check(_gather, 1, 2),
}
