"""Index arithmetic: addresses as sums of loop variables times constants.

Views, permutations, slices and reshapes change nothing but indices. A reshape divides and takes remainders; where the sizes are
known these nearly always cancel, and an affine index is left. `Index` keeps a canonical form, so that equal indices compare
equal."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from .cached_attribute import cached_attribute

Atom = Any  # Var | Quotient | Remainder | Picked


class Var:
    """A loop variable: 0 to before `size`."""

    __slots__ = ("name", "size")

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size

    @property
    def key(self) -> Any:
        return ("var", self.name, self.size)

    low = 0

    @property
    def high(self) -> int:
        return max(self.size - 1, 0)

    def __repr__(self) -> str:
        return self.name


@functools.cache
def var(name: str, size: int) -> Var:
    """The only loop variable of a name and a size."""
    return Var(name, size)


class Division:
    """A quotient or a remainder of a division by a constant."""

    __slots__ = ("index", "n")

    def __init__(self, index: Index, n: int) -> None:
        self.index = index
        self.n = n

    @property
    def key(self) -> Any:
        return (type(self).__name__, self.index.key, self.n)


class Quotient(Division):
    """index // n. The index is not negative: machines would round up there."""

    __slots__ = ()

    @property
    def low(self) -> int:
        return self.index.low // self.n

    @property
    def high(self) -> int:
        return self.index.high // self.n

    def __repr__(self) -> str:
        return f"({self.index} // {self.n})"


class Remainder(Division):
    """index % n. The index is not negative: machines would give a negative remainder there."""

    __slots__ = ()

    low = 0

    @property
    def high(self) -> int:
        return self.n - 1

    def __repr__(self) -> str:
        return f"({self.index} % {self.n})"


class IndirectIndex:
    """An index that is read from memory, as in an embedding: in [0, size)."""

    __slots__ = ("expr", "size")

    def __init__(self, expr: Any, size: int) -> None:
        self.expr = expr
        self.size = size

    @property
    def key(self) -> Any:
        return ("picked", id(self.expr), self.size)

    low = 0

    @property
    def high(self) -> int:
        return max(self.size - 1, 0)

    def __repr__(self) -> str:
        return f"[{self.expr}]"


