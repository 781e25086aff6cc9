"""Emits scalar expressions as values of a function: vectors along one of the two loops, with loop-invariant values hoisted.

One of the loops is vectorised: values that change along it are vectors, all others are scalars. Expressions are computed as
far out as possible: before all loops, once per row, or per element. `nest_emitter.py` emits the loops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from ...ir.expr import Expr, Guard, walk
from ...ir.index import Atom, Division, Index, IndirectIndex, Quotient, Remainder, Var
from ...lowering.random_ops import RANDOM_OPS
from ...nests.loop_nest import Store
from ..ir.builder import CACHE_LINE, HALF_SCALARS, I8, I64, Function, Type, Value, constant
from ..math import philox
from ..math.scalar_ops import cast, dtype_constant, memory_scalar, operate, random_numbers

# ops whose code has branches or loops
BRANCHING_OPS = {"sin", "cos", "tan", "fmod", "remainder", "floor_divide", "lgamma", "digamma", "random_integers"}


class ValueScope:
    """Values that are known in a part of the function, with the enclosing scope `above`."""

    def __init__(self, above: ValueScope | None = None) -> None:
        self.above = above
        self.values: dict[Expr, Value] = {}
        self.wide: dict[Expr, Value] = {}  # scalars broadcast to all lanes
        self.indices: dict[tuple[Index, bool], Value] = {}

    def find(self, e: Expr) -> Value | None:
        found = self.values.get(e)
        return found if found is not None or self.above is None else self.above.find(e)

    def find_wide(self, e: Expr) -> Value | None:
        found = self.wide.get(e)
        return found if found is not None or self.above is None else self.above.find_wide(e)


class ExprEmitter:
    """Emits the values of expressions into a function."""

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
        self.loop: dict[Var, Value] = {}  # current loop indices; of the vectorised loop, the first lane's
        self.mask: Value | None = None  # lanes inside the loop's range; None: all
        self.scopes = [ValueScope()]  # before all loops, per row, per element
        self.matmul: Value | None = None
        self.multiple = lanes  # the first lane's index is a multiple of this
        self.bits: dict[tuple[Expr, Expr], philox.Bits] = {}  # of random ops, computed before all loops

    # ---- where

    def level(self, e: Expr) -> int:
        """Innermost loop level that an expression depends on: 0 before all loops, 1 per row, 2 per element."""
        if e.kind == "matmul":
            return 2
        if e.kind == "total":
            return 1
        own = 2 if e.depends(self.inner) else 1 if e.depends(self.outer) else 0
        if has_matmul(e):
            return 2
        return max(own, 1) if has_totals(e) else own

    def hoist(self, exprs: Iterable[Expr], level: int, branch_free: bool = False) -> None:
        """Hoist: compute what can be computed at a level, for expressions needed further inside; if `branch_free`, only what
        needs no branch."""
        for e in walk(exprs):
            if level == 0 and e.kind == "op" and e.data[0] in RANDOM_OPS and e.args[:2] not in self.bits:
                self.bits[e.args[0], e.args[1]] = philox.Bits(self.f, self.value(e.args[0]), self.value(e.args[1]))
            if branch_free and any(x.kind == "op" and x.data[0] in BRANCHING_OPS for x in walk([e])):
                continue
            if self.level(e) == level and e.kind != "const" and self.find(e) is None and self.has_its_totals(e):
                self.value(e)

    def hoist_broadcasts(self, exprs: Iterable[Expr]) -> None:
        """Broadcast known scalars that are needed as vectors further inside. LLVM would leave some of it in the loop, and
        sink comparisons into it."""
        for e in walk(exprs):
            for a in e.args if e.kind == "op" and self.level(e) == 2 and self.is_vector(e) else ():
                known = None if a.kind == "const" or self.is_vector(a) else self.find(a)
                if known is not None and known.type.lanes == 1 and self.scopes[-1].find_wide(a) is None:
                    self.scopes[-1].wide[a] = self.broadcast(known)

    def has_its_totals(self, e: Expr) -> bool:
        """True if the totals that an expression needs are known."""
        return all(self.find(x) is not None for x in e.totals)

    def find(self, e: Expr) -> Value | None:
        return self.scopes[-1].find(e)

    def is_vector(self, e: Expr) -> bool:
        return e.depends(self.vector) or (has_totals(e) and self.vector is self.outer) or has_matmul(e)

    # ---- values

    def value(self, e: Expr) -> Value:
        """Emit an expression: a scalar, or a vector where it changes along the vectorised loop."""
        if e.kind == "const":
            return dtype_constant(e.data, e.dtype)
        stack = [e]
        while stack:
            x = stack[-1]
            if x.kind == "const" or self.find(x) is not None:
                stack.pop()
                continue
            parts = [p for p in x.inner if p.kind != "const" and self.find(p) is None]
            if parts:
                stack += parts
            else:
                self.scopes[-1].values[x] = self.compute(x)
        found = self.find(e)
        assert found is not None
        return found

    def vector_value(self, e: Expr) -> Value:
        if e.kind == "const":
            return dtype_constant(e.data, e.dtype, self.lanes)
        return self.scopes[-1].find_wide(e) or self.broadcast(self.value(e))

    def broadcast(self, v: Value) -> Value:
        return v if v.type.lanes == self.lanes else self.f.splat(v, self.lanes)

    def compute(self, e: Expr) -> Value:
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
        if e.kind == "matmul":
            assert self.matmul is not None
            return self.matmul
        assert e.kind == "op", f"a value of kind {e.kind} is not computed yet"
        name, _ = e.data
        if name in RANDOM_OPS:
            return self.draw(e)
        vector = any(self.is_vector(a) for a in e.args)
        args = [self.vector_value(a) if vector else self.value(a) for a in e.args]
        if name == "cast":
            return cast(f, args[0], e.args[0].dtype, e.dtype)
        return operate(f, name, e.dtype, args, [a.dtype for a in e.args])

    def draw(self, e: Expr) -> Value:
        """Random numbers: of a run of consecutive elements where possible, else of arbitrary ones."""
        f, (seed, call, *settings, at) = self.f, e.args
        place: Index = at.data
        vector = self.is_vector(at)
        rest = place.without(self.vector)
        if not vector:
            elements = philox.Elements(1, at=self.index(place, False))
        elif self.multiple % 4 == 0 and place.factor(self.vector) == 1 and multiple_of_4(rest):
            elements = philox.Elements(self.lanes, first=self.index(place, False))
        else:
            elements = philox.Elements(self.lanes, at=self.index(place, True))
        return random_numbers(f, e.data[0], e.dtype, self.bits[seed, call], elements, [self.value(x) for x in settings])

    # ---- indices

    def index(self, index: Index, vector: bool) -> Value:
        """An index as an i64: a vector, or the scalar of the first lane."""
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

    def atom(self, a: Var | Quotient | Remainder | IndirectIndex, vector: bool) -> Value:
        f = self.f
        if isinstance(a, Var):
            at = self.loop[a]
            if not vector:
                return at
            wide = f.splat(at, self.lanes)
            return f.add(wide, f.steps(self.lanes)) if a is self.vector else wide
        if isinstance(a, IndirectIndex):
            found = self.value(a.expr)
            if not vector:
                return found if found.type.lanes == 1 else f.lane(found, 0)
            return self.broadcast(found)
        return self.divide(a, vector)

    def divide(self, a: Quotient | Remainder, vector: bool) -> Value:
        whole = isinstance(a, Quotient)
        if vector and self.is_grouped(a):
            places = [i // a.n if whole else i % a.n for i in range(self.lanes)]
            pattern = Value(f"<{', '.join(f'i64 {i}' for i in places)}>", Type("i64", self.lanes))
            return self.f.add(self.broadcast(self.divide(a, False)), pattern) if whole else pattern
        f, x = self.f, self.index(a.index, vector)
        if a.index.low >= 0 and a.n & (a.n - 1) == 0:
            if whole:
                return f.lshr(x, constant(a.n.bit_length() - 1, x.type))
            return f.and_(x, constant(a.n - 1, x.type))
        small = vector and a.index.low >= 0 and a.index.high < 1 << 31  # vectors of i64 have no fast division
        if small:
            x = f.convert("trunc", x, "i32")
        op = ("udiv" if whole else "urem") if a.index.low >= 0 else ("sdiv" if whole else "srem")
        found = f.binary(op, x, constant(a.n, x.type))
        return f.convert("zext", found, "i64") if small else found

    def is_grouped(self, a: Atom) -> bool:
        """True if groups of `a.n` lanes, from the first lane on, have the same quotient, and remainders that count up."""
        if not isinstance(a, Division) or a.index.factor(self.vector) != 1 or math.gcd(self.multiple, self.lanes) % a.n:
            return False
        rest = a.index.without(self.vector)
        return rest.const % a.n == 0 and all(n % a.n == 0 and not self.changes(x) for x, n in rest.terms)

    def inside(self, guard: Guard) -> Value:
        """A condition: indices are within their bounds. Compared as unsigned, so negative ones are not."""
        vector = any(any(self.changes(a) for a, _ in i.terms) for i, _ in guard)
        found: Value | None = None
        for i, n in guard:
            x = self.index(i, vector)
            good = self.f.compare("lt", x, constant(n, x.type), unsigned=True)
            found = good if found is None else self.f.and_(found, good)
        assert found is not None
        return found

    def changes(self, a: Var | Quotient | Remainder | IndirectIndex) -> bool:
        if isinstance(a, Var):
            return a is self.vector
        if isinstance(a, IndirectIndex):
            return self.is_vector(a.expr)
        return any(self.changes(x) for x, _ in a.index.terms)

    # ---- memory

    def load(self, e: Expr) -> Value:
        buffer, index, guard = e.data
        f, scalar, base = self.f, memory_scalar(e.dtype), self.pointers[buffer]
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
            return found if where is None else f.select(where, found, dtype_constant(0, e.dtype))
        mask = self.and_masks(self.mask, None if where is None else self.broadcast(where))
        if index.factor(self.vector) == 1 and not any(self.changes(a) for a, _ in index.terms if a is not self.vector):
            at = self.index(index, False)
            found = f.load(f.pointer(base, at, scalar), Type(scalar, self.lanes), mask)
        else:
            times = self.repeat_count(index)
            if times > 1:
                found = self.load_repeated(f.pointer(base, self.index(index, False), scalar), scalar, times, mask)
            else:
                found = f.gather(base, self.index(index, True), scalar, mask)
        return self.as_register(found, e.dtype)

    def repeat_count(self, index: Index) -> int:
        """Number of consecutive lanes that read the same element, the next ones the next element; 1 if an index is not like
        that."""
        moving = [(a, n) for a, n in index.terms if self.changes(a)]
        if len(moving) != 1 or moving[0][1] != 1 or not isinstance(moving[0][0], Quotient):
            return 1
        a = moving[0][0]
        return a.n if self.is_grouped(a) and a.n < self.lanes else 1

    def load_repeated(self, where: Value, scalar: str, times: int, mask: Value | None) -> Value:
        """Load neighbours, each repeated in `times` lanes: one vector load and a shuffle, not an element per lane."""
        f, few, wanted = self.f, self.lanes // times, mask
        if mask is not None:  # an element is loaded if one of its lanes is unmasked
            parts = [f.shuffle(mask, mask, range(i, self.lanes, times)) for i in range(times)]
            wanted = functools.reduce(f.or_, parts)
        found = f.load(where, Type(scalar, few), wanted)
        found = f.shuffle(found, found, [i // times for i in range(self.lanes)])
        return found if mask is None else f.select(mask, found, constant(0, found.type))

    def and_masks(self, a: Value | None, b: Value | None) -> Value | None:
        return b if a is None else a if b is None else self.f.and_(a, b)

    def as_register(self, v: Value, dtype: str) -> Value:
        return self.f.compare("ne", v, constant(0, v.type)) if dtype == "bool" else v

    def as_memory(self, v: Value, dtype: str) -> Value:
        return self.f.convert("zext", v, "i8") if dtype == "bool" else v

    def store(self, s: Store, v: Value) -> None:
        """Store an element, or the elements of all lanes."""
        f, scalar, base = self.f, memory_scalar(s.dtype), self.pointers[s.buffer]
        v = self.as_memory(cast(f, v, s.expr.dtype, s.dtype), s.dtype)
        vector = any(self.changes(a) for a, _ in s.index.terms)
        if not vector:
            f.store(v if v.type.lanes == 1 else f.lane(v, 0), f.pointer(base, self.index(s.index, False), scalar))
            return
        v = self.broadcast(v)
        if s.nontemporal and self.mask is None:
            f.store_nontemporal(v, f.pointer(base, self.index(s.index, False), scalar), self.forbidden_bits(s, v.type))
        elif s.index.factor(self.vector) == 1:
            f.store(v, f.pointer(base, self.index(s.index, False), scalar), self.mask)
        else:
            f.scatter(v, base, self.index(s.index, True), self.mask)

    def lane(self, s: Store, v: Value, which: Value) -> Value:
        """One of the elements of a store, as it is in memory."""
        f = self.f
        v = self.broadcast(self.as_memory(cast(f, v, s.expr.dtype, s.dtype), s.dtype))
        return f.lane(f.bits(v, v.type.of("i16")) if v.type.scalar in HALF_SCALARS else v, which)

    def forbidden_bits(self, s: Store, kind: Type) -> Value:
        """Address bits that rule out a non-temporal store: those below the vector's size, or all if the flag says that
        memory is new."""

        def made(f: Function) -> Value:
            again = f.compare("ne", f.load(self.pointers[s.flag], I8), constant(0, I8))
            return f.select(again, constant(min(kind.bytes, CACHE_LINE) - 1, I64), constant(-1, I64))

        return self.f.once(("forbidden", s.flag), made)


def multiple_of_4(index: Index) -> bool:
    return index.const % 4 == 0 and all(n % 4 == 0 for _, n in index.terms)


def has_totals(e: Expr) -> bool:
    return any(x.kind == "total" for x in e.totals)


def has_matmul(e: Expr) -> bool:
    return any(x.kind == "matmul" for x in e.totals)
