"""Programs whose loops are Triton kernels, run by Triton's interpreter on NumPy arrays; what is not loops is run as it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tapejit.codegen.nests.kernels import Launch
from tapejit.codegen.prepare.pipeline import GPU_PASSES
from tapejit.codegen.program.call_wrapper import view_function
from tapejit.codegen.triton.build import GpuBuild
from tapejit.codegen.triton.device.interpreter import run_kernels
from tapejit.codegen.triton.printing.kernel_text import Printed
from tapejit.tracer.execute import reference_program as program
from tapejit.tracer.graph.functionalize import graph_of
from tapejit.tracer.graph.interpreter import copied, run_op
from tapejit.tracer.graph.ir import Graph, GraphError
from tapejit.tracer.graph.passes import run_passes
from tapejit.tracer.trace.trace import Number

from support import shadow


class Interpreted:
    """A graph as launches of kernels."""

    def __init__(self, graph: Graph, deterministic: bool = False) -> None:
        self.graph = graph
        build = GpuBuild(graph, 0, "sm_90", "ieee", deterministic, library=True)
        self.work, self.layout, self.launches, self.prints = build.work, build.layout, build.steps, build.prints
        self.kernels: list[Printed | None] = [self.prints.of(x) for x in self.launches]

    def run(self, arrays: list[Any], scalars: list[Any]) -> None:
        work, forms = self.work, self.work.forms
        memory: dict[str, Any] = {x.name: arrays[x.slot] for x in work.inputs}
        memory.update({n.results[0]: np.ascontiguousarray(n.attrs["array"]) for n in work.nodes if n.op.name == "constant"})
        for o, value in work.outputs:
            if value not in memory:
                form = self.graph.forms[o.value]
                memory[value] = copied(np.zeros(form.shape, form.dtype), form)
        numbers = dict(enumerate(scalars))
        for launch, kernel in zip(self.launches, self.kernels, strict=True):
            for name in launch.buffers:
                if name not in memory:
                    memory[name] = np.full(forms[name].shape, 77).astype(forms[name].dtype)
            if kernel is not None:
                run_kernels(kernel, memory, numbers)
            else:
                self.called(launch, memory, scalars)
        for o, value in work.outputs:
            view = memory[value]
            for op, attrs, index in o.chain:
                view = view_function(op, attrs)(view)
                view = view if index is None else view[index]
            arrays[o.slot] = view

    def called(self, launch: Launch, memory: dict[str, Any], scalars: list[Any]) -> None:
        """An op that has no kernel; its results are in its buffers."""
        node = launch.node
        assert node is not None
        given = [
            self.view(memory, x, *launch.operands[x])
            if isinstance(x, str)
            else scalars[x.place]
            if isinstance(x, Number)
            else x.value
            for x in node.operands
        ]
        found = run_op(node.op, tuple(given), node.attrs)
        for name, value in zip(node.results, found if isinstance(found, tuple) else (found,), strict=True):
            self.view(memory, name, name, 0, self.layout(name))[...] = value

    def view(self, memory: dict[str, Any], name: str, buffer: str, offset: int, strides: tuple[int, ...]) -> Any:
        form, base = self.work.forms[name], memory[buffer]
        if not form.size:
            return np.empty(form.shape, form.dtype)
        begin = np.lib.stride_tricks.as_strided(base, (abs(offset) + 1,), (base.itemsize,))[abs(offset) :]
        return np.lib.stride_tricks.as_strided(begin, form.shape, tuple(s * form.itemsize for s in strides))


def called(seen: shadow.Seen) -> set[str]:
    """The opaque ops: those that had no kernel."""
    steps = [x for p in seen.programs for x in zip(p.launches, p.kernels, strict=True)]
    return {launch.node.op.name for launch, kernel in steps if kernel is None}


def shadowed(seen: Any, both: Callable[..., None], make: Callable[..., Any], deterministic: bool = False) -> Callable[..., Any]:
    """In the place of `make_program`: programs that are checked against interpreted kernels each time that they run."""

    def make_both(trace: Any, start: int, stop: int, keep: frozenset[int]) -> Any:
        plain = make(trace, start, stop, keep)
        try:
            (graph,) = run_passes(GPU_PASSES, graph_of(trace, start, stop, keep))
            fast = Interpreted(graph, deterministic)
        except GraphError as reason:
            seen.left.append(str(reason))
            return plain
        seen.programs.append(fast)
        return lambda arrays, scalars: both(seen, fast, plain, arrays, scalars)

    return make_both


@contextmanager
def watched(monkeypatch: Any, tolerance: float = 1.0, deterministic: bool = False) -> Iterator[shadow.Seen]:
    """Everything that is replayed is also run by kernels."""
    found = shadow.Seen()
    found.tolerance = tolerance
    make = shadowed(found, shadow.both, program.make_program, deterministic)
    monkeypatch.setattr(program, "make_program", make)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about infinities
        yield found
    assert found.runs
