"""Loads LLVM's library without holding the GIL.

It is large, and relocating it takes as long as recording a small function. Python's own way of loading a library holds the
GIL meanwhile; calling dlopen through ctypes does not. llvmlite then finds the library loaded.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path


def load_without_gil() -> bool:
    """Load the library; False if that was not possible. Then llvmlite loads it, and reports what is wrong."""
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
