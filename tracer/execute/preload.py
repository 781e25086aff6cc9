"""Preload a backend in a thread, concurrently with the first calls: importing a code generator takes longer than recording a
small function, and does not depend on what is recorded.

The thread starts when a function is compiled. A fork waits while the thread imports modules, because a child would inherit
their import locks. Objects created later that have locks of their own register with `notify_forks`. They do not use
`os.register_at_fork`: while a fork waits for imports, Python is already iterating over its before-fork hooks, so a hook
registered by one of these imports would get the after-fork call without the before-fork call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Protocol

from .backends import BACKENDS, backend_of


class Forks(Protocol):
    """Listener for forks."""

    def before_fork(self) -> None: ...
    def after_fork(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


_begun: set[str] = set()
_importing = threading.RLock()
_registered: list[Forks] = []
_waiting: list[Forks] = []  # listeners notified of the fork in progress


def notify_forks(who: Forks) -> None:
    """Register a listener for forks: called before each fork, and after it in the parent and in the child."""
    _registered.append(who)


def _before_fork() -> None:
    _importing.acquire()
    _waiting[:] = _registered
    for who in reversed(_waiting):
        who.before_fork()


def _after_fork() -> None:
    for who in _waiting:
        who.after_fork()
    _importing.release()


def _after_fork_in_child() -> None:
    for who in _waiting:
        who.after_fork_in_child()
    _importing.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def preload_backend(wanted: str) -> None:
    """Start preloading the backend of a function, unless another function has."""
    try:
        backend = backend_of(wanted)
    except ValueError:
        return  # reported where the backend is used
    found = BACKENDS.get(backend)
    if found is not None and found.preload is not None and backend not in _begun:
        _begun.add(backend)
        threading.Thread(target=_prepare, args=(backend, found.preload), name="tapejit-prepare").start()


def _prepare(backend: str, preload: Callable[[], Callable[[], None]]) -> None:
    try:
        with _importing:
            make = preload()
        make()
    except Exception:  # the error recurs, and is reported, when a program is compiled
        _begun.discard(backend)
