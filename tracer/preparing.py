"""What a backend needs once in a process, made beside the first calls: importing a code generator takes longer than recording a
small function, and needs nothing of what is recorded.

It begins when a function is compiled, in a thread. A fork waits while modules are imported there, as a child would inherit
their locks; what is made after that looks after itself. But it cannot at a fork that has begun before it was imported, so
nothing is made before such a fork is over.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from .generators import backend_of

LOADERS: dict[str, Callable[[], Callable[[], None]]] = {}  # by backend: imports it, and gives what makes the rest

_begun: set[str] = set()


class Gate:
    """Forks wait for imports, and what comes after the imports for forks that have waited."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._importing = self._forking = 0

    def load(self, backend: str) -> Callable[[], None]:
        """Import a backend."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            self._importing += 1
        try:
            return LOADERS[backend]()
        finally:
            with self._changed:
                self._importing -= 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._forking)

    def before_fork(self) -> None:
        with self._changed:
            self._forking += 1
            self._changed.wait_for(lambda: not self._importing)

    def after_fork(self) -> None:
        with self._changed:
            self._forking -= 1
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        self.__init__()  # type: ignore[misc]  # the thread that was in it is not in the child


_gate = Gate()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_gate.before_fork, after_in_parent=_gate.after_fork, after_in_child=_gate.after_fork_in_child)


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
        make = _gate.load(backend)
        make()
    except Exception:  # what is wrong is found again, and told, where a program is made
        _begun.discard(backend)
