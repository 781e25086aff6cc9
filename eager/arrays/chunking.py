"""Working through large arrays in pieces that fit into a core's cache.

A kernel of several NumPy calls passes over its arrays once per call; on pieces of a cache's size the passes cost no trip to
memory, and its temporaries are small. On a GPU and for arrays that are small or not contiguous, kernels run on the whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

BLOCK = 65536  # elements: below this the calls themselves cost more than the trips to memory
UPDATE = 16384  # for an optimizer's update, which passes over four or five arrays at once


def divisible(arrays: list[Any]) -> bool:
    """Whether arrays are of one shape, large, and each one run of memory."""
    first = arrays[0]
    return (
        type(first) is np.ndarray
        and first.size > BLOCK
        and all(a.shape == first.shape and a.flags.c_contiguous for a in arrays)
    )


def in_blocks(kernel: Callable[..., None], *arrays: Any) -> None:
    """Run a kernel that writes into its arrays; an array may be None."""
    present = [a for a in arrays if a is not None]
    if not divisible(present):
        kernel(*arrays)
        return
    flat = [None if a is None else a.reshape(-1) for a in arrays]
    for start in range(0, present[0].size, UPDATE):
        kernel(*[None if a is None else a[start : start + UPDATE] for a in flat])


def blockwise(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A pointwise kernel `run(xp, *arrays, **attrs)` that returns a new array, run in pieces."""

    @functools.wraps(kernel)
    def run(xp: Any, *arrays: Any, **attrs: Any) -> Any:
        if not divisible(list(arrays)):
            return kernel(xp, *arrays, **attrs)
        flat = [a.reshape(-1) for a in arrays]
        out = np.empty_like(arrays[0])
        pieces = out.reshape(-1)
        for start in range(0, out.size, BLOCK):
            place = slice(start, start + BLOCK)
            pieces[place] = kernel(xp, *[a[place] for a in flat], **attrs)
        return out

    return run
