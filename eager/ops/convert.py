"""Between tensors and the outside: dtype and device conversion, NumPy, Python numbers, DLPack; detach and clone."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import devices, dtypes
from ..op import apply, primitive, public, write
from ..samples import A, sample
from ..tensor import Tensor, versions_of, wrap
from .movement import CLONE
from .pointwise import cast

TRANSFER = primitive(
    "transfer",
    "opaque",
    lambda xp, x, *, device, source: devices.move(x, device),
    grad={"x": lambda g, source: transfer(g, source)},
)


def transfer(x: Tensor, where: devices.device) -> Tensor:
    """The tensor on another device; itself if it is there."""
    if x.device == where:
        return x
    return apply(TRANSFER, (x,), {"device": where, "source": x.device})  # type: ignore[no-any-return]


@public(samples=[sample(A(2, 3))], op=CLONE)
def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A copy with its own memory, through which gradients flow."""
    return apply(CLONE, (input,))  # type: ignore[no-any-return]


def detach(self: Tensor) -> Tensor:
    """The same memory without the history."""
    t = wrap(self._array)
    t._versions = versions_of(self)
    return t


def detach_(self: Tensor) -> Tensor:
    """Forget the history, in place."""
    if self._base is not None:
        raise RuntimeError("Can't detach views in-place. Use detach() instead.")
    self._node, self._requires_grad = None, False
    self._rebased += 1
    return self


def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`to(dtype)`, `to(device)`, `to(device, dtype)`, `to(other)`; also by keyword, with `copy=True` for a sure copy."""
    where, dtype = kwargs.get("device"), kwargs.get("dtype")
    flags: list[Any] = []
    for a in args:
        if isinstance(a, Tensor):
            where, dtype = a.device, a.dtype
        elif isinstance(a, (str, devices.device)) or (isinstance(a, int) and not isinstance(a, bool)):
            where = a
        elif isinstance(a, bool):
            flags.append(a)
        elif a is not None:
            dtype = a
    found = self
    if where is not None:
        found = transfer(found, devices.as_device(where))
    if dtype is not None:
        found = cast(found, dtypes.as_dtype(dtype))
    copy = kwargs.get("copy", flags[1] if len(flags) > 1 else False)
    return found.clone() if copy and found is self else found  # type: ignore[no-any-return]


def type_(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The tensor's type as a string, or the tensor converted to a dtype, a type name or a legacy tensor type."""
    if dtype is None:
        return f"tapejit.{'cuda.' if self.is_cuda else ''}{self.dtype.legacy}Tensor"
    if isinstance(dtype, str):
        name = dtype.rpartition(".")[2]
        found = next((d for d in dtypes.ALL if f"{d.legacy}Tensor" == name), None)
        if found is None:
            raise ValueError(f"invalid type: '{dtype}'; expected a name such as 'tapejit.FloatTensor'")
        return cast(self, found)
    return cast(self, getattr(dtype, "tensor_dtype", None) or dtypes.as_dtype(dtype))


