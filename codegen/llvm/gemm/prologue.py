"""Operands of products that are computed while they are packed, and so are never in memory.

A prologue is loops over the rows and columns of an operand, the matrices of a batch below each other. Packing goes through an
operand in lines: what is the same all along a line, as the mean of a row, is computed where the line begins.
"""

from __future__ import annotations

import math

from ....tracer.graph.ir import Form
from ...ir.expr import Expr, Exprs, walk
from ...schedule.fusion import variables_of
from ...ir.index import unflattened
from ...nests.kernels import Launch
from ...lowering.op_lowering import dtype_of
from ...lowering.substitute import Moved
from ...nests.loop_nest import Nest, Stage, Store
from ...schedule.step import Domain, View
from ..ir.builder import Function, Value
from .problem import Line
from ..loops.expr_emitter import Scope
from .given import Given
from ..ir.register_tile import scaled


def prologues(launch: Launch, forms: dict[str, Form]) -> dict[str, Nest]:
    """The loops that make a product's computed operands."""
    return {x: prologue(x, e, forms) for x, e in launch.computed.items()}


def prologue(x: str, e: Expr, forms: dict[str, Form]) -> Nest:
    """The loops that make an operand, of what an element is at d0, d1 and so on."""
    shape = forms[x].shape
    domain = Domain(math.prod(shape[:-1]), shape[-1])
    place = (*unflattened(domain.row, shape[:-1]), domain.col)
    found = Moved(Exprs(), dict(zip(variables_of(shape), place, strict=True))).expr(e)
    stage = Stage(stores=[Store(x, domain.flat, found, dtype_of(forms[x]))])
    return Nest(domain, [stage], "r" if by_columns(found, domain) else "c")


def by_columns(e: Expr, domain: Domain) -> bool:
    """Whether more of what an operand is computed from lies along its columns than along its rows."""
    found = 0
    for x in walk([e]):
        if x.kind == "load" and x.depends(domain.r) and x.depends(domain.c):
            found += (x.data[1].factor(domain.r) == 1) - (x.data[1].factor(domain.c) == 1)
    return found > 0


def views_of(launch: Launch, forms: dict[str, Form]) -> dict[str, View]:
    """Where a product's operands are. Computed ones are nowhere: their strides say in which order they are best computed."""
    nests = prologues(launch, forms)
    return {**launch.operands, **{x: (x, 0, strides_of(nest, forms[x].shape)) for x, nest in nests.items()}}


def strides_of(nest: Nest, shape: tuple[int, ...]) -> tuple[int, ...]:
    found = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return (*found[:-2], 1, shape[-2]) if nest.vector == "r" else found


class Prologue:
    """The lines of an operand, as packing asks for them."""

    def __init__(self, nest: Nest, buffers: list[str], numbers: list[int], rows: tuple[int, ...]) -> None:
        (store,) = nest.stores()
        self.expr = store.expr
        self.domain = nest.domain
        self.given = Given([store.expr], buffers, numbers)
        self.rows = rows  # of each dim of the batch: how many rows it is from one matrix to the next

    def __call__(self, f: Function, batch: list[Value], along: str, other: Value) -> Line:
        r, c = self.domain.r, self.domain.c
        inner, outer = (r, c) if along == "row" else (c, r)
        there = self.below(f, batch, other) if outer is r else other
        start = self.given.emitter(f, outer, inner, 1)
        start.loop[outer] = there
        start.ready([self.expr], 1, straight=True)

        def line(first: Value, lanes: int, mask: Value | None) -> Value:
            emitter = self.given.emitter(f, outer, inner, lanes)
            emitter.scopes = [*start.scopes, Scope(start.scopes[-1])]
            emitter.loop = {outer: there, inner: self.below(f, batch, first) if inner is r else first}
            emitter.mask = mask
            return emitter.vectored(self.expr)

        return line

    def below(self, f: Function, batch: list[Value], row: Value) -> Value:
        """A row of a matrix among those of all matrices."""
        for i, rows in zip(batch, self.rows, strict=True):
            if rows:
                row = f.add(row, scaled(f, i, rows))
        return row
