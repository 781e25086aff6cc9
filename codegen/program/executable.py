"""Executable: a compiled program as plain data, independent of the process that built it.

`build.py` of a target makes one, the disk cache stores it as JSON under the program's cache key, and `program.py` of the target
binds it to memory and calls it. Loading one needs nothing of what lowers, fuses or emits. Compiled code is not part of it: it
names its code by keys of its own in the disk cache, so that programs share kernels.

Subclasses (`llvm/executable.py`, `triton/executable.py`) add how their code is called.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from . import disk_cache as cache

EncodedArray = tuple[str, list[int], str]  # dtype, shape, bytes in base 64


@dataclass(kw_only=True)
class Executable:
    """Fields that every target needs. Slots number the arrays of a call; those from `slots` on are arrays that it allocates."""

    slots: int  # arrays that the caller brings
    bound: list[int]  # slots whose addresses the code is given, in this order
    numbers: list[tuple[int, str]]  # scalars that the code is given: place in the call's list, and kind
    arena: int  # bytes of memory that hold values only while it runs
    constants: list[EncodedArray]
    memories: list[int]  # of each array that a call allocates: the output whose form it has
    shown: list[int]  # of each output: the slot that it is a view of
    danger: list[int]  # slots of inputs that are written before something may fail: copied first, restored on failure
    checked: bool = False  # the last new array is a flag that says that indices were out of bounds
    steps: list[str] = field(default_factory=list)  # what is called in turn: names of functions, "" for an opaque op

    def code_keys(self) -> list[str]:
        """Keys of the compiled code in the disk cache."""
        raise NotImplementedError

    # ---- storage

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Inverse of `asdict` after a round trip through JSON, which turns tuples into lists."""
        fields["numbers"] = [(place, kind) for place, kind in fields["numbers"]]
        fields["constants"] = [(dtype, shape, data) for dtype, shape, data in fields["constants"]]
        return cls(**fields)

    def store(self, key: str) -> None:
        cache.put(key, self.to_bytes())

    @classmethod
    def load(cls, key: str | None) -> Self | None:
        """The executable stored under a key; None if there is none, or if another version wrote it."""
        data = None if key is None else cache.get(key)
        if data is None:
            return None
        try:
            return cls.from_fields(json.loads(data))
        except (ValueError, TypeError, KeyError):
            return None


def encode_array(array: Any) -> EncodedArray:
    return array.dtype.str, list(array.shape), base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def decode_array(encoded: EncodedArray) -> Any:
    """A new array with memory of its own."""
    dtype, shape, data = encoded
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()


def lookup_in_words(key: str | None, found: str | None) -> str:
    """Say whether a program came from the disk cache, for the log of passes. `found` describes it if it did."""
    if found is not None:
        return f"the program is in it, so it was not built now: {found}"
    if key is None:
        return "not asked, as something in the graph has no cache key"
    return "the program is not in it" if cache.current() else "there is none"
