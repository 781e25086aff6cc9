"""Shape and memory movement: views share memory, and every gradient here is only a redirection.

The primitives are `view`, `permute`, `expand`, `slice`, `diagonal`, `windows`, `as_strided`, `split`, `unbind` (views),
`clone`, `flip`, `cat`, and their counterparts that put a gradient back in its place. All else about shapes is composed of
them, in `reshape.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...core.dispatch import apply
from ...core.op import Op, primitive
from ...core.shape_inference import Spec, from_attrs, like_first
from ...core.tape.engine import sum_to
from ...core.tape.inplace import apply_view_chain
from ...core.tensor import Tensor

CLONE = primitive("clone", "movement", lambda xp, x: x.copy(order="C"), grad={"x": lambda g: g}, infer=like_first)
VIEW = primitive(
    "view",
    "movement",
    lambda xp, x, *, shape: x.reshape(shape),
    grad={"x": lambda g, x_shape: g.reshape(x_shape)},
    view=True,
)
PERMUTE: Op = primitive(
    "permute",
    "movement",
    lambda xp, x, *, dims: x.transpose(dims),
    grad={"x": lambda g, dims: apply(PERMUTE, (g,), {"dims": inverse(dims)})},
    view=True,
)
EXPAND = primitive(
    "expand",
    "movement",
    lambda xp, x, *, shape: strided(xp, x, shape, (0,) * (len(shape) - x.ndim) + expanded_strides(x, shape)),
    grad={"x": lambda g, x_shape: sum_to(g, x_shape)},
    view=True,
)


def slice_gradient(g: Tensor, index: tuple[Any, ...], x_shape: tuple[int, ...]) -> Tensor:
    """Zeros around it; only another shape if nothing was cut away."""
    if all(i is None or i is ... or i == slice(None) for i in index):
        return g.reshape(x_shape)
    return apply(UNSLICE, (g,), {"index": index, "shape": x_shape, "fill": 0})


SLICE: Op = primitive("slice", "movement", lambda xp, x, *, index: x[index], grad={"x": slice_gradient}, view=True)


def run_unslice(xp: Any, g: Any, *, index: Any, shape: tuple[int, ...], fill: float) -> Any:
    full = xp.zeros(shape, g.dtype) if fill == 0 else xp.full(shape, fill, g.dtype)
    full[index] = g
    return full


UNSLICE: Op = primitive(
    "unslice",
    "movement",
    run_unslice,
    grad={"g": lambda g, index: apply(SLICE, (g,), {"index": index})},
    infer=from_attrs,
)
FLIP: Op = primitive(
    "flip",
    "movement",
    lambda xp, x, *, dims: xp.flip(x, dims).copy(order="C"),
    grad={"x": lambda g, dims: apply(FLIP, (g,), {"dims": dims})},
    infer=like_first,
)


def inverse(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes `dims`."""
    back = [0] * len(dims)
    for i, d in enumerate(dims):
        back[d] = i
    return tuple(back)


