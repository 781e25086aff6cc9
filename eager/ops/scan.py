"""Scans: running sums, products, extremes and log-sum-exps along one dim, and the differences that undo them.

A scan's attributes are `dim` and `reverse` (from the end to the beginning), which makes the gradient of one another. The
gradients of products and log-sum-exps are linear recurrences, y[k] = b[k] + a[k] * y[k - 1]: no division, so zeros are no
special case, and the gradient of a recurrence is a recurrence, so any order works.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import dtypes
from ..arrays.op_samples import A, B, I, sample
from ..core.cast import cast
from ..core.dispatch import apply
from ..core.op import primitive
from ..core.registration import public
from ..core.shape_inference import like_first, with_indices
from ..core.tensor import Tensor, wrap_dim
from .indexing.gather import SCATTER_SUM
from .named_results import named_result
from .pointwise import exp, where
from .shape.views import CAT, SLICE

# ---- kernels

CUPY = {"add": "cumsum", "multiply": "cumprod"}
WIDE = 64  # elements in a row from which adding whole rows is quicker than NumPy's own running sum down the columns


def part(dim: int, *bounds: int | None) -> tuple[slice, ...]:
    """The index of a range along one dim."""
    return (slice(None),) * dim + (slice(*bounds),)


def scan_kernel(ufunc: str) -> Callable[..., Any]:
    """A kernel for both directions that computes float32 in float64, as PyTorch does."""

    def run(xp: Any, x: Any, *, dim: int, reverse: bool) -> Any:
        if x.ndim == 0:
            return x.copy()
        wide = x.astype(np.float64) if x.dtype == np.float32 else x
        if not reverse:
            return accumulate(xp, ufunc, wide, dim).astype(x.dtype, copy=False)
        backwards = part(dim, None, None, -1)
        return xp.ascontiguousarray(accumulate(xp, ufunc, wide[backwards], dim)[backwards]).astype(x.dtype, copy=False)

    return run


def accumulate(xp: Any, name: str, x: Any, dim: int) -> Any:
    """A ufunc's running result along a dim."""
    if xp is not np:
        return getattr(xp, CUPY[name])(x, axis=dim, dtype=x.dtype) if name in CUPY else scan_by_doubling(xp, name, x, dim)
    ufunc = getattr(np, name)
    if x.size == 0 or math.prod(x.shape[dim + 1 :]) < WIDE:
        return ufunc.accumulate(x, axis=dim)
    out = np.empty_like(x)
    rows, sums = np.moveaxis(x, dim, 0), np.moveaxis(out, dim, 0)
    sums[0] = rows[0]
    for k in range(1, len(rows)):
        ufunc(sums[k - 1], rows[k], out=sums[k])
    return out


def scan_by_doubling(xp: Any, name: str, x: Any, dim: int) -> Any:
    """The same where there is no `accumulate`, in CuPy: every pass joins results of twice the length."""
    step = 1
    while step < x.shape[dim]:
        joined = getattr(xp, name)(x[part(dim, step, None)], x[part(dim, 0, -step)])
        x = xp.concatenate([x[part(dim, 0, step)], joined], dim)
        step *= 2
    return x


def run_recurrence(xp: Any, a: Any, b: Any, *, dim: int, reverse: bool) -> Any:
    """y[k] = b[k] + a[k] * y[k - 1], by doubling: after a pass, a and b speak of the element twice as far back."""
    factor, out = a.copy(), b.copy()
    way = part(dim, None, None, -1 if reverse else 1)
    a, y, step = factor[way], out[way], 1
    while step < y.shape[dim]:
        later, earlier = part(dim, step, None), part(dim, 0, -step)
        y[later] = y[later] + a[later] * y[earlier]
        a[later] = a[later] * a[earlier]
        step *= 2
    return out


# ---- primitives


def opposite_sum(g: Tensor, dim: int, reverse: bool) -> Tensor:
    return apply(CUMSUM, (g,), {"dim": dim, "reverse": not reverse})  # type: ignore[no-any-return]


def neighbours(x: Tensor, dim: int, reverse: bool, edge: float) -> Tensor:
    """For each element the one before it (after it in reverse), and `edge` where there is none."""
    shape = x.tj_array.shape
    outside = x.new_full((*shape[:dim], 1, *shape[dim + 1 :]), edge)
    if reverse:
        return apply(CAT, (apply(SLICE, (x,), {"index": part(dim, 1, None)}), outside), {"dim": dim})  # type: ignore[no-any-return]
    return apply(CAT, (outside, apply(SLICE, (x,), {"index": part(dim, 0, -1)})), {"dim": dim})  # type: ignore[no-any-return]


def recurrence(a: Tensor, b: Tensor, dim: int, reverse: bool) -> Tensor:
    return apply(RECURRENCE, (a, b), {"dim": dim, "reverse": reverse})  # type: ignore[no-any-return]


