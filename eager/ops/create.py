"""Factories: tensors from data, constants and ranges."""

from __future__ import annotations

import collections.abc
import math
from typing import Any

import numpy as np

from ..arrays import devices, dtypes
from ..arrays.op_samples import A, I, sample
from ..core.dispatch import apply
from ..core.errors import warn
from ..core.op import primitive
from ..core.python_data import values_of
from ..core.registration import public
from ..core.tape.node import local
from ..core.tensor import Tensor, as_index, wrap
from .convert import from_numpy
from .pointwise import is_number, where
from .shape.reshape import sizes

IGNORED = {"layout", "pin_memory", "memory_format", "names"}  # arguments of PyTorch's factories that mean nothing here

# ---- kernels: the device is an attribute, as there is no input that has one


def run_full(xp: Any, value: Any, *, shape: tuple[int, ...], dtype: dtypes.dtype, device: devices.device) -> Any:
    xp = devices.module_for(device)
    with devices.on(device):
        plain_zero = value == 0 and math.copysign(1.0, value) > 0
        return xp.zeros(shape, dtype.numpy) if plain_zero else xp.full(shape, value, dtype.numpy)


def run_empty(xp: Any, *, shape: tuple[int, ...], dtype: dtypes.dtype, device: devices.device) -> Any:
    with devices.on(device):
        return devices.module_for(device).empty(shape, dtype.numpy)


def run_arange(xp: Any, start: Any, step: Any, *, length: int, dtype: dtypes.dtype, device: devices.device) -> Any:
    xp = devices.module_for(device)
    with devices.on(device):
        values = xp.arange(length, dtype=np.float64 if isinstance(start, float) or isinstance(step, float) else np.int64)
        if step != 1:
            values *= step
        if start != 0:
            values += start
        return values.astype(dtype.numpy, copy=False)


def run_triangle(
    xp: Any, *, rows: int, columns: int, offset: int, lower: bool, dtype: dtypes.dtype, device: devices.device
) -> Any:
    xp = devices.module_for(device)
    with devices.on(device):
        distance = xp.arange(columns)[None, :] - xp.arange(rows)[:, None]
        return xp.stack(xp.nonzero(distance <= offset if lower else distance >= offset)).astype(dtype.numpy, copy=False)


FULL = primitive("full", "create", run_full)
EMPTY = primitive("empty", "create", run_empty)
ARANGE = primitive("arange", "create", run_arange)
TRIANGLE = primitive("triangle_indices", "opaque", run_triangle)

# ---- arguments


def parse_shape(size: tuple[Any, ...], keywords: dict[str, Any], name: str) -> tuple[int, ...]:
    """The shape a factory was asked for, `f(2, 3)`, `f((2, 3))` or `f(size=(2, 3))`, and no unknown keywords."""
    reject_keywords(keywords, name)
    if "size" in keywords:
        return sizes((keywords["size"],))
    if not size:
        raise TypeError(f'{name}() missing 1 required positional arguments: "size"')
    return sizes(tuple(n.item() if isinstance(n, Tensor) and n.tj_array.ndim == 0 else n for n in size))


def reject_keywords(keywords: dict[str, Any], name: str) -> None:
    """Refuse keywords that PyTorch does not know either."""
    unknown = keywords.keys() - IGNORED - {"size"}
    if unknown:
        raise TypeError(f"{name}() got an unexpected keyword argument '{min(unknown)}'")


def check_sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    if any(n < 0 for n in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    return shape


def check_tensor(input: Any, name: str) -> None:
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}(): argument 'input' (position 1) must be Tensor, not {type(input).__name__}")


def as_python_number(value: Any) -> Any:
    """A Python number from a number or a tensor with one element."""
    return value.item() if isinstance(value, (Tensor, np.generic)) else value


def fill_number(value: Any, name: str) -> Any:
    found = as_python_number(value)
    if not isinstance(found, (bool, int, float)):
        raise TypeError(f"{name}(): argument 'fill_value' (position 2) must be Number, not {type(value).__name__}")
    return found


