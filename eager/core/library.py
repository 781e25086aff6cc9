"""Tells the library's own code from everybody else's: the one answer for guards, purity proofs, user lines and cache keys.

Nothing here depends on where a file lies below the package. Code belongs to the library by the package that it was imported as
part of; code that is *trusted* (a compiled function may skip it) carries an explicit marker, `TRUST`, in its module or in a
package around it, so that moving a file out of a marked package loses the trust and never widens it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

NAME = __name__.partition(".")[0]
ROOT = os.path.abspath(sys.modules[NAME].__path__[0])
LAYERS = ("eager", "tracer", "codegen")  # what else is in the package's folder (tests, examples) is the user's side
GENERATED = f"<{NAME} "  # how the file names of generated Python begin

# Values of the marker.
OPS = "ops"  # functions that do nothing but run ops
MODULES = "modules"  # classes of nn, and the functions they are made of
OPTIMIZERS = "optimizers"

_FOLDERS = {layer: os.path.join(ROOT, layer, "") for layer in LAYERS}
_SOURCES = (*_FOLDERS.values(), GENERATED)


def is_library(x: Any, layer: str | None = None) -> bool:
    """True if `x` is the library's own (of one layer, if given).

    Takes the name of a module, a module, a frame, a code object, or anything that has a `__module__`: a function, a class.
    """
    if isinstance(x, FrameType):
        x = x.f_code
    if isinstance(x, CodeType):
        return x.co_filename.startswith(_SOURCES if layer is None else _FOLDERS[layer])
    name = x if isinstance(x, str) else x.__name__ if isinstance(x, ModuleType) else getattr(x, "__module__", None)
    prefix = NAME if layer is None else f"{NAME}.{layer}"
    return isinstance(name, str) and (name == prefix or name.startswith(f"{prefix}."))


def defining_module(function: FunctionType) -> str:
    """The name of the module whose namespace a function runs in.

    Unlike `__module__`, which `functools.wraps` copies, it cannot be set from outside: a wrapper around a function of the
    library is its author's.
    """
    space = function.__globals__
    name = space.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return str(name) if module is not None and vars(module) is space else ""


def without_library_decorators(function: FunctionType) -> FunctionType:
    """Unwrap a function, as far as its decorators are the library's own."""
    while is_library(defining_module(function)):
        inner = function.__dict__.get("__wrapped__")
        if not isinstance(inner, FunctionType):
            break
        function = inner
    return function


def trust_of(x: Any) -> str | None:
    """The marker of a function's, class's or module's code: that of its module, or of the nearest package that has one."""
    if isinstance(x, FunctionType):
        x = defining_module(x)
    name = x if isinstance(x, str) else getattr(x, "__module__", None)
    return _marker(name) if isinstance(name, str) and is_library(name) else None


def is_trusted(x: Any, *kinds: str) -> bool:
    """True if the code of `x` carries one of these markers."""
    return trust_of(x) in kinds


@functools.cache
def _marker(name: str) -> str | None:
    while name:
        found = vars(sys.modules[name]).get("TRUST") if name in sys.modules else None
        if found is not None:
            return str(found)
        name = name.rpartition(".")[0]
    return None


def hash_sources(folder: str, skip: Iterable[str] = ()) -> str:
    """A hash of all Python files below a folder, with their relative paths, without the subfolders named in `skip`."""
    skipped = {os.path.join(folder, name) for name in skip}
    found: list[bytes] = []
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if os.path.join(here, name) not in skipped and name != "__pycache__")
        for name in sorted(files):
            if name.endswith(".py"):
                path = os.path.join(here, name)
                with open(path, "rb", buffering=0) as file:
                    found += (os.path.relpath(path, folder).encode(), b"\0", file.read(), b"\0")
    return hashlib.sha256(b"".join(found)).hexdigest()  # in one call: each takes the interpreter's lock again
