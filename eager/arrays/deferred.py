"""Deferred arrays: the shape, dtype, strides and device of an array that is not computed yet.

While the tracer records or replays a function, the tensors that it makes hold one of these in place of their array. Questions
about a tensor's form are answered from class attributes; whatever needs the values, here or inside NumPy, calls `resolve()`,
which tells the tracer that a value is read. There is no memory behind it that could be read by mistake.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

if TYPE_CHECKING:
    from .devices import device


class Flags:
    """The part of `ndarray.flags` that is known without the array."""

    __slots__ = ("c_contiguous",)
    writeable, owndata = True, False

    def __init__(self, c_contiguous: bool) -> None:
        self.c_contiguous = c_contiguous


class DeferredArray(NDArrayOperatorsMixin):
    """An array that is computed when first read. `form` makes a subclass for each form, so an instance costs two attributes."""

    __slots__ = ("frame", "real", "slot")
    __array_priority__ = 2000

    frame: Any  # computes it: `frame.read(self)` calls `become`; None from then on
    real: Any
    slot: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    where: device
    on_cpu: bool
    ndim: int
    size: int
    itemsize: int
    nbytes: int
    flags: Flags

    def __init__(self, frame: Any, slot: int, real: Any = None) -> None:
        self.frame = frame
        self.slot = slot
        if real is not None:
            self.real = real

    def resolve(self) -> Any:
        """Return the array, computing it first if necessary."""
        if self.frame is not None:
            self.frame.read(self)
        return self.real

    def become(self, array: Any) -> None:
        """Hold the computed array, for whoever still has this object."""
        self.real = array
        self.frame = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__array_") or name in DeferredArray.__slots__:  # NumPy looks for protocols; there are no others
            raise AttributeError(name)
        return getattr(self.resolve(), name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.resolve(), dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            kwargs["out"] = tuple(resolve_array(x) for x in kwargs["out"])
        if not self.on_cpu:
            from .devices import module_for

            ufunc = getattr(module_for(self.where), ufunc.__name__)
        return getattr(ufunc, method)(*[resolve_array(x) for x in inputs], **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function(*_deep(args), **{k: _deep(v) for k, v in kwargs.items()})

    def __getitem__(self, index: Any) -> Any:
        return self.resolve()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.resolve()[index] = value

    def __len__(self) -> int:
        return len(self.resolve())

    def __iter__(self) -> Any:
        return iter(self.resolve())

    def __bool__(self) -> bool:
        return bool(self.resolve())

    def __float__(self) -> float:
        return float(self.resolve())

    def __int__(self) -> int:
        return int(self.resolve())

    def __index__(self) -> int:
        return int(self.resolve().__index__())

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.resolve().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.resolve().__dlpack_device__()

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.resolve())


def resolve_array(x: Any) -> Any:
    """Return the array itself for one that may be deferred."""
    return x.resolve() if isinstance(x, DeferredArray) else x


def _deep(x: Any) -> Any:
    return type(x)(_deep(v) for v in x) if type(x) in (tuple, list) else resolve_array(x)


@functools.lru_cache(4096)
def form(shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...], where: device) -> type[DeferredArray]:
    """Return the class of deferred arrays of one form."""
    size = 1
    for n in shape:
        size *= n
    expected, ordered = dtype.itemsize, True
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and s != expected:
            ordered = False
        expected *= n
    known = {
        "shape": shape, "dtype": dtype, "strides": strides, "where": where, "ndim": len(shape), "size": size,
        "on_cpu": where.type == "cpu",
        "itemsize": dtype.itemsize, "nbytes": size * dtype.itemsize, "flags": Flags(ordered or size == 0),
    }  # fmt: skip
    return type("DeferredArray", (DeferredArray,), {"__slots__": (), **known})


def form_of(array: Any, where: device) -> type[DeferredArray]:
    return form(array.shape, array.dtype, array.strides, where)