def strided(xp: Any, x: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """A writeable view that begins where `x` begins; strides in bytes."""
    if type(x) is np.ndarray and x.flags.c_contiguous and x.size:
        return np.ndarray(shape, x.dtype, x, 0, strides)  # a tenth of as_strided's time
    return xp.lib.stride_tricks.as_strided(x, shape, strides)


def expanded_strides(x: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """An array's strides with 0 where `shape` stretches a length of 1."""
    tail = shape[len(shape) - x.ndim :]
    return tuple(0 if n == 1 and m != 1 else s for n, m, s in zip(x.shape, tail, x.strides, strict=True))


# ---- diagonals


def run_diagonal(xp: Any, x: Any, *, offset: int, dim1: int, dim2: int) -> Any:
    begin: list[Any] = [slice(None)] * x.ndim
    begin[dim1], begin[dim2] = slice(max(-offset, 0), None), slice(max(offset, 0), None)
    corner = x[tuple(begin)]
    rest = [d for d in range(x.ndim) if d not in (dim1, dim2)]
    shape = (*(x.shape[d] for d in rest), min(corner.shape[dim1], corner.shape[dim2]))
    strides = (*(x.strides[d] for d in rest), x.strides[dim1] + x.strides[dim2])
    return strided(xp, corner, shape, strides)


def run_undiagonal(xp: Any, g: Any, *, shape: tuple[int, ...], offset: int, dim1: int, dim2: int) -> Any:
    full = xp.zeros(shape, g.dtype)
    run_diagonal(xp, full, offset=offset, dim1=dim1, dim2=dim2)[...] = g
    return full


DIAGONAL = primitive(
    "diagonal",
    "movement",
    run_diagonal,
    grad={
        "x": lambda g, x_shape, offset, dim1, dim2: apply(
            UNDIAGONAL, (g,), {"shape": tuple(x_shape), "offset": offset, "dim1": dim1, "dim2": dim2}
        )
    },
    view=True,
)
UNDIAGONAL: Op = primitive(
    "undiagonal",
    "movement",
    run_undiagonal,
    grad={"g": lambda g, offset, dim1, dim2: apply(DIAGONAL, (g,), {"offset": offset, "dim1": dim1, "dim2": dim2})},
    infer=from_attrs,
)

# ---- sliding windows


def run_windows(xp: Any, x: Any, *, dim: int, size: int, step: int) -> Any:
    count = (x.shape[dim] - size) // step + 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :], size)
    strides = (*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :], x.strides[dim])
    return strided(xp, x, shape, strides)


def run_unwindows(xp: Any, g: Any, *, dim: int, size: int, step: int, length: int) -> Any:
    """Every element gets the sum over the windows it stood in: one shifted addition for each place in a window."""
    full = xp.zeros((*g.shape[:dim], length, *g.shape[dim + 1 : -1]), g.dtype)
    for k in range(size):
        place = (slice(None),) * dim + (slice(k, k + step * (g.shape[dim] - 1) + 1, step),)
        full[place] += g[..., k]
    return full


WINDOWS = primitive(
    "windows",
    "movement",
    run_windows,
    grad={
        "x": lambda g, x_shape, dim, size, step: apply(
            UNWINDOWS, (g,), {"dim": dim, "size": size, "step": step, "length": x_shape[dim]}
        )
    },
    view=True,
)
UNWINDOWS: Op = primitive(
    "unwindows",
    "movement",
    run_unwindows,
    grad={"g": lambda g, dim, size, step: apply(WINDOWS, (g,), {"dim": dim, "size": size, "step": step})},
    upcast=True,
    infer=lambda g, *, dim, length, **attrs: (Spec((*g.shape[:dim], length, *g.shape[dim + 1 : -1]), g.dtype),),
)

# ---- arbitrary strides; the input is always the whole, contiguous memory


def run_as_strided(xp: Any, x: Any, *, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Any:
    return strided(xp, x.reshape(-1)[offset:], size, tuple(s * x.itemsize for s in stride))


def run_as_strided_sum(
    xp: Any, g: Any, *, size: tuple[int, ...], stride: tuple[int, ...], offset: int, shape: tuple[int, ...]
) -> Any:
    full = xp.zeros(math.prod(shape), g.dtype)
    where = run_as_strided(xp, xp.arange(full.size), size=size, stride=stride, offset=offset)
    xp.add.at(full, where.reshape(-1), g.reshape(-1))
    return full.reshape(shape)


AS_STRIDED = primitive(
    "as_strided",
    "movement",
    run_as_strided,
    grad={
        "x": lambda g, x_shape, size, stride, offset: apply(
            AS_STRIDED_SUM, (g,), {"size": size, "stride": stride, "offset": offset, "shape": tuple(x_shape)}
        )
    },
    view=True,
)
AS_STRIDED_SUM: Op = primitive(
    "as_strided_sum",
    "movement",
    run_as_strided_sum,
    grad={
        "g": lambda g, size, stride, offset: apply(
            AS_STRIDED, (g.contiguous(),), {"size": size, "stride": stride, "offset": offset}
        )
    },
    upcast=True,
    infer=from_attrs,
)

# ---- joining and parting


def cat_gradient(g: Tensor, shapes: Any, needs: Any, dim: int) -> tuple[Tensor | None, ...]:
    pieces, start = [], 0
    for shape, need in zip(shapes, needs, strict=True):
        place = (slice(None),) * dim + (slice(start, start + shape[dim]),)
        pieces.append(apply(SLICE, (g,), {"index": place}) if need else None)
        start += shape[dim]
    return tuple(pieces)


def infer_cat(*xs: Spec, dim: int) -> tuple[Spec]:
    first = xs[0]
    if len({(*x.shape[:dim], 0, *x.shape[dim + 1 :]) for x in xs}) > 1 or len({x.dtype for x in xs}) > 1:
        raise ValueError("only along one dimension may sizes differ")
    return (Spec((*first.shape[:dim], sum(x.shape[dim] for x in xs), *first.shape[dim + 1 :]), first.dtype),)


CAT = primitive("cat", "movement", lambda xp, *arrays, dim: xp.concatenate(arrays, dim), grad=cat_gradient, infer=infer_cat)


def run_split(xp: Any, x: Any, *, sizes: tuple[int, ...], dim: int) -> Any:
    parts, start = [], 0
    for n in sizes:
        parts.append(x[(slice(None),) * dim + (slice(start, start + n),)])
        start += n
    return tuple(parts)


def split_gradient(gs: list[Tensor | None], sizes: tuple[int, ...], dim: int, x_shape: Any) -> tuple[Tensor]:
    like = next(g for g in gs if g is not None)

    def zeros(n: int) -> Tensor:
        return like.new_zeros((*x_shape[:dim], n, *x_shape[dim + 1 :]))

    parts = tuple(zeros(n) if g is None else g for g, n in zip(gs, sizes, strict=True))
    return (apply(CAT, parts, {"dim": dim}),)


def unbind_gradient(gs: list[Tensor | None], dim: int) -> tuple[Tensor]:
    like = next(g for g in gs if g is not None)
    zero = None if all(g is not None for g in gs) else like.new_zeros(like.shape)
    place = (slice(None),) * dim + (None,)
    parts = tuple(apply(SLICE, (zero if g is None else g,), {"index": place}) for g in gs)
    return (apply(CAT, parts, {"dim": dim}),)


SPLIT = primitive("split", "movement", run_split, grad=split_gradient, view=True)
UNBIND = primitive(
    "unbind",
    "movement",
    lambda xp, x, *, dim: tuple(x[(slice(None),) * dim + (i, ...)] for i in range(x.shape[dim])),
    grad=unbind_gradient,
    view=True,
)

# ---- writing through views


def run_view_scatter(xp: Any, base: Any, value: Any, *, chain: tuple[Any, ...]) -> Any:
    full = base.copy()
    view = full
    for op, attrs, index in chain:
        view = op.run(xp, view, **attrs)
        view = view if index is None else view[index]
    view[...] = value
    return full


VIEW_SCATTER: Op = primitive(
    "view_scatter",
    "movement",
    run_view_scatter,
    grad={
        "base": lambda g, chain: apply(VIEW_SCATTER, (g, g.new_zeros(())), {"chain": chain}),
        "value": lambda g, chain: apply_view_chain(g, chain),
    },
    infer=like_first,
)
