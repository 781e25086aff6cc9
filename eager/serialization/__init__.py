"""`save` and `load`: nested Python state with tensors, in a safetensors file, without pickle.

In: nested Python state, or a file. Out: a file, or the state.

The tensors are the file's tensors; the structure around them (dicts, lists, tuples, numbers, strings) is JSON in the header's
metadata. Nothing in a file is ever executed: what a file may describe is the fixed list of kinds below. Modules, optimizers
and other objects are among them, as the name of their class and their state; they are rebuilt only if the reader asks for it.
"""

from __future__ import annotations

import base64
import enum
import functools
import json
import os
import pathlib
import types
import zipfile
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..arrays import devices, dtypes
from ..core.tensor import Size, Tensor, wrap
from . import safetensors
from .safetensors import FileError
from .saved_objects import (
    ALWAYS_SAFE,
    add_safe_globals,
    clear_safe_globals,
    find,
    find_safe,
    get_safe_globals,
    is_function,
    name_of,
    restore,
    safe_globals,
    state_of,
)

__all__ = ["add_safe_globals", "clear_safe_globals", "get_safe_globals", "load", "safe_globals", "save"]
STRUCTURE = "tapejit.structure"

# ---- saving


class _Writer:
    """Turns state into JSON, collecting its tensors on the way; a tensor or an object met twice is stored once."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.names: dict[int, str] = {}
        self.objects: dict[int, int] = {}
        self.keep: list[Any] = []  # what ids were taken of stays alive
        self.open: set[int] = set()  # the containers around the value at hand

    def encode(self, value: Any, path: str) -> Any:
        if isinstance(value, enum.Enum):
            return {"member": [self.name(type(value), path), value.name]}
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if type(value) is float:
            return value if np.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Tensor):
            return self.tensor(value, path)
        if isinstance(value, (dict, list)):
            return self.container(value, path)
        for kind, cls in _SEQUENCES.items():
            if type(value) is cls:
                return {kind: self.items(value, path)}
        if isinstance(value, np.ndarray):
            return {"ndarray": self.store(value, path)}
        if isinstance(value, np.generic):
            return {"scalar": [value.dtype.name, self.encode(value.item(), path)]}
        for kind, (cls, text) in _TEXTS.items():
            if isinstance(value, cls):
                return {kind: text(value)}
        return self.object(value, path)

    def items(self, values: Iterable[Any], path: str) -> list[Any]:
        return [self.encode(v, _below(path, i)) for i, v in enumerate(values)]

    def pairs(self, values: dict[Any, Any], path: str) -> list[Any]:
        return [[self.encode(k, path), self.encode(v, _below(path, self.names.get(id(k), k)))] for k, v in values.items()]

    def container(self, value: Any, path: str) -> Any:
        if id(value) in self.open:
            raise ValueError(f"save(): the {type(value).__name__} at '{path or 'the top'}' holds itself")
        self.open.add(id(value))
        try:
            if type(value) is list:
                return self.items(value, path)
            kind = "list" if isinstance(value, list) else "ordered" if isinstance(value, OrderedDict) else "dict"
            entry: dict[str, Any] = {kind: self.items(value, path) if kind == "list" else self.pairs(value, path)}
            if isinstance(value, defaultdict):
                if name_of(value.default_factory) is not None:
                    entry["factory"] = name_of(value.default_factory)
            elif type(value) not in (dict, OrderedDict) and name_of(type(value)) is not None:
                state, reason = state_of(value) if type(value) is not Counter else (None, None)
                if reason is None:
                    entry |= {"class": name_of(type(value)), "state": self.encode(state, path)}
            return entry
        finally:
            self.open.discard(id(value))

    # ---- objects

    def object(self, value: Any, path: str) -> Any:
        if id(value) in self.objects:
            return {"object": self.objects[id(value)]}
        if is_function(value):
            return {"name": self.name(value, path)}
        if isinstance(value, types.MethodType) and isinstance(value.__self__, type):
            return {"method": [{"name": self.name(value.__self__, path)}, value.__name__]}
        if isinstance(value, types.MethodType):
            return {"method": [self.encode(value.__self__, path), value.__name__]}
        if isinstance(value, functools.partial):
            return {"partial": [self.encode(part, path) for part in (value.func, value.args, value.keywords)]}
        if type(value) is deque:
            return {"deque": [self.items(value, path), value.maxlen]}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {"named": [self.name(type(value), path), self.items(value, path)]}
        state, reason = state_of(value)
        if reason is not None:
            raise self.refusal(value, path, reason)
        name = self.name(type(value), path, value)
        self.keep.append(value)
        number = self.objects[id(value)] = len(self.objects)
        return {"object": number, "class": name, "state": self.state(state, path)}

    def state(self, state: Any, path: str) -> Any:
        """An object's fields. A module's members are found at the paths that users know them by."""
        if type(state) is not dict:
            return self.encode(state, path)
        inside = {"_parameters", "_buffers", "_modules"} if "_modules" in state else ()
        return {"dict": [[k, self.encode(v, path if k in inside else _below(path, k))] for k, v in state.items()]}

    def name(self, thing: Any, path: str, instance: Any = None) -> str:
        found = name_of(thing)
        if found is None:
            kind = getattr(thing, "__qualname__", thing)
            reason = f"{kind} cannot be imported from {getattr(thing, '__module__', 'anywhere')}"
            raise self.refusal(thing if instance is None else instance, path, f"{reason}: it is local, or a lambda")
        return found

    def refusal(self, value: Any, path: str, reason: str) -> TypeError:
        return TypeError(
            f"save(): cannot store a {type(value).__name__} (at '{path or 'the top'}'): {reason}. Files hold tensors, numbers, "
            "strings, containers of them, and objects of classes that can be imported; or save the state_dict() of a module "
            "or an optimizer."
        )

    # ---- tensors

    def tensor(self, value: Tensor, path: str) -> Any:
        from ..nn.parameter import Parameter

        if id(value) not in self.names:
            self.keep.append(value)
            self.names[id(value)] = self.store(devices.to_numpy(value.tj_array), path)
        flags = {"requires_grad": True} if value.tj_requires_grad and value.tj_node is None else {}
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


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


_SEQUENCES: dict[str, Any] = {"tuple": tuple, "size": Size, "set": set, "frozenset": frozenset}
_TEXTS: dict[str, Any] = {  # kinds that are stored as a text or as numbers
    "bytes": (bytes, lambda value: base64.b64encode(value).decode()),
    "dtype": (dtypes.dtype, lambda value: value.name),
    "device": (devices.device, str),
    "range": (range, lambda value: [value.start, value.stop, value.step]),
    "path": (pathlib.PurePath, str),
    "complex": (complex, str),
}


def save(
    obj: Any, f: Any, pickle_module: Any = None, pickle_protocol: int = 2, _use_new_zipfile_serialization: bool = True
) -> None:
    """Write state to a path (atomically: a crash leaves the old file whole) or to an open binary file.

    What may be in it: tensors, numbers, strings, containers, and objects such as modules and optimizers, if their classes can
    be imported. There is no pickle, so the arguments about it mean nothing.
    """
    writer = _Writer()
    structure = writer.encode(obj, "")
    safetensors.write(f, writer.arrays, {STRUCTURE: json.dumps(structure, separators=(",", ":"))})


# ---- loading


class _Reader:
    def __init__(self, arrays: dict[str, np.ndarray[Any, Any]], place: Any, trusted: bool) -> None:
        self.arrays, self.place, self.find = arrays, place, find if trusted else find_safe
        self.trusted = trusted
        self.tensors: dict[str, Tensor] = {}
        self.objects: dict[int, Any] = {}

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
                from ..nn.parameter import Parameter

                found = Parameter(found, bool(entry.get("requires_grad")))
            self.tensors[name] = found.requires_grad_(bool(entry.get("requires_grad")))
        return self.tensors[name]

    def pairs(self, pairs: Any) -> list[tuple[Any, Any]]:
        return [(self.decode(k), self.decode(v)) for k, v in pairs]

    def container(self, kind: Any, values: Any, entry: dict[str, Any]) -> Any:
        """A dict or a list; of a class of its own if the reader may know it, of the plain one otherwise."""
        if "factory" in entry and (self.trusted or entry["factory"] in ALWAYS_SAFE):
            return defaultdict(self.find(entry["factory"]), values)
        if "class" not in entry or not (self.trusted or entry["class"] == "collections:Counter"):
            return kind(values)
        made = self.empty(Counter if entry["class"] == "collections:Counter" else self.find(entry["class"]))
        if not isinstance(made, kind):
            raise FileError(f"the file's structure is wrong: {type(made).__name__} is no {kind.__name__}")
        kind.__init__(made, values)
        restore(made, self.decode(entry["state"]))
        return made

    def object(self, number: Any, entry: dict[str, Any]) -> Any:
        if "class" not in entry:
            return self.objects[number]
        made = self.objects[number] = self.empty(self.find(entry["class"]))
        state = self.decode(entry["state"])
        try:
            restore(made, state)
        except Exception as error:
            raise RuntimeError(f"load(): a {entry['class'].replace(':', '.')} does not take the state in the file") from error
        return made

    def empty(self, cls: Any) -> Any:
        if not isinstance(cls, type):
            raise FileError(f"the file's structure is wrong: {cls!r:.200} is no class")
        return cls.__new__(cls)  # type: ignore[call-overload]

    def member(self, name: str, member: str) -> Any:
        found = self.find(name)
        if not isinstance(found, enum.EnumMeta):
            raise FileError(f"the file's structure is wrong: {name} is no Enum")
        return found[member]

    def method(self, owner: Any, name: str) -> Any:
        found = getattr(self.decode(owner), name, None)
        if not isinstance(found, types.MethodType):
            raise FileError(f"the file's structure is wrong: {name!r:.200} is no method")
        return found

    def named(self, name: str, items: Any) -> Any:
        found = self.find(name)
        if not (isinstance(found, type) and issubclass(found, tuple)):
            raise FileError(f"the file's structure is wrong: {name} is no named tuple")
        return tuple.__new__(found, self.decode(items))

    def partial(self, parts: Any) -> Any:
        function, arguments, keywords = self.decode(parts)
        return functools.partial(function, *arguments, **keywords)


_DECODERS: dict[str, Any] = {
    "tensor": lambda reader, name, entry: reader.tensor(name, entry),
    "dict": lambda reader, pairs, entry: reader.container(dict, reader.pairs(pairs), entry),
    "ordered": lambda reader, pairs, entry: reader.container(OrderedDict, reader.pairs(pairs), entry),
    "list": lambda reader, items, entry: reader.container(list, reader.decode(items), entry),
    "tuple": lambda reader, items, entry: tuple(reader.decode(items)),
    "size": lambda reader, items, entry: Size(reader.decode(items)),
    "set": lambda reader, items, entry: set(reader.decode(items)),
    "frozenset": lambda reader, items, entry: frozenset(reader.decode(items)),
    "deque": lambda reader, parts, entry: deque(reader.decode(parts[0]), parts[1]),
    "float": lambda reader, text, entry: float(text),
    "complex": lambda reader, text, entry: complex(text),
    "range": lambda reader, ends, entry: range(*ends),
    "path": lambda reader, text, entry: pathlib.Path(text),
    "ndarray": lambda reader, name, entry: reader.arrays[name],
    "scalar": lambda reader, pair, entry: dtypes.by_name(pair[0]).numpy.type(reader.decode(pair[1])),
    "bytes": lambda reader, text, entry: base64.b64decode(text),
    "dtype": lambda reader, name, entry: dtypes.by_name(name),
    "device": lambda reader, name, entry: devices.device(name),
    "object": lambda reader, number, entry: reader.object(number, entry),
    "name": lambda reader, name, entry: reader.find(name),
    "member": lambda reader, pair, entry: reader.member(*pair),
    "named": lambda reader, pair, entry: reader.named(*pair),
    "method": lambda reader, pair, entry: reader.method(*pair),
    "partial": lambda reader, parts, entry: reader.partial(parts),
}


def load(
    f: Any, map_location: Any = None, pickle_module: Any = None, *, weights_only: bool | None = None, mmap: bool | None = None
) -> Any:
    """Read what `save` wrote, others' safetensors (a dict of tensors), or the tensors and containers of a PyTorch file.

    `map_location` says where tensors go: a device, a dict of devices, or a function of (tensor, device) as in PyTorch.
    `weights_only=False` also rebuilds objects: it imports the classes that the file names, so only for files you trust.
    """
    place = placement(map_location)
    if zipfile.is_zipfile(f):
        from .torch_pickle import read

        return read(f, place)
    if hasattr(f, "seek"):
        f.seek(0)
    arrays, metadata = safetensors.read(f)
    if STRUCTURE not in metadata:
        return {name: place(wrap(array), "cpu") for name, array in arrays.items()}
    try:
        return _Reader(arrays, place, weights_only is False).decode(json.loads(metadata[STRUCTURE]))
    except (LookupError, TypeError, ValueError, RecursionError) as error:
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
