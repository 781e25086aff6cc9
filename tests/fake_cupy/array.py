"""The array type: wraps a NumPy array that nothing outside this package gets hold of."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import numpy as np

from .device import Device, check, local

BFLOAT16 = "bfloat16"


class Flags:
    """The flags CuPy has; `writeable` is not one of them."""

    def __init__(self, array: ndarray) -> None:
        self.c_contiguous = array._np.flags.c_contiguous
        self.f_contiguous = array._np.flags.f_contiguous
        self.owndata = array.base is None
        self.fnc = array._np.flags.fnc
        self.forc = array._np.flags.forc


class Block:
    """A memory that arrays show, however they came to; it lives as long as one of them refers to it."""

    __slots__ = ("_np",)

    def __init__(self, array: np.ndarray) -> None:
        self._np = array


class Pointer:
    """Address at which an array begins. As CuPy's, it refers to the memory."""

    __slots__ = ("_np", "device_id", "mem")

    def __init__(self, array: np.ndarray, device: int, mem: Any) -> None:
        self._np = array
        self.device_id = device
        self.mem = mem

    ptr = property(lambda self: self._np.ctypes.data)


def wrap(value: Any, device: int | None = None, base: Any = None) -> ndarray:
    """An array of this package around a NumPy array or scalar."""
    array = object.__new__(ndarray)
    array._np = np.asarray(value)
    array._device = local.current if device is None else device
    array.base = base
    array.data = Pointer(array._np, array._device, Block(array._np) if base is None else base.data.mem)
    return array


def unwrap(value: Any) -> Any:
    """The NumPy array inside, for a kernel on the current device; NumPy's own arrays are refused."""
    if isinstance(value, ndarray):
        check(value._device)
        return value._np
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}: a NumPy array of shape {value.shape} where CuPy wants its own")
    if type(value) in (tuple, list):
        return type(value)(unwrap(v) for v in value)
    if isinstance(value, slice):
        return slice(*(None if v is None else int(v) for v in (value.start, value.stop, value.step)))
    return value


def wrapped(result: Any, sources: tuple[Any, ...] = ()) -> Any:
    """A NumPy result as CuPy returns it: 0-dim arrays for scalars, views that know their base, plain tuples."""
    if isinstance(result, (tuple, list)):
        return (list if isinstance(result, list) else tuple)(wrapped(r, sources) for r in result)
    if isinstance(result, (np.ndarray, np.generic, bool, int, float)):
        base = None
        if isinstance(result, np.ndarray) and result.base is not None:
            base = next((s for s in sources if isinstance(s, ndarray) and np.may_share_memory(result, s._np)), None)
        return wrap(result, base=base)
    return result


def quiet() -> contextlib.AbstractContextManager[Any]:
    """A GPU does not warn."""
    return np.errstate(all="ignore")


