"""`save` and `load`: nested Python state with tensors, in a safetensors file, without pickle.

The tensors are the file's tensors; the structure around them (dicts, lists, tuples, numbers, strings) is JSON in the header's
metadata. Nothing in a file is ever executed: what a file may describe is the fixed list of kinds below.
"""

from __future__ import annotations

import base64
import json
import os
import zipfile
from collections import OrderedDict
from typing import Any

import numpy as np

from . import devices, dtypes, safetensors
from .safetensors import FileError
from .tensor import Size, Tensor, wrap

STRUCTURE = "tapejit.structure"

# ---- saving


class _Writer:
    """Turns state into JSON, collecting its tensors on the way; a tensor met twice is stored once."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.names: dict[int, str] = {}
        self.keep: list[Any] = []  # what ids were taken of stays alive

    def encode(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if type(value) is float:
            return value if np.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Tensor):
            return self.tensor(value, path)
        if isinstance(value, dict):
            pairs = [[self.encode(k, path), self.encode(v, f"{path}.{k}" if path else str(k))] for k, v in value.items()]
            return {"ordered" if isinstance(value, OrderedDict) else "dict": pairs}
        if isinstance(value, list):
            return [self.encode(v, f"{path}.{i}" if path else str(i)) for i, v in enumerate(value)]
        for kind, cls in _SEQUENCES.items():
            if type(value) is cls:
                return {kind: [self.encode(v, f"{path}.{i}" if path else str(i)) for i, v in enumerate(value)]}
        if isinstance(value, np.ndarray):
            return {"ndarray": self.store(value, path)}
        if isinstance(value, np.generic):
            return {"scalar": [value.dtype.name, self.encode(value.item(), path)]}
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, dtypes.dtype):
            return {"dtype": value.name}
        if isinstance(value, devices.device):
            return {"device": str(value)}
        raise TypeError(
            f"save(): cannot store a {type(value).__name__} (at '{path or 'the top'}'). Files hold tensors, numbers, strings "
            "and containers of them; for a module or an optimizer, save its state_dict()."
        )

    def tensor(self, value: Tensor, path: str) -> Any:
        from .nn.parameter import Parameter

        if id(value) not in self.names:
            self.keep.append(value)
            self.names[id(value)] = self.store(devices.to_numpy(value._array), path)
        flags = {"requires_grad": True} if value._requires_grad and value._node is None else {}
        if isinstance(value, Parameter):
            flags["parameter"] = True
        return {"tensor": self.names[id(value)], **flags, **({"device": str(value.device)} if value.is_cuda else {})}

    def store(self, array: np.ndarray[Any, Any], path: str) -> str:
        dtypes.from_numpy(array.dtype)
        name, count = path or "tensor", 1
        while name in self.arrays or name == "__metadata__":
            count += 1
            name = f"{path or 'tensor'}#{count}"
        self.arrays[name] = array
        return name


_SEQUENCES: dict[str, Any] = {"tuple": tuple, "size": Size, "set": set, "frozenset": frozenset}


def save(obj: Any, f: Any) -> None:
    """Write state to a path (atomically: a crash leaves the old file whole) or to an open binary file."""
    writer = _Writer()
    structure = writer.encode(obj, "")
    safetensors.write(f, writer.arrays, {STRUCTURE: json.dumps(structure, separators=(",", ":"))})


# ---- loading


class _Reader:
    def __init__(self, arrays: dict[str, np.ndarray[Any, Any]], place: Any) -> None:
        self.arrays, self.place = arrays, place
        self.tensors: dict[str, Tensor] = {}

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(v) for v in value]
        if not isinstance(value, dict):
            return value
        kind = next((k for k in _DECODERS if k in value), None)
        if kind is None:
            raise FileError(f"the file's structure has an unknown entry: {value!r:.200}")
        return _DECODERS[kind](self, value[kind], value)

    def tensor(self, name: str, entry: dict[str, Any]) -> Tensor:
        if name not in self.tensors:
            found = self.place(wrap(self.arrays[name]), entry.get("device", "cpu"))
            if entry.get("parameter"):
                from .nn.parameter import Parameter

                found = Parameter(found, bool(entry.get("requires_grad")))
            self.tensors[name] = found.requires_grad_(bool(entry.get("requires_grad")))
        return self.tensors[name]

    def pairs(self, pairs: Any) -> list[tuple[Any, Any]]:
        return [(self.decode(k), self.decode(v)) for k, v in pairs]


_DECODERS: dict[str, Any] = {
    "tensor": lambda reader, name, entry: reader.tensor(name, entry),
    "dict": lambda reader, pairs, entry: dict(reader.pairs(pairs)),
    "ordered": lambda reader, pairs, entry: OrderedDict(reader.pairs(pairs)),
    "tuple": lambda reader, items, entry: tuple(reader.decode(items)),
    "size": lambda reader, items, entry: Size(reader.decode(items)),
    "set": lambda reader, items, entry: set(reader.decode(items)),
    "frozenset": lambda reader, items, entry: frozenset(reader.decode(items)),
    "float": lambda reader, text, entry: float(text),
    "ndarray": lambda reader, name, entry: reader.arrays[name],
    "scalar": lambda reader, pair, entry: dtypes.by_name(pair[0]).numpy.type(reader.decode(pair[1])),
    "bytes": lambda reader, text, entry: base64.b64decode(text),
    "dtype": lambda reader, name, entry: dtypes.by_name(name),
    "device": lambda reader, name, entry: devices.device(name),
}


def load(f: Any, map_location: Any = None, *, weights_only: bool = True, mmap: bool = False) -> Any:
    """Read what `save` wrote, others' safetensors (a dict of tensors), or the tensors and containers of a PyTorch file.

    `map_location` says where tensors go: a device, a dict of devices, or a function of (tensor, device) as in PyTorch.
    """
    place = placement(map_location)
    if zipfile.is_zipfile(f):
        from .torch_files import read

        return read(f, place)
    if hasattr(f, "seek"):
        f.seek(0)
    arrays, metadata = safetensors.read(f)
    if STRUCTURE not in metadata:
        return {name: place(wrap(array), "cpu") for name, array in arrays.items()}
    try:
        return _Reader(arrays, place).decode(json.loads(metadata[STRUCTURE]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        name = os.fspath(f) if isinstance(f, (str, os.PathLike)) else "the file"
        raise FileError(
            f"'{name}' is corrupt: the structure in its header cannot be read ({type(error).__name__}: {error})"
        ) from None


def placement(map_location: Any) -> Any:
    """A function (tensor, name of the device it was saved from) -> the tensor where it belongs."""
    if callable(map_location):
        return lambda tensor, saved: map_location(tensor, saved) or tensor
    if isinstance(map_location, dict):
        return lambda tensor, saved: tensor.to(map_location.get(saved, saved))
    return lambda tensor, saved: tensor.to(saved if map_location is None else map_location)
