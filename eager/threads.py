"""A few threads for the pieces of large kernels. They run beside one another because NumPy lets go of Python's lock while it
computes; matrix products have threads of their own, in the BLAS library.

Results never depend on the number of threads: a piece is computed the same way wherever it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def _cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Threads:
    count = _cores()
    pool: ThreadPoolExecutor | None = None


_threads = _Threads()


def set_num_threads(num: int) -> None:
    """How many threads the pieces of a large kernel run on. Matrix products follow the BLAS library (OPENBLAS_NUM_THREADS)."""
    if not isinstance(num, int) or isinstance(num, bool):
        raise TypeError(f"set_num_threads expects an int, but got {type(num).__name__}")
    if num < 1:
        raise RuntimeError(f"set_num_threads expects a positive integer, got {num}")
    _threads.count, _threads.pool = num, None


def get_num_threads() -> int:
    """How many threads the pieces of a large kernel run on."""
    return _threads.count


def run_all(task: Callable[[int], None], parts: int) -> None:
    """task(0), ..., task(parts - 1), beside one another; the last one on this thread. An error in any of them is raised."""
    if parts == 1 or _threads.count == 1:
        for i in range(parts):
            task(i)
        return
    pool = _threads.pool
    if pool is None:
        pool = _threads.pool = ThreadPoolExecutor(_threads.count - 1, thread_name_prefix="tapejit")
    others = [pool.submit(task, i) for i in range(parts - 1)]
    try:
        task(parts - 1)
    finally:
        for other in others:
            other.result()


def _forget_pool() -> None:
    """A forked child has none of its parent's threads."""
    _threads.pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
