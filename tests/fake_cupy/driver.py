"""The pretended CUDA driver. A binary is JSON, which `support/fake_gpu.py` makes in the place of Triton's compiler: the text of
a kernel, its name and what it is to be given. Launching it is Triton's interpreter on NumPy's memory.

It is as strict as a GPU: parameters are read from where the launcher packed them, when it launches; addresses that the kernel
was compiled to find at multiples of 16 bytes have to be there; a launch takes as many threads as the kernel was compiled for,
and more shared memory than usual only if it was asked for before.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import struct
from typing import Any

from .errors import CUDADriverError
from .streams import stream_at

TO_DEVICE, TO_HOST = 1, 2
DEFAULT_SHARED, MAX_SHARED = 48 << 10, 227 << 10
FORMATS = {
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "fp32": "f",
    "fp64": "d",
}
_handles = itertools.count(1)
modules: dict[int, dict[str, Any]] = {}
functions: dict[int, dict[str, Any]] = {}
launched: list[str] = []  # names of kernels, for tests to look at
failing: dict[str, Exception] = {}  # by the name of a function here, or of a kernel: what it raises


def fail(name: str) -> None:
    if name in failing:
        raise failing[name]


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:  # noqa: N802 -- of the runtime, in fact
    """To the device at once: memory of the CPU is read before this returns. To the CPU when somebody waits."""
    target = stream_at(stream)
    if kind == TO_DEVICE:
        data = ctypes.string_at(src, size)
        target._submit(lambda: ctypes.memmove(dst, data, size) and None)
    elif kind == TO_HOST:
        target._submit(lambda: target._late.append(Late(dst, ctypes.string_at(src, size))))
    else:
        raise CUDADriverError("cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy")


class Late:
    """Bytes that the CPU has not got yet."""

    def __init__(self, to: int, data: bytes) -> None:
        self.to = to
        self.data = data

    def __call__(self) -> None:
        ctypes.memmove(self.to, self.data, len(self.data))


def moduleLoadData(image: bytes) -> int:  # noqa: N802 -- CUDA's names, all of these
    fail("moduleLoadData")
    try:
        made = json.loads(image)
    except ValueError:
        raise CUDADriverError("CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid") from None
    handle = next(_handles)
    modules[handle] = made
    return handle


def moduleUnload(module: int) -> None:  # noqa: N802
    del modules[module]


def moduleGetFunction(module: int, funcname: str) -> int:  # noqa: N802
    fail("moduleGetFunction")
    if modules[module]["name"] != funcname:
        raise CUDADriverError("CUDA_ERROR_NOT_FOUND", "named symbol not found")
    handle = next(_handles)
    functions[handle] = {**modules[module], "max_shared": DEFAULT_SHARED}
    return handle


def funcSetAttribute(f: int, attribute: int, value: int) -> None:  # noqa: N802
    fail("funcSetAttribute")
    if attribute != 8 or value > MAX_SHARED:
        raise CUDADriverError("CUDA_ERROR_INVALID_VALUE", "invalid argument")
    functions[f]["max_shared"] = value


def launchKernel(  # noqa: N802
    f: int,
    grid_dim_x: int,
    grid_dim_y: int,
    grid_dim_z: int,
    block_dim_x: int,
    block_dim_y: int,
    block_dim_z: int,
    shared_mem_bytes: int,
    stream: int,
    kernel_params: int,
    extra: int,
) -> None:
    fail("launchKernel")
    made = functions[f]
    fail(made["name"])
    if min(grid_dim_x, grid_dim_y, grid_dim_z) < 1 or shared_mem_bytes > made["max_shared"]:
        raise CUDADriverError("CUDA_ERROR_INVALID_VALUE", "invalid argument")
    if (block_dim_x, block_dim_y, block_dim_z) != (made["threads"], 1, 1) or shared_mem_bytes != made["shared"]:
        raise CUDADriverError("CUDA_ERROR_INVALID_VALUE", f"{made['name']} was compiled for {made['threads']} threads")
    given = parameters(made, kernel_params)
    grid = grid_dim_x, grid_dim_y, grid_dim_z

    def work() -> None:
        from tapejit.codegen.triton.device import interpreter as run

        launched.append(made["name"])
        with run.LOCK, run.patch_triton() as interpreter:
            run.run_programs(interpreter, run.load_module(made["source"], True)[made["name"]], given, grid)

    stream_at(stream)._submit(work)


def parameters(made: dict[str, Any], kernel_params: int) -> list[tuple[str, Any]]:
    """Types and values of what a launch is given; the last two are Triton's own."""
    count = len(made["types"]) + 2
    places = (ctypes.c_uint64 * count).from_address(kernel_params)
    slots = [ctypes.string_at(place, 8) for place in places]
    found: list[tuple[str, Any]] = []
    for kind, aligned, slot in zip(made["types"], made["aligned"], slots, strict=False):
        if kind.startswith("*"):
            (value,) = struct.unpack("Q", slot)
            if aligned and value % 16:
                raise CUDADriverError("CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address")
        else:
            (value,) = struct.unpack_from(FORMATS[kind], slot)
        found.append((kind, value))
    if made["scratch"] and not struct.unpack("Q", slots[-2])[0]:
        raise CUDADriverError("CUDA_ERROR_ILLEGAL_ADDRESS", "the kernel has no scratch memory")
    return found
