"""The pretended cuBLAS, as CuPy wraps it: matmuls on NumPy's memory.

It is as strict as the library and CuPy together: plain integers that C's types hold, a handle of the current device, distances
between columns that are no shorter than these, dtypes that go together, no result in the memory of what is multiplied; nothing
while the current stream is captured. What is left to the library's settings shows in the result: float32 is rounded to tf32 by
the modes that allow it, and sums of halves are rounded on the way unless that is forbidden.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from typing import Any

import ml_dtypes
import numpy as np

from . import driver
from .device import local
from .streams import get_current_stream

CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C = 0, 1, 2
CUBLAS_GEMM_DEFAULT = -1
CUBLAS_DEFAULT_MATH, CUBLAS_TENSOR_OP_MATH = 0, 1
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_64F = 68, 77, 70
TF32_MATH, FULL_SUMS = 3, 16  # which CuPy has no names for
STATUS = {7: "CUBLAS_STATUS_INVALID_VALUE", 13: "CUBLAS_STATUS_EXECUTION_FAILED", 15: "CUBLAS_STATUS_NOT_SUPPORTED"}
CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F, CUDA_R_64F = 2, 14, 0, 1
TYPES = {CUDA_R_16F: np.float16, CUDA_R_16BF: ml_dtypes.bfloat16, CUDA_R_32F: np.float32, CUDA_R_64F: np.float64}
SUPPORTED = {
    CUBLAS_COMPUTE_32F: {
        (CUDA_R_16F, CUDA_R_16F), (CUDA_R_16BF, CUDA_R_16BF), (CUDA_R_16F, CUDA_R_32F), (CUDA_R_16BF, CUDA_R_32F),
        (CUDA_R_32F, CUDA_R_32F),
    },
    CUBLAS_COMPUTE_32F_FAST_TF32: {(CUDA_R_32F, CUDA_R_32F)},
    CUBLAS_COMPUTE_64F: {(CUDA_R_64F, CUDA_R_64F)},
}  # fmt: skip
_handles = itertools.count(1000)
_modes: dict[int, tuple[int, int]] = {}  # of handles: the device, and the math mode
called: list[dict[str, int]] = []  # for tests to look at


class _Local(threading.local):
    def __init__(self) -> None:
        self.handles: dict[int, int] = {}


_local = _Local()


class CUBLASError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(STATUS[status])


def get_cublas_handle() -> int:
    """Handle of the current device, in this thread."""
    if local.current not in _local.handles:
        handle = _local.handles[local.current] = next(_handles)
        _modes[handle] = local.current, CUBLAS_DEFAULT_MATH
    return _local.handles[local.current]


def getVersion(handle: int) -> int:  # noqa: N802 -- CuPy's names, all of these
    own(handle)
    return 120900


def getMathMode(handle: int) -> int:  # noqa: N802
    return own(handle)


def setMathMode(handle: int, mode: int) -> None:  # noqa: N802
    own(handle)
    if mode & ~FULL_SUMS not in (0, 1, 2, TF32_MATH):
        raise CUBLASError(7)
    _modes[handle] = local.current, mode


def own(handle: int) -> int:
    """The math mode of a handle, which has to be this thread's and of the current device."""
    if handle not in _local.handles.values():
        raise CUBLASError(7)
    device, mode = _modes[handle]
    if device != local.current:
        raise CUBLASError(13)
    return mode


def gemmEx(  # noqa: N802
    handle: int,
    transa: int,
    transb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    A: int,  # noqa: N803
    Atype: int,  # noqa: N803
    lda: int,
    B: int,  # noqa: N803
    Btype: int,  # noqa: N803
    ldb: int,
    beta: int,
    C: int,  # noqa: N803
    Ctype: int,  # noqa: N803
    ldc: int,
    computeType: int,  # noqa: N803
    algo: int,
) -> None:
    driver.fail("gemmEx")
    multiply({**locals(), "strideA": 0, "strideB": 0, "strideC": 0, "batchCount": 1})


def gemmStridedBatchedEx(  # noqa: N802
    handle: int,
    transa: int,
    transb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    A: int,  # noqa: N803
    Atype: int,  # noqa: N803
    lda: int,
    strideA: int,  # noqa: N803
    B: int,  # noqa: N803
    Btype: int,  # noqa: N803
    ldb: int,
    strideB: int,  # noqa: N803
    beta: int,
    C: int,  # noqa: N803
    Ctype: int,  # noqa: N803
    ldc: int,
    strideC: int,  # noqa: N803
    batchCount: int,  # noqa: N803
    computeType: int,  # noqa: N803
    algo: int,
) -> None:
    driver.fail("gemmStridedBatchedEx")
    multiply(locals())


