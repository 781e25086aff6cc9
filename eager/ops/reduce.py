"""Reductions over dims: sums, products, moments, extremes, norms, and what is composed of them.

A reduction's attributes are always `dims` (a tuple of non-negative dims) and `keepdim`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..arrays import dtypes
from ..arrays.op_samples import A, B, I, sample
from ..core.cast import cast
from ..core.dispatch import apply
from ..core.errors import warn
from ..core.op import primitive
from ..core.registration import public
from ..core.tensor import Tensor, wrap_dim, wrap_dims
from .indexing.gather import GATHER, SCATTER
from .named_results import named_result
from .pointwise import abs, exp, isnan, log, maximum, minimum, sign, sqrt, where, zero_gradient
from .scan import accumulator, exclusive_product
from .shape.views import EXPAND

# ---- shapes


def count_of(shape: tuple[int, ...], dims: tuple[int, ...]) -> int:
    """Return the number of elements that are reduced into each result."""
    return math.prod([shape[d] for d in dims])


def restore_dims(g: Tensor, shape: tuple[int, ...], dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """A reduction's gradient, with the reduced dims back as length 1."""
    if keepdim or not dims:
        return g
    return g.reshape(tuple(1 if i in dims else n for i, n in enumerate(shape)))


def broadcast_sum_gradient(g: Tensor, shape: tuple[int, ...], dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """A sum's gradient at every element that was summed: a view."""
    if dims != tuple(range(len(dims))):  # leading dims come back by broadcasting alone
        g = restore_dims(g, shape, dims, keepdim)
    return apply(EXPAND, (g,), {"shape": tuple(shape)})  # type: ignore[no-any-return]


def reduction_attrs(input: Tensor, dim: Any, keepdim: bool) -> dict[str, Any]:
    """A reduction's attributes."""
    return {"dims": wrap_dims(dim, input.tj_array.ndim), "keepdim": bool(keepdim)}


def need_elements(name: str, input: Tensor, dims: tuple[int, ...], dim: Any, error: type[Exception] = RuntimeError) -> None:
    """Refuse to look for an extreme among no elements."""
    shape = input.tj_array.shape
    if input.tj_array.size == 0 and (dim is None or dim == ()):
        raise error(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0 (shape {list(shape)}). Specify the "
            "reduction dim with the 'dim' argument."
        )
    for d in dims:
        if shape[d] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size, but the shape is {list(shape)}.")


# ---- kernels

UFUNCS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def reduce_array(xp: Any, name: str, x: Any, dims: tuple[int, ...], keepdim: bool) -> Any:
    """`x.sum(...)` and its like, in the array's own dtype. NumPy's methods are slower, and warn in the name of NumPy."""
    if xp is np:
        return UFUNCS[name].reduce(x, axis=dims, keepdims=keepdim, dtype=x.dtype)
    if name in ("sum", "prod"):
        return getattr(x, name)(axis=dims, keepdims=keepdim, dtype=x.dtype)
    return getattr(x, name)(axis=dims, keepdims=keepdim)


MIN_BLAS_ELEMENTS = 1024  # from which BLAS is quicker
MAX_BLAS_TERMS = 1024  # beyond which the sums of BLAS, term by term, get imprecise


def sum_array(xp: Any, x: Any, dims: tuple[int, ...], keepdim: bool = False) -> Any:
    """The sum over dims, in the array's own dtype.

    A matrix times ones is several times quicker than NumPy's loop over short rows, or down the columns, where it also rounds
    less: NumPy adds a column term by term.
    """
    if xp is np and x.size >= MIN_BLAS_ELEMENTS and 0 < len(dims) < x.ndim and x.dtype.char in "fd" and x.flags.c_contiguous:
        kept, n, ordered = x.ndim - len(dims), count_of(x.shape, dims), sorted(dims)
        if ordered[-1] == len(dims) - 1:
            return _columns(x.reshape(n, -1)).reshape((1,) * len(dims) * keepdim + x.shape[len(dims) :])
        if ordered[0] == kept and n <= MAX_BLAS_TERMS:
            return (x.reshape(-1, n) @ ones_vector(xp, n, x.dtype)).reshape(x.shape[:kept] + (1,) * len(dims) * keepdim)
    return reduce_array(xp, "sum", x, dims, keepdim)


def ones_vector(xp: Any, n: int, dtype: Any) -> Any:
    """A vector of ones to multiply by; NumPy's is made once, as n is MAX_BLAS_TERMS at most."""
    return _summing(n, dtype) if xp is np else xp.ones(n, dtype)


@functools.lru_cache(64)
def _summing(n: int, dtype: Any) -> Any:
    made = np.ones(n, dtype)
    made.flags.writeable = False
    return made


def _columns(x: Any) -> Any:
    """The sums of a matrix's columns; long ones as a sum of shorter ones."""
    rows = x.shape[0]
    if rows <= MAX_BLAS_TERMS:
        return _summing(rows, x.dtype) @ x
    side = math.isqrt(rows)
    whole = rows // side * side
    found = np.ones(whole // side, x.dtype) @ (np.ones(side, x.dtype) @ x[:whole].reshape(-1, side, x.shape[1]))
    return found if whole == rows else found + np.ones(rows - whole, x.dtype) @ x[whole:]


def divide_by_count(value: Any, count: float) -> Any:
    """A mean of nothing is NaN, without a warning."""
    if count:
        return value / count
    with np.errstate(all="ignore"):
        return value / 0


# ---- sum and mean

SUM = primitive(
    "sum",
    "reduce",
    lambda xp, x, *, dims, keepdim: sum_array(xp, x, dims, keepdim),
    grad={"x": lambda g, x_shape, dims, keepdim: broadcast_sum_gradient(g, x_shape, dims, keepdim)},
    body=lambda b, acc, x: b.add(acc, x),
)


def expand_mean(x: Tensor, *, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """Half precision is summed in float32: the sum may be beyond what it can hold."""
    wide = cast(x, dtypes.float32) if x.tj_array.dtype.itemsize == 2 else x
    return cast(sum(wide, dims, keepdim) / count_of(x.tj_array.shape, dims), x.dtype)


MEAN = primitive(
    "mean",
    "composite",
    lambda xp, x, *, dims, keepdim: divide_by_count(sum_array(xp, x, dims, keepdim), count_of(x.shape, dims)),
    grad={"x": lambda g, x_shape, dims, keepdim: broadcast_sum_gradient(g / count_of(x_shape, dims), x_shape, dims, keepdim)},
    expand=expand_mean,
)

_dims = [sample(A(2, 3, 4)), sample(A(2, 3, 4), 1), sample(A(2, 3, 4), dim=(0, 2), keepdim=True), sample(A())]


@public(
    samples=[*_dims, sample(A(0, 3), dim=0), sample(I(2, 3), grad=False), sample(B(2, 3), dim=1, grad=False)],
    op=SUM,
)
def sum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum of all elements, or over `dim`."""
    return apply(SUM, (accumulator(input, dtype),), reduction_attrs(input, dim, keepdim))  # type: ignore[no-any-return]


@public(samples=_dims, op=MEAN)
def mean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean of all elements, or over `dim`."""
    if dtype is not None:
        input = cast(input, dtypes.as_dtype(dtype))
    if not input.dtype.is_floating_point:
        raise RuntimeError(
            f"mean(): could not infer output dtype. Input dtype must be a floating point dtype. Got: {input.dtype.legacy}. "
            "Convert it first, for example with .float()."
        )
    return apply(MEAN, (input,), reduction_attrs(input, dim, keepdim))  # type: ignore[no-any-return]


@public(samples=[*_dims, sample(I(2, 3), dim=1, grad=False)])
def nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum of all elements that are not NaN, or over `dim`."""
    return sum(where(isnan(input), 0, input) if input.dtype.is_floating_point else input, dim, keepdim, dtype=dtype)


@public(samples=_dims)
def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean of all elements that are not NaN, or over `dim`."""
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"nanmean(): expected input to have floating point dtype but got {input.dtype.legacy}")
    return nansum(input, dim, keepdim, dtype=dtype) / sum(~isnan(input), dim, keepdim)


@public(samples=[sample(I(2, 3, hi=2), grad=False), sample(B(2, 3), 1, grad=False), sample(A(2, 3), (0, 1), grad=False)])
def count_nonzero(input: Tensor, dim: Any = None) -> Tensor:
    """The number of elements that are not 0, in all or over `dim`."""
    return sum(input != 0, dim)


# ---- product


def product_gradient(g: Tensor, x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """The product of the others: of those before and those after, so that zeros are no special case."""
    shape = x.tj_array.shape
    if x.tj_array.ndim == 0 or x.tj_array.size == 0:
        return broadcast_sum_gradient(g, shape, dims, keepdim)
    line, dim = (x, dims[0]) if len(dims) == 1 else (x.reshape(-1), 0)
    others = exclusive_product(line, dim) * exclusive_product(line, dim, reverse=True)
    return restore_dims(g, shape, dims, keepdim) * others.reshape(shape)


PROD = primitive(
    "prod",
    "reduce",
    lambda xp, x, *, dims, keepdim: reduce_array(xp, "prod", x, dims, keepdim),
    grad={"x": product_gradient},
    body=lambda b, acc, x: b.mul(acc, x),
)


@public(
    samples=[
        sample(A(2, 3)),
        sample(A(2, 3, 2), 1),
        sample(A(2, 3), dim=-1, keepdim=True),
        sample(A()),
        sample(A(3, 2, lo=0, hi=0.0), dim=0),
        sample(A(0, 3), dim=0),
        sample(I(2, 3), grad=False),
    ],
    op=PROD,
)
def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The product of all elements, or over `dim`."""
    if isinstance(dim, (tuple, list)):
        raise TypeError(f"prod(): argument 'dim' must be int, not {type(dim).__name__}")
    return apply(PROD, (accumulator(input, dtype),), reduction_attrs(input, dim, keepdim))  # type: ignore[no-any-return]


# ---- variance and standard deviation


def run_moments(xp: Any, x: Any, *, dims: tuple[int, ...], keepdim: bool, correction: float, root: bool) -> Any:
    """Two passes: squares of distances from the mean cannot cancel as the difference of mean squares does."""
    count = count_of(x.shape, dims)
    mean = xp.asarray(divide_by_count(sum_array(xp, x, dims, True), count))
    distance = x - mean
    distance *= distance
    spread_out = xp.asarray(divide_by_count(sum_array(xp, distance, dims, keepdim), degrees(count, correction)))
    return (xp.sqrt(spread_out) if root else spread_out), mean.reshape(spread_out.shape)


def degrees(count: int, correction: float) -> float:
    """The divisor of a variance."""
    return count - correction if count > correction else 0


def moments_gradient(
    gs: Any, x: Tensor, deviation: Tensor | None, dims: tuple[int, ...], keepdim: bool, correction: float
) -> tuple[Tensor]:
    """The mean is worked out again rather than saved: as in PyTorch, a variance may be overwritten."""
    g, of_mean = gs
    shape = x.tj_array.shape
    count = count_of(shape, dims)
    found = None if of_mean is None else broadcast_sum_gradient(of_mean / count, shape, dims, keepdim)
    if g is not None:
        if deviation is not None:  # the slope at a deviation of 0 is taken to be 0
            g = g / where(deviation == 0, math.inf, deviation * 2)
        scale = 2 / degrees(count, correction) if count > correction else math.nan
        part = restore_dims(g * scale, shape, dims, keepdim) * (x - mean(x, dims, True))
        found = part if found is None else found + part
    return (found,)  # type: ignore[return-value]


def expand_moments(x: Tensor, *, dims: tuple[int, ...], keepdim: bool, correction: float, root: bool) -> tuple[Tensor, Tensor]:
    wide = cast(x, dtypes.float32) if x.tj_array.dtype.itemsize == 2 else x
    center = mean(wide, dims, True)
    distance = wide - center
    variance = sum(distance * distance, dims, keepdim) / degrees(count_of(x.tj_array.shape, dims), correction)
    value = sqrt(variance) if root else variance
    return cast(value, x.dtype), cast(center.reshape(value.shape), x.dtype)


VARIANCE = primitive(
    "variance",
    "composite",
    run_moments,
    grad=lambda gs, x, dims, keepdim, correction: moments_gradient(gs, x, None, dims, keepdim, correction),
    expand=expand_moments,
)
DEVIATION = primitive(
    "deviation",
    "composite",
    run_moments,
    grad=lambda gs, x, out, dims, keepdim, correction: moments_gradient(gs, x, out, dims, keepdim, correction),
    expand=expand_moments,
)


def moments(name: str, input: Tensor, dim: Any, unbiased: Any, keepdim: bool, correction: Any) -> tuple[Tensor, Tensor]:
    """Variance (or deviation) and mean. PyTorch's older calls name `unbiased` in the place of `dim` or after it."""
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"{name}(): std and var only support floating point dtypes, got {input.dtype}; use .float()")
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    elif unbiased is not None:
        raise TypeError(f"{name}(): pass either unbiased or correction, not both")
    attrs = reduction_attrs(input, dim, keepdim)
    if count_of(input.tj_array.shape, attrs["dims"]) <= correction:
        warn(
            f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input numel "
            "divided by output numel).",
        )
    root = name.startswith("std")
    return apply(DEVIATION if root else VARIANCE, (input,), {**attrs, "correction": correction, "root": root})  # type: ignore[no-any-return]


_moments = [
    sample(A(2, 3, 4)),
    sample(A(2, 3, 4), 1),
    sample(A(2, 3), dim=(0, 1), correction=0, keepdim=True),
    sample(A(4), unbiased=False),
    sample(A(2, 5), 1, correction=2),
]


@public(samples=_moments)
def var(input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Tensor:
    """The variance of all elements, or over `dim`: squares of distances from the mean, summed, over n - correction."""
    return moments("var", input, dim, unbiased, keepdim, correction)[0]


@public(samples=_moments)
def std(input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Tensor:
    """The standard deviation of all elements, or over `dim`."""
    return moments("std", input, dim, unbiased, keepdim, correction)[0]


@public(samples=_moments, method=False)
def var_mean(
    input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> tuple[Tensor, Tensor]:
    """The variance and the mean of all elements, or over `dim`."""
    return moments("var_mean", input, dim, unbiased, keepdim, correction)


@public(samples=_moments, method=False)
def std_mean(
    input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean of all elements, or over `dim`."""
    return moments("std_mean", input, dim, unbiased, keepdim, correction)


# ---- extremes


def shared_among_ties(g: Tensor, x: Tensor, out: Tensor, x_shape: Any, dims: Any, keepdim: bool) -> Tensor:
    """amax's gradient goes in equal parts to all elements that are the maximum."""
    hit = cast(x == restore_dims(out, x_shape, dims, keepdim), g.dtype)
    return restore_dims(g, x_shape, dims, keepdim) * hit / sum(hit, dims, keepdim=True)


AMAX = primitive(
    "amax",
    "reduce",
    lambda xp, x, *, dims, keepdim: reduce_array(xp, "max", x, dims, keepdim),
    grad={"x": shared_among_ties},
    body=lambda b, acc, x: b.maximum(acc, x),
)
AMIN = primitive(
    "amin",
    "reduce",
    lambda xp, x, *, dims, keepdim: reduce_array(xp, "min", x, dims, keepdim),
    grad={"x": shared_among_ties},
    body=lambda b, acc, x: b.minimum(acc, x),
)


def shared_among_extremes(g: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """The gradient of max() and min() of all elements: in equal parts, to the NaNs if there are some. amax has none then."""
    hit = cast((x == out) | (isnan(x) & isnan(out)), g.dtype)
    return g * hit / sum(hit)


# Without a dim: values as amax and amin, with another gradient at NaN.
MAX_ALL = primitive(
    "max_all",
    "composite",
    lambda xp, x: reduce_array(xp, "max", x, tuple(range(x.ndim)), False),
    grad={"x": shared_among_extremes},
    expand=lambda x: amax(x),
)
MIN_ALL = primitive(
    "min_all",
    "composite",
    lambda xp, x: reduce_array(xp, "min", x, tuple(range(x.ndim)), False),
    grad={"x": shared_among_extremes},
    expand=lambda x: amin(x),
)

_extremes = [
    sample(A(2, 3, distinct=True)),
    sample(A(2, 3, 2, distinct=True), dim=1),
    sample(A(2, 3, distinct=True), dim=(0, 1), keepdim=True),
    sample(A()),
    sample(I(2, 3), dim=1, grad=False),
]


@public(samples=_extremes, op=AMAX)
def amax(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The maximum over `dim` (all of them by default); ties share the gradient."""
    attrs = reduction_attrs(input, dim, keepdim)
    need_elements("amax", input, attrs["dims"], dim)
    return apply(AMAX, (input,), attrs)  # type: ignore[no-any-return]


@public(samples=_extremes, op=AMIN)
def amin(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The minimum over `dim` (all of them by default); ties share the gradient."""
    attrs = reduction_attrs(input, dim, keepdim)
    need_elements("amin", input, attrs["dims"], dim)
    return apply(AMIN, (input,), attrs)  # type: ignore[no-any-return]


Aminmax = named_result("aminmax", "min", "max")


@public(samples=[sample(A(2, 3, distinct=True)), sample(A(2, 3, distinct=True), dim=1), sample(A(2, 3), dim=0, keepdim=True)])
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """Minimum and maximum of all elements, or over `dim`: (min, max)."""
    if isinstance(dim, (tuple, list)):
        raise TypeError(f"aminmax(): argument 'dim' must be int, not {type(dim).__name__}; amin and amax take several dims")
    need_elements("aminmax", input, wrap_dims(dim, input.tj_array.ndim), dim)
    return Aminmax(amin(input, dim, keepdim), amax(input, dim, keepdim))


def _arg(name: str, extreme: str) -> Any:
    """argmax and argmin, over one dim or all."""

    def run(xp: Any, x: Any, *, dims: tuple[int, ...], keepdim: bool) -> Any:
        if len(dims) == 1:
            found = getattr(x, name)(axis=dims[0])
            return xp.expand_dims(found, dims[0]) if keepdim else found
        return xp.asarray(getattr(x.reshape(-1), name)()).reshape((1,) * x.ndim if keepdim else ())

    op = primitive(name, "reduce", run)

    def function(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if input.tj_array.dtype.kind == "b":
            raise RuntimeError(f"{name}(): does not support bool input; convert it first, for example with .int()")
        attrs = reduction_attrs(input, dim, keepdim)
        need_elements(name, input, attrs["dims"], dim, IndexError)
        return apply(op, (input,), attrs)  # type: ignore[no-any-return]

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Where the {extreme} stands, the first of equals: along `dim`, or in the flattened tensor."
    cases = [
        sample(A(2, 3, distinct=True), grad=False),
        sample(A(2, 3, 2, distinct=True), 1, grad=False),
        sample(I(2, 3), dim=0, keepdim=True, grad=False),
        sample(A(2, 3, distinct=True), keepdim=True, grad=False),
        sample(A(), 0, grad=False),
    ]
    return public(samples=cases, op=op)(function)


argmax = _arg("argmax", "maximum")
argmin = _arg("argmin", "minimum")


def _selecting(name: str, arg: Any) -> Any:
    """An extreme along a dim with its place, to which all of the gradient goes: (values, indices)."""

    def run(xp: Any, x: Any, *, dim: int, keepdim: bool) -> Any:
        if x.ndim == 0:
            return x.copy(), xp.zeros((), np.int64)
        places = xp.expand_dims(getattr(x, f"arg{name}")(axis=dim), dim)
        values = xp.take_along_axis(x, places, dim)
        return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))

    def expand(x: Tensor, *, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
        places = arg(x, dim, keepdim=True)
        values = x if x.tj_array.ndim == 0 else apply(GATHER, (x, places), {"dim": dim})
        return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))

    return primitive(f"{name}_along", "composite", run, grad=chosen_gradient, expand=expand)


def chosen_gradient(gs: Any, x_shape: tuple[int, ...], out1: Tensor, dim: int, keepdim: bool) -> tuple[Tensor]:
    """The gradient of one element chosen in each row along a dim."""
    g, places = gs[0], out1.detach()
    if not x_shape:
        return (g,)
    if not keepdim:
        g, places = g.unsqueeze(dim), places.unsqueeze(dim)
    return (apply(SCATTER, (g.new_zeros(x_shape), places, g), {"dim": dim}),)


MAX_ALONG, MIN_ALONG = _selecting("max", argmax), _selecting("min", argmin)
Max, Min = named_result("max", "values", "indices"), named_result("min", "values", "indices")


def extreme_in_three_forms(name: str, input: Tensor, dim: Any, keepdim: bool, other: Any) -> Any:
    """`max(x)`, `max(x, dim)` and `max(x, other)`."""
    other = dim if isinstance(dim, Tensor) else other
    if other is not None:
        return (maximum if name == "max" else minimum)(input, other)
    if dim is None:
        need_elements(name, input, (), dim)
        return apply(MAX_ALL if name == "max" else MIN_ALL, (input,))
    if isinstance(dim, (bool, tuple, list)):
        raise TypeError(f"{name}(): argument 'dim' must be int or Tensor, not {type(dim).__name__}; a{name} takes several dims")
    place = wrap_dim(dim, input.tj_array.ndim)
    need_elements(name, input, (place,) if input.tj_array.ndim else (), dim)
    op, result = (MAX_ALONG, Max) if name == "max" else (MIN_ALONG, Min)
    return result(*apply(op, (input,), {"dim": place, "keepdim": bool(keepdim)}))


_three_forms = [
    sample(A(2, 3, distinct=True)),
    sample(A(2, 3, 2, distinct=True), 1),
    sample(A(2, 3, distinct=True), dim=0, keepdim=True),
    sample(A(2, 3, lo=-2, hi=-0.1), A(2, 3, lo=0.1)),
    sample(A(), 0),
    sample(I(2, 5), 1, grad=False),
]


@public(samples=_three_forms)
def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The maximum of all elements; along `dim` with its indices, (values, indices); or of two tensors, element by element."""
    return extreme_in_three_forms("max", input, dim, keepdim, other)


@public(samples=_three_forms)
def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The minimum of all elements; along `dim` with its indices, (values, indices); or of two tensors, element by element."""
    return extreme_in_three_forms("min", input, dim, keepdim, other)


# ---- log-sum-exp


def run_logsumexp(xp: Any, x: Any, *, dims: tuple[int, ...], keepdim: bool) -> Any:
    if x.size == 0:
        return sum_array(xp, x, dims, keepdim) - math.inf
    top = reduce_array(xp, "max", x, dims, True)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))  # infinite rows need no help, and inf - inf would be NaN
    scaled = xp.asarray(x - top)
    xp.exp(scaled, out=scaled)
    value = xp.log(sum_array(xp, scaled, dims, keepdim))
    return value + top.reshape(value.shape)


def expand_logsumexp(x: Tensor, *, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    if x.tj_array.size == 0:
        return sum(x, dims, keepdim) - math.inf
    top = amax(x.detach(), dims, True)
    top = where(abs(top) == math.inf, 0, top)
    value = log(sum(exp(x - top), dims, keepdim))
    return value + top.reshape(value.shape)


def logsumexp_gradient(g: Tensor, x: Tensor, out: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """The softmax; 0 where all is -inf."""
    finite = restore_dims(where(out == -math.inf, 0, out), x.tj_array.shape, dims, keepdim)
    return restore_dims(g, x.tj_array.shape, dims, keepdim) * exp(x - finite)


LOGSUMEXP = primitive("logsumexp", "composite", run_logsumexp, grad={"x": logsumexp_gradient}, expand=expand_logsumexp)


@public(
    samples=[
        sample(A(2, 3), 1),
        sample(A(2, 3, 2), dim=(0, 2), keepdim=True),
        sample(A(3, lo=9999, hi=10001), 0),
        sample(A(), 0),
        sample(A(0, 2), 0, grad=False),
    ],
    op=LOGSUMEXP,
)
def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """The logarithm of the sum of exponentials over `dim`, without overflow."""
    if not input.dtype.is_floating_point:
        input = cast(input, dtypes.get_default_dtype())
    return apply(LOGSUMEXP, (input,), reduction_attrs(input, dim, keepdim))  # type: ignore[no-any-return]


# ---- norms

PIECE = 512  # terms that float32 sums without losing more than the last digit


def run_norm(xp: Any, x: Any, *, p: float, dims: tuple[int, ...], keepdim: bool) -> Any:
    if p == 2:
        return xp.sqrt(_squares(xp, x, dims, keepdim))
    if p == 0:
        return (x != 0).sum(axis=dims, keepdims=keepdim, dtype=x.dtype)
    size = xp.abs(x)
    if p == 1:
        return sum_array(xp, size, dims, keepdim)
    if p in (math.inf, -math.inf):
        return reduce_array(xp, "max" if p > 0 else "min", size, dims, keepdim)
    return sum_array(xp, size**p, dims, keepdim) ** (1 / p)


def _squares(xp: Any, x: Any, dims: tuple[int, ...], keepdim: bool) -> Any:
    """The sum of squares; of a whole array piece by piece, with no copy of it."""
    if xp is np and len(dims) == x.ndim and x.size > PIECE and x.flags.c_contiguous and x.dtype.char in "fd":
        whole = x.size // PIECE * PIECE
        pieces, rest = x.reshape(-1)[:whole].reshape(-1, PIECE), x.reshape(-1)[whole:]
        found = np.add.reduce(np.vecdot(pieces, pieces), dtype=np.float64) + rest @ rest
        return np.asarray(found, x.dtype).reshape((1,) * x.ndim * keepdim)
    return sum_array(xp, x * x, dims, keepdim)


def norm_gradient(g: Tensor, x: Tensor, out: Tensor, p: float, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """Gradient of the norm; 0 at a corner of the norm, as in PyTorch."""
    shape = x.tj_array.shape
    g, out = restore_dims(g, shape, dims, keepdim), restore_dims(out, shape, dims, keepdim)
    if p == 0:
        return zero_gradient(g).expand(shape)  # type: ignore[no-any-return]
    if p == 1:
        return g * sign(x)
    safe = where(out == 0, 1, out)
    if p == 2:
        return g * (x / safe)
    if p in (math.inf, -math.inf):
        hit = cast(abs(x) == out, g.dtype)
        return g * sign(x) * hit / sum(hit, dims, keepdim=True)
    size = where(x == 0, 1, abs(x))
    return g * sign(x) * where(out == 0, 0, (size / safe) ** (p - 1))


def expand_norm(x: Tensor, *, p: float, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    if p == 2:
        return sqrt(sum(x * x, dims, keepdim))
    if p == 0:
        return sum(cast(x != 0, x.dtype), dims, keepdim)  # not by its sign: NaN has none
    if p in (math.inf, -math.inf):
        return (amax if p > 0 else amin)(abs(x), dims, keepdim)  # type: ignore[no-any-return]
    return sum(abs(x) ** p, dims, keepdim) ** (1 / p)


NORM = primitive("norm", "composite", run_norm, grad={"x": norm_gradient}, expand=expand_norm)


@public(
    samples=[
        sample(A(2, 3)),
        sample(A(2, 3, lo=0.2), 1, dim=1),
        sample(A(2, 3, 2), 2, dim=(0, 2), keepdim=True),
        sample(A(2, 3, distinct=True), float("inf"), 1),
        sample(A(2, 3, lo=0.2, distinct=True), p=float("-inf"), dim=0),
        sample(A(2, 3, lo=0.2), 3, -1),
        sample(A(2, 3, lo=0.2), p=0.5),
        sample(A(2, 3), p=0, dim=1, grad=False),
    ],
    op=NORM,
)
def norm(input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The p-norm of all elements, or over `dim`: "fro" is the 2-norm, "nuc" the sum of a matrix's singular values."""
    if dtype is not None:
        input = cast(input, dtypes.as_dtype(dtype))
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"norm: Expected a floating point tensor as input. Got {input.dtype.legacy}; use .float()")
    if isinstance(p, str) and p != "fro":
        from ..core.op import OPS

        pair = tuple(range(input.tj_array.ndim)) if dim is None else dim
        return OPS["linalg.matrix_norm"].function(input, p, pair, keepdim)  # type: ignore[no-any-return, misc]
    attrs = reduction_attrs(input, dim, keepdim)
    order = 2.0 if p is None or p == "fro" else float(p)
    if (order == math.inf or order < 0) and count_of(input.tj_array.shape, attrs["dims"]) == 0:
        raise RuntimeError(
            f"norm cannot compute the {order:g} norm on an empty tensor (shape {list(input.shape)}) because the operation does "
            "not have an identity"
        )
    return apply(NORM, (input,), {"p": order, **attrs})  # type: ignore[no-any-return]


@public(samples=[sample(A(2, 3), A(2, 3)), sample(A(2, 3, lo=0.2), A(3, lo=-2, hi=-0.1), 1), sample(A(2), A(2), p=3)])
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference."""
    return norm(input - other, p)


@public(samples=[sample(A(2, 3), 2, 0, 1.0), sample(A(2, 3, 2), 1, 1, 0.5)], inplace=True)
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """The slices along `dim`, those whose p-norm is above `maxnorm` scaled down to it."""
    if input.tj_array.ndim < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input.tj_array.ndim} dimensions")
    place = wrap_dim(dim, input.tj_array.ndim)
    size = norm(input, p, tuple(d for d in range(input.tj_array.ndim) if d != place), True)
    return input * where(size > maxnorm, maxnorm / (size + 1e-7), 1)


# ---- truth


def _truth(name: str, joiner: str) -> Any:
    def run(xp: Any, x: Any, *, dims: tuple[int, ...], keepdim: bool) -> Any:
        found = getattr(xp, name)(x, axis=dims, keepdims=keepdim)
        return found.astype(np.uint8) if x.dtype == np.uint8 else found  # PyTorch's uint8 were its first booleans

    op = primitive(name, "reduce", run, body=lambda b, acc, x: getattr(b, joiner)(acc, x), upcast=False)

    def function(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        return apply(op, (input,), reduction_attrs(input, dim, keepdim))  # type: ignore[no-any-return]

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Whether {name} of the elements, over `dim` or altogether, are true (not zero)."
    cases = [
        sample(B(2, 3), grad=False),
        sample(B(2, 3), dim=1, grad=False),
        sample(I(2, 3, hi=2), dim=0, keepdim=True, grad=False),
        sample(B(2, 3, 2), dim=(0, 2), grad=False),
        sample(B(0), grad=False),
    ]
    return public(samples=cases, op=op)(function)


all = _truth("all", "logical_and")
any = _truth("any", "logical_or")
