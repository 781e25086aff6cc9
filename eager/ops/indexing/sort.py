"""Sorting, and what is read off sorted data: order statistics, unique values, places in sorted sequences, histograms.

`sort` and `topk` are primitives that return values and indices; gradients go back to where the values came from. Medians,
quantiles and modes are composed of them. NaN counts as greater than every number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arrays import dtypes
from ...arrays.op_samples import A, B, I, sample
from ...core.cast import cast
from ...core.dispatch import apply
from ...core.op import primitive
from ...core.registration import public
from ...core.shape_inference import with_indices
from ...core.tensor import Tensor, wrap_dim
from ..create import arange
from ..named_results import named_result
from ..pointwise import isnan, lerp, promote_operands, where
from ..reduce import need_elements, shared_among_ties
from .gather import GATHER, SCATTER

# ---- sort and topk


def run_sort(xp: Any, x: Any, *, dim: int, descending: bool) -> Any:
    """Stable in both directions: a descending sort is an ascending one of the reversed row, read backwards."""
    if x.ndim == 0:
        return x.copy(), xp.zeros((), np.int64)
    if descending:
        order = xp.flip(x.shape[dim] - 1 - xp.argsort(xp.flip(x, dim), axis=dim, kind="stable"), dim).copy(order="C")
    else:
        order = xp.argsort(x, axis=dim, kind="stable")
    return xp.take_along_axis(x, order, dim), order


def run_topk(xp: Any, x: Any, *, k: int, dim: int, largest: bool) -> Any:
    """Only the k best are sorted; of a row of thousands that is most of the work saved."""
    if x.ndim == 0:
        return x.copy(), xp.zeros((), np.int64)
    n = x.shape[dim]
    if 0 < k < n:
        place = (slice(None),) * dim + (slice(n - k, None) if largest else slice(k),)
        best = xp.sort(xp.argpartition(x, n - k if largest else k - 1, axis=dim)[place], axis=dim)
    else:
        best = xp.broadcast_to(
            xp.arange(k).reshape((-1,) + (1,) * (x.ndim - dim - 1)), (*x.shape[:dim], k, *x.shape[dim + 1 :])
        )
    values, order = run_sort(xp, xp.take_along_axis(x, best, dim), dim=dim, descending=largest)
    return values, xp.take_along_axis(best, order, dim)


def picked_gradient(gs: Any, x_shape: tuple[int, ...], out1: Tensor, dim: int) -> tuple[Tensor]:
    """The gradient of elements picked from different places along a dim."""
    if not x_shape:
        return (gs[0],)
    return (apply(SCATTER, (gs[0].new_zeros(x_shape), out1.detach(), gs[0]), {"dim": dim}),)


SORT = primitive("sort", "opaque", run_sort, grad=picked_gradient, upcast=True, infer=with_indices)
TOPK = primitive("topk", "opaque", run_topk, grad=picked_gradient, upcast=True)
Sort, Topk = named_result("sort", "values", "indices"), named_result("topk", "values", "indices")


def sorted_along(input: Tensor, dim: int, descending: bool = False) -> tuple[Tensor, Tensor]:
    return apply(SORT, (input,), {"dim": dim, "descending": descending})  # type: ignore[no-any-return]


@public(
    samples=[
        sample(A(2, 5, distinct=True)),
        sample(A(4, 3, distinct=True), 0, True),
        sample(A(), 0),
        sample(I(2, 6), dim=1, descending=True, stable=True, grad=False),
        sample(B(5), stable=True, grad=False),
    ],
    op=SORT,
)
def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """The elements along `dim` in order, and where they stood: (values, indices). Equal elements keep their order."""
    return Sort(*sorted_along(input, wrap_dim(dim, input.tj_array.ndim), bool(descending)))


@public(
    samples=[
        sample(A(2, 5, distinct=True), grad=False),
        sample(I(4, 3), dim=0, descending=True, stable=True, grad=False),
        sample(A(), grad=False),
    ]
)
def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that sort the tensor along `dim`."""
    return sort(input.detach(), dim, descending, stable).indices  # type: ignore[no-any-return]