def cuda(self: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
    """The tensor on a GPU."""
    return transfer(self, devices.as_device("cuda" if device is None else device))


def cpu(self: Tensor) -> Tensor:
    """The tensor on the CPU."""
    return transfer(self, devices.CPU)


def numpy(self: Tensor, *, force: bool = False) -> np.ndarray[Any, Any]:
    """A NumPy array on the same memory."""
    if force:
        return devices.to_numpy(self._array)
    if self.requires_grad:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    if self.is_cuda:
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return self._array  # type: ignore[no-any-return]


def item(self: Tensor) -> Any:
    """The value of a tensor with one element, as a Python number."""
    if self._array.size != 1:
        raise RuntimeError(f"a Tensor with {self._array.size} elements cannot be converted to Scalar")
    value = devices.to_numpy(self._array).reshape(())[()]
    return float(value) if self._array.dtype in dtypes.HALF else value.item()


def tolist(self: Tensor) -> Any:
    """The values as nested lists of Python numbers."""
    array = devices.to_numpy(self._array)
    return (array.astype(np.float32) if array.dtype in dtypes.HALF else array).tolist()


def array_protocol(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    array = numpy(self)
    if dtype is not None and np.dtype(dtype) != array.dtype:
        return array.astype(dtype)
    return array.copy() if copy else array


def dlpack(self: Tensor, **kwargs: Any) -> Any:
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    return self._array.__dlpack__(**kwargs)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on a NumPy array's memory: a change to either shows in both."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    dtypes.from_numpy(array.dtype)
    if not array.dtype.isnative:
        raise ValueError(f"from_numpy: the array's byte order ({array.dtype}) is not the machine's; use array.astype('=')")
    return wrap(array.view(np.ndarray) if type(array) is not np.ndarray else array)


def from_dlpack(source: Any) -> Tensor:
    """A tensor on the memory of anything that speaks DLPack."""
    kind = source.__dlpack_device__()[0]
    if kind in (2, 13):
        array = devices.module_for(devices.as_device("cuda")).from_dlpack(source)
    else:
        array = np.from_dlpack(source)
    dtypes.from_numpy(array.dtype)
    return wrap(array)


def _converter(dtype: dtypes.dtype) -> Any:
    def method(self: Tensor) -> Tensor:
        return cast(self, dtype)

    method.__doc__ = f"The tensor as {dtype.name}."
    return method


def copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Write another tensor's values into this one, broadcast and converted."""
    if not isinstance(src, Tensor):
        raise TypeError(f"copy_(): argument 'src' must be Tensor, not {type(src).__name__}")
    return write(self, transfer(src, self.device), "copy_", convert=True)


def fill_(self: Tensor, value: Any) -> Tensor:
    """Set every element to a number or a 0-dim tensor."""
    if isinstance(value, Tensor):
        if value._array.ndim:
            raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got tensor with {value._array.ndim} dimensions.")
        return copy_(self, value)
    return write(self, self.new_full((), value), "fill_", convert=True)


def zero_(self: Tensor) -> Tensor:
    """Set every element to 0."""
    return fill_(self, 0)


def get_data(self: Tensor) -> Tensor:
    return wrap(self._array)


def set_data(self: Tensor, value: Tensor) -> None:
    """`x.data = y`: x shows y's memory from now on."""
    self._array = value._array
    self._versions = None


def truth(self: Tensor) -> bool:
    if self._array.size != 1:
        word = "more than one value" if self._array.size else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {word} is ambiguous; use .any() or .all()")
    return bool(item(self))


def index(self: Tensor) -> int:
    if self._array.dtype.kind not in "biu" or self._array.size != 1:
        raise TypeError("only integer tensors of a single element can be converted to an index")
    return int(item(self))


def format_(self: Tensor, spec: str) -> str:
    return format(item(self), spec) if self._array.ndim == 0 else object.__format__(self, spec)


def deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
    if self._node is not None:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment. "
            "Use .detach().clone() of a computed one."
        )
    if id(self) in memo:
        return memo[id(self)]  # type: ignore[no-any-return]
    t = object.__new__(type(self))
    t._array = self._array.copy()
    memo[id(self)] = t
    t._requires_grad = self._requires_grad
    if self._grad is not None:
        t._grad = deepcopy(self._grad, memo)
    return t


def reduce_ex(self: Tensor, protocol: Any) -> Any:
    if self._node is not None:
        raise RuntimeError("only leaf tensors can be pickled; use .detach() first")
    return (rebuild, (type(self), devices.to_numpy(self._array), str(self.device), self._requires_grad))


def rebuild(cls: type[Tensor], array: Any, where: str, requires_grad: bool) -> Tensor:
    t = object.__new__(cls)
    t._array = devices.move(array, devices.as_device(where))
    t._requires_grad = requires_grad
    return t


def attach() -> None:
    methods = {
        "detach": detach, "detach_": detach_, "to": to, "type": type_, "cuda": cuda, "cpu": cpu, "numpy": numpy,
        "item": item, "tolist": tolist, "copy_": copy_, "fill_": fill_, "zero_": zero_,
        "data": property(get_data, set_data), "__array__": array_protocol, "__dlpack__": dlpack,
        "__dlpack_device__": lambda self: self._array.__dlpack_device__(),
        "__bool__": truth, "__index__": index, "__float__": lambda self: float(item(self)), "__int__": lambda self: int(item(self)),
        "__format__": format_, "__deepcopy__": deepcopy, "__reduce_ex__": reduce_ex,
        "type_as": lambda self, other: to(self, other),
        "bool": _converter(dtypes.bool_), "byte": _converter(dtypes.uint8), "char": _converter(dtypes.int8),
        "bfloat16": _converter(dtypes.bfloat16),
    }  # fmt: skip
    methods.update({name: _converter(d) for name, d in dtypes.ALIASES.items()})
    for name, method in methods.items():
        setattr(Tensor, name, method)


attach()
