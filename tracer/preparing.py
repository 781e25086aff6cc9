"""What a backend needs once in a process, made beside the first calls: importing a code generator takes longer than recording a
small function, and needs nothing of what is recorded.

It begins when a function is compiled, in a thread. A fork waits while modules are imported there, as a child would inherit
their locks; what is made after that looks after itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from .generators import backend_of

LOADERS: dict[str, Callable[[], Callable[[], None]]] = {}  # by backend: imports it, and gives what makes the rest

_begun: set[str] = set()
_importing = threading.RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release)


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
