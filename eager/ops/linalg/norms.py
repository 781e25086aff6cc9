"""Norms of vectors and matrices in `linalg`, and the distances and similarities that are made of them.

Gradients are zero, not NaN, where a norm or distance is zero.
"""
# ruff: noqa: N803 -- PyTorch's argument names

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arrays import dtypes
from ...arrays.op_samples import A as Array
from ...arrays.op_samples import sample
from ...core.cast import cast
from ...core.dispatch import apply
from ...core.errors import broadcast_error
from ...core.op import primitive
from ...core.registration import public
from ...core.tape.engine import sum_to
from ...core.tensor import Tensor, wrap_dim, wrap_dims
from ..pointwise import clamp_min, is_number, promote_operands, where
from ..reduce import NORM
from .decompositions import check_floating, check_matrices, svdvals
from .matmul import check_tensors, matmul, transposed

# ---- vectors


def in_dtype(x: Tensor, dtype: Any, name: str) -> Tensor:
    """The tensor in the dtype that its norm was asked in."""
    check_floating(x, name)
    if dtype is None:
        return x
    wanted = dtypes.as_dtype(dtype)
    if not wanted.is_floating_point:
        raise RuntimeError(f"{name}: dtype should be floating point or complex, but got {wanted.legacy}")
    if dtypes.promote_types(x.dtype, wanted) is not wanted:
        raise RuntimeError(
            f"{name}: the dtype of the input ({x.dtype.legacy}) should be convertible without narrowing to the specified dtype "
            f"({wanted.legacy})"
        )
    return cast(x, wanted)


@public(
    "linalg",
    samples=[
        sample(Array(2, 3)),
        sample(Array(2, 3), 1, dim=1),
        sample(Array(2, 3), 3.5, dim=-1, keepdim=True),
        sample(Array(2, 3, distinct=True), math.inf, dim=0),
        sample(Array(2, 3, distinct=True), -math.inf),
        sample(Array(2, 3, 2), 1.5, dim=(0, 2)),
        sample(Array(2, 3), -1.0),
        sample(Array(2, 3), 0, dim=1, grad=False),
        sample(Array()),
    ],
)
def vector_norm(x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """(sum |x| ** ord) ** (1 / ord) over all elements or over `dim`; inf and -inf are the largest and the smallest |x|."""
    check_tensors("linalg.vector_norm", x=x)
    x = in_dtype(x, dtype, "linalg.vector_norm")
    dims = wrap_dims(dim, x.tj_array.ndim)
    if not is_number(ord):
        raise TypeError(f"linalg.vector_norm(): argument 'ord' must be Number, not {type(ord).__name__}")
    ord = float(ord)
    if ord < 0 or ord == math.inf:
        check_not_empty(x, ord, dims, dim)
    return apply(NORM, (x,), {"p": ord, "dims": dims, "keepdim": keepdim})  # type: ignore[no-any-return]


def check_not_empty(x: Tensor, ord: float, dims: tuple[int, ...], dim: Any) -> None:
    empty = next((d for d in dims if x.tj_array.shape[d] == 0), None)
    if empty is not None:
        where = "an empty tensor" if dim is None else f"the dimension {empty} of shape {list(x.shape)}"
        why = "" if dim is None else "this dimension is empty and "
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {ord:g} norm on {where} because {why}the operation does not have an "
            "identity"
        )


# ---- matrices


