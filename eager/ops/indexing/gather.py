"""Gather and scatter: an index for each element, along one dim.

    gather:  out[i][j] = x[index[i][j]][j]        scatter:  x[index[i][j]][j] = src[i][j]        (along dim 0)

Kernels work on flat memory: `positions` says where each index points. The gradient of one is the other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arrays import dtypes
from ...arrays.op_samples import A, I, sample
from ...core.cast import cast
from ...core.dispatch import InPlace, apply
from ...core.op import Op, primitive
from ...core.registration import public
from ...core.shape_inference import Spec, from_attrs, like_first
from ...core.tensor import Tensor, wrap_dim
from ..pointwise import where
from ..shape.reshape import broadcast_shape
from ..shape.views import SLICE
from .primitives import in_place_op, store_in_out, store_result, wrap_and_check

# ---- the primitives; `index` has as many dims as the tensor and is no longer than it except along `dim`


def positions(xp: Any, index: Any, shape: tuple[int, ...], dim: int) -> Any:
    """Return the offset of each index in the flat memory of a contiguous array of this shape."""
    found = wrap_and_check(xp, index, dim, shape[dim], strict=True).astype(np.int64) * math.prod(shape[dim + 1 :])
    for d, n in enumerate(index.shape):
        if d != dim and n != 1:
            step = math.prod(shape[d + 1 :])
            found = found + (xp.arange(n) * step).reshape((n,) + (1,) * (index.ndim - d - 1))
    return found


def run_gather(xp: Any, x: Any, index: Any, *, dim: int) -> Any:
    if x.flags.c_contiguous:
        return x.reshape(-1).take(positions(xp, index, x.shape, dim))
    needed = tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(index.shape))
    return xp.take_along_axis(x[needed], wrap_and_check(xp, index, dim, x.shape[dim], strict=True), dim)


def run_scatter(xp: Any, x: Any, index: Any, src: Any, *, dim: int) -> Any:
    return put_along(xp, x.copy(order="C"), index, src, dim=dim)


def put_along(xp: Any, full: Any, index: Any, src: Any, *, dim: int) -> Any:
    full.reshape(-1)[positions(xp, index, full.shape, dim)] = src
    return full


def run_scatter_sum(xp: Any, src: Any, index: Any, *, dim: int, shape: tuple[int, ...]) -> Any:
    return add_along(xp, xp.zeros(shape, src.dtype), index, src, dim=dim)


def run_scatter_add(xp: Any, x: Any, index: Any, src: Any, *, dim: int) -> Any:
    return add_along(xp, x.copy(order="C"), index, src, dim=dim)


def add_along(xp: Any, full: Any, index: Any, src: Any, *, dim: int) -> Any:
    return combine(xp, "add", full, positions(xp, index, full.shape, dim), src)


UFUNCS = {"prod": "multiply", "amax": "maximum", "amin": "minimum"}


def run_scatter_reduce(xp: Any, x: Any, index: Any, src: Any, *, dim: int, reduce: str) -> Any:
    return combine(xp, UFUNCS[reduce], x.copy(order="C"), positions(xp, index, x.shape, dim), src)


def combine(xp: Any, name: str, full: Any, place: Any, src: Any) -> Any:
    """memory[place] = name(memory[place], src), one after the other where a place occurs several times."""
    ufunc, place, src = getattr(xp, name), place.reshape(-1), src.reshape(-1)
    if xp is np:
        ufunc.at(full.reshape(-1), place, src)
    elif name == "multiply":
        _multiply_at(xp, full.reshape(-1), place, src)
    elif full.dtype.kind in "biu" and full.dtype.itemsize < 4:  # CuPy combines only wider integers
        wide = full.astype(np.int64)
        ufunc.at(wide.reshape(-1), place, src.astype(np.int64))
        return wide.astype(full.dtype)
    else:
        ufunc.at(full.reshape(-1), place, src)
    return full


def _multiply_at(xp: Any, memory: Any, place: Any, src: Any) -> None:
    """CuPy has no `multiply.at`: in each round every place takes the next of the factors meant for it."""
    order = xp.argsort(place)
    place, src = place[order], src[order]
    first = xp.searchsorted(place, place, side="left")
    turn = xp.arange(place.size) - first
    for k in range(int(turn.max()) + 1 if place.size else 0):
        now = turn == k
        memory[place[now]] = memory[place[now]] * src[now]


def scatter_reduce_gradient(
    g: Tensor, x: Tensor, index: Tensor, src: Tensor, out: Tensor, needs: Any, dim: int, reduce: str
) -> tuple[Tensor | None, ...]:
    rule = prod_gradient if reduce == "prod" else extreme_gradient
    of_x, of_src = rule(g, x, index, src, out, dim)
    return (of_x if needs[0] else None, None, of_src if needs[2] else None)


def extreme_gradient(g: Tensor, x: Tensor, index: Tensor, src: Tensor, out: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """In equal parts to all that are the maximum."""
    x_hits, src_hits = cast(x == out, g.dtype), cast(src == pick(out, index, dim), g.dtype)
    share = g / put_sum(x_hits, index, src_hits, dim)
    return x_hits * share, src_hits * pick(share, index, dim)


def prod_gradient(g: Tensor, x: Tensor, index: Tensor, src: Tensor, out: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The product of the other factors: by division where a factor is not 0, else the product without that one zero."""
    attrs = {"dim": dim, "reduce": "prod"}
    safe_x = where(x == 0, 1, x)
    of_x = g * apply(SCATTER_REDUCE, (safe_x, index, src), attrs) / safe_x
    zero = src == 0
    zeros = apply(SCATTER_SUM, (cast(zero, g.dtype), index), {"dim": dim, "shape": x.tj_array.shape})
    alone = zero & (pick(zeros, index, dim) == 1)
    without = apply(SCATTER_REDUCE, (x, index, where(alone, 1, src)), attrs)
    divided = pick(g * out, index, dim) / where(zero, 1, src)
    return of_x, where(alone, pick(g * without, index, dim), divided)


