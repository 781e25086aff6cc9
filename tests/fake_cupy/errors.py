"""Errors of the pretended CUDA, under the names that CuPy's errors have."""

from __future__ import annotations


class CUDARuntimeError(RuntimeError):
    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")


class CUDADriverError(RuntimeError):
    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")


class OutOfMemoryError(MemoryError):
    """Error of the memory pool."""
