"""Linear algebra as users call it: `tapejit.linalg` and PyTorch's older names for the same things.

The work is done in `decompositions.py`; here arguments are checked, older names are given their meaning, and what is
composed of factorisations (pseudo-inverse, rank, least squares, condition number, powers) is composed.
"""
# ruff: noqa: N803 -- PyTorch's argument names

from __future__ import annotations

import math
from typing import Any

from ...arrays import dtypes
from ...arrays.op_samples import A as Array
from ...arrays.op_samples import I, sample
from ...core.cast import cast
from ...core.dispatch import apply
from ...core.errors import broadcast_error
from ...core.registration import public
from ...core.tensor import Tensor
from ..named_results import named_result
from ..pointwise import where
from .decompositions import (
    CHOLESKY,
    DET,
    MATRIX_EXP,
    PSEUDO_INVERSE,
    QR_FACTORS,
    SLOGDET,
    SOLVE,
    SOLVE_TRIANGULAR,
    check_equation,
    check_floating,
    check_matrices,
    check_square,
    eigvalsh,
    inverse_of,
    svd,
    svdvals,
    triangular_solution,
)
from .matmul import check_tensors, matmul, transposed
from .norms import linalg_norm

# ---- inverse


@public("linalg", samples=[sample(Array(3, 3)), sample(Array(2, 2, 2)), sample(Array(0, 0), grad=False)])
def inv(A: Tensor) -> Tensor:
    """The inverse of square matrices; LinAlgError if one is singular."""
    check_square(A, "linalg.inv")
    return inverse_of(A, "linalg.inv")


@public(samples=[sample(Array(3, 3)), sample(Array(2, 2, 2))])
def inverse(input: Tensor) -> Tensor:
    """The inverse of square matrices; `linalg.inv` is its newer name."""
    return inv(input)


InvEx = named_result("linalg_inv_ex", "inverse", "info")


@public("linalg", samples=[sample(Array(3, 3)), sample(Array(2, 2, 2))])
def inv_ex(A: Tensor, *, check_errors: bool = False) -> Any:
    """The inverse, NaN for singular matrices, and `info`, which is not 0 for those."""
    check_square(A, "linalg.inv_ex")
    found = inverse_of(A, "linalg.inv_ex" if check_errors else None)
    return InvEx(found, failed(found))


def failed(x: Tensor) -> Tensor:
    """1 for the matrices of a batch that have no result, else 0."""
    return cast(x.detach().isnan().flatten(-2).any(-1), dtypes.int32)


# ---- equations


@public(
    "linalg",
    samples=[
        sample(Array(3, 3), Array(3)),
        sample(Array(3, 3), Array(3, 2)),
        sample(Array(2, 2, 2), Array(2, 3)),
        sample(Array(2, 2, 2), Array(2, 2)),
        sample(Array(2, 2), Array(2, 3, 2), left=False),
    ],
)
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The X of A @ X = B, or of X @ A = B if not `left`; LinAlgError if A is singular."""
    check_square(A, "linalg.solve")
    check_tensors("linalg.solve", B=B)
    shape = A.tj_array.shape
    vector = B.tj_array.ndim == 1 or (B.tj_array.ndim == len(shape) - 1 and B.tj_array.shape == shape[:-1])
    if vector:
        B = B.unsqueeze(-1)
    check_matrices(B, "linalg.solve", "B")
    check_equation(A, B, left, "linalg.solve")
    if not left:
        return transposed(apply(SOLVE, (transposed(A), transposed(B))))
    found = apply(SOLVE, (A, B))
    return found.squeeze(-1) if vector else found  # type: ignore[no-any-return]


@public(
    "linalg",
    samples=[
        sample(Array(3, 3, lo=0.5), Array(3, 2), upper=True),
        sample(Array(2, 3, 3, lo=0.5), Array(3, 1), upper=False),
        sample(Array(3, 3), Array(2, 3, 2), upper=False, unitriangular=True),
        sample(Array(2, 2, lo=0.5), Array(3, 2), upper=True, left=False),
    ],
)
def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """The X of A @ X = B for a triangular A, of which only one triangle is read (without its diagonal if `unitriangular`)."""
    name = "linalg.solve_triangular"
    check_square(A, name)
    check_matrices(B, name, "B")
    check_equation(A, B, left, name)
    if left:
        return apply(SOLVE_TRIANGULAR, (A, B), {"upper": upper, "unitriangular": unitriangular})  # type: ignore[no-any-return]
    attrs = {"upper": not upper, "unitriangular": unitriangular}
    return transposed(apply(SOLVE_TRIANGULAR, (transposed(A), transposed(B)), attrs))


# ---- determinants


@public("", "linalg", samples=[sample(Array(3, 3)), sample(Array(2, 2, 2)), sample(Array(1, 1))], op=DET)
def det(A: Tensor) -> Tensor:
    """The determinant of square matrices."""
    check_square(A, "linalg.det")
    return apply(DET, (A,))  # type: ignore[no-any-return]


Slogdet = named_result("linalg_slogdet", "sign", "logabsdet")


@public("", "linalg", samples=[sample(Array(3, 3)), sample(Array(2, 2, 2))], op=SLOGDET)
def slogdet(A: Tensor) -> Any:
    """The sign of the determinant and the logarithm of its absolute value, which do not overflow."""
    check_square(A, "linalg.slogdet")
    return Slogdet(*apply(SLOGDET, (A,)))


@public(samples=[sample(Array(1, 1, lo=0.5)), sample(Array(2, 2, 2))])
def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant; NaN if that is negative."""
    check_square(input, "logdet")
    sign, size = slogdet(input)
    return where(sign < 0, math.nan, size)  # type: ignore[no-any-return]


