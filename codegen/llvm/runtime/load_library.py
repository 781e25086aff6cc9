"""LLVM's library, loaded without Python's lock.

It is large, and making its addresses right takes as long as recording a small function. Python's own way of loading a library
holds the lock meanwhile; a call of the system's function does not. llvmlite finds the library loaded then.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path


def load_beside() -> bool:
    """Load it; whether that was done. If it was not, llvmlite does it, and says what is wrong."""
    if os.name != "posix" or "llvmlite.binding" in sys.modules:
        return False
    try:
        found = importlib.util.find_spec("llvmlite")
        if found is None or found.origin is None:
            return False
        path = Path(found.origin).parent / "binding" / ("libllvmlite.dylib" if sys.platform == "darwin" else "libllvmlite.so")
        load = ctypes.CDLL(None).dlopen
    except (ImportError, ValueError, OSError, AttributeError):
        return False
    load.argtypes, load.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    return path.is_file() and load(os.fsencode(path), os.RTLD_NOW) is not None
