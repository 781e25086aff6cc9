"""Calls cuBLAS through CuPy: one matmul per call, on CuPy's current stream.

The called function (`cublasGemmEx`, or for batches `cublasGemmStridedBatchedEx`) gets addresses, so nothing is allocated or
copied for it. float32 is multiplied as such, or as tf32 where that was allowed, whatever `CUPY_TF32` says; halves are
accumulated in float32 to the end, also in split-K kernels. cuBLAS works in memory of its own, one workspace per stream.

CuPy refuses cuBLAS while a stream is captured (somebody would have to keep that workspace), so a call is part of no CUDA graph.

    TAPEJIT_CUBLAS=0   no matmul is a cuBLAS call
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..device.specs import is_hip

DEFAULT_MATH = 0  # CUBLAS_DEFAULT_MATH
FULL_SUMS = 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION, for which CuPy has no name
TYPES = {"float64": "CUDA_R_64F", "float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF"}


class LibraryError(Exception):
    """cuBLAS refuses a matmul."""


@dataclass
class GemmCall:
    """Arguments of one call, storable as JSON. The matrices are the two operands and the result, all column-major."""

    batches: int
    sizes: list[int]  # m, n, k
    transposed: list[bool]  # first two matrices only
    distances: list[int]  # from one column to the next, in elements
    steps: list[int]  # from one batch to the next, in elements
    dtype: str  # operand dtype
    result: str  # dtype
    precision: str  # precision of float32
    words: list[int]  # addresses: indices of words in the launcher's table
    after: list[int]  # bytes after these


def allowed() -> bool:
    """True unless the user has disabled cuBLAS."""
    return os.environ.get("TAPEJIT_CUBLAS", "1") != "0"


def usable(xp: Any) -> bool:
    """True if there is a cuBLAS to call: CuPy's plain wheels do not contain it, and AMD devices have none."""
    if not allowed() or is_hip(xp):
        return False
    try:
        return xp.cuda.cublas is not None
    except (ImportError, AttributeError):
        return False


def version(xp: Any) -> str:
    """Version of the library, part of the autotune cache key: another one may be faster or slower."""
    return str(xp.cuda.cublas.getVersion(xp.cuda.get_cublas_handle()))


def compute_type(blas: Any, dtype: str, precision: str) -> int:
    if dtype == "float64":
        return int(blas.CUBLAS_COMPUTE_64F)
    tf32 = dtype == "float32" and precision == "tf32"
    return int(blas.CUBLAS_COMPUTE_32F_FAST_TF32 if tf32 else blas.CUBLAS_COMPUTE_32F)


def calling(xp: Any, call: GemmCall) -> Callable[[Any], None]:
    """Make a function that performs the call, given the launcher's table."""
    cuda, blas = xp.cuda, xp.cuda.cublas
    kind, result = (getattr(cuda.runtime, TYPES[x]) for x in (call.dtype, call.result))
    numbers = np.array([1, 0], np.float64 if call.dtype == "float64" else np.float32)
    one, zero = numbers.ctypes.data, numbers.ctypes.data + numbers.itemsize
    math = FULL_SUMS if call.dtype in ("float16", "bfloat16") else DEFAULT_MATH
    head = [int(blas.CUBLAS_OP_T if t else blas.CUBLAS_OP_N) for t in call.transposed] + call.sizes
    tail = [compute_type(blas, call.dtype, call.precision), int(blas.CUBLAS_GEMM_DEFAULT)]
    (at_a, at_b, at_c), (after_a, after_b, after_c), (lda, ldb, ldc) = call.words, call.after, call.distances

    def multiply(handle: int, a: int, b: int, c: int) -> None:
        if call.batches == 1:
            blas.gemmEx(handle, *head, one, a, kind, lda, b, kind, ldb, zero, c, result, ldc, *tail)
            return
        sa, sb, sc = call.steps
        given = (one, a, kind, lda, sa, b, kind, ldb, sb, zero, c, result, ldc, sc, call.batches)
        blas.gemmStridedBatchedEx(handle, *head, *given, *tail)

    def launch(table: Any) -> None:
        handle = cuda.get_cublas_handle()  # each thread has its own
        before = blas.getMathMode(handle)
        if before != math:
            blas.setMathMode(handle, math)
        try:
            multiply(handle, int(table[at_a]) + after_a, int(table[at_b]) + after_b, int(table[at_c]) + after_c)
        except Exception as reason:
            raise LibraryError(f"cuBLAS refuses a matmul ({reason})") from reason
        finally:
            if before != math:
                blas.setMathMode(handle, before)

    launch.kept = numbers  # type: ignore[attr-defined]  # the library reads them where they are
    return launch
