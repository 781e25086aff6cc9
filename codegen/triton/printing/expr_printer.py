"""Prints the body of a kernel: each expression once, as a line of Triton, hoisted as far out of the loops as it can be.

Rows and columns are the axes of blocks: `r` is a column vector and `c` a row vector, so whatever depends on both is a tile.
Where a program processes one row at a time `r` is a scalar, and blocks have one axis. Elements outside of the domain are
masked: they are read as 0 and not written.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

from ...ir.expr import Expr, Guard, walk
from ...ir.index import Index, IndirectIndex, Quotient, Remainder, Var
from ...lowering.random_ops import RANDOM_OPS
from ...nests.loop_nest import Nest, Store, Total
from . import scalar_ops as ops
from .scalar_ops import Operand, accumulator
from .tiling import Tile

MATMUL_BUFFER = "matmul"  # the buffer that holds a contraction's result, in row-major order
Axes = frozenset[str]
NONE: Axes = frozenset()
LARGE = 1 << 31
RESERVED = (
    "r",
    "c",
    "fours",
    "in_rows",
    "in_cols",
    "tl",
    "maths",
    "libdevice",
    "program",
    "start",
    "first",
    "piece",
    "row",
    "column",
)


class Scope:
    """Scope: its lines, and the names known after them."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.lines: list[str] = []
        self.values: dict[Expr, str] = {}
        self.names: dict[str, str] = {}  # by text

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)


