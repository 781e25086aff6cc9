"""Switch compiling off for a block: `with tapejit.eager():`."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Iterator


class _Switch(threading.local):
    off = False


switch = _Switch()


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Run compiled functions eagerly within this block, in this thread."""
    before = switch.off
    switch.off = True
    try:
        yield
    finally:
        switch.off = before


class EagerPackage(types.ModuleType):
    """Package `tapejit.eager`, made callable: `with tapejit.eager():`."""

    def __call__(self) -> contextlib.AbstractContextManager[None]:
        """Context manager in which compiled functions run eagerly."""
        return eager()


def switched_off() -> bool:
    return switch.off