class ndarray:  # noqa: N801 -- CuPy's name
    """An array on a pretended GPU."""

    __slots__ = ("__weakref__", "_device", "_np", "base", "data")
    __array_ufunc__ = None
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    _np: np.ndarray
    _device: int
    base: Any
    data: Any

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C") -> None:
        self._device, self.base = local.current, None
        if memptr is None:
            self._np = garbage(np.empty(shape, dtype, order))
            self.data = Pointer(self._np, self._device, Block(self._np))
            return
        model = (
            np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides) if strides else np.empty(shape, dtype, order)
        )
        low, high = np.lib.array_utils.byte_bounds(model)
        raw = (ctypes.c_char * max(high - low, 1)).from_address(memptr.ptr)
        self._np, self.data = np.ndarray(shape, dtype, raw, 0, model.strides), memptr

    # ---- what it is

    dtype = property(lambda self: self._np.dtype)
    ndim = property(lambda self: self._np.ndim)
    size = property(lambda self: self._np.size)
    itemsize = property(lambda self: self._np.itemsize)
    nbytes = property(lambda self: self._np.nbytes)
    strides = property(lambda self: self._np.strides)
    device = property(lambda self: Device(self._device))
    flags = property(Flags)
    T = property(lambda self: self._view(self._np.T))
    mT = property(lambda self: self._view(self._np.mT))  # noqa: N815

    @property
    def shape(self) -> tuple[int, ...]:
        return self._np.shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        found = self._np.reshape(shape)
        assert np.may_share_memory(found, self._np), "incompatible shape for a non-contiguous array"
        self._np = found

    def _view(self, array: np.ndarray) -> ndarray:
        return wrap(array, self._device, self if self.base is None else self.base)

    # ---- no way to NumPy but get()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} was given an array of the GPU: call it as xp.{function.__name__}")

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> np.ndarray:
        return self._np.copy()

    def item(self) -> Any:
        return self._np.item()

    def tolist(self) -> Any:
        return self._np.tolist()

    def __bool__(self) -> bool:
        return bool(self._np)

    def __int__(self) -> int:
        return int(self._np)

    def __float__(self) -> float:
        return float(self._np)

    def __index__(self) -> int:
        return self._np.__index__()

    def __len__(self) -> int:
        return len(self._np)

    def __iter__(self) -> Any:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"fake_cupy.{self._np!r}"

    def __reduce__(self) -> Any:
        return (wrap, (self._np, self._device))

    def __deepcopy__(self, memo: Any) -> ndarray:
        return self.copy()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._device)

    def __dlpack__(self, **kwargs: Any) -> Any:
        raise BufferError("the stand-in has no GPU memory to export")

    # ---- indexing

    def __getitem__(self, index: Any) -> ndarray:
        places, advanced = prepared(self, index)
        found = self._np[places]
        if not advanced:
            return self._view(found)
        check(self._device)
        return wrap(found)

    def __setitem__(self, index: Any, value: Any) -> None:
        check(self._device)
        if isinstance(value, np.ndarray) and value.ndim:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        source = unwrap(value) if isinstance(value, ndarray) else value
        if not isinstance(value, (ndarray, bool, int, float, np.generic, np.ndarray)):
            raise TypeError(f"Unsupported type {type(value)}")
        places, advanced = prepared(self, index)
        with quiet():
            if not advanced:
                target = self._np[places]
                refuse_overlap(target, source)
                target[...] = squeezed(source, target.ndim)
            elif any(isinstance(p, np.ndarray) and p.dtype.kind != "b" for p in places) and np.ndim(source):
                scattered = element_numbers(self._np, places)
                values = np.broadcast_to(squeezed(source, scattered.ndim), scattered.shape)
                target, spots = spots_of(self._np, scattered.reshape(-1)[::-1])
                target[spots] = values.reshape(-1)[::-1]  # of two values for one place, another one wins than in NumPy
            else:
                self._np[places] = source

    # ---- methods

    def astype(self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: Any = True) -> ndarray:
        if casting is not None or subok is not None:
            raise TypeError("casting and subok are not supported yet")
        check(self._device)
        if not copy and self._np.dtype == np.dtype(dtype):
            return self
        with quiet():
            return wrap(self._np.astype(dtype, order=order or "K"))

    def copy(self, order: str = "C") -> ndarray:
        """A copy on the current device, wherever this array is."""
        return wrap(self._np.copy(order=order))

    def view(self, dtype: Any = None, type: Any = None) -> ndarray:
        return self._view(self._np.view() if dtype is None else self._np.view(dtype))

    def fill(self, value: Any) -> None:
        check(self._device)
        self._np.fill(unwrap(value) if isinstance(value, ndarray) else value)

    def reshape(self, *shape: Any, order: str = "C", copy: Any = None) -> ndarray:
        found = self._np.reshape(*shape, order=order)
        return self._view(found) if np.may_share_memory(found, self._np) else wrap(found)

    def ravel(self, order: str = "C") -> ndarray:
        found = self._np.ravel(order)
        return self._view(found) if np.may_share_memory(found, self._np) else wrap(found)

    def flatten(self, order: str = "C") -> ndarray:
        return wrap(self._np.flatten(order))

    def transpose(self, *axes: Any) -> ndarray:
        return self._view(self._np.transpose(*axes))

    def swapaxes(self, axis1: int, axis2: int) -> ndarray:
        return self._view(self._np.swapaxes(axis1, axis2))

    def squeeze(self, axis: Any = None) -> ndarray:
        return self._view(self._np.squeeze(axis))

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
        return self._view(self._np.diagonal(offset, axis1, axis2))

    def scatter_add(self, slices: Any, value: Any) -> None:
        from .ufuncs import UFUNCS

        UFUNCS["add"].at(self, slices, value)

    def sort(self, axis: int = -1, kind: Any = None) -> None:
        if not self._np.flags.c_contiguous:
            raise NotImplementedError("Sorting non-contiguous array is not supported.")
        self._np[...] = self._function("sort", self, axis=axis, kind=kind)._np

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> ndarray:
        return self._function("clip", self, min, max, out=out)

    @staticmethod
    def _function(name: str, *args: Any, **kwargs: Any) -> Any:
        from .functions import FUNCTIONS

        return FUNCTIONS[name](*args, **kwargs)


# ---- methods that are functions


def _method(name: str, parameters: tuple[str, ...]) -> Any:
    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        kwargs.update(zip(parameters, args, strict=False))
        if len(args) > len(parameters) or not set(kwargs) <= set(parameters):
            raise TypeError(f"ndarray.{name}() takes only {parameters}, got {args} and {kwargs}")
        return ndarray._function(name, self, **kwargs)

    method.__name__ = name
    return method


