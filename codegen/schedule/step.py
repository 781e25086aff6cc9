"""Steps of a schedule: an iteration space of rows and columns, and the values that are computed at each element.

A step is loops over a domain, after a contraction if there is one; or an opaque op. `fusion.py` fills them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ...tracer.graph.ir import Node
from ..ir.expr import Expr, walk
from ..ir.index import ZERO, Index, atom, flatten_index, unflatten_index, var
from ..lowering.op_lowering import Place

BufferView = tuple[str, int, tuple[int, ...]]  # a buffer, an offset in it, and strides, in elements


class UnfusableError(Exception):
    """A node cannot be fused into a step."""


class Domain:
    """The rows and columns of a loop nest, and the flat index of the element at each."""

    def __init__(self, rows: int, cols: int, flat: Index | None = None) -> None:
        self.rows = rows
        self.cols = cols
        self.r = var("r", rows)
        self.c = var("c", cols)
        self.row = atom(self.r) if rows != 1 else ZERO
        self.col = atom(self.c) if cols != 1 else ZERO
        self.flat = self.row * cols + self.col if flat is None else flat

    def place(self, shape: tuple[int, ...]) -> Place | None:
        """The index into a tensor that has all elements, or one for each row; None for other tensors."""
        size = math.prod(shape)
        if size == self.rows * self.cols:
            return unflatten_index(self.flat, shape)
        return unflatten_index(self.row, shape) if size == self.rows else None

    def same_as(self, other: Domain) -> bool:
        return (self.rows, self.cols, self.flat) == (other.rows, other.cols, other.flat)

    def __repr__(self) -> str:
        return f"{self.rows} x {self.cols}"


def reduction_domain(shape: tuple[int, ...], dims: tuple[int, ...]) -> Domain:
    """The domain of a reduction over `dims`: one row for each result."""
    kept = [d for d in range(len(shape)) if d not in dims]
    rows, cols = math.prod(shape[d] for d in kept), math.prod(shape[d] for d in dims)
    domain = Domain(rows, cols)
    outer = dict(zip(kept, unflatten_index(domain.row, [shape[d] for d in kept]), strict=True))
    inner = dict(zip(dims, unflatten_index(domain.col, [shape[d] for d in dims]), strict=True))
    place = [outer[d] if d in outer else inner[d] for d in range(len(shape))]
    domain.flat = flatten_index(place, shape)
    return domain


def transpose_domain(domain: Domain) -> Domain:
    """The domain with rows and columns swapped."""
    found = Domain(domain.cols, domain.rows)
    place = {"r": "c", "c": "r"}
    found.flat = swap_variables(domain.flat, place, found)
    return found


def swap_variables(index: Index, names: dict[str, str], domain: Domain) -> Index:
    found = ZERO + index.const
    for a, n in index.terms:
        if not hasattr(a, "name"):
            return ZERO + -1  # not affine: equal to no other
        found = found + atom(domain.r if names[a.name] == "r" else domain.c) * n
    return found


@dataclass
class Member:
    """A value that a step computes: an element, the total of a row, of a column, or of one value per row ("down"), or the
    contraction's own result ("matmul")."""

    node: Node
    name: str
    which: int
    kind: str  # element, total, column, down, matmul, scatter
    expr: Expr | None = None  # the element, or for totals the element that is reduced
    index: Index | None = None  # for scatters: the address that is added to


@dataclass
class Step:
    """Loops over a domain, after a contraction if there is one (`node`); or an opaque op, which has no domain."""

    number: int
    domain: Domain | None = None
    node: Node | None = None
    members: dict[str, Member] = field(default_factory=dict)
    rows_fixed: bool = False  # a reduction or a contraction has fixed the domain
    shape: tuple[int, ...] = ()
    reads: set[str] = field(default_factory=set)  # values in memory
    cache: dict[Any, Expr] = field(default_factory=dict)
    writes: set[str] = field(default_factory=set)  # inputs whose memory is written
    views: dict[str, BufferView] = field(default_factory=dict)  # by operand of `node` in memory
    computed: dict[str, Expr] = field(default_factory=dict)  # prologues: by operand of `node`, its element
    operands: set[str] = field(default_factory=set)  # the values in memory that `node` reads
    check: str = ""  # the flag that stops the program after this step

    def reads_across(self) -> bool:
        """True if more of the loads are contiguous along rows' index than along columns."""
        assert self.domain is not None
        r, c, found = self.domain.r, self.domain.c, 0
        for e in walk([m.expr for m in self.members.values() if m.expr is not None]):
            if e.kind == "load" and e.depends(r) and e.depends(c):
                found += (e.data[1].factor(r) == 1) - (e.data[1].factor(c) == 1)
        return found > 0

    @property
    def is_open(self) -> bool:
        """True if other nodes may be fused into it."""
        if self.domain is None or self.check:
            return False
        return not any(m.kind == "scatter" for m in self.members.values())
