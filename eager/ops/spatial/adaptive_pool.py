"""Adaptive pooling: as many windows as the output has elements, of lengths that may differ by one.

Where all windows are alike this is ordinary pooling. Else means are a table of `interpolate.py`, and maxima are ordinary
pooling of an input with some elements repeated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.op_samples import A, sample
from ...core.dispatch import apply
from ...core.registration import public
from ...core.tensor import Tensor, as_index
from .interpolate import adaptive_windows, means, resample, selected
from .pool import MAX_POOL, average_pool, check_input, flat_indices
from .windows import Geometry, Ints


def adaptive_size(name: str, n: int, input: Any, output_size: Any) -> Ints:
    """The output's size; None keeps a dim's length."""
    check_input(name, n, input)
    wanted = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * n
    if len(wanted) != n:
        raise RuntimeError(f"{name}: output_size must be {n} numbers, but got {wanted}")
    size = input.shape[-n:]
    found = tuple(m if v is None else as_index(v, f"{name}'s output_size") for v, m in zip(wanted, size, strict=True))
    if min(found) < 0:
        raise RuntimeError(f"{name}: elements of output_size must be greater than or equal to 0 but received {list(found)}")
    return found


def adaptive_average(name: str, n: int, input: Tensor, output_size: Any) -> Tensor:
    out = adaptive_size(name, n, input, output_size)
    if not input.dtype.is_floating_point:
        raise NotImplementedError(f"\"{name}\" not implemented for '{input.dtype.legacy}'; convert the input with .float()")
    size = tuple(input.shape[-n:])
    if all(m and not length % m for length, m in zip(size, out, strict=True)):
        return average_pool(name, n, input, [length // m for length, m in zip(size, out, strict=True)], None, 0, False, True)
    found = input
    for i in range(1, n + 1):
        found = resample(found, input.ndim - i, means(size[-i], out[-i]))
    return found


@public("", "nn.functional", samples=[sample(A(2, 3, 6), 2), sample(A(2, 7), 3), sample(A(1, 2, 3), 5)], method=False)
def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """The means of `output_size` windows that cover the last dim of [batch, channel, length]."""
    return adaptive_average("adaptive_avg_pool1d", 1, input, output_size)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 2, 4, 3), 1),
        sample(A(2, 5, 4), (2, None)),
        sample(A(1, 1, 7, 5), (3, 2)),
        sample(A(1, 2, 2, 3), (3, 0)),
    ],
)
def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """The means of windows that cover an image and are as many as `output_size` says."""
    return adaptive_average("adaptive_avg_pool2d", 2, input, output_size)


@public("nn.functional", samples=[sample(A(1, 2, 2, 4, 2), (1, 2, 2)), sample(A(1, 3, 4, 3), 2)])
def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """The means of windows that cover a volume and are as many as `output_size` says."""
    return adaptive_average("adaptive_avg_pool3d", 3, input, output_size)


def adaptive_maximum(name: str, n: int, input: Tensor, output_size: Any, return_indices: bool) -> Any:
    """Windows of different lengths become equal ones on an input with elements repeated: no maximum changes by that."""
    out = adaptive_size(name, n, input, output_size)
    batched = input.ndim == n + 2
    found = x = input if batched else input.unsqueeze(0)
    kernel, sources = [], []
    for i, (length, m) in enumerate(zip(x.shape[2:], out, strict=True)):
        spans_of = adaptive_windows(length, m)
        k = max((end - begin for begin, end in spans_of), default=1)
        index = np.array([min(begin + j, end - 1) for begin, end in spans_of for j in range(k)], np.int64)
        if len(index) != length or (index != np.arange(length)).any():
            found = resample(found, 2 + i, selected(length, index))
        kernel.append(k)
        sources.append(index)
    geometry = Geometry(tuple(kernel), ((0, 0),) * n, (1,) * n)
    values, winners = apply(MAX_POOL, (found,), {"kernel": tuple(kernel), "geometry": geometry})
    results = [values]
    if return_indices:
        results.append(flat_indices(winners, tuple(kernel), geometry, tuple(x.shape[2:]), sources))
    results = results if batched else [t.squeeze(0) for t in results]
    return tuple(results) if return_indices else results[0]


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3, 6, distinct=True), 2),
        sample(A(2, 7, distinct=True), 3, return_indices=True),
        sample(A(1, 2, 3, distinct=True), 5),
    ],
)
def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The maxima of `output_size` windows that cover the last dim, and their indices if asked for."""
    return adaptive_maximum("adaptive_max_pool1d", 1, input, output_size, return_indices)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 2, 4, 3, distinct=True), 1),
        sample(A(2, 5, 4, distinct=True), (2, None), return_indices=True),
        sample(A(1, 1, 7, 5, distinct=True), (3, 2), return_indices=True),
    ],
)
def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The maxima of windows that cover an image, and their indices if asked for."""
    return adaptive_maximum("adaptive_max_pool2d", 2, input, output_size, return_indices)


@public("nn.functional", samples=[sample(A(1, 3, 4, 3, distinct=True), 2), sample(A(1, 1, 2, 4, 2, distinct=True), (1, 2, 2))])
def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The maxima of windows that cover a volume, and their indices if asked for."""
    return adaptive_maximum("adaptive_max_pool3d", 3, input, output_size, return_indices)