@public(samples=[sample(A(4, 3, distinct=True)), sample(A(3, distinct=True))])
def msort(input: Tensor) -> Tensor:
    """The tensor sorted along its first dim."""
    return sort(input, 0).values  # type: ignore[no-any-return]


@public(
    samples=[
        sample(A(2, 5, distinct=True), 2),
        sample(A(4, 3, distinct=True), 3, dim=0, largest=False),
        sample(A(3, distinct=True), 3),
        sample(A(2, 3), 0, grad=False),
        sample(A(), 1),
        sample(I(8, hi=20, distinct=True), 3, grad=False),
    ],
    op=TOPK,
)
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest (or smallest) elements along `dim`, best first, and where they stand: (values, indices)."""
    place = wrap_dim(dim, input.tj_array.ndim)
    length = input.tj_array.shape[place] if input.tj_array.ndim else 1
    if not 0 <= k <= length:
        raise RuntimeError(f"topk: selected index k out of range: k is {k}, but dimension {place} has size {length}")
    return Topk(*apply(TOPK, (input,), {"k": int(k), "dim": place, "largest": bool(largest)}))


# ---- order statistics


def pick(input: Tensor, places: Tensor, dim: int) -> Tensor:
    return input if input.tj_array.ndim == 0 else apply(GATHER, (input, places), {"dim": dim})


def ranked(result: Any, input: Tensor, order: Tensor, ranks: Any, dim: int, keepdim: bool) -> Any:
    """The elements of the given ranks, a number or one for each row, as (values, indices)."""
    if not isinstance(ranks, Tensor):
        shape = input.tj_array.shape
        ranks = order.new_full((*shape[:dim], 1, *shape[dim + 1 :]) if shape else (), ranks)
    places = pick(order, ranks, dim)
    values = pick(input, places, dim)
    return result(values, places) if keepdim else result(values.squeeze(dim), places.squeeze(dim))


Kthvalue = named_result("kthvalue", "values", "indices")


@public(
    samples=[
        sample(A(2, 5, distinct=True), 2),
        sample(A(4, 3, distinct=True), 4, dim=0, keepdim=True),
        sample(A(), 1),
    ]
)
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest element along `dim`, and where it stands: (values, indices)."""
    place = wrap_dim(dim, input.tj_array.ndim)
    length = input.tj_array.shape[place] if input.tj_array.ndim else 1
    if not 1 <= k <= length:
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {place}: k is {k}, its size {length}")
    order = argsort(input, place)
    return ranked(Kthvalue, input, order, k - 1, place, keepdim)


Median, Nanmedian = named_result("median", "values", "indices"), named_result("nanmedian", "values", "indices")


