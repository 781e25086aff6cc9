"""Cache blocking: run NumPy kernels over large arrays in blocks that fit into a core's cache.

A kernel of several NumPy calls passes over its arrays once per call; on cache-sized blocks the passes cost no trip to memory,
and the temporaries are small. On a GPU and for arrays that are small or not contiguous, kernels run on the whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

BLOCK_ELEMENTS = 65536  # elements: below this the calls themselves cost more than the trips to memory
UPDATE_BLOCK_ELEMENTS = 16384  # for an optimizer's update, which passes over four or five arrays at once


def can_split(arrays: list[Any]) -> bool:
    """True if the arrays have one shape, are large, and are each contiguous."""
    first = arrays[0]
    return (
        type(first) is np.ndarray
        and first.size > BLOCK_ELEMENTS
        and all(a.shape == first.shape and a.flags.c_contiguous for a in arrays)
    )


def run_in_blocks(kernel: Callable[..., None], *arrays: Any) -> None:
    """Run a kernel that writes into its arrays, block by block; an array may be None."""
    present = [a for a in arrays if a is not None]
    if not can_split(present):
        kernel(*arrays)
        return
    flat = [None if a is None else a.reshape(-1) for a in arrays]
    for start in range(0, present[0].size, UPDATE_BLOCK_ELEMENTS):
        kernel(*[None if a is None else a[start : start + UPDATE_BLOCK_ELEMENTS] for a in flat])


def blockwise(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a pointwise kernel `run(xp, *arrays, **attrs)`, which returns a new array, to run block by block."""

    @functools.wraps(kernel)
    def run(xp: Any, *arrays: Any, **attrs: Any) -> Any:
        if not can_split(list(arrays)):
            return kernel(xp, *arrays, **attrs)
        flat = [a.reshape(-1) for a in arrays]
        out = np.empty_like(arrays[0])
        pieces = out.reshape(-1)
        for start in range(0, out.size, BLOCK_ELEMENTS):
            place = slice(start, start + BLOCK_ELEMENTS)
            pieces[place] = kernel(xp, *[a[place] for a in flat], **attrs)
        return out

    return run
