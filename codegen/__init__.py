"""From recorded graphs to fused kernels: loops, fusion, a memory plan, and code for CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..tracer.tools.files import CHECKS
from ..tracer.execute.backends import AHEAD_OF_TIME, add_graph_backend, tuning
from ..tracer.graph.ir import Graph, GraphError
from ..tracer.graph.passes import dead_code, optimised
from ..tracer.execute.preload import LOADERS
from ..tracer.execute.reference_program import Program
from .program import disk_cache as cache
from .prepare.split_devices import apart, in_turn, refusing
from .prepare.device_placement import Placed, placed


def for_cpu(graph: Graph, slots: int, plain: Program) -> Any:
    """The native program of a graph, for this machine's CPU and so many arrays; `plain` runs where it cannot."""
    from .llvm.program import native  # llvmlite takes a while to import

    found = placed(dead_code(graph))
    if found.where.type != "cpu":
        raise GraphError(f"its tensors are on {found.where}, and native code is for the CPU")
    return native(optimised(found.graph), slots, plain, tuning.get())


def for_gpu(graph: Graph, slots: int, plain: Program) -> Any:
    """The same for a GPU. What is on the CPU besides is native code, which runs before."""
    from .triton.program import on_gpu

    graph = dead_code(graph)
    parts = apart(graph)
    if parts is not None:
        home, kernels = for_cpu(parts[0], slots, refusing), for_gpu(parts[1], slots, plain)
        kernels.run, kernels.beside = in_turn(home.run, kernels.run, plain), True
        return kernels
    found = placed(graph)
    if found.where.type == "cpu":
        raise GraphError("its tensors are on the CPU, and Triton's kernels are for GPUs")
    return on_gpu(Placed(optimised(found.graph), found.where), slots, plain)


def triton_ahead_of_time() -> Any:
    """What compiles for GPUs that are not here."""
    from .triton import export as ahead

    return ahead


def load_llvm() -> Callable[[], None]:
    from .llvm.runtime.load_library import load_beside
    from .program.cache_key import source

    load_beside()
    source("llvm")  # whoever waits for what follows finds it there
    from .llvm.program import prepare

    return prepare


add_graph_backend("llvm", for_cpu)
add_graph_backend("triton", for_gpu)
AHEAD_OF_TIME["triton"] = triton_ahead_of_time
LOADERS["llvm"] = load_llvm
CHECKS.append(cache.problem)
