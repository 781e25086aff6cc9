"""Between tensors and the outside: dtype and device conversion, NumPy, Python numbers, DLPack; detach and clone."""

from __future__ import annotations

import copy
import ctypes
from typing import Any

import numpy as np

from ..arrays import devices, dtypes
from ..arrays.deferred import DeferredArray, resolve_array
from ..arrays.exported_memory import ExportRecord, export_array, export_forever, import_array
from ..arrays.op_samples import A, sample
from ..core.cast import cast
from ..core.dispatch import apply, write
from ..core.index_range import note_transfer
from ..core.op import primitive
from ..core.registration import public
from ..core.tape.node import local
from ..core.tensor import Tensor, tensor_changed, versions_of, wrap
from .pointwise import is_number
from .shape.views import CLONE

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
    found: Tensor = apply(TRANSFER, (x,), {"device": where, "source": x.device})
    if type(x.tj_array) is np.ndarray and not isinstance(found.tj_array, DeferredArray):
        note_transfer(found, x.tj_array)
    return found


@public(samples=[sample(A(2, 3))], op=CLONE)
def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A copy with its own memory, through which gradients flow."""
    return apply(CLONE, (input,))  # type: ignore[no-any-return]


def detach(self: Tensor) -> Tensor:
    """The same memory without the history."""
    t = wrap(self.tj_array)
    t.tj_versions = versions_of(self)
    if self.tj_inference:
        t.tj_inference = True
    return t


def detach_(self: Tensor) -> Tensor:
    """Forget the history, in place."""
    if self.tj_base is not None:
        raise RuntimeError("Can't detach views in-place. Use detach() instead.")
    self.tj_node, self.tj_requires_grad = None, False
    tensor_changed()
    return self


def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`to(dtype)`, `to(device)`, `to(device, dtype)`, `to(other)`; also by keyword, with `copy=True` for a sure copy."""
    where, dtype, fresh = parse_to_arguments(args, kwargs)
    found = self
    if where is not None:
        found = transfer(found, devices.as_device(where))
    if dtype is not None:
        found = cast(found, dtypes.as_dtype(dtype))
    return found.clone() if fresh and found is self else found  # type: ignore[no-any-return]


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """The tensor in the dtype, and on the device, of another."""
    if not isinstance(other, Tensor):
        raise TypeError(f"type_as(): argument 'other' must be Tensor, not {type(other).__name__}")
    return to(self, other)


def parse_to_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, bool]:
    """(device or None, dtype or None, copy) from the arguments of `to`."""
    rest, found = list(args), dict(kwargs)
    if rest and isinstance(rest[0], Tensor):
        found["other"] = rest.pop(0)
    elif rest and is_device_like(rest[0]):
        found["device"] = rest.pop(0)
        if rest and not isinstance(rest[0], bool):
            found["dtype"] = rest.pop(0)
    elif rest:
        found["dtype"] = rest.pop(0)
    found.update(zip(("non_blocking", "copy"), rest, strict=False))
    unknown = found.keys() - {"other", "device", "dtype", "non_blocking", "copy", "memory_format"}
    dtype = found.get("dtype")
    if unknown or len(rest) > 2 or not all(isinstance(flag, bool) for flag in rest) or isinstance(dtype, str):
        shown = [type(a).__name__ for a in args] + [f"{k}={type(v).__name__}" for k, v in kwargs.items()]
        raise TypeError(
            f"to() received an invalid combination of arguments - got ({', '.join(shown)}), but expected one of: "
            "(device, dtype, non_blocking, copy), (dtype, non_blocking, copy), (other, non_blocking, copy)"
        )
    other = found.get("other")
    if other is not None:
        return other.device, other.dtype, bool(found.get("copy"))
    return found.get("device"), dtype, bool(found.get("copy"))


def is_device_like(value: Any) -> bool:
    return isinstance(value, (str, devices.device)) or (isinstance(value, int) and not isinstance(value, bool))


