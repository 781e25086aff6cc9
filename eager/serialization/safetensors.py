"""The safetensors file format: a JSON header, then the tensors' bytes. Reading checks everything and runs nothing.

8 bytes: length of the header, little endian
header: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {str: str}}
the bytes of all tensors, without gaps
"""

from __future__ import annotations

import json
import math
import os
import struct
import tempfile
import zlib
from typing import IO, Any

import numpy as np

from ..arrays import dtypes

_NAMES = {
    "BOOL": dtypes.bool_, "U8": dtypes.uint8, "I8": dtypes.int8, "I16": dtypes.int16, "I32": dtypes.int32, "I64": dtypes.int64,
    "F16": dtypes.float16, "BF16": dtypes.bfloat16, "F32": dtypes.float32, "F64": dtypes.float64,
}  # fmt: skip
_CODES = {d.numpy: name for name, d in _NAMES.items()}
_MAX_HEADER = 100_000_000  # what the format's own readers accept
CHECKSUM = "tapejit.crc32"

Arrays = dict[str, np.ndarray[Any, Any]]


class FileError(RuntimeError):
    """A file that is truncated, corrupt or of another format."""


# ---- writing


def write(target: Any, arrays: Arrays, metadata: dict[str, str]) -> None:
    """Write to a path, atomically, or to an open binary file."""
    if hasattr(target, "write"):
        _write_to(target, arrays, metadata)
        return
    path = os.path.abspath(os.fspath(target))
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=f".{os.path.basename(path)}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            _write_to(file, arrays, metadata)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_to(file: IO[bytes], arrays: Arrays, metadata: dict[str, str]) -> None:
    table: dict[str, Any] = {}
    offset = 0
    # Larger items first, so that every tensor is aligned to its own item size.
    order = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    for name in order:
        array = arrays[name]
        end = offset + array.nbytes
        table[name] = {"dtype": _CODES[array.dtype], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    total = _seed(table, metadata)
    for name in order:
        total = zlib.crc32(_bytes(arrays[name]), total)
    header = json.dumps({"__metadata__": {**metadata, CHECKSUM: f"{total:08x}"}, **table}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    file.write(struct.pack("<Q", len(header)))
    file.write(header)
    for name in order:
        file.write(_bytes(arrays[name]))


def _bytes(array: Any) -> memoryview:
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _seed(table: dict[str, Any], metadata: dict[str, str]) -> int:
    """The checksum of the header, which that of the data goes on from."""
    plain = {k: v for k, v in metadata.items() if k != CHECKSUM}
    return zlib.crc32(json.dumps([table, plain], sort_keys=True).encode())


# ---- reading


def read(source: Any) -> tuple[Arrays, dict[str, str]]:
    """The arrays and the metadata of a file, checked: lengths, types, offsets and, where there is one, the checksum."""
    if hasattr(source, "read"):
        return _read_from(source, "the file")
    path = os.fspath(source)
    with open(path, "rb") as file:
        return _read_from(file, f"'{path}'")


def _read_from(file: IO[bytes], name: str) -> tuple[Arrays, dict[str, str]]:
    start = file.tell()
    size = file.seek(0, os.SEEK_END) - start
    file.seek(start)
    table, metadata, length = _header(file, name, size)
    room = size - 8 - length
    _check_layout(table, room, name)
    arrays: Arrays = {}
    total = _seed(table, metadata)
    for key, entry in sorted(table.items(), key=lambda item: (item[1]["data_offsets"], -math.prod(item[1]["shape"]))):
        array = np.empty(tuple(entry["shape"]), _NAMES[entry["dtype"]].numpy)
        view = _bytes(array)  # writeable: the array is new and contiguous
        if file.readinto(view) != array.nbytes:  # type: ignore[attr-defined]
            raise FileError(f"{name} is truncated: tensor '{key}' is cut off")
        total = zlib.crc32(view, total)
        arrays[key] = array
    expected = metadata.get(CHECKSUM)  # files of others have none
    if expected != f"{total:08x}" and (expected is not None or any(key.startswith("tapejit.") for key in metadata)):
        raise FileError(f"{name} is corrupt: its checksum is {expected}, but its contents give {total:08x}")
    return arrays, {k: v for k, v in metadata.items() if k != CHECKSUM}


def _header(file: IO[bytes], name: str, size: int) -> tuple[dict[str, Any], dict[str, str], int]:
    begin = file.read(8)
    if len(begin) < 8:
        raise FileError(f"{name} is truncated or no safetensors file: it has only {size} bytes")
    (length,) = struct.unpack("<Q", begin)
    if length > min(size - 8, _MAX_HEADER) or length < 2:
        raise FileError(f"{name} is truncated, corrupt or no safetensors file: its header claims {length} bytes of {size}")
    try:
        header = json.loads(file.read(length).decode())
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise FileError(f"{name} is corrupt or no safetensors file: its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise FileError(f"{name} is corrupt: its header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FileError(f"{name} is corrupt: its metadata is not a table of strings")
    return header, metadata, length


def _check_layout(table: dict[str, Any], room: int, name: str) -> None:
    """Every entry well-formed, every tensor inside the file, none overlapping, nothing left over."""
    spans = []
    for key, entry in table.items():
        try:
            dtype, shape, (begin, end) = _NAMES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            fits = all(type(n) is int and n >= 0 for n in [*shape, begin, end])
        except (KeyError, TypeError, ValueError):
            raise FileError(
                f"{name} is corrupt, or holds a type that is not supported: the entry of tensor '{key}' is {entry!r:.200}"
            ) from None
        if not fits or len(shape) > 64 or end - begin != math.prod(shape) * dtype.itemsize or end > room:
            raise FileError(
                f"{name} is truncated or corrupt: tensor '{key}' of shape {shape} cannot be at bytes {begin} to {end} of {room}"
            )
        spans.append((begin, end))
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise FileError(f"{name} is corrupt: its tensors overlap or leave a gap at byte {min(position, begin)}")
        position = end
    if position != room:
        raise FileError(f"{name} is corrupt: {room - position} bytes are left over after the last tensor")