class Index:
    """const + a sum of atoms times factors. Atoms are sorted by their keys, and no factor is 0."""

    def __init__(self, terms: tuple[tuple[Atom, int], ...], const: int = 0) -> None:
        self.terms = terms
        self.const = const

    @cached_attribute
    def key(self) -> Any:
        return (self.const, *[(a.key, n) for a, n in self.terms])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Index) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_attribute
    def low(self) -> int:
        return self.const + sum(n * (a.low if n > 0 else a.high) for a, n in self.terms)

    @cached_attribute
    def high(self) -> int:
        return self.const + sum(n * (a.high if n > 0 else a.low) for a, n in self.terms)

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other) if other else self
        if not other.terms:
            return self + other.const
        return sum_terms([*self.terms, *other.terms], self.const + other.const)

    def __sub__(self, other: Index | int) -> Index:
        return self + (-other if isinstance(other, int) else other * -1)

    def __mul__(self, n: int) -> Index:
        if n == 1:
            return self
        return Index(tuple((a, k * n) for a, k in self.terms) if n else (), self.const * n)

    def __floordiv__(self, n: int) -> Index:
        whole, rest = self.parted(n)
        if rest.low >= 0 and rest.high < n:
            return whole
        if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1 and isinstance(rest.terms[0][0], Quotient):
            inner = rest.terms[0][0]
            return whole + atom(Quotient(inner.index, inner.n * n))
        coarse = rest.coarse(n)
        if coarse is not None:
            step, index, _ = coarse
            return whole + index // (n // step)
        below = rest.below(n)
        return whole + atom(Quotient(rest + below * n, n)) - below

    def __mod__(self, n: int) -> Index:
        _, rest = self.parted(n)
        if rest.low >= 0 and rest.high < n:
            return rest
        coarse = rest.coarse(n)
        if coarse is not None:
            step, index, fine = coarse
            return (index % (n // step)) * step + fine
        return atom(Remainder(rest + rest.below(n) * n, n))

    def below(self, n: int) -> int:
        """The multiple of n to add so that the index is never negative."""
        return max(0, -(self.low // n))

    def coarse(self, n: int) -> tuple[int, Index, Index] | None:
        """A divisor d of n, an index q and a rest r below d, such that this is d * q + r; None if there are none."""
        for step in sorted({math.gcd(k, n) for _, k in self.terms}, reverse=True):
            if step == 1:
                break
            whole, rest = self.parted(step)
            if whole.terms and rest.low >= 0 and rest.high < step:
                return step, whole, rest
        return None

    def parted(self, n: int) -> tuple[Index, Index]:
        """Two indices q and r, such that this is n * q + r."""
        whole = tuple((a, k // n) for a, k in self.terms if k % n == 0)
        rest = tuple((a, k) for a, k in self.terms if k % n)
        return Index(whole, self.const // n), Index(rest, self.const % n)

    def factor(self, var: Var) -> int | None:
        """The factor of a loop variable; None if it is also inside of a quotient, a remainder or an indirect index."""
        found = 0
        for a, n in self.terms:
            if a is var:
                found = n
            elif depends_on(a, var):
                return None
        return found

    def without(self, var: Var) -> Index:
        """The index with 0 for a variable that appears only as a term of its own."""
        return Index(tuple((a, n) for a, n in self.terms if a is not var), self.const)

    def __repr__(self) -> str:
        parts = [f"{a}" if n == 1 else f"{n}*{a}" for a, n in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


def atom(a: Atom) -> Index:
    return Index(((a, 1),))


def constant(n: int) -> Index:
    return Index((), n)


ZERO = constant(0)


def depends_on(a: Atom, var: Var) -> bool:
    """True if an atom's value changes with a variable."""
    if isinstance(a, Var):
        return a is var
    if isinstance(a, IndirectIndex):
        return bool(a.expr.depends(var))
    return any(depends_on(inner, var) for inner, _ in a.index.terms)


def sum_terms(terms: list[tuple[Atom, int]], const: int) -> Index:
    """The canonical sum of terms: n * (e // n) + e % n becomes e."""
    factors: dict[Any, list[Any]] = {}
    for a, n in terms:
        found = factors.setdefault(a.key, [a, 0])
        found[1] += n
    for key, (a, n) in list(factors.items()):
        if isinstance(a, Remainder) and n and key in factors:
            part = a.index // a.n
            if len(part.terms) == 1 and part.const == 0 and part.terms[0][1] == 1:
                partner = factors.get(part.terms[0][0].key)
                if partner is not None and partner[1] == n * a.n:
                    del factors[key], factors[part.terms[0][0].key]
                    rest = [(b, k) for b, k in factors.values()]
                    inner = a.index * n
                    return sum_terms([*rest, *inner.terms], const + inner.const)
    found = [(a, n) for a, n in factors.values() if n]
    if len(found) > 1:
        found.sort(key=lambda t: repr(t[0].key))
    return Index(tuple(found), const)


def flatten_index(index: Sequence[Index], shape: Sequence[int]) -> Index:
    """The place of an element among all elements, in row-major order."""
    found, step = ZERO, 1
    for i, n in zip(reversed(index), reversed(shape), strict=True):
        found = found + i * step
        step *= n
    return found


def unflatten_index(flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The index of the element at a flat position; zeros if there are no elements."""
    return _unflatten_index(flat, tuple(shape))


@functools.lru_cache(4096)  # equal layers ask for the same
def _unflatten_index(flat: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    if 0 in shape:
        return (ZERO,) * len(shape)
    found: list[Index] = []
    for k, n in enumerate(reversed(shape)):
        last = k == len(shape) - 1
        found.append(ZERO if n == 1 else flat if last else flat % n)
        if n != 1:
            flat = flat // n
    return tuple(reversed(found))


def reshape_index(index: tuple[Index, ...], before: Sequence[int], after: Sequence[int]) -> tuple[Index, ...]:
    """The index into shape `after` of the element at `index` in shape `before`, both with the same elements."""
    if 0 in after:
        return (ZERO,) * len(after)
    found: list[Index] = []
    i = j = 0
    while j < len(after):  # group by group of dims with equally many elements
        if i < len(before) and before[i] == after[j]:
            found.append(index[i] if after[j] != 1 else ZERO)
            i, j = i + 1, j + 1
            continue
        k, l, many, wanted = i, j, 1, 1
        while True:
            if many <= wanted and k < len(before):
                many, k = many * before[k], k + 1
            elif l < len(after):
                wanted, l = wanted * after[l], l + 1
            if many == wanted and (k > i or l > j):
                break
            if k == len(before) and l == len(after):
                break
        found += unflatten_index(flatten_index(index[i:k], before[i:k]), after[j:l])
        i, j = k, l
    return tuple(found)
