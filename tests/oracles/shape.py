"""References for shapes, joining and arranging: each result element by element, from a rule that says where it comes from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np


def build(shape: Any, rule: Callable[..., Any], dtype: Any) -> np.ndarray:
    """An array of a shape whose element at (i, j, ...) is rule(i, j, ...)."""
    out = np.zeros(tuple(shape), dtype)
    for place in np.ndindex(*out.shape):
        out[place] = rule(*place)
    return out


def elements(x: np.ndarray) -> list[Any]:
    """All elements in the order of their indices."""
    return [x[place] for place in np.ndindex(*x.shape)]


def sizes(shape: tuple[Any, ...]) -> list[int]:
    return list(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else list(shape)


def reshape(x: np.ndarray, *shape: Any) -> np.ndarray:
    wanted = sizes(shape)
    if -1 in wanted:
        known = math.prod(n for n in wanted if n != -1)
        wanted[wanted.index(-1)] = x.size // known
    values = iter(elements(x))
    return build(wanted, lambda *place: next(values), x.dtype)


def permute(x: np.ndarray, *dims: Any) -> np.ndarray:
    order = [d % x.ndim for d in sizes(dims)]

    def rule(*place: int) -> Any:
        source = [0] * x.ndim
        for i, d in zip(place, order, strict=True):
            source[d] = i
        return x[tuple(source)]

    return build([x.shape[d] for d in order], rule, x.dtype)


def transpose(x: np.ndarray, a: int, b: int) -> np.ndarray:
    if x.ndim == 0:
        return x
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


def squeeze(x: np.ndarray, dim: Any = None) -> np.ndarray:
    dims = range(x.ndim) if dim is None else [d % x.ndim for d in (dim if isinstance(dim, tuple) else (dim,))]
    return reshape(x, [n for d, n in enumerate(x.shape) if n != 1 or d not in dims])


def unsqueeze(x: np.ndarray, dim: int) -> np.ndarray:
    shape = list(x.shape)
    shape.insert(dim if dim >= 0 else dim + x.ndim + 1, 1)
    return reshape(x, shape)


def expand(x: np.ndarray, *size: Any) -> np.ndarray:
    wanted = sizes(size)
    extra = len(wanted) - x.ndim
    wanted = [x.shape[i - extra] if n == -1 else n for i, n in enumerate(wanted)]
    return build(wanted, lambda *p: x[tuple(0 if n == 1 else i for i, n in zip(p[extra:], x.shape, strict=True))], x.dtype)


def flatten(x: np.ndarray, start_dim: int = 0, end_dim: int = -1) -> np.ndarray:
    if x.ndim == 0:
        return reshape(x, 1)
    a, b = start_dim % x.ndim, end_dim % x.ndim
    return reshape(x, [*x.shape[:a], math.prod(x.shape[a : b + 1]), *x.shape[b + 1 :]])


def unflatten(x: np.ndarray, dim: int, parts: Any) -> np.ndarray:
    d = dim % x.ndim
    return reshape(x, [*x.shape[:d], *parts, *x.shape[d + 1 :]])


def movedim(x: np.ndarray, source: Any, destination: Any) -> np.ndarray:
    if x.ndim == 0:
        return x
    pairs = [[d % x.ndim for d in ((v,) if isinstance(v, int) else v)] for v in (source, destination)]
    order = [d for d in range(x.ndim) if d not in pairs[0]]
    for to, origin in sorted(zip(pairs[1], pairs[0], strict=True)):
        order.insert(to, origin)
    return permute(x, order)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    ndim = max(len(s) for s in shapes)
    wide = [(1,) * (ndim - len(s)) + tuple(s) for s in shapes]
    return tuple(next((n for n in column if n != 1), 1) for column in zip(*wide, strict=True))


def broadcast_tensors(*xs: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(expand(x, broadcast_shapes(*[y.shape for y in xs])) for x in xs)


def at_least(ndim: int) -> Callable[..., Any]:
    def wide(x: np.ndarray) -> np.ndarray:
        if ndim == 3 and x.ndim < 3:
            return reshape(x, {0: [1, 1, 1], 1: [1, x.size, 1], 2: [*x.shape, 1]}[x.ndim])
        return reshape(x, [1] * (ndim - x.ndim) + list(x.shape))

    return lambda *xs: wide(xs[0]) if len(xs) == 1 else tuple(wide(x) for x in xs)


def diagonal(x: np.ndarray, offset: int = 0, dim1: int = 0, dim2: int = 1) -> np.ndarray:
    a, b = dim1 % x.ndim, dim2 % x.ndim
    rest = [d for d in range(x.ndim) if d not in (a, b)]
    y = permute(x, [*rest, a, b])
    row, column = max(-offset, 0), max(offset, 0)
    length = max(0, min(y.shape[-2] - row, y.shape[-1] - column))
    return build([*y.shape[:-2], length], lambda *p: y[(*p[:-1], row + p[-1], column + p[-1])], x.dtype)


def unfold(x: np.ndarray, dim: int, size: int, step: int) -> np.ndarray:
    d = dim % x.ndim
    starts = [s for s in range(0, x.shape[d], step) if s + size <= x.shape[d]]
    return build(
        [*x.shape[:d], len(starts), *x.shape[d + 1 :], size],
        lambda *p: x[(*p[:d], starts[p[d]] + p[-1], *p[d + 1 : -1])],
        x.dtype,
    )


def as_strided(x: np.ndarray, size: Any, stride: Any, offset: int = 0) -> np.ndarray:
    memory = elements(x)
    return build(size, lambda *p: memory[offset + sum(i * s for i, s in zip(p, stride, strict=True))], x.dtype)


# ---- joining and parting


def cat(parts: Any, dim: int = 0) -> np.ndarray:
    d = dim % parts[0].ndim
    owners = [(x, i) for x in parts for i in range(x.shape[d])]
    shape = list(parts[0].shape)
    shape[d] = len(owners)
    return build(shape, lambda *p: owners[p[d]][0][(*p[:d], owners[p[d]][1], *p[d + 1 :])], parts[0].dtype)


def stack(parts: Any, dim: int = 0) -> np.ndarray:
    return cat([unsqueeze(x, dim) for x in parts], dim)


def pieces(x: np.ndarray, lengths: Any, dim: int) -> list[np.ndarray]:
    d, start, found = dim % x.ndim, 0, []
    for n in lengths:
        found.append(
            build([*x.shape[:d], n, *x.shape[d + 1 :]], lambda *p, s=start: x[(*p[:d], p[d] + s, *p[d + 1 :])], x.dtype)
        )
        start += n
    return found


def split(x: np.ndarray, size: Any, dim: int = 0) -> list[np.ndarray]:
    if isinstance(size, int):
        n = x.shape[dim]
        size = [size] * (n // size) + ([n % size] if n % size else [])
    return pieces(x, size, dim)


def unbind(x: np.ndarray, dim: int = 0) -> list[np.ndarray]:
    return [squeeze(p, dim) for p in pieces(x, [1] * x.shape[dim], dim)]


def tensor_split(x: np.ndarray, cuts: Any, dim: int = 0) -> list[np.ndarray]:
    return np.array_split(x, cuts, dim) if isinstance(cuts, int) else np.split(x, list(cuts), dim)


def block_diag(*parts: np.ndarray) -> np.ndarray:
    blocks = [reshape(x, [1, x.size]) if x.ndim < 2 else x for x in parts]
    out = np.zeros((sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)))
    row = column = 0
    for b in blocks:
        for i, j in np.ndindex(*b.shape):
            out[row + i, column + j] = b[i, j]
        row, column = row + b.shape[0], column + b.shape[1]
    return out


def meshgrid(*parts: Any, indexing: str) -> list[np.ndarray]:
    vectors = [np.ravel(x) for x in (parts[0] if isinstance(parts[0], list) else parts)]
    return list(np.meshgrid(*vectors, indexing=indexing))


def cartesian_prod(*vectors: np.ndarray) -> np.ndarray:
    rows = list(itertools.product(*vectors))
    return np.array(rows) if len(vectors) > 1 else vectors[0]


def combinations(x: np.ndarray, r: int = 2, with_replacement: bool = False) -> np.ndarray:
    places = [
        p
        for p in itertools.product(range(x.size), repeat=r)
        if all(a < b or (with_replacement and a == b) for a, b in itertools.pairwise(p))
    ]
    return np.array([[x[i] for i in p] for p in places]).reshape(len(places), r)


# ---- arranging


def repeat(x: np.ndarray, *times: Any) -> np.ndarray:
    wanted = sizes(times)
    extra = len(wanted) - x.ndim
    full = [1] * extra + list(x.shape)
    shape = [n * m for n, m in zip(wanted, full, strict=True)]
    return build(shape, lambda *p: x[tuple(i % n for i, n in zip(p[extra:], x.shape, strict=True))], x.dtype)


def tile(x: np.ndarray, *times: Any) -> np.ndarray:
    return np.tile(x, sizes(times))


def repeat_interleave(x: np.ndarray, repeats: Any = None, dim: int | None = None) -> np.ndarray:
    if repeats is None:
        return np.array([i for i, n in enumerate(x) for _ in range(n)], np.int64)
    return np.repeat(x, repeats, dim)


def roll(x: np.ndarray, shifts: Any, dims: Any = None) -> np.ndarray:
    if dims is None:
        values = elements(x)
        n = len(values)
        return reshape(np.array([values[(i - shifts) % n] for i in range(n)]), list(x.shape))
    pairs = [(shifts, dims)] if isinstance(dims, int) else list(zip(shifts, dims, strict=True))
    by = {d % x.ndim: s for s, d in pairs}
    return build(x.shape, lambda *p: x[tuple((i - by.get(d, 0)) % x.shape[d] for d, i in enumerate(p))], x.dtype)


def flip(x: np.ndarray, *dims: Any) -> np.ndarray:
    turned = [d % x.ndim for d in sizes(dims)]
    return build(x.shape, lambda *p: x[tuple(x.shape[d] - 1 - i if d in turned else i for d, i in enumerate(p))], x.dtype)


def pad(x: np.ndarray, pad: Any, mode: str = "constant", value: float = 0.0) -> np.ndarray:
    before = {x.ndim - 1 - k: pad[2 * k] for k in range(len(pad) // 2)}
    after = {x.ndim - 1 - k: pad[2 * k + 1] for k in range(len(pad) // 2)}
    shape = [n + before.get(d, 0) + after.get(d, 0) for d, n in enumerate(x.shape)]

    def inside(i: int, n: int) -> int | None:
        if mode == "reflect":
            return n - 1 - abs(n - 1 - abs(i))
        if mode == "replicate":
            return min(max(i, 0), n - 1)
        return i % n if mode == "circular" else i if 0 <= i < n else None

    def rule(*place: int) -> Any:
        source = [inside(i - before.get(d, 0), x.shape[d]) for d, i in enumerate(place)]
        return value if None in source else x[tuple(source)]

    return build(shape, rule, x.dtype)


def triangle(lower: bool) -> Callable[..., np.ndarray]:
    def function(x: np.ndarray, diagonal: int = 0) -> np.ndarray:
        def rule(*p: int) -> Any:
            above = p[-1] - p[-2]
            return x[p] if (above <= diagonal if lower else above >= diagonal) else 0

        return build(x.shape, rule, x.dtype)

    return function


def diag_embed(x: np.ndarray, offset: int = 0, dim1: int = -2, dim2: int = -1) -> np.ndarray:
    n = x.shape[-1] + abs(offset)
    row, column = max(-offset, 0), max(offset, 0)

    def rule(*p: int) -> Any:
        k = p[-2] - row
        return x[(*p[:-2], k)] if p[-1] - column == k and 0 <= k < x.shape[-1] else 0

    return np.moveaxis(build([*x.shape[:-1], n, n], rule, x.dtype), (-2, -1), (dim1, dim2))


def diag(x: np.ndarray, diagonal_: int = 0, diagonal: int | None = None) -> np.ndarray:
    offset = diagonal_ if diagonal is None else diagonal
    return diag_embed(x, offset) if x.ndim == 1 else _diagonal(x, offset)


_diagonal = diagonal

ORACLES = {
    "reshape": reshape,
    "view": reshape,
    "permute": permute,
    "transpose": transpose,
    "t": lambda x: transpose(x, 0, 1) if x.ndim == 2 else x,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "expand": expand,
    "flatten": flatten,
    "ravel": lambda x: np.array(elements(x)),
    "unflatten": unflatten,
    "reshape_as": lambda x, other: reshape(x, other.shape),
    "view_as": lambda x, other: reshape(x, other.shape),
    "expand_as": lambda x, other: expand(x, other.shape),
    "broadcast_to": expand,
    "broadcast_shapes": broadcast_shapes,
    "broadcast_tensors": broadcast_tensors,
    "movedim": movedim,
    "moveaxis": movedim,
    "swapaxes": transpose,
    "swapdims": transpose,
    "adjoint": lambda x: transpose(x, -2, -1),
    "atleast_1d": at_least(1),
    "atleast_2d": at_least(2),
    "atleast_3d": at_least(3),
    "diagonal": diagonal,
    "Tensor.unfold": unfold,
    "as_strided": as_strided,
    "numel": lambda x: math.prod(x.shape),
    "cat": cat,
    "concat": cat,
    "concatenate": cat,
    "stack": stack,
    "hstack": np.hstack,
    "vstack": np.vstack,
    "row_stack": np.vstack,
    "dstack": np.dstack,
    "column_stack": np.column_stack,
    "block_diag": block_diag,
    "meshgrid": meshgrid,
    "cartesian_prod": cartesian_prod,
    "combinations": combinations,
    "split": split,
    "split_with_sizes": split,
    "unbind": unbind,
    "chunk": lambda x, chunks, dim=0: split(x, -(-x.shape[dim] // chunks), dim),
    "tensor_split": tensor_split,
    "hsplit": lambda x, cuts: tensor_split(x, cuts, 1 if x.ndim > 1 else 0),
    "vsplit": tensor_split,
    "dsplit": lambda x, cuts: tensor_split(x, cuts, 2),
    "repeat": repeat,
    "tile": tile,
    "repeat_interleave": repeat_interleave,
    "roll": roll,
    "flip": flip,
    "fliplr": lambda x: flip(x, 1),
    "flipud": lambda x: flip(x, 0),
    "rot90": np.rot90,
    "pad": pad,
    "tril": triangle(lower=True),
    "triu": triangle(lower=False),
    "diag": diag,
    "diagflat": lambda x, offset=0: diag_embed(np.array(elements(x)), offset),
    "diag_embed": diag_embed,
}
