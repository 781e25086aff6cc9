"""Fork safety: makes a fork wait for compiling, linking, and creating per-process objects.

A child inherits the locks that other threads hold at that moment, and nobody in it will ever release them. So code that may
hold a lock of LLVM's or of this package's runs `with no_fork:`. Any number of threads may; a fork waits until none does, and
threads that want to begin wait for the fork.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

from llvmlite.binding import ffi

from ....tracer.execute.preload import notify_forks

MAX_FORK_WAIT = 60.0  # seconds: an interrupt at the wrong moment may have left the count too high


class ForkBlocker:
    """Context manager, reentrant, that counts the threads inside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads = 0
        self._forking = False
        self._own = threading.local()
        self._llvm: Any = getattr(ffi.lib, "_lock", nullcontext())  # llvmlite's lock, also taken to free its objects

    def __enter__(self) -> None:
        depth = getattr(self._own, "depth", 0)
        if depth == 0:
            with self._changed:
                while self._forking:
                    self._changed.wait()
                self._threads += 1
        self._own.depth = depth + 1

    def __exit__(self, *_: object) -> None:
        self._own.depth -= 1
        if self._own.depth == 0:
            with self._changed:
                self._threads -= 1
                self._changed.notify_all()

    def before_fork(self) -> None:
        self._changed.acquire()
        self._forking = True
        self._changed.wait_for(lambda: self._threads <= self._self(), MAX_FORK_WAIT)
        self._llvm.__enter__()

    def after_fork_in_child(self) -> None:
        self._threads = self._self()
        self.after_fork()

    def _self(self) -> int:
        """1 if this thread is inside, else 0."""
        return 1 if getattr(self._own, "depth", 0) else 0

    def after_fork(self) -> None:
        if not self._forking:
            return  # the fork began before this module was imported, and waited for that
        self._llvm.__exit__(None, None, None)
        self._forking = False
        self._changed.notify_all()
        self._changed.release()


no_fork = ForkBlocker()
init_lock = threading.RLock()  # for creating per-process objects; only ever held inside `no_fork`
notify_forks(no_fork)
