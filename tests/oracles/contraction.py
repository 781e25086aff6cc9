"""NumPy references for products of matrices and their kin: mostly sums over Python loops, or `np.einsum`."""

from __future__ import annotations

from typing import Any

import numpy as np


def rows_times_columns(a: Any, b: Any) -> Any:
    """The definition of a matrix product, for two matrices."""
    out = np.zeros((a.shape[0], b.shape[1]), np.result_type(a, b))
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            out[i, j] = (a[i] * b[:, j]).sum()
    return out


def matmul(a: Any, b: Any) -> Any:
    if a.ndim == 1 and b.ndim == 1:
        return (a * b).sum()
    if a.ndim == 1:
        return matmul(a[None], b)[..., 0, :]
    if b.ndim == 1:
        return matmul(a, b[:, None])[..., 0]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = np.broadcast_to(a, (*batch, *a.shape[-2:])), np.broadcast_to(b, (*batch, *b.shape[-2:]))
    out = np.zeros((*batch, a.shape[-2], b.shape[-1]), np.result_type(a, b))
    for index in np.ndindex(batch):
        out[index] = rows_times_columns(a[index], b[index])
    return out


def added(input: Any, value: Any, beta: float, alpha: float) -> Any:
    return np.broadcast_to(beta * input, value.shape) + alpha * value


def addbmm(input: Any, batch1: Any, batch2: Any, beta: float = 1, alpha: float = 1) -> Any:
    return added(input, np.einsum("bij,bjk->ik", batch1, batch2), beta, alpha)


def outer(a: Any, b: Any) -> Any:
    return np.array([[x * y for y in b] for x in a])


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    if weight.ndim == 1:
        return np.einsum("...i,i->...", x, weight)
    return np.einsum("...i,oi->...o", x, weight) + (0 if bias is None else bias)


def bilinear(a: Any, b: Any, weight: Any, bias: Any = None) -> Any:
    return np.einsum("...i,oij,...j->...o", a, weight, b) + (0 if bias is None else bias)


def in_turn(matrices: Any) -> Any:
    product = matrices[0]
    for m in matrices[1:]:
        product = matmul(product, m)
    return product


def cross(a: Any, b: Any, dim: int) -> Any:
    a, b = np.broadcast_arrays(a, b)
    a, b = np.moveaxis(a, dim, 0), np.moveaxis(b, dim, 0)
    epsilon = np.zeros((3, 3, 3))
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        epsilon[i, j, k], epsilon[k, j, i] = 1, -1
    return np.moveaxis(np.einsum("ijk,j...,k...->i...", epsilon, a, b), 0, dim)


def tensordot(a: Any, b: Any, dims: Any = 2) -> Any:
    if not isinstance(dims, int) and any(a.shape[d] != b.shape[e] for d, e in zip(*dims, strict=True)):
        common = [max(a.shape[d], b.shape[e]) for d, e in zip(*dims, strict=True)]
        for d, e, n in zip(*dims, common, strict=True):  # a length of 1 broadcasts
            a, b = (np.repeat(x, n, axis) if x.shape[axis] == 1 else x for x, axis in ((a, d), (b, e)))
    return np.tensordot(a, b, dims)


def inner(a: Any, b: Any) -> Any:
    return np.einsum("...,->...", a, b) if b.ndim == 0 else np.inner(a, b)


ORACLES = {
    "matmul": matmul,
    "mm": rows_times_columns,
    "bmm": lambda a, b: np.einsum("bij,bjk->bik", a, b),
    "mv": lambda a, b: np.array([(row * b).sum() for row in a]),
    "dot": lambda a, b: sum((x * y for x, y in zip(a, b, strict=True)), 0.0 if a.dtype.kind == "f" else 0),
    "vdot": np.vdot,
    "outer": outer,
    "ger": outer,
    "addmm": lambda x, a, b, beta=1, alpha=1: added(x, rows_times_columns(a, b), beta, alpha),
    "addmv": lambda x, a, b, beta=1, alpha=1: added(x, np.einsum("ij,j->i", a, b), beta, alpha),
    "addr": lambda x, a, b, beta=1, alpha=1: added(x, outer(a, b), beta, alpha),
    "baddbmm": lambda x, a, b, beta=1, alpha=1: added(x, np.einsum("bij,bjk->bik", a, b), beta, alpha),
    "addbmm": addbmm,
    "linear": linear,
    "bilinear": bilinear,
    "linalg.multi_dot": in_turn,
    "chain_matmul": lambda *matrices: in_turn(matrices),
    "trace": lambda x: sum(x[i, i] for i in range(min(x.shape))),
    "kron": np.kron,
    "cross": cross,
    "linalg.cross": lambda a, b, dim=-1: cross(a, b, dim),
    "einsum": np.einsum,
    "tensordot": tensordot,
    "inner": inner,
}
