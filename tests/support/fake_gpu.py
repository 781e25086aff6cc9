"""Compiled functions on the pretended GPU: kernels are not compiled but kept as text, which its driver interprets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fake_cupy
from fake_cupy import cublas, driver
from tapejit.codegen.triton.device.compile import target_of
from tapejit.codegen.triton.runtime.arena import _arenas as arenas
from tapejit.codegen.triton.runtime.driver import _loaded as loaded
from tapejit.codegen.triton.runtime.kernel_cache import Binary, CompileRequest, Compiling
from tapejit.eager.arrays import devices
from tapejit.tracer.execute import tiering


def binary(wanted: CompileRequest, target: str) -> Binary:
    """In the place of Triton's compiler."""
    kernel = wanted.kernel
    made: dict[str, Any] = {
        "source": wanted.printed.source,
        "name": kernel.name,
        "types": [a.type for a in kernel.arguments],
        "aligned": [bool(a.buffer) and a.buffer not in wanted.unaligned for a in kernel.arguments],
        "threads": target_of(target)[2] * kernel.warps,
        "shared": 0,
        "scratch": 0,
    }
    return Binary(kernel.name, made["threads"], made["shared"], made["scratch"], json.dumps(made).encode())


@contextmanager
def gpu(stand_in: bool = True) -> Iterator[Any]:
    """While this lasts device "cuda" is the stand-in or the real one, and compiled programs are never found to be too slow."""
    before, margin, compiler = devices.use_cuda_module(fake_cupy if stand_in else None), tiering.MARGIN, Compiling.compiler
    tiering.MARGIN = float("inf")
    if stand_in:
        Compiling.compiler = staticmethod(binary)
    driver.launched.clear()
    cublas.called.clear()
    loaded.clear()
    arenas.clear()
    try:
        yield devices.module_for(devices.device("cuda"))
    finally:
        tiering.MARGIN, Compiling.compiler = margin, compiler
        devices.use_cuda_module(before)
        driver.failing.clear()
        fake_cupy.get_default_memory_pool().set_limit(0)
