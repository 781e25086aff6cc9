"""Disk cache: code that was compiled once is not compiled again, in this process or another.

An entry is a file named by its key, a hash of all that the bytes depend on. It begins with a hash of what follows; an entry
that does not agree with it (a bit flipped, a file cut short) is removed and built again. Files are written aside and renamed,
so that several processes may write. The entries used least recently go when the folder is larger than its limit.

Code is run from these files: the folder belongs to the user alone, and one that others can write to is refused. Nothing here
ever fails: without a usable folder there is one warning, and no cache.

    TAPEJIT_CACHE_DIR    where; otherwise XDG_CACHE_HOME/tapejit, otherwise ~/.cache/tapejit
    TAPEJIT_CACHE_SIZE   its limit in megabytes, 512 by default
    TAPEJIT_CACHE=0      no cache
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import tempfile
import time
import warnings
from pathlib import Path

MAGIC = b"tapejit1"
SUFFIX, UNFINISHED = ".entry", ".unfinished"
MEGABYTE = 1 << 20
STALE = 3600.0  # seconds after which an unfinished file has lost its writer
COUNT_EVERY = 32  # writes after which the folder is looked at again, as other processes write too


def key(*parts: str) -> str:
    """The name of an entry that depends on these texts. Where one ends and the next begins counts."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode()
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def get(key: str) -> bytes | None:
    """An entry, if it is there and whole."""
    cache = current()
    return cache.get(key) if cache else None


def put(key: str, data: bytes) -> None:
    """Keeps an entry. If that fails, it is only built again the next time."""
    cache = current()
    if cache:
        cache.put(key, data)


def current() -> Cache | None:
    """The cache that the environment asks for; None for none."""
    if os.environ.get("TAPEJIT_CACHE", "1") == "0":
        return None
    folder = _folder()
    found = _cache_in(folder, os.environ.get("TAPEJIT_CACHE_SIZE", "512")) if folder else None
    return found if found and found.usable else None


def problem() -> str | None:
    """A sentence about the folder that the environment asks for, if that is of no use."""
    folder = None if os.environ.get("TAPEJIT_CACHE", "1") == "0" else _folder()
    if folder is None:
        return None
    why = _unusable(Path(folder)) or _unwritable(folder)
    advice = "TAPEJIT_CACHE_DIR names another folder, TAPEJIT_CACHE=0 does without"
    return f"nothing that is compiled can be kept on disk: {why}; {advice}" if why else None


def _folder() -> str | None:
    chosen = os.environ.get("TAPEJIT_CACHE_DIR")
    if chosen:
        return chosen
    above = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(above, "tapejit") if os.path.isabs(above) else None  # a user without a home


@functools.cache
def _cache_in(folder: str, size: str) -> Cache:
    try:
        limit = float(size) * MEGABYTE
    except ValueError:
        warnings.warn(f"[cache] TAPEJIT_CACHE_SIZE is {size!r}, not a number of megabytes; 512 is used", stacklevel=2)
        limit = 512.0 * MEGABYTE
    return Cache(Path(folder), int(limit))


def _unwritable(folder: str) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} cannot be written to ({error.strerror})"


def _unusable(folder: Path) -> str | None:
    """Makes the folder. If it cannot be used, says why."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        return f"{folder} cannot be made ({error.strerror})"
    if hasattr(os, "getuid"):
        if found.st_uid != os.getuid():
            return f"{folder} belongs to somebody else, and code is run from it"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others can write to {folder}, and code is run from it; chmod 700 makes it usable"
    return None


class Cache:
    """Entries in one folder. `limit` is in bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self.usable = True
        self.writable = True
        self.bytes = 0  # in the folder, as far as this process knows
        self.writes = 0
        why = _unusable(folder)
        if why:
            self.usable = False
            _warn(f"[cache] nothing is kept on disk: {why}")

    # ---- entries

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        data = content[len(MAGIC) + 32 :]
        if content[: len(MAGIC) + 32] != _head(key, data):
            _remove(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now
        return data

    def put(self, key: str, data: bytes) -> None:
        if not self.writable or len(data) > self.limit:
            return
        if self.writes % COUNT_EVERY == 0:
            self.bytes = sum(size for _, size, _ in self._entries())
        self.writes += 1
        content = _head(key, data) + data
        unfinished = self.folder / f"{key}.{os.getpid()}.{os.urandom(4).hex()}{UNFINISHED}"
        try:
            _write(unfinished, content)
            os.replace(unfinished, self._path(key))
        except OSError as error:
            _remove(unfinished)
            self.writable = False
            _warn(f"[cache] no more is kept on disk: {self.folder} cannot be written ({error.strerror})")
            return
        self.bytes += len(content)
        if self.bytes > self.limit:
            self._shrink()

    def _path(self, key: str) -> Path:
        return self.folder / (key + SUFFIX)

    # ---- size

    def _shrink(self) -> None:
        """Removes what was used least recently, until there is some room again."""
        entries = sorted(self._entries())
        self.bytes = sum(size for _, size, _ in entries)
        room = self.limit - self.limit // 8
        for _, size, path in entries:
            if self.bytes <= room:
                return
            _remove(path)
            self.bytes -= size

    def _entries(self) -> list[tuple[int, int, Path]]:
        """Return time of last use, bytes and path of each entry. Removes what writers left unfinished long ago."""
        found: list[tuple[int, int, Path]] = []
        try:
            with os.scandir(self.folder) as files:
                for file in files:
                    if not file.name.endswith((SUFFIX, UNFINISHED)):
                        continue
                    try:
                        info = file.stat()
                    except OSError:  # removed by another process
                        continue
                    if file.name.endswith(SUFFIX):
                        found.append((info.st_mtime_ns, info.st_size, Path(file.path)))
                    elif time.time() - info.st_mtime > STALE:
                        _remove(Path(file.path))
        except OSError:
            pass
        return found


def _head(key: str, data: bytes) -> bytes:
    """The header of an entry. The key is hashed too: an entry under another's name is not taken for it."""
    return MAGIC + hashlib.sha256(key.encode() + data).digest()


def _write(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
