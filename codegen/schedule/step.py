"""Steps of a program, and the loops that they are: rows and columns, and the values that are made at each.

A step is loops over a domain, after a product if there is one; or a node that is called as it is. `fuse.py` fills them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ...tracer.graph.ir import Node
from ..ir.expr import Expr, walk
from ..ir.index import ZERO, Index, atom, flattened, unflattened, var
from ..lowering.op_lowering import Place

View = tuple[str, int, tuple[int, ...]]  # a buffer, an offset in it, and strides, in elements


class UnfusableError(Exception):
    """A node cannot be part of a step."""


class Domain:
    """The rows and columns that loops go through, and where in the flattened elements each stands."""

    def __init__(self, rows: int, cols: int, flat: Index | None = None) -> None:
        self.rows = rows
        self.cols = cols
        self.r = var("r", rows)
        self.c = var("c", cols)
        self.row = atom(self.r) if rows != 1 else ZERO
        self.col = atom(self.c) if cols != 1 else ZERO
        self.flat = self.row * cols + self.col if flat is None else flat

    def place(self, shape: tuple[int, ...]) -> Place | None:
        """Where an element of a tensor of all elements, or of one for each row, stands; None for other tensors."""
        size = math.prod(shape)
        if size == self.rows * self.cols:
            return unflattened(self.flat, shape)
        return unflattened(self.row, shape) if size == self.rows else None

    def same_as(self, other: Domain) -> bool:
        return (self.rows, self.cols, self.flat) == (other.rows, other.cols, other.flat)

    def __repr__(self) -> str:
        return f"{self.rows} x {self.cols}"


def along(shape: tuple[int, ...], dims: tuple[int, ...]) -> Domain:
    """The domain of a reduction: what is kept are the rows."""
    kept = [d for d in range(len(shape)) if d not in dims]
    rows, cols = math.prod(shape[d] for d in kept), math.prod(shape[d] for d in dims)
    domain = Domain(rows, cols)
    outer = dict(zip(kept, unflattened(domain.row, [shape[d] for d in kept]), strict=True))
    inner = dict(zip(dims, unflattened(domain.col, [shape[d] for d in dims]), strict=True))
    place = [outer[d] if d in outer else inner[d] for d in range(len(shape))]
    domain.flat = flattened(place, shape)
    return domain


def turned(domain: Domain) -> Domain:
    """The domain with rows for columns."""
    found = Domain(domain.cols, domain.rows)
    place = {"r": "c", "c": "r"}
    found.flat = exchanged(domain.flat, place, found)
    return found


def exchanged(index: Index, names: dict[str, str], domain: Domain) -> Index:
    found = ZERO + index.const
    for a, n in index.terms:
        if not hasattr(a, "name"):
            return ZERO + -1  # in no simple order: equal to no other
        found = found + atom(domain.r if names[a.name] == "r" else domain.c) * n
    return found


@dataclass
class Member:
    """A value that a step makes: an element, the total of a row, of a column, of what there is one of in each row (down), or
    the product."""

    node: Node
    name: str
    which: int
    kind: str  # element, total, column, down, product, scatter
    expr: Expr | None = None  # of an element: what it is; of totals: what is added up
    index: Index | None = None  # of what is scattered: where it is added


@dataclass
class Step:
    """Loops over a domain, after a contraction if there is one (`node`); or a node that is called as it is."""

    number: int
    domain: Domain | None = None
    node: Node | None = None
    members: dict[str, Member] = field(default_factory=dict)
    decided: bool = False  # a reduction has fixed what rows are
    shape: tuple[int, ...] = ()
    reads: set[str] = field(default_factory=set)  # values in memory
    cache: dict[Any, Expr] = field(default_factory=dict)
    writes: set[str] = field(default_factory=set)  # inputs whose memory is written
    views: dict[str, View] = field(default_factory=dict)  # of a node's operands: where they are
    computed: dict[str, Expr] = field(default_factory=dict)  # of operands that are computed while they are read: what they are
    operands: set[str] = field(default_factory=set)  # the values in memory that a node reads
    check: str = ""  # the value that says whether the program has to stop here

    def reads_across(self) -> bool:
        """Whether more of what is read stands side by side in a column than in a row."""
        assert self.domain is not None
        r, c, found = self.domain.r, self.domain.c, 0
        for e in walk([m.expr for m in self.members.values() if m.expr is not None]):
            if e.kind == "load" and e.depends(r) and e.depends(c):
                found += (e.data[1].factor(r) == 1) - (e.data[1].factor(c) == 1)
        return found > 0

    @property
    def open(self) -> bool:
        """Whether others may join."""
        if self.domain is None or self.check:
            return False
        return not any(m.kind == "scatter" for m in self.members.values())
