"""Pooling, window by window."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np


def each(value: Any, n: int) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def count(size: int, k: int, step: int, pad: int, gap: int, ceil_mode: bool) -> int:
    """The number of windows, found by trying: each must begin inside the input or the padding before it."""
    found = 0
    while True:
        begin = found * step - pad
        end = begin + gap * (k - 1)
        if end >= size + pad and not (ceil_mode and end - step + 1 <= size + pad - 1 and begin < size):
            return found
        found += 1


def pooled(n: int, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, of_window: Any) -> Any:
    """`of_window` of each window, as {output index: value}; it gets the channel and the positions along each dim."""
    kernel = each(kernel, n)
    stride, padding, dilation = each(kernel if stride is None else stride, n), each(padding, n), each(dilation, n)
    dims = list(zip(x.shape[2:], kernel, stride, padding, dilation, strict=True))
    out = [count(*dim, ceil_mode) for dim in dims]
    values: Any = np.empty((*x.shape[:2], *out), object)
    for b, c, *at in np.ndindex(values.shape):
        spots = [[o * s - p + j * d for j in range(k)] for o, (_, k, s, p, d) in zip(at, dims, strict=True)]
        values[(b, c, *at)] = of_window(x[b, c], spots)
    return values


def inside(channel: Any, spots: Any) -> list[tuple[int, ...]]:
    return [p for p in itertools.product(*spots) if all(0 <= i < m for i, m in zip(p, channel.shape, strict=True))]


def largest(channel: Any, spots: Any) -> tuple[Any, int]:
    best = max(inside(channel, spots), key=lambda p: channel[p])
    return channel[best], int(np.ravel_multi_index(best, channel.shape))


def max_pool(n: int) -> Any:
    def oracle(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if x.ndim == n + 1:
            found = oracle(x[None], kernel_size, stride, padding, dilation, ceil_mode, return_indices)
            return (found[0][0], found[1][0]) if return_indices else found[0]
        pairs = pooled(n, x, kernel_size, stride, padding, dilation, ceil_mode, largest)
        values = np.vectorize(lambda p: p[0], otypes=[x.dtype])(pairs)
        return (values, np.vectorize(lambda p: p[1], otypes=[np.int64])(pairs)) if return_indices else values

    return oracle


def avg_pool(n: int) -> Any:
    def oracle(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if x.ndim == n + 1:
            return oracle(x[None], kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)[0]
        pads = each(padding, n)

        def mean(channel: Any, spots: Any) -> Any:
            here = inside(channel, spots)
            counted = math.prod(sum(i < m + p for i in dim) for dim, m, p in zip(spots, channel.shape, pads, strict=True))
            divisor = divisor_override or (counted if count_include_pad else len(here))
            total = sum(channel[p] for p in here) / divisor
            return int(total) if x.dtype.kind == "i" else total

        return pooled(n, x, kernel_size, stride, padding, 1, ceil_mode, mean).astype(x.dtype)

    return oracle


def adaptive(n: int, of_window: Any) -> Any:
    """`of_window` of the windows [floor(i * size / out), ceil((i + 1) * size / out))."""

    def all_windows(x: Any, output_size: Any) -> Any:
        out = [m if o is None else o for o, m in zip(each(output_size, n), x.shape[2:], strict=True)]
        values: Any = np.empty((*x.shape[:2], *out), object)
        for b, c, *at in np.ndindex(values.shape):
            ends = [(math.floor(i * m / o), math.ceil((i + 1) * m / o)) for i, m, o in zip(at, x.shape[2:], out, strict=True)]
            values[(b, c, *at)] = of_window(x[b, c], [list(range(begin, end)) for begin, end in ends])
        return values

    def oracle(x: Any, output_size: Any, return_indices: bool = False) -> Any:
        pairs = all_windows(x if x.ndim == n + 2 else x[None], output_size)
        values = np.vectorize(lambda p: p[0], otypes=[float])(pairs)
        indices = np.vectorize(lambda p: p[1], otypes=[np.int64])(pairs)
        if x.ndim == n + 1:
            values, indices = values[0], indices[0]
        return (values, indices) if return_indices else values

    return oracle


def mean_of(channel: Any, spots: Any) -> tuple[Any, int]:
    return np.mean([channel[p] for p in inside(channel, spots)]), 0


def lp_pool(n: int) -> Any:
    def oracle(x: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Any:
        if x.ndim == n + 1:
            return oracle(x[None], norm_type, kernel_size, stride, ceil_mode)[0]
        full = math.prod(each(kernel_size, n))

        def norm(channel: Any, spots: Any) -> Any:
            here = inside(channel, spots)
            # a window that reaches over the end counts as if it were full, as in PyTorch
            return (sum(channel[p] ** norm_type for p in here) * full / len(here)) ** (1 / norm_type)

        return pooled(n, x, kernel_size, stride, 0, 1, ceil_mode, norm).astype(float)

    return oracle


def max_unpool(n: int) -> Any:
    def oracle(x: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Any:
        kernel = each(kernel_size, n)
        dims = zip(x.shape[-n:], kernel, each(kernel if stride is None else stride, n), each(padding, n), strict=True)
        size = output_size or [(m - 1) * s - 2 * p + k for m, k, s, p in dims]
        y = np.zeros((*x.shape[:-n], *size))
        for i in np.ndindex(x.shape):
            y[(*i[:-n], *np.unravel_index(indices[i], size))] = x[i]
        return y

    return oracle


ORACLES = {
    **{f"max_pool{n}d": max_pool(n) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": avg_pool(n) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": adaptive(n, mean_of) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": adaptive(n, largest) for n in (1, 2, 3)},
    **{f"lp_pool{n}d": lp_pool(n) for n in (1, 2, 3)},
    **{f"max_unpool{n}d": max_unpool(n) for n in (1, 2, 3)},
}
