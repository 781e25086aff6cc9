"""Factorisations of matrices, in batches: inverse, solve, determinant, Cholesky, QR, SVD, symmetric eigenproblems.

The kernels are LAPACK's (or cuSOLVER's) through the array module; the gradients are PyTorch's formulas in public ops, so
they can be differentiated again. Where a factorisation is not unique (signs of singular and eigenvectors), so is its
gradient: only what does not depend on the choice has a meaning. Matrices of float16 and bfloat16 are refused, as in PyTorch.
The functions that users call are here only where they are little more than the op; `api.py` has the rest.
"""
# ruff: noqa: N803 -- PyTorch's argument names

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays import devices, dtypes
from ...arrays.op_samples import A as Array
from ...arrays.op_samples import sample
from ...core.dispatch import apply
from ...core.errors import broadcast_error
from ...core.op import primitive
from ...core.registration import public
from ...core.shape_inference import Spec
from ...core.tape.engine import sum_to
from ...core.tensor import Tensor
from ..named_results import named_result
from ..shape.reshape import cat
from ..shape.views import UNDIAGONAL
from .matmul import check_tensors, matmul, transposed


class LinAlgError(RuntimeError):
    """A matrix does not have what was asked for: it is singular, or not positive-definite, or not finite."""

    __module__ = "tapejit.linalg"


# ---- what is checked first


def check_floating(x: Tensor, name: str) -> None:
    if not x.dtype.is_floating_point:
        raise RuntimeError(
            f"{name}: Expected a floating point or complex tensor as input. Got {x.dtype.legacy}; convert it with .float()"
        )


def check_matrices(x: Any, name: str, argument: str = "A", half: bool = False) -> None:
    """A batch of matrices that LAPACK takes: of half precision only if the op computes in float32 then."""
    check_tensors(name, **{argument: x})
    if x.tj_array.ndim < 2:
        raise RuntimeError(
            f"{name}: The input tensor {argument} must have at least 2 dimensions. Got a tensor of shape {list(x.shape)}"
        )
    check_floating(x, name)
    if x.tj_array.dtype in dtypes.HALF and not half:
        raise RuntimeError(f"{name}: Low precision dtypes not supported. Got {x.dtype.legacy}; convert it with .float() first")


def check_square(x: Any, name: str, argument: str = "A", half: bool = False) -> None:
    check_tensors(name, **{argument: x})
    shape = x.tj_array.shape
    if len(shape) >= 2 and shape[-1] != shape[-2]:
        raise RuntimeError(
            f"{name}: {argument} must be batches of square matrices, but they are {shape[-2]} by {shape[-1]} matrices"
        )
    check_matrices(x, name, argument, half)


def check_equation(A: Tensor, B: Tensor, left: bool, name: str) -> None:
    """A X = B, or X A = B, has shapes that fit."""
    if A.tj_array.dtype != B.tj_array.dtype:
        raise RuntimeError(
            f"{name}: Expected A and B to have the same dtype, but found A of type {A.dtype.legacy} and B of type "
            f"{B.dtype.legacy} instead"
        )
    (n, _), (rows, columns) = A.tj_array.shape[-2:], B.tj_array.shape[-2:]
    if n != (rows if left else columns):
        equation = "AX = B" if left else "XA = B"
        raise RuntimeError(f"{name}: Incompatible shapes of A and B for the equation {equation} ({n}x{n} and {rows}x{columns})")
    clash = broadcast_error([B.tj_array.shape[:-2], A.tj_array.shape[:-2]])
    if clash is not None:
        raise RuntimeError(f"{name}: {clash}")


# ---- what is done when a matrix has no answer


def first_failure(matrices: Any, fails: Any) -> tuple[str, int]:
    """The first matrix of a batch that fails: how errors name it, and what `fails` says, 1 for the first column."""
    stack = devices.to_numpy(matrices).astype(np.float64).reshape(-1, *matrices.shape[-2:])
    for i, matrix in enumerate(stack):
        column = fails(matrix)
        if column:
            return (f"(Batch element {i}): " if matrices.ndim > 2 else ""), column
    return "", stack.shape[-1]


