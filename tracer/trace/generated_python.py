"""Compile generated Python source, and make it visible to pdb and tracebacks. All generated Python goes through this module.

The source is entered into `linecache` under a file name that begins with `<tapejit ` (by which `eager/core/library.py`
recognises generated code) and ends with a hash of the source. The entry is removed when the last code object compiled from that
source is collected.
"""

from __future__ import annotations

import hashlib
import linecache
import threading
import weakref
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from ...eager.core.library import GENERATED

_lock = threading.RLock()  # reentrant: code objects may be collected at any time, also while it is held
_users: dict[str, int] = {}  # by file name: number of live code objects
_entries: dict[int, _Entry] = {}  # keeps the weak references alive


class _Entry(weakref.ref[CodeType]):
    """Weak reference to a code object that still has its file name after the code object is collected."""

    __slots__ = ("filename",)
    filename: str


def _drop(entry: weakref.ref[CodeType]) -> None:
    assert isinstance(entry, _Entry)
    with _lock:
        del _entries[id(entry)]
        left = _users[entry.filename] = _users[entry.filename] - 1
        if not left:
            del _users[entry.filename]
            linecache.cache.pop(entry.filename, None)


def file_name(title: str, text: str) -> str:
    """Return a file name for a source text. Equal texts get equal names, so compiled code can be cached by name."""
    return f"{GENERATED}{title} {hashlib.sha256(text.encode()).hexdigest()[:12]}>"


def show_source(code: CodeType, text: str) -> None:
    """Enter the source of a module's code into `linecache`, for as long as one of its functions is alive."""
    functions = [x for x in code.co_consts if isinstance(x, CodeType)]
    name = code.co_filename
    with _lock:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        for function in functions:
            entry = _Entry(function, _drop)
            entry.filename = name
            _entries[id(entry)] = entry
        _users[name] = _users.get(name, 0) + len(functions)


def run_module(text: str, title: str, namespace: dict[str, Any]) -> None:
    """Run source text that defines functions in a namespace."""
    code = compile(text, file_name(title, text), "exec")
    show_source(code, text)
    exec(code, namespace)


def compile_function(name: str, lines: Iterable[str], title: str, namespace: dict[str, Any]) -> Callable[..., Any]:
    """Compile source lines and return the function `name` that they define; `namespace` holds the globals they refer to.

    The name is removed from the namespace again, so that the function does not refer to itself and is collected with its last
    user.
    """
    run_module("\n".join(lines) + "\n", title, namespace)
    return namespace.pop(name)  # type: ignore[no-any-return]


class PythonWriter:
    """Source of one function, with the objects that its names are bound to."""

    def __init__(self, name: str, parameters: str) -> None:
        self.name = name
        self.lines = [f"def {name}({parameters}):"]
        self.space: dict[str, Any] = {}
        self.names: dict[int, str] = {}

    def add(self, *lines: str) -> None:
        self.lines += ["    " + line for line in lines]

    def constant(self, value: Any) -> str:
        """Return a name bound to an object."""
        name = self.names.get(id(value))
        if name is None:
            name = self.names[id(value)] = f"c{len(self.names)}"
            self.space[name] = value
        return name

    def function(self, title: str) -> Callable[..., Any]:
        return compile_function(self.name, self.lines, title, self.space)
