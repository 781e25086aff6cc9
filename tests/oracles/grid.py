"""Sampling at places: pixel by pixel, with a continuous kernel over an image that goes on for ever."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from oracles.resize import keys, triangle


def pixel(i: int, size: int, padding: str, align: bool) -> int | None:
    """Return the pixel at place i of the padded line; None where there is nothing."""
    if padding == "zeros":
        return i if 0 <= i < size else None
    if padding == "border":
        return min(max(i, 0), size - 1)
    if size == 1:
        return 0
    line = [*range(size), *(range(size - 2, 0, -1) if align else range(size - 1, -1, -1))]
    return line[i % len(line)]


def shares(x: float, size: int, mode: str, padding: str, align: bool) -> dict[int, float]:
    """The pixels that a place takes its value from, with their weights."""
    x = (x + 1) / 2 * (size - 1) if align else (x + 1) / 2 * size - 0.5
    if padding == "border" and mode != "bicubic":
        x = min(max(x, 0), size - 1)
    if mode == "nearest":
        if padding == "reflection":
            raise NotImplementedError
        taps = {round(x): 1.0}
    else:
        kernel, reach = (keys(-0.75), 2) if mode == "bicubic" else (triangle, 1)
        taps = {i: kernel(x - i) for i in range(math.floor(x) - reach + 1, math.floor(x) + reach + 1)}
    found: dict[int, float] = {}
    for i, weight in taps.items():
        at = pixel(i, size, padding, align)
        if at is not None:
            found[at] = found.get(at, 0.0) + weight
    return found


def grid_sample(input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: Any = None) -> Any:
    sizes = input.shape[2:]
    out = np.zeros((*input.shape[:2], *grid.shape[1:-1]))
    for at in itertools.product(*map(range, grid.shape[:-1])):
        place = grid[at][::-1]
        along = [shares(float(x), n, mode, padding_mode, bool(align_corners)) for x, n in zip(place, sizes, strict=True)]
        for taps in itertools.product(*(s.items() for s in along)):
            where = tuple(i for i, _ in taps)
            weight = math.prod(w for _, w in taps)
            out[(at[0], slice(None), *at[1:])] += weight * input[(at[0], slice(None), *where)]
    return out


def affine_grid(theta: Any, size: Any, align_corners: Any = None) -> Any:
    out = np.zeros((size[0], *size[2:], len(size) - 2))
    for at in itertools.product(*map(range, out.shape[:-1])):
        place = []
        for i, n in zip(at[1:], size[2:], strict=True):
            place.append(((2 * i) / (n - 1) - 1 if n > 1 else 0.0) if align_corners else (2 * i + 1) / n - 1)
        out[at] = theta[at[0]] @ np.array([*place[::-1], 1.0])
    return out


ORACLES = {"grid_sample": grid_sample, "affine_grid": affine_grid}