def zero_pivot(matrix: Any) -> int:
    """Return the column, counted from 1, where elimination with row exchanges meets a zero pivot; 0 if it meets none."""
    u = matrix.copy()
    for k in range(len(u)):
        best = k + int(np.argmax(np.abs(u[k:, k])))
        if not abs(u[best, k]) > np.finfo(np.float32).tiny:
            return k + 1
        u[[k, best]] = u[[best, k]]
        u[k + 1 :] -= np.outer(u[k + 1 :, k] / u[k, k], u[k])
    return 0


def first_bad_minor(matrix: Any) -> int:
    """The order of the first leading minor that is not positive-definite; 0 if there is none."""
    for k in range(1, len(matrix) + 1):
        try:
            np.linalg.cholesky(matrix[:k, :k])
        except np.linalg.LinAlgError:
            return k
    return 0


def try_lapack(xp: Any, function: Any, *arrays: Any) -> Any:
    """Return LAPACK's result, or None where it fails. CuPy does not report failure: its results are checked."""
    try:
        found = function(*arrays)
    except np.linalg.LinAlgError:
        return None
    if xp is not np and not bool(xp.isfinite(found).all()) and all(bool(xp.isfinite(a).all()) for a in arrays):
        return None
    return found


def try_each_matrix(xp: Any, function: Any, *arrays: Any) -> Any:
    """The same for each matrix of a batch alone, NaN for those without a result."""
    batch = arrays[0].shape[:-2]
    found = xp.full(arrays[-1].shape, np.nan, arrays[0].dtype)
    for index in np.ndindex(*batch):
        one = try_lapack(xp, function, *[a[index] for a in arrays])
        if one is not None:
            found[index] = one
    return found


# ---- inverse and solve


def run_inverse(xp: Any, a: Any, *, name: str | None) -> Any:
    found = try_lapack(xp, xp.linalg.inv, a)
    if found is not None:
        return found
    if name is None:
        return try_each_matrix(xp, xp.linalg.inv, a)
    element, column = first_failure(a, zero_pivot)
    raise LinAlgError(
        f"{name}: {element}The diagonal element {column} is zero, the inversion could not be completed because the input "
        "matrix is singular."
    )


def inverse_gradient(g: Tensor, out: Tensor) -> Tensor:
    back = transposed(out)
    return -matmul(matmul(back, g), back)


# `name` is the function that raises for a singular matrix; without one, its inverse is NaN. The same for Cholesky's factor.
INVERSE = primitive(
    "matrix_inverse", "opaque", run_inverse, grad={"a": inverse_gradient}, infer=lambda a, name: (Spec(a.shape, a.dtype),)
)


def inverse_of(A: Tensor, name: str | None) -> Tensor:
    return apply(INVERSE, (A,), {"name": name})  # type: ignore[no-any-return]


def same_batch(xp: Any, a: Any, b: Any) -> tuple[Any, Any]:
    if a.shape[:-2] == b.shape[:-2]:
        return a, b
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return xp.broadcast_to(a, (*batch, *a.shape[-2:])), xp.broadcast_to(b, (*batch, *b.shape[-2:]))


def run_solve(xp: Any, a: Any, b: Any) -> Any:
    a, b = same_batch(xp, a, b)
    found = try_lapack(xp, xp.linalg.solve, a, b)
    if found is None:
        element, _ = first_failure(a, zero_pivot)
        raise LinAlgError(f"linalg.solve: {element}The solver failed because the input matrix is singular.")
    return found


