"""References for linear algebra: textbook formulas (cofactors, reflections, power series); SciPy where signs are a choice."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import scipy.linalg


def each(function: Any) -> Any:
    """A function of one matrix, for batches of them."""

    def batched(a: Any, *args: Any, **kwargs: Any) -> Any:
        if a.ndim == 2:
            return function(a, *args, **kwargs)
        found = [batched(x, *args, **kwargs) for x in a]
        if isinstance(found[0], tuple):
            return tuple(np.stack(parts) for parts in zip(*found, strict=True))
        return np.stack(found)

    return batched


# ---- inverse, determinant, solve


def determinant(a: Any) -> Any:
    """Leibniz' sum over permutations."""
    total = 0.0
    for order in itertools.permutations(range(len(a))):
        inversions = sum(i > j for k, i in enumerate(order) for j in order[k + 1 :])
        total += (-1) ** inversions * math.prod(a[i, j] for i, j in enumerate(order))
    return np.float64(total)


def inverse(a: Any) -> Any:
    """The adjugate over the determinant."""
    n = len(a)
    cofactors = np.empty((n, n))
    for i, j in np.ndindex(n, n):
        minor = np.delete(np.delete(a, i, 0), j, 1)
        cofactors[i, j] = (-1) ** (i + j) * determinant(minor)
    return cofactors.T / determinant(a) if n else cofactors


def solve(a: Any, b: Any, left: bool = True) -> Any:
    back = each(inverse)(a)
    if not left:
        return np.einsum("...ij,...jk->...ik", b, back)
    if b.ndim == 1 or b.shape == a.shape[:-1]:
        return np.einsum("...ij,...j->...i", back, b)
    return np.einsum("...ij,...jk->...ik", back, b)


