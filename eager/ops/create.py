"""Factories: tensors from data, constants and ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import devices, dtypes
from ..op import apply, primitive, public
from ..samples import A, sample
from ..tensor import Tensor, wrap
from .convert import from_numpy
from .shape import sizes

FULL = primitive("full", "create", lambda xp, *, shape, value, dtype, device: filled(xp, shape, value, dtype, device))


def filled(xp: Any, shape: tuple[int, ...], value: Any, dtype: dtypes.dtype, where: devices.device) -> Any:
    xp = devices.module_for(where)
    with devices.on(where):
        return xp.zeros(shape, dtype.numpy) if value == 0 else xp.full(shape, value, dtype.numpy)


def make(shape: tuple[int, ...], value: Any, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    found = apply(FULL, (), {"shape": check_sizes(shape), "value": value, "dtype": kind, "device": devices.as_device(device)})
    return found.requires_grad_() if requires_grad else found  # type: ignore[no-any-return]


IGNORED = {"layout", "pin_memory", "memory_format", "names"}  # arguments of PyTorch's factories that mean nothing here


def given(size: tuple[Any, ...], keywords: dict[str, Any], name: str) -> tuple[int, ...]:
    """The shape a factory was asked for, `f(2, 3)`, `f((2, 3))` or `f(size=(2, 3))`, and no unknown keywords."""
    unknown = keywords.keys() - IGNORED - {"size"}
    if unknown:
        raise TypeError(f"{name}() got an unexpected keyword argument '{min(unknown)}'")
    return sizes((keywords["size"],) if "size" in keywords else size)


def check_sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    if any(n < 0 for n in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    return shape


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any) -> Tensor:
    """A tensor of zeros."""
    return make(given(size, kw, "zeros"), 0, dtype, device, requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any) -> Tensor:
    """A tensor of ones."""
    return make(given(size, kw, "ones"), 1, dtype, device, requires_grad)


def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor filled with a value, of the value's dtype unless told otherwise."""
    value = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
    return make(sizes((size,)), value, dtypes.of_number(value) if dtype is None else dtype, device, requires_grad)


def new_full(self: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor filled with a value, of this tensor's dtype and device."""
    where = self.device if device is None else device
    return make(sizes((size,)), fill_value, dtype or self.dtype, where, requires_grad)


def new_zeros(self: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros of this tensor's dtype and device."""
    return new_full(self, sizes(size), 0, dtype=dtype, device=device, requires_grad=requires_grad)


def new_ones(self: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones of this tensor's dtype and device."""
    return new_full(self, sizes(size), 1, dtype=dtype, device=device, requires_grad=requires_grad)


def new_empty(self: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of this tensor's dtype and device whose values are not to be relied on."""
    return new_full(self, sizes(size), 0, dtype=dtype, device=device, requires_grad=requires_grad)


def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False) -> Tensor:
    """A tensor of new memory with the values of nested sequences, numbers, an array or a tensor."""
    array = values_of(data, None if dtype is None else dtypes.as_dtype(dtype))
    where = data.device if isinstance(data, Tensor) and device is None else devices.as_device(device)
    found = wrap(devices.move(array, where))
    return found.requires_grad_() if requires_grad else found


def values_of(data: Any, dtype: dtypes.dtype | None) -> np.ndarray[Any, Any]:
    """Fresh values in the dtype asked for, else in the one the data implies (Python floats: the default dtype)."""
    if isinstance(data, Tensor):
        return np.array(devices.to_numpy(data._array), None if dtype is None else dtype.numpy, copy=True)
    if isinstance(data, (np.ndarray, np.generic)):
        kind = dtype or dtypes.from_numpy(data.dtype)
        return np.array(data, kind.numpy, copy=True)
    try:
        array = np.array(plain(data))
    except ValueError as error:
        raise ValueError(f"tensor(): the nested sequences are not of equal lengths, so they have no shape: {error}") from None
    if array.dtype.kind not in "biuf":
        if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], int):
            raise RuntimeError("tensor(): Overflow when unpacking long: a value does not fit into int64")
        raise TypeError(f"tensor(): could not infer a dtype from data of type {type(data).__name__} ({array.dtype})")
    if dtype is None:
        if array.size == 0 or has_python_float(array, data):
            dtype = dtypes.get_default_dtype()
        else:
            dtype = dtypes.from_numpy(array.dtype)
    return array.astype(dtype.numpy)


def has_python_float(array: np.ndarray[Any, Any], data: Any) -> bool:
    """Whether the floats came from Python numbers (then the default dtype) and not from NumPy arrays in a list."""
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return array.dtype.kind == "f" and not isinstance(data, (np.ndarray, np.generic, Tensor))


def plain(data: Any) -> Any:
    """Nested sequences with tensors inside turned into arrays."""
    if isinstance(data, Tensor):
        return devices.to_numpy(data._array)
    if isinstance(data, (list, tuple)) and any(isinstance(d, (Tensor, list, tuple)) for d in data):
        return [plain(d) for d in data]
    return data


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of the data, sharing its memory where dtype and device allow."""
    if isinstance(data, Tensor):
        return data.to(device=device, dtype=dtype)  # type: ignore[no-any-return]
    if isinstance(data, np.ndarray):
        return from_numpy(data).to(device=device, dtype=dtype)  # type: ignore[no-any-return]
    return tensor(data, dtype=dtype, device=device)


Tensor.new_full, Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty = new_full, new_zeros, new_ones, new_empty
