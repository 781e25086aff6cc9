"""Index arithmetic against plain numbers: whatever is done to an index, it says where the element is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tapejit.codegen.ir.expr import is_never_true, simplify_guard
from tapejit.codegen.ir.index import (
    ZERO,
    Index,
    Quotient,
    Remainder,
    Var,
    atom,
    constant,
    depends_on,
    flatten_index,
    reshape_index,
    unflatten_index,
    var,
)

R, C = var("r", 6), var("c", 10)
PLACES = [{"r": r, "c": c} for r in range(R.size) for c in range(C.size)]


def value(index: Index, at: dict[str, int]) -> int:
    """Evaluate an index for values of its variables."""
    return index.const + sum(n * of_atom(a, at) for a, n in index.terms)


def of_atom(a: Any, at: dict[str, int]) -> int:
    if isinstance(a, Var):
        return at[a.name]
    inner = value(a.index, at)
    return inner // a.n if isinstance(a, Quotient) else inner % a.n


numbers = st.integers(-12, 12)
divisors = st.integers(1, 12)


@st.composite
def pairs(draw: Any, depth: int = 4) -> tuple[Index, Any]:
    """An index and the same as a function."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            n = draw(numbers)
            return constant(n), lambda at: n
        v = draw(st.sampled_from([R, C]))
        return atom(v), lambda at: at[v.name]
    a, f = draw(pairs(depth - 1))
    kind = draw(st.sampled_from(["+", "-", "*", "//", "%"]))
    if kind in "+-":
        b, g = draw(pairs(depth - 1))
        return (a + b, lambda at: f(at) + g(at)) if kind == "+" else (a - b, lambda at: f(at) - g(at))
    n = draw(numbers if kind == "*" else divisors)
    if kind == "*":
        return a * n, lambda at: f(at) * n
    return (a // n, lambda at: f(at) // n) if kind == "//" else (a % n, lambda at: f(at) % n)


@given(pairs())
def test_arithmetic(pair: tuple[Index, Any]) -> None:
    index, function = pair
    for at in PLACES:
        found = value(index, at)
        assert found == function(at), f"{index} at {at}"
        assert index.low <= found <= index.high, f"{index} at {at}"


@given(pairs())
def test_what_is_divided_is_not_below_zero(pair: tuple[Index, Any]) -> None:
    def divided(index: Index) -> Any:
        for a, _ in index.terms:
            if isinstance(a, (Quotient, Remainder)):
                yield a.index
                yield from divided(a.index)

    assert all(inner.low >= 0 for inner in divided(pair[0])), pair[0]  # machines round towards zero


@given(pairs(), pairs())
def test_indices_that_are_equal_have_the_same_values(one: tuple[Index, Any], other: tuple[Index, Any]) -> None:
    a, b = one[0], other[0]
    if a == b:
        assert hash(a) == hash(b)
        assert all(value(a, at) == value(b, at) for at in PLACES)
    difference = a - b + b
    assert all(value(difference, at) == value(a, at) for at in PLACES)


@given(pairs())
def test_factors(pair: tuple[Index, Any]) -> None:
    index, _ = pair
    for v in (R, C):
        factor = index.factor(v)
        if factor is None:
            continue
        rest = index.without(v)
        assert not any(depends_on(a, v) for a, _ in rest.terms)
        assert all(value(index, at) == value(rest, at) + factor * at[v.name] for at in PLACES)


@given(pairs(), divisors)
def test_guards(pair: tuple[Index, Any], n: int) -> None:
    index, _ = pair
    holds = [0 <= value(index, at) < n for at in PLACES]
    guard = ((index, n),)
    if is_never_true(guard):
        assert not any(holds)
    if not simplify_guard(guard):
        assert all(holds)


# ---- shapes


@st.composite
def shapes(draw: Any, size: int) -> tuple[int, ...]:
    """A shape with so many elements."""
    found = []
    while size > 1:
        found.append(draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0])))
        size //= found[-1]
    for _ in range(draw(st.integers(0, 2))):
        found.insert(draw(st.integers(0, len(found))), 1)
    return tuple(found)


@st.composite
def tensors(draw: Any) -> tuple[Any, tuple[Index, ...]]:
    """An array, and the index into it for each place of two loops, after some views of it."""
    rows, cols = draw(st.sampled_from([(1, 1), (6, 10), (4, 9), (12, 5), (8, 8), (1, 24), (30, 1)]))
    array = np.arange(rows * cols)
    r, c = var("r", rows), var("c", cols)
    flat = (atom(r) * cols if rows > 1 else ZERO) + (atom(c) if cols > 1 else ZERO)
    place = unflatten_index(flat, array.shape)
    shape = array.shape
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            after = draw(shapes(rows * cols))
            place, shape, array = reshape_index(place, shape, after), after, array.reshape(after)
        else:
            dims = draw(st.permutations(range(len(shape))))
            place, array = tuple(place[d] for d in dims), array.transpose(dims)
            shape = array.shape
    return array, place


@given(tensors())
def test_views(tensor: tuple[Any, tuple[Index, ...]]) -> None:
    """Whatever is done to the shape, the loops go through the elements in their order."""
    array, place = tensor
    names = {a.name: a.size for i in place for a in atoms(i)}
    rows, cols = names.get("r", 1), names.get("c", 1)
    for r in range(rows):
        for c in range(cols):
            at = tuple(value(i, {"r": r, "c": c}) for i in place)
            assert all(0 <= i < n for i, n in zip(at, array.shape, strict=True))
            if rows * cols == array.size:
                assert array[at] == r * cols + c


def atoms(index: Index) -> list[Var]:
    found = []
    for a, _ in index.terms:
        found += [a] if isinstance(a, Var) else atoms(a.index)
    return found


@given(st.lists(st.integers(1, 5), max_size=4))
def test_flattening_and_back(shape: list[int]) -> None:
    variables = [var(f"d{i}", n) for i, n in enumerate(shape)]
    place = tuple(atom(v) if v.size > 1 else ZERO for v in variables)
    assert unflatten_index(flatten_index(place, shape), shape) == place
    assert reshape_index(place, shape, (math.prod(shape),)) == (
        (flatten_index(place, shape),) if math.prod(shape) > 1 else (ZERO,)
    )


def test_nothing_has_no_places() -> None:
    assert unflatten_index(atom(R), (3, 0)) == (ZERO, ZERO)
    assert reshape_index((atom(R), ZERO), (6, 0), (0, 2)) == (ZERO, ZERO)


def test_a_reshape_of_whole_dims_leaves_no_division() -> None:
    place = (atom(R), atom(C))
    split = reshape_index(place, (6, 10), (2, 3, 10))
    assert reshape_index(split, (2, 3, 10), (6, 10)) == place
    assert str(flatten_index(split, (2, 3, 10))) == str(flatten_index(place, (6, 10)))