class Body:
    """Writes lines. Scopes are: the program, its rows if it loops through them, its columns if it loops through these."""

    def __init__(self, nest: Nest, tile: Tile, arguments: dict[str, str]) -> None:
        self.nest = nest
        self.tile = tile
        self.domain = nest.domain
        self.arguments = arguments  # names, by buffer and by "number 3"
        self.scopes = {"program": Scope(1)}
        self.counts: dict[str, int] = {}
        self.taken = {*arguments.values(), *RESERVED}
        self.axes_of = {"r": tile.block_r > 1, "c": tile.block_c > 1}
        self.variables = {self.domain.r: "r", self.domain.c: "c"}  # names of variables; others have their own names
        self.masks: dict[str, str] = {}  # name of the mask, if any, by axis
        self.large = self.is_large()

    def is_large(self) -> bool:
        """True if some index needs more than 32 bits."""
        found = [e.data[1] for e in self.nest.loads()] + [s.index for s in self.nest.stores()]
        found += [s.index for s in self.nest.scatters]
        return self.domain.rows * self.domain.cols >= LARGE or any(max(-i.low, i.high) >= LARGE for i in found)

    # ---- names and lines

    def name(self, wanted: str) -> str:
        """Make a unique name."""
        base = identifier(wanted)
        while True:
            count = self.counts[base] = self.counts.get(base, -1) + 1
            found = f"{base}_{count}" if count else base
            if found not in self.taken:
                self.taken.add(found)
                return found

    @property
    def inner(self) -> Scope:
        return self.scopes.get("columns") or self.scopes.get("rows") or self.scopes["program"]

    def scope_of(self, rows: bool, cols: bool) -> Scope:
        """Scope of a value that varies with rows, or with columns."""
        if cols and "columns" in self.scopes:
            return self.scopes["columns"]
        return self.scopes["rows"] if rows and "rows" in self.scopes else self.scopes["program"]

    def named(self, text: str, wanted: str, scope: Scope) -> str:
        """Name a text, which is computed once."""
        for s in self.scopes.values():
            if text in s.names:
                return s.names[text]
        scope.names[text] = self.name(wanted)
        scope.add(f"{scope.names[text]} = {text}")
        return scope.names[text]

    # ---- dependence on axes

    def by_rows(self, e: Expr) -> bool:
        return e.depends(self.domain.r) or bool(e.totals)

    def by_cols(self, e: Expr) -> bool:
        return e.depends(self.domain.c) or any(x.kind == "matmul" for x in e.totals)

    def axes(self, e: Expr) -> Axes:
        return self.blocked(self.by_rows(e), self.by_cols(e))

    def blocked(self, rows: bool, cols: bool) -> Axes:
        return frozenset(a for a, has in (("r", rows), ("c", cols)) if has and self.axes_of[a])

    def index_depends(self, indices: Iterable[Index]) -> tuple[bool, bool]:
        rows = cols = False
        for index in indices:
            for a, _ in index.terms:
                if isinstance(a, Var):
                    rows, cols = rows or a is self.domain.r, cols or a is self.domain.c
                elif isinstance(a, IndirectIndex):
                    rows, cols = rows or self.by_rows(a.expr), cols or self.by_cols(a.expr)
                else:
                    r, c = self.index_depends([a.index])
                    rows, cols = rows or r, cols or c
        return rows, cols

    def shape(self, axes: Axes) -> str:
        sizes = {"r": self.tile.block_r, "c": self.tile.block_c}
        present = [a for a in "rc" if self.axes_of[a]]
        return "[" + ", ".join(str(sizes[a] if a in axes else 1) for a in present) + "]"

    def spread(self, text: str, has: Axes, wanted: Axes) -> str:
        """Broadcast a value to a block of more axes."""
        return text if has >= wanted else f"tl.broadcast_to({text}, {self.shape(wanted)})"

    # ---- values

    def value(self, e: Expr) -> str:
        """Compute an expression in its scope, and return its name."""
        return self.operand(e).typed

    def operand(self, e: Expr) -> Operand:
        if e.kind == "const":
            return Operand("", e.dtype, e.data)
        for x in walk([e]):
            wanted = x.kind != "const" and (x.kind != "index" or x is e)  # not all need the number of their element
            if wanted and self.find(x) is None:
                self.make(x)
        found = self.find(e)
        assert found is not None
        return Operand(found, e.dtype)

    def scalars(self, roots: Iterable[Expr]) -> None:
        """Compute uniform scalars before any per-element value: powers of scalars are function calls, across which all
        registers in use would have to be saved."""
        for e in walk(roots):
            if e.kind == "op" and not self.by_rows(e) and not self.by_cols(e):
                self.value(e)

    def find(self, e: Expr) -> str | None:
        return next((s.values[e] for s in self.scopes.values() if e in s.values), None)

    def make(self, e: Expr) -> None:
        scope = self.scope_of(self.by_rows(e), self.by_cols(e))
        wanted, text = self.text(e)
        if text == wanted:  # an argument
            scope.values[e] = text
            return
        name = self.name(wanted)
        scope.add(f"{name} = {text}")
        scope.values[e] = name

    def text(self, e: Expr) -> tuple[str, str]:
        """Suggested name and text of an expression."""
        if e.kind == "number":
            given = self.arguments[f"number {e.data}"]
            return given, f"{given} != 0" if e.dtype == "bool" else given
        if e.kind == "index":
            text = self.index(e.data)
            rows, cols = self.index_depends([e.data])
            return "at", f"({text}).to(tl.int64)" if rows or cols else ops.number(e.data.const, "int64")
        if e.kind == "inside":
            return "inside", self.inside(e.data)
        if e.kind == "load":
            buffer, index, guard = e.data
            return self.arguments[buffer] + "_", self.load(buffer, index, guard, e.dtype)
        if e.kind == "matmul":
            index = self.domain.row * self.domain.cols + self.domain.col
            return "matmul", self.load(MATMUL_BUFFER, index, (), e.dtype)
        assert e.kind == "op", f"{e.kind} is not there yet"
        if self.in_fours(e):
            settings = [self.operand(a) for a in e.args[:-1]]
            return e.data[0], ops.drawn(e.data[0], e.dtype, [*settings, Operand("", "int64", 0)], self.words(e))
        args = [self.operand(a) for a in e.args]
        return e.data[0], ops.operate(e.data[0], e.dtype, args)

    # ---- random words, four at a time

    def in_fours(self, e: Expr) -> bool:
        """True if random elements are contiguous from multiples of 4 on: a Philox block of four words is then computed once."""
        if e.kind != "op" or e.data[0] not in RANDOM_OPS or not ops.takes_one_word(e.data[0], e.dtype) or self.tile.block_c < 4:
            return False
        at = e.args[-1].data
        rest = at.without(self.domain.c)
        return at.factor(self.domain.c) == 1 and rest.const % 4 == 0 and all(n % 4 == 0 for _, n in rest.terms)

    def draws_in_fours(self) -> bool:
        return any(self.in_fours(e) for e in walk(self.nest.expressions()))

    def words(self, e: Expr) -> str:
        seed, call = (self.value(x) for x in e.args[:2])
        first = self.index(e.args[-1].data, "fours")
        return f"tl.reshape(maths.run_of_words({seed}, {call}, {first}), {self.shape(self.axes(e))})"

    # ---- indices

    def index(self, index: Index, column: str = "") -> str:
        """Text of an index, at the columns or at others."""
        groups: dict[tuple[bool, bool], list[str]] = {}
        for a, n in index.terms:
            part = column if column and a is self.domain.c else self.atom(a)
            text = part if n == 1 else f"{part} * {ops.literal(n)}"
            groups.setdefault(self.index_depends([Index(((a, n),))]), []).append(text)
        if index.const or not groups:
            groups.setdefault(next(iter(groups), (False, False)), []).append(ops.literal(index.const))
        sums = [" + ".join(parts) for parts in groups.values()]  # each of one axis, before there are blocks of two
        return " + ".join(f"({x})" if " + " in x and len(sums) > 1 else x for x in sums)

    def atom(self, a: Var | Quotient | Remainder | IndirectIndex) -> str:
        if isinstance(a, Var):
            return self.variables.get(a, a.name)
        if isinstance(a, IndirectIndex):
            return self.value(a.expr)
        inner = self.index(a.index)
        within = f"({inner})" if " + " in inner or " * " in inner else inner
        return f"({within} {'//' if isinstance(a, Quotient) else '%'} {a.n})"

    def inside(self, guard: Guard) -> str:
        """Condition that indices are within their bounds."""
        parts: list[str] = []
        for i, n in guard:
            parts += self.bounds(f"({self.index(i)})" if len(i.terms) + bool(i.const) > 1 else self.index(i), i.low, i.high, n)
        return " & ".join(parts) if parts else ops.number(True, "bool")

    def bounds(self, text: str, low: int, high: int, n: int) -> list[str]:
        if n == 1 and (low < 0 or high > 0):
            return [f"({text} == 0)"]
        return [f"({text} >= 0)"] * (low < 0) + [f"({text} < {n})"] * (high >= n)

    def picks(self, indices: Iterable[Index]) -> list[str]:
        """Conditions that picked indices are within bounds: an invalid one must not be read through, whichever check reports
        it."""
        found = []
        for index in indices:
            for a, _ in index.terms:
                if isinstance(a, IndirectIndex):
                    found += self.bounds(self.value(a.expr), -1, a.size, a.size)
                elif not isinstance(a, Var):
                    found += self.picks([a.index])
        return found

    # ---- memory

    def place(self, buffer: str, index: Index, guard: Guard) -> tuple[str, str, Axes]:
        """Pointers to elements, their mask, if any, and their axes."""
        rows, cols = self.index_depends([index, *[i for i, _ in guard]])
        axes, own = self.blocked(rows, cols), self.blocked(*self.index_depends([index]))
        scope = self.scope_of(rows, cols)
        masks = [self.masks[a] for a in "rc" if a in axes and a in self.masks]
        conditions = [*([self.inside(guard)] if guard else []), *self.picks([index])]
        if conditions:
            masks.append(self.named(" & ".join(conditions), "inside", scope))
        pointer = self.arguments[buffer]
        if index.terms:
            offset = self.spread(f"({self.index(index)})", own, axes)
            pointer += f" + {offset}" if " " in offset else f" + {offset[1:-1]}"
        elif axes:
            pointer += f" + tl.full({self.shape(axes)}, {index.const}, tl.int32)"
        elif index.const:
            pointer += f" + {index.const}"
        return pointer, " & ".join(masks), axes

    def load(self, buffer: str, index: Index, guard: Guard, dtype: str) -> str:
        pointer, mask, _ = self.place(buffer, index, guard)
        found = f"tl.load({pointer}, mask={mask}, other=0)" if mask else f"tl.load({pointer})"
        return f"{found} != 0" if dtype == "bool" else found

    def store(self, s: Store) -> None:
        value = self.operand(s.expr)
        pointer, mask, axes = self.place(s.buffer, s.index, ())
        text = ops.to_memory(ops.cast(value.typed, s.expr.dtype, s.dtype), s.dtype)
        text = self.spread(text, NONE if s.expr.kind == "const" else self.axes(s.expr), axes)
        self.scope_of(*self.reach(s)).add(f"tl.store({pointer}, {text}{', mask=' + mask if mask else ''})")

    def reach(self, s: Store) -> tuple[bool, bool]:
        rows, cols = self.index_depends([s.index])
        return rows or self.by_rows(s.expr) or "rows" in self.scopes, cols or self.by_cols(s.expr)

    # ---- totals

    def added(self, t: Total, axes: str, masked: str) -> str:
        """Addend of a total, as a block of the given axes, neutral outside of the domain along the `masked` ones."""
        wide = accumulator(t.dtype)
        value = self.operand(t.expr)
        text = ops.cast(value.typed, t.expr.dtype, wide)
        wanted = self.blocked("r" in axes, "c" in axes)
        has = NONE if t.expr.kind == "const" else self.axes(t.expr)
        text = self.spread(text, has, wanted)
        if masked not in self.masks or masked not in wanted:
            return text
        neutral = Operand("", wide, ops.identity(t.op, wide)).beside(Operand(text, wide))
        return f"tl.where({self.masks[masked]}, {text}, {neutral})"

    def along(self, t: Total, text: str, axis: str) -> str:
        """Reduce a block along an axis, which stays as one of length 1 where blocks have two."""
        if not self.axes_of[axis]:
            return text
        both = self.axes_of["r"] and self.axes_of["c"]
        return ops.reduced(t.op, accumulator(t.dtype), text, 1 if axis == "c" and both else 0, both)


def identifier(text: str) -> str:
    found = re.sub(r"\W", "_", text)
    return f"_{found}" if not found or found[0].isdigit() or keyword.iskeyword(found) else found
