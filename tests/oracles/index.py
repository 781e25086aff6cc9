"""References for picking and putting by indices and masks: plain loops over indices."""

from __future__ import annotations

from typing import Any

import numpy as np


def at(place: tuple[int, ...], dim: int, i: int) -> tuple[int, ...]:
    """A place with another index along one dim."""
    return (*place[:dim], int(i), *place[dim + 1 :])


def gather(x: np.ndarray, dim: int, index: np.ndarray) -> np.ndarray:
    if x.ndim == 0:
        return x
    out = np.zeros(index.shape, x.dtype)
    for place in np.ndindex(*index.shape):
        out[place] = x[at(place, dim % x.ndim, index[place])]
    return out


def scatter(
    x: np.ndarray, dim: int, index: np.ndarray, src: Any = None, value: Any = None, reduce: str | None = None
) -> np.ndarray:
    given = value if src is None else src
    out = np.atleast_1d(x).copy()
    index, given = np.atleast_1d(index), np.atleast_1d(given)
    for place in np.ndindex(*index.shape):
        to = at(place, dim % out.ndim, index[place])
        new = given[place] if given.ndim == out.ndim and given.size > 1 else given.flat[0]
        out[to] = new if reduce is None else out[to] + new if reduce == "add" else out[to] * new
    return out.reshape(x.shape)


def scatter_reduce(
    x: np.ndarray, dim: int, index: np.ndarray, src: np.ndarray, reduce: str = "sum", include_self: bool = True
) -> np.ndarray:
    """Collects what goes to each place, then combines it."""
    full, index, src = np.atleast_1d(x), np.atleast_1d(index), np.atleast_1d(src)
    heaps: dict[tuple[int, ...], list[float]] = {}
    for place in np.ndindex(*index.shape):
        heaps.setdefault(at(place, dim % full.ndim, index[place]), []).append(src[place])
    out = full.copy()
    combine = {"sum": np.sum, "mean": np.mean, "prod": np.prod, "amax": np.max, "amin": np.min}[reduce]
    for place, heap in heaps.items():
        out[place] = combine([full[place], *heap] if include_self else heap)
    return out.reshape(x.shape)


def take_along_dim(x: np.ndarray, index: np.ndarray, dim: int | None = None) -> np.ndarray:
    return np.take_along_axis(x, index, dim)


def index_select(x: np.ndarray, dim: int, index: np.ndarray) -> np.ndarray:
    if x.ndim == 0:
        return x
    rows = np.moveaxis(x, dim, 0)
    found = [rows[int(i)] for i in index]
    return np.moveaxis(np.array(found) if found else rows[:0], 0, dim)


def index_reduce(
    x: np.ndarray, dim: int, index: np.ndarray, source: np.ndarray, reduce: str = "sum", include_self: bool = True
) -> np.ndarray:
    full = np.atleast_1d(x).copy()
    rows, new = np.moveaxis(full, dim, 0), np.moveaxis(np.atleast_1d(source), dim, 0)
    combine = {"sum": np.sum, "mean": np.mean, "prod": np.prod, "amax": np.max, "amin": np.min, "last": lambda h, axis: h[-1]}[
        reduce
    ]
    for i in {int(i) for i in index}:
        heap = [new[k] for k in range(len(index)) if index[k] == i]
        rows[i] = combine(np.array(([rows[i].copy()] if include_self else []) + heap), axis=0)
    return full.reshape(x.shape)


def index_fill(x: np.ndarray, dim: int, index: np.ndarray, value: Any) -> np.ndarray:
    out = np.atleast_1d(x).copy()
    rows = np.moveaxis(out, dim, 0)
    for i in index:
        rows[int(i)] = value
    return out.reshape(x.shape)


def index_put(x: np.ndarray, indices: Any, values: np.ndarray, accumulate: bool = False) -> np.ndarray:
    out = x.copy()
    if indices[0].dtype == bool:
        indices = indices[0].nonzero()
    places = list(zip(*indices, strict=True))
    values = np.broadcast_to(values, (len(places), *x.shape[len(indices) :]))
    for place, v in zip(places, values, strict=True):
        out[place] = out[place] + v if accumulate else v
    return out


