"""Prints a contraction: a program accumulates one tile in a loop over the depth, and goes on with the epilogue.

    r, c = the tile's rows and columns
    for start in range(0, depth, ...):
        a, b = elements of the operands, or what is computed of them
        total = tl.dot(a, b, total)
    matmul = total             and then the nest's epilogue

Few tiles of a great depth are split into parts (split-K), each with a program of its own; a second kernel adds the parts,
always in the same order, and goes on with the epilogue.
"""

from __future__ import annotations

from ...ir.expr import Expr, walk
from ...ir.index import ZERO
from ...nests.loop_nest import Nest, Stage, Store
from ...schedule.step import Domain
from ..printing import scalar_ops as ops
from ..printing.expr_printer import MATMUL_BUFFER, Body, Scope
from ..printing.kernel_text import (
    HEADER,
    Argument,
    Kernel,
    Printed,
    arguments,
    documentation,
    dtypes_of,
    function,
    kernel_name,
    names_of,
)
from ..printing.scalar_ops import TYPES, accumulator
from ..printing.tiling import Tile
from .problem import Contraction
from .tile_configs import GROUP, Config, tiles

PARTS = "parts"  # the buffer of what the parts have added up
OWN_NAMES = {"batch", "block_m", "block_n", "tile", "part", "ka", "kb", "in_ka", "in_kb", "total", "width", "stop"}
ADDED = Config(16, 64, 16, 4, 2)  # tiles of the kernel that adds parts


