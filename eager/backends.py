"""`tapejit.backends` and the global switches of PyTorch scripts: settings that can be set and read.

The libraries they steer in PyTorch are not here, so nearly all of them change nothing; a script that sets them runs.
"""

from __future__ import annotations

import os
from array import array
from types import SimpleNamespace


class _Built(SimpleNamespace):
    """A backend's settings, with the questions PyTorch's has."""

    def is_available(self) -> bool:
        return bool(self.available)

    is_built = is_available


cudnn = _Built(available=False, enabled=True, benchmark=False, deterministic=False, allow_tf32=False, version=lambda: None)
cuda = _Built(
    available=True,
    matmul=SimpleNamespace(
        allow_tf32=False, allow_fp16_reduced_precision_reduction=False, allow_bf16_reduced_precision_reduction=False
    ),
)
mps = _Built(available=False)
mkl = _Built(available=False)
mkldnn = _Built(available=False, enabled=False)
openmp = _Built(available=False)


def _cores() -> int:
    """That this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


thread_count = array("q", [_cores()])  # compiled code reads it where it is in memory, so it is never replaced


class _Settings:
    interop_threads = 1
    deterministic = False
    precision = "highest"


_settings = _Settings()


def set_num_threads(num: int) -> None:
    """Set the number of threads that compiled code may use. NumPy's own threads are set by its BLAS (OPENBLAS_NUM_THREADS)."""
    thread_count[0] = positive(num, "set_num_threads")


def get_num_threads() -> int:
    """Return the number of threads that compiled code may use."""
    return thread_count[0]


def set_num_interop_threads(num: int) -> None:
    """Kept for PyTorch's sake: ops do not run beside one another."""
    _settings.interop_threads = positive(num, "set_num_interop_threads")


def get_num_interop_threads() -> int:
    """Return the value given to `set_num_interop_threads`."""
    return _settings.interop_threads


def positive(num: int, name: str) -> int:
    if not isinstance(num, int) or isinstance(num, bool):
        raise TypeError(f"{name} expects an int, but got {type(num).__name__}")
    if num < 1:
        raise RuntimeError(f"{name} expects a positive integer, got {num}")
    return num


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Every op is deterministic on the CPU. Compiled functions then run native code without timing it against the
    reference program: the two differ in their last bits, and a clock would decide."""
    _settings.deterministic = bool(mode)


def are_deterministic_algorithms_enabled() -> bool:
    """Return the value given to `use_deterministic_algorithms`."""
    return _settings.deterministic


def set_float32_matmul_precision(precision: str) -> None:
    """Kept for PyTorch's sake: "highest", "high" or "medium"."""
    if precision not in ("highest", "high", "medium"):
        raise ValueError(f"set_float32_matmul_precision: expected 'highest', 'high' or 'medium', got {precision!r}")
    _settings.precision = precision


def get_float32_matmul_precision() -> str:
    """Return the value given to `set_float32_matmul_precision`."""
    return _settings.precision