# ---- Cholesky


def lower_factor(A: Tensor, upper: bool, name: str, raises: bool = True) -> Tensor:
    check_square(A, name)
    found = apply(CHOLESKY, (transposed(A) if upper else A,), {"name": name if raises else None})
    return transposed(found) if upper else found  # type: ignore[no-any-return]


# One by one, so that the samples are positive-definite; tests/eager/ops/linalg/test_linalg.py has larger ones.
_positive = [sample(Array(1, 1, lo=0.5)), sample(Array(3, 1, 1, lo=0.5)), sample(Array(1, 1, lo=0.5), upper=True)]


@public("linalg", name="cholesky", samples=_positive)
def linalg_cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The triangular L of positive-definite matrices L @ L.T; LinAlgError if one is not positive-definite."""
    return lower_factor(A, upper, "linalg.cholesky")


@public(samples=_positive)
def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """The triangular L of positive-definite matrices L @ L.T; `linalg.cholesky` is its newer name."""
    return lower_factor(input, upper, "cholesky")


CholeskyEx = named_result("linalg_cholesky_ex", "L", "info")


@public("linalg", samples=_positive)
def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    """The Cholesky factor, NaN for matrices that are not positive-definite, and `info`, which is not 0 for those."""
    found = lower_factor(A, upper, "linalg.cholesky_ex", check_errors)
    return CholeskyEx(found, failed(found))


# PyTorch's gradient is right only where the other triangle is zero, which a sample cannot say.
@public(
    samples=[
        sample(Array(3, 2), Array(3, 3, lo=0.5), peer=False),
        sample(Array(2, 2, 1), Array(2, 2, lo=0.5), upper=True, peer=False),
    ]
)
def cholesky_solve(input: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """The X of A @ X = input, given A's Cholesky factor."""
    check_square(L, "cholesky_solve", "L")
    check_matrices(input, "cholesky_solve", "input")
    check_equation(L, input, True, "cholesky_solve")
    lower = transposed(L) if upper else L
    return triangular_solution(transposed(lower), triangular_solution(lower, input, upper=False), upper=True)


@public(samples=[sample(Array(3, 3, lo=0.5), peer=False), sample(Array(2, 2, 2, lo=0.5), upper=True, peer=False)])
def cholesky_inverse(input: Tensor, upper: bool = False) -> Tensor:
    """The inverse of a positive-definite matrix, given its Cholesky factor."""
    check_square(input, "cholesky_inverse")
    n = input.tj_array.shape[-1]
    one = apply_eye(input, n).expand(input.tj_array.shape)
    return cholesky_solve(one, input, upper)


def apply_eye(like: Tensor, n: int) -> Tensor:
    """The identity of another tensor's dtype and device."""
    from ..create import eye

    return eye(n, dtype=like.dtype, device=like.device)  # type: ignore[no-any-return]


# ---- QR

