"""References for the reductions: Python functions of lists, row by row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def rows(function: Callable[[list[Any]], Any], x: np.ndarray, dim: Any = None, keepdim: bool = False) -> np.ndarray:
    """A function of the list of all elements that are reduced to one."""
    x = np.asarray(x)
    if x.ndim == 0:
        return np.asarray(function([x.item()]))
    dims = tuple(range(x.ndim)) if dim is None or dim == () else tuple(np.atleast_1d(dim) % x.ndim)
    kept = [d for d in range(x.ndim) if d not in dims]
    shape = tuple(x.shape[d] for d in kept)
    out = [function([v.item() for v in x.transpose(*kept, *dims)[place].reshape(-1)]) for place in np.ndindex(shape)]
    found = np.asarray(out).reshape(shape)
    return found.reshape([1 if d in dims else n for d, n in enumerate(x.shape)]) if keepdim else found


def reduction(function: Callable[[list[Any]], Any]) -> Callable[..., np.ndarray]:
    return lambda x, dim=None, keepdim=False: rows(function, x, dim, keepdim)


def total(values: list[Any]) -> Any:
    return math.fsum(values) if any(isinstance(v, float) for v in values) else sum(values)


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def moments(root: bool) -> Callable[..., Any]:
    def oracle(x: Any, dim: Any = None, unbiased: Any = True, keepdim: bool = False, correction: Any = None) -> Any:
        correction = int(unbiased) if correction is None else correction

        def spread(values: list[float]) -> float:
            center = mean(values)
            variance = math.fsum([(v - center) ** 2 for v in values]) / (len(values) - correction)
            return math.sqrt(variance) if root else variance

        return rows(spread, x, dim, keepdim), rows(mean, x, dim, keepdim)

    return oracle


def norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    order = 2 if p == "fro" else p

    def size(values: list[float]) -> float:
        sizes = [abs(v) for v in values]
        if order == 0:
            return float(sum(v != 0 for v in sizes))
        if math.isinf(order):
            return max(sizes) if order > 0 else min(sizes)
        return math.fsum([v**order for v in sizes]) ** (1 / order)

    return rows(size, x, dim, keepdim)


def renorm(x: Any, p: float, dim: int, maxnorm: float) -> Any:
    out = np.moveaxis(x.copy(), dim, 0)
    for part in out:
        size = (np.abs(part) ** p).sum() ** (1 / p)
        if size > maxnorm:
            part *= maxnorm / (size + 1e-7)
    return np.moveaxis(out, 0, dim)


def extreme(best: Callable[..., Any]) -> Callable[..., Any]:
    def oracle(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, np.ndarray):
            return np.vectorize(best)(x, dim)
        if dim is None:
            return rows(best, x)
        return rows(best, x, dim, keepdim), rows(lambda values: values.index(best(values)), x, dim, keepdim)

    return oracle


def logsumexp(values: list[float]) -> float:
    if not values:
        return -math.inf
    top = max(values)
    return top + math.log(math.fsum([math.exp(v - top) for v in values]))


ORACLES = {
    "sum": reduction(total),
    "mean": reduction(mean),
    "nansum": reduction(lambda values: total([v for v in values if v == v])),
    "nanmean": reduction(lambda values: mean([v for v in values if v == v])),
    "count_nonzero": reduction(lambda values: sum(v != 0 for v in values)),
    "prod": reduction(math.prod),
    "var": lambda *args, **kwargs: moments(False)(*args, **kwargs)[0],
    "std": lambda *args, **kwargs: moments(True)(*args, **kwargs)[0],
    "var_mean": moments(False),
    "std_mean": moments(True),
    "amax": reduction(max),
    "amin": reduction(min),
    "aminmax": lambda x, dim=None, keepdim=False: (rows(min, x, dim, keepdim), rows(max, x, dim, keepdim)),
    "argmax": reduction(lambda values: values.index(max(values))),
    "argmin": reduction(lambda values: values.index(min(values))),
    "max": extreme(max),
    "min": extreme(min),
    "logsumexp": reduction(logsumexp),
    "norm": norm,
    "dist": lambda a, b, p=2: norm(a - b, p),
    "renorm": renorm,
    "all": reduction(lambda values: all(values)),
    "any": reduction(lambda values: any(values)),
}
