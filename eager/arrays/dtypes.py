"""Data types and PyTorch's promotion rules.

A `dtype` is a small constant (`tapejit.float32`) that knows its NumPy twin. Promotion follows PyTorch, not NumPy: an
int64 tensor times a float32 tensor is float32, and Python numbers and 0-dim tensors only decide the result when they
are of a higher category (bool < integer < float) than the tensors with dimensions.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import ml_dtypes
import numpy as np

BOOL, INTEGER, FLOAT = range(3)


class dtype:  # noqa: N801 -- PyTorch's spelling
    """An element type of a tensor. Compare with `is` or `==`; `.numpy` is the NumPy twin."""

    __slots__ = ("abbreviation", "category", "is_floating_point", "is_signed", "itemsize", "legacy", "name", "numpy")

    def __init__(self, name: str, numpy_type: Any, category: int, legacy: str, abbreviation: str) -> None:
        self.name = name
        self.numpy = np.dtype(numpy_type)
        self.category = category
        self.is_floating_point = category == FLOAT
        self.is_signed = name not in ("bool", "uint8")
        self.itemsize = self.numpy.itemsize
        self.legacy = legacy  # the noun of PyTorch's error messages: "Float", "Long"
        self.abbreviation = abbreviation  # for printed tapes and graphs: f32, i64

    is_complex = False

    def __repr__(self) -> str:
        return f"tapejit.{self.name}"

    def __reduce__(self) -> Any:
        return (by_name, (self.name,))

    def to_numpy(self) -> np.dtype[Any]:
        return self.numpy


bool_ = dtype("bool", np.bool_, BOOL, "Bool", "b8")
uint8 = dtype("uint8", np.uint8, INTEGER, "Byte", "u8")
int8 = dtype("int8", np.int8, INTEGER, "Char", "i8")
int16 = dtype("int16", np.int16, INTEGER, "Short", "i16")
int32 = dtype("int32", np.int32, INTEGER, "Int", "i32")
int64 = dtype("int64", np.int64, INTEGER, "Long", "i64")
float16 = dtype("float16", np.float16, FLOAT, "Half", "f16")
bfloat16 = dtype("bfloat16", ml_dtypes.bfloat16, FLOAT, "BFloat16", "bf16")
float32 = dtype("float32", np.float32, FLOAT, "Float", "f32")
float64 = dtype("float64", np.float64, FLOAT, "Double", "f64")

ALL = (bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64)
ALIASES = {"half": float16, "float": float32, "double": float64, "short": int16, "int": int32, "long": int64}
_NAMED = {d.name: d for d in ALL}
_FROM_NUMPY = {d.numpy: d for d in ALL}
_PYTHON = {bool: bool_, int: int64, float: float64}
HALF = frozenset((float16.numpy, bfloat16.numpy))


def by_name(name: str) -> dtype:
    """The dtype called `name` (also the anchor for pickling)."""
    return _NAMED[name]


_default = float32


def get_default_dtype() -> dtype:
    """The dtype of `tensor(1.5)`, of `zeros(3)` and of true division of integers."""
    return _default


def set_default_dtype(d: dtype, /) -> None:
    """Make `d`, a floating-point dtype, the default."""
    global _default
    if not isinstance(d, dtype) or not d.is_floating_point:
        raise TypeError(f"only floating-point types are supported as the default type, got {d!r}")
    _default = d


def from_numpy(numpy_dtype: Any) -> dtype:
    """Our dtype for a NumPy dtype; TypeError for what tensors cannot hold."""
    if isinstance(numpy_dtype, np.dtype) and (found := _FROM_NUMPY.get(numpy_dtype)) is not None:
        return found  # the usual case at once
    found = _FROM_NUMPY.get(np.dtype(numpy_dtype).newbyteorder("="))
    if found is None:
        supported = ", ".join(d.name for d in ALL)
        raise TypeError(f"can't convert a NumPy array of type {numpy_dtype} to a tensor; supported types are: {supported}")
    return found


def as_dtype(value: Any) -> dtype:
    """A dtype from a dtype, a Python type or a NumPy type."""
    if isinstance(value, dtype):
        return value
    if isinstance(value, type) and value in _PYTHON:
        return _PYTHON[value]
    if value is None or isinstance(value, str):
        raise TypeError(f"expected a dtype such as tapejit.float32, got {value!r}")
    try:
        return from_numpy(value)
    except TypeError:
        raise TypeError(f"expected a dtype such as tapejit.float32, got {value!r}") from None


def of_number(value: bool | int | float) -> dtype:
    """The dtype a Python number stands for: bool, int64 or the default float."""
    if isinstance(value, (bool, np.bool_)):
        return bool_
    if isinstance(value, (int, np.integer)):
        return int64
    if not hasattr(value, "__float__"):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return _default


_INT_ORDER = {int8: 0, int16: 1, int32: 2, int64: 3}
_FLOAT_ORDER = {float16: 0, bfloat16: 0, float32: 1, float64: 2}


def promote_types(type1: dtype, type2: dtype) -> dtype:
    """The smallest dtype both fit in, by PyTorch's table."""
    a, b = type1, type2
    if a is b:
        return a
    try:
        if a.category != b.category:
            return a if a.category > b.category else b
    except AttributeError:
        raise TypeError(f"promote_types(): expected two dtypes such as tapejit.float32, got {a!r} and {b!r}") from None
    if a.category == FLOAT:
        if _FLOAT_ORDER[a] == _FLOAT_ORDER[b]:
            return float32  # float16 with bfloat16
        return a if _FLOAT_ORDER[a] > _FLOAT_ORDER[b] else b
    if a is uint8 or b is uint8:
        other = b if a is uint8 else a
        return int16 if other is int8 else other
    return a if _INT_ORDER[a] > _INT_ORDER[b] else b