QR = named_result("linalg_qr", "Q", "R")
OldQR = named_result("qr", "Q", "R")


@public(
    "linalg",
    name="qr",
    samples=[
        sample(Array(3, 2)),
        sample(Array(2, 3)),
        sample(Array(2, 3, 3)),
        sample(Array(2, 3), mode="complete"),
        sample(Array(3, 2), mode="complete", grad=False),
        sample(Array(3, 2), mode="r", grad=False),
    ],
)
def linalg_qr(A: Tensor, mode: str = "reduced") -> Any:
    """A = Q @ R with orthonormal columns in Q and R upper triangular; mode "reduced", "complete" or "r" (Q is empty)."""
    check_matrices(A, "linalg.qr")
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'"
        )
    if mode == "r":
        return QR(A.new_zeros((0,)), apply(QR_FACTORS, (A.detach(),), {"complete": False})[1])
    return QR(*apply(QR_FACTORS, (A,), {"complete": mode == "complete"}))


@public(samples=[sample(Array(3, 2)), sample(Array(3, 2), some=False, grad=False)])
def qr(input: Tensor, some: bool = True) -> Any:
    """A = Q @ R; `linalg.qr` is its newer name."""
    return OldQR(*linalg_qr(input, "reduced" if some else "complete"))


# ---- singular values

OldSVD = named_result("svd", "U", "S", "V")


@public(
    name="svd",
    samples=[
        sample(Array(3, 2), peer=False),
        sample(Array(3, 2), some=False, grad=False, peer=False),
        sample(Array(2, 3), compute_uv=False, grad=False),
    ],
)
def old_svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> Any:
    """Singular values and vectors, with V and not its transpose; `linalg.svd` is its newer name."""
    if compute_uv:
        u, s, vh = svd(input, full_matrices=not some)
        return OldSVD(u, s, transposed(vh))
    s = svdvals(input)
    *batch, m, n = input.tj_array.shape
    return OldSVD(input.new_zeros((*batch, m, m)), s, input.new_zeros((*batch, n, n)))


# ---- by tolerance


def tolerances(A: Tensor, atol: Any, rtol: Any) -> tuple[Any, Any]:
    """Below which singular values count as zero: absolute, and relative to the largest one."""
    default = max(A.tj_array.shape[-2:]) * dtypes.finfo(A.dtype).eps
    if rtol is None:
        if atol is None:
            rtol = default
        elif isinstance(atol, Tensor):
            rtol = where(atol > 0, 0.0, default)
        else:
            rtol = 0.0 if atol > 0 else default
    atol = 0.0 if atol is None else atol
    return tuple(cast(t, A.dtype) if isinstance(t, Tensor) else float(t) for t in (atol, rtol))  # type: ignore[return-value]


