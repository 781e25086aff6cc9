"""Scatter-add: gradients of embeddings and of gathered elements.

Elements that are added to the same place are added in their order, so results are deterministic. Rows that are added as a
whole are cut into disjoint strips of columns, one per piece; otherwise there is a single piece.
"""

from __future__ import annotations

import math

from ...ir.index import IndirectIndex, depends_on
from ...nests.loop_nest import Nest
from ..ir.builder import I64, PTR, Function, Module, Type, Value, constant
from ..ir.kernel import NativeKernel, Phase
from ..ir.target import Target
from ..math.scalar_ops import cast, combine, dtype_constant, memory_scalar
from .expr_emitter import ExprEmitter, ValueScope
from .nest_emitter import accumulator, lanes_for

ZERO_ELEMENTS = 4096  # elements that a piece sets to 0
STRIP_VECTORS = 2  # in a strip of columns


def emit_scatter(
    module: Module, name: str, nest: Nest, sizes: dict[str, int], buffers: list[str], numbers: list[int], target: Target
) -> NativeKernel:
    """Emit a kernel of two phases: zeroing, and adding."""
    (s,) = nest.scatters
    size, scalar = sizes[s.buffer], memory_scalar(s.dtype)
    params = [(f"p{i}", PTR) for i in range(len(buffers) + len(numbers))]
    ends = [("shared", PTR), ("scratch", PTR), ("begin", I64), ("end", I64)]
    clear = module.function(f"{name}_zero", [*params, *ends])
    emit_zeros(clear, clear.params[buffers.index(s.buffer)], size, scalar, target)
    f = module.function(name, [*params, *ends])
    by_rows = s.index.factor(nest.domain.c) == 1 and not any(
        isinstance(a, IndirectIndex) and depends_on(a, nest.domain.c) for a, _ in s.index.terms
    )
    lanes = lanes_for(nest, target) if by_rows else 1
    pieces = count_strips(nest, lanes) if by_rows else 1
    adding = ScatterAdd(f, nest, buffers, numbers, lanes)
    with f.loop(f.params[-2], f.params[-1]) as piece:
        if by_rows:
            adding.strip(piece.index)
        else:
            adding.one_by_one()
    f.ret()
    return NativeKernel((Phase(f"{name}_zero", max(1, math.ceil(size / ZERO_ELEMENTS))), Phase(name, pieces)))


def count_strips(nest: Nest, lanes: int) -> int:
    return math.ceil(nest.domain.cols / (STRIP_VECTORS * lanes))


def emit_zeros(f: Function, base: Value, size: int, scalar: str, target: Target) -> None:
    lanes = target.lanes(scalar)
    with f.loop(f.params[-2], f.params[-1]) as piece:
        start = f.mul(piece.index, constant(ZERO_ELEMENTS, I64))
        stop = f.intrinsic("smin", f.add(start, constant(ZERO_ELEMENTS, I64)), constant(size, I64))
        with f.loop(start, stop, lanes) as loop:
            mask = f.mask_below(f.sub(stop, loop.index), lanes) if lanes > 1 else None
            f.store(constant(0, Type(scalar, lanes)), f.pointer(base, loop.index, scalar), mask)
    f.ret()


class ScatterAdd:
    """Emits the loops that add."""

    def __init__(self, f: Function, nest: Nest, buffers: list[str], numbers: list[int], lanes: int) -> None:
        self.f = f
        self.nest = nest
        self.lanes = lanes
        domain = nest.domain
        pointers = dict(zip(buffers, f.params, strict=False))
        places = dict(zip(numbers, f.params[len(buffers) :], strict=False))
        self.emitter = ExprEmitter(f, pointers, places, domain.r, domain.c, domain.c, lanes)
        self.emitter.hoist(nest.expressions(), 0)

    def strip(self, piece: Value) -> None:
        """All rows, of a strip of columns."""
        f, cols = self.f, self.nest.domain.cols
        width = STRIP_VECTORS * self.lanes
        start = f.mul(piece, constant(width, I64))
        with f.loop(0, self.nest.domain.rows) as row:
            self.row(row.index)
            for k in range(STRIP_VECTORS):
                at = f.add(start, constant(k * self.lanes, I64))
                with f.when(f.compare("lt", at, constant(cols, I64))):
                    left = f.sub(constant(cols, I64), at)
                    self.add(at, None if cols % self.lanes == 0 else f.mask_below(left, self.lanes))

    def one_by_one(self) -> None:
        with self.f.loop(0, self.nest.domain.rows) as row:
            self.row(row.index)
            with self.f.loop(0, self.nest.domain.cols) as column:
                self.add(column.index, None)

    def row(self, at: Value) -> None:
        emitter = self.emitter
        emitter.loop[self.nest.domain.r] = at
        emitter.scopes = [emitter.scopes[0], ValueScope(emitter.scopes[0])]
        emitter.hoist(self.nest.expressions(), 1)

    def add(self, at: Value, mask: Value | None) -> None:
        f, emitter = self.f, self.emitter
        (s,) = self.nest.scatters
        emitter.loop[self.nest.domain.c] = at
        emitter.mask = mask
        emitter.scopes = [*emitter.scopes[:2], ValueScope(emitter.scopes[1])]
        value = (
            emitter.broadcast(emitter.value(s.expr))
            if s.expr.kind != "const"
            else dtype_constant(s.expr.data, s.dtype, self.lanes)
        )
        where = f.pointer(emitter.pointers[s.buffer], emitter.index(s.index, False), memory_scalar(s.dtype))
        wide = accumulator(s.dtype)
        before = cast(f, f.load(where, Type(memory_scalar(s.dtype), self.lanes), mask), s.dtype, wide)
        joined = combine(f, "sum", wide, before, cast(f, value, s.expr.dtype, wide))
        f.store(cast(f, joined, wide, s.dtype), where, mask)
        emitter.mask = None
        emitter.scopes = emitter.scopes[:2]
