"""`tapejit.accelerator`: the machine's GPUs by a name that does not say whose they are."""

from __future__ import annotations

from typing import Any

from . import cuda
from .arrays import devices


def is_available() -> bool:
    """True if there is an accelerator to use."""
    return cuda.is_available()


def device_count() -> int:
    """The number of accelerators."""
    return cuda.device_count()


def current_accelerator(check_available: bool = False) -> devices.device | None:
    """The kind of accelerator here, `device("cuda")`, or None without one."""
    return devices.device("cuda") if cuda.is_available() else None


def current_device_index() -> int:
    """The number of the current accelerator."""
    return cuda.current_device()


def set_device_index(device: Any) -> None:
    """Make an accelerator the current one."""
    cuda.set_device(device)


def synchronize(device: Any = None) -> None:
    """Wait until an accelerator has done all it was given."""
    cuda.synchronize(device)
