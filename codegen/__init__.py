"""Code generation. In: SSA graphs. Out: programs of fused kernels for CPUs (LLVM) and GPUs (Triton).

The packages are stages: ir < lowering < prepare < schedule < nests < program < llvm | triton < inspect; each imports only those
to its left. This module enters both targets as backends of the tracer, which does not know them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..tracer.execute.backends import Backend, add_backend, tuning
from ..tracer.execute.reference_program import Program
from ..tracer.graph.ir import Graph, GraphError
from .prepare.pipeline import CPU_PASSES, GPU_PASSES
from .prepare.split_devices import cpu_then_gpu, need_reference
from .program import disk_cache as cache
from .program.report_hook import Report


def compile_for_cpu(graph: Graph, slots: int, reference: Program) -> Any:
    """Compile a graph to native code for this machine's CPU; it is called with `slots` arrays. `reference` is its bailout."""
    from .llvm.program import compile_graph  # llvmlite takes a while to import

    if graph.where.type != "cpu":
        raise GraphError(f"its tensors are on {graph.where}, and backend='llvm' is for the CPU; use backend='auto'")
    return compile_graph(graph, slots, reference, tuning.get())


def compile_for_gpu(graphs: tuple[Graph, ...], slots: int, reference: Program) -> Any:
    """Compile a graph to kernels for its GPU. The part on the CPU, if there is one, is native code that runs first."""
    from .triton.program import on_gpu

    *host, graph = graphs
    if graph.where.type == "cpu":
        raise GraphError("its tensors are on the CPU, and backend='triton' is for GPUs; use backend='auto'")
    if not host:
        return on_gpu(graph, slots, reference)
    native, kernels = compile_for_cpu(host[0], slots, need_reference), on_gpu(graph, slots, reference)
    kernels.run, kernels.beside = cpu_then_gpu(native.run, kernels.run, reference), True
    return kernels


def triton_ahead_of_time() -> Any:
    """The module that compiles for GPUs that are not present."""
    from .triton import export as ahead

    return ahead


def load_llvm() -> Callable[[], None]:
    from .llvm.runtime.load_library import load_without_gil
    from .program.cache_key import source_hash

    load_without_gil()
    source_hash("llvm")  # computed here, while the first call still records
    from .llvm.program import prepare_process

    return prepare_process


def report_native(program: Any, llvm: bool, assembly: bool) -> Report:
    from .inspect.kernel_report import report

    return report(program, llvm, assembly)


def report_gpu(program: Any, llvm: bool, assembly: bool) -> Report:
    from .inspect.gpu_report import report

    return report(program, llvm or assembly)


add_backend(
    Backend("llvm", compile_for_cpu, CPU_PASSES, preload=load_llvm, check=cache.problem, describe=report_native),
)
add_backend(
    Backend("triton", compile_for_gpu, GPU_PASSES, export=triton_ahead_of_time, check=cache.problem, describe=report_gpu),
)
