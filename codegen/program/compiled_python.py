"""Python that was written for a program, compiled once: what it compiles to is in the disk cache.

Python takes 50 microseconds for a line of it, and a program with a hundred outputs has three hundred.
"""

from __future__ import annotations

import importlib.util
import marshal
import sys
from types import CodeType
from typing import Any

from . import disk_cache as cache

LONG = 4096  # characters: what is shorter is compiled sooner than found


def written(text: str, name: str, space: dict[str, Any]) -> None:
    """Run a text that defines things in some space."""
    exec(code_of(text, name), space)


def code_of(text: str, name: str) -> CodeType:
    if len(text) < LONG:
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
