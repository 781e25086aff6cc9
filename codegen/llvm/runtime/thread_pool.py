"""Thread pool that runs steps: one per process, created when the first step needs it.

A step is `void step(ptr table, i64 thread, i64 threads, ptr pool)`; `void tj_barrier(ptr pool)` inside it returns when all
threads have reached it, where `pool` is a per-thread handle. `tj.set_num_threads` applies from the next step on. A caller
that finds the pool busy with another thread's step runs its own alone; results do not depend on that.

After a fork the child has no workers and creates its own when needed. At exit they are stopped; the memory they read is
never freed.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import time

from ....eager import backends
from ..ir.target import host
from . import jit
from .fork_safety import init_lock, no_fork
from .thread_pool_ir import MAX_THREADS, POOL_BYTES, POOL_LAYOUT, SLOT_BYTES, pool_ir

STEP_SPIN_SECONDS, BARRIER_SPIN_SECONDS, BRIEF_STEP_SECONDS = (
    1.5e-3,
    1e-4,
    5e-4,
)  # see `thread_pool_ir.POOL_LAYOUT`
EXPORTS = ("tj_run", "tj_barrier", "tj_alone", "tj_ticks", "tj_stop", "tj_prepare")


class ThreadPool:
    """Memory that the workers share, and the code they run."""

    def __init__(self, parking: str) -> None:
        architecture = host().triple.split("-")[0].replace("arm64", "aarch64")
        self.library = jit.link(jit.objects([pool_ir(architecture, parking)], opt=0), {}, EXPORTS)
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
        for name, seconds in (("patience", STEP_SPIN_SECONDS), ("haste", BARRIER_SPIN_SECONDS), ("brief", BRIEF_STEP_SECONDS)):
            self.word(name).value = int(seconds * self.ticks_per_second)
        self._prepare(self.address)

    def word(self, name: str) -> ctypes.c_int64:
        """An i64 of the pool."""
        return ctypes.c_int64.from_address(self.address + POOL_LAYOUT[name])

    @property
    def threads(self) -> int:
        """Number of threads, the caller included; 0 before the first step that ran on several."""
        return self.word("threads").value

    def imports(self) -> dict[str, int]:
        """Addresses of the functions that generated code calls, by name."""
        return {name: self.library[name] for name in EXPORTS}

    def run(self, step: int, table: int, most: int = MAX_THREADS) -> int:
        """Run a step, by its address, on all threads, at most `most`; returns when it is done.

        0: it ran alone; 1: together; 2: together, and most waits had to park.
        """
        return self._run(self.address, step, table, most)

    def stop(self) -> bool:
        """Stop the workers for good: steps run alone from now on. False while a step is running."""
        return self._stop(self.address) != 0

    def forget(self) -> None:
        """Reset in a forked child, where no worker exists."""
        ctypes.memset(self.address, 0, POOL_LAYOUT["wanted"])
        self._prepare(self.address)

    def _measure_ticks(self) -> float:
        """Ticks per second of the counter that times spinning."""
        began, first = self._both_clocks()
        while time.perf_counter() - began < 2e-4:
            pass
        ended, last = self._both_clocks()
        return (last - first) / (ended - began)

    def _both_clocks(self) -> tuple[float, int]:
        """Both clocks at the same moment: of a few readings, the least interrupted one."""
        readings = []
        for _ in range(5):
            before, ticks, after = time.perf_counter(), self._ticks(), time.perf_counter()
            readings.append((after - before, before, ticks))
        _, when, ticks = min(readings)
        return when, ticks


def process_pool() -> ThreadPool:
    """The pool of this process."""
    if not _pools:
        with no_fork, init_lock:
            if not _pools:
                _pools.append(_make_pool())
    return _pools[0]


def _make_pool() -> ThreadPool:
    made = ThreadPool("futex" if sys.platform == "linux" else "condition" if os.name == "posix" else "none")
    atexit.register(_stop_at_exit, made)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=made.forget)
    return made


_pools: list[ThreadPool] = []  # one at most, and never freed: workers may read its memory until the very end


def _stop_at_exit(pool: ThreadPool) -> None:
    """Stop the workers. A step that another thread still runs gets a moment; then the process ends with its workers, which
    is safe too."""
    for _ in range(100):
        if pool.stop():
            return
        time.sleep(0.01)
