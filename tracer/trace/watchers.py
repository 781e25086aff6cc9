"""Tell whether somebody watches Python run: a debugger, a profiler or a coverage tool.

Whoever watches sees everything: Python is not skipped then, and nothing is learned from such a call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

WATCHED = "a debugger, profiler or coverage tool is active"


def _is_watched() -> Callable[[], bool]:
    gettrace, getprofile = sys.gettrace, sys.getprofile
    if sys.version_info < (3, 12):
        return lambda: gettrace() is not None or getprofile() is not None
    tool, (debugger, coverage, profiler) = sys.monitoring.get_tool, range(3)  # their ids, by PEP 669

    def is_watched() -> bool:
        if gettrace() is not None or getprofile() is not None:
            return True
        return tool(debugger) is not None or tool(coverage) is not None or tool(profiler) is not None

    return is_watched


is_watched = _is_watched()
