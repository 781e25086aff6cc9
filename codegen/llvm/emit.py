"""From loop nests to functions: vector code along one of the two loops, what does not change inside of a loop before it.

One of the loops is vectorised (`nest.vector`); values that change along it are vectors, all others are scalars. Expressions are
computed as far out as they can be: before all loops, once for each row, or for each element. The last, incomplete vector is
masked.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..chance import DRAWN
from ..expr import Expr, Guard, walk
from ..index import Index, Picked, Quotient, Remainder, Var
from ..nest import Nest, Stage, Store, Total
from . import philox
from .builder import I64, PTR, Function, Module, Type, Value, constant
from .kernel import Kernel, Phase
from .target import Target
from .values import HALVES, SCALARS, across, cast, identity, in_memory, join, number, operate, random_numbers

PIECE = 8192  # elements that are worth a piece of their own
MOST_PIECES, MOST_PARTIALS = 64, 16


# whose code has branches or loops
BRANCHING = {"sin", "cos", "tan", "fmod", "remainder", "floor_divide", "lgamma", "digamma", "random_integers"}


class Scope:
    """Values that are known in a part of the function."""

    def __init__(self, above: Scope | None = None) -> None:
        self.above = above
        self.values: dict[Expr, Value] = {}
        self.indices: dict[tuple[Index, bool], Value] = {}

    def find(self, e: Expr) -> Value | None:
        found = self.values.get(e)
        return found if found is not None or self.above is None else self.above.find(e)


class Emitter:
    """Writes the values of expressions into a function."""

    def __init__(
        self,
        f: Function,
        pointers: dict[str, Value],
        numbers: dict[int, Value],
        outer: Var,
        inner: Var,
        vector: Var,
        lanes: int,
    ) -> None:
        self.f = f
        self.pointers = pointers
        self.numbers = numbers
        self.outer = outer
        self.inner = inner
        self.vector = vector
        self.lanes = lanes
        self.loop: dict[Var, Value] = {}  # where the loops are: the first lane, of the vectorised one
        self.mask: Value | None = None  # lanes that are inside of the loop
        self.scopes = [Scope()]  # before all loops, in a row, at an element
        self.product: Value | None = None
        self.in_fours = True  # the first lane is at a multiple of 4
        self.bits: dict[tuple[Expr, Expr], philox.Bits] = {}  # of random ops, made before all loops

    # ---- where

    def level(self, e: Expr) -> int:
        """How far inside an expression has to be computed."""
        if e.kind == "product":
            return 2
        if e.kind == "total":
            return 1
        own = 2 if e.depends(self.inner) else 1 if e.depends(self.outer) else 0
        if has_product(e):
            return 2
        return max(own, 1) if has_totals(e) else own

    def ready(self, exprs: Iterable[Expr], level: int, straight: bool = False) -> None:
        """Compute what can be computed at a level, for expressions that will be wanted further inside; if `straight`, only what
        takes no branches."""
        for e in walk(exprs):
            if level == 0 and e.kind == "op" and e.data[0] in DRAWN and e.args[:2] not in self.bits:
                self.bits[e.args[0], e.args[1]] = philox.Bits(self.f, self.value(e.args[0]), self.value(e.args[1]))
            if straight and any(x.kind == "op" and x.data[0] in BRANCHING for x in walk([e])):
                continue
            if self.level(e) == level and e.kind != "const" and self.find(e) is None and self.computable(e):
                self.value(e)

    def computable(self, e: Expr) -> bool:
        """Whether the totals that something needs are there."""
        return all(self.find(x) is not None for x in e.totals)

    def find(self, e: Expr) -> Value | None:
        return self.scopes[-1].find(e)

    def is_vector(self, e: Expr) -> bool:
        return e.depends(self.vector) or (has_totals(e) and self.vector is self.outer) or has_product(e)

    # ---- values

    def value(self, e: Expr) -> Value:
        """A scalar, or a vector where the expression changes along the vectorised loop."""
        if e.kind == "const":
            return number(e.data, e.dtype)
        for x in walk([e]):
            if x.kind != "const" and self.find(x) is None:
                self.scopes[-1].values[x] = self.made(x)
        found = self.find(e)
        assert found is not None
        return found

    def vectored(self, e: Expr) -> Value:
        if e.kind == "const":
            return number(e.data, e.dtype, self.lanes)
        return self.wide(self.value(e))

    def wide(self, v: Value) -> Value:
        return v if v.type.lanes == self.lanes else self.f.splat(v, self.lanes)

    def made(self, e: Expr) -> Value:
        f = self.f
        if e.kind == "number":
            kind = {"float64": "double", "int64": "i64", "bool": "i64"}[e.dtype]
            found = f.load(self.numbers[e.data], Type(kind))
            return f.compare("ne", found, constant(0, found.type)) if e.dtype == "bool" else found
        if e.kind == "index":
            return self.index(e.data, e.depends(self.vector))
        if e.kind == "inside":
            return self.inside(e.data)
        if e.kind == "load":
            return self.load(e)
        if e.kind == "product":
            assert self.product is not None
            return self.product
        assert e.kind == "op", f"{e.kind} is not there yet"
        name, _ = e.data
        if name in DRAWN:
            return self.drawn(e)
        vector = any(self.is_vector(a) for a in e.args)
        args = [self.vectored(a) if vector else self.value(a) for a in e.args]
        if name == "cast":
            return cast(f, args[0], e.args[0].dtype, e.dtype)
        return operate(f, name, e.dtype, args, [a.dtype for a in e.args])

    def drawn(self, e: Expr) -> Value:
        """Random numbers: of a run of elements where these follow on each other, else of any."""
        f, (seed, call, *settings, at) = self.f, e.args
        place: Index = at.data
        vector = self.is_vector(at)
        rest = place.without(self.vector)
        if not vector:
            elements = philox.Elements(1, at=self.index(place, False))
        elif self.in_fours and self.lanes >= 4 and place.factor(self.vector) == 1 and multiple_of_4(rest):
            elements = philox.Elements(self.lanes, first=self.index(place, False))
        else:
            elements = philox.Elements(self.lanes, at=self.index(place, True))
        return random_numbers(f, e.data[0], e.dtype, self.bits[seed, call], elements, [self.value(x) for x in settings])

    # ---- indices

    def index(self, index: Index, vector: bool) -> Value:
        """An index as an i64: a vector, or the scalar at the first lane."""
        key = (index, vector)
        known = self.scopes[-1].indices.get(key)
        if known is not None:
            return known
        lanes = self.lanes if vector else 1
        found: Value | None = None
        for a, n in index.terms:
            part = self.atom(a, vector)
            if n != 1:
                part = self.f.mul(part, constant(n, part.type))
            found = part if found is None else self.f.add(found, part)
        if found is None:
            found = constant(index.const, Type("i64", lanes))
        elif index.const:
            found = self.f.add(found, constant(index.const, found.type))
        self.scopes[-1].indices[key] = found
        return found

    def atom(self, a: Var | Quotient | Remainder | Picked, vector: bool) -> Value:
        f = self.f
        if isinstance(a, Var):
            at = self.loop[a]
            if not vector:
                return at
            wide = f.splat(at, self.lanes)
            return f.add(wide, f.steps(self.lanes)) if a is self.vector else wide
        if isinstance(a, Picked):
            found = self.value(a.expr)
            if not vector:
                return found if found.type.lanes == 1 else f.lane(found, 0)
            return self.wide(found)
        return self.divided(a, vector)

    def divided(self, a: Quotient | Remainder, vector: bool) -> Value:
        f, x = self.f, self.index(a.index, vector)
        whole = isinstance(a, Quotient)
        if a.index.low >= 0 and a.n & (a.n - 1) == 0:
            if whole:
                return f.lshr(x, constant(a.n.bit_length() - 1, x.type))
            return f.and_(x, constant(a.n - 1, x.type))
        small = vector and a.index.low >= 0 and a.index.high < 1 << 31  # there is no fast division of vectors of i64
        if small:
            x = f.convert("trunc", x, "i32")
        op = ("udiv" if whole else "urem") if a.index.low >= 0 else ("sdiv" if whole else "srem")
        found = f.binary(op, x, constant(a.n, x.type))
        return f.convert("zext", found, "i64") if small else found

    def inside(self, guard: Guard) -> Value:
        """Whether indices are within their bounds; as unsigned, so that negative ones are not."""
        vector = any(any(self.changes(a) for a, _ in i.terms) for i, _ in guard)
        found: Value | None = None
        for i, n in guard:
            x = self.index(i, vector)
            good = self.f.compare("lt", x, constant(n, x.type), unsigned=True)
            found = good if found is None else self.f.and_(found, good)
        assert found is not None
        return found

    def changes(self, a: Var | Quotient | Remainder | Picked) -> bool:
        if isinstance(a, Var):
            return a is self.vector
        if isinstance(a, Picked):
            return self.is_vector(a.expr)
        return any(self.changes(x) for x, _ in a.index.terms)

    # ---- memory

    def load(self, e: Expr) -> Value:
        buffer, index, guard = e.data
        f, scalar, base = self.f, in_memory(e.dtype), self.pointers[buffer]
        vector = any(self.changes(a) for a, _ in index.terms)
        where = self.inside(guard) if guard else None
        if not vector and where is not None and where.type.lanes > 1:
            vector = True
        if not vector:
            at = self.index(index, False)
            if where is not None:
                at = f.select(where, at, constant(0, I64))
            found = f.load(f.pointer(base, at, scalar), Type(scalar))
            found = self.as_register(found, e.dtype)
            return found if where is None else f.select(where, found, number(0, e.dtype))
        mask = self.both(self.mask, None if where is None else self.wide(where))
        if index.factor(self.vector) == 1 and not any(self.changes(a) for a, _ in index.terms if a is not self.vector):
            at = self.index(index, False)
            found = f.load(f.pointer(base, at, scalar), Type(scalar, self.lanes), mask)
        else:
            found = f.gather(base, self.index(index, True), scalar, mask)
        return self.as_register(found, e.dtype)

    def both(self, a: Value | None, b: Value | None) -> Value | None:
        return b if a is None else a if b is None else self.f.and_(a, b)

    def as_register(self, v: Value, dtype: str) -> Value:
        return self.f.compare("ne", v, constant(0, v.type)) if dtype == "bool" else v

    def as_memory(self, v: Value, dtype: str) -> Value:
        return self.f.convert("zext", v, "i8") if dtype == "bool" else v

    def store(self, s: Store, v: Value) -> None:
        """An element, or the elements of all lanes, to memory."""
        f, scalar, base = self.f, in_memory(s.dtype), self.pointers[s.buffer]
        v = self.as_memory(cast(f, v, s.expr.dtype, s.dtype), s.dtype)
        vector = any(self.changes(a) for a, _ in s.index.terms)
        if not vector:
            f.store(v if v.type.lanes == 1 else f.lane(v, 0), f.pointer(base, self.index(s.index, False), scalar))
            return
        v = self.wide(v)
        if s.index.factor(self.vector) == 1:
            f.store(v, f.pointer(base, self.index(s.index, False), scalar), self.mask)
        else:
            f.scatter(v, base, self.index(s.index, True), self.mask)


def multiple_of_4(index: Index) -> bool:
    return index.const % 4 == 0 and all(n % 4 == 0 for _, n in index.terms)


def has_totals(e: Expr) -> bool:
    return any(x.kind == "total" for x in e.totals)


def has_product(e: Expr) -> bool:
    return any(x.kind == "product" for x in e.totals)


# ---- whole nests


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
        self.by_columns = domain.rows < 4 and not nest.totals() and nest.vector == "c" and domain.cols > PIECE
        self.plan_pieces()

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
        return Kernel(tuple(phases), shared=self.offsets()[1])

    # ---- loops

    def rows(self, start: Value, stop: Value) -> None:
        f, domain = self.f, self.nest.domain
        if self.by_columns:
            with f.loop(0, domain.rows) as row:
                self.row(row.index, start, stop)
            return
        if self.vector is self.inner:
            with f.loop(start, stop) as row:
                self.row(row.index, None, None)
            return
        whole = f.sub(stop, f.binary("urem", f.sub(stop, start), constant(self.lanes, I64)))
        with f.loop(start, whole, self.lanes) as row:
            self.row(row.index, None, None)
        if domain.rows % self.lanes:
            with f.when(f.compare("lt", whole, stop)):
                self.emitter.mask = f.mask_below(f.sub(stop, whole), self.lanes)
                self.row(whole, None, None)
                self.emitter.mask = None

    def row(self, at: Value, start: Value | None, stop: Value | None) -> None:
        """One row, or as many as there are lanes; all of its columns, or some."""
        emitter = self.emitter
        emitter.loop[self.outer] = at
        emitter.scopes = [emitter.scopes[0], Scope(emitter.scopes[0])]
        for stage in self.nest.stages:
            emitter.ready(self.nest.expressions(), 1)
            for t in stage.downs:
                self.add_beside(t, None)
            for s in stage.before:
                emitter.store(s, emitter.value(s.expr))
            if stage.loops:
                self.columns(stage, start, stop)
        emitter.scopes = emitter.scopes[:1]

    def columns(self, stage: Stage, start: Value | None, stop: Value | None) -> None:
        """The loop of a stage; what it adds up is known afterwards."""
        f, domain = self.f, self.nest.domain
        vector = self.vector is self.inner
        sums = [self.neutral(t) for t in stage.totals]
        if vector:
            if start is not None and stop is not None:
                whole = f.sub(stop, f.binary("urem", f.sub(stop, start), constant(self.lanes, I64)))
                sums = self.run(stage, sums, start, whole, self.lanes)
                if domain.cols % self.lanes:
                    with f.when(f.compare("lt", whole, stop)):
                        self.tail(stage, sums, whole, f.sub(stop, whole))
            else:
                rest = domain.cols % self.lanes
                whole = constant(domain.cols - rest, I64)
                if domain.cols > rest:
                    sums = self.run(stage, sums, constant(0, I64), whole, self.lanes)
                if rest:
                    sums = self.tail(stage, sums, whole, constant(rest, I64))
        else:
            sums = self.run(stage, sums, constant(0, I64), constant(domain.cols, I64), 1)
        for t, v in zip(stage.totals, sums, strict=True):
            wide = accumulator(t.dtype)
            found = across(f, t.op, wide, v) if vector else v
            e = self.total(t)
            self.emitter.scopes[1].values[e] = cast(f, found, wide, t.dtype)

    def total(self, t: Total) -> Expr:
        """The expression that stands for a total."""
        return next(
            (e for e in walk(self.nest.expressions()) if e.kind == "total" and e.data == t.name),
            Expr("total", t.dtype, t.name, ()),
        )

    def neutral(self, t: Total) -> Value:
        wide = accumulator(t.dtype)
        return identity(t.op, wide, self.lanes)

    def run(self, stage: Stage, sums: list[Value], start: Value, stop: Value, step: int) -> list[Value]:
        with self.f.loop(start, stop, step, carried=sums) as loop:
            loop.next(*self.element(stage, loop.index, loop.carried))
        return loop.results

    def tail(self, stage: Stage, sums: list[Value], at: Value, count: Value) -> list[Value]:
        outer = self.emitter.mask
        self.emitter.mask = self.f.mask_below(count, self.lanes)
        found = self.element(stage, at, sums)
        self.emitter.mask = outer
        return found

    def element(self, stage: Stage, at: Value, sums: list[Value]) -> list[Value]:
        """What happens at a column: all is computed before anything is stored."""
        emitter, f = self.emitter, self.f
        emitter.loop[self.inner] = at
        emitter.scopes = [*emitter.scopes[:2], Scope(emitter.scopes[1])]
        stores = [(s, emitter.value(s.expr)) for s in stage.stores]
        found = []
        for t, total in zip(stage.totals, sums, strict=True):
            wide = accumulator(t.dtype)
            v = emitter.wide(cast(f, emitter.value(t.expr), t.expr.dtype, wide))
            joined = join(f, t.op, wide, total, v)
            masked = emitter.mask is not None and self.vector is self.inner
            found.append(f.select(emitter.mask, joined, total) if masked and emitter.mask is not None else joined)
        for t in stage.columns:
            self.add_beside(t, at)
        for s, v in stores:
            emitter.store(s, v)
        emitter.scopes = emitter.scopes[:2]
        return found

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
