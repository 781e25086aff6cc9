"""Arrays from Python data: nested sequences, numbers, and tensors among them, with the dtype that their elements imply."""

from __future__ import annotations

import collections.abc
import functools
from typing import Any

import numpy as np

from ..arrays import dtypes
from .tensor import Tensor

TRUST = "ops"  # see core/library.py: what is here does nothing but run ops


def values_of(data: Any, dtype: dtypes.dtype | None) -> np.ndarray[Any, Any]:
    """Return a new array of the data in a dtype, else in the one that the data implies (Python floats: the default dtype)."""
    if isinstance(data, (np.ndarray, np.generic)) or (hasattr(data, "__array__") and not isinstance(data, Tensor)):
        array = np.asarray(data)
        return np.array(array, (dtype or dtypes.from_numpy(array.dtype)).numpy, copy=True)
    if isinstance(data, str):
        raise TypeError("new(): invalid data type 'str'")
    implied, numbers = implied_dtype(data), to_numbers(data)
    try:
        array = np.array(numbers)
    except ValueError:
        raise ragged_error(data) from None
    if array.dtype.kind == "O" or array.dtype == np.uint64:
        array = large_ints_as_float(numbers, dtype or implied)
    dtype = dtype or implied
    if dtype.category == dtypes.INTEGER:
        check_fits(array, dtype)
    return array.astype(dtype.numpy)


def implied_dtype(data: Any) -> dtypes.dtype:
    """Return the dtype that the elements promote to; the default dtype if there are none."""
    found = element_dtypes(data)
    return functools.reduce(dtypes.promote_types, found) if found else dtypes.get_default_dtype()


def element_dtypes(data: Any) -> set[dtypes.dtype]:
    if isinstance(data, (Tensor, np.ndarray, np.generic)):
        return {data.dtype if isinstance(data, Tensor) else dtypes.from_numpy(data.dtype)}
    if isinstance(data, (bool, int, float)):
        return {dtypes.of_number(data)}
    if isinstance(data, collections.abc.Sequence) and not isinstance(data, (str, bytes)):
        kinds = set(map(type, data))
        if kinds <= {bool, int, float}:  # the innermost lists, however long, cost no Python loop
            return {dtypes.of_number(kind()) for kind in kinds}
        return {kind for d in data for kind in element_dtypes(d)}
    if isinstance(data, str):
        raise ValueError("too many dimensions 'str'")
    raise RuntimeError(f"Could not infer dtype of {type(data).__name__}")


def to_numbers(data: Any) -> Any:
    """Convert nested sequences to lists of numbers: a tensor among them stands for its only element."""
    if isinstance(data, Tensor):
        if data.tj_array.size != 1:
            raise ValueError(
                f"only one element tensors can be converted to Python scalars, and one here has shape {list(data.shape)}; "
                "to join tensors use stack()"
            )
        return data.item()
    if isinstance(data, collections.abc.Sequence):
        return [to_numbers(d) for d in data] if any(map(is_nested, data)) else list(data)
    return data


def is_nested(x: Any) -> bool:
    return isinstance(x, (Tensor, collections.abc.Sequence))


def ragged_error(data: Any) -> Exception:
    """Return the error for nested sequences without a common shape: where the first one differs."""
    level, dim = [data], 0
    while level and all(hasattr(d, "__len__") for d in level):
        lengths = [len(d) for d in level]
        for n in lengths:
            if n != lengths[0]:
                return ValueError(f"expected sequence of length {lengths[0]} at dim {dim} (got {n})")
        level, dim = [item for d in level for item in d], dim + 1
    return TypeError(f"not a sequence: numbers and sequences are mixed at dim {dim}")


def large_ints_as_float(numbers: Any, dtype: dtypes.dtype) -> np.ndarray[Any, Any]:
    """Convert Python ints that are too large for int64, which can only become floats."""
    if not dtype.is_floating_point:
        raise ValueError("Overflow when unpacking long long: a value does not fit into int64")
    return np.array(numbers, np.float64)


def check_fits(array: np.ndarray[Any, Any], dtype: dtypes.dtype) -> None:
    """Refuse numbers that a narrow integer dtype cannot hold; negative ones wrap in uint8, as in PyTorch."""
    if array.size == 0 or array.dtype == dtype.numpy or array.dtype.kind == "b":
        return
    info = dtypes.iinfo(dtype)
    least = info.min or -info.max
    if not (array.min() >= least and array.max() <= info.max):
        raise RuntimeError(f"value cannot be converted to type {dtype.name} without overflow")
