"""Ops that refuse some indices, checked when Python comes to them rather than when the program runs, so that an IndexError is
raised at its own line. Indices that are pending are computed first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..eager.devices import module_of
from ..eager.ops.cross_entropy import class_index
from ..eager.ops.embedding import check_range
from ..eager.ops.index import all_within, within
from ..eager.pending import Pending


class Check:
    """Which inputs are looked at, and how."""

    def __init__(self, look: Callable[..., None], first: int, last: int | None) -> None:
        self.look = look
        self.first = first
        self.last = last

    def pending(self, inputs: tuple[Any, ...]) -> bool:
        return any(isinstance(x._array, Pending) for x in inputs[self.first : self.last] if hasattr(x, "_array"))

    def __call__(self, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        xp = module_of(inputs[self.first]._array)
        self.look(xp, [getattr(x, "_array", x) for x in inputs], attrs)


def _embedding(xp: Any, arrays: list[Any], attrs: dict[str, Any]) -> None:
    check_range(xp, arrays[1], arrays[0].shape[0])


def _cross_entropy(xp: Any, arrays: list[Any], attrs: dict[str, Any]) -> None:
    target, classes = arrays[1], arrays[0].shape[1]
    if target.size and (int(target.min()) < 0 or int(target.max()) >= classes):
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
