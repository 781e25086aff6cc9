"""Index arithmetic: where an element stands, as a sum of loop variables times constants.

Views, permutations, slices and reshapes change nothing but indices. A reshape divides and takes remainders; where the sizes are
known these nearly always cancel, and what is left is a plain sum, which addresses are made of. `Index` keeps that sum in one
form, so that two indices that are the same are equal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from .cached_attribute import lazy

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
    """The loop variable of a name and a size: there is one of each."""
    return Var(name, size)


class Divided:
    """What a division by a constant leaves."""

    __slots__ = ("index", "n")

    def __init__(self, index: Index, n: int) -> None:
        self.index = index
        self.n = n

    @property
    def key(self) -> Any:
        return (type(self).__name__, self.index.key, self.n)


class Quotient(Divided):
    """index // n, rounded down; the index is not below 0, where machines round up."""

    __slots__ = ()

    @property
    def low(self) -> int:
        return self.index.low // self.n

    @property
    def high(self) -> int:
        return self.index.high // self.n

    def __repr__(self) -> str:
        return f"({self.index} // {self.n})"


class Remainder(Divided):
    """index % n; the index is not below 0, where machines give a remainder below 0."""

    __slots__ = ()

    low = 0

    @property
    def high(self) -> int:
        return self.n - 1

    def __repr__(self) -> str:
        return f"({self.index} % {self.n})"


class Picked:
    """An index that is itself read from memory, as in an embedding: from 0 to before `size`."""

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
    """const + the sum of atoms times factors. Atoms are in the order of their keys, and no factor is 0."""

    def __init__(self, terms: tuple[tuple[Atom, int], ...], const: int = 0) -> None:
        self.terms = terms
        self.const = const

    @lazy
    def key(self) -> Any:
        return (self.const, *[(a.key, n) for a, n in self.terms])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Index) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @lazy
    def low(self) -> int:
        return self.const + sum(n * (a.low if n > 0 else a.high) for a, n in self.terms)

    @lazy
    def high(self) -> int:
        return self.const + sum(n * (a.high if n > 0 else a.low) for a, n in self.terms)

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other) if other else self
        if not other.terms:
            return self + other.const
        return total([*self.terms, *other.terms], self.const + other.const)

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
        """How many times n has to be added so that no element is below 0."""
        return max(0, -(self.low // n))

    def coarse(self, n: int) -> tuple[int, Index, Index] | None:
        """A divisor of n, an index and a rest below the divisor: this is their product and the rest. None if there are none."""
        for step in sorted({math.gcd(k, n) for _, k in self.terms}, reverse=True):
            if step == 1:
                break
            whole, rest = self.parted(step)
            if whole.terms and rest.low >= 0 and rest.high < step:
                return step, whole, rest
        return None

    def parted(self, n: int) -> tuple[Index, Index]:
        """Two indices: this is n times the first, and the second."""
        whole = tuple((a, k // n) for a, k in self.terms if k % n == 0)
        rest = tuple((a, k) for a, k in self.terms if k % n)
        return Index(whole, self.const // n), Index(rest, self.const % n)

    def factor(self, var: Var) -> int | None:
        """What a loop variable is multiplied by; None if it also stands inside of a quotient, a remainder or a pick."""
        found = 0
        for a, n in self.terms:
            if a is var:
                found = n
            elif depends(a, var):
                return None
        return found

    def without(self, var: Var) -> Index:
        """The sum with 0 in the place of a variable that stands nowhere but in the sum."""
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


def depends(a: Atom, var: Var) -> bool:
    """Whether an atom's value changes with a variable."""
    if isinstance(a, Var):
        return a is var
    if isinstance(a, Picked):
        return bool(a.expr.depends(var))
    return any(depends(inner, var) for inner, _ in a.index.terms)


def total(terms: list[tuple[Atom, int]], const: int) -> Index:
    """The sum of terms, in its one form: n * (e // n) + e % n is e."""
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
                    return total([*rest, *inner.terms], const + inner.const)
    found = [(a, n) for a, n in factors.values() if n]
    if len(found) > 1:
        found.sort(key=lambda t: repr(t[0].key))
    return Index(tuple(found), const)


def flattened(index: Sequence[Index], shape: Sequence[int]) -> Index:
    """The place of an element among all elements, in row-major order."""
    found, step = ZERO, 1
    for i, n in zip(reversed(index), reversed(shape), strict=True):
        found = found + i * step
        step *= n
    return found


def unflattened(flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The index of the element that stands at a place; of nothing at all, where there are no elements."""
    return _unflattened(flat, tuple(shape))


@functools.lru_cache(4096)  # layers that are alike ask for the same
def _unflattened(flat: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    if 0 in shape:
        return (ZERO,) * len(shape)
    found: list[Index] = []
    for k, n in enumerate(reversed(shape)):
        last = k == len(shape) - 1
        found.append(ZERO if n == 1 else flat if last else flat % n)
        if n != 1:
            flat = flat // n
    return tuple(reversed(found))


def reshaped(index: tuple[Index, ...], before: Sequence[int], after: Sequence[int]) -> tuple[Index, ...]:
    """The index into an array of shape `after` of what stands at `index` in one of shape `before`, with the same elements."""
    if 0 in after:
        return (ZERO,) * len(after)
    found: list[Index] = []
    i = j = 0
    while j < len(after):  # groups of dims with the same number of elements, one after the other
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
        found += unflattened(flattened(index[i:k], before[i:k]), after[j:l])
        i, j = k, l
    return tuple(found)