def new_filled(shape: tuple[int, ...], value: Any, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    """A tensor filled with `value`, or with whatever is there if that is None."""
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    attrs = {"shape": check_sizes(shape), "dtype": kind, "device": devices.as_device(device)}
    if value is None:
        found = apply(EMPTY, (), attrs)
    else:
        found = apply(FULL, (value if value == 0 or value == 1 else dtypes.representable("full", kind, value),), attrs)
    return found.requires_grad_() if requires_grad else found  # type: ignore[no-any-return]


# ---- constants


@public(samples=[sample(2, 3, grad=False), sample((4,), grad=False), sample(0, 2, grad=False)], method=False)
def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any) -> Tensor:
    """A tensor of zeros."""
    return new_filled(parse_shape(size, kw, "zeros"), 0, dtype, device, requires_grad)


@public(samples=[sample(2, 3, grad=False), sample((4,), grad=False), sample((), grad=False)], method=False)
def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any) -> Tensor:
    """A tensor of ones."""
    return new_filled(parse_shape(size, kw, "ones"), 1, dtype, device, requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any) -> Tensor:
    """A tensor whose values are whatever was in its memory."""
    return new_filled(parse_shape(size, kw, "empty"), None, dtype, device, requires_grad)


@public(
    samples=[sample((2, 3), 1.5, grad=False), sample((2,), 3, grad=False), sample((), True, grad=False)], method=False, op=FULL
)
def full(
    size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any
) -> Tensor:
    """A tensor filled with a value, of the value's dtype unless told otherwise."""
    reject_keywords(kw, "full")
    if not hasattr(size, "__iter__"):
        raise TypeError(f"full(): argument 'size' (position 1) must be tuple of ints, not {type(size).__name__}")
    value = fill_number(fill_value, "full")
    kind = fill_value.dtype if isinstance(fill_value, Tensor) else dtypes.of_number(value)
    return new_filled(sizes((size,)), value, kind if dtype is None else dtype, device, requires_grad)


def like(input: Any, value: Any, name: str, dtype: Any, device: Any, requires_grad: bool, kw: dict[str, Any]) -> Tensor:
    check_tensor(input, name)
    reject_keywords(kw, name)
    place = input.device if device is None else device
    return new_filled(input.tj_array.shape, value, input.dtype if dtype is None else dtype, place, requires_grad)


_shapes = [sample(A(2, 3), grad=False), sample(A(), grad=False), sample(I(4), grad=False)]


@public(samples=_shapes, method=False)
def zeros_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any) -> Tensor:
    """Zeros in the shape, dtype and device of a tensor."""
    return like(input, 0, "zeros_like", dtype, device, requires_grad, kw)


@public(samples=_shapes, method=False)
def ones_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any) -> Tensor:
    """Ones in the shape, dtype and device of a tensor."""
    return like(input, 1, "ones_like", dtype, device, requires_grad, kw)


@public(samples=[sample(A(2, 3), 2.5, grad=False), sample(I(4), 3, grad=False)], method=False)
def full_like(
    input: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any
) -> Tensor:
    """A value in the shape, dtype and device of a tensor."""
    return like(input, fill_number(fill_value, "full_like"), "full_like", dtype, device, requires_grad, kw)


def empty_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any) -> Tensor:
    """An uninitialised tensor in the shape, dtype and device of a tensor."""
    return like(input, None, "empty_like", dtype, device, requires_grad, kw)


def new_full(
    self: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any
) -> Tensor:
    """A tensor filled with a value, of this tensor's dtype and device."""
    reject_keywords(kw, "new_full")
    place = self.device if device is None else device
    if not hasattr(size, "__iter__"):
        raise TypeError(f"new_full(): argument 'size' (position 1) must be tuple of ints, not {type(size).__name__}")
    return new_filled(sizes((size,)), fill_number(fill_value, "new_full"), dtype or self.dtype, place, requires_grad)


