"""What a backend needs once in a process, made beside the first calls: importing a code generator takes longer than recording a
small function, and needs nothing of what is recorded.

It begins when a function is compiled, in a thread. A fork waits while modules are imported there, as a child would inherit
their locks. What is made after that looks after itself: whoever has locks of its own is told of forks (`around_forks`). That is
not left to `os.register_at_fork`, as Python has begun with its list of what comes before a fork when it waits for modules to be
imported: what these enter would be told that a fork is over of which it was not told that it begins.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Protocol

from .backends import backend_of

LOADERS: dict[str, Callable[[], Callable[[], None]]] = {}  # by backend: imports it, and gives what makes the rest


class Forks(Protocol):
    """Who is told of forks."""

    def before_fork(self) -> None: ...
    def after_fork(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


_begun: set[str] = set()
_importing = threading.RLock()
_told: list[Forks] = []
_waiting: list[Forks] = []  # those who were told that a fork begins


def around_forks(who: Forks) -> None:
    """Tell somebody of each fork: before it, and after it in the parent or in the child."""
    _told.append(who)


def _before_fork() -> None:
    _importing.acquire()
    _waiting[:] = _told
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


def prepare(wanted: str) -> None:
    """Begin with what the backend of a function needs, unless another function has."""
    try:
        backend = backend_of(wanted)
    except ValueError:
        return  # said where the backend is used
    if backend in LOADERS and backend not in _begun:
        _begun.add(backend)
        threading.Thread(target=_prepare, args=(backend,), name="tapejit-prepare").start()


def _prepare(backend: str) -> None:
    try:
        with _importing:
            make = LOADERS[backend]()
        make()
    except Exception:  # what is wrong is found again, and told, where a program is made
        _begun.discard(backend)
