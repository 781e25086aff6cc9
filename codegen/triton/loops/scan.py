"""Scans along a dim as Triton kernels: running sums, products, extremes, log-sum-exps, and linear recurrences.

A program has some rows, which are the indices of all other dims. Rows that fit into registers are scanned at once, longer ones
block by block, with a carry. Few long rows are split into parts: one kernel reduces each part, and the next begins each part
with the combined result of all parts before it. float32 is computed in float64, as eager execution does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....tracer.graph.ir import Form
from ...lowering.op_lowering import dtype_of
from ...nests.kernels import Launch
from ...nests.problems.scan import ScanProblem, read_scan
from ...nests.problems.tensor_view import Layout, TensorView, views_of_all
from ..printing import scalar_ops as ops
from ..printing.expr_printer import LARGE, Scope, identifier
from ..printing.kernel_text import HEADER, Argument, Kernel, Printed, function
from ..printing.scalar_ops import TYPES
from ..printing.tiling import power_above

MAX_BLOCK = 2048  # elements of a row that are scanned at once
TILE = 2048  # elements of a program
ADJACENT_ROWS = 32  # rows of a program that stand beside each other in memory
MAX_PARTS, MIN_PROGRAMS = 256, 128  # parts of a row at most, and programs below which there are parts
NARROW_INTEGERS = ("bool", "int8", "uint8", "int16", "uint16")  # computed in int32, and truncated when stored


@dataclass(frozen=True)
class Combine:
    """Associative operator of a scan, and its neutral element."""

    function: str  # name of a function in `maths`
    neutral: tuple[float, ...]


COMBINES = {
    "cumsum": Combine("added", (0,)),
    "cumprod": Combine("product", (1,)),
    "logcumsumexp": Combine("logaddexp", (-math.inf,)),
    "recurrence": Combine("recurrence", (1, 0)),
    "cummax": Combine("later_maximum", (-math.inf, 0)),
    "cummin": Combine("later_minimum", (math.inf, 0)),
}
EXTREMES = {"cummax": "amax", "cummin": "amin"}


@dataclass(frozen=True)
class Array:
    """Operand or result: an argument, and the offsets of rows and of the elements of a row."""

    argument: Argument
    dtype: str
    offset: int
    rows: tuple[tuple[int, int], ...]  # sizes and strides of all other dims, those that follow on each other joined
    stride: int


def print_scan(launch: Launch, forms: dict[str, Form], layout: Layout) -> Printed | None:
    """Print the kernels of a scan; None for any other launch, and for scans of no elements. `layout` gives the strides of
    results."""
    node = launch.node
    if node is None or node.op.name not in COMBINES:
        return None
    problem = read_scan(node, views_of_all(node, launch.operands, layout), forms)
    return None if problem is None else ScanPrinter(problem, forms).printed()


class ScanPrinter:
    """Prints one kernel."""

    def __init__(self, problem: ScanProblem, forms: dict[str, Form]) -> None:
        self.name, self.line, self.reverse, self.length = problem.op, problem.line, problem.reverse, problem.length
        self.combine = COMBINES[self.name]
        self.rows = math.prod(problem.rows)
        buffers = dict.fromkeys(x.buffer for x in (*problem.operands, *problem.results))
        self.arguments = {b: Argument(identifier(b), f"*{TYPES[dtype_of(forms[b])]}", buffer=b) for b in buffers}
        self.large = any(forms[b].size >= LARGE for b in buffers)

        def array(x: TensorView) -> Array:
            others = list(zip(problem.rows, problem.without_dim(x.strides), strict=True))
            return Array(self.arguments[x.buffer], x.dtype, x.offset, merge_dims(others), x.strides[problem.dim])

        self.inputs = [array(x) for x in problem.operands]
        self.outputs = [array(x) for x in problem.results]
        self.wide = compute_dtype(self.inputs[0].dtype)
        beside = self.inputs[0].stride != 1 and self.rows > 1
        self.block = min(power_above(self.length), TILE // ADJACENT_ROWS if beside else MAX_BLOCK)
        self.block_rows = min(power_above(self.rows), max(TILE // self.block, 1))
        self.blocks = -(-self.length // self.block)
        self.groups = -(-self.rows // self.block_rows)
        most = min(MAX_PARTS, MIN_PROGRAMS // self.groups, self.blocks // 2)
        self.each = -(-self.blocks // max(most, 1))  # blocks of a part
        self.parts = -(-self.blocks // self.each)
        own = enumerate(self.kinds() if self.parts > 1 else [])
        self.scratch = {f"{identifier(problem.results[0].name)}_parts_{i}": (kind, self.parts * self.rows) for i, kind in own}
        self.totals = [Argument(name, f"*{TYPES[kind]}", buffer=name) for name, (kind, _) in self.scratch.items()]

    def printed(self) -> Printed:
        found = [self.kernel(whole) for whole in ((False, True) if self.parts > 1 else (True,))]
        source = HEADER + "".join(function(k.name, list(k.arguments), lines) for k, lines in found)
        return Printed(source, [k for k, _ in found], self.scratch)

    def kernel(self, whole: bool) -> tuple[Kernel, list[str]]:
        """Print the scan if `whole`, otherwise only the reduction of each part of the rows."""
        scope = Scope(1)
        what = "Elements of each row joined with all before them." if whole else f"What {self.parts} parts of each row come to."
        said = [self.line.replace("\\", "\\\\"), "", what] if self.line else [what]
        scope.lines += ['    """' + said[0], *[f"    {x}".rstrip() for x in said[1:]], '    """']
        scope.add("program = tl.program_id(0)" + (".to(tl.int64)" if self.large else ""))
        group = f"(program // {self.parts})" if self.parts > 1 else "program"
        scope.add(f"r = ({group} * {self.block_rows} + tl.arange(0, {self.block_rows}))[:, None]")
        if self.parts > 1:
            scope.add(f"part = program % {self.parts}")
        if self.rows % self.block_rows:
            scope.add(f"in_rows = r < {self.rows}")
        for i, a in enumerate((*self.inputs, *self.outputs)):
            scope.add(f"row_{i} = {row_text(a)}")
        scope.add(f"k = tl.arange(0, {self.block})[None, :]")
        if self.blocks > 1:
            self.looped(scope, whole)
        else:
            scope.add("c = k")
            self.scanned(scope)
            self.store(scope)
        arguments = (*self.arguments.values(), *self.totals)
        return Kernel(self.name if whole else f"{self.name}_parts", arguments, self.groups * self.parts, 4), scope.lines

    # ---- lines

    @property
    def names(self) -> list[str]:
        """Names of the scanned values."""
        return [f"x_{i}" for i in range(len(self.combine.neutral))]

    def kinds(self) -> list[str]:
        return [self.wide, "int64"] if self.name in EXTREMES else [self.wide] * len(self.combine.neutral)

    def neutral(self) -> list[str]:
        if self.name in EXTREMES:
            return [ops.literal(ops.identity(EXTREMES[self.name], self.wide)), "0"]
        plain = self.combine.neutral
        return [ops.literal(float(x) if ops.floating(self.wide) else int(x)) for x in plain]

    def looped(self, scope: Scope, whole: bool) -> None:
        """Loop block by block, in reverse from the last."""
        carried = [f"sofar_{i}" for i in range(len(self.names))]
        if whole and self.parts > 1:
            self.before(scope, carried)
        else:
            for name, value, kind in zip(carried, self.neutral(), self.kinds(), strict=True):
                scope.add(f"{name} = tl.full([{self.block_rows}, 1], {value}, tl.{kind})")
        first, end = "0", str(self.blocks)
        if self.parts > 1:
            first, end = f"part * {self.each}", f"tl.minimum(part * {self.each} + {self.each}, {self.blocks})"
        scope.add(f"for block in range({first}, {end}):")
        inner = Scope(2)
        inner.add(f"c = ({self.blocks - 1} - block) * {self.block} + k" if self.reverse else f"c = block * {self.block} + k")
        self.scanned(inner)
        given = ", ".join(self.names)
        inner.add(f"{given} = maths.{self.combine.function}({', '.join(carried)}, {given})")
        if whole:
            self.store(inner)
        last = 0 if self.reverse else self.block - 1
        for name, x in zip(carried, self.names, strict=True):
            inner.add(f"{name} = tl.sum(tl.where(k == {last}, {x}, 0), axis=1, keep_dims=True)")
        scope.lines += inner.lines
        if not whole:
            mask = ", mask=in_rows" if self.rows % self.block_rows else ""
            for a, name in zip(self.totals, carried, strict=True):
                scope.add(f"tl.store({a.name} + part * {self.rows} + r, {name}{mask})")

    def before(self, scope: Scope, carried: list[str]) -> None:
        """Combine the results of all parts before this one. Out-of-range parts come first, and are neutral."""
        wide = power_above(self.parts)
        scope.add(f"p = part - {wide} + tl.arange(0, {wide})[None, :]")
        masks = " & ".join(["(p >= 0)", *["in_rows"] * bool(self.rows % self.block_rows)])
        names = [f"part_{i}" for i in range(len(carried))]
        for a, name, neutral in zip(self.totals, names, self.neutral(), strict=True):
            scope.add(f"{name} = tl.load({a.name} + p * {self.rows} + r, mask={masks}, other={neutral})")
        self.join(scope, names, False)
        for x, name in zip(carried, names, strict=True):
            scope.add(f"{x} = tl.sum(tl.where(p == part - 1, {name}, 0), axis=1, keep_dims=True)")

    def join(self, scope: Scope, names: list[str], reverse: bool) -> None:
        given = ", ".join(names)
        several = f"({given})" if len(names) > 1 else given
        scope.add(f"{given} = tl.associative_scan({several}, 1, maths.{self.combine.function}, reverse={reverse})")

    def scanned(self, scope: Scope) -> None:
        mask = self.mask()
        for i, (a, neutral) in enumerate(zip(self.inputs, self.neutral(), strict=False)):
            loaded = f"tl.load({self.place(a, i)}{', mask=' + mask + ', other=0' if mask else ''})"
            scope.add(f"x_{i} = {ops.cast(loaded, a.dtype if a.dtype != 'bool' else 'uint8', self.wide)}")
            if self.reverse and self.length % self.block:  # in reverse, the out-of-range elements come first
                scope.add(f"x_{i} = tl.where(c < {self.length}, x_{i}, {neutral})")
        if self.name in EXTREMES:
            scope.add("x_1 = tl.broadcast_to(c, x_0.shape).to(tl.int64)")
        self.join(scope, self.names, self.reverse)

    def store(self, scope: Scope) -> None:
        mask, given = self.mask(), self.names[-1:] if self.name == "recurrence" else self.names
        kinds = self.kinds()[-len(given) :]
        for i, (a, x, kind) in enumerate(zip(self.outputs, given, kinds, strict=True)):
            value = x if kind == a.dtype else f"{x}.to(tl.{'uint8' if a.dtype == 'bool' else a.dtype})"
            where = self.place(a, len(self.inputs) + i)
            scope.add(f"tl.store({where}, {value}{', mask=' + mask if mask else ''})")

    def place(self, a: Array, i: int) -> str:
        return f"{a.argument.name} + (row_{i} + c{f' * {a.stride}' if a.stride != 1 else ''})"

    def mask(self) -> str:
        rows = ["in_rows"] * bool(self.rows % self.block_rows)
        return " & ".join([*rows, *[f"(c < {self.length})"] * bool(self.length % self.block)])


def compute_dtype(dtype: str) -> str:
    if dtype in NARROW_INTEGERS:
        return "int32"
    return "float64" if ops.floating(dtype) else dtype


def merge_dims(dims: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge adjacent dims that are contiguous with each other; takes and returns sizes and strides."""
    found: list[tuple[int, int]] = []
    for n, s in dims:
        if n == 1:
            continue
        if found and found[-1][1] == n * s:
            found[-1] = (found[-1][0] * n, s)
        else:
            found.append((n, s))
    return tuple(found)


def row_text(a: Array) -> str:
    """Offset of each row's first element."""
    parts, rest = [], 1
    for i, (n, s) in reversed(list(enumerate(a.rows))):
        at = "r" if rest == 1 else f"r // {rest}"
        at = at if i == 0 else f"({at}) % {n}"
        parts.append(f"({at}) * {ops.literal(s)}")
        rest *= n
    return " + ".join([*parts, *[str(a.offset)] * bool(a.offset)]) or "r * 0"