def type_(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The tensor's type as a string, or the tensor converted to a dtype, a type name or a legacy tensor type."""
    if dtype is None:
        return f"tapejit.{'cuda.' if self.is_cuda else ''}{self.dtype.legacy}Tensor"
    if isinstance(dtype, str):
        name = dtype.rpartition(".")[2]
        found = next((d for d in dtypes.ALL if f"{d.legacy}Tensor" == name), None)
        if found is None:
            raise ValueError(f"invalid type: '{dtype}'; expected a name such as 'tapejit.FloatTensor'")
        return cast(on_device(self, "cuda." in dtype), found)
    if hasattr(dtype, "tensor_dtype"):
        return cast(on_device(self, dtype.on_cuda), dtype.tensor_dtype)
    return cast(self, dtypes.as_dtype(dtype))


def on_device(self: Tensor, is_cuda: bool) -> Tensor:
    """The tensor on the kind of device that a legacy type stands for."""
    return self if self.is_cuda == is_cuda else transfer(self, devices.as_device("cuda" if is_cuda else "cpu"))


def cuda(self: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
    """The tensor on a GPU."""
    return transfer(self, devices.as_device("cuda" if device is None else device))


def cpu(self: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor on the CPU."""
    return transfer(self, devices.CPU)


def numpy(self: Tensor, *, force: bool = False) -> np.ndarray[Any, Any]:
    """A NumPy array on the same memory; with `force` on a copy where it cannot be the same."""
    if not force:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        if self.is_cuda:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
                "first."
            )
    array = devices.to_numpy(self.tj_array)
    if array is not self.tj_array:
        return array
    flush_deferred_reads()
    return export_array(array, versions_of(self))


def flush_deferred_reads() -> None:
    """Run deferred ops, which read the memory, before it is exported to somebody who may write it."""
    if local.state.tracer is not None:
        local.state.tracer.flush("memory is shared with NumPy")


def item(self: Tensor) -> Any:
    """The value of a tensor with one element, as a Python number."""
    if self.tj_array.size != 1:
        raise RuntimeError(f"a Tensor with {self.tj_array.size} elements cannot be converted to Scalar")
    value = devices.to_numpy(self.tj_array).reshape(())[()]
    return float(value) if self.tj_array.dtype in dtypes.HALF else value.item()


def tolist(self: Tensor) -> Any:
    """The values as nested lists of Python numbers."""
    array = devices.to_numpy(self.tj_array)
    return (array.astype(np.float32) if array.dtype in dtypes.HALF else array).tolist()


# ---- protocols


def array_protocol(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    """`np.asarray(tensor)` shares its memory."""
    array = numpy(self)
    if dtype is not None and np.dtype(dtype) != array.dtype:
        if copy is False:
            raise ValueError(f"Unable to avoid copy while creating an array of {np.dtype(dtype)} from a tensor of {self.dtype}")
        return array.astype(dtype)
    return array.copy() if copy else array


def array_wrap(self: Tensor, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
    """`np.sin(tensor)` is a tensor."""
    array = np.asarray(array)
    return from_numpy(array) if array.dtype in dtypes._FROM_NUMPY else array


def buffer(self: Tensor, flags: int) -> memoryview:
    """`memoryview(tensor)`, on Pythons (3.12 and later) that let a class say so."""
    if self.requires_grad or self.is_cuda or self.dtype is dtypes.bfloat16:
        raise BufferError(
            f"a buffer needs a CPU tensor that does not require grad, of a dtype Python knows; this is {self.type()}"
        )
    array = resolve_array(self.tj_array)
    flush_deferred_reads()
    export_forever(versions_of(self))
    return memoryview(array)


# DLPack's number for bfloat16, which NumPy does not know: for its sake such tensors pass through it as 16-bit integers.
DLPACK_UINT, DLPACK_BFLOAT = 1, 4
# The offset of the dtype's code in what a capsule of each name points to: DLManagedTensor, DLManagedTensorVersioned.
DLPACK_CODE = {b"dltensor": 20, b"dltensor_versioned": 52}


def dlpack_code(capsule: Any) -> Any:
    """The dtype's code inside a DLPack capsule, as a byte that can be changed."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    if name not in DLPACK_CODE:
        raise BufferError(f"expected an unused DLPack capsule, got one named {name!r}")
    return ctypes.c_uint8.from_address(api.PyCapsule_GetPointer(capsule, name) + DLPACK_CODE[name])


def dlpack(self: Tensor, **kwargs: Any) -> Any:
    """A DLPack capsule on this tensor's memory."""
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    self.tj_array = resolve_array(self.tj_array)
    flush_deferred_reads()
    export_forever(versions_of(self))
    if self.dtype is not dtypes.bfloat16 or self.is_cuda:
        return self.tj_array.__dlpack__(**kwargs)
    capsule = self.tj_array.view(np.uint16).__dlpack__(**kwargs)
    dlpack_code(capsule).value = DLPACK_BFLOAT
    return capsule


class Capsule:
    """A capsule as the object with methods that `from_dlpack` functions expect; bfloat16 shown as uint16."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.is_bfloat16 = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.source.__dlpack_device__() if hasattr(self.source, "__dlpack_device__") else (1, 0)  # type: ignore[no-any-return]

    def __dlpack__(self, **kwargs: Any) -> Any:
        capsule = self.source
        if hasattr(capsule, "__dlpack__"):
            try:
                capsule = capsule.__dlpack__(**kwargs)
            except TypeError:  # a producer from before DLPack 1.0 knows no keywords
                capsule = capsule.__dlpack__()
        code = dlpack_code(capsule)
        if code.value == DLPACK_BFLOAT:
            code.value, self.is_bfloat16 = DLPACK_UINT, True
        return capsule


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on a NumPy array's memory: a change to either shows in both."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    dtypes.from_numpy(array.dtype)
    if not array.dtype.isnative:
        raise ValueError(
            f"given numpy array has byte order different from the native byte order ({array.dtype}); use array.astype('=')"
        )
    box: list[Any] = [0]
    found = wrap(import_array(array, box))
    found.tj_versions = box
    if local.state.inference:
        found.tj_inference = True
    return found


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor on the memory of anything that speaks DLPack."""
    if not hasattr(ext_tensor, "__dlpack__") and type(ext_tensor).__name__ != "PyCapsule":
        raise TypeError(f"from_dlpack(): expected an object with __dlpack__ or a capsule, got {type(ext_tensor).__name__}")
    source = Capsule(ext_tensor)
    if source.__dlpack_device__()[0] in (2, 13):
        array = devices.module_for(devices.device("cuda")).from_dlpack(ext_tensor)
    else:
        array = np.from_dlpack(source)
        array = array.view(dtypes.bfloat16.numpy) if source.is_bfloat16 else array
    dtypes.from_numpy(array.dtype)
    found = wrap(array)
    export_forever(versions_of(found))
    moved = found if device is None else transfer(found, devices.as_device(device))
    if copy is False and moved is not found:
        raise ValueError(f"from_dlpack: cannot move from {found.device} to {device} without copying")
    return moved.clone() if copy and moved is found else moved  # type: ignore[no-any-return]


def _converter(dtype: dtypes.dtype) -> Any:
    def method(self: Tensor) -> Tensor:
        return cast(self, dtype)

    method.__doc__ = f"The tensor as {dtype.name}."
    return method


def copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Write another tensor's values into this one, broadcast and converted."""
    if is_number(src):
        return fill_(self, src)
    if not isinstance(src, Tensor):
        raise TypeError(f"copy_(): argument 'src' must be Tensor, not {type(src).__name__}")
    return write(self, transfer(src, self.device), "copy_", convert=True)


def fill_(self: Tensor, value: Any) -> Tensor:
    """Set every element to a number or a 0-dim tensor; of a tensor that is expanded, too."""
    once = without_repeats(self)
    if once is not self:
        fill_(once, value)
        return self
    if isinstance(value, Tensor):
        if value.tj_array.ndim:
            raise RuntimeError(
                f"fill_ only supports 0-dimension value tensor but got tensor with {value.tj_array.ndim} dimensions."
            )
        return copy_(self, value)
    if not is_number(value):
        raise TypeError(f"fill_(): argument 'value' must be a number or a 0-dim Tensor, not {type(value).__name__}")
    return write(self, self.new_full((), dtypes.representable("fill_", self.dtype, value)), "fill_", convert=True)


def without_repeats(t: Tensor) -> Tensor:
    """Return a view of what was expanded: dims that repeat the same memory are narrowed to one element."""
    array = t.tj_array
    for dim, (stride, n) in enumerate(zip(array.strides, array.shape, strict=True)):
        if stride == 0 and n > 1 and array.size:
            t = t.narrow(dim, 0, 1)
    return t


def zero_(self: Tensor) -> Tensor:
    """Set every element to 0."""
    return fill_(self, 0)


def get_data(self: Tensor) -> Tensor:
    t = wrap(self.tj_array)
    t.tj_versions = [0, ExportRecord(versions_of(self))]  # type: ignore[list-item]  # a counter of its own
    return t


def set_data(self: Tensor, value: Tensor) -> None:
    """`x.data = y`: x shows y's memory from now on."""
    if local.state.tracer is not None:
        local.state.tracer.graph_break(_set_data, "`data` is assigned", self, value)
    else:
        _set_data(self, value)


def _set_data(self: Tensor, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"Variable data has to be a tensor, but got {type(value).__name__}")
    if self.tj_requires_grad and not value.dtype.is_floating_point:
        raise RuntimeError(f"data set to a tensor that requires gradients must be floating point, this one is {value.dtype}")
    resolve_array(self.tj_array)  # writes that are not counted yet count for the old memory
    self.tj_array = value.tj_array
    self.tj_versions, self.tj_base, self.tj_view_chain, self.tj_undo_chain = None, None, (), ()
    tensor_changed()


# ---- Python's own conversions


def bool_value(self: Tensor) -> bool:
    if self.tj_array.size != 1:
        word = "more than one value" if self.tj_array.size else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {word} is ambiguous; use .any() or .all()")
    return bool(item(self))


def only_element(self: Tensor) -> Any:
    if self.tj_array.size != 1:
        raise ValueError(
            f"only one element tensors can be converted to Python scalars, this one has shape {list(self.shape)}; see tolist()"
        )
    return item(self)


def index(self: Tensor) -> int:
    if self.tj_array.dtype.kind not in "biu" or self.tj_array.size != 1:
        raise TypeError("only integer tensors of a single element can be converted to an index")
    return int(item(self))


def format_(self: Tensor, spec: str) -> str:
    return format(item(self), spec) if self.tj_array.ndim == 0 else object.__format__(self, spec)


# ---- copies and pickles

ENGINE = frozenset(Tensor.__annotations__)  # the attributes of the engine; all others in an instance are the user's


def attributes(self: Tensor) -> dict[str, Any]:
    """Return the attributes that a user has set on a tensor."""
    return {name: value for name, value in self.__dict__.items() if name not in ENGINE}


def shallow_copy(self: Tensor) -> Tensor:
    """`copy.copy`: another leaf on the same memory."""
    t = object.__new__(type(self))
    t.__dict__.update(attributes(self))
    t.tj_array, t.tj_versions, t.tj_requires_grad = self.tj_array, versions_of(self), self.requires_grad
    return t


def deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """`copy.deepcopy`: a leaf of the same class with its own memory, gradient and attributes."""
    if self.tj_node is not None:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment. "
            "Use .detach().clone() of a computed one."
        )
    if id(self) in memo:
        return memo[id(self)]  # type: ignore[no-any-return]
    t = object.__new__(type(self))
    memo[id(self)] = t
    t.tj_array, t.tj_requires_grad = devices.copy(self.tj_array), self.tj_requires_grad
    if self.tj_grad is not None:
        t.tj_grad = deepcopy(self.tj_grad, memo)
    t.__dict__.update(copy.deepcopy(attributes(self), memo))
    return t


def reduce_ex(self: Tensor, protocol: Any) -> Any:
    """Pickles hold values, dtype, device, class and attributes, but no history and no gradient."""
    array = np.ascontiguousarray(devices.to_numpy(self.tj_array)).reshape(self.tj_array.shape)
    return (rebuild, (type(self), array, str(self.device), self.requires_grad), attributes(self) or None)


def rebuild(cls: type[Tensor], array: Any, where: str, requires_grad: bool) -> Tensor:
    t = object.__new__(cls)
    array = array.view(dtypes.from_numpy(array.dtype).numpy)  # unpickled dtypes are equal to NumPy's own, but other objects
    t.tj_array = devices.move(array, devices.as_device(where))
    t.tj_requires_grad = requires_grad
    return t


def attach() -> None:
    methods = {
        "detach": detach, "detach_": detach_, "to": to, "type": type_, "cuda": cuda, "cpu": cpu, "numpy": numpy,
        "item": item, "tolist": tolist, "copy_": copy_, "fill_": fill_, "zero_": zero_,
        "data": property(get_data, set_data), "__array__": array_protocol, "__array_wrap__": array_wrap, "__buffer__": buffer,
        "__dlpack__": dlpack, "__dlpack_device__": lambda self: self.tj_array.__dlpack_device__(),
        "__bool__": bool_value, "__index__": index, "__float__": lambda self: float(only_element(self)),
        "__int__": lambda self: int(only_element(self)), "__complex__": lambda self: complex(only_element(self)),
        "__format__": format_, "__copy__": shallow_copy, "__deepcopy__": deepcopy, "__reduce_ex__": reduce_ex,
        "type_as": type_as,
        "bool": _converter(dtypes.bool_), "byte": _converter(dtypes.uint8), "char": _converter(dtypes.int8),
        "bfloat16": _converter(dtypes.bfloat16),
        "is_cpu": property(lambda self: not self.is_cuda),
        "get_device": lambda self: self.device.index if self.is_cuda else -1,
        "pin_memory": lambda self, device=None: self, "is_pinned": lambda self, device=None: False,
        "share_memory_": lambda self: self, "is_shared": lambda self: False,
        "is_same_size": lambda self, other: self.tj_array.shape == other.tj_array.shape,
    }  # fmt: skip
    methods.update({name: _converter(d) for name, d in dtypes.ALIASES.items()})
    for name, method in methods.items():
        setattr(Tensor, name, method)


attach()
