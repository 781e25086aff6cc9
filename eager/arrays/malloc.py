"""Keeping freed memory for the next array, on Linux with glibc.

A training step frees and allocates the same large arrays again and again. By default glibc gives such memory back to the
system at once, and every new array is paid for in page faults: a fifth to a third of a small transformer's step. Told not
to, it keeps up to `KEPT` bytes of freed memory in the process. This is a setting of the whole process;
TAPEJIT_MALLOC=default leaves it alone.
"""

from __future__ import annotations

import ctypes
import os
import sys

KEPT = 512 << 20
LARGEST = 32 << 20  # larger arrays come from the system each time: glibc allows no more
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # mallopt's names for them


def keep_freed_memory() -> bool:
    """Ask glibc to; whether it was done."""
    if sys.platform != "linux" or os.environ.get("TAPEJIT_MALLOC") == "default":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_MMAP_THRESHOLD, LARGEST), (_TRIM_THRESHOLD, KEPT), (_TOP_PAD, 16 << 20))
    return all(mallopt(name, value) == 1 for name, value in settings)
