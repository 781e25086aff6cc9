"""Launches of any kind as text, for one target: loops, products, attention; and products that are to be one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ....tracer.graph.ir import Form, Graph
from ...nests.kernels import Launch, kept
from ...nests.loop_nest import Nest
from ...prepare.canonicalize import Prepared, prepared
from ..attention.forward import in_halves, printed_attention, with_outs
from ..matmul.tile_configs import LEAST, Config, configs, fitted, in_parts, table, tiles
from ..matmul.cublas_or_triton import library_wins, worth_measuring
from ..matmul.problem import Contraction
from ..device.specs import UNITS, family
from ..matmul.cublas_gemm import ByLibrary, Gemm, by_library
from ..matmul.from_graph import contraction_of, printed_product
from ..loops.print_nest import printed
from ..loops.scan import printed_scan
from ..printing.kernel_text import Printed

DEEP = 64  # rounds of a product that take longer than another launch, which adds parts


def prepared_for_gpu(graph: Graph) -> Prepared:
    """A graph as kernels for GPUs want it."""
    return with_outs(prepared(graph, kept, in_halves))


class Prints:
    """Prints launches of one program. `layout` gives the strides of results; `precision` is that of float32 products. With a
    `library` products may be calls of cuBLAS; but not `deterministic` ones, as it may add up otherwise on another stream."""

    def __init__(
        self,
        forms: dict[str, Form],
        layout: Callable[[str], tuple[int, ...]],
        target: str = "sm_90",
        precision: str = "ieee",
        deterministic: bool = False,
        library: bool = True,
    ) -> None:
        self.forms = forms
        self.layout = layout
        self.target = target
        self.precision = precision
        self.deterministic = deterministic
        self.library = library and not deterministic
        self.plans: dict[int, ByLibrary | None] = {}  # of steps: what `candidate` has found
        self.sizes = {x: form.size for x, form in forms.items()}

    def of(self, launch: Launch, in_parts: bool = True) -> Printed | None:
        """The kernels of a launch; None if it has to be called as it is. A product of few tiles and of a great depth is
        computed in parts, or if that is not wanted by one kernel."""
        if launch.kind == "nest":
            assert launch.nest is not None
            return printed(launch.nest, self.sizes, self.deterministic)
        if launch.kind == "product":
            work = contraction_of(launch, self.forms)
            best = configs(work, self.target, self.precision)[0] if in_parts else self.configs([work])[0]
            return printed_product(launch, self.forms, self.target, self.precision, best)
        if launch.kind == "attention":
            return printed_attention(launch, self.forms, self.layout, self.target, self.precision)
        return printed_scan(launch, self.forms, self.layout)

    # ---- products that are calls of cuBLAS

    def candidate(self, launch: Launch) -> ByLibrary | None:
        """A launch as a call of cuBLAS, if that may be worth it."""
        if launch.kind != "product" or not self.library:
            return None
        number = launch.step.number
        if number not in self.plans:
            work = contraction_of(launch, self.forms)
            worth = worth_measuring(work, self.target, self.precision)
            self.plans[number] = by_library(work, self.precision) if worth else None
        return self.plans[number]

    def by_library(self, launch: Launch) -> ByLibrary | None:
        """A launch as a call of cuBLAS; None where a kernel is better, as the table has it."""
        plan = self.candidate(launch)
        if plan is None:
            return None
        return plan if library_wins(contraction_of(launch, self.forms), plan, self.target, self.precision) else None

    def stages(self, plan: ByLibrary) -> list[Printed | Gemm]:
        """A call, and the kernels before and after it."""
        before = [self.around(nest, plan) for nest in plan.before]
        return [*before, plan.gemm, *([self.around(plan.after, plan)] if plan.after is not None else [])]

    def around(self, nest: Nest, plan: ByLibrary) -> Printed:
        text = printed(nest, self.sizes)
        own = {a.buffer for kernel in text.kernels for a in kernel.arguments} & plan.scratch.keys()
        return replace(text, scratch={**text.scratch, **{name: plan.scratch[name] for name in own}})

    # ---- products as kernels

    def dtype(self, launch: Launch) -> str:
        """Of what a product multiplies."""
        return contraction_of(launch, self.forms).dtype

    def together(self, launches: Sequence[Launch]) -> list[Printed]:
        """Products that are to be one launch: the largest tiles with which all of them together occupy a device. If they do
        not, those of a great depth are computed in parts."""
        works = [contraction_of(x, self.forms) for x in launches]
        chosen, units = self.configs(works), UNITS[family(self.target)]
        if 2 * sum(map(tiles, chosen, works)) < units:
            deep = [w.depth >= DEEP * c.block_k for c, w in zip(chosen, works, strict=True)]
            chosen = [in_parts(c, w, units) if d else c for c, w, d in zip(chosen, works, deep, strict=True)]
        return [printed_product(x, self.forms, self.target, self.precision, c) for x, c in zip(launches, chosen, strict=True)]

    def configs(self, works: list[Contraction]) -> list[Config]:
        """For each of some products the tile: the n-th of its own table, with n the same for all."""
        tables = [table(w, self.target, self.precision) for w in works]
        rows = []
        for n in range(max(map(len, tables))):
            rows.append([self.fitted(t[min(n, len(t) - 1)], w) for t, w in zip(tables, works, strict=True)])
        counts = [sum(tiles(c, w) for c, w in zip(row, works, strict=True)) for row in rows]
        return next((row for row, n in zip(rows, counts, strict=True) if n >= UNITS[family(self.target)]), rows[-1])

    def fitted(self, config: Config, work: Contraction) -> Config:
        """A tile for a product. Where more threads have to hold what follows, those that multiply without matrix units would be
        short of registers for a great depth."""
        found = fitted(config, work, self.target)
        plain = work.dtype == "float32" and self.precision == "ieee"
        return replace(found, block_k=LEAST) if plain and found.warps > config.warps else found
