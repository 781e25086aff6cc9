"""Prints launches of any kind for one target: loops, matmuls, attention, and matmuls that share one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ....tracer.graph.ir import Form
from ...nests.kernels import Launch
from ...nests.loop_nest import Nest
from ..attention.forward import print_attention
from ..device.specs import MULTIPROCESSORS, table_target
from ..loops.print_nest import print_nest
from ..loops.scan import print_scan
from ..matmul.cublas_gemm import CublasPlan, Gemm, plan_cublas
from ..matmul.cublas_or_triton import library_wins, worth_measuring
from ..matmul.from_graph import contraction_of, print_matmul
from ..matmul.problem import Contraction
from ..matmul.tile_configs import MIN_TILE, Config, configs, fitted, in_parts, table, tiles
from ..printing.kernel_text import Printed

MIN_SPLIT_ROUNDS = 64  # loop iterations of a matmul that take longer than another launch, which adds parts


class LaunchPrinter:
    """Prints launches of one program. `layout` gives the strides of results; `precision` is that of float32 matmuls. With a
    `library` matmuls may be cuBLAS calls; but not `deterministic` ones, as cuBLAS may add in another order on another
    stream."""

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
        self.plans: dict[int, CublasPlan | None] = {}  # result of `candidate`, by step
        self.sizes = {x: form.size for x, form in forms.items()}

    def of(self, launch: Launch, in_parts: bool = True) -> Printed | None:
        """Kernels of a launch; None if it has to run as an opaque op. A matmul of few tiles and great depth is split along the
        depth (split-K) if `in_parts`, otherwise it is one kernel."""
        if launch.kind == "nest":
            assert launch.nest is not None
            return print_nest(launch.nest, self.sizes, self.deterministic)
        if launch.kind == "matmul":
            work = contraction_of(launch, self.forms)
            best = configs(work, self.target, self.precision)[0] if in_parts else self.configs([work])[0]
            return print_matmul(launch, self.forms, self.target, self.precision, best)
        if launch.kind == "attention":
            return print_attention(launch, self.forms, self.layout, self.target, self.precision)
        return print_scan(launch, self.forms, self.layout)

    # ---- cuBLAS calls

    def candidate(self, launch: Launch) -> CublasPlan | None:
        """Plan a launch as a cuBLAS call, if that may be worth it."""
        if launch.kind != "matmul" or not self.library:
            return None
        number = launch.step.number
        if number not in self.plans:
            work = contraction_of(launch, self.forms)
            worth = worth_measuring(work, self.target, self.precision)
            self.plans[number] = plan_cublas(work, self.precision) if worth else None
        return self.plans[number]

    def by_library(self, launch: Launch) -> CublasPlan | None:
        """Plan a launch as a cuBLAS call; None if the table expects a Triton kernel to be faster."""
        plan = self.candidate(launch)
        if plan is None:
            return None
        return plan if library_wins(contraction_of(launch, self.forms), plan, self.target, self.precision) else None

    def stages(self, plan: CublasPlan) -> list[Printed | Gemm]:
        """Print the stages of a plan: the call, and the kernels before and after it."""
        before = [self.around(nest, plan) for nest in plan.before]
        return [*before, plan.gemm, *([self.around(plan.after, plan)] if plan.after is not None else [])]

    def around(self, nest: Nest, plan: CublasPlan) -> Printed:
        text = print_nest(nest, self.sizes)
        own = {a.buffer for kernel in text.kernels for a in kernel.arguments} & plan.scratch.keys()
        return replace(text, scratch={**text.scratch, **{name: plan.scratch[name] for name in own}})

    # ---- matmul kernels

    def dtype(self, launch: Launch) -> str:
        """Operand dtype of a matmul."""
        return contraction_of(launch, self.forms).dtype

    def together(self, launches: Sequence[Launch]) -> list[Printed]:
        """Print matmuls that share one launch: with the largest tiles with which all of them together occupy the device. If
        none do, those of great depth are split along the depth."""
        works = [contraction_of(x, self.forms) for x in launches]
        chosen, units = self.configs(works), MULTIPROCESSORS[table_target(self.target)]
        if 2 * sum(map(tiles, chosen, works)) < units:
            deep = [w.depth >= MIN_SPLIT_ROUNDS * c.block_k for c, w in zip(chosen, works, strict=True)]
            chosen = [in_parts(c, w, units) if d else c for c, w, d in zip(chosen, works, deep, strict=True)]
        return [print_matmul(x, self.forms, self.target, self.precision, c) for x, c in zip(launches, chosen, strict=True)]

    def configs(self, works: list[Contraction]) -> list[Config]:
        """Tile configuration of each matmul: the n-th of its own table, with the same n for all."""
        tables = [table(w, self.target, self.precision) for w in works]
        rows = []
        for n in range(max(map(len, tables))):
            rows.append([self.fitted(t[min(n, len(t) - 1)], w) for t, w in zip(tables, works, strict=True)])
        counts = [sum(tiles(c, w) for c, w in zip(row, works, strict=True)) for row in rows]
        full = MULTIPROCESSORS[table_target(self.target)]
        return next((row for row, n in zip(rows, counts, strict=True) if n >= full), rows[-1])

    def fitted(self, config: Config, work: Contraction) -> Config:
        """Fit a tile to a matmul. If the epilogue needs more threads, threads that multiply without matrix units would run
        short of registers at a great depth."""
        found = fitted(config, work, self.target)
        plain = work.dtype == "float32" and self.precision == "ieee"
        return replace(found, block_k=MIN_TILE) if plain and found.warps > config.warps else found
