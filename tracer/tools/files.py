"""Files that the command line is given: scripts to run and files to write. Problems with them are one sentence to a person."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

CHECKS: list[Callable[[], str | None]] = []  # what has to be in order before anything runs; each gives a sentence if it is not


class RefusalError(Exception):
    """What was asked for cannot be done, and why."""


def check_surroundings() -> None:
    for check in CHECKS:
        if reason := check():
            raise RefusalError(reason)


def source_of(script: str) -> str:
    """The text of a script."""
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
    """Whether a file can be written, before the work for it is done. It is left as it is."""
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
    """A module for a script, in its place among the others, and its code: `exec(code, module.__dict__)` runs it.

    The script sees itself as `python script.py` would show it: its folder is searched for modules, `sys.argv` is its own.
    """
    text = source_of(script)
    try:
        code = compile(text, script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise RefusalError(f"{script} is not Python: {error}") from None
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
