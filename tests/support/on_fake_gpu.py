"""Programs of the CPU run as programs of the pretended GPU as well: all that is recorded anywhere can be tried on the launcher.

Arrays of the stand-in are put around the very memory of NumPy's, so that what is written can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from fake_cupy.array import ndarray, wrap
from tapejit.codegen.prepare.pipeline import GPU_PASSES
from tapejit.codegen.triton.program import GpuProgram
from tapejit.eager.arrays.devices import device
from tapejit.tracer.graph.functionalize import graph_of
from tapejit.tracer.graph.ir import Graph, GraphError
from tapejit.tracer.graph.passes import run_passes


class Launched:
    """A graph as a program on the stand-in."""

    def __init__(self, graph: Graph, slots: int, plain: Any) -> None:
        self.graph = graph
        self.fell_back = False
        self.plain = plain
        self.gpu = GpuProgram(replace(graph, where=device("cuda", 0)), slots, self.instead)

    def instead(self, arrays: list[Any], scalars: list[Any]) -> None:
        """The reference program: where an index is wrong, or an address is odd once too often."""
        assert not self.gpu.stopped
        self.fell_back = True
        given = [x._np if isinstance(x, ndarray) else x for x in arrays]
        self.plain(given, scalars)
        arrays[:] = [wrap(x) if isinstance(x, np.ndarray) else x for x in given]

    def run(self, arrays: list[Any], scalars: list[Any]) -> None:
        given = [wrap(x) if isinstance(x, np.ndarray) else x for x in arrays]
        self.gpu.run(given, scalars)
        for o in self.graph.outputs:
            arrays[o.slot] = given[o.slot]._np


def shadowed(seen: Any, both: Callable[..., None], make: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of `make_program`: programs that are checked against launched ones each time that they run."""

    def make_both(trace: Any, start: int, stop: int, keep: frozenset[int]) -> Any:
        plain = make(trace, start, stop, keep)
        try:
            (graph,) = run_passes(GPU_PASSES, graph_of(trace, start, stop, keep))
            fast = Launched(graph, len(trace.roots), plain)
        except GraphError as reason:
            seen.left.append(str(reason))
            return plain
        seen.programs.append(fast)
        return lambda arrays, scalars: both(seen, fast, plain, arrays, scalars)

    return make_both