METHODS = {
    **dict.fromkeys(("all", "any", "max", "min", "ptp"), ("axis", "out", "keepdims")),
    **dict.fromkeys(("sum", "prod", "mean"), ("axis", "dtype", "out", "keepdims")),
    **dict.fromkeys(("var", "std"), ("axis", "dtype", "out", "ddof", "keepdims")),
    **dict.fromkeys(("argmax", "argmin"), ("axis", "out", "dtype", "keepdims")),
    **dict.fromkeys(("cumsum", "cumprod"), ("axis", "dtype", "out")),
    "argsort": ("axis", "kind"),
    "argpartition": ("kth", "axis"),
    "dot": ("b", "out"),
    "nonzero": (),
    "put": ("ind", "v", "mode"),
    "repeat": ("repeats", "axis"),
    "round": ("decimals", "out"),
    "searchsorted": ("v", "side", "sorter"),
    "take": ("indices", "axis", "out"),
    "trace": ("offset", "axis1", "axis2", "dtype", "out"),
}
for _name, _parameters in METHODS.items():
    setattr(ndarray, _name, _method(_name, _parameters))


# ---- operators

OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "left_shift", "rshift": "right_shift", "matmul": "matmul",
}  # fmt: skip
COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
UNARY = {"neg": "negative", "abs": "absolute", "invert": "invert", "pos": "positive"}


def _operator(name: str, order: tuple[int, ...], in_place: bool = False) -> Any:
    def method(self: ndarray, *others: Any) -> Any:
        from .functions import FUNCTIONS
        from .ufuncs import UFUNCS

        function: Any = UFUNCS.get(name) or FUNCTIONS[name]
        operands = [(self, *others)[i] for i in order]
        return function(*operands, out=self) if in_place else function(*operands)

    return method


for _name, _ufunc in OPERATORS.items():
    setattr(ndarray, f"__{_name}__", _operator(_ufunc, (0, 1)))
    setattr(ndarray, f"__r{_name}__", _operator(_ufunc, (1, 0)))
    if _name != "matmul":
        setattr(ndarray, f"__i{_name}__", _operator(_ufunc, (0, 1), in_place=True))
for _name, _ufunc in COMPARISONS.items():
    setattr(ndarray, f"__{_name}__", _operator(_ufunc, (0, 1)))
for _name, _ufunc in UNARY.items():
    setattr(ndarray, f"__{_name}__", _operator(_ufunc, (0,)))


# ---- helpers


def prepared(array: ndarray, index: Any) -> tuple[tuple[Any, ...], bool]:
    """An index as NumPy takes it, with array indices wrapped around, and whether it takes a kernel (not a view)."""
    parts = list(index) if isinstance(index, tuple) else [index]
    arrays = [i for i, p in enumerate(parts) if not (p is None or p is Ellipsis or isinstance(p, slice) or is_integer(p))]
    for i in arrays:
        part = parts[i]
        if isinstance(part, ndarray):
            check(part._device)
            part = part._np
        parts[i] = np.asarray(part, np.int64 if isinstance(part, (list, tuple)) and not len(part) else None)
        if parts[i].dtype.kind not in "biu":
            raise IndexError("arrays used as indices must be of integer or boolean type")
    used = sum(
        0 if p is None or p is Ellipsis else p.ndim if isinstance(p, np.ndarray) and p.dtype.kind == "b" else 1 for p in parts
    )
    if used > array.ndim:
        raise IndexError(f"too many indices for array: array is {array.ndim}-dimensional, but {used} were indexed")
    if not any(p is Ellipsis for p in parts):
        parts.append(Ellipsis)
    axis = 0
    for i, part in enumerate(parts):
        if part is None:
            continue
        if part is Ellipsis:
            axis += array.ndim - used
        elif isinstance(part, np.ndarray) and part.dtype.kind == "b":
            axis += part.ndim
        else:
            if isinstance(part, np.ndarray) and array.shape[axis]:
                parts[i] = part % array.shape[axis]
            elif isinstance(part, slice):
                parts[i] = unwrap(part)
            axis += 1
    return tuple(parts), bool(arrays)


def is_integer(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def element_numbers(array: np.ndarray, places: Any) -> np.ndarray:
    """Return the elements, counted in order, that an index names."""
    return np.arange(array.size).reshape(array.shape)[places]


def spots_of(array: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, Any]:
    """The array, at least 1-dim, and the places of elements counted in order."""
    target = array.reshape(1) if array.ndim == 0 else array
    return target, np.unravel_index(numbers, target.shape)


def squeezed(value: Any, ndim: int) -> Any:
    """Assignment drops leading dims of length 1 that are too many."""
    while np.ndim(value) > ndim and np.shape(value)[0] == 1:
        value = value[0]
    return value


def refuse_overlap(target: np.ndarray, source: Any) -> None:
    """Two contiguous runs of memory are copied as they are, so they must not overlap."""
    if not isinstance(source, np.ndarray) or source.shape != target.shape or source.dtype != target.dtype:
        return
    if source.flags.c_contiguous and target.flags.c_contiguous and source.ctypes.data != target.ctypes.data:
        assert not np.shares_memory(source, target), "CuPy copies overlapping memory in any order: copy the source first"


def garbage(array: np.ndarray) -> np.ndarray:
    """Memory nobody has written yet."""
    array.fill(np.nan if array.dtype.kind in "fV" or array.dtype.name == BFLOAT16 else 77 if array.dtype.kind in "iu" else True)
    return array
