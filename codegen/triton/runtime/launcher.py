"""Runs the launch plan of a GPU program: a flat list of launches on CuPy's current stream.

All kernel arguments are in one table of 8-byte words: addresses of arrays, numbers that a call brings, places in the arena.
Parameters of launches point into that table, so a call writes each value once, however many kernels read it. The
driver copies parameters when a kernel is launched; the table is free again at once.

Flags that a check sets are copied to the CPU as soon as the check is done, and looked at just before memory that somebody can
see is written: the device has work enough until then, and does not wait. Nothing else synchronises.

The first run is a careful one: what it is about to write is kept, and it is waited for, so that a device that refuses a kernel
leaves everything as it was.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from ....eager.arrays.devices import device
from ...program.executable import Executable, decode_array
from ..matmul.cublas import GemmCall, calling
from .arena import arena_of
from .cuda_graph import MIN_GRAPH_LAUNCHES, Captured, words_of
from .driver import load_kernel
from .kernel_cache import Binary

ALIGNED = 16
KERNEL, GEMM, OP, LOOK, WAIT = "kernel", "gemm", "op", "look", "wait"
FORMATS = {"double": "d", "i64": "q", "bits": "Q"}
address = attrgetter("data.ptr")


@dataclass
class KernelLaunch:
    """One launch of a compiled kernel."""

    binary: str  # the key of its code in the disk cache
    grid: int
    words: list[int]  # for each parameter: its word of the table


@dataclass(kw_only=True)
class LaunchPlan:
    """Everything a call does on the device, in order. Words of the table are, one kind after the other: addresses of arrays,
    numbers, places in the arena, tables in memory, constants, integers."""

    places: list[int]  # offsets in the arena
    starts: list[int]  # offsets in the memory of tables
    integers: list[int]
    rows: list[KernelLaunch]
    calls: list[GemmCall]  # cuBLAS calls
    order: list[tuple[str, int]]  # KERNEL, GEMM, OP, LOOK or WAIT, and which of these
    flags: list[int]  # offsets in the arena of what checks set
    tables: list[int]  # words that kernels find in memory
    written: list[int]  # slots of all inputs that are written
    first_write: int  # the first entry of the order that writes one

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> LaunchPlan:
        """Inverse of `asdict` after a round trip through JSON."""
        fields["rows"] = [KernelLaunch(**x) for x in fields["rows"]]
        fields["calls"] = [GemmCall(**x) for x in fields["calls"]]
        fields["order"] = [(kind, n) for kind, n in fields["order"]]
        return cls(**fields)


class LaunchRefusedError(Exception):
    """Device refused a launch; all memory is as it was before."""


class Launcher:
    """Runs a launch plan on the arrays and numbers of one call after the other. `ops` are opaque ops, by unit: functions of
    both."""

    def __init__(self, executable: Executable, plan: LaunchPlan, binaries: dict[str, Binary], xp: Any, where: device) -> None:
        self.executable = executable
        self.plan = plan
        self.xp = xp
        self.where = where
        self.arena = arena_of(xp, where)
        self.memory: Any = None  # the arena's block
        self.tables = xp.cuda.alloc(max(8 * len(plan.tables), 1))
        self.constants = [xp.asarray(decode_array(c).reshape(-1).view(np.uint8)) for c in executable.constants]
        self.host = xp.cuda.alloc_pinned_memory(max(len(plan.flags), 1))
        self.seen = np.frombuffer(self.host, np.uint8, max(len(plan.flags), 1))
        self.event = xp.cuda.Event(disable_timing=True)
        self.careful = True
        self.ops: dict[int, Any] = {}
        self.make_table()
        self.make_rows(binaries)
        self.calls = [calling(xp, call) for call in plan.calls]
        self.intact = True  # True until an input is written
        if executable.constants:
            xp.cuda.get_current_stream().synchronize()  # programs run on any stream
        parts = in_parts(plan.order, plan.first_write)
        self.parts = [(kind, numbers, self.launches(kind, numbers), intact) for kind, numbers, intact in parts]

    # ---- the table

    def make_table(self) -> None:
        executable, plan = self.executable, self.plan
        self.count = len(executable.bound)
        self.dynamic = self.count + len(executable.numbers)
        fixed = [0] * len(plan.places) + [self.tables.ptr + at for at in plan.starts]
        fixed += [c.data.ptr for c in self.constants] + [n % (1 << 64) for n in plan.integers]
        self.words = np.zeros(max(self.dynamic + len(fixed), 1), np.uint64)
        self.words[self.dynamic :][: len(fixed)] = fixed
        self.bytes = self.words.data.cast("B")
        self.format = f"={self.count}Q"
        self.number_format = "=" + "".join(FORMATS[kind] for _, kind in executable.numbers)
        self.arrays_of = getter(executable.bound)
        self.numbers_of = getter([n for n, _ in executable.numbers])
        self.wraps = [i for i, (_, kind) in enumerate(executable.numbers) if kind == "bits"]
        self.table_words = np.array(plan.tables, np.int64)
        self.image: Any = None  # current contents of the tables in device memory

    def bind(self, arrays: list[Any], scalars: list[Any]) -> bool:
        """Write the addresses and numbers of a call into the table; True if all addresses are multiples of 16."""
        struct.pack_into(self.format, self.bytes, 0, *map(address, self.arrays_of(arrays)))
        if self.executable.numbers:
            numbers = list(self.numbers_of(scalars))
            for i in self.wraps:
                numbers[i] %= 1 << 64
            struct.pack_into(self.number_format, self.bytes, 8 * self.count, *numbers)
        return not int(np.bitwise_or.reduce(self.words[: self.count], initial=0)) % ALIGNED

    def unaligned(self) -> list[int]:
        """Slots of arrays whose addresses are no multiples of 16 bytes."""
        return [s for s, at in zip(self.executable.bound, self.words, strict=False) if int(at) % ALIGNED]

    def write_tables(self, stream: Any) -> None:
        """Copy tables to the device if their contents changed. The source is read before this returns."""
        image = self.words[self.table_words]
        if self.image is None or not np.array_equal(image, self.image):
            runtime, self.image = self.xp.cuda.runtime, image
            runtime.memcpyAsync(self.tables.ptr, image.ctypes.data, image.nbytes, runtime.memcpyHostToDevice, stream.ptr)

    # ---- launches

    def make_rows(self, binaries: dict[str, Binary]) -> None:
        """Prepare the arguments of the driver's launch function, all but the stream."""
        rows = self.plan.rows
        pointers = [8 * w for row in rows for w in row.words]
        self.parameters = np.array(pointers, np.uint64) + np.uint64(self.words.ctypes.data)
        self.kept = [load_kernel(self.xp, self.where, row.binary, binaries[row.binary]) for row in rows]
        self.rows: list[tuple[tuple[int, ...], int]] = []
        at = int(self.parameters.ctypes.data)
        for row, kernel in zip(rows, self.kept, strict=True):
            binary = binaries[row.binary]
            self.rows.append(((kernel.function, row.grid, 1, 1, binary.threads, 1, 1, binary.shared), at))
            at += 8 * len(row.words)

    def launches(self, kind: str, numbers: list[int]) -> Captured | None:
        """Make a callable that launches some kernels, one by one or as a CUDA graph."""
        if kind != KERNEL:
            return None
        launch, rows = self.xp.cuda.driver.launchKernel, [self.rows[n] for n in numbers]

        def one_by_one(stream: int) -> None:
            for given, parameters in rows:
                launch(*given, stream, parameters, 0)

        found = Captured(self.xp, one_by_one, words_of([self.plan.rows[n].words for n in numbers], self.dynamic))
        found.given_up = len(numbers) < MIN_GRAPH_LAUNCHES
        return found

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> bool:
        """Run once. False if a check failed; then only inputs that the wrapper restores may have been written."""
        stream = self.xp.cuda.get_current_stream()
        self.arena.follow(stream)
        block = self.arena.reserve(self.executable.arena)
        if block is not self.memory:
            self.move(block)
        if self.careful:
            return self.carefully(arrays, scalars, stream)
        try:
            return self.go(arrays, scalars, stream)
        except Exception as reason:
            if self.intact:
                raise LaunchRefusedError(str(reason)) from reason
            raise RuntimeError(
                f"[compile] the device failed in the middle of a program ({reason}), and some tensors are written already: "
                "load the last checkpoint"
            ) from reason

    def move(self, block: Any) -> None:
        """Point all words at another block of the arena."""
        self.memory = block
        at = np.array(self.plan.places, np.uint64) + np.uint64(block.ptr)
        self.words[self.dynamic :][: len(at)] = at
        for _, _, launches, _ in self.parts:
            if launches is not None:
                launches.forget()

    def carefully(self, arrays: list[Any], scalars: list[Any], stream: Any) -> bool:
        self.careful = False
        try:
            old = {slot: arrays[slot].copy(order="K") for slot in self.plan.written}
        except self.xp.cuda.memory.OutOfMemoryError:  # no room to be careful
            return self(arrays, scalars)
        try:
            found = self.go(arrays, scalars, stream)
            stream.synchronize()
        except Exception as reason:
            for slot, array in old.items():
                arrays[slot][...] = array
            raise LaunchRefusedError(str(reason)) from reason
        return found

    def go(self, arrays: list[Any], scalars: list[Any], stream: Any) -> bool:
        if self.plan.tables:
            self.write_tables(stream)
        self.seen[:] = 0
        for kind, numbers, launches, intact in self.parts:
            self.intact = intact
            if launches is not None:
                launches(self.words, stream)
            elif kind == GEMM:
                self.calls[numbers[0]](self.words)
            elif kind == OP:
                try:
                    self.ops[numbers[0]](arrays, scalars)
                except Exception:  # the reference program raises it at the right place
                    return False
            elif kind == LOOK:
                self.look(numbers, stream)
            else:
                self.event.synchronize()
                if self.seen.any():
                    return False
        return True

    def look(self, flags: list[int], stream: Any) -> None:
        """Start copying flags to the host."""
        runtime = self.xp.cuda.runtime
        for n in flags:
            source = self.memory.ptr + self.plan.flags[n]
            runtime.memcpyAsync(self.host.ptr + n, source, 1, runtime.memcpyDeviceToHost, stream.ptr)
        self.event.record(stream)


def in_parts(order: list[tuple[str, int]], first_write: int) -> list[tuple[str, list[int], bool]]:
    """Group consecutive launches, and consecutive copies of flags; True for groups that end before an input is written."""
    found: list[tuple[str, list[int], bool]] = []
    for i, (kind, n) in enumerate(order):
        if found and found[-1][0] == kind and kind in (KERNEL, LOOK):
            found[-1] = kind, [*found[-1][1], n], i < first_write
        else:
            found.append((kind, [n], i < first_write))
    return found


def getter(places: list[int]) -> Any:
    """Make a function of a list that returns a tuple of some of its elements."""
    if not places:
        return lambda _: ()
    if len(places) == 1:
        return lambda x, n=places[0]: (x[n],)
    return itemgetter(*places)