def combine(higher: dtype | None, lower: dtype | None) -> dtype | None:
    """Let a weaker operand (0-dim tensor, Python number) take part: only a higher category changes the result."""
    if higher is None or lower is None:
        return higher or lower
    if lower.category > higher.category:
        return promote_types(higher, lower)
    return higher


def can_cast(from_: dtype, to: dtype) -> bool:
    """True if an in-place result of one dtype may be stored in another: never downwards in category."""
    return from_.category <= to.category


class finfo:  # noqa: N801
    """Limits of a floating-point dtype."""

    def __init__(self, type: dtype | None = None) -> None:
        d = type or _default
        if not d.is_floating_point:
            raise TypeError(f"finfo() requires a floating point input type, got {d}. Use iinfo for integers.")
        info: Any = ml_dtypes.finfo(d.numpy)  # type: ignore[no-untyped-call]
        self.dtype, self.bits = d.name, d.itemsize * 8
        self.max, self.min = float(info.max), float(info.min)
        self.eps, self.tiny = float(info.eps), float(info.smallest_normal)
        self.smallest_normal, self.resolution = self.tiny, 10.0**-info.precision

    def __repr__(self) -> str:
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, "
            f"smallest_normal={self.smallest_normal:g}, tiny={self.tiny:g}, dtype={self.dtype})"
        )


class iinfo:  # noqa: N801
    """Limits of an integer dtype."""

    def __init__(self, type: dtype) -> None:
        if type.category != INTEGER:
            raise TypeError(f"iinfo() requires an integer input type, got {type}. Use finfo for floats.")
        info = np.iinfo(type.numpy)
        self.dtype, self.bits, self.max, self.min = type.name, type.itemsize * 8, int(info.max), int(info.min)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


def representable(name: str, kind: dtype, value: Any) -> Any:
    """A number as a dtype can hold it; an error where it would overflow."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"{name}(): the value must be a number, not {type(value).__name__}")
    if kind.category == FLOAT:
        found = float(value)
        fits = abs(found) <= largest(kind) or not math.isfinite(found)
    elif kind.category == BOOL:
        return bool(value)
    else:
        limits = np.iinfo(kind.numpy)
        low = limits.min or -limits.max  # unsigned ones wrap round, as in PyTorch
        fits = math.isfinite(value) and low <= int(value) <= limits.max
        found = int(value) % (limits.max + 1) if fits and limits.min == 0 else int(value) if fits else 0
    if not fits:
        raise RuntimeError(f"{name}: value {value} cannot be converted to type {kind.name} without overflow")
    return found


@functools.cache
def largest(kind: dtype) -> float:
    return float(finfo(kind).max)