def pick(x: Tensor, index: Tensor, dim: int) -> Tensor:
    return apply(GATHER, (x, index), {"dim": dim})


def put_sum(x: Tensor, index: Tensor, src: Tensor, dim: int) -> Tensor:
    return apply(SCATTER_ADD, (x, index, src), {"dim": dim})


GATHER = primitive(
    "gather",
    "index",
    run_gather,
    grad={"x": lambda g, index, x_shape, dim: apply(SCATTER_SUM, (g, index), {"dim": dim, "shape": x_shape})},
    infer=lambda x, index, *, dim: (Spec(index.shape, x.dtype),),
)
SCATTER_SUM: Op = primitive(
    "scatter_sum",
    "index",
    run_scatter_sum,
    grad={"src": lambda g, index, dim: pick(g, index, dim)},
    upcast=True,
    infer=from_attrs,
)
SCATTER: Op = primitive(
    "scatter",
    "index",
    run_scatter,
    grad={
        "x": lambda g, index, dim: apply(SCATTER, (g, index, 0), {"dim": dim}),
        "src": lambda g, index, dim: pick(g, index, dim),
    },
    infer=like_first,
)
SCATTER_ADD = primitive(
    "scatter_add",
    "index",
    run_scatter_add,
    grad={"x": lambda g: g, "src": lambda g, index, dim: pick(g, index, dim)},
    expand=lambda x, index, src, *, dim: x + apply(SCATTER_SUM, (src, index), {"dim": dim, "shape": x.tj_array.shape}),
    upcast=True,
)
SCATTER_REDUCE = primitive("scatter_reduce", "index", run_scatter_reduce, grad=scatter_reduce_gradient, upcast=True)
SCATTER_INTO = in_place_op(SCATTER, put_along)
SCATTER_ADD_INTO = in_place_op(SCATTER_ADD, add_along)

# ---- arguments


def check_index(name: str, index: Any) -> None:
    if not isinstance(index, Tensor):
        raise TypeError(f"{name}(): argument 'index' must be Tensor, not {type(index).__name__}")
    if index.tj_array.dtype.kind != "i" or index.tj_array.dtype.itemsize < 4:
        raise RuntimeError(f"{name}(): Expected dtype int32/int64 for index but got {index.dtype}; convert it with .long()")


def check_sizes(input: Tensor, dim: int, index: Tensor, src: Tensor | None, what: str) -> None:
    """PyTorch's rule: the index is no longer than the tensor except along `dim`, and nowhere longer than the source."""
    shape, have = index.tj_array.shape, input.tj_array.shape
    if len(shape) != len(have) or (src is not None and src.tj_array.ndim != len(have)):
        raise RuntimeError(
            f"Index tensor must have the same number of dimensions as {what} tensor: the index has shape {list(shape)}, {what} "
            f"{list(have)}" + ("" if src is None else f", src {list(src.shape)}")
        )
    long = any(n > m for d, (n, m) in enumerate(zip(shape, have, strict=True)) if d != dim)
    if long or (src is not None and any(n > m for n, m in zip(shape, src.tj_array.shape, strict=True))):
        more = "" if src is None else f" and to be no larger size than src {list(src.shape)}"
        raise RuntimeError(
            f"Expected index {list(shape)} to be no larger than {what} {list(have)} apart from dimension {dim}{more}"
        )


