"""Devices: `cpu` is NumPy, `cuda` and `cuda:i` are CuPy.

An array says where it lives by its type, so most code asks `module_of(array)` for the array module (`xp`) and writes
one body for both. CuPy is imported only when a CUDA device is first used.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from typing import Any

import numpy as np

from .deferred import DeferredArray, resolve_array

Array = Any  # np.ndarray or cupy.ndarray; both behave alike where we use them


class device:  # noqa: N801 -- PyTorch's spelling
    """The device of a tensor: `device("cpu")`, `device("cuda")`, `device("cuda:1")`, `device("cuda", 1)`."""

    __slots__ = ("index", "type")

    def __init__(self, type: str | int | device = "cpu", index: int | None = None) -> None:
        if isinstance(type, device):
            self.type, self.index = type.type, type.index
            return
        if isinstance(type, int):
            index = type
            type = "cuda"
        kind, _, number = str(type).partition(":")
        if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
            raise RuntimeError(f"Expected one of cpu, cuda device type at start of device string: {type}")
        self.type = kind
        self.index = int(number) if number else index

    def __repr__(self) -> str:
        return f"device(type='{self.type}')" if self.index is None else f"device(type='{self.type}', index={self.index})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __reduce__(self) -> Any:
        return (device, (self.type, self.index))


CPU = device("cpu")


@functools.cache
def _driver_device_count() -> int:
    """Return the number of GPUs that the CUDA driver reports, in a fraction of a millisecond and without importing CuPy."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


class _Cuda:
    """The array module behind `cuda`: real CuPy, or a stand-in that tests put in its place."""

    module: Any = None

    def load(self) -> Any:
        if self.module is None:
            if _driver_device_count() == 0:
                raise RuntimeError(
                    "device 'cuda' is not available: no NVIDIA driver with a GPU was found on this machine; "
                    "use device='cpu', or check tapejit.cuda.is_available() first"
                )
            try:
                self.module = importlib.import_module("cupy")
            except ImportError:
                raise RuntimeError(
                    "device 'cuda' is not available: a GPU was found but CuPy is not installed; "
                    "install it with: pip install 'tapejit[gpu]'"
                ) from None
        return self.module


_cuda = _Cuda()


def cuda_device_count() -> int:
    if _cuda.module is not None:
        return int(_cuda.module.cuda.runtime.getDeviceCount())
    return _driver_device_count()


def use_cuda_module(module: Any) -> Any:
    """Use `module` for device 'cuda' (None: real CuPy again) and return the one before. For tests."""
    previous, _cuda.module = _cuda.module, module
    return previous


def module_of(array: Array) -> Any:
    """Return the array module (`xp`) that an array belongs to."""
    return np if type(array) is np.ndarray else module_for(device_of(array))


def device_of(array: Array) -> device:
    if type(array) is np.ndarray:
        return CPU
    if isinstance(array, DeferredArray):
        return array.where
    return device("cuda", array.device.id)


_default_device = CPU


def get_default_device() -> device:
    """The device factories use when none is given."""
    return _default_device


def set_default_device(where: Any) -> None:
    """Make `where` the device of factories that are given none."""
    global _default_device
    _default_device = CPU if where is None else as_device(where)


def as_device(where: Any) -> device:
    """A device from a device, a string, a number or None (the default device); `cuda` means the current GPU."""
    if where is None:
        return _default_device
    found = where if isinstance(where, device) else device(where)
    if found.type == "cpu":
        return CPU
    xp = _cuda.load()
    if found.index is None:
        return device("cuda", int(xp.cuda.Device().id))
    if found.index >= cuda_device_count():
        raise RuntimeError(f"device '{found}' does not exist: this machine has {cuda_device_count()} CUDA device(s)")
    return found


def module_for(where: device) -> Any:
    """Return the array module of a device."""
    return np if where.type == "cpu" else _cuda.load()


class _Nothing:
    """A reusable context manager that does nothing."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


NOTHING = _Nothing()


def on(where: device) -> Any:
    """A context in which new arrays are made on `where`."""
    return NOTHING if where.type == "cpu" else _cuda.load().cuda.Device(where.index or 0)


def move(array: Array, where: device) -> Array:
    """Return the array itself if it is on `where` already, else a copy there."""
    array = resolve_array(array)
    if device_of(array) == where:
        return array
    if where.type == "cpu":
        return _cuda.load().asnumpy(array)
    with on(where):
        return _cuda.load().asarray(array)


def copy(array: Array) -> Array:
    """A copy where the array is; CuPy's own copy goes to the current GPU."""
    array = resolve_array(array)
    with on(device_of(array)):
        return array.copy()


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """Return the values on the CPU; no copy for a NumPy array."""
    array = resolve_array(array)
    return array if type(array) is np.ndarray else _cuda.load().asnumpy(array)
