"""Reductions over dims: sum, product, extremes, and what is composed of them.

A reduction's attributes are always `dims` (a tuple of non-negative dims) and `keepdim`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import dtypes
from ..op import apply, primitive, public
from ..samples import A, B, I, sample
from ..tensor import Tensor, wrap_dim, wrap_dims
from .movement import EXPAND
from .pointwise import cast, where


def restored(g: Tensor, shape: tuple[int, ...], dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """A reduction's gradient, with the reduced dims back as length 1."""
    if keepdim or not dims:
        return g
    return g.reshape(tuple(1 if i in dims else n for i, n in enumerate(shape)))


def spread(g: Tensor, shape: tuple[int, ...], dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """A sum's gradient at every element that was summed: a view."""
    if dims != tuple(range(len(dims))):  # leading dims come back by broadcasting alone
        g = restored(g, shape, dims, keepdim)
    return apply(EXPAND, (g,), {"shape": tuple(shape)})  # type: ignore[no-any-return]


SUM = primitive(
    "sum",
    "reduce",
    lambda xp, x, *, dims, keepdim: x.sum(axis=dims, keepdims=keepdim, dtype=x.dtype),
    grad={"x": lambda g, x_shape, dims, keepdim: spread(g, x_shape, dims, keepdim)},
    body=lambda b, acc, x: b.add(acc, x),
)


def accumulator(input: Tensor, dtype: Any) -> Tensor:
    """The input in the dtype a sum is made in: the one asked for, else int64 for bools and integers."""
    if dtype is not None:
        return cast(input, dtypes.as_dtype(dtype))
    return input if input.dtype.is_floating_point else cast(input, dtypes.int64)


@public(
    samples=[
        sample(A(2, 3, 4)),
        sample(A(2, 3, 4), 1),
        sample(A(2, 3, 4), dim=(0, 2), keepdim=True),
        sample(A()),
        sample(A(0, 3), dim=0),
        sample(I(2, 3), grad=False),
        sample(B(2, 3), dim=1, grad=False),
    ],
    op=SUM,
)
def sum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum of all elements, or over `dim`."""
    input = accumulator(input, dtype)
    return apply(SUM, (input,), {"dims": wrap_dims(dim, input._array.ndim), "keepdim": keepdim})  # type: ignore[no-any-return]


@public(samples=[sample(A(2, 3, 4)), sample(A(2, 3, 4), 1), sample(A(2, 3, 4), dim=(0, 2), keepdim=True), sample(A())])
def mean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean of all elements, or over `dim`."""
    if dtype is not None:
        input = cast(input, dtypes.as_dtype(dtype))
    if not input.dtype.is_floating_point:
        raise RuntimeError(
            f"mean(): could not infer output dtype. Input dtype must be a floating point dtype. Got: {input.dtype.legacy}. "
            "Convert it first, for example with .float()."
        )
    dims = wrap_dims(dim, input._array.ndim)
    count = math.prod(input._array.shape[d] for d in dims)
    total = apply(SUM, (input,), {"dims": dims, "keepdim": keepdim})
    return total * (1 / count) if count and input._array.dtype.itemsize == 8 else total / count  # type: ignore[no-any-return]


def shared_among_ties(g: Tensor, x: Tensor, out: Tensor, x_shape: Any, dims: Any, keepdim: bool) -> Tensor:
    """amax's gradient goes in equal parts to all elements that are the maximum."""
    hit = cast(x == restored(out, x_shape, dims, keepdim), g.dtype)
    return restored(g, x_shape, dims, keepdim) * hit / sum(hit, dims, keepdim=True)


def extreme(name: str) -> Any:
    def run(xp: Any, x: Any, *, dims: tuple[int, ...], keepdim: bool) -> Any:
        return getattr(xp, name)(x, axis=dims, keepdims=keepdim)

    return run


AMAX = primitive(
    "amax", "reduce", extreme("amax"), grad={"x": shared_among_ties}, body=lambda b, acc, x: b.maximum(acc, x)
)
AMIN = primitive(
    "amin", "reduce", extreme("amin"), grad={"x": shared_among_ties}, body=lambda b, acc, x: b.minimum(acc, x)
)


def no_identity(name: str, input: Tensor, dims: tuple[int, ...]) -> None:
    if any(input._array.shape[d] == 0 for d in dims):
        raise IndexError(
            f"{name}(): Expected reduction dim to have non-zero size: an empty tensor of shape {list(input.shape)} "
            "has no such element; pass dim= to reduce over a dimension that is not empty."
        )


_extremes = [sample(A(2, 3, distinct=True)), sample(A(2, 3, 2, distinct=True), dim=1), sample(A(2, 3, distinct=True), dim=(0, 1))]


@public(samples=_extremes, op=AMAX)
def amax(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The maximum over `dim` (all of them by default); ties share the gradient."""
    dims = wrap_dims(dim, input._array.ndim)
    no_identity("amax", input, dims)
    return apply(AMAX, (input,), {"dims": dims, "keepdim": keepdim})  # type: ignore[no-any-return]


@public(samples=_extremes, op=AMIN)
def amin(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The minimum over `dim` (all of them by default); ties share the gradient."""
    dims = wrap_dims(dim, input._array.ndim)
    no_identity("amin", input, dims)
    return apply(AMIN, (input,), {"dims": dims, "keepdim": keepdim})  # type: ignore[no-any-return]


def _truth(name: str, joiner: str) -> Any:
    def run(xp: Any, x: Any, *, dims: tuple[int, ...], keepdim: bool) -> Any:
        return getattr(xp, name)(x, axis=dims, keepdims=keepdim)

    op = primitive(name, "reduce", run, body=lambda b, acc, x: getattr(b, joiner)(acc, x), upcast=False)

    def function(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        return apply(op, (input,), {"dims": wrap_dims(dim, input._array.ndim), "keepdim": keepdim})  # type: ignore[no-any-return]

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Whether {name} of the elements, over `dim` or altogether, are true (not zero)."
    cases = [sample(B(2, 3), grad=False), sample(B(2, 3), dim=1, grad=False), sample(I(2, 3, hi=2), dim=0, keepdim=True, grad=False)]
    return public(samples=cases, op=op)(function)


all = _truth("all", "logical_and")
any = _truth("any", "logical_or")
