"""Adding at indices: gradients of embeddings and of picked elements.

Where several elements are added to one place, they are added in their order, so the result is always the same. Rows that are
added as a whole are cut into strips of columns, which do not meet; otherwise there is one piece.
"""

from __future__ import annotations

import math

from ...ir.index import Picked, depends
from ...nests.loop_nest import Nest
from ..ir.builder import I64, PTR, Function, Module, Type, Value, constant
from .expr_emitter import Emitter, Scope
from ..ir.kernel import Kernel, Phase
from .nest_emitter import accumulator, lanes_for
from ..ir.target import Target
from ..math.scalar_ops import cast, in_memory, join, number

CHUNK = 4096  # elements that are set to 0 in a piece
STRIP = 2  # vectors in a strip


def emit_scatter(
    module: Module, name: str, nest: Nest, sizes: dict[str, int], buffers: list[str], numbers: list[int], target: Target
) -> Kernel:
    """A kernel in two phases: zeros, and what is added to them."""
    (s,) = nest.scatters
    size, scalar = sizes[s.buffer], in_memory(s.dtype)
    params = [(f"p{i}", PTR) for i in range(len(buffers) + len(numbers))]
    ends = [("shared", PTR), ("scratch", PTR), ("begin", I64), ("end", I64)]
    clear = module.function(f"{name}_zero", [*params, *ends])
    zeros(clear, clear.params[buffers.index(s.buffer)], size, scalar, target)
    f = module.function(name, [*params, *ends])
    by_rows = s.index.factor(nest.domain.c) == 1 and not any(
        isinstance(a, Picked) and depends(a, nest.domain.c) for a, _ in s.index.terms
    )
    lanes = lanes_for(nest, target) if by_rows else 1
    pieces = strips(nest, lanes) if by_rows else 1
    adding = Adding(f, nest, buffers, numbers, lanes)
    with f.loop(f.params[-2], f.params[-1]) as piece:
        if by_rows:
            adding.strip(piece.index)
        else:
            adding.one_by_one()
    f.back()
    return Kernel((Phase(f"{name}_zero", max(1, math.ceil(size / CHUNK))), Phase(name, pieces)))


def strips(nest: Nest, lanes: int) -> int:
    return math.ceil(nest.domain.cols / (STRIP * lanes))


def zeros(f: Function, base: Value, size: int, scalar: str, target: Target) -> None:
    lanes = target.lanes(scalar)
    with f.loop(f.params[-2], f.params[-1]) as piece:
        start = f.mul(piece.index, constant(CHUNK, I64))
        stop = f.intrinsic("smin", f.add(start, constant(CHUNK, I64)), constant(size, I64))
        with f.loop(start, stop, lanes) as loop:
            mask = f.mask_below(f.sub(stop, loop.index), lanes) if lanes > 1 else None
            f.store(constant(0, Type(scalar, lanes)), f.pointer(base, loop.index, scalar), mask)
    f.back()


class Adding:
    """Writes the loops over what is added."""

    def __init__(self, f: Function, nest: Nest, buffers: list[str], numbers: list[int], lanes: int) -> None:
        self.f = f
        self.nest = nest
        self.lanes = lanes
        domain = nest.domain
        pointers = dict(zip(buffers, f.params, strict=False))
        places = dict(zip(numbers, f.params[len(buffers) :], strict=False))
        self.emitter = Emitter(f, pointers, places, domain.r, domain.c, domain.c, lanes)
        self.emitter.ready(nest.expressions(), 0)

    def strip(self, piece: Value) -> None:
        """All rows, of some columns."""
        f, cols = self.f, self.nest.domain.cols
        width = STRIP * self.lanes
        start = f.mul(piece, constant(width, I64))
        with f.loop(0, self.nest.domain.rows) as row:
            self.row(row.index)
            for k in range(STRIP):
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
        emitter.scopes = [emitter.scopes[0], Scope(emitter.scopes[0])]
        emitter.ready(self.nest.expressions(), 1)

    def add(self, at: Value, mask: Value | None) -> None:
        f, emitter = self.f, self.emitter
        (s,) = self.nest.scatters
        emitter.loop[self.nest.domain.c] = at
        emitter.mask = mask
        emitter.scopes = [*emitter.scopes[:2], Scope(emitter.scopes[1])]
        value = emitter.wide(emitter.value(s.expr)) if s.expr.kind != "const" else number(s.expr.data, s.dtype, self.lanes)
        where = f.pointer(emitter.pointers[s.buffer], emitter.index(s.index, False), in_memory(s.dtype))
        wide = accumulator(s.dtype)
        before = cast(f, f.load(where, Type(in_memory(s.dtype), self.lanes), mask), s.dtype, wide)
        joined = join(f, "sum", wide, before, cast(f, value, s.expr.dtype, wide))
        f.store(cast(f, joined, wide, s.dtype), where, mask)
        emitter.mask = None
        emitter.scopes = emitter.scopes[:2]
