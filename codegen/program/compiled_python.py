"""Compile generated Python once: the bytecode is in the disk cache.

Python takes 50 microseconds to compile a line, and a program with a hundred outputs has three hundred lines.
"""

from __future__ import annotations

import importlib.util
import marshal
import sys
from types import CodeType
from typing import Any

from ...tracer.trace.generated_python import file_name, show_source
from . import disk_cache as cache

MIN_CACHED = 4096  # characters: shorter texts are compiled faster than read from disk


def exec_cached(text: str, title: str, space: dict[str, Any]) -> None:
    """Run a text that defines functions in some space."""
    code = code_of(text, file_name(title, text))
    show_source(code, text)
    exec(code, space)


def code_of(text: str, name: str) -> CodeType:
    if len(text) < MIN_CACHED:
        return compile(text, name, "exec")
    version = f"{sys.implementation.cache_tag} {importlib.util.MAGIC_NUMBER.hex()} {sys.flags.optimize}"
    key = cache.key("python", version, name, text)
    data = cache.get(key)
    if data is not None:
        try:
            found = marshal.loads(data)
        except (ValueError, EOFError, TypeError):
            found = None
        if isinstance(found, CodeType):
            return found
    code = compile(text, name, "exec")
    cache.put(key, marshal.dumps(code))
    return code
