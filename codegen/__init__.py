"""From recorded graphs to fused kernels: loops, fusion, a memory plan, and native code."""

from __future__ import annotations

from typing import Any

from ..tracer.functional import graph_of
from ..tracer.generators import GENERATORS
from ..tracer.passes import optimised
from ..tracer.program import Program
from ..tracer.trace import Trace


def llvm(trace: Trace, start: int, stop: int, keep: frozenset[int], plain: Program) -> Any:
    """The native program of some entries, for this machine's CPU; `plain` runs where it cannot."""
    from .native import native  # llvmlite takes a while to import

    return native(optimised(graph_of(trace, start, stop, keep)), len(trace.roots), plain)


GENERATORS["llvm"] = llvm
