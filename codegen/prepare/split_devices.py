"""Device split: cut a segment whose tensors are partly on the CPU and partly on a GPU into two graphs.

Nothing goes from one device to the other within a segment. The two programs run one after the other: native code first, then
kernels, which may still be running when the program returns. If either has to bail out, the reference program runs in place of
both. So nothing on the CPU may have been written by then: a segment that writes there is left to the reference program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...eager.arrays.devices import CPU, device
from ...tracer.execute.reference_program import Program
from ...tracer.graph.ir import Graph, GraphError
from .device_placement import devices_of


class NeedsReferenceError(Exception):
    """Raised by the CPU part to say that the reference program of the whole segment has to run."""


def split_devices(graph: Graph) -> tuple[Graph, ...]:
    """The graph on the CPU and the graph on the GPU; only the graph itself if it is on one device, or on several GPUs."""
    found = devices_of(graph)
    if CPU not in found or len(found) != 2:
        return (graph,)
    home, away = (subgraph_on(graph, where) for where in (CPU, *(found - {CPU})))
    if len(home.nodes) + len(away.nodes) < len(graph.nodes):
        raise GraphError("an op has tensors on several devices")
    if home.write_backs:
        raise GraphError("its tensors are on several devices, and it writes to some on the CPU; move those to the GPU")
    return home, away


def subgraph_on(graph: Graph, where: device) -> Graph:
    """The part of a graph that is on one device."""

    def here(*names: str) -> bool:
        return all(graph.forms[name].where == where for name in names)

    return replace(
        graph,
        inputs=tuple(x for x in graph.inputs if here(x.name)),
        nodes=tuple(n for n in graph.nodes if here(*n.values(), *n.results)),
        outputs=tuple(o for o in graph.outputs if here(o.value)),
        write_backs=tuple(w for w in graph.write_backs if here(w.input.name)),
    )


def need_reference(arrays: list[Any], scalars: list[Any]) -> None:
    """The reference program of the CPU part, which alone would not be enough."""
    raise NeedsReferenceError


def cpu_then_gpu(cpu: Program, gpu: Program, reference: Program) -> Callable[[list[Any], list[Any]], None]:
    """Run both programs. The first was made with `need_reference`, the second with the reference program of the whole."""

    def run(arrays: list[Any], scalars: list[Any]) -> None:
        try:
            cpu(arrays, scalars)
        except NeedsReferenceError:
            reference(arrays, scalars)
        else:
            gpu(arrays, scalars)

    return run
