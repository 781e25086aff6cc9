"""Working through large arrays in pieces, on several threads.

A kernel of several NumPy calls has temporaries as large as its arrays; in pieces they are small. Pieces also run beside one
another. On a GPU, and for arrays that are small or not contiguous, kernels run on the whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .threads import get_num_threads, run_all

BLOCK = 65536  # elements of a piece: in much smaller ones the calls themselves cost more than the trips to memory
UPDATE = 16384  # elements of a piece of an optimizer's update, which passes over four or five arrays at once
SMALL = 32768  # arrays up to this size are not divided


def divisible(arrays: list[Any]) -> bool:
    """Whether arrays are of one shape, large, and each one run of memory."""
    first = arrays[0]
    return (
        type(first) is np.ndarray
        and first.size > SMALL
        and all(a.shape == first.shape and a.flags.c_contiguous for a in arrays)
    )


def for_blocks(work: Callable[[slice], None], size: int, block: int) -> None:
    """Call `work` with every piece of a range of elements, on all threads."""
    threads = get_num_threads()
    step = min(block, -(-size // threads))
    starts = range(0, size, step)

    def share(i: int) -> None:
        for start in starts[i::threads]:
            work(slice(start, start + step))

    run_all(share, min(threads, len(starts)))


def in_blocks(kernel: Callable[..., None], *arrays: Any) -> None:
    """Run a kernel that writes into its arrays; an array may be None."""
    present = [a for a in arrays if a is not None]
    if not divisible(present):
        kernel(*arrays)
        return
    flat = [None if a is None else a.reshape(-1) for a in arrays]
    for_blocks(lambda place: kernel(*[None if a is None else a[place] for a in flat]), present[0].size, UPDATE)


def blockwise(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A pointwise kernel `run(xp, *arrays, **attrs)` that returns a new array, run in pieces."""

    @functools.wraps(kernel)
    def run(xp: Any, *arrays: Any, **attrs: Any) -> Any:
        if not divisible(list(arrays)):
            return kernel(xp, *arrays, **attrs)
        flat = [a.reshape(-1) for a in arrays]
        out = np.empty_like(arrays[0])
        pieces = out.reshape(-1)

        def work(place: slice) -> None:
            pieces[place] = kernel(xp, *[a[place] for a in flat], **attrs)

        for_blocks(work, out.size, BLOCK)
        return out

    return run
