"""Prologue fusion: matmul operands that are computed while they are packed, and so are never in memory.

A prologue is a loop nest over the rows and columns of an operand, with the matrices of a batch stacked as rows. Packing reads
an operand line by line: values that are constant along a line, such as the mean of a row, are computed where the line begins.

`FusedInputs` serves epilogues as well: it finds the buffers and scalars of fused expressions among a kernel's pointers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ....tracer.graph.ir import Form
from ...ir.expr import Expr, ExprBuilder, walk
from ...ir.index import Var, unflatten_index
from ...lowering.op_lowering import dtype_of
from ...lowering.substitute import Substitution
from ...nests.kernels import Launch
from ...nests.loop_nest import Nest, Stage, Store
from ...schedule.fusion import variables_of
from ...schedule.step import BufferView, Domain
from ..ir.builder import Function, Value
from ..ir.register_tile import scale_index
from ..loops.expr_emitter import ExprEmitter, ValueScope
from .problem import LineReader


def prologue_nests(launch: Launch, forms: dict[str, Form]) -> dict[str, Nest]:
    """Loop nests of a matmul's computed operands, by operand."""
    return {x: prologue_nest(x, e, forms) for x, e in launch.computed.items()}


def prologue_nest(x: str, e: Expr, forms: dict[str, Form]) -> Nest:
    """Loop nest that computes operand `x`, given its element `e` at d0, d1, ..."""
    shape = forms[x].shape
    domain = Domain(math.prod(shape[:-1]), shape[-1])
    place = (*unflatten_index(domain.row, shape[:-1]), domain.col)
    found = Substitution(ExprBuilder(), dict(zip(variables_of(shape), place, strict=True))).expr(e)
    stage = Stage(stores=[Store(x, domain.flat, found, dtype_of(forms[x]))])
    return Nest(domain, [stage], "r" if prefers_columns(found, domain) else "c")


def prefers_columns(e: Expr, domain: Domain) -> bool:
    """True if more of an operand's inputs are contiguous along its columns than along its rows."""
    found = 0
    for x in walk([e]):
        if x.kind == "load" and x.depends(domain.r) and x.depends(domain.c):
            found += (x.data[1].factor(domain.r) == 1) - (x.data[1].factor(domain.c) == 1)
    return found > 0


def operand_views(launch: Launch, forms: dict[str, Form]) -> dict[str, BufferView]:
    """Views of a matmul's operands. Computed ones are in no memory: their strides give the order in which to compute them."""
    nests = prologue_nests(launch, forms)
    return {**launch.operands, **{x: (x, 0, preferred_strides(nest, forms[x].shape)) for x, nest in nests.items()}}


def preferred_strides(nest: Nest, shape: tuple[int, ...]) -> tuple[int, ...]:
    found = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return (*found[:-2], 1, shape[-2]) if nest.vector == "r" else found


class Prologue:
    """Readers of a computed operand's lines, as packing asks for them."""

    def __init__(self, nest: Nest, buffers: list[str], numbers: list[int], rows: tuple[int, ...]) -> None:
        (store,) = nest.stores()
        self.expr = store.expr
        self.domain = nest.domain
        self.inputs = FusedInputs([store.expr], buffers, numbers)
        self.rows = rows  # per batch dim: rows from one matrix to the next

    def __call__(self, f: Function, batch: list[Value], along: str, other: Value) -> LineReader:
        r, c = self.domain.r, self.domain.c
        inner, outer = (r, c) if along == "row" else (c, r)
        there = self.stacked_row(f, batch, other) if outer is r else other
        start = self.inputs.emitter(f, outer, inner, 1)
        start.loop[outer] = there
        start.hoist([self.expr], 1, branch_free=True)

        def line(first: Value, lanes: int, mask: Value | None) -> Value:
            emitter = self.inputs.emitter(f, outer, inner, lanes)
            emitter.scopes = [*start.scopes, ValueScope(start.scopes[-1])]
            emitter.loop = {outer: there, inner: self.stacked_row(f, batch, first) if inner is r else first}
            emitter.mask = mask
            return emitter.vector_value(self.expr)

        return line

    def stacked_row(self, f: Function, batch: list[Value], row: Value) -> Value:
        """Row of one matrix as a row of the stacked matrices."""
        for i, rows in zip(batch, self.rows, strict=True):
            if rows:
                row = f.add(row, scale_index(f, i, rows))
        return row


OPERAND_POINTERS = 2


class FusedInputs:
    """Buffers and scalars that fused expressions read, in the functions of a kernel. A kernel's pointers are the two operands',
    then the buffers', then the scalars'. Values that never change are computed once, in each function's entry block."""

    def __init__(self, exprs: Iterable[Expr], buffers: list[str], numbers: list[int]) -> None:
        self.exprs = list(exprs)
        self.buffers = buffers
        self.numbers = numbers
        self.known: dict[Function, tuple[ValueScope, dict[Any, Any]]] = {}  # per function: values computed in its entry block

    def emitter(self, f: Function, outer: Var, inner: Var, lanes: int) -> ExprEmitter:
        """An emitter of vectors along the inner loop, with a scope for values that hold in the whole function and one inside
        it."""
        pointers = dict(zip(self.buffers, f.params[OPERAND_POINTERS:], strict=False))
        numbers = dict(zip(self.numbers, f.params[OPERAND_POINTERS + len(self.buffers) :], strict=False))
        found = ExprEmitter(f, pointers, numbers, outer, inner, inner, lanes)
        found.multiple = 1  # tiles begin at any column
        found.scopes = [self.entry_scope(f, found)]
        found.scopes += [ValueScope(found.scopes[0])]
        return found

    def entry_scope(self, f: Function, emitter: ExprEmitter) -> ValueScope:
        if f not in self.known:
            lines, f.lines = f.lines, f.entry
            emitter.hoist(self.exprs, 0, branch_free=True)
            f.lines = lines
            self.known[f] = emitter.scopes[0], emitter.bits
        scope, emitter.bits = self.known[f]
        return scope