def new_zeros(
    self: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any
) -> Tensor:
    """A tensor of zeros of this tensor's dtype and device."""
    shape = parse_shape(size, kw, "new_zeros")
    return new_filled(shape, 0, dtype or self.dtype, self.device if device is None else device, requires_grad)


def new_ones(self: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any) -> Tensor:
    """A tensor of ones of this tensor's dtype and device."""
    shape = parse_shape(size, kw, "new_ones")
    return new_filled(shape, 1, dtype or self.dtype, self.device if device is None else device, requires_grad)


def new_empty(
    self: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any
) -> Tensor:
    """An uninitialised tensor of this tensor's dtype and device."""
    shape = parse_shape(size, kw, "new_empty")
    return new_filled(shape, None, dtype or self.dtype, self.device if device is None else device, requires_grad)


def new_tensor(
    self: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any
) -> Tensor:
    """A tensor of data, of this tensor's dtype and device."""
    reject_keywords(kw, "new_tensor")
    place = self.device if device is None else device
    return tensor(data, dtype=dtype or self.dtype, device=place, requires_grad=requires_grad)


# ---- patterns


@public(samples=[sample(3, grad=False), sample(2, 4, grad=False), sample(3, 0, grad=False)], method=False)
def eye(
    n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any
) -> Tensor:
    """A matrix with ones on the diagonal and zeros elsewhere."""
    reject_keywords(kw, "eye")
    rows = as_index(n, "eye(): 'n'")
    columns = rows if m is None else as_index(m, "eye(): 'm'")
    for name, length in (("n", rows), ("m", columns)):
        if length < 0:
            raise RuntimeError(f"{name} must be greater or equal to 0, got {length}")
    on = arange(rows, device=device).unsqueeze(1) == arange(columns, device=device)
    found = on.to(dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype))
    return found.requires_grad_() if requires_grad else found  # type: ignore[no-any-return]


@public(
    samples=[
        sample(5, grad=False),
        sample(2, 9, 3, grad=False),
        sample(5, 0, -2, grad=False),
        sample(1.0, 2.5, 0.5, grad=False),
        sample(0, grad=False),
    ],
    method=False,
    op=ARANGE,
)
def arange(
    *bounds: Any,
    start: Any = None,
    end: Any = None,
    step: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **kw: Any,
) -> Tensor:
    """`arange(end)`, `arange(start, end)`, `arange(start, end, step)`: equally spaced numbers from start to before end."""
    reject_keywords(kw, "arange")
    start, end, step = parse_range(list(bounds), start, end, step)
    whole = not any(isinstance(v, float) for v in (start, end, step))
    kind = (dtypes.int64 if whole else dtypes.get_default_dtype()) if dtype is None else dtypes.as_dtype(dtype)
    if kind is dtypes.bool_:
        raise NotImplementedError("\"arange\" not implemented for 'Bool'")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"unsupported range: {start} -> {end}")
    if kind is dtypes.int64:
        start, end, step = int(start), int(end), int(step)
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError(
            f"upper bound and lower bound inconsistent with step sign: arange({start}, {end}, {step}) goes the other way"
        )
    exact = kind is dtypes.int64 or whole
    length = -((start - end) // step) if exact else math.ceil((end - start) / step)
    if not kind.is_floating_point:
        start, step = int(start), int(step)
    attrs = {"length": length, "dtype": kind, "device": devices.as_device(device)}
    found = apply(ARANGE, (start, step), attrs)
    return found.requires_grad_() if requires_grad else found  # type: ignore[no-any-return]


def parse_range(bounds: list[Any], start: Any, end: Any, step: Any) -> tuple[Any, Any, Any]:
    """start, end and step as Python numbers, from positional and keyword arguments."""
    if len(bounds) == 1 and end is None:
        end = bounds.pop()
    elif bounds and start is None:
        start = bounds.pop(0)
    if bounds and end is None:
        end = bounds.pop(0)
    if bounds and step is None:
        step = bounds.pop(0)
    if bounds or end is None:
        raise TypeError("arange(): expected (end), (start, end) or (start, end, step)")
    values = [as_python_number(v) for v in (0 if start is None else start, end, 1 if step is None else step)]
    for v in values:
        if not is_number(v):
            raise TypeError(f"arange(): bounds must be numbers, not {type(v).__name__}")
    return values[0], values[1], values[2]


@public(samples=[sample(0, 1, 5, grad=False), sample(3, -1, 9, grad=False), sample(2, 5, 1, grad=False)], method=False)
def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kw: Any
) -> Tensor:
    """`steps` equally spaced numbers from start to end, both included."""
    reject_keywords(kw, "linspace")
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    found = linear_steps(
        as_python_number(start), as_python_number(end), as_index(steps, "linspace(): 'steps'"), kind, device
    ).to(kind)
    return found.requires_grad_() if requires_grad else found  # type: ignore[no-any-return]


