"""Scans along a dim: running sums, products, extremes, log-sum-exps, and linear recurrences.

The elements of a row depend on each other and are computed in order, in the precision of eager execution, so parallelism
comes from other rows. Where rows are adjacent in memory they are the lanes of vectors; otherwise a few rows advance
together, one element at a time, to hide the latency of the additions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....tracer.graph.ir import Form, Node
from ...nests.problems.scan import read_scan
from ...nests.problems.tensor_view import TensorView
from ...schedule.step import BufferView
from ..ir.builder import I64, Function, Module, Type, Value, constant
from ..ir.kernel import NativeKernel, Phase
from ..ir.register_tile import first_lanes, scale_index
from ..ir.target import Target
from ..ir.work_ranges import block_range, kernel_parameters, unravel
from ..math.scalar_ops import HALF_DTYPES, SCALARS, cast, is_floating, operate

STREAMS = 4  # rows, or vectors of rows, that advance together
MIN_SCAN_ELEMENTS = 1 << 13  # of a piece that is worth handing to another thread
RUNNING_OPS = {"cumsum": "add", "cumprod": "mul", "logcumsumexp": "logaddexp"}
EXTREMES = {"cummax": "maximum", "cummin": "minimum"}


@dataclass(frozen=True)
class ScanArray:
    """An operand or a result of a scan."""

    pointer: int
    dtype: str
    rows: tuple[int, ...]  # strides of all other dims, in elements
    stride: int  # along the scan


@dataclass(frozen=True)
class NativeScan:
    """A scan with its operands and results as pointers and strides."""

    op: str
    reverse: bool
    length: int
    rows: tuple[int, ...]  # sizes of all other dims
    inputs: tuple[ScanArray, ...]
    outputs: tuple[ScanArray, ...]

    @property
    def dtype(self) -> str:
        """Type that it is computed in: float32 in float64 where eager execution does so; halves in at least float32."""
        kind = self.inputs[0].dtype
        kind = "float32" if kind in HALF_DTYPES else kind
        return "float64" if kind == "float32" and self.op in RUNNING_OPS else kind

    @property
    def rows_adjacent(self) -> bool:
        """True if rows are adjacent in memory."""
        return bool(self.rows) and self.rows[-1] > 1 and all(a.rows[-1] == 1 for a in (*self.inputs, *self.outputs))


def native_scan(
    node: Node, views: dict[str, BufferView], forms: dict[str, Form], pointers: dict[str, int]
) -> NativeScan | None:
    """Read a scan node whose operands and results are pointers; None if there is no kernel for it."""
    problem = read_scan(node, views, forms)
    if problem is None or any(x.dtype == "bool" for x in problem.operands):
        return None

    def array(x: TensorView) -> ScanArray:
        return ScanArray(pointers[x.name], x.dtype, problem.without_dim(x.strides), x.strides[problem.dim])

    given, made = tuple(map(array, problem.operands)), tuple(map(array, problem.results))
    found = NativeScan(problem.op, problem.reverse, problem.length, problem.rows, given, made)
    return None if found.op == "logcumsumexp" and not is_floating(found.dtype) else found


def emit_scan(module: Module, name: str, scan: NativeScan, pointers: int, target: Target) -> NativeKernel:
    """Emit the kernel. A piece is a number of rows, a multiple of those that advance together."""
    f = module.function(name, kernel_parameters(pointers))
    begin, end = f.params[-2:]
    lanes = target.lanes(SCALARS[scan.dtype]) if scan.rows_adjacent else 1
    lead, inner = (scan.rows[:-1], scan.rows[-1]) if scan.rows_adjacent else ((), math.prod(scan.rows))
    unit = lanes * STREAMS
    each = max(1, MIN_SCAN_ELEMENTS // (unit * scan.length)) * unit
    blocks = math.ceil(inner / each)
    with f.loop(begin, end) as loop:
        *outer, part = unravel(f, loop.index, (*lead, blocks))

        def some(first: Value, count: int) -> None:
            ScanRows(f, scan, outer, first, count, lanes).write()

        block_range(f, part, each, inner).each(f, min(unit, inner), some)
    f.ret()
    return NativeKernel((Phase(name, math.prod(lead) * blocks),))


class ScanRows:
    """Rows that advance together: streams of one element, or of a vector of them, each with its running state."""

    def __init__(self, f: Function, scan: NativeScan, outer: list[Value], first: Value, count: int, lanes: int) -> None:
        self.f = f
        self.scan = scan
        self.lanes = lanes
        self.masks = [first_lanes(min(count - i, lanes), lanes) for i in range(0, count, lanes)]
        self.bases = {
            a: [self.base(a, outer, f.add(first, constant(i, I64))) for i in range(0, count, lanes)]
            for a in (*scan.inputs, *scan.outputs)
        }

    def base(self, a: ScanArray, outer: list[Value], row: Value) -> Value:
        """Address of the first element of a row."""
        f = self.f
        places = [*outer, row] if self.scan.rows_adjacent else unravel(f, row, self.scan.rows)
        found = f.params[a.pointer]
        for index, stride in zip(places, a.rows, strict=True):
            if stride:
                found = f.pointer(found, scale_index(f, index, stride), SCALARS[a.dtype])
        return found

    def write(self) -> None:
        """Emit the scan: the first element initialises the state, each further one updates it."""
        f, scan = self.f, self.scan
        zero = constant(0, I64)
        first = [self.begin([self.load(a, i, zero) for a in scan.inputs]) for i in range(len(self.masks))]
        for i, state in enumerate(first):
            self.store(i, zero, state)
        width = len(first[0])
        with f.loop(1, scan.length, carried=[x for state in first for x in state]) as loop:
            found: list[Value] = []
            for i in range(len(self.masks)):
                state = loop.carried[i * width : (i + 1) * width]
                state = self.follow(state, [self.load(a, i, loop.index) for a in scan.inputs], loop.index)
                self.store(i, loop.index, state)
                found += state
            loop.next(*found)

    def begin(self, x: list[Value]) -> list[Value]:
        if self.scan.op in EXTREMES:
            return [x[0], constant(0, Type("i64", self.lanes))]
        return [x[-1]]

    def follow(self, state: list[Value], x: list[Value], k: Value) -> list[Value]:
        """The state after one more element."""
        f, op, dtype = self.f, self.scan.op, self.scan.dtype
        if op in RUNNING_OPS:
            return [operate(f, RUNNING_OPS[op], dtype, [state[0], x[0]], [dtype, dtype])]
        if op == "recurrence":
            return [f.add(x[1], f.mul(x[0], state[0]))]
        best = operate(f, EXTREMES[op], dtype, [state[0], x[0]], [dtype, dtype])
        here = f.compare("eq", x[0], best)
        if is_floating(dtype):
            here = f.or_(here, f.compare("ne", x[0], x[0]))
        return [best, f.select(here, f.splat(k, self.lanes), state[1])]

    def place(self, a: ScanArray, i: int, k: Value) -> Value:
        f = self.f
        if self.scan.reverse:
            k = f.sub(constant(self.scan.length - 1, I64), k)
        return f.pointer(self.bases[a][i], scale_index(f, k, a.stride), SCALARS[a.dtype])

    def load(self, a: ScanArray, i: int, k: Value) -> Value:
        x = self.f.load(self.place(a, i, k), Type(SCALARS[a.dtype], self.lanes), self.masks[i])
        return cast(self.f, x, a.dtype, self.scan.dtype)

    def store(self, i: int, k: Value, state: list[Value]) -> None:
        for a, value, source in zip(self.scan.outputs, state, (self.scan.dtype, "int64"), strict=False):
            self.f.store(cast(self.f, value, source, a.dtype), self.place(a, i, k), self.masks[i])