def flat_if_scalar(x: Tensor) -> Tensor:
    return x.reshape(1) if x.tj_array.ndim == 0 else x


def slice_to_index(src: Tensor, index: Tensor) -> Tensor:
    """The part of the source that the index speaks of."""
    if src.tj_array.shape == index.tj_array.shape:
        return src
    return apply(SLICE, (src,), {"index": tuple(slice(0, n) for n in index.tj_array.shape)})


def prepare_scatter(
    name: str, input: Tensor, dim: int, index: Tensor, src: Tensor
) -> tuple[int, Tensor, Tensor, Tensor] | None:
    """The checked arguments of a scatter, 0-dim ones with one dim; None if the index is empty and nothing is to be done."""
    check_index(name, index)
    place = wrap_dim(dim, input.tj_array.ndim)
    if not isinstance(src, Tensor):
        raise TypeError(f"{name}(): argument 'src' must be Tensor, not {type(src).__name__}")
    if src.tj_array.dtype != input.tj_array.dtype:
        raise RuntimeError(f"{name}(): Expected self.dtype to be equal to src.dtype, but got {input.dtype} and {src.dtype}")
    if index.tj_array.size == 0:
        return None
    x, index, src = flat_if_scalar(input), flat_if_scalar(index), flat_if_scalar(src)
    check_sizes(x, place, index, src, "self")
    return place, x, index, slice_to_index(src, index)


# ---- public


@public(
    samples=[
        sample(A(3, 4), 0, I(2, 4, hi=3)),
        sample(A(3, 4), 1, I(3, 6, hi=4)),
        sample(A(3, 4), -1, I(2, 1, hi=4)),
        sample(A(), 0, I(hi=1)),
        sample(A(2, 3, 2), 1, I(2, 2, 2, hi=3)),
    ],
    op=GATHER,
)
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False, out: Any = None) -> Tensor:
    """Elements picked along `dim`: as many as there are indices."""
    check_index("gather", index)
    place = wrap_dim(dim, input.tj_array.ndim)
    if index.tj_array.size == 0:
        return store_in_out(input.new_zeros(index.tj_array.shape), out, "gather")
    x, flat = flat_if_scalar(input), flat_if_scalar(index)
    if flat.tj_array.ndim != x.tj_array.ndim:
        raise RuntimeError(
            "Index tensor must have the same number of dimensions as input tensor, got shapes "
            f"{list(index.shape)} and {list(input.shape)}"
        )
    for d, (n, m) in enumerate(zip(flat.tj_array.shape, x.tj_array.shape, strict=True)):
        if d != place and n > m:
            raise RuntimeError(
                f"Size does not match at dimension {d} expected index {list(index.shape)} to be no larger than self "
                f"{list(input.shape)} apart from dimension {place}"
            )
    found = pick(x, flat, place)
    return store_in_out(found.reshape(()) if index.tj_array.ndim == 0 else found, out, "gather")


@public(
    samples=[
        sample(A(3, 4), 0, I(1, 4, hi=3), A(1, 4)),
        sample(A(3, 4), 1, I(3, 1, hi=4), A(3, 2), peer=False),  # PyTorch has no gradient for a src longer than the index
        sample(A(5), 0, I(3, hi=5, distinct=True), 1.5),
        sample(A(3, 4), 0, I(1, 4, hi=3), value=0.5),
        sample(A(3, 4), 1, I(3, 5, hi=4), A(3, 5), reduce="add", peer=False),
        sample(A(3), 0, I(4, hi=3), 2.0, reduce="multiply", peer=False),
        sample(A(), 0, I(hi=1), A()),
    ],
    inplace=True,
    op=SCATTER,
)
def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None, out: Any = None
) -> Tensor:
    """The tensor with elements of `src`, or a number, written along `dim` where the index says; `reduce` adds or multiplies."""
    given = value if src is None else src
    if reduce is not None:
        if reduce not in ("add", "multiply"):
            raise RuntimeError(f"reduce argument must be either add or multiply, got {reduce}")
        filled = given if isinstance(given, Tensor) else input.new_full(index.tj_array.shape, given)
        kept = input.clone() if isinstance(out, InPlace) else input  # what the tape saves must not be written over
        return store_in_out(scatter_reduce(kept, dim, index, filled, "sum" if reduce == "add" else "prod"), out, "scatter")
    if isinstance(given, Tensor):
        found = prepare_scatter("scatter", input, dim, index, given)
        if found is None:
            return store_in_out(input.clone(), out, "scatter")
        place, x, index, given = found
    else:
        check_index("scatter", index)
        place, x, index = wrap_dim(dim, input.tj_array.ndim), flat_if_scalar(input), flat_if_scalar(index)
        if index.tj_array.size == 0:
            return store_in_out(input.clone(), out, "scatter")
        check_sizes(x, place, index, None, "self")
        given = dtypes.representable("scatter", input.dtype, given)
    return store_result(SCATTER, SCATTER_INTO, (x, index, given), {"dim": place}, input, out)