def middle(name: str, result: Any, input: Tensor, dim: int | None, keepdim: bool, skip_nan: bool) -> Any:
    """The lower median; NaN where there is one, unless these are skipped."""
    if input.tj_array.dtype.kind == "b":
        raise NotImplementedError(f"\"{name}\" not implemented for 'Bool'; convert it first, for example with .int()")
    if dim is None:
        return whole_middle(input, skip_nan)
    place = wrap_dim(dim, input.tj_array.ndim)
    need_elements(name, input, (place,) if input.tj_array.ndim else (), dim)
    order = argsort(input, place)
    if not input.dtype.is_floating_point:
        return ranked(
            result, input, order, (input.tj_array.shape[place] - 1) // 2 if input.tj_array.ndim else 0, place, keepdim
        )
    missing = isnan(input).sum(place, keepdim=True)
    numbers = (input.tj_array.shape[place] if input.tj_array.ndim else 1) - missing
    lower = ((numbers - 1) // 2).clamp(min=0)
    ranks = lower if skip_nan else where(missing > 0, numbers, lower)
    return ranked(result, input, order, ranks, place, keepdim)


def median_of_all(name: str, skip_nan: bool) -> Any:
    """An op for the median of a whole tensor. `dims`, all of them, and `keepdim` are there for the gradient."""

    def run(xp: Any, x: Any, *, dims: tuple[int, ...], keepdim: bool) -> Any:
        row = xp.sort(x.reshape(-1))
        numbers = row.size if x.dtype.kind != "f" else row.size - int(xp.isnan(row).sum())
        return row[-1 if numbers < row.size and not skip_nan else (numbers - 1) // 2].copy()

    return primitive(name, "opaque", run, grad={"x": shared_among_ties}, upcast=True)


MEDIAN, NANMEDIAN = median_of_all("median", False), median_of_all("nanmedian", True)


def whole_middle(input: Tensor, skip_nan: bool) -> Tensor:
    if input.tj_array.size == 0:
        return input.new_full((), math.nan if input.dtype.is_floating_point else 0)  # type: ignore[no-any-return]
    attrs = {"dims": tuple(range(input.tj_array.ndim)), "keepdim": False}
    return apply(NANMEDIAN if skip_nan else MEDIAN, (input,), attrs)  # type: ignore[no-any-return]


_middles = [
    sample(A(2, 5, distinct=True)),
    sample(A(2, 4, distinct=True), 1),
    sample(A(3, 4, distinct=True), dim=0, keepdim=True),
    sample(A(), 0),
    sample(I(7, hi=20, distinct=True), 0, grad=False),
]


@public(samples=_middles, op=MEDIAN)
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of the middle elements of all, or along `dim` with its place: (values, indices)."""
    return middle("median", Median, input, dim, keepdim, False)


@public(samples=_middles, op=NANMEDIAN)
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median of the elements that are not NaN."""
    return middle("nanmedian", Nanmedian, input, dim, keepdim, True)


Mode = named_result("mode", "values", "indices")


@public(
    samples=[
        sample(I(3, 6, hi=3), grad=False),
        sample(A(3, 4, distinct=True), 0, keepdim=True),
        sample(A(), 0),
    ]
)
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """The most frequent element along `dim`, the smallest of equally frequent ones, and its last place: (values, indices)."""
    place = wrap_dim(dim, input.tj_array.ndim)
    need_elements("mode", input, (place,) if input.tj_array.ndim else (), dim)
    if input.tj_array.ndim == 0:
        return Mode(input.clone(), input.new_zeros((), dtype=dtypes.int64))
    values, order = sorted_along(input.detach(), place)
    n = input.tj_array.shape[place]
    position = arange(n, device=input.device).reshape((-1,) + (1,) * (input.tj_array.ndim - place - 1))
    begins = values.narrow(place, 1, n - 1) != values.narrow(place, 0, n - 1)
    first = values.new_ones((*values.shape[:place], 1, *values.shape[place + 1 :]), dtype=dtypes.bool_)
    start = where(_joined([first, begins], place), position, 0).cummax(place).values
    run = position - start  # how many equal elements stand before
    return ranked(Mode, input, order, run.argmax(place, keepdim=True), place, keepdim)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    from ..shape.reshape import cat

    return cat(parts, dim)  # type: ignore[no-any-return]


INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantiles(name: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, skip_nan: bool) -> Tensor:
    if input.dtype not in (dtypes.float32, dtypes.float64):
        raise RuntimeError(f"{name}() input tensor must be float or double dtype; it is not implemented for {input.dtype}")
    if input.tj_array.size == 0:
        raise RuntimeError(f"{name}() input tensor must be non-empty, got shape {list(input.shape)}")
    if interpolation not in INTERPOLATIONS:
        raise RuntimeError(f"{name}() interpolation must be one of {', '.join(INTERPOLATIONS)}, but got {interpolation}")
    q = checked_fractions(name, input, q)
    ndim, many = input.tj_array.ndim, q.tj_array.ndim == 1
    dim = None if dim is None else wrap_dim(dim, ndim)
    shape = [1] * ndim if dim is None else list(input.tj_array.shape)
    if dim is not None and ndim:
        shape[dim] = 1
    rows = input.reshape(1, -1) if dim is None or not ndim else input.movedim(dim, -1)
    found = at_fractions(rows, q.reshape(-1), interpolation, skip_nan).movedim(-1, 0)
    if not keepdim:
        shape = [] if dim is None else [n for d, n in enumerate(shape) if d != dim]
    return found.reshape((q.tj_array.size, *shape) if many else tuple(shape))  # type: ignore[no-any-return]


def checked_fractions(name: str, input: Tensor, q: Any) -> Tensor:
    """`q` as a tensor of fractions."""
    if isinstance(q, (int, float)):
        if not 0 <= q <= 1:
            raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q}")
        return input.new_full((), q)  # type: ignore[no-any-return]
    if not isinstance(q, Tensor):
        raise TypeError(f"{name}(): argument 'q' must be float or Tensor, not {type(q).__name__}")
    if q.tj_array.ndim > 1:
        raise RuntimeError(f"{name}() q must be a scalar or 1D tensor, got shape {list(q.shape)}")
    if q.tj_array.dtype != input.tj_array.dtype:
        raise RuntimeError(f"{name}() q tensor must be same dtype as the input tensor, got {q.dtype} and {input.dtype}")
    if not bool(((q >= 0) & (q <= 1)).all()):
        raise RuntimeError(f"{name}() q values must be in the range [0, 1]")
    return q


def at_fractions(rows: Tensor, q: Tensor, interpolation: str, skip_nan: bool) -> Tensor:
    """The quantiles of each row of the last dim, along the last dim."""
    last = rows.tj_array.ndim - 1
    values, _ = sorted_along(rows, last)
    missing = isnan(rows).sum(last, keepdim=True)
    n = rows.tj_array.shape[last]
    # a NaN stands last
    ranks = q * (n - missing - 1).clamp(min=0) if skip_nan else where(missing > 0, n - 1, q * (n - 1))
    if interpolation in ("lower", "higher", "nearest"):
        rounding = {"lower": ranks.floor, "higher": ranks.ceil, "nearest": ranks.round}[interpolation]
        return pick(values, cast(rounding(), dtypes.int64), last)
    below = ranks.detach().floor()
    above = ranks.detach().ceil()
    weight = 0.5 if interpolation == "midpoint" else ranks - below
    return lerp(pick(values, cast(below, dtypes.int64), last), pick(values, cast(above, dtypes.int64), last), weight)


_quantiles = [
    sample(A(2, 5, distinct=True), 0.3),
    sample(A(2, 6, distinct=True), A(3, lo=0.03, hi=0.13), dim=1, keepdim=True),
    sample(A(5, 2, distinct=True), 0.4, 0, interpolation="lower"),
    sample(A(5, 2, distinct=True), 0.4, 0, interpolation="higher"),
    sample(A(6, distinct=True), 0.33, interpolation="nearest"),
    sample(A(6, distinct=True), 0.33, interpolation="midpoint", keepdim=True),
]


@public(samples=_quantiles)
def quantile(input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """The values below which the fractions `q` of the elements lie, of all or along `dim`."""
    return quantiles("quantile", input, q, dim, keepdim, interpolation, False)


@public(samples=_quantiles)
def nanquantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The quantiles of the elements that are not NaN."""
    return quantiles("nanquantile", input, q, dim, keepdim, interpolation, True)


# ---- unique values


def run_unique(xp: Any, x: Any, *, dim: int | None) -> Any:
    """Values, where each element went, and how often each occurs. Every NaN is a value of its own."""
    values, inverse, counts = xp.unique(x, return_inverse=True, return_counts=True, axis=dim, equal_nan=False)
    return values, inverse.reshape(x.shape if dim is None else -1), counts


def run_unique_consecutive(xp: Any, x: Any, *, dim: int | None) -> Any:
    rows = x.reshape(-1, 1) if dim is None else xp.moveaxis(x, dim, 0).reshape(x.shape[dim], -1)
    n = rows.shape[0]
    begins = xp.ones(n, np.bool_)
    begins[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    starts = xp.nonzero(begins)[0]
    inverse = xp.cumsum(begins, dtype=np.int64) - 1
    counts = xp.concatenate([starts[1:], xp.full(1 if n else 0, n, starts.dtype)]) - starts
    values = x.reshape(-1)[starts] if dim is None else xp.take(x, starts, axis=dim)
    return values, inverse.reshape(x.shape) if dim is None else inverse, counts


UNIQUE = primitive("unique", "opaque", run_unique, upcast=True, data_dependent=True)
UNIQUE_CONSECUTIVE = primitive("unique_consecutive", "opaque", run_unique_consecutive, upcast=True, data_dependent=True)


def values_and(op: Any, input: Tensor, return_inverse: bool, return_counts: bool, dim: int | None) -> Any:
    place = None if dim is None else wrap_dim(dim, input.tj_array.ndim)
    if input.tj_array.ndim == 0:
        place = None
    values, inverse, counts = apply(op, (input.detach(),), {"dim": place})
    more = ([inverse] if return_inverse else []) + ([counts] if return_counts else [])
    return (values, *more) if more else values


@public(
    samples=[
        sample(I(8), grad=False),
        sample(I(3, 4), return_inverse=True, return_counts=True, grad=False),
        sample(I(5, 2, hi=2), dim=0, return_inverse=True, grad=False),
        sample(I(hi=1), return_counts=True, grad=False),
    ],
    op=UNIQUE,
)
def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The different elements, or slices along `dim`, in order; also where each went and how often each occurs."""
    return values_and(UNIQUE, input, return_inverse, return_counts, dim)


@public(
    samples=[
        sample(I(8, hi=2), grad=False),
        sample(I(3, 4, hi=2), return_inverse=True, return_counts=True, grad=False),
        sample(I(5, 2, hi=2), dim=0, return_counts=True, grad=False),
    ],
    op=UNIQUE_CONSECUTIVE,
)
def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The first of every run of equal elements, or slices along `dim`; also where each went and how long the runs are."""
    return values_and(UNIQUE_CONSECUTIVE, input, return_inverse, return_counts, dim)


# ---- places in sorted sequences


def run_searchsorted(xp: Any, sequence: Any, values: Any, *, right: bool, integer: Any) -> Any:
    side = "right" if right else "left"
    if sequence.ndim == 1:
        return xp.searchsorted(sequence, values.reshape(-1), side=side).reshape(values.shape).astype(integer.numpy)
    out = xp.empty(values.shape, integer.numpy)
    rows, wanted, found = sequence.reshape(-1, sequence.shape[-1]), values.reshape(-1, values.shape[-1]), []
    for i in range(rows.shape[0]):
        found.append(xp.searchsorted(rows[i], wanted[i], side=side))
    out[...] = xp.stack(found).reshape(values.shape) if found else 0
    return out


SEARCHSORTED = primitive("searchsorted", "opaque", run_searchsorted, upcast=True)


@public(
    samples=[
        sample(I(5, hi=9, distinct=True), A(2, 3, lo=0, hi=9), sorter=I(5, hi=5, distinct=True), grad=False, peer=False),
        sample(A(4, lo=1, hi=1), A(2, 3, lo=0, hi=2), grad=False),
        sample(A(2, 4, lo=1, hi=1), A(2, 3, lo=0, hi=2), right=True, grad=False),
        sample(A(3, lo=0, hi=0), 1.5, side="right", out_int32=True, grad=False),
    ],
    method=False,
    op=SEARCHSORTED,
)
def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """The index at which each value belongs in a sorted sequence (or that of its row): before or after equal elements."""
    if side is not None and side not in ("left", "right"):
        raise RuntimeError(f"searchsorted(): side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise RuntimeError("searchsorted(): side and right can't be set to opposites, got side of left while right was True")
    if sorter is not None:
        if sorter.tj_array.shape != sorted_sequence.tj_array.shape:
            raise RuntimeError(
                "searchsorted(): boundary and sorter must have the same size, but got boundary tensor "
                f"{list(sorted_sequence.shape)} and got sorter tensor {list(sorter.shape)}"
            )
        sorted_sequence = apply(GATHER, (sorted_sequence, sorter), {"dim": sorted_sequence.tj_array.ndim - 1})
    values = input if isinstance(input, Tensor) else sorted_sequence.new_full((), input)
    batch = sorted_sequence.tj_array.shape[:-1]
    if sorted_sequence.tj_array.ndim == 0 or (batch and values.tj_array.shape[:-1] != batch):
        raise RuntimeError(
            "searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and "
            f"input value tensor must match, but we got boundaries tensor {list(sorted_sequence.shape)} and input value tensor "
            f"{list(values.shape)}"
        )
    attrs = {"right": right or side == "right", "integer": dtypes.int32 if out_int32 else dtypes.int64}
    return apply(SEARCHSORTED, (sorted_sequence.detach(), values.detach()), attrs)  # type: ignore[no-any-return]


@public(
    samples=[
        sample(A(2, 3, lo=0, hi=2), A(4, lo=1, hi=1), grad=False),
        sample(I(5), I(1, lo=2, hi=3), right=True, grad=False),
        sample(0.5, A(2, lo=1, hi=1), out_int32=True, grad=False),
    ],
    method=False,
)
def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The index of the bucket, between the boundaries, that each value is in."""
    if boundaries.tj_array.ndim != 1:
        raise RuntimeError(f"bucketize(): boundaries tensor must be 1 dimension, but got dim({boundaries.tj_array.ndim})")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


@public(samples=[sample(I(2, 3), I(3), grad=False), sample(I(4), I(2), invert=True, grad=False)], method=False)
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """True where an element occurs among the test elements."""
    like = elements if isinstance(elements, Tensor) else test_elements
    values = elements if isinstance(elements, Tensor) else like.new_tensor(elements)
    tests = test_elements if isinstance(test_elements, Tensor) else like.new_tensor(test_elements)
    values, tests = promote_operands("isin", values, tests)
    last = tests.tj_array.size - 1
    if last < 0:
        return values.new_full(values.shape, invert, dtype=dtypes.bool_)  # type: ignore[no-any-return]
    ordered = sort(tests.reshape(-1)).values
    nearest = ordered.take(searchsorted(ordered, values).clamp(max=last))
    return nearest != values if invert else nearest == values  # type: ignore[no-any-return]


# ---- counting


def run_bincount(xp: Any, x: Any, *weights: Any, minlength: int) -> Any:
    counts = xp.bincount(x, *weights, minlength=minlength)
    if not weights:
        return counts.astype(np.int64)
    return counts.astype(weights[0].dtype if weights[0].dtype == np.float32 else np.float64)


def run_histc(xp: Any, x: Any, *, bins: int, low: float, high: float) -> Any:
    """Equal bins from low to high; both 0 (or equal) means from the smallest to the largest element."""
    values = x.reshape(-1)
    if low == high and values.size:
        low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"histc(): range of [{low}, {high}] is not finite; pass min= and max=")
    inside = values[(values >= low) & (values <= high)].astype(np.float64)
    place = xp.clip(((inside - low) / (high - low) * bins).astype(np.int64), 0, bins - 1)
    return xp.bincount(place, minlength=bins).astype(x.dtype)


BINCOUNT = primitive("bincount", "opaque", run_bincount, data_dependent=True)
HISTC = primitive("histc", "opaque", run_histc, upcast=True)


@public(
    samples=[
        sample(I(8), grad=False),
        sample(I(5), I(5), minlength=6, grad=False),
        sample(I(0), grad=False),
    ],
    op=BINCOUNT,
)
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """The number of times that each non-negative integer occurs, or the sum of its weights."""
    if input.tj_array.ndim != 1 or input.dtype.category != dtypes.INTEGER or (input.tj_array.size and bool((input < 0).any())):
        raise RuntimeError(
            f"bincount only supports 1-d non-negative integral inputs, got {input.dtype} of shape {list(input.shape)}"
        )
    if minlength < 0:
        raise RuntimeError(f"minlength should be >= 0, got {minlength}")
    if weights is not None and weights.tj_array.shape != input.tj_array.shape:
        raise RuntimeError(f"weights should be 1-d and have the same length as input, got {list(weights.shape)}")
    given = () if weights is None else (weights.detach(),)
    return apply(BINCOUNT, (input, *given), {"minlength": int(minlength)})  # type: ignore[no-any-return]


@public(
    samples=[
        sample(A(10), 4, grad=False),
        sample(A(3, 4), bins=5, min=-1, max=1, grad=False),
        sample(A(4, lo=1, hi=1), 3, grad=False),
    ],
    op=HISTC,
)
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The number of elements in each of equal bins from min to max; others are not counted."""
    if bins <= 0:
        raise RuntimeError(f"histc(): bins must be > 0, got {bins}")
    if min > max:
        raise RuntimeError(f"histc(): max must be larger than min, got {min} and {max}")
    if not input.dtype.is_floating_point:
        raise NotImplementedError(f"\"histogram_cpu\" not implemented for '{input.dtype.legacy}'; convert it with .float()")
    return apply(HISTC, (input.detach(),), {"bins": int(bins), "low": float(min), "high": float(max)})  # type: ignore[no-any-return]
