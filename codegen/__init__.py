"""From recorded graphs to fused kernels: loops, fusion, a memory plan, and code for CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..tracer.cli_files import CHECKS
from ..tracer.functional import graph_of
from ..tracer.generators import AHEAD_OF_TIME, add_backend
from ..tracer.graph import GraphError
from ..tracer.passes import dead_code, optimised
from ..tracer.preparing import LOADERS
from ..tracer.program import Program
from ..tracer.trace import Trace
from . import cache
from .place import Placed, placed


def llvm(trace: Trace, start: int, stop: int, keep: frozenset[int], plain: Program) -> Any:
    """The native program of some entries, for this machine's CPU; `plain` runs where it cannot."""
    from .native import native  # llvmlite takes a while to import

    found = settled(trace, start, stop, keep)
    if found.where.type != "cpu":
        raise GraphError(f"its tensors are on {found.where}, and native code is for the CPU")
    return native(optimised(found.graph), len(trace.roots), plain)


def triton(trace: Trace, start: int, stop: int, keep: frozenset[int], plain: Program) -> Any:
    """The same for a GPU."""
    from .triton.program import on_gpu

    found = settled(trace, start, stop, keep)
    if found.where.type == "cpu":
        raise GraphError("its tensors are on the CPU, and Triton's kernels are for GPUs")
    return on_gpu(Placed(optimised(found.graph), found.where), len(trace.roots), plain)


def settled(trace: Trace, start: int, stop: int, keep: frozenset[int]) -> Placed:
    return placed(dead_code(graph_of(trace, start, stop, keep)))


def triton_ahead_of_time() -> Any:
    """What compiles for GPUs that are not here."""
    from .triton import ahead

    return ahead


def load_llvm() -> Callable[[], None]:
    from .native import prepare

    return prepare


add_backend("llvm", llvm)
add_backend("triton", triton)
AHEAD_OF_TIME["triton"] = triton_ahead_of_time
LOADERS["llvm"] = load_llvm
CHECKS.append(cache.problem)
