"""glibc's malloc settings: keep freed memory in the process for the next array, on Linux.

A training step frees and allocates the same large arrays again and again. By default glibc gives such memory back to the
system at once, and every new array is paid for in page faults: a fifth to a third of a small transformer's step. With these
settings it keeps up to `KEPT_BYTES` of freed memory in the process. This is a setting of the whole process;
TAPEJIT_MALLOC=default leaves it alone.
"""

from __future__ import annotations

import ctypes
import os
import sys

KEPT_BYTES = 512 << 20
MAX_HEAP_ARRAY_BYTES = 32 << 20  # larger arrays come from the system each time: glibc allows no more
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # mallopt's names for them


def keep_freed_memory() -> bool:
    """Set glibc's thresholds; return True if that was done."""
    if sys.platform != "linux" or os.environ.get("TAPEJIT_MALLOC") == "default":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_MMAP_THRESHOLD, MAX_HEAP_ARRAY_BYTES), (_TRIM_THRESHOLD, KEPT_BYTES), (_TOP_PAD, 16 << 20))
    return all(mallopt(name, value) == 1 for name, value in settings)
