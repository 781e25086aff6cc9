"""Split reductions, for few long rows: one kernel reduces parts of each row, a second one combines them and goes on."""

from __future__ import annotations

from dataclasses import replace

from ...nests.loop_nest import Stage
from ..printing import scalar_ops as ops
from ..printing.expr_printer import Body, Scope, identifier
from ..printing.kernel_text import (
    HEADER,
    Argument,
    Kernel,
    Printed,
    documentation,
    function,
    kernel_name,
    names_of,
    put_together,
)
from ..printing.scalar_ops import TYPES, accumulator
from ..printing.tiling import Tile, power_above
from .nest_printer import Printer

FINISHED = 64  # rows of a program that puts parts together


class SplitRows(Printer):
    """Prints two kernels: totals of parts of rows, and of whole rows."""

    def printed(self) -> Printed:
        name, tile = kernel_name(self.nest), self.tile
        for t in self.nest.stages[0].totals:
            wide, own = accumulator(t.dtype), f"{identifier(t.name)}_parts"
            self.partials[t.name] = Argument(own, f"*{TYPES[wide]}", buffer=own)
            self.scratch[own] = (wide, tile.parts * tile.rows)
        arguments = [*self.arguments, *self.partials.values()]
        self.body = Body(self.nest, tile, names_of(arguments))
        source = HEADER + function(name, arguments, [*documentation(self.nest), *self.lines()])
        kernels = [Kernel(name, tuple(arguments), tile.grid, tile.warps)]
        rows = replace(tile, block_r=min(power_above(tile.rows), FINISHED), block_c=1, loops=False, parts=1)
        lines = self.whole(rows, arguments)
        source += function(f"{name}_whole", arguments, lines)
        kernels.append(Kernel(f"{name}_whole", tuple(arguments), rows.grid, 4))
        return Printed(source, kernels, self.scratch)

    # ---- parts

    def lines(self) -> list[str]:
        tile, program = self.tile, self.body.scopes["program"]
        program.add("program = tl.program_id(0)" + (".to(tl.int64)" if self.body.large else ""))
        program.add(f"piece = program % {tile.parts}")
        self.define_rows(program, f"(program // {tile.parts})", tile.block_r)
        self.columns(self.nest.stages[0])
        return program.lines

    def bounds(self) -> str:
        part = self.tile.part
        return f"piece * {part}, tl.minimum(piece * {part} + {part}, {self.tile.cols})"

    def columns(self, stage: Stage) -> None:
        """Store the totals of a part to memory."""
        body, tile = self.body, self.tile
        outer = body.inner
        sums = [self.cleared(t, outer, "rc") for t in stage.totals]
        self.loop(stage, sums, outer)
        for t, name in zip(stage.totals, sums, strict=True):
            place = f"{self.partials[t.name].name} + piece * {tile.rows}" + (" + r" if tile.rows > 1 else "")
            mask = ", mask=in_rows" if "r" in body.masks else ""
            total = ops.to_memory(body.along(t, name, "c"), accumulator(t.dtype))
            outer.add(f"tl.store({place}, {total}{mask})")

    # ---- whole rows

    def whole(self, rows: Tile, arguments: list[Argument]) -> list[str]:
        """Print the second kernel: combine the parts' totals, and compute the per-row values that depend on them."""
        parts, self.tile = self.tile.parts, rows
        self.body = body = Body(self.nest, rows, names_of(arguments))
        program: Scope = body.scopes["program"]
        program.add(f'"""The totals of {parts} parts of each row put together, always in the same order."""')
        program.add("program = tl.program_id(0)" + (".to(tl.int64)" if body.large else ""))
        self.define_rows(program, "program", rows.block_r)
        at = "r" if rows.block_r > 1 else ""
        for t in self.nest.stages[0].totals:
            total = put_together(
                program, t, self.partials[t.name].name, parts, rows.rows, at, rows.block_r, body.masks.get("r", "")
            )
            name = body.name(f"{t.op}_{t.name}")
            program.add(f"{name} = {ops.cast(total, accumulator(t.dtype), t.dtype)}")
            program.values[self.total_of(t)] = name
        for stage in self.nest.stages:
            self.store_rows(stage)
        return program.lines
