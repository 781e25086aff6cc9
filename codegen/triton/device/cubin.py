"""What NVIDIA's code for a kernel says of itself: its registers, and the memory that each thread has for want of them.

Code is an ELF file. Its section `.nv.info` is a list of attributes; those of functions are pairs of a function's number and a
value. The assembler sometimes leaves a few bytes in memory so that one more program fits on a unit of the device: `rooms` says
how many registers it may have to do without.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

SECTIONS, TABLE = 0x28, 0x3A  # where a file says where its sections are, and how large, how many, and which has their names
NAMED = ".nv.info"
OF_FUNCTION, FRAME, REGISTERS = 4, 0x11, 0x2F  # a kind of attribute, and two that are of it
FILE, STEP, MOST = 65536, 8, 255  # registers of a unit, what a thread's are rounded up to, and how many it may have
TRIES = 2  # numbers of registers that are worth compiling with
FEWEST = 2  # programs on a unit, so that one can compute while another one waits


@dataclass(frozen=True)
class Taken:
    """What each thread of a kernel takes."""

    registers: int
    frame: int  # bytes in memory


def taken(code: bytes) -> Taken:
    """The most that any function of a file takes."""
    found = {FRAME: 0, REGISTERS: 0}
    info = section(code, NAMED)
    at = 0
    while at < len(info):
        kind, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if kind == OF_FUNCTION:  # of other kinds the size is the value
            if attribute in found:
                found[attribute] = max(found[attribute], struct.unpack_from("<II", info, at)[1])
            at += size
    return Taken(found[REGISTERS], found[FRAME])


def section(code: bytes, name: str) -> bytes:
    (first,) = struct.unpack_from("<Q", code, SECTIONS)
    size, count, names = struct.unpack_from("<HHH", code, TABLE)
    headers = [struct.unpack_from("<IIQQQQ", code, first + i * size) for i in range(count)]
    texts = headers[names][4]
    for title, _, _, _, offset, length in headers:
        if code.startswith(f"{name}\0".encode(), texts + title):
            return code[offset : offset + length]
    return b""


def rooms(used: Taken, threads: int) -> list[int]:
    """Numbers of registers that a thread may have instead, the fewest first: so that as many programs are on a unit as now, or
    as few less as make a difference."""
    programs = FILE // (threads * -(-used.registers // STEP) * STEP)
    each = [min(FILE // (threads * count) // STEP * STEP, MOST) for count in range(programs, FEWEST - 1, -1)]
    return [n for n in dict.fromkeys(each) if n > used.registers][:TRIES]
