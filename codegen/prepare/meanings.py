"""Meanings of ops that eager execution has a kernel for and nothing else, in ops that loops can be made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...eager.core.op import Op
from ...eager.ops.create import arange
from ...eager.ops.pointwise import where
from ...eager.core.tensor import Tensor


def place_of(best: str) -> Callable[..., Tensor]:
    """Where the largest or the smallest element stands, the first of equals; NaN is both."""

    def meaning(x: Tensor, *, dims: tuple[int, ...], keepdim: bool) -> Tensor:
        shape = x._array.shape
        if len(dims) != 1 or not shape:
            flat = meaning(x.reshape(-1), dims=(0,), keepdim=False)
            return flat.reshape((1,) * len(shape) if keepdim else ())
        (dim,) = dims
        extreme = getattr(x, best)(dim, keepdim=True)
        here = (x == extreme) | (x != x)
        places = arange(shape[dim]).reshape((-1,) + (1,) * (len(shape) - 1 - dim))
        return where(here, places, shape[dim]).amin(dim, keepdim=keepdim)  # type: ignore[no-any-return]

    return meaning


MEANINGS: dict[str, Callable[..., Any]] = {"argmax": place_of("amax"), "argmin": place_of("amin")}


def meaning_of(op: Op) -> Callable[..., Any] | None:
    """What an op means in others; None if that is unknown."""
    return op.expand or MEANINGS.get(op.name)
