"""Scatter-add by atomics, as Triton kernels: gradients of embeddings and of picked elements.

The target is zeroed first. Then elements are added by atomic adds, in no fixed order, so float sums may differ in their last
bits from run to run; where that is not wanted they are sorted (`sorted_scatter.py`). Dtypes without atomic adds (halves, small
integers) are accumulated in a wider buffer first.
"""

from __future__ import annotations

from ...nests.loop_nest import Nest
from ..printing import scalar_ops as ops
from ..printing.expr_printer import Body, Scope, identifier
from ..printing.kernel_text import HEADER, Argument, Kernel, Printed, arguments_of, documentation, function, kernel_name
from ..printing.scalar_ops import TYPES
from ..printing.tiling import TILE, Tile, tile_of
from .nest_printer import Printer
from .sorted_scatter import Sorting

ATOMIC_DTYPES = {"float16": "float32", "bfloat16": "float32", **dict.fromkeys(("int8", "int16", "uint8", "uint16"), "int32")}


class AtomicScatterPrinter:
    """Prints up to three kernels: zeroing, the atomic adds, and the conversion of the sums to the result dtype."""

    def __init__(self, nest: Nest, sizes: dict[str, int], deterministic: bool) -> None:
        (self.row,) = nest.scatters
        self.nest = nest
        self.size = sizes[self.row.buffer]
        self.name = kernel_name(nest)
        self.in_order = deterministic and ops.floating(self.row.dtype)  # integers are the same in any order
        self.wide = ATOMIC_DTYPES.get(self.row.dtype, self.row.dtype)
        self.arguments = arguments_of(nest)
        self.target = next(a for a in self.arguments if a.buffer == self.row.buffer)
        self.sums = self.target
        if self.wide != self.row.dtype:
            name = f"{identifier(self.row.buffer)}_sums"
            self.sums = Argument(name, f"*{TYPES[self.wide]}", buffer=name)

    def printed(self) -> Printed:
        if self.in_order:
            return Sorting(self.nest, self.size, self.wide).printed()
        own = self.sums is not self.target
        source = HEADER + self.zeros()
        kernels = [self.flat(f"{self.name}_zeros", [self.sums])]
        given = [self.sums if a is self.target else a for a in self.arguments]
        tile = tile_of(self.nest)
        source += function(self.name, given, [*documentation(self.nest), *self.lines(given, tile)])
        kernels.append(Kernel(self.name, tuple(given), tile.grid, tile.warps))
        if own:
            source += self.rounding()
            kernels.append(self.flat(f"{self.name}_rounded", [self.sums, self.target]))
        return Printed(source, kernels, {self.sums.buffer: (self.wide, self.size)} if own else {})

    # ---- kernels over all elements of the target

    def flat(self, name: str, arguments: list[Argument]) -> Kernel:
        return Kernel(name, tuple(arguments), -(-self.size // TILE), 4)

    def elements(self, scope: Scope) -> str:
        scope.add(f"i = tl.program_id(0){'.to(tl.int64)' if self.size >= 1 << 31 else ''} * {TILE} + tl.arange(0, {TILE})")
        return f", mask=i < {self.size}" if self.size % TILE else ""

    def zeros(self) -> str:
        scope = Scope(1)
        mask = self.elements(scope)
        zero = ops.literal(0.0 if ops.floating(self.wide) else 0)
        scope.add(f"tl.store({self.sums.name} + i, tl.full([{TILE}], {zero}, tl.{self.wide}){mask})")
        return function(f"{self.name}_zeros", [self.sums], scope.lines)

    def rounding(self) -> str:
        scope = Scope(1)
        mask = self.elements(scope)
        scope.add(f"total = tl.load({self.sums.name} + i{mask})")
        scope.add(f"tl.store({self.target.name} + i, {ops.cast('total', self.wide, self.row.dtype)}{mask})")
        return function(f"{self.name}_rounded", [self.sums, self.target], scope.lines)

    # ---- atomic adds

    def lines(self, given: list[Argument], tile: Tile) -> list[str]:
        printer = Printer(self.nest, tile, given)
        body, program = printer.body, printer.body.scopes["program"]
        body.arguments[self.row.buffer] = self.sums.name
        printer.define_tile(program)
        pointer, mask, axes = self.place(body)
        value = body.spread(self.value(body), body.axes(self.row.expr), axes)
        program.add(f'tl.atomic_add({pointer}, {value}{", mask=" + mask if mask else ""}, sem="relaxed")')
        return program.lines

    def place(self, body: Body) -> tuple[str, str, frozenset[str]]:
        """Pointers and mask of the added elements. Those outside of the domain are masked whatever the index depends on."""
        pointer, mask, axes = body.place(self.row.buffer, self.row.index, ())
        wanted = body.blocked(True, True)
        missing = [body.masks[a] for a in "rc" if a in wanted - axes and a in body.masks]
        if wanted - axes:
            pointer = f"tl.broadcast_to({pointer}, {body.shape(wanted)})"
        return pointer, " & ".join([*([mask] if mask else []), *missing]), wanted

    def value(self, body: Body) -> str:
        return ops.cast(body.value(self.row.expr), self.row.expr.dtype, self.wide)