class MatmulPrinter:
    """Prints the kernels of one contraction."""

    def __init__(self, work: Contraction, config: Config, precision: str) -> None:
        self.work = work
        self.config = config
        self.precision = precision
        self.wide = accumulator(work.dtype)
        loads = {e.data[0]: e.dtype for e in walk([work.a, work.b]) if e.kind == "load"}
        after = {b: dtype for b, dtype in dtypes_of(work.nest).items() if b != MATMUL_BUFFER}
        self.of_operands = arguments(loads, [work.a, work.b])
        self.arguments = arguments(loads | after, [work.a, work.b, *work.nest.expressions()])
        self.partial = Argument(PARTS, f"*{TYPES[self.wide]}", buffer=PARTS)

    def printed(self) -> Printed:
        work, config, name = self.work, self.config, kernel_name(self.work.nest)
        notes = documentation(work.nest, work.what)
        if config.split_k == 1:
            source = HEADER + function(name, self.arguments, [*notes, *self.whole()])
            return Printed(source, [Kernel(name, tuple(self.arguments), tiles(config, work), config.warps, config.stages)])
        first, then = [*self.of_operands, self.partial], [*self.arguments, self.partial]
        source = HEADER + function(f"{name}_parts", first, [*notes, *self.part(first)])
        source += function(name, then, self.added(then))
        parts = Kernel(f"{name}_parts", tuple(first), config.split_k * tiles(config, work), config.warps, config.stages)
        whole = Kernel(name, tuple(then), tiles(ADDED, work), ADDED.warps, ADDED.stages)
        size = config.split_k * work.batches * work.rows * work.cols
        return Printed(source, [parts, whole], {PARTS: (self.wide, size)})

    def whole(self) -> list[str]:
        writer = TileWriter(self, self.config, self.arguments)
        writer.begin()
        writer.rounds(0, str(self.work.depth))
        writer.follow()
        return writer.scope.lines

    def part(self, given: list[Argument]) -> list[str]:
        """Print the kernel that stores the partial sums of a part of the depth."""
        writer, share = TileWriter(self, self.config, given), self.share
        writer.begin(self.config.split_k)
        writer.scope.add(f"stop = tl.minimum(part * {share} + {share}, {self.work.depth})")
        writer.rounds(share, "stop")
        writer.scope.add(f"tl.store({self.place('part')}, total{writer.masked()})")
        return writer.scope.lines

    def added(self, given: list[Argument]) -> list[str]:
        writer, parts = TileWriter(self, ADDED, given), self.config.split_k
        writer.scope.add(f'"""The sums of {parts} parts put together, always in the same order, and what follows."""')
        writer.begin()
        writer.cleared()
        writer.scope.add(f"for part in range({parts}):")
        writer.scope.add(f"    total += tl.load({self.place('part')}{writer.masked(', other=0')})")
        writer.follow()
        return writer.scope.lines

    @property
    def share(self) -> int:
        """Depth of a part."""
        rounds = -(-self.work.depth // self.config.block_k)
        return -(-rounds // self.config.split_k) * self.config.block_k

    def place(self, part: str) -> str:
        """Pointers to the partial sums of a part."""
        work = self.work
        before = f"({part} * {work.batches} + batch)" if work.batches > 1 else part
        return f"{PARTS} + {before} * {work.rows * work.cols} + (r * {work.cols} + c)"


class TileWriter:
    """Writes the lines of one kernel."""

    def __init__(self, printer: MatmulPrinter, config: Config, given: list[Argument]) -> None:
        self.work = printer.work
        self.printer = printer
        self.config = config
        self.names = names_of(given)
        self.scope = Scope(1)
        self.taken = {*self.names.values(), *OWN_NAMES}
        self.counts: dict[str, int] = {}
        self.masks: dict[str, str] = {}  # masks of rows, columns and depth
        work, m, n, k = printer.work, config.block_m, config.block_n, config.block_k
        self.a = self.body(loaded(work.outer, work.a), m, k)
        self.b = self.body(loaded(work.inner, work.b), k, n)
        self.after = self.body(work.nest, m, n)
        self.large = any(b.large for b in (self.a, self.b, self.after))

    def body(self, nest: Nest, rows: int, cols: int) -> Body:
        domain = nest.domain
        found = Body(nest, Tile("tiles", domain.rows, domain.cols, rows, cols, False, True), self.names)
        self.taken |= found.taken
        found.taken = self.taken
        found.counts = self.counts
        return found

    def define(self, scope: Scope, name: str, text: str) -> None:
        scope.add(f"{name} = {f'tl.cast({text}, tl.int64)' if self.large else text}")

    # ---- tile of a program

    def begin(self, parts: int = 1) -> None:
        """Define the tile of a program: its rows and columns, and their masks."""
        scope, work, config = self.scope, self.work, self.config
        down, across = -(-work.rows // config.block_m), -(-work.cols // config.block_n)
        scope.add("program = tl.program_id(0)" + (".to(tl.int64)" if self.large else ""))
        tile = "program"
        if work.batches * parts > 1:
            each = down * across
            if each > 1:
                scope.add(f"tile = program % {each}")
                tile = "tile"
            if parts > 1:
                rest = f"program // {each}" if each > 1 else "program"
                scope.add(f"part = {rest} % {parts}" if work.batches > 1 else f"part = {rest}")
            if work.batches > 1:
                scope.add(f"batch = program // {each * parts}" if each * parts > 1 else "batch = program")
        self.tile(tile, down, across)
        self.define(scope, "r", f"(block_m * {config.block_m} + tl.arange(0, {config.block_m}))[:, None]")
        self.define(scope, "c", f"(block_n * {config.block_n} + tl.arange(0, {config.block_n}))[None, :]")
        if self.after.draws_in_fours():
            self.define(scope, "fours", f"(block_n * {config.block_n} + tl.arange(0, {config.block_n // 4}) * 4)[None, :]")
        if work.rows % config.block_m:
            scope.add(f"in_rows = r < {work.rows}")
            self.masks["r"] = "in_rows"
        if work.cols % config.block_n:
            scope.add(f"in_cols = c < {work.cols}")
            self.masks["c"] = "in_cols"

    def tile(self, tile: str, down: int, across: int) -> None:
        """Order the tiles: a few rows of tiles together, column by column, so that their operands stay in the cache."""
        add = self.scope.add
        if down == 1 or across == 1:
            add(f"block_m = {0 if down == 1 else tile}")
            add(f"block_n = {0 if across == 1 else tile}")
            return
        if down <= GROUP:
            add(f"block_m = {tile} % {down}")
            add(f"block_n = {tile} // {down}")
            return
        add(f"first = {tile} // {GROUP * across} * {GROUP}")
        add(f"width = {GROUP}" if down % GROUP == 0 else f"width = tl.minimum({down} - first, {GROUP})")
        add(f"block_m = first + {tile} % {GROUP * across} % width")
        add(f"block_n = {tile} % {GROUP * across} // width")

    def masked(self, otherwise: str = "") -> str:
        masks = " & ".join(self.masks[x] for x in "rc" if x in self.masks)
        return f", mask={masks}{otherwise}" if masks else ""

    # ---- loop over the depth

    def cleared(self) -> None:
        self.scope.add(f"total = tl.zeros([{self.config.block_m}, {self.config.block_n}], tl.{self.printer.wide})")

    def rounds(self, share: int, stop: str) -> None:
        """Print the loop over the depth: all of it, or a part's share."""
        step = self.config.block_k
        loop, before = Scope(2), [Scope(1), Scope(1)]
        self.a.variables[self.a.domain.c], self.b.variables[self.b.domain.r] = "ka", "kb"
        self.a.scopes = {"program": before[0], "columns": loop}
        self.b.scopes = {"program": before[1], "rows": loop}
        self.define(loop, "ka", f"(start + tl.arange(0, {step}))[None, :]")
        self.define(loop, "kb", f"(start + tl.arange(0, {step}))[:, None]")
        if self.work.depth % step:
            loop.add(f"in_ka = ka < {self.work.depth}")
            loop.add(f"in_kb = kb < {self.work.depth}")
            self.a.masks["c"], self.b.masks["r"] = "in_ka", "in_kb"
        self.a.masks |= {"r": self.masks["r"]} if "r" in self.masks else {}
        self.b.masks |= {"c": self.masks["c"]} if "c" in self.masks else {}
        a, b = self.operand(self.a, self.work.a, "c", loop), self.operand(self.b, self.work.b, "r", loop)
        precise = f', input_precision="{self.printer.precision}"' if self.work.dtype == "float32" else ""
        loop.add(f"total = tl.dot({a}, {b}, total{precise})")
        self.scope.lines += before[0].lines + before[1].lines
        self.cleared()
        self.scope.add(f"for start in range({f'part * {share}' if share else 0}, {stop}, {step}):")
        self.scope.lines += loop.lines

    def operand(self, body: Body, e: Expr, along: str, loop: Scope) -> str:
        """Print a tile of an operand, 0 beyond the depth. Masked loads along the depth are 0 there already; an expression of
        zeros, or one that does not vary along the depth, need not be, so it is masked again."""
        value, both = body.operand(e).typed, body.blocked(True, True)
        text = body.spread(value, body.axes(e) if e.kind != "const" else frozenset(), both)
        if along in body.masks and not (e.kind == "load" and along in body.axes(e)):
            text = f"tl.where({body.masks[along]}, {text}, 0.0)"
        return body.named(text, "tile", loop) if text != value else value

    # ---- epilogue

    def follow(self) -> None:
        body, (stage,) = self.after, self.work.nest.stages
        body.scopes, body.masks = {"program": self.scope}, dict(self.masks)
        body.scalars(self.work.nest.expressions())
        for e in walk(self.work.nest.expressions()):
            if e.kind == "matmul":
                name = self.scope.values[e] = body.name(MATMUL_BUFFER)
                self.scope.add(f"{name} = {ops.cast('total', self.printer.wide, e.dtype)}")
        for s in stage.stores:
            body.value(s.expr)
        if any(s.overwrites for s in stage.stores):
            self.scope.add("tl.debug_barrier()")  # several threads may read what is about to be overwritten
        for s in stage.stores:
            body.store(s)


def loaded(domain: Domain, e: Expr) -> Nest:
    """Loops that load an operand's tile."""
    return Nest(domain, [Stage(stores=[Store("", ZERO, e, e.dtype)])], "c")
