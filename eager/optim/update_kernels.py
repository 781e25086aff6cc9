"""Kernels of optimizer updates: run in cache-sized blocks, with half precision computed in float32.

A kernel is a function of arrays that writes into some of them. It sees float32 or float64 only: half-precision blocks are
widened before it and rounded once after it, so small updates are not lost between the steps of one formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.chunking import run_in_blocks
from ..core.tensor import Tensor
from ..ops.pointwise import where

Kernel = Callable[..., None]


def run_update(kernel: Kernel, arrays: tuple[Any, ...], written: tuple[int, ...]) -> None:
    """Run a kernel over arrays of one shape, some of which may be None; `written` says which ones it writes into."""
    if arrays[0].ndim == 0:  # NumPy makes numbers of 0-dim results, and those cannot be written into
        arrays = tuple([None if a is None else a.reshape(1) for a in arrays])
    if arrays[0].itemsize == 2:
        run_in_blocks(in_float32(kernel, written), *arrays)
    else:
        run_in_blocks(kernel, *arrays)


def in_float32(kernel: Kernel, written: tuple[int, ...]) -> Kernel:
    def wide(*pieces: Any) -> None:
        work: list[Any] = [None if a is None else a.astype(np.float32) for a in pieces]
        kernel(*work)
        for i in written:
            if pieces[i] is not None:
                pieces[i][...] = work[i].astype(pieces[i].dtype)

    return wide


def with_weight_decay(d: Tensor, p: Tensor, weight_decay: Any) -> Tensor:
    """Add weight decay to a gradient, on tensors. Without weight decay, infinite parameters do not matter."""
    if not isinstance(weight_decay, Tensor):
        return d + weight_decay * p if weight_decay else d
    return where(weight_decay == 0, d, d + weight_decay * p)  # type: ignore[no-any-return]


def descent_direction(xp: Any, p: Any, g: Any, weight_decay: float, maximize: bool) -> Any:
    """Return the direction to descend along: the gradient (negated if `maximize`) plus weight decay."""
    if maximize:
        g = xp.negative(g)
    return g + weight_decay * p if weight_decay else g


def update_mean(xp: Any, mean: Any, d: Any, weight: float) -> Any:
    """Move a running mean towards `d`, in place; returns a buffer to work in."""
    work = xp.subtract(d, mean)
    xp.multiply(work, weight, out=work)
    xp.add(mean, work, out=mean)
    return work


def update_mean_square(xp: Any, square: Any, d: Any, beta: float, work: Any) -> None:
    """Move a running mean of squares towards that of `d`, in place."""
    xp.multiply(d, d, out=work)
    xp.multiply(work, 1 - beta, out=work)
    xp.multiply(square, beta, out=square)
    xp.add(square, work, out=square)
