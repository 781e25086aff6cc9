"""Reading PyTorch's `.pt` files: tensors and plain containers only, through an unpickler that can call nothing else.

A `.pt` file is a zip archive: `data.pkl` describes the objects, `data/0`, `data/1`, ... are the storages' bytes. Pickles can
name any function to be called on loading; this reader resolves only the few names below, to functions of its own, and refuses
the file otherwise.
"""

from __future__ import annotations

import io
import math
import pickle
import sys
import zipfile
from collections import OrderedDict
from typing import Any

import numpy as np

from ..arrays import devices, dtypes
from ..core.tensor import Size, Tensor, wrap
from .safetensors import FileError

_STORAGES = {f"{d.legacy}Storage": d for d in dtypes.ALL}
_CONTAINERS = {("collections", "OrderedDict"): OrderedDict, ("builtins", "set"): set, ("builtins", "frozenset"): frozenset}


class _Storage:
    """The bytes behind one or more tensors."""

    def __init__(self, array: np.ndarray[Any, Any], device: str) -> None:
        self.array, self.device = array, device


class _Unpickler(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, folder: str, place: Any) -> None:
        super().__init__(io.BytesIO(archive.read(f"{folder}/data.pkl")))
        self.archive, self.folder, self.place = archive, folder, place
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("torch._utils", "_rebuild_tensor_v2"): self.rebuild_tensor,
            ("torch._utils", "_rebuild_parameter"): self.rebuild_parameter,
            ("torch", "Size"): Size,
            ("torch", "device"): devices.device,
            **_CONTAINERS,
        }
        if (module, name) in known:
            return known[module, name]
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch" and name in {d.name for d in dtypes.ALL}:
            return dtypes.by_name(name)
        raise FileError(
            f"the PyTorch file refers to {module}.{name}; only tensors and plain containers are read. In PyTorch, save "
            "model.state_dict() instead of the object, or write safetensors."
        )

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, location, count = pid
        if kind != "storage" or not isinstance(dtype, dtypes.dtype) or not isinstance(count, int):
            raise FileError(f"the PyTorch file describes a storage of an unknown kind: {pid!r:.200}")
        if key not in self.storages:
            member = f"{self.folder}/data/{key}"
            size = self.archive.getinfo(member).file_size
            if size != count * dtype.itemsize:
                raise FileError(
                    f"the PyTorch file is corrupt: storage {key} has {size} bytes instead of {count * dtype.itemsize}"
                )
            data = np.frombuffer(bytearray(self.archive.read(member)), dtype.numpy)
            self.storages[key] = _Storage(data, str(location))
        return self.storages[key]

    def rebuild_tensor(self, storage: _Storage, offset: int, size: Any, stride: Any, requires_grad: bool, *rest: Any) -> Tensor:
        size, stride = tuple(size), tuple(stride)
        reach = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1 if math.prod(size) else 0
        if min((offset, *size, *stride)) < 0 or reach > storage.array.size:
            raise FileError(f"the PyTorch file is corrupt: a tensor of shape {list(size)} lies outside its storage")
        flat = storage.array[offset:]
        strides = tuple(s * flat.itemsize for s in stride)
        array = np.lib.stride_tricks.as_strided(flat, size, strides)
        tensor = self.place(wrap(np.ascontiguousarray(array) if array.ndim else array.copy()), storage.device)
        return tensor.requires_grad_(bool(requires_grad))  # type: ignore[no-any-return]

    def rebuild_parameter(self, data: Tensor, requires_grad: bool, hooks: Any) -> Tensor:
        from ..nn.parameter import Parameter

        return Parameter(data.detach(), bool(requires_grad))


def read(source: Any, place: Any) -> Any:
    """The object in a PyTorch file."""
    try:
        with zipfile.ZipFile(source) as archive:
            pickles = [n for n in archive.namelist() if n.endswith("/data.pkl") and n.count("/") == 1]
            if len(pickles) != 1:
                raise FileError("this zip file was not written by torch.save: it has no data.pkl")
            folder = pickles[0].split("/")[0]
            order = f"{folder}/byteorder"
            if order in archive.namelist() and archive.read(order).decode() != sys.byteorder:
                raise FileError("the PyTorch file was written on a machine of another byte order")
            return _Unpickler(archive, folder, place).load()
    except FileError:
        raise
    except (
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        TypeError,
        EOFError,
        AttributeError,
        IndexError,
        pickle.UnpicklingError,
    ) as error:
        raise FileError(f"the PyTorch file is truncated or corrupt ({type(error).__name__}: {error})") from None
