"""Work that a fork has to wait for: compiling, linking, making what a process has one of.

A child inherits the locks that other threads hold at that moment, and nobody in it will ever release them. So whoever may hold
one of LLVM's or of this package's does it `with at_work:`. Any number of threads may; a fork waits until none does, and those
that want to begin wait for the fork.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

from llvmlite.binding import ffi

from ....tracer.execute.preload import around_forks

LONGEST_WAIT = 60.0  # seconds that a fork waits: an interrupt at the wrong moment may have left the count too high


class Work:
    """Counts the threads that are at work. They may enter again inside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads = 0
        self._forking = False
        self._own = threading.local()
        self._llvm: Any = getattr(ffi.lib, "_lock", nullcontext())  # llvmlite's, which freeing its objects takes too

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
        self._changed.wait_for(lambda: self._threads <= self._self(), LONGEST_WAIT)
        self._llvm.__enter__()

    def after_fork_in_child(self) -> None:
        self._threads = self._self()
        self.after_fork()

    def _self(self) -> int:
        """1 if this thread is at work, else 0."""
        return 1 if getattr(self._own, "depth", 0) else 0

    def after_fork(self) -> None:
        if not self._forking:
            return  # the fork has waited for this to be imported, and began before it was there
        self._llvm.__exit__(None, None, None)
        self._forking = False
        self._changed.notify_all()
        self._changed.release()


at_work = Work()
making = threading.RLock()  # for what a process has one of; only ever held inside `at_work`
around_forks(at_work)