def recurrence_gradient(g: Tensor, a: Tensor, out: Tensor, needs: Any, dim: int, reverse: bool) -> tuple[Tensor | None, Tensor]:
    of_b = recurrence(neighbours(a, dim, not reverse, 0), g, dim, not reverse)
    return of_b * neighbours(out, dim, reverse, 0) if needs[0] else None, of_b


def product_gradient(g: Tensor, x: Tensor, dim: int, reverse: bool) -> Tensor:
    """The product of all before x[k], times the sum over i >= k of g[i] times the product of x[k + 1 ... i]."""
    if x.tj_array.ndim == 0 or x.tj_array.size == 0:
        return g
    after = recurrence(neighbours(x, dim, not reverse, 1), g, dim, not reverse)
    return exclusive_product(x, dim, reverse) * after


def exclusive_product(x: Tensor, dim: int, reverse: bool = False) -> Tensor:
    """The product of all elements before each one (after it in reverse)."""
    return apply(CUMPROD, (neighbours(x, dim, reverse, 1),), {"dim": dim, "reverse": reverse})  # type: ignore[no-any-return]


def log_sum_exp_gradient(g: Tensor, x: Tensor, out: Tensor, dim: int, reverse: bool) -> Tensor:
    """exp(x[k] - out[k]) times the sum over i >= k of g[i] exp(out[k] - out[i]): running results grow, so none overflows."""
    if x.tj_array.ndim == 0 or x.tj_array.size == 0:
        return g
    finite = where(out == -math.inf, 0.0, out)
    decay = exp(where(out == -math.inf, -math.inf, out - neighbours(finite, dim, not reverse, math.inf)))
    return exp(x - finite) * recurrence(decay, g, dim, not reverse)


CUMSUM = primitive(
    "cumsum",
    "scan",
    scan_kernel("add"),
    grad={"x": opposite_sum},
    body=lambda b, acc, x: b.add(acc, x),
    infer=like_first,
)
CUMPROD = primitive(
    "cumprod",
    "scan",
    scan_kernel("multiply"),
    grad={"x": product_gradient},
    body=lambda b, acc, x: b.mul(acc, x),
    infer=like_first,
)
LOGCUMSUMEXP = primitive(
    "logcumsumexp",
    "scan",
    scan_kernel("logaddexp"),
    grad={"x": log_sum_exp_gradient},
    body=lambda b, acc, x: b.logaddexp(acc, x),
    infer=like_first,
)
RECURRENCE = primitive("recurrence", "scan", run_recurrence, grad=recurrence_gradient)


def running_extreme(name: str, ufunc: str) -> Any:
    """An op for the running maximum or minimum and where it stands: the latest of equals, and NaN above all."""

    def run(xp: Any, x: Any, *, dim: int) -> Any:
        if x.ndim == 0:
            return x.copy(), xp.zeros((), np.int64)
        values = accumulate(xp, ufunc, x, dim)
        places = xp.arange(x.shape[dim]).reshape((-1,) + (1,) * (x.ndim - dim - 1))
        hit = (x == values) | (x != x)
        return values, accumulate(xp, "maximum", xp.where(hit, places, 0), dim)

    def gradient(gs: Any, x_shape: tuple[int, ...], out1: Tensor, dim: int) -> tuple[Tensor]:
        if not x_shape:
            return (gs[0],)
        return (apply(SCATTER_SUM, (gs[0], out1.detach()), {"dim": dim, "shape": x_shape}),)

    return primitive(name, "scan", run, grad=gradient, infer=with_indices)


CUMMAX = running_extreme("cummax", "maximum")
CUMMIN = running_extreme("cummin", "minimum")

# ---- public


def accumulator(input: Tensor, dtype: Any) -> Tensor:
    """The input in the dtype a sum or product is made in: the one asked for, else int64 for bools and integers."""
    if dtype is not None:
        return cast(input, dtypes.as_dtype(dtype))
    return input if input.dtype.is_floating_point else cast(input, dtypes.int64)


_sums = [
    sample(A(2, 4, 3), 1),
    sample(A(4), dim=-1),
    sample(A(), 0),
    sample(A(0, 3), 0),
    sample(I(2, 3), 0, grad=False),
    sample(B(4), 0, grad=False),
]


