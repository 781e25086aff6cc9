"""A segment as native code: found on disk, or made (`native_build.py`), and put together by its recipe.

`native(graph, slots)` gives what a plain program is too: a function of arrays by slot and numbers by place, which puts the
outputs into the arrays and writes back.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...tracer.graph.ir import Graph
from ..program import disk_cache as cache
from .runtime import jit
from .runtime.entry import shared_by_programs
from .runtime.fork_safety import at_work
from .executable import Recipe, kept_on_disk, put_together
from .executable import key as key_of
from ..program.call_wrapper import Program, check_outputs

if TYPE_CHECKING:
    from ..nests.kernels import Launch
    from .step_function import Made
    from .build import NativeBuild
    from ..schedule.memory_plan import Arena
    from ..prepare.canonicalize import Prepared


class Native:
    """A program, and what there is to be told about it. If it comes from the disk cache, that is made when it is asked for."""

    def __init__(self, graph: Graph, slots: int, recipe: Recipe, run: Program, build: NativeBuild | None) -> None:
        self.graph = graph
        self.slots = slots
        self.recipe = recipe
        self.run = run
        self._build = build

    @cached_property
    def build(self) -> NativeBuild:
        return self._build or built(self.graph, self.slots, given=self.recipe.plans)

    @property
    def from_disk(self) -> bool:
        return self._build is None

    @property
    def prepared(self) -> Prepared:
        return self.build.work

    @property
    def launches(self) -> list[Launch]:
        return self.build.steps

    @property
    def made(self) -> list[Made | None]:
        return self.build.made

    @property
    def arena(self) -> Arena:
        return self.build.arena

    @property
    def decisions(self) -> list[str]:
        return self.build.decisions

    @property
    def texts(self) -> list[str]:
        return self.build.texts

    def report(self, llvm: bool = False, assembly: bool = False) -> dict[str, Any]:
        """All there is to be told, with times that are measured now."""
        from ..inspect.kernel_report import report

        return report(self, llvm, assembly)

    def __str__(self) -> str:
        """The steps, as loops."""
        from .gemm.prologue import prologues

        rows = []
        for x in self.launches:
            node = x.node
            given = "" if node is None else ", ".join(map(str, node.values()))
            what = "" if node is None else f"{', '.join(node.results)} = {node.op.name}({given})\n"
            before = "".join(f"{name}, as it is packed:\n{nest}" for name, nest in prologues(x, self.build.forms).items())
            rows.append(f"# step {x.step.number}\n{before}{what}{'' if x.nest is None else x.nest}")
        return "\n".join(rows)


def prepare() -> None:
    """Make what all programs of a process share."""
    shared_by_programs()


def built(graph: Graph, slots: int, **options: Any) -> NativeBuild:
    """A program that is made. What makes it is imported when it is first wanted, and a fork waits for that."""
    with at_work:
        from .build import NativeBuild

        return NativeBuild(graph, slots, **options)


def native(graph: Graph, slots: int, plain: Program, tune: bool = False) -> Native:
    """The program of a graph; a list of so many arrays will be given. `plain` runs while another thread runs this one. `tune`
    measures plans for its products, where that was not done before."""
    check_outputs(graph)
    name = key_of(graph, slots)
    known = kept_on_disk(name, tune)
    if known is not None:
        recipe, objects = known
        return Native(graph, slots, recipe, put_together(recipe, graph, objects, None, plain), None)
    batch = jit.Batch()
    build = built(graph, slots, batch=batch, tune=tune)
    objects = batch.objects()
    recipe = build.recipe(batch.keys())
    run = put_together(recipe, graph, objects, build.opaque, plain)
    if name is not None and all(recipe.steps):
        cache.put(name, recipe.text())
    return Native(graph, slots, recipe, run, build)
