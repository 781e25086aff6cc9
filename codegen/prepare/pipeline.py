"""The passes on graphs of each target, in order.

CPU_PASSES and GPU_PASSES run before a target's `compile` is called, on the recorded graph. `primitive_passes` are the beginning
of the target's own pipeline, which goes on with fusion and kernels: `codegen/llvm/build.py`, `codegen/triton/build.py`. What
they need is imported when they are asked for: `import tapejit` and a program from the disk cache do without it.
"""

from __future__ import annotations

from collections.abc import Callable

from ...tracer.graph.ir import Node
from ...tracer.graph.passes import DEAD_CODE, SIMPLIFY, Pass, Pipeline, on_each
from .device_placement import place
from .split_devices import split_devices

PLACEMENT = Pass("device placement", place)
CPU_PASSES: Pipeline = (DEAD_CODE, PLACEMENT, SIMPLIFY)
# The value is a tuple of graphs from the split on: native code for the CPU first, if there is any, then kernels for the GPU.
GPU_PASSES: Pipeline = (DEAD_CODE, Pass("device split", split_devices), *on_each(DEAD_CODE, PLACEMENT, SIMPLIFY))


def primitive_passes(
    has_own_kernel: Callable[[Node], bool], has_half_kernel: Callable[[Node], bool] | None = None, merging: bool = False
) -> Pipeline:
    """The passes from a graph to a `PrimitiveGraph`.

    Composites with a kernel of their own are not decomposed; those with one for halves are not converted to float32 either.
    `merging` is for targets whose memory plan has concat layouts, which merged matmuls read.
    """
    from .bounds_checks import add_bounds_checks
    from .canonicalize import canonicalize, drop_dead_nodes, own_outputs
    from .decompose import decompose
    from .merge_matmuls import merge_matmuls
    from .rematerialize import rematerialize

    dead_code = Pass("dead code", drop_dead_nodes)
    return (
        Pass("decompose", lambda graph: decompose(graph, has_own_kernel, has_half_kernel)),
        Pass("canonicalize", canonicalize),
        Pass("own outputs", own_outputs),
        dead_code,
        *((Pass("merge matmuls, concat layout", merge_matmuls), dead_code) if merging else ()),
        Pass("bounds checks", add_bounds_checks),
        Pass("rematerialise", rematerialize),
    )
