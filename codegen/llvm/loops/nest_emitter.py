"""From loop nests to functions: a loop over rows, and in it one loop over columns for each stage.

One of the loops is vectorised (`nest.vector`), and its last, incomplete vector is masked. Sums along a vectorised loop go into
several vectors at a time, as an addition takes a while. What is costly and used in several stages is kept in a row of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...ir.expr import HEAVY, Expr, walk
from ...ir.index import Var
from ...nests.loop_nest import Nest, Stage, Store, Total
from ...nests.split_loops import Stretch, Within, stretches
from .row_prefetch import Ahead
from ..ir.builder import BYTES, I64, LINE, PTR, Function, Module, Type, Value, constant
from .expr_emitter import Emitter, Scope
from ..ir.kernel import Kernel, Phase
from ..ir.target import Target
from ..math.scalar_ops import HALVES, SCALARS, across, cast, identity, in_memory, join

PIECE = 8192  # elements that are worth a piece of their own
MOST_PIECES, MOST_PARTIALS = 64, 16
MOST_KEPT = 1 << 17  # bytes of rows that are kept
AT_ONCE, LIGHT = 4, 16  # vectors that are added up side by side, if there are no more expressions than this


def lanes_for(nest: Nest, target: Target) -> int:
    """As many lanes as the machine has for what most of the work is on."""
    kinds = {e.dtype for e in walk(nest.expressions()) if e.kind in ("load", "op") and e.dtype in ("float64", "float32")}
    return target.lanes("double" if kinds == {"float64"} else "float")


def accumulator(dtype: str) -> str:
    """Halves are added up in float32."""
    return "float32" if dtype in HALVES else dtype


def emit(module: Module, name: str, nest: Nest, buffers: list[str], numbers: list[int], target: Target) -> Kernel:
    """A kernel of the buffers and numbers, in this order, that does what a nest says."""
    return Writer(module, name, nest, buffers, numbers, target).kernel()


class Writer:
    """Writes the functions of one nest."""

    def __init__(self, module: Module, name: str, nest: Nest, buffers: list[str], numbers: list[int], target: Target) -> None:
        self.module = module
        self.name = name
        self.nest = nest
        self.buffers = buffers
        self.numbers = numbers
        self.lanes = lanes_for(nest, target)
        domain = nest.domain
        self.outer, self.inner = domain.r, domain.c
        self.vector = self.inner if nest.vector == "c" else self.outer
        self.beside = [t for t in nest.totals() if t.kind != "total"]
        self.ragged = False  # the last vector may be incomplete, whatever the size of the domain is
        self.by_columns = domain.rows < 4 and not nest.totals() and nest.vector == "c" and domain.cols > PIECE
        self.plan_pieces()
        self.keep: dict[int, list[Expr]] = {}  # of stages: what they put into rows for later ones
        self.use: dict[int, list[Expr]] = {}  # and what they find there
        self.places: dict[Expr, int] = {}
        self.scratch = self.plan_rows()
        self.ahead = Ahead(nest, self.use)
        self.cuts = not self.places
        self.moved: tuple[Value, Value] | None = None  # the column that a vector was to begin at, and the one it begins at

    def plan_rows(self) -> int:
        """Costly expressions that several stages have in common are computed by the first of them; returns how many bytes."""
        size, seen = 0, dict[Expr, int]()
        columns = self.nest.domain.cols  # the last, incomplete vector is kept as a whole
        length = columns * self.lanes if self.vector is self.outer else -(-columns // self.lanes) * self.lanes
        for i, stage in enumerate(self.nest.stages):
            roots = self.roots(stage)
            inside = walk(roots)
            common = {e for e in inside if e in seen and self.costly(e)}
            for e in {e: None for x in inside if x not in common for e in x.inner if e in common} | dict.fromkeys(
                [e for e in roots if e in common]
            ):
                bytes_ = -(-length * Type(in_memory(e.dtype)).bytes // 64) * 64
                if e not in self.places and size + bytes_ <= MOST_KEPT:
                    self.places[e] = size
                    self.keep.setdefault(seen[e], []).append(e)
                    size += bytes_
                if e in self.places:
                    self.use.setdefault(i, []).append(e)
            seen.update({e: i for e in inside if e not in seen})
        return size

    def roots(self, stage: Stage) -> list[Expr]:
        return [x.expr for x in stage.stores] + [t.expr for t in (*stage.totals, *stage.columns)]

    def costly(self, e: Expr) -> bool:
        """Whether it changes from column to column, and costs more than a load."""
        if not e.depends(self.inner) or e.kind != "op":
            return False
        return any(x.kind == "op" and x.data[0] in HEAVY and x.depends(self.inner) for x in walk([e]))

    def kept(self, e: Expr, at: Value) -> Value:
        """Where in the thread's memory an element, or a vector of them, is kept."""
        f, scalar = self.f, in_memory(e.dtype)
        base = f.pointer(f.params[-3], self.places[e], "i8")
        return f.pointer(base, at if self.vector is self.inner else f.mul(at, constant(self.lanes, I64)), scalar)

    def plan_pieces(self) -> None:
        domain = self.nest.domain
        size = domain.rows * domain.cols
        wanted = max(1, min(MOST_PARTIALS if self.beside else MOST_PIECES, size // PIECE))
        if self.by_columns:
            self.length, self.step = domain.cols, self.lanes
        else:
            self.length, self.step = domain.rows, self.lanes if self.vector is self.outer else 1
        steps = -(-self.length // self.step)
        self.share = max(1, -(-steps // wanted)) * self.step  # what a piece does
        self.pieces = -(-self.length // self.share)

    def function(self, name: str) -> tuple[Function, dict[str, Value], dict[int, Value]]:
        count = len(self.buffers) + len(self.numbers)
        params = [(f"p{i}", PTR) for i in range(count)]
        f = self.module.function(name, [*params, ("shared", PTR), ("scratch", PTR), ("begin", I64), ("end", I64)])
        pointers = dict(zip(self.buffers, f.params, strict=False))
        numbers = dict(zip(self.numbers, f.params[len(self.buffers) :], strict=False))
        return f, pointers, numbers

    def kernel(self) -> Kernel:
        f, pointers, numbers = self.function(self.name)
        self.f = f
        self.emitter = Emitter(f, pointers, numbers, self.outer, self.inner, self.vector, self.lanes)
        self.emitter.ready(self.nest.expressions(), 0)
        with f.loop(f.params[-2], f.params[-1]) as piece:
            start = f.mul(piece.index, constant(self.share, I64))
            stop = f.intrinsic("smin", f.add(start, constant(self.share, I64)), constant(self.length, I64))
            self.piece = piece.index
            for t in self.beside:
                self.clear(t)
            self.rows(start, stop)
        f.back()
        phases = [Phase(self.name, self.pieces)]
        if self.beside:
            phases.append(self.combine())
        past = any(s.past for s in self.nest.stores())
        return Kernel(tuple(phases), shared=self.offsets()[1], scratch=self.scratch, past=past)

    # ---- loops

    def rows(self, start: Value, stop: Value) -> None:
        f, domain = self.f, self.nest.domain
        if self.by_columns:
            with f.loop(0, domain.rows) as row:
                self.row(row.index, start, stop)
            return
        nest, vector = self.nest, self.vector is self.outer
        for stretch in self.stretches(nest.expressions(), self.outer, self.step):
            self.nest = nest if stretch.length == domain.rows else Within(self.outer, stretch).nest(nest)
            begin, end = self.inside(start, stop, stretch, domain.rows)
            if vector:
                self.emitter.multiple = math.gcd(stretch.start, self.lanes)
                self.in_vectors(begin, end, stretch, lambda at: self.row(at, None, None))
            else:
                with f.loop(begin, end) as row:
                    self.row(row.index, None, None)
        self.nest = nest

    def row(self, at: Value, start: Value | None, stop: Value | None) -> None:
        """One row, or as many as there are lanes; all of its columns, or some."""
        emitter = self.emitter
        emitter.loop[self.outer] = at
        emitter.scopes = [emitter.scopes[0], Scope(emitter.scopes[0])]
        for i, stage in enumerate(self.nest.stages):
            self.at = i
            emitter.ready(self.nest.expressions(), 1)
            for t in stage.downs:
                self.add_beside(t, None)
            for s in stage.before:
                emitter.store(s, emitter.value(s.expr))
            if stage.loops:
                emitter.widen(self.roots(stage))
                self.columns(stage, start, stop)
        emitter.scopes = emitter.scopes[:1]

    def columns(self, stage: Stage, start: Value | None, stop: Value | None) -> None:
        """The loop of a stage; what it adds up is known afterwards."""
        f, domain = self.f, self.nest.domain
        vector = self.vector is self.inner
        sums = [self.neutral(t) for t in stage.totals]
        if any(s.past for s in stage.stores):
            self.emitter.multiple = 1
            self.run_aligned(stage, start or constant(0, I64), stop or constant(domain.cols, I64))
        else:
            for stretch in self.stretches(self.roots(stage), self.inner, self.lanes if vector else 1):
                part = stage
                if vector:
                    self.emitter.multiple = math.gcd(stretch.start, self.lanes)
                if stretch.length < domain.cols:
                    part = Within(self.inner, stretch).stage(stage)
                    self.emitter.ready(self.roots(part), 1)
                    self.emitter.widen(self.roots(part))
                sums = self.stretch(part, sums, stretch, start, stop)
        for t, v in zip(stage.totals, sums, strict=True):
            wide = accumulator(t.dtype)
            found = across(f, t.op, wide, v) if vector else v
            e = self.total(t)
            self.emitter.scopes[1].values[e] = cast(f, found, wide, t.dtype)

    def stretches(self, exprs: list[Expr], variable: Var, unit: int) -> list[Stretch]:
        return stretches(exprs, variable, unit) if self.cuts else [Stretch(0, variable.size)]

    def inside(self, start: Value, stop: Value, stretch: Stretch, size: int) -> tuple[Value, Value]:
        """Where a piece of a loop begins and ends in a stretch of it."""
        if stretch.start:
            start = self.f.intrinsic("smax", start, constant(stretch.start, I64))
        if stretch.stop < size:
            stop = self.f.intrinsic("smin", stop, constant(stretch.stop, I64))
        return start, stop

    def stretch(
        self, stage: Stage, sums: list[Value], stretch: Stretch, start: Value | None, stop: Value | None
    ) -> list[Value]:
        """A stretch of a stage's loop, or what a piece has of it; its last vector may be incomplete."""
        if start is not None and stop is not None:
            begin, end = self.inside(start, stop, stretch, self.nest.domain.cols)
            self.in_vectors(begin, end, stretch, lambda at: self.element(stage, at, []))
            return sums
        step = self.lanes if self.vector is self.inner else 1
        rest = stretch.length % step
        if stretch.length > rest:
            sums = self.run(stage, sums, Stretch(stretch.start, stretch.stop - rest), step)
        return self.tail(stage, sums, constant(stretch.stop - rest, I64), constant(rest, I64)) if rest else sums

    def in_vectors(self, start: Value, stop: Value, stretch: Stretch, body: Callable[[Value], Any]) -> None:
        """A part of a stretch of the vectorised loop. Parts begin with a vector, or where the stretch does."""
        f, lanes, outer = self.f, constant(self.lanes, I64), self.emitter.mask
        length = f.intrinsic("smax", f.sub(stop, start), constant(0, I64))
        whole = f.sub(f.add(start, length), f.binary("urem", length, lanes))
        with f.loop(start, whole, self.lanes) as loop:
            body(loop.index)
        if self.ragged or stretch.start or stretch.stop % self.lanes:
            with f.when(f.compare("lt", whole, stop)):
                self.emitter.mask = f.mask_below(f.sub(stop, whole), self.lanes)
                body(whole)
                self.emitter.mask = outer

    def total(self, t: Total) -> Expr:
        """The expression that stands for a total."""
        return next(
            (e for e in walk(self.nest.expressions()) if e.kind == "total" and e.data == t.name),
            Expr("total", t.dtype, t.name, ()),
        )

    def neutral(self, t: Total) -> Value:
        wide = accumulator(t.dtype)
        return identity(t.op, wide, self.lanes)

    def run(self, stage: Stage, sums: list[Value], stretch: Stretch, step: int) -> list[Value]:
        f, count = self.f, len(sums)
        start, length = constant(stretch.start, I64), stretch.length
        if sums and length >= 2 * AT_ONCE * step and len(walk(self.roots(stage))) <= LIGHT:
            whole = constant(stretch.stop - length % (AT_ONCE * step), I64)
            side = [*sums, *[self.neutral(t) for _ in range(1, AT_ONCE) for t in stage.totals]]
            with f.loop(start, whole, AT_ONCE * step, carried=side) as loop:
                found: list[Value] = []
                for k in range(AT_ONCE):
                    at = f.add(loop.index, constant(k * step, I64)) if k else loop.index
                    found += self.element(stage, at, loop.carried[k * count : (k + 1) * count], k)
                loop.next(*found)
            sums, start = self.joined(stage, loop.results), whole
        with f.loop(start, stretch.stop, step, carried=sums) as loop:
            loop.next(*self.element(stage, loop.index, loop.carried))
        return loop.results

    def run_aligned(self, stage: Stage, start: Value, stop: Value) -> None:
        """The loop of a stage that writes past the caches: its vectors are at multiples of their size. The first vector and the
        last are moved inside of the row, and only what no other vector has is written of them: no line is written both ways."""
        f = self.f
        s = next(s for s in stage.stores if s.past)
        scalar = in_memory(s.dtype)
        last = f.sub(stop, constant(self.lanes, I64))
        first = f.intrinsic("smin", start, last)
        f.fetch(self.place(s, f.sub(stop, constant(1, I64))), to_write=True)  # it is read before a part of it is written
        size = min(self.lanes * BYTES[scalar], LINE)
        over = f.and_(f.value(f"ptrtoint {self.place(s, start)} to i64", I64), constant(size - 1, I64))
        with f.loop(f.sub(start, f.binary("udiv", over, constant(BYTES[scalar], I64))), stop, self.lanes) as loop:
            at = f.intrinsic("smin", f.intrinsic("smax", loop.index, first), last)
            self.moved = (loop.index, at)
            self.element(stage, at, [])
            self.moved = None

    def place(self, s: Store, column: Value) -> Value:
        """The address of an element of the row."""
        emitter = self.emitter
        emitter.loop[self.inner] = column
        emitter.scopes.append(Scope(emitter.scopes[1]))
        found = self.f.pointer(emitter.pointers[s.buffer], emitter.index(s.index, False), in_memory(s.dtype))
        emitter.scopes.pop()
        return found

    def joined(self, stage: Stage, side: list[Value]) -> list[Value]:
        """What was added up side by side, as one."""
        count = len(stage.totals)
        found = side[:count]
        for k in range(1, AT_ONCE):
            pairs = zip(stage.totals, found, side[k * count : (k + 1) * count], strict=True)
            found = [join(self.f, t.op, accumulator(t.dtype), a, b) for t, a, b in pairs]
        return found

    def tail(self, stage: Stage, sums: list[Value], at: Value, count: Value) -> list[Value]:
        outer = self.emitter.mask
        self.emitter.mask = self.f.mask_below(count, self.lanes)
        found = self.element(stage, at, sums)
        self.emitter.mask = outer
        return found

    def element(self, stage: Stage, at: Value, sums: list[Value], column: int = 0) -> list[Value]:
        """What happens at a column, the so manieth in a round: all is computed before anything is stored."""
        emitter, f = self.emitter, self.f
        emitter.loop[self.inner] = at
        emitter.scopes = [*emitter.scopes[:2], Scope(emitter.scopes[1])]
        for e in self.use.get(self.at, ()):
            loaded = f.load(self.kept(e, at), Type(in_memory(e.dtype), self.lanes))
            emitter.scopes[-1].values[e] = emitter.as_register(loaded, e.dtype)
        if self.at == self.ahead.stage and emitter.mask is None:
            self.fetch_ahead(column)
        stores = [(s, emitter.value(s.expr)) for s in stage.stores]
        for e in self.keep.get(self.at, ()):
            f.store(emitter.as_memory(emitter.wide(emitter.value(e)), e.dtype), self.kept(e, at))
        found = []
        for t, total in zip(stage.totals, sums, strict=True):
            wide = accumulator(t.dtype)
            v = emitter.wide(cast(f, emitter.value(t.expr), t.expr.dtype, wide))
            joined = join(f, t.op, wide, total, v)
            masked = emitter.mask is not None and self.vector is self.inner
            found.append(f.select(emitter.mask, joined, total) if masked and emitter.mask is not None else joined)
        for t in stage.columns:
            self.add_beside(t, at)
        if self.moved is None:
            self.store(stores)
        else:
            self.store_moved(stores, *self.moved)
        emitter.scopes = emitter.scopes[:2]
        return found

    def store(self, stores: list[tuple[Store, Value]]) -> None:
        for s, v in stores:
            self.emitter.store(s, v)

    def store_moved(self, stores: list[tuple[Store, Value]], wanted: Value, at: Value) -> None:
        """Store a vector that may have been moved: then only the lanes whose columns are where it was wanted, one by one, as
        stores under a mask are slow beside those past the caches."""
        f, emitter = self.f, self.emitter
        whole, part, end = (f.name_for(stem) for stem in ("whole", "part", "done"))
        f.branch(f.compare("eq", wanted, at), whole, part)
        f.label(whole)
        emitter.scopes.append(Scope(emitter.scopes[-1]))  # indices that one way computes are unknown to the other
        self.store(stores)
        emitter.scopes.pop()
        f.jump(end)
        f.label(part)
        far, lanes = f.sub(wanted, at), constant(self.lanes, I64)
        first, last = f.intrinsic("smax", far, constant(0, I64)), f.intrinsic("smin", f.add(far, lanes), lanes)
        with f.loop(first, last) as lane:
            column = f.add(at, lane.index)
            for s, v in stores:
                f.store(emitter.lane(s, v, lane.index), self.place(s, column))
        f.jump(end)
        f.label(end)

    def fetch_ahead(self, vector: int) -> None:
        """Have the next row's elements brought near: the lines that begin in this vector, the so manieth in a round."""
        emitter, f = self.emitter, self.f
        for e, step in self.ahead.loads:
            buffer, index, _ = e.data
            scalar = in_memory(e.dtype)
            size = self.lanes * BYTES[scalar]
            if vector * size % LINE == 0:
                here = f.pointer(emitter.pointers[buffer], emitter.index(index, False), scalar)
                for k in range(0, size, LINE):
                    f.fetch(f.pointer(here, step * BYTES[scalar] + k, "i8"))

    # ---- totals beside the rows

    def offsets(self) -> tuple[dict[str, int], int]:
        """Where in the shared memory the pieces' own totals are."""
        found, size = {}, 0
        for t in self.beside:
            found[t.name] = size
            length = self.nest.domain.cols if t.kind == "column" else 1
            size += -(-self.pieces * length * Type(SCALARS[accumulator(t.dtype)]).bytes // 64) * 64
        return found, size

    def partial(self, f: Function, t: Total, piece: Value) -> Value:
        """The address of a piece's own total."""
        scalar = SCALARS[accumulator(t.dtype)]
        shared = f.params[-4]
        base = f.pointer(shared, self.offsets()[0][t.name], "i8")
        length = self.nest.domain.cols if t.kind == "column" else 1
        return f.pointer(base, f.mul(piece, constant(length, I64)), scalar)

    def destination(self, t: Total) -> Value:
        return self.partial(self.f, t, self.piece)

    def clear(self, t: Total) -> None:
        f, wide = self.f, accumulator(t.dtype)
        base = self.destination(t)
        if t.kind == "down":
            f.store(self.flag(identity(t.op, wide, 1), wide), base)
            return
        cols, scalar = self.nest.domain.cols, in_memory(wide)
        with f.loop(0, cols - cols % self.lanes, self.lanes) as loop:
            f.store(self.flag(identity(t.op, wide, self.lanes), wide), f.pointer(base, loop.index, scalar))
        for i in range(cols - cols % self.lanes, cols):
            f.store(self.flag(identity(t.op, wide, 1), wide), f.pointer(base, i, scalar))

    def flag(self, v: Value, dtype: str) -> Value:
        return self.emitter.as_memory(v, dtype)

    def add_beside(self, t: Total, at: Value | None) -> None:
        """Join an element to the total of its column, or a row's value to the total of all rows."""
        f, wide, emitter = self.f, accumulator(t.dtype), self.emitter
        v = cast(f, emitter.value(t.expr), t.expr.dtype, wide)
        base, scalar = self.destination(t), in_memory(wide)
        if at is None:
            before = emitter.as_register(f.load(base, Type(scalar)), wide)
            f.store(self.flag(join(f, t.op, wide, before, v), wide), base)
            return
        where = f.pointer(base, at, scalar)
        before = emitter.as_register(f.load(where, Type(scalar, self.lanes), emitter.mask), wide)
        f.store(self.flag(join(f, t.op, wide, before, emitter.wide(v)), wide), where, emitter.mask)

    def combine(self) -> Phase:
        """Put the pieces' totals together, one after the other."""
        name = f"{self.name}_sum"
        f, pointers, _ = self.function(name)
        self.f = f
        self.emitter = Emitter(f, pointers, {}, self.outer, self.inner, self.vector, self.lanes)
        with f.loop(f.params[-2], f.params[-1]):
            for t in self.beside:
                self.combined(f, t, pointers)
        f.back()
        return Phase(name, 1)

    def combined(self, f: Function, t: Total, pointers: dict[str, Value]) -> None:
        wide, scalar = accumulator(t.dtype), in_memory(accumulator(t.dtype))
        assert t.buffer is not None
        target = pointers[t.buffer]
        cols = self.nest.domain.cols if t.kind == "column" else 1
        lanes = self.lanes if cols >= self.lanes else 1
        for start, stop, width in ((0, cols - cols % lanes, lanes), (cols - cols % lanes, cols, 1)):
            if start == stop:
                continue
            with f.loop(start, stop, width) as loop:
                first = f.pointer(self.partial(f, t, constant(0, I64)), loop.index, scalar)
                with f.loop(0, self.pieces, carried=[identity(t.op, wide, width)]) as piece:
                    where = f.pointer(first, f.mul(piece.index, constant(cols, I64)), scalar)
                    v = self.emitter.as_register(f.load(where, Type(scalar, width)), wide)
                    piece.next(join(f, t.op, wide, piece.carried[0], v))
                found = self.flag(cast(f, piece.results[0], wide, t.dtype), t.dtype)
                f.store(found, f.pointer(target, loop.index, in_memory(t.dtype)))
