"""Reads register use and stack frames from NVIDIA's binaries (cubin).

A cubin is an ELF file. Its section `.nv.info` is a list of attributes; those of functions are pairs of a function's number and
a value. The assembler sometimes spills a few bytes so that one more program fits on a multiprocessor: `register_candidates`
gives the register counts that are worth trying instead.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

SECTIONS, TABLE = 0x28, 0x3A  # offsets in the ELF header: of the section table, and of its entry size, count and name section
INFO_SECTION = ".nv.info"
FUNCTION_ATTRIBUTE, FRAME, REGISTERS = 4, 0x11, 0x2F  # a kind of attribute, and two of that kind
REGISTER_FILE = 65536  # registers of a multiprocessor
REGISTER_STEP, MAX_REGISTERS = 8, 255  # per thread: its count is rounded up to a multiple of the step
MAX_CANDIDATES = 2  # register counts that are worth compiling with
MIN_RESIDENT_PROGRAMS = 2  # per multiprocessor: one computes while another one waits


@dataclass(frozen=True)
class ThreadUse:
    """Resources of each thread of a kernel."""

    registers: int
    frame: int  # bytes in memory


def read_thread_use(code: bytes) -> ThreadUse:
    """Maximum resource use over all functions of a cubin."""
    found = {FRAME: 0, REGISTERS: 0}
    info = find_section(code, INFO_SECTION)
    at = 0
    while at < len(info):
        kind, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if kind == FUNCTION_ATTRIBUTE:  # in attributes of other kinds the size is the value
            if attribute in found:
                found[attribute] = max(found[attribute], struct.unpack_from("<II", info, at)[1])
            at += size
    return ThreadUse(found[REGISTERS], found[FRAME])


def find_section(code: bytes, name: str) -> bytes:
    (first,) = struct.unpack_from("<Q", code, SECTIONS)
    size, count, names = struct.unpack_from("<HHH", code, TABLE)
    headers = [struct.unpack_from("<IIQQQQ", code, first + i * size) for i in range(count)]
    texts = headers[names][4]
    for title, _, _, _, offset, length in headers:
        if code.startswith(f"{name}\0".encode(), texts + title):
            return code[offset : offset + length]
    return b""


def register_candidates(used: ThreadUse, threads: int) -> list[int]:
    """Register counts to recompile a spilling kernel with, fewest first: each keeps the current number of programs on a
    multiprocessor, or the next lower one that makes a difference."""
    programs = REGISTER_FILE // (threads * -(-used.registers // REGISTER_STEP) * REGISTER_STEP)
    counts = range(programs, MIN_RESIDENT_PROGRAMS - 1, -1)
    each = [min(REGISTER_FILE // (threads * n) // REGISTER_STEP * REGISTER_STEP, MAX_REGISTERS) for n in counts]
    return [n for n in dict.fromkeys(each) if n > used.registers][:MAX_CANDIDATES]
