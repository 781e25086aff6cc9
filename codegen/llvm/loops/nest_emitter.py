"""Emits loop nests as functions: a loop over rows, and in it one loop over columns per stage.

One of the loops is vectorised (`nest.vector`); its last, incomplete vector is masked. Reductions along a vectorised loop use
several vectors of partial sums, to hide the latency of additions. Costly values that several stages use are kept in a row
buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...ir.expr import EXPENSIVE_OPS, Expr, walk
from ...ir.index import Var
from ...nests.loop_nest import Nest, Stage, Store, Total
from ...nests.split_loops import LoopRange, RangeSpecializer, split_loop
from ..ir.builder import BYTES, CACHE_LINE, I64, PTR, Function, Module, Type, Value, constant
from ..ir.kernel import NativeKernel, Phase
from ..ir.target import Target
from ..math.scalar_ops import HALF_DTYPES, SCALARS, cast, combine, identity, memory_scalar, reduce_lanes
from .expr_emitter import ExprEmitter, ValueScope
from .row_prefetch import RowPrefetch

MIN_PIECE_ELEMENTS = 8192
MAX_PIECES, MAX_PARTIALS = 64, 16
MAX_KEPT_BYTES = 1 << 17  # of row buffers
PARALLEL_SUMS, MAX_UNROLLED_EXPRS = 4, 16  # vectors of partial sums, if a stage has at most so many expressions


def lanes_for(nest: Nest, target: Target) -> int:
    """Lanes of the target for the type that most of the work is in."""
    kinds = {e.dtype for e in walk(nest.expressions()) if e.kind in ("load", "op") and e.dtype in ("float64", "float32")}
    return target.lanes("double" if kinds == {"float64"} else "float")


def accumulator(dtype: str) -> str:
    """Type of sums: halves are accumulated in float32."""
    return "float32" if dtype in HALF_DTYPES else dtype


def emit_nest(module: Module, name: str, nest: Nest, buffers: list[str], numbers: list[int], target: Target) -> NativeKernel:
    """Emit the kernel of a nest, with pointers to the buffers and then to the numbers, in this order."""
    return NestWriter(module, name, nest, buffers, numbers, target).kernel()


class NestWriter:
    """Emits the functions of one nest."""

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
        self.partial_totals = [t for t in nest.totals() if t.kind != "total"]
        self.ragged = False  # the last vector may be incomplete, whatever the domain's size
        self.by_columns = domain.rows < 4 and not nest.totals() and nest.vector == "c" and domain.cols > MIN_PIECE_ELEMENTS
        self.plan_pieces()
        self.keep: dict[int, list[Expr]] = {}  # per stage: values it writes to row buffers for later stages
        self.use: dict[int, list[Expr]] = {}  # per stage: values it reads from there
        self.places: dict[Expr, int] = {}
        self.scratch = self.plan_rows()
        self.prefetch = RowPrefetch(nest, self.use)
        self.cuts = not self.places
        self.moved: tuple[Value, Value] | None = None  # column that a vector was to begin at, and the one it does begin at

    def plan_rows(self) -> int:
        """Plan row buffers: the first stage that uses a costly expression computes it for the others. Returns the bytes of
        scratch."""
        size, seen = 0, dict[Expr, int]()
        columns = self.nest.domain.cols  # the last, incomplete vector is stored whole
        length = columns * self.lanes if self.vector is self.outer else -(-columns // self.lanes) * self.lanes
        for i, stage in enumerate(self.nest.stages):
            roots = self.roots(stage)
            inside = walk(roots)
            common = {e for e in inside if e in seen and self.is_costly(e)}
            for e in {e: None for x in inside if x not in common for e in x.inner if e in common} | dict.fromkeys(
                [e for e in roots if e in common]
            ):
                bytes_ = -(-length * Type(memory_scalar(e.dtype)).bytes // 64) * 64
                if e not in self.places and size + bytes_ <= MAX_KEPT_BYTES:
                    self.places[e] = size
                    self.keep.setdefault(seen[e], []).append(e)
                    size += bytes_
                if e in self.places:
                    self.use.setdefault(i, []).append(e)
            seen.update({e: i for e in inside if e not in seen})
        return size

    def roots(self, stage: Stage) -> list[Expr]:
        return [x.expr for x in stage.stores] + [t.expr for t in (*stage.totals, *stage.columns)]

    def is_costly(self, e: Expr) -> bool:
        """True if it changes from column to column and costs more than a load."""
        if not e.depends(self.inner) or e.kind != "op":
            return False
        return any(x.kind == "op" and x.data[0] in EXPENSIVE_OPS and x.depends(self.inner) for x in walk([e]))

    def kept_address(self, e: Expr, at: Value) -> Value:
        """Address of a kept element, or of a vector of them, in scratch memory."""
        f, scalar = self.f, memory_scalar(e.dtype)
        base = f.pointer(f.params[-3], self.places[e], "i8")
        return f.pointer(base, at if self.vector is self.inner else f.mul(at, constant(self.lanes, I64)), scalar)

    def plan_pieces(self) -> None:
        domain = self.nest.domain
        size = domain.rows * domain.cols
        wanted = max(1, min(MAX_PARTIALS if self.partial_totals else MAX_PIECES, size // MIN_PIECE_ELEMENTS))
        if self.by_columns:
            self.length, self.step = domain.cols, self.lanes
        else:
            self.length, self.step = domain.rows, self.lanes if self.vector is self.outer else 1
        steps = -(-self.length // self.step)
        self.share = max(1, -(-steps // wanted)) * self.step  # rows or columns of a piece
        self.pieces = -(-self.length // self.share)

    def function(self, name: str) -> tuple[Function, dict[str, Value], dict[int, Value]]:
        count = len(self.buffers) + len(self.numbers)
        params = [(f"p{i}", PTR) for i in range(count)]
        f = self.module.function(name, [*params, ("shared", PTR), ("scratch", PTR), ("begin", I64), ("end", I64)])
        pointers = dict(zip(self.buffers, f.params, strict=False))
        numbers = dict(zip(self.numbers, f.params[len(self.buffers) :], strict=False))
        return f, pointers, numbers

    def kernel(self) -> NativeKernel:
        f, pointers, numbers = self.function(self.name)
        self.f = f
        self.emitter = ExprEmitter(f, pointers, numbers, self.outer, self.inner, self.vector, self.lanes)
        self.emitter.hoist(self.nest.expressions(), 0)
        with f.loop(f.params[-2], f.params[-1]) as piece:
            start = f.mul(piece.index, constant(self.share, I64))
            stop = f.intrinsic("smin", f.add(start, constant(self.share, I64)), constant(self.length, I64))
            self.piece = piece.index
            for t in self.partial_totals:
                self.clear(t)
            self.rows(start, stop)
        f.ret()
        phases = [Phase(self.name, self.pieces)]
        if self.partial_totals:
            phases.append(self.combine())
        past = any(s.nontemporal for s in self.nest.stores())
        return NativeKernel(tuple(phases), shared=self.offsets()[1], scratch=self.scratch, nontemporal=past)

    # ---- loops

    def rows(self, start: Value, stop: Value) -> None:
        f, domain = self.f, self.nest.domain
        if self.by_columns:
            with f.loop(0, domain.rows) as row:
                self.row(row.index, start, stop)
            return
        nest, vector = self.nest, self.vector is self.outer
        for split in self.ranges(nest.expressions(), self.outer, self.step):
            self.nest = nest if split.length == domain.rows else RangeSpecializer(self.outer, split).nest(nest)
            begin, end = self.inside(start, stop, split, domain.rows)
            if vector:
                self.emitter.multiple = math.gcd(split.start, self.lanes)
                self.in_vectors(begin, end, split, lambda at: self.row(at, None, None))
            else:
                with f.loop(begin, end) as row:
                    self.row(row.index, None, None)
        self.nest = nest

    def row(self, at: Value, start: Value | None, stop: Value | None) -> None:
        """One row, or as many as there are lanes; all of its columns, or those from `start` to `stop`."""
        emitter = self.emitter
        emitter.loop[self.outer] = at
        emitter.scopes = [emitter.scopes[0], ValueScope(emitter.scopes[0])]
        for i, stage in enumerate(self.nest.stages):
            self.at = i
            emitter.hoist(self.nest.expressions(), 1)
            for t in stage.downs:
                self.add_partial(t, None)
            for s in stage.before:
                emitter.store(s, emitter.value(s.expr))
            if stage.loops:
                emitter.hoist_broadcasts(self.roots(stage))
                self.columns(stage, start, stop)
        emitter.scopes = emitter.scopes[:1]

    def columns(self, stage: Stage, start: Value | None, stop: Value | None) -> None:
        """The loop of a stage; its totals are known afterwards."""
        f, domain = self.f, self.nest.domain
        vector = self.vector is self.inner
        sums = [self.neutral(t) for t in stage.totals]
        if any(s.nontemporal for s in stage.stores):
            self.emitter.multiple = 1
            self.aligned_vectors(stage, start or constant(0, I64), stop or constant(domain.cols, I64))
        else:
            for split in self.ranges(self.roots(stage), self.inner, self.lanes if vector else 1):
                part = stage
                if vector:
                    self.emitter.multiple = math.gcd(split.start, self.lanes)
                if split.length < domain.cols:
                    part = RangeSpecializer(self.inner, split).stage(stage)
                    self.emitter.hoist(self.roots(part), 1)
                    self.emitter.hoist_broadcasts(self.roots(part))
                sums = self.one_range(part, sums, split, start, stop)
        for t, v in zip(stage.totals, sums, strict=True):
            wide = accumulator(t.dtype)
            found = reduce_lanes(f, t.op, wide, v) if vector else v
            e = self.total(t)
            self.emitter.scopes[1].values[e] = cast(f, found, wide, t.dtype)

    def ranges(self, exprs: list[Expr], variable: Var, unit: int) -> list[LoopRange]:
        return split_loop(exprs, variable, unit) if self.cuts else [LoopRange(0, variable.size)]

    def inside(self, start: Value, stop: Value, split: LoopRange, size: int) -> tuple[Value, Value]:
        """Bounds of a piece within one of the ranges that a loop is split into."""
        if split.start:
            start = self.f.intrinsic("smax", start, constant(split.start, I64))
        if split.stop < size:
            stop = self.f.intrinsic("smin", stop, constant(split.stop, I64))
        return start, stop

    def one_range(
        self, stage: Stage, sums: list[Value], split: LoopRange, start: Value | None, stop: Value | None
    ) -> list[Value]:
        """One range of a stage's loop, or a piece's share of it; its last vector may be incomplete."""
        if start is not None and stop is not None:
            begin, end = self.inside(start, stop, split, self.nest.domain.cols)
            self.in_vectors(begin, end, split, lambda at: self.element(stage, at, []))
            return sums
        step = self.lanes if self.vector is self.inner else 1
        rest = split.length % step
        if split.length > rest:
            sums = self.full_vectors(stage, sums, LoopRange(split.start, split.stop - rest), step)
        return self.tail(stage, sums, constant(split.stop - rest, I64), constant(rest, I64)) if rest else sums

    def in_vectors(self, start: Value, stop: Value, split: LoopRange, body: Callable[[Value], Any]) -> None:
        """Vector loop over a part of a range. Parts begin on a vector boundary, or where the range does."""
        f, lanes, outer = self.f, constant(self.lanes, I64), self.emitter.mask
        length = f.intrinsic("smax", f.sub(stop, start), constant(0, I64))
        whole = f.sub(f.add(start, length), f.binary("urem", length, lanes))
        with f.loop(start, whole, self.lanes) as loop:
            body(loop.index)
        if self.ragged or split.start or split.stop % self.lanes:
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

    def full_vectors(self, stage: Stage, sums: list[Value], split: LoopRange, step: int) -> list[Value]:
        f, count = self.f, len(sums)
        start, length = constant(split.start, I64), split.length
        if sums and length >= 2 * PARALLEL_SUMS * step and len(walk(self.roots(stage))) <= MAX_UNROLLED_EXPRS:
            whole = constant(split.stop - length % (PARALLEL_SUMS * step), I64)
            side = [*sums, *[self.neutral(t) for _ in range(1, PARALLEL_SUMS) for t in stage.totals]]
            with f.loop(start, whole, PARALLEL_SUMS * step, carried=side) as loop:
                found: list[Value] = []
                for k in range(PARALLEL_SUMS):
                    at = f.add(loop.index, constant(k * step, I64)) if k else loop.index
                    found += self.element(stage, at, loop.carried[k * count : (k + 1) * count], k)
                loop.next(*found)
            sums, start = self.combine_sums(stage, loop.results), whole
        with f.loop(start, split.stop, step, carried=sums) as loop:
            loop.next(*self.element(stage, loop.index, loop.carried))
        return loop.results

    def aligned_vectors(self, stage: Stage, start: Value, stop: Value) -> None:
        """Loop of a stage with non-temporal stores: vectors are aligned to their size. The first and the last vector are
        moved inside the row, and only elements that no other vector has are stored from them: no cache line is written both
        ways."""
        f = self.f
        s = next(s for s in stage.stores if s.nontemporal)
        scalar = memory_scalar(s.dtype)
        last = f.sub(stop, constant(self.lanes, I64))
        first = f.intrinsic("smin", start, last)
        f.prefetch(self.address(s, f.sub(stop, constant(1, I64))), to_write=True)  # a partial line is read before it is written
        size = min(self.lanes * BYTES[scalar], CACHE_LINE)
        over = f.and_(f.value(f"ptrtoint {self.address(s, start)} to i64", I64), constant(size - 1, I64))
        with f.loop(f.sub(start, f.binary("udiv", over, constant(BYTES[scalar], I64))), stop, self.lanes) as loop:
            at = f.intrinsic("smin", f.intrinsic("smax", loop.index, first), last)
            self.moved = (loop.index, at)
            self.element(stage, at, [])
            self.moved = None

    def address(self, s: Store, column: Value) -> Value:
        """Address of an element of the row."""
        emitter = self.emitter
        emitter.loop[self.inner] = column
        emitter.scopes.append(ValueScope(emitter.scopes[1]))
        found = self.f.pointer(emitter.pointers[s.buffer], emitter.index(s.index, False), memory_scalar(s.dtype))
        emitter.scopes.pop()
        return found

    def combine_sums(self, stage: Stage, side: list[Value]) -> list[Value]:
        """Combine the vectors of partial sums into one."""
        count = len(stage.totals)
        found = side[:count]
        for k in range(1, PARALLEL_SUMS):
            pairs = zip(stage.totals, found, side[k * count : (k + 1) * count], strict=True)
            found = [combine(self.f, t.op, accumulator(t.dtype), a, b) for t, a, b in pairs]
        return found

    def tail(self, stage: Stage, sums: list[Value], at: Value, count: Value) -> list[Value]:
        outer = self.emitter.mask
        self.emitter.mask = self.f.mask_below(count, self.lanes)
        found = self.element(stage, at, sums)
        self.emitter.mask = outer
        return found

    def element(self, stage: Stage, at: Value, sums: list[Value], column: int = 0) -> list[Value]:
        """Emit one column (or vector of columns), the `column`-th of an unrolled iteration: everything is computed before
        anything is stored."""
        emitter, f = self.emitter, self.f
        emitter.loop[self.inner] = at
        emitter.scopes = [*emitter.scopes[:2], ValueScope(emitter.scopes[1])]
        for e in self.use.get(self.at, ()):
            loaded = f.load(self.kept_address(e, at), Type(memory_scalar(e.dtype), self.lanes))
            emitter.scopes[-1].values[e] = emitter.as_register(loaded, e.dtype)
        if self.at == self.prefetch.stage and emitter.mask is None:
            self.prefetch_next_row(column)
        stores = [(s, emitter.value(s.expr)) for s in stage.stores]
        for e in self.keep.get(self.at, ()):
            f.store(emitter.as_memory(emitter.broadcast(emitter.value(e)), e.dtype), self.kept_address(e, at))
        found = []
        for t, total in zip(stage.totals, sums, strict=True):
            wide = accumulator(t.dtype)
            v = emitter.broadcast(cast(f, emitter.value(t.expr), t.expr.dtype, wide))
            joined = combine(f, t.op, wide, total, v)
            masked = emitter.mask is not None and self.vector is self.inner
            found.append(f.select(emitter.mask, joined, total) if masked and emitter.mask is not None else joined)
        for t in stage.columns:
            self.add_partial(t, at)
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
        """Store a vector that may have been moved: then only the lanes whose columns are in the wanted range, one by one, as
        masked stores are slow next to non-temporal ones."""
        f, emitter = self.f, self.emitter
        whole, part, end = (f.name_for(stem) for stem in ("whole", "part", "done"))
        f.branch(f.compare("eq", wanted, at), whole, part)
        f.label(whole)
        emitter.scopes.append(ValueScope(emitter.scopes[-1]))  # indices computed in one branch are unknown in the other
        self.store(stores)
        emitter.scopes.pop()
        f.jump(end)
        f.label(part)
        far, lanes = f.sub(wanted, at), constant(self.lanes, I64)
        first, last = f.intrinsic("smax", far, constant(0, I64)), f.intrinsic("smin", f.add(far, lanes), lanes)
        with f.loop(first, last) as lane:
            column = f.add(at, lane.index)
            for s, v in stores:
                f.store(emitter.lane(s, v, lane.index), self.address(s, column))
        f.jump(end)
        f.label(end)

    def prefetch_next_row(self, vector: int) -> None:
        """Prefetch the next row: the cache lines that begin in this vector, the `vector`-th of an unrolled iteration."""
        emitter, f = self.emitter, self.f
        for e, step in self.prefetch.loads:
            buffer, index, _ = e.data
            scalar = memory_scalar(e.dtype)
            size = self.lanes * BYTES[scalar]
            if vector * size % CACHE_LINE == 0:
                here = f.pointer(emitter.pointers[buffer], emitter.index(index, False), scalar)
                for k in range(0, size, CACHE_LINE):
                    f.prefetch(f.pointer(here, step * BYTES[scalar] + k, "i8"))

    # ---- totals over several rows

    def offsets(self) -> tuple[dict[str, int], int]:
        """Offsets of the pieces' partial totals in shared memory, and their size."""
        found, size = {}, 0
        for t in self.partial_totals:
            found[t.name] = size
            length = self.nest.domain.cols if t.kind == "column" else 1
            size += -(-self.pieces * length * Type(SCALARS[accumulator(t.dtype)]).bytes // 64) * 64
        return found, size

    def partial(self, f: Function, t: Total, piece: Value) -> Value:
        """Address of a piece's partial total."""
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
            f.store(self.as_memory(identity(t.op, wide, 1), wide), base)
            return
        cols, scalar = self.nest.domain.cols, memory_scalar(wide)
        with f.loop(0, cols - cols % self.lanes, self.lanes) as loop:
            f.store(self.as_memory(identity(t.op, wide, self.lanes), wide), f.pointer(base, loop.index, scalar))
        for i in range(cols - cols % self.lanes, cols):
            f.store(self.as_memory(identity(t.op, wide, 1), wide), f.pointer(base, i, scalar))

    def as_memory(self, v: Value, dtype: str) -> Value:
        return self.emitter.as_memory(v, dtype)

    def add_partial(self, t: Total, at: Value | None) -> None:
        """Add an element to the total of its column, or a row's value to the total of all rows."""
        f, wide, emitter = self.f, accumulator(t.dtype), self.emitter
        v = cast(f, emitter.value(t.expr), t.expr.dtype, wide)
        base, scalar = self.destination(t), memory_scalar(wide)
        if at is None:
            before = emitter.as_register(f.load(base, Type(scalar)), wide)
            f.store(self.as_memory(combine(f, t.op, wide, before, v), wide), base)
            return
        where = f.pointer(base, at, scalar)
        before = emitter.as_register(f.load(where, Type(scalar, self.lanes), emitter.mask), wide)
        f.store(self.as_memory(combine(f, t.op, wide, before, emitter.broadcast(v)), wide), where, emitter.mask)

    def combine(self) -> Phase:
        """Emit the phase that combines the pieces' totals, in order."""
        name = f"{self.name}_sum"
        f, pointers, _ = self.function(name)
        self.f = f
        self.emitter = ExprEmitter(f, pointers, {}, self.outer, self.inner, self.vector, self.lanes)
        with f.loop(f.params[-2], f.params[-1]):
            for t in self.partial_totals:
                self.combine_total(f, t, pointers)
        f.ret()
        return Phase(name, 1)

    def combine_total(self, f: Function, t: Total, pointers: dict[str, Value]) -> None:
        wide, scalar = accumulator(t.dtype), memory_scalar(accumulator(t.dtype))
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
                    piece.next(combine(f, t.op, wide, piece.carried[0], v))
                found = self.as_memory(cast(f, piece.results[0], wide, t.dtype), t.dtype)
                f.store(found, f.pointer(target, loop.index, memory_scalar(t.dtype)))
