"""Files given on the command line: scripts to run and files to write. Problems are reported in one sentence."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path

from ..execute.backends import BACKENDS


class RefusalError(Exception):
    """Refuses a command; the message says why."""


def check_surroundings() -> None:
    for check in {backend.check: None for backend in BACKENDS.values() if backend.check is not None}:
        if reason := check():
            raise RefusalError(reason)


def source_of(script: str) -> str:
    """Read a script's source."""
    path = Path(script)
    if path.is_dir():
        raise RefusalError(f"{script} is a folder, not a script")
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RefusalError(f"there is no script {script}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RefusalError(f"{script} cannot be read: {error}") from None


def check_writable(path: Path | None) -> None:
    """Refuse a file that cannot be written, before the work for it is done. The file is not touched."""
    if path is None:
        return
    folder = path.parent
    if not folder.is_dir():
        raise RefusalError(f"{path} cannot be written: there is no folder {folder}")
    if path.is_dir():
        raise RefusalError(f"{path} cannot be written: it is a folder")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise RefusalError(f"{path} cannot be written: no permission")


@contextlib.contextmanager
def module_of(script: str, name: str, arguments: list[str]) -> Iterator[tuple[types.ModuleType, types.CodeType]]:
    """Create a script's module in `sys.modules`, and its code: `exec(code, module.__dict__)` runs it.

    The script runs as under `python script.py`: modules are found in its folder, and `sys.argv` is its own.
    """
    text = source_of(script)
    try:
        code = compile(text, script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise RefusalError(f"{script} is not valid Python: {error}") from None
    module = types.ModuleType(name)
    module.__file__ = script
    before = sys.argv, list(sys.path), sys.modules.get(name)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    sys.modules[name] = module
    try:
        yield module, code
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
        if before[2] is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before[2]
