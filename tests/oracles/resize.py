"""Interpolation as a weighted sum over all inputs with a continuous kernel; pixel and channel shuffles by index."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def triangle(t: float) -> float:
    return max(0.0, 1 - abs(t))


def keys(a: float) -> Any:
    """Keys' cubic convolution kernel."""

    def kernel(t: float) -> float:
        t = abs(t)
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0

    return kernel


def matrix(size: int, out: int, factor: float | None, mode: str, align: bool, antialias: bool) -> Any:
    """The weights [output, input] of one dim."""
    scale = 1 / factor if factor else size / out
    if align:
        scale = (size - 1) / (out - 1) if out > 1 else 0.0
    weights = np.zeros((out, size))
    for i in range(out):
        if mode == "area":
            begin, end = math.floor(i * size / out), math.ceil((i + 1) * size / out)
            weights[i, begin:end] = 1 / (end - begin)
        elif mode == "nearest":
            weights[i, min(int(i * scale), size - 1)] = 1
        elif mode == "nearest-exact":
            weights[i, min(int((i + 0.5) * scale), size - 1)] = 1
        elif antialias:
            kernel = keys(-0.5) if mode == "bicubic" else triangle
            row = [kernel(((j + 0.5) - (i + 0.5) * scale) / max(scale, 1)) for j in range(size)]
            weights[i] = np.array(row) / sum(row)
        else:
            source = i * scale if align else (i + 0.5) * scale - 0.5
            kernel = keys(-0.75) if mode == "bicubic" else triangle
            for j in range(-4, size + 4):  # the edges stand for all that lies outside
                weights[i, min(max(j, 0), size - 1)] += kernel(source - j)
    return weights


def interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    n = x.ndim - 2
    factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * n
    sizes = size if isinstance(size, (tuple, list)) else (size,) * n
    for i in range(n):
        length = x.shape[2 + i]
        out = sizes[i] or math.floor(length * factors[i])
        factor = None if recompute_scale_factor else factors[i]
        weights = matrix(length, out, factor, mode, bool(align_corners), antialias)
        x = np.moveaxis(np.tensordot(weights, x, (1, 2 + i)), 0, 2 + i)
    return x


def pixel_shuffle(x: Any, r: int) -> Any:
    *batch, channels, height, width = x.shape
    y = np.zeros((*batch, channels // r**2, height * r, width * r), x.dtype)
    for c, h, w in np.ndindex(y.shape[-3:]):
        y[..., c, h, w] = x[..., c * r * r + h % r * r + w % r, h // r, w // r]
    return y


def pixel_unshuffle(x: Any, r: int) -> Any:
    *batch, channels, height, width = x.shape
    y = np.zeros((*batch, channels * r**2, height // r, width // r), x.dtype)
    for c, h, w in np.ndindex(x.shape[-3:]):
        y[..., c * r * r + h % r * r + w % r, h // r, w // r] = x[..., c, h, w]
    return y


def channel_shuffle(x: Any, groups: int) -> Any:
    each = x.shape[1] // groups
    return np.stack([x[:, i % groups * each + i // groups] for i in range(x.shape[1])], 1)


ORACLES = {
    "channel_shuffle": channel_shuffle,
    "interpolate": interpolate,
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
    "upsample": interpolate,
}