def solve_gradient(g: Tensor, a: Tensor, out: Tensor, shapes: Any, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    gb = apply(SOLVE, (transposed(a), g))
    ga = -matmul(gb, transposed(out)) if needs[0] else None
    return (None if ga is None else sum_to(ga, shapes[0])), (sum_to(gb, shapes[1]) if needs[1] else None)


def infer_solution(a: Spec, b: Spec, **attrs: Any) -> tuple[Spec]:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (Spec((*batch, *b.shape[-2:]), b.dtype),)


SOLVE = primitive("solve", "opaque", run_solve, grad=solve_gradient, infer=infer_solution)


def forward_substitution(xp: Any, a: Any, b: Any) -> Any:
    """Solve a lower triangular system, halves first. A zero on the diagonal gives inf or NaN, as in PyTorch."""
    n = a.shape[-1]
    if n == 1:
        return b / a
    half = n // 2
    first = forward_substitution(xp, a[..., :half, :half], b[..., :half, :])
    rest = b[..., half:, :] - xp.matmul(a[..., half:, :half], first)
    return xp.concatenate([first, forward_substitution(xp, a[..., half:, half:], rest)], axis=-2)


def run_solve_triangular(xp: Any, a: Any, b: Any, *, upper: bool, unitriangular: bool) -> Any:
    a, b = same_batch(xp, a, b)
    if b.size == 0:
        return b.copy()
    if unitriangular:
        one = xp.eye(a.shape[-1], dtype=bool)
        a = xp.where(one, xp.ones((), a.dtype), a)
    if not upper:
        return forward_substitution(xp, a, b)
    return forward_substitution(xp, a[..., ::-1, ::-1], b[..., ::-1, :])[..., ::-1, :].copy()


def solve_triangular_gradient(
    g: Tensor, a: Tensor, out: Tensor, shapes: Any, needs: tuple[bool, ...], upper: bool, unitriangular: bool
) -> tuple[Tensor | None, ...]:
    gb = apply(SOLVE_TRIANGULAR, (transposed(a), g), {"upper": not upper, "unitriangular": unitriangular})
    ga = None
    if needs[0]:
        ga = -matmul(gb, transposed(out))
        ga = ga.triu(int(unitriangular)) if upper else ga.tril(-int(unitriangular))
        ga = sum_to(ga, shapes[0])
    return ga, (sum_to(gb, shapes[1]) if needs[1] else None)


SOLVE_TRIANGULAR = primitive(
    "solve_triangular", "opaque", run_solve_triangular, grad=solve_triangular_gradient, infer=infer_solution
)


def triangular_solution(a: Tensor, b: Tensor, upper: bool) -> Tensor:
    return apply(SOLVE_TRIANGULAR, (a, b), {"upper": upper, "unitriangular": False})  # type: ignore[no-any-return]


# ---- determinants


def determinants(xp: Any, a: Any) -> Any:
    with np.errstate(all="ignore"):  # NumPy warns of overflow in its own name, where PyTorch is silent
        return xp.asarray(xp.linalg.det(a))


def run_cofactors(xp: Any, a: Any) -> Any:
    """The derivative of the determinant: det(a) * inv(a).T, or for a singular matrix its limit, by singular values."""
    found = try_lapack(xp, xp.linalg.inv, a)
    if found is not None:
        return determinants(xp, a)[..., None, None] * found.swapaxes(-1, -2)
    finite = xp.isfinite(a).all(axis=(-2, -1), keepdims=True)
    u, s, vh = xp.linalg.svd(xp.where(finite, a, xp.zeros((), a.dtype)))  # of infinite elements, LAPACK may never finish
    same = xp.eye(s.shape[-1], dtype=bool)
    others = xp.where(same, xp.ones((), s.dtype), s[..., None, :]).prod(axis=-1)
    sign = xp.linalg.det(u) * xp.linalg.det(vh)
    found = xp.matmul(u * (sign[..., None] * others)[..., None, :], vh)
    return xp.where(finite, found, xp.asarray(np.nan, a.dtype))


def cofactors_gradient(g: Tensor, a: Tensor, out: Tensor) -> Tensor:
    back = transposed(inverse_of(a, None))
    return back * (g * out).sum((-2, -1), keepdim=True) - matmul(matmul(out, transposed(g)), back)  # type: ignore[no-any-return]


COFACTORS = primitive(
    "cofactors", "opaque", run_cofactors, grad={"a": cofactors_gradient}, infer=lambda a: (Spec(a.shape, a.dtype),)
)
DET = primitive(
    "det",
    "opaque",
    determinants,
    grad={"a": lambda g, a: g.unsqueeze(-1).unsqueeze(-1) * apply(COFACTORS, (a,))},
    infer=lambda a: (Spec(a.shape[:-2], a.dtype),),
)


def run_slogdet(xp: Any, a: Any) -> Any:
    with np.errstate(all="ignore"):
        sign, size = xp.linalg.slogdet(a)
    return xp.asarray(sign, a.dtype), xp.asarray(size, a.dtype)


def slogdet_gradient(gs: list[Tensor | None], a: Tensor) -> tuple[Tensor | None]:
    g = gs[1]  # the sign is constant
    return (None if g is None else g.unsqueeze(-1).unsqueeze(-1) * transposed(inverse_of(a, None)),)


SLOGDET = primitive("slogdet", "opaque", run_slogdet, grad=slogdet_gradient, infer=lambda a: (Spec(a.shape[:-2], a.dtype),) * 2)

# ---- Cholesky


def run_cholesky(xp: Any, a: Any, *, name: str | None) -> Any:
    def factor(a: Any) -> Any:
        low = xp.linalg.cholesky(a)
        if xp is not np and not bool((xp.diagonal(low, axis1=-2, axis2=-1) > 0).all()):
            raise np.linalg.LinAlgError  # cuSOLVER says nothing, but stops at the diagonal element it cannot take the root of
        return low

    found = try_lapack(xp, factor, a)
    if found is None and name is None:
        return try_each_matrix(xp, factor, a)
    if found is None:
        element, order = first_failure(a, first_bad_minor)
        raise LinAlgError(
            f"{name}: {element}The factorization could not be completed because the input is not positive-definite (the "
            f"leading minor of order {order} is not positive-definite)."
        )
    return found


def cholesky_gradient(g: Tensor, out: Tensor) -> Tensor:
    lower = matmul(transposed(out), g).tril()
    symmetric = 0.5 * (lower + transposed(lower.tril(-1)))
    half = triangular_solution(transposed(out), symmetric, upper=True)  # L^-T S
    return transposed(triangular_solution(transposed(out), transposed(half), upper=True))  # ... L^-1


CHOLESKY = primitive(
    "matrix_cholesky", "opaque", run_cholesky, grad={"a": cholesky_gradient}, infer=lambda a, name: (Spec(a.shape, a.dtype),)
)

# ---- QR


def run_qr(xp: Any, a: Any, *, complete: bool) -> Any:
    q, r = xp.linalg.qr(a, mode="complete" if complete else "reduced")
    return q, r


def qr_gradient(gs: list[Tensor | None], outs: tuple[Tensor, Tensor], complete: bool) -> tuple[Tensor]:
    (gq, gr), (q, r) = gs, outs
    rows, columns = q.tj_array.shape[-2], r.tj_array.shape[-1]
    if complete and rows > columns:
        raise RuntimeError(
            "linalg.qr: The QR decomposition is not differentiable when mode='complete' and nrows > ncols; use mode='reduced'"
        )
    if rows >= columns:
        return (tall_qr_gradient(gq, gr, q, r),)
    # A wide matrix is [X | Y] with R = [U | V], X = Q U and V = Q^T Y: Y's gradient goes through V, and so does part of Q's.
    u, v = r[..., :rows], r[..., rows:]
    gu, gv = (None, None) if gr is None else (gr[..., :rows], gr[..., rows:])
    if gv is None:
        gx = tall_qr_gradient(gq, gu, q, u)
        return (cat([gx, gx.new_zeros((*gx.tj_array.shape[:-1], columns - rows))], -1),)
    through = matmul(matmul(q, v), transposed(gv))
    gx = tall_qr_gradient(through if gq is None else gq + through, gu, q, u)
    return (cat([gx, matmul(q, gv)], -1),)


def tall_qr_gradient(gq: Tensor | None, gr: Tensor | None, q: Tensor, r: Tensor) -> Tensor:
    """gA = (gQ + Q copyltu(R gR^T - gQ^T Q)) R^-T, where copyltu mirrors the lower triangle."""
    inner = None
    if gr is not None:
        inner = matmul(r, transposed(gr))
    if gq is not None:
        part = matmul(transposed(gq), q)
        inner = -part if inner is None else inner - part
    assert inner is not None
    mirrored = matmul(q, inner.tril() + transposed(inner.tril(-1)))
    total = mirrored if gq is None else gq + mirrored
    return transposed(triangular_solution(r, transposed(total), upper=True))


def infer_qr(a: Spec, complete: bool) -> tuple[Spec, Spec]:
    *batch, m, n = a.shape
    k = m if complete else min(m, n)
    return Spec((*batch, m, k), a.dtype), Spec((*batch, k, n), a.dtype)


QR_FACTORS = primitive("matrix_qr", "opaque", run_qr, grad=qr_gradient, infer=infer_qr)

# ---- singular values


def run_svd(xp: Any, a: Any, *, full: bool) -> Any:
    check_finite(xp, a, "linalg.svd")
    u, s, vh = xp.linalg.svd(a, full_matrices=full)
    return u, s, vh


def check_finite(xp: Any, a: Any, name: str) -> None:
    if not bool(xp.isfinite(a).all()):
        element, _ = first_failure(a, lambda m: int(not np.isfinite(m).all()))
        raise LinAlgError(
            f"{name}: {element}The algorithm failed to converge because the input matrix contained non-finite values."
        )


def skew(x: Tensor) -> Tensor:
    return x - transposed(x)


def pairwise_gaps(values: Tensor) -> Tensor:
    """values[j] - values[i] at (i, j), and 1 on the diagonal."""
    difference = values.unsqueeze(-2) - values.unsqueeze(-1)
    n = values.tj_array.shape[-1]
    return difference + apply(UNDIAGONAL, (values.new_ones((n,)),), {"shape": (n, n), "offset": 0, "dim1": 0, "dim2": 1})


def diagonal_matrix(x: Tensor) -> Tensor:
    n, batch = x.tj_array.shape[-1], x.tj_array.shape[:-1]
    last = len(batch)
    return apply(UNDIAGONAL, (x,), {"shape": (*batch, n, n), "offset": 0, "dim1": last, "dim2": last + 1})  # type: ignore[no-any-return]


def svd_gradient(gs: list[Tensor | None], outs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor]:
    (gu, gs_, gvh), (u, s, vh) = gs, outs
    k = s.tj_array.shape[-1]
    u, vh = u[..., :k], vh[..., :k, :]
    gu, gvh = (None if gu is None else gu[..., :k]), (None if gvh is None else gvh[..., :k, :])
    inner = None if gs_ is None else diagonal_matrix(gs_)
    if gu is not None or gvh is not None:
        inverse_gaps = 1 / pairwise_gaps(s * s)
    if gu is not None:
        part = skew(matmul(transposed(u), gu)) * inverse_gaps * s.unsqueeze(-2)
        inner = part if inner is None else inner + part
    if gvh is not None:
        part = s.unsqueeze(-1) * (skew(matmul(vh, transposed(gvh))) * inverse_gaps)
        inner = part if inner is None else inner + part
    assert inner is not None
    total = matmul(matmul(u, inner), vh)
    if gu is not None and u.tj_array.shape[-2] > k:  # the part of gU outside of the space of U
        outside = gu / s.unsqueeze(-2)
        total = total + matmul(outside - matmul(u, matmul(transposed(u), outside)), vh)
    if gvh is not None and vh.tj_array.shape[-1] > k:
        outside = gvh / s.unsqueeze(-1)
        total = total + matmul(u, outside - matmul(matmul(outside, transposed(vh)), vh))
    return (total,)


def infer_svd(a: Spec, full: bool) -> tuple[Spec, Spec, Spec]:
    *batch, m, n = a.shape
    k = min(m, n)
    u, vh = ((m, m), (n, n)) if full else ((m, k), (k, n))
    return Spec((*batch, *u), a.dtype), Spec((*batch, k), a.dtype), Spec((*batch, *vh), a.dtype)


SVD_FACTORS = primitive("matrix_svd", "opaque", run_svd, grad=svd_gradient, infer=infer_svd)


SVD = named_result("linalg_svd", "U", "S", "Vh")


@public(
    "linalg",
    samples=[
        sample(Array(3, 2), full_matrices=False, peer=False),
        sample(Array(2, 3), full_matrices=False, peer=False),
        sample(Array(2, 3, 3), full_matrices=False, peer=False),
        sample(Array(4, 2), grad=False, peer=False),
    ],
)
def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> Any:
    """Singular values, largest first, with their left and right vectors: A = U @ diag(S) @ Vh."""
    check_matrices(A, "linalg.svd")
    return SVD(*apply(SVD_FACTORS, (A,), {"full": full_matrices}))


def run_svdvals(xp: Any, a: Any) -> Any:
    check_finite(xp, a, "linalg.svdvals")
    return xp.linalg.svd(a, compute_uv=False)


SVDVALS = primitive(
    "svdvals",
    "opaque",
    run_svdvals,
    expand=lambda a: svd(a, full_matrices=False)[1],
    infer=lambda a: (Spec((*a.shape[:-2], min(a.shape[-2:])), a.dtype),),
)


@public(
    "linalg", samples=[sample(Array(3, 2)), sample(Array(2, 2, 3)), sample(Array(0, 3), grad=False, peer=False)], op=SVDVALS
)
def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """Singular values, largest first."""
    check_matrices(A, "linalg.svdvals")
    return apply(SVDVALS, (A,))  # type: ignore[no-any-return]


# ---- symmetric eigenproblems


def run_eigh(xp: Any, a: Any, *, uplo: str) -> Any:
    values, vectors = require_convergence(xp, a, lambda x: xp.linalg.eigh(x, UPLO=uplo))
    return values, vectors


def require_convergence(xp: Any, a: Any, function: Any) -> Any:
    try:
        return function(a)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(f"linalg.eigh: The algorithm failed to converge: {error}") from None


def eigh_gradient(gs: list[Tensor | None], outs: tuple[Tensor, Tensor]) -> tuple[Tensor]:
    (gl, gv), (values, vectors) = gs, outs
    inner = None if gl is None else diagonal_matrix(gl)
    if gv is not None:
        between = matmul(transposed(vectors), gv)
        n = values.tj_array.shape[-1]
        off_diagonal = between - diagonal_matrix(between.diagonal(0, -2, -1)) if n else between
        part = off_diagonal / pairwise_gaps(values)
        inner = part if inner is None else inner + part
    assert inner is not None
    return (matmul(matmul(vectors, inner), transposed(vectors)),)


EIGH_FACTORS = primitive(
    "matrix_eigh",
    "opaque",
    run_eigh,
    grad=eigh_gradient,
    infer=lambda a, uplo: (Spec(a.shape[:-1], a.dtype), Spec(a.shape, a.dtype)),
)


Eigh = named_result("linalg_eigh", "eigenvalues", "eigenvectors")


def check_symmetric(A: Tensor, UPLO: str) -> str:
    """Return the triangle of a symmetric matrix that is read."""
    check_square(A, "linalg.eigh")
    if UPLO.upper() not in ("L", "U"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    return UPLO.upper()


@public(
    "linalg",
    samples=[
        sample(Array(3, 3), grad=False, peer=False),
        sample(Array(2, 2, 2), "U", grad=False, peer=False),
        sample(Array(2, 1, 1)),
    ],
)
def eigh(A: Tensor, UPLO: str = "L") -> Any:
    """Eigenvalues, in ascending order, and eigenvectors of symmetric matrices, of which only one triangle is read."""
    return Eigh(*apply(EIGH_FACTORS, (A,), {"uplo": check_symmetric(A, UPLO)}))


EIGVALSH = primitive(
    "eigvalsh",
    "opaque",
    lambda xp, a, *, uplo: require_convergence(xp, a, lambda x: xp.linalg.eigvalsh(x, UPLO=uplo)),
    expand=lambda a, uplo: eigh(a, uplo)[0],
    infer=lambda a, uplo: (Spec(a.shape[:-1], a.dtype),),
)


@public(
    "linalg",
    samples=[sample(Array(3, 3), grad=False), sample(Array(2, 2, 2), "U", grad=False), sample(Array(1, 1))],
    op=EIGVALSH,
)
def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Eigenvalues of symmetric matrices, in ascending order."""
    return apply(EIGVALSH, (A,), {"uplo": check_symmetric(A, UPLO)})  # type: ignore[no-any-return]


# ---- pseudo-inverse


def run_pseudo_inverse(xp: Any, a: Any, atol: Any, rtol: Any, *, hermitian: bool) -> Any:
    check_finite(xp, a, "linalg.pinv")
    if hermitian:
        values, u = xp.linalg.eigh(a)
        size, vt = xp.abs(values), u.swapaxes(-1, -2)
    else:
        u, values, vt = xp.linalg.svd(a, full_matrices=False)
        size = values
    if size.shape[-1] == 0:
        return xp.zeros((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype)
    atol, rtol = (t[..., None] if hasattr(t, "dtype") else t for t in (atol, rtol))
    keep = size > xp.maximum(xp.asarray(atol), rtol * size.max(axis=-1, keepdims=True))
    inverse = xp.where(keep, 1 / xp.where(keep, values, xp.ones((), a.dtype)), xp.zeros((), a.dtype))
    return xp.matmul(vt.swapaxes(-1, -2) * inverse[..., None, :], u.swapaxes(-1, -2))


def pseudo_inverse_gradient(g: Tensor, a: Tensor, out: Tensor, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """Golub and Pereyra: valid as long as the rank does not change."""
    p, pt, gt = out, transposed(out), transposed(g)
    if a.tj_array.shape[-2] <= a.tj_array.shape[-1]:
        k = matmul(gt, p)
        kp = matmul(k, pt)
        found = kp - transposed(matmul(p, k)) - matmul(matmul(a, p), kp) + matmul(matmul(pt, p), gt - matmul(k, a))
    else:
        k = matmul(p, gt)
        pk = matmul(pt, k)
        found = pk - transposed(matmul(k, p)) + matmul(matmul(gt - matmul(a, k), p), pt) - matmul(matmul(pk, p), a)
    return found, None, None


PSEUDO_INVERSE = primitive(
    "pseudo_inverse",
    "opaque",
    run_pseudo_inverse,
    grad=pseudo_inverse_gradient,
    infer=lambda a, atol, rtol, hermitian: (Spec((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype),),
)

# ---- exponential

PADE = (  # numerator of the [13/13] approximant of exp (Higham 2005); the denominator has alternating signs
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0, 10559470521600.0,
    670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
PADE_NORM = 5.37  # up to this 1-norm the approximant is exact to double precision


def run_matrix_exp(xp: Any, a: Any) -> Any:
    """Scale down by a power of two, approximate, square back up."""
    if a.size == 0:
        return a.copy()
    norm = float(xp.add.reduce(xp.abs(a), axis=-2).max())
    squarings = max(0, int(np.ceil(np.log2(norm / PADE_NORM)))) if np.isfinite(norm) and norm > PADE_NORM else 0
    dtype = a.dtype
    a = a.astype(np.float64) / 2.0**squarings
    eye, a2 = xp.eye(a.shape[-1]), xp.matmul(a, a)
    even, odd, power = PADE[0] * eye, PADE[1] * eye, eye
    for i in range(2, len(PADE), 2):
        power = xp.matmul(power, a2)
        even, odd = even + PADE[i] * power, odd + PADE[i + 1] * power
    odd = xp.matmul(a, odd)
    found = run_solve(xp, even - odd, even + odd)
    for _ in range(squarings):
        found = xp.matmul(found, found)
    return found.astype(dtype)


def matrix_exp_gradient(g: Tensor, a: Tensor) -> Tensor:
    """The upper right block of exp([[A^T, g], [0, A^T]])."""
    at, n = transposed(a), a.tj_array.shape[-1]
    block = cat([cat([at, g], -1), cat([at.new_zeros(at.tj_array.shape), at], -1)], -2)
    return apply(MATRIX_EXP, (block,))[..., :n, n:]  # type: ignore[no-any-return]


MATRIX_EXP = primitive(
    "matrix_exp",
    "opaque",
    run_matrix_exp,
    grad={"a": matrix_exp_gradient},
    infer=lambda a: (Spec(a.shape, a.dtype),),
    upcast=True,
)