def solve_triangular(a: Any, b: Any, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    a = np.triu(a) if upper else np.tril(a)
    if unitriangular:
        diagonal = np.arange(a.shape[-1])
        a[..., diagonal, diagonal] = 1
    return solve(a, b, left)


def slogdet(a: Any) -> Any:
    size = each(determinant)(a)
    return np.sign(size), np.log(np.abs(size))


def logdet(a: Any) -> Any:
    size = each(determinant)(a)
    return np.where(size < 0, np.nan, np.log(np.abs(size)))


# ---- factorisations


def cholesky(a: Any, upper: bool = False) -> Any:
    """Row by row."""
    a = a.T if upper else a
    low = np.zeros_like(a)
    for i in range(len(a)):
        for j in range(i + 1):
            rest = a[i, j] - sum(low[i, k] * low[j, k] for k in range(j))
            low[i, j] = np.sqrt(rest) if i == j else rest / low[j, j]
    return low.T if upper else low


def from_factor(low: Any, upper: bool = False) -> Any:
    low = np.tril(np.swapaxes(low, -1, -2) if upper else low)
    return low @ np.swapaxes(low, -1, -2)


def qr(a: Any, mode: str = "reduced") -> Any:
    """Householder's reflections."""
    m, n = a.shape
    q, r = np.eye(m), a.copy()
    for k in range(min(m - 1, n)):
        x = r[k:, k]
        v = x.copy()
        v[0] += math.copysign(np.sqrt((x * x).sum()), x[0])
        reflection = np.eye(m)
        reflection[k:, k:] -= 2 * np.outer(v, v) / (v @ v)
        q, r = q @ reflection, reflection @ r
    r = np.triu(r)
    k = m if mode == "complete" else min(m, n)
    return (np.zeros(0), r[:k]) if mode == "r" else (q[:, :k], r[:k])


def svd(a: Any, full_matrices: bool = True) -> Any:
    return scipy.linalg.svd(a, full_matrices=full_matrices)


def old_svd(a: Any, some: bool = True, compute_uv: bool = True) -> Any:
    u, s, vh = svd(a, not some)
    return (u, s, vh.T) if compute_uv else (np.zeros((len(a),) * 2), s, np.zeros((len(a.T),) * 2))


def svdvals(a: Any) -> Any:
    """Square roots of the eigenvalues of the smaller of A A^T and A^T A."""
    if 0 in a.shape:
        return np.zeros(0)
    gram = a @ a.T if a.shape[0] < a.shape[1] else a.T @ a
    return np.sqrt(np.maximum(eigenvalues(gram), 0))[::-1]


def symmetric(a: Any, uplo: str) -> Any:
    kept = np.tril(a) if uplo == "L" else np.triu(a).T
    return kept + np.tril(kept, -1).T


def eigh(a: Any, uplo: str = "L") -> Any:
    return scipy.linalg.eigh(symmetric(a, uplo), driver="evd")


def eigenvalues(a: Any) -> Any:
    """Jacobi's rotations."""
    a = a.copy()
    for _ in range(20):
        for p, q in itertools.combinations(range(len(a)), 2):
            if abs(a[p, q]) > 1e-300:
                angle = 0.5 * np.arctan2(2 * a[p, q], a[q, q] - a[p, p])
                turn = np.eye(len(a))
                turn[p, p] = turn[q, q] = np.cos(angle)
                turn[p, q], turn[q, p] = np.sin(angle), -np.sin(angle)
                a = turn.T @ a @ turn
    return np.sort(np.diagonal(a))


# ---- composed


def pinv(a: Any, rcond: float | None = None, atol: float = 0.0, rtol: float | None = None) -> Any:
    """For full rank, by the normal equations; else scaled by SciPy's singular values."""
    rtol = rcond if rtol is None else rtol
    s = svdvals(a)
    if s[-1] > max(atol, (rtol or 1e-15) * s[0]):
        return inverse(a.T @ a) @ a.T if a.shape[0] >= a.shape[1] else a.T @ inverse(a @ a.T)
    u, s, vh = scipy.linalg.svd(a, full_matrices=False)
    return sum(np.outer(vh[i], u[:, i]) / s[i] for i in range(len(s)) if s[i] > max(atol, (rtol or 0) * s[0]))


def matrix_rank(a: Any, tol: float | None = None, hermitian: bool = False, atol: float = 0.0, rtol: float | None = None) -> Any:
    values = np.abs(eigenvalues(symmetric(a, "L"))) if hermitian else svdvals(a)
    relative = 1e-15 if rtol is None and not atol else rtol or 0.0
    limit = tol if tol is not None else max(atol, relative * values.max())
    return np.int64(sum(v > limit for v in values))


def lstsq(a: Any, b: Any, driver: str = "gelsy") -> Any:
    if a.ndim == 3:
        parts = [lstsq(x, y, driver) for x, y in zip(a, b, strict=True)]
        return tuple(np.stack(p) if p[0].size else p[0] for p in zip(*parts, strict=True))
    x = pinv(a) @ b
    none = np.zeros(0)
    residuals = ((a @ x - b) ** 2).sum(0) if driver != "gelsy" and a.shape[0] > a.shape[1] else none
    rank = np.zeros(0, np.int64) if driver == "gels" else np.asarray(matrix_rank(a))
    return x, residuals, rank, svdvals(a) if driver in ("gelsd", "gelss") else none


def matrix_power(a: Any, n: int) -> Any:
    base = inverse(a) if n < 0 else a
    found = np.eye(len(a), dtype=a.dtype)
    for _ in range(abs(n)):
        found = found @ base
    return found


def matrix_exp(a: Any) -> Any:
    """The power series, of a small part of the matrix, squared back."""
    total = term = np.eye(len(a))
    for k in range(1, 30):
        term = term @ a / (64 * k)
        total = total + term
    for _ in range(6):
        total = total @ total
    return total


# ---- norms and distances


def vector_norm(x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False) -> Any:
    dims = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else dim
    size = np.abs(x)
    if ord == 0:
        found = (x != 0).sum(dims, keepdims=keepdim).astype(float)
    elif math.isinf(ord):
        found = (np.max if ord > 0 else np.min)(size, dims, keepdims=keepdim)
    else:  # by the largest element, which changes nothing but the rounding
        top = size.max()
        found = top * np.exp(np.log(np.exp(ord * np.log(size / top)).sum(dims, keepdims=keepdim)) / ord)
    return found


def one_matrix_norm(a: Any, ord: Any) -> Any:
    if ord == "fro":
        return np.sqrt(np.trace(a.T @ a))
    if ord in ("nuc", 2, -2):
        s = svdvals(a)
        return s.sum() if ord == "nuc" else s.max() if ord > 0 else s.min()
    sums = np.abs(a).sum(0 if abs(ord) == 1 else 1)
    return sums.max() if ord > 0 else sums.min()


def matrix_norm(a: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False) -> Any:
    moved = np.moveaxis(a, dim, (-2, -1))
    found = np.asarray(each(one_matrix_norm)(moved, ord))
    return np.expand_dims(found, tuple(d % a.ndim for d in dim)) if keepdim else found


def norm(a: Any, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
    if ord is None:
        return vector_norm(a, 2, dim, keepdim)
    if (a.ndim == 2 and dim is None) or (dim is not None and not isinstance(dim, int) and len(dim) == 2):
        return matrix_norm(a, ord, dim or (0, 1), keepdim)
    return vector_norm(a, ord, dim, keepdim)


def cond(a: Any, p: Any = None) -> Any:
    if p in (None, 2, -2):
        s = svdvals(a)
        return s[-1] / s[0] if p == -2 else s[0] / s[-1]
    return one_matrix_norm(a, p) * one_matrix_norm(inverse(a), p)


def cdist(a: Any, b: Any, p: float = 2.0, compute_mode: str = "") -> Any:
    if a.ndim == 3:
        return np.stack([cdist(x, b, p) for x in a])
    found = np.zeros((len(a), len(b)))
    for i, j in np.ndindex(found.shape):
        found[i, j] = vector_norm(a[i] - b[j], p)
    return found


def cosine(a: Any, b: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    a, b = np.broadcast_arrays(a, b)
    sizes = [np.maximum(np.sqrt((x * x).sum(dim)), eps) for x in (a, b)]
    return (a * b).sum(dim) / (sizes[0] * sizes[1])


ORACLES = {
    "linalg.inv": each(inverse),
    "inverse": each(inverse),
    "linalg.inv_ex": lambda a: (each(inverse)(a), np.zeros(a.shape[:-2], np.int32)),
    "linalg.solve": solve,
    "linalg.solve_triangular": solve_triangular,
    "det": each(determinant),
    "slogdet": slogdet,
    "logdet": logdet,
    "linalg.cholesky": each(cholesky),
    "linalg.cholesky_ex": lambda a, upper=False: (each(cholesky)(a, upper), np.zeros(a.shape[:-2], np.int32)),
    "cholesky": each(cholesky),
    "cholesky_solve": lambda b, low, upper=False: solve(from_factor(low, upper), b),
    "cholesky_inverse": lambda low, upper=False: each(inverse)(from_factor(low, upper)),
    "linalg.qr": each(qr),
    "qr": lambda a, some=True: qr(a, "reduced" if some else "complete"),
    "linalg.svd": each(svd),
    "svd": old_svd,
    "linalg.svdvals": each(svdvals),
    "linalg.eigh": each(eigh),
    "linalg.eigvalsh": each(lambda a, uplo="L": eigenvalues(symmetric(a, uplo))),
    "linalg.pinv": each(pinv),
    "pinverse": pinv,
    "linalg.matrix_rank": each(matrix_rank),
    "linalg.lstsq": lstsq,
    "linalg.cond": each(cond),
    "matrix_power": each(matrix_power),
    "matrix_exp": each(matrix_exp),
    "linalg.vector_norm": vector_norm,
    "linalg.matrix_norm": matrix_norm,
    "linalg.norm": norm,
    "linalg.vecdot": lambda x, y, dim=-1: (x * y).sum(dim),
    "linalg.diagonal": lambda a, offset=0, dim1=-2, dim2=-1: np.diagonal(a, offset, dim1, dim2),
    "linalg.matmul": lambda a, b: np.einsum("ij,jk->ik", a, b),
    "linalg.tensorinv": np.linalg.tensorinv,
    "linalg.tensorsolve": np.linalg.tensorsolve,
    "cdist": cdist,
    "pairwise_distance": lambda a, b, p=2.0, eps=1e-6, keepdim=False: vector_norm(a - b + eps, p, -1, keepdim),
    "cosine_similarity": cosine,
}