def multiply(g: dict[str, Any]) -> None:
    stream = get_current_stream()
    if stream.is_capturing():
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
    mode = own(g["handle"])
    check(g)
    wide = np.float64 if g["computeType"] == CUBLAS_COMPUTE_64F else np.float32
    scalars = [np.frombuffer(ctypes.string_at(g[x], np.dtype(wide).itemsize), wide)[0] for x in ("alpha", "beta")]
    a, b, c = matrix(g, "A", "m", "k", "transa"), matrix(g, "B", "k", "n", "transb"), matrix(g, "C", "m", "n", "")
    if np.may_share_memory(c, a) or np.may_share_memory(c, b):
        raise AssertionError("the result is in the memory of an operand, which cuBLAS leaves undefined")
    fast = g["computeType"] == CUBLAS_COMPUTE_32F_FAST_TF32 or mode & ~FULL_SUMS == TF32_MATH

    def work() -> None:
        called.append({**g, "stream": stream.ptr})
        c[...] = scalars[0] * matmul(a.astype(wide), b.astype(wide), c.dtype, fast and a.dtype == np.float32, mode)
        if scalars[1]:
            raise AssertionError("nobody adds to a result here")

    stream._submit(work)


def check(g: dict[str, Any]) -> None:
    for name, value in g.items():
        if type(value) is not int:
            raise TypeError(f"{name} is {type(value).__name__}, and an int is wanted")
        large = 1 << (31 if name in ("m", "n", "k", "lda", "ldb", "ldc", "batchCount") else 63)
        if not -large <= value < large:
            raise OverflowError("value too large to convert to int")
    if g["Atype"] != g["Btype"] or (g["Atype"], g["Ctype"]) not in SUPPORTED.get(g["computeType"], ()):
        raise CUBLASError(15)
    rows = {"lda": g["k"] if g["transa"] else g["m"], "ldb": g["n"] if g["transb"] else g["k"], "ldc": g["m"]}
    if any(g[ld] < max(least, 1) for ld, least in rows.items()) or min(g["m"], g["n"], g["k"], g["batchCount"]) < 0:
        raise CUBLASError(7)
    if g["algo"] != CUBLAS_GEMM_DEFAULT or not {g["transa"], g["transb"]} <= {CUBLAS_OP_N, CUBLAS_OP_T}:
        raise CUBLASError(7)
    for name in "ABC":
        if g[name] % np.dtype(TYPES[g[f"{name}type"]]).itemsize:
            raise driver.CUDADriverError("CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address")
    if g["batchCount"] > 1 and g["strideC"] < g["ldc"]:
        raise AssertionError("batches of the result are in one another")


def matrix(g: dict[str, Any], name: str, rows: str, cols: str, turned: str) -> Any:
    """Batches of matrices in columns, transposed if that is said."""
    shape = (g[cols], g[rows]) if turned and g[turned] else (g[rows], g[cols])
    dtype, ld, step = np.dtype(TYPES[g[f"{name}type"]]), g[f"ld{name.lower()}"], g[f"stride{name}"]
    last = (g["batchCount"] - 1) * step + (shape[1] - 1) * ld + shape[0]
    memory = (ctypes.c_uint8 * (last * dtype.itemsize)).from_address(g[name])
    flat = np.frombuffer(memory, dtype)
    strides = tuple(s * dtype.itemsize for s in (step, 1, ld))
    found = np.lib.stride_tricks.as_strided(flat, (g["batchCount"], *shape), strides)
    return found.swapaxes(1, 2) if turned and g[turned] else found


def matmul(a: Any, b: Any, dtype: Any, fast: bool, mode: int) -> Any:
    if fast:
        a, b = tf32(a), tf32(b)
    if dtype.itemsize == 2 and not mode & FULL_SUMS and a.shape[2] > 1:  # in two parts, which are rounded
        half = a.shape[2] // 2
        parts = (a[..., :half], b[:, :half]), (a[..., half:], b[:, half:])
        return sum(np.matmul(x, y).astype(dtype).astype(a.dtype) for x, y in parts)
    return np.matmul(a, b)


def tf32(x: Any) -> Any:
    """With 10 bits after the point, to the nearest."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
