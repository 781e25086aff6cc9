"""Convolutions, and unfold and fold, element by element."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np


def each(value: Any, n: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def conv(n: int) -> Any:
    def oracle(x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
        if x.ndim == n + 1:
            return oracle(x[None], w, bias, stride, padding, dilation, groups)[0]
        stride, dilation = each(stride, n), each(dilation, n)
        if padding == "same":
            reach = [d * (k - 1) for k, d in zip(w.shape[2:], dilation, strict=True)]
            pads = [(r // 2, r - r // 2) for r in reach]
        else:
            pads = [(p, p) for p in each(0 if padding == "valid" else padding, n)]
        x = np.pad(x, [(0, 0), (0, 0), *pads])
        reach = zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
        out = [(size - d * (k - 1) - 1) // s + 1 for size, k, s, d in reach]
        y = np.zeros((x.shape[0], w.shape[0], *out), x.dtype)
        inputs, outputs = w.shape[1], w.shape[0] // groups
        for b, o, *at in np.ndindex(y.shape):
            for c, *k in np.ndindex(w.shape[1:]):
                spot = tuple(a * s + i * d for a, s, i, d in zip(at, stride, k, dilation, strict=True))
                y[(b, o, *at)] += x[(b, o // outputs * inputs + c, *spot)] * w[(o, c, *k)]
        return y if bias is None else y + bias.reshape(-1, *[1] * n)

    return oracle


def conv_transpose(n: int) -> Any:
    def oracle(
        x: Any,
        w: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        if x.ndim == n + 1:
            return oracle(x[None], w, bias, stride, padding, output_padding, groups, dilation)[0]
        stride, dilation, padding = each(stride, n), each(dilation, n), each(padding, n)
        reach = zip(x.shape[2:], w.shape[2:], stride, dilation, padding, each(output_padding, n), strict=True)
        out = [(size - 1) * s - 2 * p + d * (k - 1) + extra + 1 for size, k, s, d, p, extra in reach]
        y = np.zeros((x.shape[0], w.shape[1] * groups, *out))
        group = x.shape[1] // groups
        for b, c, *at in np.ndindex(x.shape):
            for o, *k in np.ndindex(w.shape[1:]):
                steps = zip(at, stride, k, dilation, padding, strict=True)
                spot = tuple(a * s + i * d - p for a, s, i, d, p in steps)
                if all(0 <= i < m for i, m in zip(spot, out, strict=True)):
                    y[(b, c // group * w.shape[1] + o, *spot)] += x[(b, c, *at)] * w[(c, o, *k)]
        return y if bias is None else y + bias.reshape(-1, *[1] * n)

    return oracle


def blocks(size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """For each block its number, the place in it, and the element that stands there."""
    steps = list(zip(size, kernel, each(dilation, 2), each(padding, 2), each(stride, 2), strict=True))
    counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in steps]
    for number, at in enumerate(itertools.product(*map(range, counts))):
        for place, offset in enumerate(itertools.product(*map(range, kernel))):
            spot = tuple(a * s + i * d - p for a, i, (_, _, d, p, s) in zip(at, offset, steps, strict=True))
            yield number, place, spot if all(0 <= i < n for i, n in zip(spot, size, strict=True)) else None


def unfold(x: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    if x.ndim == 3:
        return unfold(x[None], kernel_size, dilation, padding, stride)[0]
    kernel = each(kernel_size, 2)
    found = list(blocks(x.shape[2:], kernel, dilation, padding, stride))
    y = np.zeros((*x.shape[:2], kernel[0] * kernel[1], found[-1][0] + 1))
    for number, place, spot in found:
        if spot is not None:
            y[:, :, place, number] = x[(slice(None), slice(None), *spot)]
    return y.reshape(x.shape[0], -1, y.shape[-1])


def fold(x: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    if x.ndim == 2:
        return fold(x[None], output_size, kernel_size, dilation, padding, stride)[0]
    kernel, size = each(kernel_size, 2), each(output_size, 2)
    x = x.reshape(x.shape[0], -1, kernel[0] * kernel[1], x.shape[-1])
    y = np.zeros((*x.shape[:2], *size))
    for number, place, spot in blocks(size, kernel, dilation, padding, stride):
        if spot is not None:
            y[(slice(None), slice(None), *spot)] += x[:, :, place, number]
    return y


ORACLES = {
    "conv1d": conv(1),
    "conv2d": conv(2),
    "conv3d": conv(3),
    "conv_transpose1d": conv_transpose(1),
    "conv_transpose2d": conv_transpose(2),
    "conv_transpose3d": conv_transpose(3),
    "fold": fold,
    "unfold": unfold,
}
