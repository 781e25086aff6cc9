"""References for sorting and counting: Python's `sorted`, loops and dictionaries."""

from __future__ import annotations

import bisect
import collections
from collections.abc import Callable
from typing import Any

import numpy as np


def along(x: np.ndarray, dim: int, function: Callable[[list[Any]], Any]) -> np.ndarray:
    """A function of each row as a list, its results in the place of the row."""
    if x.ndim == 0:
        return np.asarray(function([x.item()])).reshape(())
    return np.apply_along_axis(lambda row: np.asarray(function(row.tolist())), dim, x)


def order(row: list[Any], descending: bool = False) -> list[int]:
    return sorted(range(len(row)), key=lambda i: -row[i] if descending else row[i])


def argsort(x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return along(x, dim, lambda row: order(row, descending))


def sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return along(x, dim, lambda row: sorted(row, reverse=descending)), argsort(x, dim, descending)


def topk(x: Any, k: int, dim: int = -1, largest: bool = True) -> Any:
    if k == 0:
        return np.zeros((*x.shape[:-1], 0)), np.zeros((*x.shape[:-1], 0), int)
    values = along(x, dim, lambda row: sorted(row, reverse=largest)[:k])
    return values, along(x, dim, lambda row: order(row, largest)[:k])


def ranked(x: Any, dim: int, keepdim: bool, rank: Callable[[list[Any]], int]) -> Any:
    """The element at an index that a function of the row tells, and the index."""
    places = along(x, dim, lambda row: [rank(row)])
    values = along(x, dim, lambda row: [row[rank(row)]])
    return (values, places) if keepdim or x.ndim == 0 else (values.squeeze(dim), places.squeeze(dim))


def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return ranked(x, dim, keepdim, lambda row: order(row)[k - 1])


def median(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return np.asarray(sorted(x.reshape(-1).tolist())[(x.size - 1) // 2])
    return ranked(x, dim, keepdim, lambda row: order(row)[(len(row) - 1) // 2])


def most_frequent(row: list[Any]) -> int:
    counts = collections.Counter(row)
    value = min(v for v in counts if counts[v] == max(counts.values()))
    return max(i for i, v in enumerate(row) if v == value)


def quantile(x: Any, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear") -> Any:
    return np.quantile(x, q, axis=dim, keepdims=keepdim, method=interpolation)


def unique(x: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    items = x.reshape(-1).tolist() if dim is None else [tuple(np.ravel(s).tolist()) for s in np.moveaxis(x, dim, 0)]
    values = sorted(set(items))
    inverse = np.asarray([values.index(v) for v in items]).reshape(x.shape if dim is None else -1)
    return found(np.asarray(values), inverse, [items.count(v) for v in values], return_inverse, return_counts)


def unique_consecutive(x: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    items = x.reshape(-1).tolist() if dim is None else [tuple(np.ravel(s).tolist()) for s in np.moveaxis(x, dim, 0)]
    values: list[Any] = []
    counts: list[int] = []
    inverse = []
    for item in items:
        if not values or item != values[-1]:
            values.append(item)
            counts.append(0)
        counts[-1] += 1
        inverse.append(len(values) - 1)
    places = np.asarray(inverse).reshape(x.shape if dim is None else -1)
    return found(np.asarray(values), places, counts, return_inverse, return_counts)


def found(values: Any, inverse: Any, counts: Any, return_inverse: bool, return_counts: bool) -> Any:
    more = [inverse] * return_inverse + [np.asarray(counts)] * return_counts
    return (values, *more) if more else values


def searchsorted(
    sequence: Any, values: Any, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None
) -> Any:
    if sorter is not None:
        sequence = np.take_along_axis(sequence, sorter, -1)
    look = bisect.bisect_right if right or side == "right" else bisect.bisect_left
    values = np.asarray(values)
    places = np.empty(values.shape, int)
    for place in np.ndindex(values.shape):
        places[place] = look((sequence if sequence.ndim == 1 else sequence[place[:-1]]).tolist(), values[place])
    return places


def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    weights = [1] * len(x) if weights is None else weights.tolist()
    counts = [0] * max(minlength, max(x.tolist(), default=-1) + 1)
    for i, w in zip(x.tolist(), weights, strict=True):
        counts[i] += w
    return np.asarray(counts)


def histc(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    return np.histogram(x, bins, None if min == max == 0 else (min, max))[0].astype(float)


ORACLES = {
    "sort": sort,
    "argsort": argsort,
    "msort": lambda x: sort(x, 0)[0],
    "topk": topk,
    "kthvalue": kthvalue,
    "median": median,
    "nanmedian": median,
    "mode": lambda x, dim=-1, keepdim=False: ranked(x, dim, keepdim, most_frequent),
    "quantile": quantile,
    "nanquantile": quantile,
    "unique": unique,
    "unique_consecutive": unique_consecutive,
    "searchsorted": searchsorted,
    "bucketize": lambda x, boundaries, **kwargs: searchsorted(boundaries, x, **kwargs),
    "isin": lambda x, tests, invert=False: np.vectorize(lambda v: (v in tests.tolist()) != invert)(x),
    "bincount": bincount,
    "histc": histc,
}