@public(
    "linalg",
    samples=[
        sample(Array(3, 2)),
        sample(Array(2, 3)),
        sample(Array(2, 3, 3), rtol=1e-3),
        sample(Array(3, 3), atol=0.5, grad=False),
    ],
)
def pinv(A: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """The pseudo-inverse; singular values up to max(atol, rtol * the largest one) count as zero."""
    (check_square if hermitian else check_matrices)(A, "linalg.pinv")
    atol, rtol = tolerances(A, atol, rcond if rtol is None else rtol)
    return apply(PSEUDO_INVERSE, (A, atol, rtol), {"hermitian": hermitian})  # type: ignore[no-any-return]


@public(samples=[sample(Array(3, 2)), sample(Array(2, 3), 1e-3)])
def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """The pseudo-inverse; `linalg.pinv` is its newer name."""
    return pinv(input, rcond)


@public(
    "linalg",
    samples=[
        sample(Array(3, 2), grad=False),
        sample(Array(2, 3, 3), atol=1.0, grad=False),
        sample(Array(3, 3), hermitian=True, rtol=0.3, grad=False),
        sample(Array(3, 3), tol=1.0, grad=False),
    ],
)
def matrix_rank(A: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """The number of singular values above max(atol, rtol * the largest one)."""
    (check_square if hermitian else check_matrices)(A, "linalg.matrix_rank")
    atol, rtol = (tol, 0.0) if tol is not None else tolerances(A, atol, rtol)
    values = eigvalsh(A.detach()).abs() if hermitian else svdvals(A.detach())
    if values.tj_array.shape[-1] == 0:
        return cast(values.sum(-1), dtypes.int64)
    limit = values.amax(-1) * rtol
    limit = where(limit > atol, limit, atol)
    return (values > limit.unsqueeze(-1)).sum(-1)  # type: ignore[no-any-return]


Lstsq = named_result("linalg_lstsq", "solution", "residuals", "rank", "singular_values")
DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


@public(
    "linalg",
    samples=[
        sample(Array(4, 2), Array(4, 3)),
        sample(Array(2, 3), Array(2)),
        sample(Array(2, 4, 2), Array(2, 4, 1), driver="gelsd", grad=False),
        sample(Array(4, 2), Array(4, 1), driver="gels", grad=False),
    ],
)
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """The X that makes A @ X closest to B, the shortest if there are several; residuals, rank and singular values as PyTorch's
    `driver` (LAPACK's routine) would give them."""
    name = "linalg.lstsq"
    check_least_squares(A, B, driver, name)
    vector = B.tj_array.ndim == A.tj_array.ndim - 1
    target = B.unsqueeze(-1) if vector else B
    rtol = max(A.tj_array.shape[-2:]) * dtypes.finfo(A.dtype).eps if rcond is None else rcond
    solution = matmul(pinv(A, rtol=rtol), target)
    with_residuals = driver not in (None, "gelsy") and A.tj_array.shape[-2] > A.tj_array.shape[-1]
    residuals = (matmul(A, solution) - target).square().sum(-2) if with_residuals else solution.reshape(-1)[:0]
    rank = A.new_zeros((0,), dtype=dtypes.int64) if driver == "gels" else matrix_rank(A, rtol=rtol)
    values = svdvals(A.detach()) if driver in ("gelsd", "gelss") else A.new_zeros((0,))
    if vector:
        solution = solution.squeeze(-1)
    return Lstsq(solution, residuals, rank, values)


def check_least_squares(A: Any, B: Any, driver: str | None, name: str) -> None:
    check_matrices(A, name, "input")
    check_tensors(name, B=B)
    if driver not in (None, *DRIVERS):
        raise RuntimeError(f"{name}: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got {driver!r}")
    if A.tj_array.dtype != B.tj_array.dtype:
        raise RuntimeError(
            f"{name}: Expected input and other to have the same dtype, but got input's dtype {A.dtype.legacy} and other's "
            f"dtype {B.dtype.legacy}"
        )
    extra = A.tj_array.ndim - B.tj_array.ndim
    if extra not in (0, 1):
        raise RuntimeError(
            f"{name}: input.dim() must be greater or equal to other.dim() and (input.dim() - other.dim()) <= 1, but they are "
            f"{A.tj_array.ndim} and {B.tj_array.ndim}"
        )
    if A.tj_array.shape[-2] != B.tj_array.shape[-1 if extra else -2]:
        raise RuntimeError(
            f"{name}: input.size(-2) should match other.size({-1 if extra else -2}), but the shapes are {list(A.shape)} and "
            f"{list(B.shape)}"
        )


@public(
    "linalg",
    samples=[
        sample(Array(3, 3)),
        sample(Array(2, 3)),
        sample(Array(3, 3), 1, peer=False),  # PyTorch cannot differentiate these
        sample(Array(2, 2, 2), "fro", peer=False),
        sample(Array(2, 2), -2),
    ],
)
def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition number, by which a matrix can amplify relative errors: the norm of A times that of its inverse."""
    check_matrices(A, "linalg.cond")
    if p in (None, 2, -2):
        values = svdvals(A)
        largest, smallest = values[..., 0], values[..., -1]
        return smallest / largest if p == -2 else largest / smallest  # type: ignore[no-any-return]
    if p not in ("fro", "nuc", 1, -1, math.inf, -math.inf):
        raise RuntimeError(f"linalg.cond got an invalid norm type: {p}")
    check_square(A, f"linalg.cond(ord={p})")
    found = linalg_norm(A, p, (-2, -1)) * linalg_norm(inverse_of(A, None), p, (-2, -1))
    return where(found.isnan() & ~A.isnan().flatten(-2).any(-1), math.inf, found)  # type: ignore[no-any-return]


# ---- powers and the exponential


@public(
    "",
    "linalg",
    samples=[
        sample(Array(3, 3), 3),
        sample(Array(2, 2, 2), -2),
        sample(Array(3, 3), 1),
        sample(Array(2, 2), 0, grad=False),
        sample(I(2, 2), 5),
    ],
)
def matrix_power(A: Tensor, n: int) -> Tensor:
    """A multiplied by itself n times; powers of the inverse for negative n."""
    name = "linalg.matrix_power"
    check_tensors(name, A=A)
    shape = A.tj_array.shape
    if len(shape) < 2:
        raise RuntimeError(f"{name}: The input tensor A must have at least 2 dimensions. Got a tensor of shape {list(shape)}")
    if shape[-1] != shape[-2]:
        raise RuntimeError(f"{name}: A must be batches of square matrices, but they are {shape[-2]} by {shape[-1]} matrices")
    if n == 0:
        return apply_eye(A, shape[-1]).expand(shape).clone()  # type: ignore[no-any-return]
    square = inv(A) if n < 0 else A
    n, found = abs(n), None
    while True:
        if n & 1:
            found = square if found is None else matmul(found, square)
        n >>= 1
        if not n:
            assert found is not None
            return found.clone() if found is A else found  # type: ignore[no-any-return]
        square = matmul(square, square)


# PyTorch gives NaN for these in half precision.
@public("", "linalg", samples=[sample(Array(3, 3), peer=False), sample(Array(2, 2, 2, lo=-6, hi=6), peer=False)], op=MATRIX_EXP)
def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of square matrices: the sum of A ** k / k!."""
    check_square(A, "linalg.matrix_exp", half=True)
    return apply(MATRIX_EXP, (A,))  # type: ignore[no-any-return]


# ---- small things


@public("linalg", samples=[sample(Array(2, 3), Array(3)), sample(Array(2, 3), Array(2, 1), dim=0)])
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The sum of products along a dim, with broadcasting."""
    name = "linalg.vecdot"
    check_tensors(name, x=x, y=y)
    check_floating(x, name)
    if x.tj_array.dtype != y.tj_array.dtype:
        raise RuntimeError(
            f"{name}: Expected x and y to have the same dtype, but found x of type {x.dtype.legacy} and y of type "
            f"{y.dtype.legacy} instead"
        )
    clash = broadcast_error([x.tj_array.shape, y.tj_array.shape])
    if clash is not None:
        raise RuntimeError(f"{name}: {clash}")
    return (x * y).sum(dim)  # type: ignore[no-any-return]


@public("linalg", name="diagonal", samples=[sample(Array(2, 3)), sample(Array(2, 3, 4), offset=1, dim1=0, dim2=1)])
def linalg_diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A view of a diagonal, by default of the last two dims."""
    return A.diagonal(offset, dim1, dim2)  # type: ignore[no-any-return]


@public("linalg", name="matmul", samples=[sample(Array(2, 3), Array(3, 2))])
def linalg_matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product."""
    return matmul(input, other)


# ---- tensors as matrices


def as_matrix(A: Tensor, rows: int, by: str) -> Tensor:
    """The tensor with its first dims as rows and the others as columns, of which there are as many."""
    height, width = math.prod(A.shape[:rows]), math.prod(A.shape[rows:])
    if height != width:
        raise RuntimeError(
            f"Expected self to satisfy the requirement prod(self.shape[{by}:]) == prod(self.shape[:{by}]), but got "
            f"{width} != {height}"
        )
    return A.reshape(height, width)  # type: ignore[no-any-return]


@public("linalg", samples=[sample(Array(2, 3, 6), peer=False), sample(Array(4, 2, 2), ind=1, peer=False)])
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of `tensordot(A, ., A.ndim - ind)`."""
    if ind <= 0:
        raise RuntimeError(f"Expected a strictly positive integer for 'ind', but got {ind}")
    return inv(as_matrix(A, ind, "ind")).reshape(*A.shape[ind:], *A.shape[:ind])


@public("linalg", samples=[sample(Array(2, 3, 6), Array(2, 3), peer=False), sample(Array(4, 2, 2), Array(4), peer=False)])
def tensorsolve(A: Tensor, B: Tensor, dims: Any = None) -> Tensor:
    """The X of `tensordot(A, X, X.ndim) = B`; `dims` of A are moved to its end first."""
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    return solve(as_matrix(A, B.ndim, "other.ndim"), B.flatten()).reshape(A.shape[B.ndim :])
