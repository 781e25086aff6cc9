"""`cupy.linalg`: float32 and float64 only, no broadcasting of batches in solve, and NaN where NumPy raises."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .array import ndarray, quiet, unwrap, wrapped
from .functions import parse

LinAlgError = np.linalg.LinAlgError

SIGNATURES = """
cholesky(a)
det(a)
eigh(a, UPLO='L')
eigvalsh(a, UPLO='L')
inv(a)
lstsq(a, b, rcond=None)
matrix_power(M, n)
matrix_rank(M, tol=None)
norm(x, ord=None, axis=None, keepdims=False)
pinv(a, rcond=1e-15)
qr(a, mode='reduced')
slogdet(a)
solve(a, b)
svd(a, full_matrices=True, compute_uv=True)
"""


def make(name: str, signature: inspect.Signature) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        arrays = [given[p] for p in ("a", "b", "x", "M") if p in given]
        for array in arrays:
            if not isinstance(array, ndarray):
                raise LinAlgError("cupy.linalg only supports cupy.ndarray")
            if array.dtype.name in ("float16", "bfloat16") and name not in ("norm", "matrix_power"):
                raise TypeError(f"{array.dtype.name} is unsupported in linalg")
        if name == "solve":
            a, b = arrays
            if b.ndim != 1 and a.shape[:-1] != b.shape[:-1]:
                raise ValueError("a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b")
        if name == "lstsq" and arrays[0].ndim != 2:
            raise LinAlgError(f"{arrays[0].ndim}-dimensional array given. Array must be two-dimensional")
        with quiet():
            return wrapped(without_errors(getattr(np.linalg, name), unwrap(args), {k: unwrap(v) for k, v in kwargs.items()}))

    function.__name__ = name
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def without_errors(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """cuSOLVER reports nothing unless asked: a matrix that cannot be inverted gives NaN."""
    try:
        return function(*args, **kwargs)
    except LinAlgError as error:
        if "ingular" not in str(error) and "definite" not in str(error):
            raise
        return np.full_like(args[-1], np.nan)


NAMES: dict[str, Callable[..., Any]] = {}
for _line in SIGNATURES.strip().splitlines():
    NAMES[_line.partition("(")[0]] = make(_line.partition("(")[0], parse(_line))
globals().update(NAMES)
