"""The threads that run steps together: one pool for the process, made when the first step wants it.

A step is `void step(ptr table, i64 thread, i64 threads, ptr pool)`, and `void tj_barrier(ptr pool)` inside it returns when all
threads have come there; its `pool` is a handle that each thread has for itself. `tj.set_num_threads` counts from the next step
on. A caller that finds the pool busy with somebody else's step runs its own alone; results do not depend on that.

After a fork the child has no workers and makes its own when it needs them. At exit they are stopped; the memory they look at is
never freed.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import time

from ....eager import backends
from . import jit
from .thread_pool_ir import LAYOUT, MOST_THREADS, POOL_BYTES, SLOT_BYTES, text
from ..ir.target import host
from .fork_safety import at_work, making

PATIENCE, HASTE, BRIEF = 1.5e-3, 1e-4, 5e-4  # seconds; what they are for is said in `pool.LAYOUT`
EXPORTS = ("tj_run", "tj_barrier", "tj_alone", "tj_ticks", "tj_stop", "tj_prepare")


class Pool:
    """Memory that the workers share, and the code they run."""

    def __init__(self, parking: str) -> None:
        architecture = host().triple.split("-")[0].replace("arm64", "aarch64")
        self.library = jit.link(jit.objects([text(architecture, parking)], opt=0), {}, EXPORTS)
        self._memory = ctypes.create_string_buffer(POOL_BYTES + SLOT_BYTES)
        start = ctypes.addressof(self._memory)
        self.address = start + -start % SLOT_BYTES
        self.parking = parking
        self._ticks = ctypes.CFUNCTYPE(ctypes.c_int64)(self.library["tj_ticks"])
        self._stop = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(self.library["tj_stop"])
        self._prepare = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.library["tj_prepare"])
        run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._run = run(self.library["tj_run"])
        self.ticks_per_second = self._measure_ticks()
        self.word("wanted").value = backends.thread_count.buffer_info()[0]
        for name, seconds in (("patience", PATIENCE), ("haste", HASTE), ("brief", BRIEF)):
            self.word(name).value = int(seconds * self.ticks_per_second)
        self._prepare(self.address)

    def word(self, name: str) -> ctypes.c_int64:
        """An i64 of the pool."""
        return ctypes.c_int64.from_address(self.address + LAYOUT[name])

    @property
    def threads(self) -> int:
        """How many there are, the caller too; 0 before the first step that was run together."""
        return self.word("threads").value

    def imports(self) -> dict[str, int]:
        """What generated code calls, by name."""
        return {name: self.library[name] for name in EXPORTS}

    def run(self, step: int, table: int, most: int = MOST_THREADS) -> int:
        """A step, by its address, on all threads, `most` at most; returns when it is done.

        0: it ran alone; 1: together; 2: together, and most waits had to park.
        """
        return self._run(self.address, step, table, most)

    def stop(self) -> bool:
        """Ends the workers, for good: steps run alone from now on. Not while a step is running."""
        return self._stop(self.address) != 0

    def forget(self) -> None:
        """In a child after a fork, where no worker is: as if none had ever been made."""
        ctypes.memset(self.address, 0, LAYOUT["wanted"])
        self._prepare(self.address)

    def _measure_ticks(self) -> float:
        """In a second, of the counter that spinning is timed by."""
        began, first = self._both_clocks()
        while time.perf_counter() - began < 2e-4:
            pass
        ended, last = self._both_clocks()
        return (last - first) / (ended - began)

    def _both_clocks(self) -> tuple[float, int]:
        """Read at the same moment: of a few readings, the one that was least interrupted."""
        readings = []
        for _ in range(5):
            before, ticks, after = time.perf_counter(), self._ticks(), time.perf_counter()
            readings.append((after - before, before, ticks))
        _, when, ticks = min(readings)
        return when, ticks


def pool() -> Pool:
    """The pool of this process."""
    if not _made:
        with at_work, making:
            if not _made:
                _made.append(_make())
    return _made[0]


def _make() -> Pool:
    made = Pool("futex" if sys.platform == "linux" else "condition" if os.name == "posix" else "none")
    atexit.register(_stop_at_exit, made)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=made.forget)
    return made


_made: list[Pool] = []  # one at most, for good: workers may look at its memory until the very end


def _stop_at_exit(pool: Pool) -> None:
    """A step that another thread still runs gets a moment; then the process ends with the workers in it, which is safe too."""
    for _ in range(100):
        if pool.stop():
            return
        time.sleep(0.01)
