"""References for the scans: a loop over each row."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np


def running(function: Callable[[list[Any]], list[Any]]) -> Callable[..., np.ndarray]:
    """A function of each row along a dim that gives a row of the same length."""

    def oracle(x: np.ndarray, dim: int) -> np.ndarray:
        if x.ndim == 0:
            return np.asarray(function([x.item()])[0])
        if x.size == 0:
            return x
        return np.apply_along_axis(lambda row: np.asarray(function(row.tolist())), dim, x)

    return oracle


def prefixes(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda row: [function(row[: i + 1]) for i in range(len(row))]


def latest(best: Callable[..., Any]) -> Callable[[list[Any]], int]:
    return lambda values: max(i for i, v in enumerate(values) if v == best(values))


def both(best: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dim: (running(prefixes(best))(x, dim), running(prefixes(latest(best)))(x, dim))


def log_sum(values: list[float]) -> float:
    return functools.reduce(lambda a, b: max(a, b) + math.log1p(math.exp(-abs(a - b))), values)


def diff(x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    x = np.concatenate([a for a in (prepend, x, append) if a is not None], dim)
    return x[:0] if n > x.shape[dim] else np.diff(x, n, dim)


def areas(y: Any, x: Any, dx: Any, dim: int) -> list[Any]:
    """The area over each interval."""
    y = np.moveaxis(y, dim, 0)
    if x is not None:
        x = np.moveaxis(x, dim, 0) if x.ndim == y.ndim else x.reshape((-1,) + (1,) * (y.ndim - 1))
    widths = [dx or 1.0 if x is None else x[i + 1] - x[i] for i in range(len(y) - 1)]
    return [w * 0.5 * (y[i] + y[i + 1]) for i, w in enumerate(widths)]


def trapezoid(y: Any, x: Any = None, dx: Any = None, dim: int = -1) -> Any:
    return sum(areas(y, x, dx, dim), np.zeros(np.moveaxis(y, dim, 0).shape[1:]))


def cumulative_trapezoid(y: Any, x: Any = None, dx: Any = None, dim: int = -1) -> Any:
    parts = areas(y, x, dx, dim)
    if not parts:
        return np.zeros(0)
    return np.stack([sum(parts[: i + 1]) for i in range(len(parts))], dim)


ORACLES = {
    "cumsum": running(prefixes(sum)),
    "cumprod": running(prefixes(math.prod)),
    "logcumsumexp": running(prefixes(log_sum)),
    "cummax": both(max),
    "cummin": both(min),
    "diff": diff,
    "trapezoid": trapezoid,
    "trapz": trapezoid,
    "cumulative_trapezoid": cumulative_trapezoid,
}
