"""Prints the loops of a nest as Triton: the kernel's body, and a second kernel that combines partial column totals."""

from __future__ import annotations

from ...ir.expr import Expr, walk
from ...nests.loop_nest import Nest, Stage, Total
from ..printing import scalar_ops as ops
from ..printing.expr_printer import Body, Scope, identifier
from ..printing.kernel_text import (
    HEADER,
    Argument,
    Kernel,
    Printed,
    bracketed,
    documentation,
    function,
    kernel_name,
    name_of,
    names_of,
    put_together,
)
from ..printing.scalar_ops import TYPES, accumulator
from ..printing.tiling import Tile, power_above
from .online_softmax import Sum, in_one_pass

COMBINED = 64  # columns of a program that puts pieces together


def power_of(tops: str) -> str:
    """Name of the sums of exponentials that go with the per-lane maxima."""
    return f"{tops}_powers"


class Printer:
    """Prints the kernels of one nest."""

    def __init__(self, nest: Nest, tile: Tile, arguments: list[Argument]) -> None:
        self.nest = nest
        self.tile = tile
        self.arguments = arguments
        self.scratch: dict[str, tuple[str, int]] = {}
        self.beside = [t for t in nest.totals() if t.kind != "total"]
        self.partials: dict[str, Argument] = {}
        if self.in_parts:
            for t in self.beside:
                self.add_scratch(t)
        self.body = Body(nest, self.tile, names_of([*self.arguments, *self.partials.values()]))
        self.accumulators: dict[str, str] = {}
        self.totals = {e.data: e for e in walk(nest.expressions()) if e.kind == "total"}
        self.stages, self.powers = in_one_pass(nest.stages) if tile.loops else (nest.stages, {})

    @property
    def in_parts(self) -> bool:
        """True if column totals go through memory: there are several pieces, or rows do not fit into registers."""
        return bool(self.beside) and (self.tile.pieces > 1 or self.tile.loops)

    def add_scratch(self, t: Total) -> None:
        wide, length = accumulator(t.dtype), self.tile.cols if t.kind == "column" else 1
        name = f"{identifier(t.name)}_parts"
        self.partials[t.name] = Argument(name, f"*{TYPES[wide]}", buffer=name)
        self.scratch[name] = (wide, self.tile.pieces * length)

    def printed(self) -> Printed:
        if not self.nest.stores() and not self.beside:
            return Printed(HEADER, [])  # nothing is stored: readers recompute it
        name = kernel_name(self.nest)
        arguments = [*self.arguments, *self.partials.values()]
        lines = self.lines()
        source = HEADER + function(name, arguments, [*documentation(self.nest), *lines])
        kernels = [Kernel(name, tuple(arguments), self.tile.grid, self.tile.warps)]
        if self.in_parts:
            for kind in ("column", "down"):
                totals = [t for t in self.beside if t.kind == kind]
                if totals:
                    kernel, text = self.combine(f"{name}_{kind}s", totals)
                    kernels.append(kernel)
                    source += text
        return Printed(source, kernels, self.scratch)

    # ---- loops

    def lines(self) -> list[str]:
        program = self.body.scopes["program"]
        if self.tile.way == "pieces":
            self.pieces(program, self.define_program(program))
        elif self.tile.whole:
            self.whole_or_not(program)
        else:
            self.define_tile(program)
            self.row()
        return program.lines

    def whole_or_not(self, program: Scope) -> None:
        """Branch on full tiles, which have no mask: under a mask of arbitrary length, elements are read and written one by
        one."""
        self.define_program(program)
        branches = []
        for masks in ({}, dict(self.body.masks)):
            self.body = Body(self.nest, self.tile, self.body.arguments)
            self.body.masks, self.body.scopes["program"] = masks, Scope(2)
            self.row()
            branches.append(self.body.scopes["program"].lines)
        program.add(f"if program < {self.tile.whole}:")
        program.lines += branches[0]
        program.add("else:")
        program.lines += branches[1]

    def define_program(self, scope: Scope) -> str:
        """Define the program's block of rows, or piece, and its columns."""
        tile = self.tile
        scope.add("program = tl.program_id(0)" + (".to(tl.int64)" if self.body.large else ""))
        if not tile.loops and tile.cols:
            column = "program" if tile.row_blocks == 1 else f"program % {tile.col_blocks}"
            self.define_columns(scope, f"{bracketed(column)} * {tile.block_c} + " if tile.splits else "")
        return "program" if tile.col_blocks == 1 else f"program // {tile.col_blocks}"

    def define_tile(self, scope: Scope) -> None:
        self.define_rows(scope, bracketed(self.define_program(scope)), self.tile.block_r)

    def define_columns(self, scope: Scope, start: str) -> None:
        body, tile = self.body, self.tile
        if tile.cols == 1:
            return
        self.define(scope, "c", f"{start}tl.arange(0, {tile.block_c})", "[None, :]")
        if body.draws_in_fours():
            self.define(scope, "fours", f"{start}tl.arange(0, {tile.block_c // 4}) * 4", "[None, :]")
        if tile.cols % tile.block_c:
            scope.add(f"in_cols = c < {tile.cols}")
            body.masks["c"] = "in_cols"

    def define_rows(self, scope: Scope, block: str, step: int) -> None:
        body, tile = self.body, self.tile
        if tile.rows == 1:
            return
        if tile.block_r == 1:
            self.define(scope, "r", block, "")
            return
        first = f"{block} * {step}" if step > 1 else block
        self.define(scope, "r", f"{first} + tl.arange(0, {tile.block_r})", "[:, None]")
        if tile.rows % tile.block_r:
            scope.add(f"in_rows = r < {tile.rows}")
            body.masks["r"] = "in_rows"

    def define(self, scope: Scope, name: str, text: str, axes: str) -> None:
        both = self.body.axes_of["r"] and self.body.axes_of["c"]
        text = f"({text}){axes}" if both and axes else text
        scope.add(f"{name} = {f'tl.cast({text}, tl.int64)' if self.body.large else text}")

    def row(self) -> None:
        """Print all stages, for one row or a block of rows."""
        for stage in self.stages:
            for t in stage.downs:
                self.add_down(t)
            self.store_rows(stage)
            if stage.loops:
                self.columns(stage)

    def store_rows(self, stage: Stage) -> None:
        if any(s.overwrites for s in stage.before):
            self.barrier()
        for s in stage.before:
            self.body.store(s)

    def barrier(self) -> None:
        """Barrier before a buffer is overwritten: several threads may read one element, and all must have read it."""
        self.body.inner.add("tl.debug_barrier()")

    def columns(self, stage: Stage) -> None:
        body, tile = self.body, self.tile
        if not tile.loops and tile.cols:
            self.element(stage)
            return
        outer = body.inner
        sums = [self.cleared(t, outer, "rc") for t in stage.totals]
        if tile.cols:
            self.loop(stage, sums, outer)
        for t, name in zip(stage.totals, sums, strict=True):
            self.know(t, name, outer)
            for power in self.powers.get(t.name, []):
                self.know_sum(power, name, outer)

    def know_sum(self, power: Sum, tops: str, scope: Scope) -> None:
        """Define the sum of exponentials over lanes, each of which has subtracted its own maximum."""
        shift = self.body.value(power.shift)
        self.know(power.total, f"({power_of(tops)} * libdevice.exp({tops} - {shift}))", scope)

    def loop(self, stage: Stage, sums: list[str], outer: Scope) -> None:
        """Loop over the columns, tile by tile."""
        body, tile = self.body, self.tile
        scope = body.scopes["columns"] = Scope(outer.depth + 1)
        self.define_columns(scope, "start + ")
        for t, name in zip(stage.totals, sums, strict=True):
            part = self.added(t, "rc", "c")
            if t.name in self.powers:
                scope.add(f"{name}, {power_of(name)} = maths.raised({name}, {power_of(name)}, {part})")
            else:
                scope.add(f"{name} = {ops.joined(t.op, accumulator(t.dtype), name, part)}")
        self.element(stage, looped=True)
        del body.scopes["columns"]
        body.masks.pop("c", None)
        outer.add(f"for start in range({self.bounds()}, {tile.block_c}):")
        outer.lines += scope.lines

    def bounds(self) -> str:
        """Range of columns that a program loops over."""
        return f"0, {self.tile.cols}"

    def added(self, t: Total, axes: str, masked: str) -> str:
        """Name the added value, so that the line that adds it stays short."""
        text = self.body.added(t, axes, masked)
        return text if " " not in text else self.body.named(text, f"{t.name}_part", self.body.inner)

    def element(self, stage: Stage, looped: bool = False) -> None:
        """Print the work per element: all values are computed before any is stored."""
        body = self.body
        for s in stage.stores:
            body.value(s.expr)
        if not looped:
            for t in stage.totals:
                self.know(t, body.added(t, "rc", "c"), body.inner)
        for t in stage.columns:
            self.add_column(t)
        if any(s.overwrites for s in stage.stores):
            self.barrier()
        for s in stage.stores:
            body.store(s)

    def know(self, t: Total, block: str, scope: Scope) -> None:
        """Define a row total once it is complete."""
        body = self.body
        name = body.name(f"{t.op}_{t.name}")
        wide = accumulator(t.dtype)
        scope.add(f"{name} = {ops.cast(body.along(t, block, 'c'), wide, t.dtype)}")
        scope.values[self.total_of(t)] = name

    def total_of(self, t: Total) -> Expr:
        """Expression that stands for a total."""
        return self.totals.get(t.name, Expr("total", t.dtype, t.name, ()))

    def cleared(self, t: Total, scope: Scope, axes: str) -> str:
        """Define an accumulator block of neutral elements, and return its name."""
        body, wide = self.body, accumulator(t.dtype)
        name = body.name(f"{t.name}_sofar")
        blocked = body.blocked("r" in axes, "c" in axes)
        shape = body.shape(blocked) if blocked else "()"
        scope.add(f"{name} = tl.full({shape}, {ops.literal(ops.identity(t.op, wide))}, {ops.type_of(wide)})")
        if t.name in self.powers:
            scope.add(f"{power_of(name)} = tl.full({shape}, 0.0, {ops.type_of(wide)})")
        return name

    # ---- column totals

    def pieces(self, program: Scope, piece: str) -> None:
        """Loop over a piece of the rows, block by block, and store its column totals."""
        body, tile = self.body, self.tile
        program.add(f"piece = {piece}")
        for t in self.beside:
            if t.kind == "down" or not tile.loops:
                self.accumulators[t.name] = self.cleared(t, program, "c" if t.kind == "column" else "")
            else:
                self.clear_memory(t, program)
        rows = body.scopes["rows"] = Scope(2)
        self.define_rows(rows, "first", 1)
        self.row()
        del body.scopes["rows"]
        body.masks.pop("r", None)
        stop = f"tl.minimum(piece * {tile.share} + {tile.share}, {tile.rows})"
        program.add(f"for first in range(piece * {tile.share}, {stop}, {tile.block_r}):")
        program.lines += rows.lines or ["        pass"]
        for t in self.beside:
            if t.name in self.accumulators:
                self.settle(t, program)

    def part(self, t: Total) -> str:
        """Pointers to a piece's partial total in memory."""
        given = self.partials[t.name].name
        if t.kind == "down":
            return f"{given} + piece"
        return f"{given} + piece * {self.tile.cols}" + (" + c" if self.tile.cols > 1 else "")

    def masked(self) -> str:
        return ", mask=in_cols" if "c" in self.body.masks else ""

    def clear_memory(self, t: Total, program: Scope) -> None:
        wide, tile = accumulator(t.dtype), self.tile
        program.add(f"for start in range(0, {tile.cols}, {tile.block_c}):")
        scope = Scope(2)
        self.define_columns(scope, "start + ")
        zero = ops.number(ops.identity(t.op, wide), wide)
        scope.add(f"tl.store({self.part(t)}, {ops.to_memory(zero, wide)}{self.masked()})")
        self.body.masks.pop("c", None)
        program.lines += scope.lines
        program.add("tl.debug_barrier()")

    def add_column(self, t: Total) -> None:
        body, wide = self.body, accumulator(t.dtype)
        text = body.along(t, body.added(t, "rc", "r"), "r")
        name = self.accumulators.get(t.name)
        if name is not None:
            text = body.named(text, f"{t.name}_part", body.inner)
            body.inner.add(f"{name} = {ops.joined(t.op, wide, name, text)}")
            return
        place = self.part(t)
        before = f"tl.load({place}{self.masked()})" + (" != 0" if wide == "bool" else "")
        part = body.named(text, f"{t.name}_part", body.inner)
        body.inner.add(f"{name_of(t)}_sofar = {before}")
        total = ops.to_memory(f"({ops.joined(t.op, wide, f'{name_of(t)}_sofar', part)})", wide)
        body.inner.add(f"tl.store({place}, {total}{self.masked()})")
        body.inner.add("tl.debug_barrier()")

    def add_down(self, t: Total) -> None:
        body, wide = self.body, accumulator(t.dtype)
        text = body.added(t, "r", "r")
        if body.axes_of["r"]:
            if body.axes_of["c"]:
                text = ops.reduced(t.op, wide, text, 1, False)
            text = ops.reduced(t.op, wide, text, 0, False)
        name = self.accumulators[t.name]
        part = body.named(text, f"{t.name}_part", body.inner)
        body.inner.add(f"{name} = {ops.joined(t.op, wide, name, part)}")

    def settle(self, t: Total, scope: Scope) -> None:
        """Store the accumulated total of a piece: to its own slot, or to the result if there is only one piece."""
        if t.kind == "column" and not self.tile.cols:
            return
        name, wide = self.accumulators[t.name], accumulator(t.dtype)
        masked = self.masked() if t.kind == "column" and self.tile.cols > 1 else ""
        if self.in_parts:
            scope.add(f"tl.store({self.part(t)}, {ops.to_memory(name, wide)}{masked})")
            return
        assert t.buffer is not None
        target = self.body.arguments[t.buffer] + (" + c" if t.kind == "column" and self.tile.cols > 1 else "")
        scope.add(f"tl.store({target}, {ops.to_memory(ops.cast(name, wide, t.dtype), t.dtype)}{masked})")

    def combine(self, name: str, totals: list[Total]) -> tuple[Kernel, str]:
        """Print the kernel that combines the pieces' totals."""
        tile = self.tile
        cols = tile.cols if totals[0].kind == "column" else 1
        block = min(power_above(cols), COMBINED)
        targets = {a.buffer: a for a in self.arguments}
        arguments = [a for t in totals for a in (self.partials[t.name], targets[t.buffer or ""])]
        scope = Scope(1)
        scope.add(f'"""The totals of {tile.pieces} pieces put together, always in the same order."""')
        at, mask = ("c" if cols != 1 else ""), ("in_cols" if cols % block else "")
        if at:
            scope.add(f"c = tl.program_id(0) * {block} + tl.arange(0, {block})")
        if mask:
            scope.add(f"in_cols = c < {cols}")
        for t in totals:
            total = put_together(scope, t, self.partials[t.name].name, tile.pieces, cols, at, block, mask)
            total = ops.to_memory(ops.cast(total, accumulator(t.dtype), t.dtype), t.dtype)
            target = targets[t.buffer or ""].name + (" + c" if at else "")
            scope.add(f"tl.store({target}, {total}{', mask=in_cols' if mask else ''})")
        return Kernel(name, tuple(arguments), -(-cols // block), 4), function(name, arguments, scope.lines)