@public(samples=[sample(0, 2, 3, grad=False), sample(-1, 3, 5, base=2, grad=False)], method=False)
def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **kw: Any,
) -> Tensor:
    """`base` to the power of `steps` equally spaced exponents from start to end."""
    reject_keywords(kw, "logspace")
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    exponents: Any = linear_steps(
        as_python_number(start), as_python_number(end), as_index(steps, "logspace(): 'steps'"), kind, device
    )
    if not is_number(base):
        raise TypeError(f"logspace(): argument 'base' must be float, not {type(base).__name__}")
    found = (float(base) ** exponents).to(kind)
    return found.requires_grad_() if requires_grad else found  # type: ignore[no-any-return]


def linear_steps(start: Any, end: Any, steps: int, kind: dtypes.dtype, device: Any) -> Tensor:
    """Equally spaced numbers in a dtype to compute in. Each half is counted from its own end, so both ends are exact."""
    if steps < 0:
        raise RuntimeError(f"number of steps must be non-negative, got {steps}")
    if kind is dtypes.bool_:
        raise NotImplementedError("\"linspace\" not implemented for 'Bool'")
    work = kind if kind in (dtypes.float32, dtypes.float64) else dtypes.float32 if kind.is_floating_point else dtypes.float64
    place = arange(steps, device=device, dtype=work)
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    return where(place < steps / 2, place * step + start, (place - (steps - 1)) * step + end) if steps > 1 else place + start


@public(samples=[sample(3, 3, grad=False), sample(3, 4, -1, grad=False), sample(0, 4, grad=False)], method=False)
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None, **kw: Any) -> Tensor:
    """Row and column numbers of the lower triangle of a matrix, as a tensor of two rows."""
    return triangle(row, col, offset, True, dtype, device, kw, "tril_indices")


@public(samples=[sample(3, 3, grad=False), sample(3, 4, 1, grad=False), sample(4, 2, -1, grad=False)], method=False)
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None, **kw: Any) -> Tensor:
    """Row and column numbers of the upper triangle of a matrix, as a tensor of two rows."""
    return triangle(row, col, offset, False, dtype, device, kw, "triu_indices")


def triangle(row: Any, col: Any, offset: Any, lower: bool, dtype: Any, device: Any, kw: dict[str, Any], name: str) -> Tensor:
    reject_keywords(kw, name)
    for what, length in (("row", row), ("col", col)):
        if as_index(length, f"{name}(): '{what}'") < 0:
            raise RuntimeError(f"{what} must be non-negative, got {length}")
    kind = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype)
    attrs = {"rows": row, "columns": col, "offset": offset, "lower": lower, "dtype": kind, "device": devices.as_device(device)}
    return apply(TRIANGLE, (), attrs)  # type: ignore[no-any-return]


