"""Running a program on a GPU: a flat list of launches, on CuPy's current stream.

Whatever kernels are given stands in one table of 8 bytes for each value: addresses of arrays, numbers that a call brings,
places in the arena. Parameters of launches point into that table, so a call writes each value once, whoever reads it. The
driver copies parameters when a kernel is launched; the table is free again at once.

Flags that a check sets are copied to the CPU as soon as the check is done, and looked at just before memory that somebody can
see is written: the device has work enough until then, and does not wait. Nothing else synchronises.

The first run is a careful one: what it is about to write is kept, and it is waited for, so that a device that refuses a kernel
leaves everything as it was.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import asdict, dataclass
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from ....eager.arrays.devices import device
from .kernel_cache import Binary
from ..matmul.cublas import Call, calling
from .cuda_graph import FEWEST, Captured, words_of
from .driver import loaded
from .arena import arena_of

ALIGNED = 16
KERNEL, GEMM, OP, LOOK, WAIT = "kernel", "gemm", "op", "look", "wait"
FORMATS = {"double": "d", "i64": "q", "bits": "Q"}
address = attrgetter("data.ptr")


@dataclass
class Row:
    """One launch."""

    binary: str  # the key of its code
    grid: int
    words: list[int]  # of the table: one for each parameter


@dataclass
class Recipe:
    """All that it takes to run a program, as JSON too. Words of the table are: addresses of arrays, numbers, places in the
    arena, tables in memory, constants, integers."""

    slots: int  # how many arrays there are
    bound: list[int]  # slots, those after all arrays are new memories
    numbers: list[tuple[int, str]]  # place and kind
    arena: int  # bytes
    places: list[int]  # offsets in the arena
    starts: list[int]  # offsets in the memory of tables
    constants: list[str]  # bytes
    integers: list[int]
    rows: list[Row]
    calls: list[Call]  # of cuBLAS
    order: list[tuple[str, int]]  # a kernel, a call, an op called as it is, a flag that is copied, a look at all of these
    flags: list[int]  # offsets in the arena of what checks set
    tables: list[int]  # words that kernels find in memory
    memories: list[int]  # of each new memory: the output whose form it has
    shown: list[int]  # of each output: the slot of the memory that it shows
    danger: list[int]  # slots of inputs that are written before something may fail
    written: list[int]  # slots of all inputs that are written
    first_write: int  # the first entry of the order that writes one
    checked: bool = False  # no flag among the arrays
    steps: tuple[str, ...] = ("all",)  # one program, which says whether all went well

    def text(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def from_text(data: bytes) -> Recipe:
    found = Recipe(**json.loads(data))
    found.rows = [Row(**r) for r in found.rows]  # type: ignore[arg-type]
    found.calls = [Call(**c) for c in found.calls]  # type: ignore[arg-type]
    found.order = [(kind, n) for kind, n in found.order]
    found.numbers = [(n, kind) for n, kind in found.numbers]
    found.steps = tuple(found.steps)
    return found


class RefusedError(Exception):
    """The device did not do what it was asked to; all is as it was before."""


class Launcher:
    """Launches what a recipe says. `ops` are the ops that are called as they are, by unit: functions of arrays and numbers."""

    def __init__(self, recipe: Recipe, binaries: dict[str, Binary], xp: Any, where: device) -> None:
        self.recipe = recipe
        self.xp = xp
        self.where = where
        self.arena = arena_of(xp, where)
        self.memory: Any = None  # the arena's block
        self.tables = xp.cuda.alloc(max(8 * len(recipe.tables), 1))
        self.constants = [xp.asarray(np.frombuffer(base64.b64decode(c), np.uint8)) for c in recipe.constants]
        self.host = xp.cuda.alloc_pinned_memory(max(len(recipe.flags), 1))
        self.seen = np.frombuffer(self.host, np.uint8, max(len(recipe.flags), 1))
        self.event = xp.cuda.Event(disable_timing=True)
        self.careful = True
        self.ops: dict[int, Any] = {}
        self.make_table()
        self.make_rows(binaries)
        self.calls = [calling(xp, call) for call in recipe.calls]
        self.intact = True  # whether no input has been written yet
        if recipe.constants:
            xp.cuda.get_current_stream().synchronize()  # programs run on any stream
        parts = in_parts(recipe.order, recipe.first_write)
        self.parts = [(kind, numbers, self.launches(kind, numbers), intact) for kind, numbers, intact in parts]

    # ---- the table

    def make_table(self) -> None:
        recipe = self.recipe
        self.count = len(recipe.bound)
        self.dynamic = self.count + len(recipe.numbers)
        fixed = [0] * len(recipe.places) + [self.tables.ptr + at for at in recipe.starts]
        fixed += [c.data.ptr for c in self.constants] + [n % (1 << 64) for n in recipe.integers]
        self.words = np.zeros(max(self.dynamic + len(fixed), 1), np.uint64)
        self.words[self.dynamic :][: len(fixed)] = fixed
        self.bytes = self.words.data.cast("B")
        self.format = f"={self.count}Q"
        self.number_format = "=" + "".join(FORMATS[kind] for _, kind in recipe.numbers)
        self.arrays_of = getter(recipe.bound)
        self.numbers_of = getter([n for n, _ in recipe.numbers])
        self.wraps = [i for i, (_, kind) in enumerate(recipe.numbers) if kind == "bits"]
        self.table_words = np.array(recipe.tables, np.int64)
        self.image: Any = None  # what the tables in memory hold

    def bind(self, arrays: list[Any], scalars: list[Any]) -> bool:
        """Write what this call brings into the table; whether all addresses are multiples of 16."""
        struct.pack_into(self.format, self.bytes, 0, *map(address, self.arrays_of(arrays)))
        if self.recipe.numbers:
            numbers = list(self.numbers_of(scalars))
            for i in self.wraps:
                numbers[i] %= 1 << 64
            struct.pack_into(self.number_format, self.bytes, 8 * self.count, *numbers)
        return not int(np.bitwise_or.reduce(self.words[: self.count], initial=0)) % ALIGNED

    def unaligned(self) -> list[int]:
        """The slots of arrays whose addresses are no multiples of 16 bytes."""
        return [s for s, at in zip(self.recipe.bound, self.words, strict=False) if int(at) % ALIGNED]

    def write_tables(self, stream: Any) -> None:
        """Tables in memory, if what they hold is another thing now. What is copied is read before this returns."""
        image = self.words[self.table_words]
        if self.image is None or not np.array_equal(image, self.image):
            runtime, self.image = self.xp.cuda.runtime, image
            runtime.memcpyAsync(self.tables.ptr, image.ctypes.data, image.nbytes, runtime.memcpyHostToDevice, stream.ptr)

    # ---- launches

    def make_rows(self, binaries: dict[str, Binary]) -> None:
        """Launches as arguments of the driver's function, which are the stream and what is around it."""
        rows = self.recipe.rows
        pointers = [8 * w for row in rows for w in row.words]
        self.parameters = np.array(pointers, np.uint64) + np.uint64(self.words.ctypes.data)
        self.kept = [loaded(self.xp, self.where, row.binary, binaries[row.binary]) for row in rows]
        self.rows: list[tuple[tuple[int, ...], int]] = []
        at = int(self.parameters.ctypes.data)
        for row, kernel in zip(rows, self.kept, strict=True):
            binary = binaries[row.binary]
            self.rows.append(((kernel.function, row.grid, 1, 1, binary.threads, 1, 1, binary.shared), at))
            at += 8 * len(row.words)

    def launches(self, kind: str, numbers: list[int]) -> Captured | None:
        """What launches some kernels, one by one or as a graph."""
        if kind != KERNEL:
            return None
        launch, rows = self.xp.cuda.driver.launchKernel, [self.rows[n] for n in numbers]

        def one_by_one(stream: int) -> None:
            for given, parameters in rows:
                launch(*given, stream, parameters, 0)

        found = Captured(self.xp, one_by_one, words_of([self.recipe.rows[n].words for n in numbers], self.dynamic))
        found.given_up = len(numbers) < FEWEST
        return found

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> bool:
        """Whether all went well; if not, a check has failed, and only what is in danger may have been written."""
        stream = self.xp.cuda.get_current_stream()
        self.arena.follow(stream)
        block = self.arena.reserved(self.recipe.arena)
        if block is not self.memory:
            self.move(block)
        if self.careful:
            return self.carefully(arrays, scalars, stream)
        try:
            return self.go(arrays, scalars, stream)
        except Exception as reason:
            if self.intact:
                raise RefusedError(str(reason)) from reason
            raise RuntimeError(
                f"[compile] the device failed in the middle of a program ({reason}), and some tensors are written already: "
                "load the last checkpoint"
            ) from reason

    def move(self, block: Any) -> None:
        """The arena is another block."""
        self.memory = block
        at = np.array(self.recipe.places, np.uint64) + np.uint64(block.ptr)
        self.words[self.dynamic :][: len(at)] = at
        for _, _, launches, _ in self.parts:
            if launches is not None:
                launches.forget()

    def carefully(self, arrays: list[Any], scalars: list[Any], stream: Any) -> bool:
        self.careful = False
        try:
            old = {slot: arrays[slot].copy(order="K") for slot in self.recipe.written}
        except self.xp.cuda.memory.OutOfMemoryError:  # no room to be careful
            return self(arrays, scalars)
        try:
            found = self.go(arrays, scalars, stream)
            stream.synchronize()
        except Exception as reason:
            for slot, array in old.items():
                arrays[slot][...] = array
            raise RefusedError(str(reason)) from reason
        return found

    def go(self, arrays: list[Any], scalars: list[Any], stream: Any) -> bool:
        if self.recipe.tables:
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
                except Exception:  # what it raises, the plain program raises in the right place
                    return False
            elif kind == LOOK:
                self.look(numbers, stream)
            else:
                self.event.synchronize()
                if self.seen.any():
                    return False
        return True

    def look(self, flags: list[int], stream: Any) -> None:
        """Have flags copied to where the CPU can see them."""
        runtime = self.xp.cuda.runtime
        for n in flags:
            source = self.memory.ptr + self.recipe.flags[n]
            runtime.memcpyAsync(self.host.ptr + n, source, 1, runtime.memcpyDeviceToHost, stream.ptr)
        self.event.record(stream)


def in_parts(order: list[tuple[str, int]], first_write: int) -> list[tuple[str, list[int], bool]]:
    """Runs of launches, and of looks, that follow one another, and whether no input is written by then."""
    found: list[tuple[str, list[int], bool]] = []
    for i, (kind, n) in enumerate(order):
        if found and found[-1][0] == kind and kind in (KERNEL, LOOK):
            found[-1] = kind, [*found[-1][1], n], i < first_write
        else:
            found.append((kind, [n], i < first_write))
    return found


def getter(places: list[int]) -> Any:
    """A function of a list that gives a tuple of some of its elements."""
    if not places:
        return lambda _: ()
    if len(places) == 1:
        return lambda x, n=places[0]: (x[n],)
    return itemgetter(*places)


def encoded(array: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