@public(
    "linalg",
    samples=[
        sample(Array(2, 3)),
        sample(Array(2, 3), "nuc"),
        sample(Array(2, 3), 2),
        sample(Array(2, 3), -2),
        sample(Array(2, 3, 3), 1),
        sample(Array(2, 3, 3), -math.inf, dim=(0, 2), keepdim=True),
        sample(Array(3, 2, 4), "nuc", dim=(0, 2)),
    ],
)
def matrix_norm(A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """A norm of matrices: Frobenius, nuclear, 2 and -2 (extreme singular values), 1, -1, inf, -inf (extreme sums)."""
    name = "linalg.matrix_norm"
    check_tensors(name, A=A)
    if A.tj_array.ndim < 2:
        raise RuntimeError(f"{name}: The input tensor A must have at least 2 dimensions.")
    if isinstance(dim, int) or len(dim) != 2:
        raise RuntimeError(f"{name}: dim must be a 2-tuple. Got {dim}")
    rows, columns = (wrap_dim(d, A.tj_array.ndim) for d in dim)
    if rows == columns:
        raise RuntimeError(f"{name}: dims must be different. Got {tuple(dim)}")
    A = in_dtype(A, dtype, name)
    if ord == "fro":
        return vector_norm(A, 2, (rows, columns), keepdim)
    if ord in ("nuc", 2, -2):
        check_matrices(A, name)
        return spectral_norm(A, ord, rows, columns, keepdim)
    if ord in (1, -1, math.inf, -math.inf):
        summed, searched = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = vector_norm(A, 1, summed, keepdim=True)
        return without(extreme(sums, searched, ord), (() if keepdim else (rows, columns)))
    raise RuntimeError(f"{name}: Order {ord} not supported.")


def extreme(x: Tensor, dim: int, ord: float) -> Tensor:
    """The largest value along a dim, or the smallest for a negative order. The largest of no lengths is 0."""
    if ord > 0 and x.tj_array.shape[dim] == 0:
        return x.sum(dim, keepdim=True)  # type: ignore[no-any-return]
    return x.amax(dim, keepdim=True) if ord > 0 else x.amin(dim, keepdim=True)  # type: ignore[no-any-return]


def without(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Drop dims of length 1."""
    return x.reshape([n for i, n in enumerate(x.tj_array.shape) if i not in dims])  # type: ignore[no-any-return]


def spectral_norm(A: Tensor, ord: Any, rows: int, columns: int, keepdim: bool) -> Tensor:
    """A norm that is made of singular values."""
    shape = A.tj_array.shape
    others = [i for i in range(len(shape)) if i not in (rows, columns)]
    values = svdvals(A.permute(*others, rows, columns))
    found = values.sum(-1) if ord == "nuc" else extreme(values, -1, ord)
    kept = [n for i, n in enumerate(shape) if i not in (rows, columns)]
    return found.reshape([1 if i in (rows, columns) else n for i, n in enumerate(shape)] if keepdim else kept)  # type: ignore[no-any-return]


@public(
    "linalg",
    name="norm",
    samples=[
        sample(Array(2, 3, 2)),
        sample(Array(3), 3),
        sample(Array(2, 3), 1),
        sample(Array(2, 3), "fro", dim=(0, 1)),
        sample(Array(2, 3, 2), 2, dim=1, keepdim=True),
        sample(Array(2, 3), dim=1),
    ],
)
def linalg_norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """A vector's or a matrix's norm: of all elements without `ord`, of a matrix with `ord` and two dims, else of vectors."""
    name = "linalg.norm"
    check_tensors(name, A=A)
    ndim = A.tj_array.ndim
    if dim is not None and not isinstance(dim, int) and len(dim) not in (1, 2):
        raise RuntimeError(f"{name}: If dim is specified, it must be of length 1 or 2. Got {list(dim)}")
    if ord is None:
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    if dim is None:
        if isinstance(ord, str):
            return matrix_norm(A, ord, (-2, -1), keepdim, dtype=dtype)
        if ndim not in (1, 2):
            raise RuntimeError(f"{name}: If dim is not specified but ord is, the input must be 1D or 2D. Got {ndim}D.")
        dim = tuple(range(ndim))
    if isinstance(ord, str) or (not isinstance(dim, int) and len(dim) == 2):
        return matrix_norm(A, ord, dim, keepdim, dtype=dtype)
    return vector_norm(A, ord, dim, keepdim, dtype=dtype)


# ---- distances


def run_euclidean(xp: Any, x: Any, y: Any, *, by_matmul: bool) -> Any:
    """All distances between rows. By a matmul where there are many: |x - y|^2 = |x|^2 + |y|^2 - 2 x y."""
    if not by_matmul:
        difference = x[..., :, None, :] - y[..., None, :, :]
        return xp.sqrt(xp.add.reduce(difference * difference, axis=-1))
    square = xp.add.reduce(x * x, axis=-1)[..., :, None] + xp.add.reduce(y * y, axis=-1)[..., None, :]
    square = square - 2 * xp.matmul(x, y.swapaxes(-1, -2))
    return xp.sqrt(xp.maximum(square, 0))


def euclidean_gradient(g: Tensor, x: Tensor, y: Tensor, out: Tensor, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    ratio = where(out == 0, 0.0, g / where(out == 0, 1.0, out))

    def towards(ratio: Tensor, here: Tensor, there: Tensor) -> Tensor:
        return sum_to(here * ratio.sum(-1, keepdim=True) - matmul(ratio, there), here.tj_array.shape)

    return (
        towards(ratio, x, y) if needs[0] else None,
        towards(transposed(ratio), y, x) if needs[1] else None,
    )


EUCLIDEAN = primitive(
    "euclidean",
    "composite",
    run_euclidean,
    grad=euclidean_gradient,
    expand=lambda x, y, by_matmul: vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), 2, -1),
)

MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
MAX_ROWS_WITHOUT_MATMUL = 25  # with more rows PyTorch uses a matmul


@public(
    samples=[
        sample(Array(3, 2), Array(4, 2)),
        sample(Array(2, 3, 2), Array(4, 2), p=1.0),
        sample(Array(3, 4), Array(2, 4), p=3.0),
        sample(Array(3, 4, distinct=True), Array(2, 4, distinct=True), p=math.inf),
        sample(Array(3, 2), Array(4, 2), compute_mode="use_mm_for_euclid_dist"),
        sample(Array(0, 2), Array(4, 2)),
    ],
    method=False,
)
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = MODES[0]) -> Tensor:
    """The distances between all rows of one matrix and all rows of another, in batches."""
    check_tensors("cdist", x1=x1, x2=x2)
    check_rows(x1, x2)
    if p < 0:
        raise RuntimeError(f"cdist only supports non-negative p values, got {p}")
    if compute_mode not in MODES:
        raise ValueError(f"{compute_mode} is not a valid value for compute_mode; expected one of {MODES}")
    if p == 2:
        many = max(x1.tj_array.shape[-2], x2.tj_array.shape[-2]) > MAX_ROWS_WITHOUT_MATMUL
        by_matmul = compute_mode == MODES[1] or (compute_mode == MODES[0] and many)
        return apply(EUCLIDEAN, (x1, x2), {"by_matmul": by_matmul})  # type: ignore[no-any-return]
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if difference.tj_array.shape[-1] == 0:
        return difference.sum(-1)  # type: ignore[no-any-return]
    return vector_norm(difference, p, -1)


def check_rows(x1: Tensor, x2: Tensor) -> None:
    for name, x in (("X1", x1), ("X2", x2)):
        if not x.dtype.is_floating_point:
            raise RuntimeError(f"cdist only supports floating-point dtypes, {name} got: {x.dtype.legacy}")
        if x.tj_array.ndim < 2:
            raise RuntimeError(f"cdist only supports at least 2D tensors, {name} got: {x.tj_array.ndim}D")
    if x1.tj_array.shape[-1] != x2.tj_array.shape[-1]:
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {x1.tj_array.shape[-1]} X2: {x2.tj_array.shape[-1]}"
        )
    if x1.tj_array.dtype != x2.tj_array.dtype:
        raise RuntimeError(f"expected scalar type {x1.dtype.legacy} but found {x2.dtype.legacy} in cdist")
    clash = broadcast_error([x1.tj_array.shape[:-2], x2.tj_array.shape[:-2]])
    if clash is not None:
        raise RuntimeError(f"cdist: {clash}")


@public(
    "nn.functional",
    samples=[
        sample(Array(2, 3), Array(2, 3)),
        sample(Array(3), Array(2, 3), p=1.0, keepdim=True),
        sample(Array(2, 3), Array(2, 3), p=3.0, eps=0.1),
    ],
)
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The norm of x1 - x2 + eps over the last dim."""
    check_tensors("pairwise_distance", x1=x1, x2=x2)
    return vector_norm(x1 - x2 + eps, p, -1, keepdim)


@public(
    "",
    "nn.functional",
    samples=[
        sample(Array(2, 3), Array(2, 3)),
        sample(Array(2, 3), Array(3), dim=0),
        sample(Array(3), Array(3), dim=-1, eps=0.5),
    ],
    method=False,
)
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 . x2 / (|x1| |x2|) over a dim, with norms of at least eps."""
    check_tensors("cosine_similarity", x1=x1, x2=x2)
    clash = broadcast_error([x1.tj_array.shape, x2.tj_array.shape])
    if clash is not None:
        raise RuntimeError(f"cosine_similarity: {clash}")
    x1, x2 = promote_operands("cosine_similarity", x1, x2)
    if not x1.dtype.is_floating_point:
        raise RuntimeError(f"expected common dtype to be floating point, yet common dtype is {x1.dtype.legacy}")
    shape = np.broadcast_shapes(x1.tj_array.shape, x2.tj_array.shape)
    place = wrap_dim(dim, len(shape))
    x1, x2 = x1.expand(shape), x2.expand(shape)
    first, second = (x / clamp_min(vector_norm(x, 2, place, keepdim=True), eps) for x in (x1, x2))
    return (first * second).sum(place)  # type: ignore[no-any-return]
