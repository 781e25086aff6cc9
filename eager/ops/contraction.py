"""Contractions: matmul is multiply-and-sum with a fast path."""

from __future__ import annotations

from typing import Any

from ..op import apply, primitive, public
from ..samples import A, sample
from ..tape import sum_to
from ..tensor import Tensor
from .pointwise import promoted

# At least 2-D on both sides, batch dims broadcast.
MATMUL = primitive(
    "matmul",
    "contraction",
    lambda xp, a, b: xp.matmul(a, b),
    grad={
        "a": lambda g, b, a_shape: sum_to(g @ b.mT, a_shape),
        "b": lambda g, a, b_shape: sum_to(a.mT @ g, b_shape),
    },
)


@public(
    samples=[
        sample(A(3, 4), A(4, 2)),
        sample(A(4), A(4)),
        sample(A(3, 4), A(4)),
        sample(A(4), A(4, 2)),
        sample(A(2, 3, 4), A(4, 2)),
        sample(A(2, 1, 3, 4), A(5, 4, 2)),
        sample(A(4), A(2, 4, 3)),
        sample(A(2, 3, 4), A(4)),
    ],
    op=MATMUL,
)
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product; vectors are rows on the left and columns on the right, and leading dims are batches."""
    for x in (input, other):
        if not isinstance(x, Tensor):
            raise TypeError(f"matmul(): expected Tensors, got {type(x).__name__}")
    a, b = input, other
    if a._array.ndim == 0 or b._array.ndim == 0:
        raise RuntimeError(
            f"both arguments to matmul need to be at least 1D, but they are {a._array.ndim}D and {b._array.ndim}D"
        )
    if a._array.dtype != b._array.dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {a.dtype.name} != {b.dtype.name}; convert one with .to(dtype)"
        )
    inner_b = b._array.shape[-2] if b._array.ndim > 1 else b._array.shape[0]
    if a._array.shape[-1] != inner_b:
        raise RuntimeError(
            f"matmul: mat1 and mat2 shapes cannot be multiplied ({list(a.shape)} and {list(b.shape)}): the last dim of the "
            f"first, {a._array.shape[-1]}, must equal the {'second to last' if b._array.ndim > 1 else 'only'} dim of the second, {inner_b}"
        )
    if a._array.ndim >= 2 and b._array.ndim >= 2:
        if b._array.ndim == 2 and a._array.ndim > 2:  # one large product instead of many small ones
            flat = apply(MATMUL, (a.reshape(-1, a._array.shape[-1]), b))
            return flat.reshape(*a._array.shape[:-1], b._array.shape[-1])  # type: ignore[no-any-return]
        return apply(MATMUL, (a, b))  # type: ignore[no-any-return]
    if a._array.ndim == 1 and b._array.ndim == 1:
        return (a * b).sum()  # type: ignore[no-any-return]
    if a._array.ndim == 1:
        return matmul(a.unsqueeze(0), b).squeeze(-2)  # type: ignore[no-any-return]
    return matmul(a, b.unsqueeze(-1)).squeeze(-1)  # type: ignore[no-any-return]
