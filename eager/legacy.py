"""`FloatTensor`, `LongTensor` and their family: PyTorch's old names for "a tensor of this dtype, on this device"; `x.new(...)`.

`FloatTensor([1, 2])` holds the values, `FloatTensor(2, 3)` is uninitialised, and `isinstance(x, FloatTensor)` asks for the
dtype and the device. There are no classes behind them: what they make are plain tensors.
"""

from __future__ import annotations

from typing import Any

from .arrays import devices, dtypes
from .core.tensor import Tensor, legacy_array, wrap


class LegacyType(type):
    """The type of these types: calling one makes a tensor, and membership is a matter of dtype and device."""

    tensor_dtype: dtypes.dtype
    on_cuda: bool

    def __call__(cls, *data: Any) -> Tensor:
        if len(data) == 1 and isinstance(data[0], Tensor) and data[0].dtype is not cls.tensor_dtype:
            raise TypeError(
                f"expected {cls.tensor_dtype.legacy} (got {data[0].dtype.legacy}): use tensor.to({cls.tensor_dtype}) to convert"
            )
        array = legacy_array(data, cls.tensor_dtype.numpy)
        return wrap(devices.move(array, devices.as_device("cuda") if cls.on_cuda else devices.CPU))

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and instance.dtype is cls.tensor_dtype and instance.is_cuda == cls.on_cuda

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"


def types(on_cuda: bool) -> dict[str, LegacyType]:
    """All of them by name, for the CPU or for CUDA."""
    found = {}
    for d in dtypes.ALL:
        name = f"{d.legacy}Tensor"
        module = "tapejit.cuda" if on_cuda else "tapejit"
        found[name] = LegacyType(name, (), {"tensor_dtype": d, "on_cuda": on_cuda, "__module__": module})
    return found


def new(self: Tensor, *data: Any, device: Any = None) -> Tensor:
    """A tensor of this one's dtype and device: `x.new(2, 3)` is uninitialised, `x.new([1, 2])` holds the values."""
    array = legacy_array(data, self.dtype.numpy)
    return wrap(devices.move(array, self.device if device is None else devices.as_device(device)))


Tensor.new = new  # type: ignore[attr-defined]


def set_default_tensor_type(t: Any) -> None:
    """The old way to choose a default dtype: `set_default_tensor_type(DoubleTensor)`, or the name of the type."""
    name = t.rpartition(".")[2] if isinstance(t, str) else getattr(t, "__name__", "")
    kind = types("cuda" in (t if isinstance(t, str) else getattr(t, "__module__", ""))).get(name)
    if kind is None:
        raise TypeError(f"invalid type object: {t!r} is no tensor type")
    dtypes.set_default_dtype(kind.tensor_dtype)
    devices.set_default_device("cuda" if kind.on_cuda else "cpu")
