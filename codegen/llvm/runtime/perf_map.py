"""Names generated functions for Linux' perf: with `TAPEJIT_PERF=1`, /tmp/perf-PID.map maps addresses to names.

Sizes come from the symbol table of ELF objects; other formats are skipped.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple


class Symbol(NamedTuple):
    """A function in an object."""

    name: str
    section: int
    offset: int  # in its section
    size: int
    exported: bool


def is_enabled() -> bool:
    return os.environ.get("TAPEJIT_PERF", "0") not in ("", "0")


def functions(objects: Sequence[bytes]) -> list[str]:
    """Functions that can be looked up by name."""
    return [s.name for data in objects for s in symbols(data) if s.exported]


def append_to_map(objects: Sequence[bytes], addresses: Mapping[str, int]) -> None:
    """Append the functions of objects to the map; internal ones are located relative to an exported one."""
    lines = []
    for data in objects:
        found = list(symbols(data))
        begins = {s.section: addresses[s.name] - s.offset for s in found if s.name in addresses}
        lines += [f"{begins[s.section] + s.offset:x} {s.size:x} {s.name}\n" for s in found if s.section in begins]
    with open(f"/tmp/perf-{os.getpid()}.map", "a") as file:  # perf looks nowhere else
        file.writelines(lines)


def symbols(data: bytes) -> Iterator[Symbol]:
    """Functions that a 64-bit little-endian ELF object defines."""
    if data[:6] != b"\x7fELF\x02\x01":
        return
    table = struct.unpack_from("<Q", data, 0x28)[0]
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    for _, kind, _, _, begin, length, names, _, _, step in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        strings = sections[names][4]
        for at in range(begin, begin + length, step):
            name, info, _, section, offset, extent = struct.unpack_from("<IBBHQQ", data, at)
            if info & 15 == 2 and section:  # STT_FUNC, defined here
                text = data[strings + name : data.index(b"\0", strings + name)].decode()
                yield Symbol(text, section, offset, extent, info >> 4 != 0)