@public(
    samples=[
        sample(A(3, 4), 0, I(5, 4, hi=3), A(5, 4)),
        sample(A(3, 4), -1, I(2, 3, hi=4), A(3, 5), peer=False),
        sample(A(), 0, I(hi=1), A()),
    ],
    inplace=True,
    op=SCATTER_ADD,
)
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor, *, out: Any = None) -> Tensor:
    """The tensor with elements of `src` added along `dim` where the index says."""
    found = prepare_scatter("scatter_add", input, dim, index, src)
    if found is None:
        return store_in_out(input.clone(), out, "scatter_add")
    place, x, index, src = found
    return store_result(SCATTER_ADD, SCATTER_ADD_INTO, (x, index, src), {"dim": place}, input, out)


_apart = (A(3, 4, distinct=True), 0, I(5, 4, hi=3), A(5, 4, distinct=True, lo=-1.9, hi=2.1))


@public(
    samples=[
        sample(*_apart, "sum"),
        sample(*_apart, "mean"),
        sample(*_apart, "prod"),
        sample(*_apart, "amax"),
        sample(*_apart, "amin"),
        sample(*_apart, "sum", include_self=False),
        sample(*_apart, "mean", include_self=False),
        sample(*_apart, "prod", include_self=False),
        sample(*_apart, "amax", include_self=False),
        sample(A(3, 4), 1, I(2, 6, hi=4), A(3, 6), reduce="mean", peer=False),
    ],
    inplace=True,
    op=SCATTER_REDUCE,
)
def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """The tensor combined with elements of `src` along `dim` where the index says: by sum, prod, mean, amax or amin."""
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    found = prepare_scatter("scatter_reduce", input, dim, index, src)
    if found is None:
        return input.clone()
    place, x, index, src = found
    if not include_self:
        x = apply(SCATTER, (x, index, neutral(reduce, x.dtype)), {"dim": place})
    if reduce == "sum":
        value = put_sum(x, index, src, place)
    elif reduce == "mean":
        total, count = put_sum(x, index, src, place), count_of(x, index, place, include_self)
        value = total / count if x.dtype.is_floating_point else total.div(count, rounding_mode="floor")
    else:
        value = apply(SCATTER_REDUCE, (x, index, src), {"dim": place, "reduce": reduce})
    return value if input.tj_array.ndim else value.reshape(())


def neutral(reduce: str, dtype: dtypes.dtype) -> float:
    """Return the neutral element of a reduction."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    if dtype.category == dtypes.BOOL:
        return reduce == "amin"
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if reduce == "amax" else limits.max)


def count_of(x: Tensor, index: Tensor, dim: int, include_self: bool) -> Tensor:
    """Return the number of values that were combined at each position."""
    attrs = {"dim": dim, "shape": x.tj_array.shape}
    count = apply(SCATTER_SUM, (x.new_ones(index.tj_array.shape), index), attrs)
    return count + 1 if include_self else where(count == 0, 1, count)


@public(
    samples=[sample(A(3, 4), I(3, 2, hi=4), 1), sample(A(3, 4), I(5, hi=12)), sample(A(3, 4), I(1, 2, lo=-4, hi=4), dim=-1)]
)
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Elements picked along `dim`, with the other dims broadcast; without `dim`, from the flattened tensor."""
    check_index("take_along_dim", indices)
    if dim is None:
        return take_along_dim(input.reshape(-1), indices.reshape(-1), 0)
    if indices.tj_array.ndim != input.tj_array.ndim:
        raise RuntimeError(
            "take_along_dim(): input and indices should have the same number of dimensions, but got "
            f"{input.tj_array.ndim} dimensions for input, and {indices.tj_array.ndim} dimensions for indices"
        )
    place = wrap_dim(dim, input.tj_array.ndim)
    size = input.tj_array.shape[place] if input.tj_array.ndim else 1
    indices = where(indices < 0, indices + size, indices)
    shapes = [list(input.tj_array.shape), list(indices.tj_array.shape)]
    if input.tj_array.ndim:
        shapes[0][place] = shapes[1][place] = 1
    common = list(broadcast_shape("take_along_dim", *map(tuple, shapes)))
    wide = [*common[:place], size, *common[place + 1 :]]
    long = [*common[:place], indices.tj_array.shape[place], *common[place + 1 :]] if input.tj_array.ndim else []
    return gather(input.expand(wide) if input.tj_array.ndim else input, place, indices.expand(long))
