"""Native program of a segment: cache_key -> load, or build (`build.py`) -> executable -> call.

`compile_graph(graph, slots)` returns a program with the contract of a reference program: a function of arrays by slot and
scalars by place, which puts the outputs into the arrays and writes back.
"""

from __future__ import annotations

import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...tracer.graph.ir import Graph
from ...tracer.graph.passes import run_step
from ...tracer.trace.logging import counted
from ..program.call_wrapper import Program, check_outputs
from ..program.executable import lookup_in_words
from ..program.report_hook import report
from .executable import NativeExecutable, bind_executable, cache_key, load
from .runtime import jit
from .runtime.entry import prepare_runtime
from .runtime.fork_safety import no_fork

if TYPE_CHECKING:
    from ..nests.kernels import Launch
    from ..prepare.primitive_graph import PrimitiveGraph
    from ..schedule.memory_plan import MemoryPlan
    from .build import NativeBuild
    from .step_function import KernelCall


BUILDER = f"{__package__}.build"


class NativeProgram:
    """A program and its description. If it comes from the disk cache, the build that describes it is made on demand."""

    def __init__(self, graph: Graph, slots: int, executable: NativeExecutable, run: Program, build: NativeBuild | None) -> None:
        self.graph = graph
        self.slots = slots
        self.executable = executable
        self.run = run
        self._build = build

    @cached_property
    def build(self) -> NativeBuild:
        return self._build or build(self.graph, self.slots, recorded=self.executable.plans)

    @property
    def from_disk(self) -> bool:
        return self._build is None

    @property
    def prepared(self) -> PrimitiveGraph:
        return self.build.work

    @property
    def launches(self) -> list[Launch]:
        return self.build.steps

    @property
    def made(self) -> list[KernelCall | None]:
        return self.build.made

    @property
    def arena(self) -> MemoryPlan:
        return self.build.arena

    @property
    def decisions(self) -> list[str]:
        return self.build.decisions

    @property
    def texts(self) -> list[str]:
        return self.build.texts

    def report(self, llvm: bool = False, assembly: bool = False) -> dict[str, Any]:
        """Plain data for `explain` and the report, with times that are measured now."""
        return report("llvm", self, llvm, assembly)

    def __str__(self) -> str:
        """The steps as loops."""
        from .gemm.prologue import prologue_nests

        rows = []
        for x in self.launches:
            node = x.node
            given = "" if node is None else ", ".join(map(str, node.values()))
            what = "" if node is None else f"{', '.join(node.results)} = {node.op.name}({given})\n"
            before = "".join(
                f"{name}, computed while packing:\n{nest}" for name, nest in prologue_nests(x, self.build.forms).items()
            )
            rows.append(f"# step {x.step.number}\n{before}{what}{'' if x.nest is None else x.nest}")
        return "\n".join(rows)


def prepare_process() -> None:
    """Initialise what all programs of a process share."""
    prepare_runtime()


def build(graph: Graph, slots: int, **options: Any) -> NativeBuild:
    """Build a program. The builder is imported on first use, and a fork waits for that."""
    with no_fork:
        kind = import_builder() if BUILDER in sys.modules else run_step("import the builder", import_builder, lambda _: "once")
        return kind(graph, slots, **options)


def import_builder() -> type[NativeBuild]:
    from .build import NativeBuild

    return NativeBuild


def compile_graph(graph: Graph, slots: int, reference: Program, tune: bool = False) -> NativeProgram:
    """Compile a graph, or load its executable; calls pass a list of `slots` arrays. `reference` runs while another thread
    runs this program. `tune` measures plans of its matmuls whose shapes are not tuned yet."""
    check_outputs(graph)
    name, known = run_step(
        "disk cache",
        lambda: look_up(graph, slots, tune),
        lambda found: lookup_in_words(found[0], found[1] and objects_in_words(found[1][1])),
    )
    if known is not None:
        executable, objects = known
        return NativeProgram(graph, slots, executable, linked(executable, graph, objects, None, reference), None)
    batch = jit.Batch()
    made = build(graph, slots, batch=batch, tune=tune)
    objects = run_step("machine code", batch.objects, objects_in_words)  # what threads have not compiled by now
    executable = run_step("executable", lambda: made.executable(batch.keys()), executable_in_words)
    run = linked(executable, graph, objects, made.opaque, reference)
    if name is not None and all(executable.steps):
        executable.store(name)
    return NativeProgram(graph, slots, executable, run, made)


def look_up(graph: Graph, slots: int, tune: bool) -> tuple[str | None, tuple[NativeExecutable, list[bytes]] | None]:
    """The cache key of a program, and the program if it is on disk."""
    name = cache_key(graph, slots)
    return name, load(name, tune)


def objects_in_words(objects: list[bytes]) -> str:
    return f"{counted(len(objects), 'object')}, {sum(map(len, objects)):,} bytes"


def executable_in_words(executable: NativeExecutable) -> str:
    return f"{counted(len(executable.steps), 'step')}, {counted(len(executable.constants), 'constant')}"


def linked(executable: NativeExecutable, graph: Graph, objects: list[bytes], opaque: Any, reference: Program) -> Program:
    """Bind an executable, as a step of the log."""
    return run_step(
        "link and bind",
        lambda: bind_executable(executable, graph, objects, opaque, reference),
        lambda _: counted(len(executable.steps), "function"),
    )
