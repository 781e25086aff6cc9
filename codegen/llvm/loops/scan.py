"""Scans along a dim: running sums, products, extremes, log-sum-exps, and linear recurrences.

Elements of a row follow from each other, one after the other, in the order and in the precision of eager execution; so what is
done at the same time is other rows. Where these stand beside each other in memory, they are the lanes of vectors; or else some
of them go on together, one element of each at a time, as an addition takes longer than it keeps a CPU busy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....tracer.graph.ir import Form, Node
from ...lowering.op_lowering import dtype_of
from ...schedule.step import View
from ..ir.builder import I64, Function, Module, Type, Value, constant
from ..ir.kernel import Kernel, Phase
from ..ir.register_tile import first_lanes, scaled
from ..ir.work_ranges import block, parameters, unravel
from ..ir.target import Target
from ..math.scalar_ops import HALVES, SCALARS, cast, floating, operate

TOGETHER = 4  # rows, or vectors of rows, that go on at the same time
PIECE = 1 << 13  # elements that are worth handing to another thread
JOINS = {"cumsum": "add", "cumprod": "mul", "logcumsumexp": "logaddexp"}
EXTREMES = {"cummax": "maximum", "cummin": "minimum"}


@dataclass(frozen=True)
class Array:
    """An operand or a result."""

    pointer: int
    dtype: str
    rows: tuple[int, ...]  # strides of all other dims, in elements
    stride: int  # along the scan


@dataclass(frozen=True)
class Scan:
    """What a scan is to compute."""

    op: str
    reverse: bool
    length: int
    rows: tuple[int, ...]  # sizes of all other dims
    given: tuple[Array, ...]
    made: tuple[Array, ...]

    @property
    def dtype(self) -> str:
        """What it is computed in: float32 in float64, where eager execution does that; halves in float32 at least."""
        kind = self.given[0].dtype
        kind = "float32" if kind in HALVES else kind
        return "float64" if kind == "float32" and self.op in JOINS else kind

    @property
    def beside(self) -> bool:
        """Whether rows stand beside each other in memory."""
        return bool(self.rows) and self.rows[-1] > 1 and all(a.rows[-1] == 1 for a in (*self.given, *self.made))


def scan_of(node: Node, views: dict[str, View], forms: dict[str, Form], pointers: dict[str, int]) -> Scan | None:
    """The problem of a scan's node, whose operands and results are pointers; None if there is no kernel for it."""
    shape, dim = forms[node.results[0]].shape, node.attrs["dim"]
    if any(forms[x].shape != shape for x in node.values()) or any(dtype_of(forms[x]) == "bool" for x in node.values()):
        return None

    def array(x: str) -> Array:
        strides = views[x][2]
        return Array(pointers[x], dtype_of(forms[x]), (*strides[:dim], *strides[dim + 1 :]), strides[dim])

    others = (*shape[:dim], *shape[dim + 1 :])
    given, made = tuple(array(x) for x in node.values()), tuple(array(x) for x in node.results)
    found = Scan(node.op.name, node.attrs.get("reverse", False), shape[dim], others, given, made)
    return None if found.op == "logcumsumexp" and not floating(found.dtype) else found


def emit_scan(module: Module, name: str, scan: Scan, pointers: int, target: Target) -> Kernel:
    """Pieces are some rows: a multiple of as many as go on together."""
    f = module.function(name, parameters(pointers))
    begin, end = f.params[-2:]
    lanes = target.lanes(SCALARS[scan.dtype]) if scan.beside else 1
    lead, inner = (scan.rows[:-1], scan.rows[-1]) if scan.beside else ((), math.prod(scan.rows))
    unit = lanes * TOGETHER
    each = max(1, PIECE // (unit * scan.length)) * unit
    blocks = math.ceil(inner / each)
    with f.loop(begin, end) as loop:
        *outer, part = unravel(f, loop.index, (*lead, blocks))

        def some(first: Value, count: int) -> None:
            Rows(f, scan, outer, first, count, lanes).write()

        block(f, part, each, inner).each(f, min(unit, inner), some)
    f.back()
    return Kernel((Phase(name, math.prod(lead) * blocks),))


class Rows:
    """Rows that go on together: streams of one element, or of a vector of them, each with what it has come to."""

    def __init__(self, f: Function, scan: Scan, outer: list[Value], first: Value, count: int, lanes: int) -> None:
        self.f = f
        self.scan = scan
        self.lanes = lanes
        self.masks = [first_lanes(min(count - i, lanes), lanes) for i in range(0, count, lanes)]
        self.bases = {
            a: [self.base(a, outer, f.add(first, constant(i, I64))) for i in range(0, count, lanes)]
            for a in (*scan.given, *scan.made)
        }

    def base(self, a: Array, outer: list[Value], row: Value) -> Value:
        """Where the first element of a row is."""
        f = self.f
        places = [*outer, row] if self.scan.beside else unravel(f, row, self.scan.rows)
        found = f.params[a.pointer]
        for index, stride in zip(places, a.rows, strict=True):
            if stride:
                found = f.pointer(found, scaled(f, index, stride), SCALARS[a.dtype])
        return found

    def write(self) -> None:
        """The first elements are what they are; each of the others follows from the one before."""
        f, scan = self.f, self.scan
        zero = constant(0, I64)
        first = [self.begin([self.load(a, i, zero) for a in scan.given]) for i in range(len(self.masks))]
        for i, state in enumerate(first):
            self.store(i, zero, state)
        width = len(first[0])
        with f.loop(1, scan.length, carried=[x for state in first for x in state]) as loop:
            found: list[Value] = []
            for i in range(len(self.masks)):
                state = loop.carried[i * width : (i + 1) * width]
                state = self.follow(state, [self.load(a, i, loop.index) for a in scan.given], loop.index)
                self.store(i, loop.index, state)
                found += state
            loop.next(*found)

    def begin(self, x: list[Value]) -> list[Value]:
        if self.scan.op in EXTREMES:
            return [x[0], constant(0, Type("i64", self.lanes))]
        return [x[-1]]

    def follow(self, state: list[Value], x: list[Value], k: Value) -> list[Value]:
        """What rows have come to after one element more."""
        f, op, dtype = self.f, self.scan.op, self.scan.dtype
        if op in JOINS:
            return [operate(f, JOINS[op], dtype, [state[0], x[0]], [dtype, dtype])]
        if op == "recurrence":
            return [f.add(x[1], f.mul(x[0], state[0]))]
        best = operate(f, EXTREMES[op], dtype, [state[0], x[0]], [dtype, dtype])
        here = f.compare("eq", x[0], best)
        if floating(dtype):
            here = f.or_(here, f.compare("ne", x[0], x[0]))
        return [best, f.select(here, f.splat(k, self.lanes), state[1])]

    def place(self, a: Array, i: int, k: Value) -> Value:
        f = self.f
        if self.scan.reverse:
            k = f.sub(constant(self.scan.length - 1, I64), k)
        return f.pointer(self.bases[a][i], scaled(f, k, a.stride), SCALARS[a.dtype])

    def load(self, a: Array, i: int, k: Value) -> Value:
        x = self.f.load(self.place(a, i, k), Type(SCALARS[a.dtype], self.lanes), self.masks[i])
        return cast(self.f, x, a.dtype, self.scan.dtype)

    def store(self, i: int, k: Value, state: list[Value]) -> None:
        for a, value, source in zip(self.scan.made, state, (self.scan.dtype, "int64"), strict=False):
            self.f.store(cast(self.f, value, source, a.dtype), self.place(a, i, k), self.masks[i])
