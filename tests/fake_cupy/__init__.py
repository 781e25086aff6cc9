"""A stand-in for CuPy on machines with no GPU: arrays over NumPy that refuse what real CuPy refuses.

What it is strict about was read in CuPy 14's source: no implicit way to NumPy; kernels only where their array lives (two
pretended devices); ufuncs that take arrays and scalars but no lists or NumPy arrays, that have no `where=`, few `reduce`,
`accumulate` and `at`, and exactly CuPy's loops, so that bfloat16 becomes float32 where CuPy lacks a loop for it; functions
with CuPy's parameters and no more; array indices that wrap around; 0-dim arrays instead of scalars. Fresh memory from
`empty` holds NaN. `test_fake_cupy.py` compares names, parameters and loops with the installed real CuPy.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from . import cublas, driver, linalg, memory, streams
from .array import ndarray
from .device import Device, device_count
from .errors import OutOfMemoryError
from .functions import FUNCTIONS, asnumpy
from .ufuncs import UFUNCS, ufunc

SCALAR_TYPES = (
    "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
SHARED = ("dtype", "finfo", "iinfo", "newaxis", "inf", "nan", "pi", "e", "integer", "floating", "generic", "number")

runtime = types.SimpleNamespace(
    getDeviceCount=device_count,
    getDevice=lambda: Device().id,
    is_hip=False,
    memcpyAsync=driver.memcpyAsync,
    memcpyHostToDevice=driver.TO_DEVICE,
    memcpyDeviceToHost=driver.TO_HOST,
    CUDA_R_16BF=cublas.CUDA_R_16BF,
    CUDA_R_16F=cublas.CUDA_R_16F,
    CUDA_R_32F=cublas.CUDA_R_32F,
    CUDA_R_64F=cublas.CUDA_R_64F,
)
cuda = types.SimpleNamespace(
    Device=Device,
    Event=streams.Event,
    MemoryPointer=memory.MemoryPointer,
    Stream=streams.Stream,
    UnownedMemory=memory.UnownedMemory,
    alloc=memory.alloc,
    alloc_pinned_memory=memory.alloc_pinned_memory,
    cublas=cublas,
    driver=driver,
    get_cublas_handle=cublas.get_cublas_handle,
    get_current_stream=streams.get_current_stream,
    get_elapsed_time=streams.get_elapsed_time,
    is_available=lambda: True,
    memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    runtime=runtime,
)
lib = types.SimpleNamespace(stride_tricks=types.SimpleNamespace(as_strided=FUNCTIONS["as_strided"]))

NAMES: dict[str, Any] = {
    **UFUNCS,
    **{name: function for name, function in FUNCTIONS.items() if name != "as_strided"},
    **{name: getattr(np, name) for name in (*SCALAR_TYPES, *SHARED)},
    "get_default_memory_pool": memory.get_default_memory_pool,
}
globals().update(NAMES)

__all__ = ["NAMES", "asnumpy", "cuda", "lib", "linalg", "ndarray", "ufunc"]
