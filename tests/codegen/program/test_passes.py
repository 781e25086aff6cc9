"""The pass pipelines of both targets: which passes run, in which order, and what their log says."""

from __future__ import annotations

import tapejit as tj
from support import shadow
from tapejit.codegen.llvm.build import NativeBuild
from tapejit.codegen.triton.build import GpuBuild
from tapejit.tracer.graph.passes import PassLog, logging_passes

PRIMITIVE = ["decompose", "canonicalize", "own outputs", "dead code", "bounds checks", "rematerialise"]


def test_a_native_build_logs_its_passes_in_order() -> None:
    (graph,) = shadow.recorded(lambda x, w: tj.softmax(x @ w, -1).sum(), tj.randn(8, 8), tj.randn(8, 8))
    with logging_passes(PassLog()) as log:
        build = NativeBuild(graph, 10)
    names = [x.name for x in log.runs]
    merging = [*PRIMITIVE[:4], "merge matmuls, concat layout", "dead code", *PRIMITIVE[4:]]
    assert names[: len(merging)] == merging
    assert names[len(merging) :] == [
        "narrow operands", "fusion", "loop nests", "non-temporal stores", "emit kernels", "memory plan", "horizontal fusion",
        "step functions",
    ]  # fmt: skip
    runs = {x.name: x for x in log.runs}
    assert runs["decompose"].changed and runs["decompose"].after > len(graph.nodes)
    assert not any(
        runs[x].changed for x in ("merge matmuls, concat layout", "bounds checks", "rematerialise", "narrow operands")
    )
    assert runs["fusion"].before == len(build.work.nodes) and runs["fusion"].after == runs["loop nests"].after == len(
        build.steps
    )


def test_passes_that_change_something_say_so() -> None:
    def step(table, i, *params):
        for p in params:
            p.mul_(0.5)
        return table[i]

    params = [tj.randn(n) for n in (3, 4, 5)]
    (graph,) = shadow.recorded(step, tj.randn(6, 2), tj.tensor([1, 2]), *params)
    with logging_passes(PassLog()) as log:
        build = NativeBuild(graph, 20)
    runs = {x.name: x for x in log.runs}
    assert runs["bounds checks"].changed and runs["bounds checks"].after > runs["bounds checks"].before
    assert runs["horizontal fusion"].changed and runs["horizontal fusion"].after == len(build.steps)
    assert runs["horizontal fusion"].before == len(build.steps) + 2


def test_a_gpu_build_logs_its_passes_in_order() -> None:
    (graph,) = shadow.recorded(lambda x: (x * 2).sum(), tj.randn(8, 8))
    with logging_passes(PassLog()) as log:
        units = GpuBuild(graph, 10, "sm_90", "ieee", False).units()
    names = [x.name for x in log.runs]
    last = ["share attention outputs", "fusion", "loop nests", "horizontal fusion, launch order", "scalars in memory"]
    assert names == [*PRIMITIVE, *last]
    assert log.runs[-1].after == len(units)