# ---- from data


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Tensor:
    """A tensor of new memory with the values of nested sequences, numbers, an array or a tensor."""
    if isinstance(data, Tensor):
        warn(
            "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
            "sourceTensor.detach().clone().requires_grad_(True), rather than tapejit.tensor(sourceTensor).",
        )
        place = data.device if device is None else device
        found = data.detach().to(device=place, dtype=data.dtype if dtype is None else dtype, copy=True)
    else:
        array = values_of(data, None if dtype is None else dtypes.as_dtype(dtype))
        found = wrap(devices.move(array, devices.as_device(device)))
        if local.state.inference:
            found.tj_inference = True
    return found.requires_grad_() if requires_grad else found


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of the data, sharing its memory where dtype and device allow."""
    if isinstance(data, Tensor):
        return data.to(device=device, dtype=dtype)  # type: ignore[no-any-return]
    if isinstance(data, np.ndarray):
        return from_numpy(data).to(device=devices.as_device(device), dtype=dtype)  # type: ignore[no-any-return]
    return tensor(data, dtype=dtype, device=device)


def asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of anything: a tensor, an array, a DLPack object, a buffer, numbers. `copy` forces or forbids a copy."""
    if isinstance(obj, (bytes, bytearray, memoryview)):
        found = frombuffer(obj, dtype=dtypes.get_default_dtype() if dtype is None else dtype)
    elif isinstance(obj, (Tensor, np.ndarray)):
        found = as_tensor(obj)
    elif hasattr(obj, "__dlpack__"):
        from .convert import from_dlpack

        found = from_dlpack(obj)
    elif copy is False:
        raise ValueError("can't alias arbitrary sequence into a tensor: asarray(copy=False) needs an array or a buffer")
    else:
        found = tensor(obj, dtype=dtype)
        copy = False
    shared = found
    found = found.to(device=found.device if device is None else device, dtype=dtype or found.dtype)
    if copy is False and found is not shared and not isinstance(obj, collections.abc.Sequence):
        raise ValueError("can't alias tensor with another dtype or device: leave copy=False away to convert it")
    if copy and found is shared:
        found = found.clone()
    return found.detach().requires_grad_() if requires_grad else found  # type: ignore[no-any-return]


def scalar_tensor(s: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A 0-dim tensor of a number, of the default dtype."""
    return new_filled((), as_python_number(s), dtype, device, requires_grad)


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A 1-dim tensor on the memory of a bytes-like object. A read-only buffer gives a tensor that cannot be written."""
    kind = dtypes.as_dtype(dtype)
    length = memoryview(buffer).nbytes
    rest = length - offset
    if length == 0 or count == 0:
        raise ValueError(f"both buffer length ({length}) and count ({count}) must not be 0")
    if not 0 <= offset < length:
        raise ValueError(
            f"offset ({offset} bytes) must be non-negative and no greater than buffer length ({length} bytes) minus 1"
        )
    if count < 0 and rest % kind.itemsize:
        raise ValueError(
            f"buffer length ({length} bytes) after offset ({offset} bytes) must be a multiple of element size ({kind.itemsize})"
        )
    if count * kind.itemsize > rest:
        raise ValueError(
            f"requested buffer length ({count} * {kind.itemsize} bytes) after offset ({offset} bytes) must not be greater than "
            f"actual buffer length ({length} bytes)"
        )
    elements = count if count > 0 else rest // kind.itemsize
    array = np.frombuffer(buffer, np.uint8, elements * kind.itemsize, offset).view(kind.numpy)
    found = wrap(array)
    return found.requires_grad_() if requires_grad else found


# ---- questions


def is_tensor(obj: Any) -> bool:
    """True if something is a tensor."""
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> bool:
    """True if a tensor's dtype is a floating-point one."""
    check_tensor(input, "is_floating_point")
    return input.is_floating_point()


def is_complex(input: Tensor) -> bool:
    """True if a tensor's dtype is complex: never, here."""
    check_tensor(input, "is_complex")
    return False


def is_nonzero(input: Tensor) -> bool:
    """True if a tensor's only element is not zero."""
    check_tensor(input, "is_nonzero")
    return bool(input)


for _method in (new_empty, new_full, new_ones, new_tensor, new_zeros, is_nonzero):
    setattr(Tensor, _method.__name__, _method)