def put(x: np.ndarray, index: np.ndarray, source: np.ndarray, accumulate: bool = False) -> np.ndarray:
    out = list(x.ravel())
    for i, v in zip(index.ravel(), source.ravel(), strict=True):
        out[i] = out[i] + v if accumulate else v
    return np.array(out).reshape(x.shape)


def masked_select(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    x, mask = np.broadcast_arrays(x, mask)
    return np.array([v for v, m in zip(x.ravel(), mask.ravel(), strict=True) if m])


def masked_fill(x: np.ndarray, mask: np.ndarray, value: Any) -> np.ndarray:
    shape = np.broadcast_shapes(x.shape, mask.shape)
    pairs = zip(np.broadcast_to(x, shape).ravel(), np.broadcast_to(mask, shape).ravel(), strict=True)
    return np.array([value if m else v for v, m in pairs]).astype(x.dtype).reshape(shape)


def masked_scatter(x: np.ndarray, mask: np.ndarray, source: np.ndarray) -> np.ndarray:
    new = iter(source.ravel())
    pairs = zip(x.ravel(), np.broadcast_to(mask, x.shape).ravel(), strict=True)
    return np.array([next(new) if m else v for v, m in pairs]).reshape(x.shape)


def nonzero(x: np.ndarray, as_tuple: bool = False) -> Any:
    rows = [place for place in np.ndindex(*x.shape) if x[place]]
    if as_tuple:
        return [np.array([r[d] for r in rows], np.int64) for d in range(x.ndim)]
    return np.array(rows, np.int64).reshape(len(rows), x.ndim)


def one_hot(x: np.ndarray, num_classes: int = -1) -> np.ndarray:
    count = int(x.max()) + 1 if num_classes == -1 else num_classes
    return np.array([[int(c == v) for c in range(count)] for v in x.ravel()]).reshape(*x.shape, count)


def narrow(x: np.ndarray, dim: int, start: int, length: int) -> np.ndarray:
    first = start + x.shape[dim] if start < 0 else start
    return index_select(x, dim, np.arange(first, first + length))


def slice_scatter(
    x: np.ndarray, src: np.ndarray, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> np.ndarray:
    return index_reduce(x, dim, np.arange(x.shape[dim])[start:end:step], src, "last", include_self=False)


def diagonal_scatter(x: np.ndarray, src: np.ndarray, offset: int = 0, dim1: int = 0, dim2: int = 1) -> np.ndarray:
    out = x.copy()
    view = np.moveaxis(out, (dim1, dim2), (-2, -1))
    for k in range(src.shape[-1]):
        view[..., k + max(-offset, 0), k + max(offset, 0)] = src[..., k]
    return out


ORACLES = {
    "gather": gather,
    "scatter": scatter,
    "scatter_add": scatter_reduce,
    "scatter_reduce": scatter_reduce,
    "take_along_dim": take_along_dim,
    "index_select": index_select,
    "index_add": lambda x, dim, index, source, alpha=1: index_reduce(x, dim, index, alpha * source),
    "index_copy": lambda x, dim, index, source: index_reduce(x, dim, index, source, "last", include_self=False),
    "index_fill": index_fill,
    "index_reduce": index_reduce,
    "index_put": index_put,
    "take": lambda x, index: np.array([x.ravel()[i] for i in index.ravel()]).reshape(index.shape),
    "put": put,
    "masked_select": masked_select,
    "masked_fill": masked_fill,
    "masked_scatter": masked_scatter,
    "nonzero": nonzero,
    "argwhere": nonzero,
    "one_hot": one_hot,
    "select": lambda x, dim, index: np.moveaxis(x, dim, 0)[index],
    "narrow": narrow,
    "slice_scatter": slice_scatter,
    "select_scatter": lambda x, src, dim, index: index_fill(x, dim, np.array([index]), src),
    "diagonal_scatter": diagonal_scatter,
}