@public(samples=_sums, inplace=True, op=CUMSUM)
def cumsum(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """The running sum along `dim`."""
    return apply(CUMSUM, (accumulator(input, dtype),), {"dim": wrap_dim(dim, input.tj_array.ndim), "reverse": False})  # type: ignore[no-any-return]


@public(samples=_sums, inplace=True, op=CUMPROD)
def cumprod(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """The running product along `dim`."""
    return apply(CUMPROD, (accumulator(input, dtype),), {"dim": wrap_dim(dim, input.tj_array.ndim), "reverse": False})  # type: ignore[no-any-return]


@public(samples=[sample(A(2, 4, 3), 1), sample(A(4), dim=-1), sample(A(), 0)], op=LOGCUMSUMEXP)
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """The logarithm of the running sum of exponentials along `dim`, without overflow."""
    if not input.dtype.is_floating_point:
        input = cast(input, dtypes.get_default_dtype())
    return apply(LOGCUMSUMEXP, (input,), {"dim": wrap_dim(dim, input.tj_array.ndim), "reverse": False})  # type: ignore[no-any-return]


_running = [
    sample(A(2, 4, 3, distinct=True), 1),
    sample(A(5, distinct=True), dim=-1),
    sample(A(), 0),
    sample(I(6), 0, grad=False),
]
Cummax = named_result("cummax", "values", "indices")
Cummin = named_result("cummin", "values", "indices")


@public(samples=_running, op=CUMMAX)
def cummax(input: Tensor, dim: int) -> Any:
    """The running maximum along `dim`, and where it stands: (values, indices)."""
    return Cummax(*apply(CUMMAX, (input,), {"dim": wrap_dim(dim, input.tj_array.ndim)}))


@public(samples=_running, op=CUMMIN)
def cummin(input: Tensor, dim: int) -> Any:
    """The running minimum along `dim`, and where it stands: (values, indices)."""
    return Cummin(*apply(CUMMIN, (input,), {"dim": wrap_dim(dim, input.tj_array.ndim)}))


# ---- differences and areas


def between(x: Tensor, dim: int, start: int, stop: int | None) -> Tensor:
    return apply(SLICE, (x,), {"index": part(dim, start, stop)})  # type: ignore[no-any-return]


@public(
    samples=[
        sample(A(2, 5)),
        sample(A(4, 3), n=2, dim=0),
        sample(A(2, 3), prepend=A(2, 1), append=A(2, 2)),
        sample(A(3), n=0),
        sample(A(2), n=3),
        sample(B(4), grad=False),
    ]
)
def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """The n-th differences of neighbours along `dim`, with more elements put before and after them first."""
    if input.tj_array.ndim == 0:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    place = wrap_dim(dim, input.tj_array.ndim)
    parts = [x for x in (prepend, input, append) if x is not None]
    value = parts[0] if len(parts) == 1 else _joined(parts, place)
    for _ in range(min(n, value.tj_array.shape[place])):
        later, earlier = between(value, place, 1, None), between(value, place, 0, -1)
        value = later != earlier if value.tj_array.dtype.kind == "b" else later - earlier
    return value if n else input.clone()  # type: ignore[no-any-return]


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    from .shape.reshape import cat

    return cat(parts, dim)  # type: ignore[no-any-return]


def _heights_and_widths(y: Tensor, x: Tensor | None, dx: Any, dim: int, name: str) -> tuple[Tensor, Any, int]:
    """The mean height over each interval, and how wide the intervals are."""
    place = wrap_dim(dim, y.tj_array.ndim)
    y = y if y.dtype.is_floating_point else cast(y, dtypes.get_default_dtype())  # small integers would overflow
    heights = (between(y, place, 1, None) + between(y, place, 0, -1)) / 2
    if x is None:
        return heights, 1 if dx is None else dx, place
    if dx is not None:
        raise RuntimeError(f"{name}: pass either x or dx, not both")
    if x.tj_array.ndim == 1:
        if x.tj_array.shape[0] != y.tj_array.shape[place]:
            raise RuntimeError(
                f"{name}: There must be one `x` value for each sample point, got {list(x.shape)} for {list(y.shape)}"
            )
        x = x.reshape((-1,) + (1,) * (y.tj_array.ndim - place - 1))
    along = place - y.tj_array.ndim + x.tj_array.ndim
    return heights, between(x, along, 1, None) - between(x, along, 0, -1), place


_areas = [
    sample(A(2, 5)),
    sample(A(4, 3), A(4), dim=0),
    sample(A(2, 4), A(2, 4)),
    sample(A(2, 3), dx=0.5),
    sample(A(1)),
]


@public(samples=_areas, method=False)
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The area under `y` along `dim` by the trapezoidal rule, at the places `x` or `dx` apart."""
    heights, widths, place = _heights_and_widths(y, x, dx, dim, "trapezoid")
    return (heights * widths).sum(place)  # type: ignore[no-any-return]


@public(samples=_areas, method=False)
def trapz(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """Another name of `trapezoid`."""
    return trapezoid(y, x, dx=dx, dim=dim)


@public(samples=_areas, method=False)
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The running area under `y` along `dim` by the trapezoidal rule."""
    heights, widths, place = _heights_and_widths(y, x, dx, dim, "cumulative_trapezoid")
    return cumsum(heights * widths, place)
