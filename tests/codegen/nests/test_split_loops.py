"""Loops that are cut where guards begin or cease to hold, and vectors with elements that stand in several lanes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.codegen.kernels import OneKernel, guarded, native_of, target
from support.tolerances import assert_within, spread
from tapejit.codegen.ir.expr import ExprBuilder
from tapejit.codegen.ir.index import Index, atom, var
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.nests.split_loops import LoopRange, RangeSpecializer, boundaries, split_loop

# ---- where a loop is cut


@pytest.mark.parametrize("factor", [-3, -2, -1, 1, 2, 3])
def test_a_condition_changes_where_it_is_said_to(factor: int) -> None:
    c = var("c", 40)
    for const, n in itertools.product(range(-25, 26), (1, 2, 7, 30)):
        index = Index(((c, factor),), const)
        holds = [0 <= factor * i + const < n for i in range(-1, c.size + 1)]
        found = {i for i in range(c.size + 1) if holds[i] != holds[i + 1]}  # at i, other than at i - 1
        assert found <= set(boundaries((index, n), c))


def test_only_conditions_about_the_loop_alone_cut_it() -> None:
    c, r = var("c", 64), var("r", 10)
    index = atom(c)
    assert boundaries((index - 16, 20), c) == [16, 36]
    assert boundaries((index + atom(r), 20), c) == []
    assert boundaries((index % 5, 2), c) == [] and boundaries((atom(r), 5), c) == []


def pieces_of(exprs: ExprBuilder, *conditions: tuple[Index, int]) -> list[Any]:
    return [exprs.load(f"x{i}", atom(conditions[i][0].terms[0][0]), (g,), "float32") for i, g in enumerate(conditions)]


def test_a_loop_is_not_cut_into_more_vectors_than_it_has() -> None:
    c, exprs = var("c", 30), ExprBuilder()
    padded = pieces_of(exprs, (atom(c) - 1, 28))
    assert split_loop(padded, c, 16) == [LoopRange(0, 30)]
    assert split_loop(padded, c, 1) == [LoopRange(0, 1), LoopRange(1, 29), LoopRange(29, 30)]
    long = var("c", 300)
    assert len(split_loop(pieces_of(exprs, *[(atom(long) - 32 * i, 32) for i in range(9)]), long, 16)) == 1, "too much code"


def test_what_is_left_of_expressions() -> None:
    c, exprs = var("c", 64), ExprBuilder()
    inside = ((atom(c), 16),)
    first, second = exprs.load("x", atom(c), inside, "float32"), exprs.load("y", atom(c) - 16, ((atom(c) - 16, 48),), "float32")
    joined = exprs.op("exp", "float32", exprs.where(exprs.inside(inside), first, second))
    assert str(RangeSpecializer(c, LoopRange(0, 16))(joined)) == "exp(x[c])"
    assert str(RangeSpecializer(c, LoopRange(16, 64))(joined)) == "exp(y[c + -16])"
    assert RangeSpecializer(c, LoopRange(8, 24))(joined) is joined, "a stretch in which a condition changes"
    assert str(RangeSpecializer(c, LoopRange(16, 64))(first)) == "0.0"


# ---- kernels


def random(*shape: int, dtype: Any = tj.float32) -> Any:
    return tj.tensor(np.random.default_rng(sum(shape)).standard_normal(shape), dtype=tj.float32).to(dtype)


def several(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "side by side": (lambda a, b, c: tj.cat([a, b, c], -1), [(40, 32), (40, 64), (40, 16)]),
    "side by side, odd": (lambda a, b, c: tj.relu(tj.cat([a, b, c], -1)), [(40, 35), (40, 61), (40, 17)]),
    "below each other": (lambda a, b, c: -tj.cat([a, b, c], 0), [(300, 20), (1, 20), (211, 20)]),
    "one dim": (lambda a, b: -tj.cat([a, b, a]), [(9_001,), (12_345,)]),
    "one dim, long": (lambda a, b: -tj.cat([a, b]), [(70_001,), (50_000,)]),
    "padded": (lambda a: F.pad(a, (3, 70), value=1.5), [(50, 200)]),
    "padded rows": (lambda a: F.pad(a, (0, 0, 2, 5)), [(50, 33)]),
    "padded both ways": (lambda a: -F.pad(a, (40, 40, 30, 30)), [(70, 90)]),
    "rolled": (lambda a: -tj.roll(a, 5, -1), [(30, 150)]),
    "rotated": (lambda a: a * a + tj.cat([-a[:, 48:], a[:, :48]], -1), [(30, 96)]),
    "flipped parts": (lambda a, b: tj.cat([a.flip(-1), b], -1).abs(), [(30, 60), (30, 70)]),
    "totals": (lambda a, b: tj.cat([a, b], -1).sum(-1), [(30, 200), (30, 333)]),
    "totals, beside": (lambda a, b: (tj.cat([a, b], -1), tj.cat([a, b], -1).sum(0)), [(200, 40), (200, 60)]),
    "means of exponentials": (lambda a, b: tj.softmax(tj.cat([a, b], -1), -1), [(30, 40), (30, 60)]),
    "stacked": (lambda a, b: tj.stack([a, b], -1), [(30, 40), (30, 40)]),
    "stacked, odd": (lambda a, b: -tj.stack([a, b], -1), [(31, 37), (31, 37)]),
    "four stacked": (lambda a, b: tj.stack([a, b, b, a], -1), [(9, 37), (9, 37)]),
    "three stacked": (lambda a, b: tj.stack([a, b, a], -1), [(9, 40), (9, 40)]),
    "many stacked": (lambda a, b: tj.stack([a, b] * 8, -1), [(9, 13), (9, 13)]),
    "one after the other": (lambda a: tj.stack([-a[:, 1::2], a[:, ::2]], -1).flatten(-2).abs(), [(30, 66)]),
    "stacked and joined": (lambda a, b: tj.cat([tj.stack([a, b], -1).flatten(1), a], 1), [(30, 21), (30, 21)]),
    "repeated": (lambda a: -a.repeat_interleave(2, -1), [(30, 41)]),
    "stacked halves": (lambda a, b: tj.stack([a, b], -1).to(tj.bfloat16), [(30, 37), (30, 37)]),
    "stacked flags": (lambda a, b: tj.stack([a > b, b > a], -1), [(30, 37), (30, 37)]),
    "halves": (lambda a, b: tj.cat([a, b], -1).to(tj.bfloat16), [(40, 35), (40, 61)]),
    "flags": (lambda a, b: tj.cat([a, b], -1) > tj.cat([b, a], -1), [(40, 35), (40, 61)]),
}


@pytest.mark.parametrize("bits", [512, 256, 64])
@pytest.mark.parametrize("name", CASES)
def test_elements_are_those_of_eager_execution(name: str, bits: int) -> None:
    """On memory that ends where a page may not be touched, pieces in any order."""
    function, shapes = CASES[name]
    args = [random(*shape) for shape in shapes]
    native, right = native_of(function, *args), function(*args)
    wide = [x.double() for x in args]
    exact = several(function(*wide))
    added = exact[:] if "mean" in name else several(function(*map(abs, wide)))
    build = native.build
    arrays = {x: guarded(a.tj_array) for x, a in zip(build.inputs, args, strict=True)}
    arrays |= {x: guarded(np.zeros(build.forms[x].shape, build.forms[x].dtype)) for x in build.outputs}
    OneKernel(native, target(bits))(arrays, np.random.default_rng(0))
    for x, wanted in zip(build.outputs, several(right), strict=True):
        if "total" in name or "mean" in name:
            assert_within(arrays[x], exact.pop(0), spread(added.pop(0), sum(map(sum, shapes))))
        else:
            np.testing.assert_array_equal(arrays[x], wanted.tj_array)


@pytest.mark.parametrize("name", ["side by side", "below each other", "one dim, long", "padded both ways", "rotated"])
def test_no_guard_is_left(name: str) -> None:
    function, shapes = CASES[name]
    shapes = [tuple(32 * n for n in shape) if len(shape) == 2 else shape for shape in shapes]  # whole vectors
    text = native_of(function, *[random(*shape) for shape in shapes]).texts[0]
    selects = [line for line in text.splitlines() if "select" in line and "x float>" in line]
    assert not selects
    masked = [line for line in text.splitlines() if "llvm.masked.load" in line and "call" in line]
    assert not masked or any(n % host().lanes("float") for shape in shapes for n in shape[-1:])


@pytest.mark.parametrize("name", ["stacked", "four stacked", "repeated"])
def test_what_stands_in_several_lanes_is_loaded_once(name: str) -> None:
    function, shapes = CASES[name]
    text = native_of(function, *[random(*shape) for shape in shapes]).texts[0]
    assert ("llvm.masked.gather" in text) is (host().lanes("float") < 8)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 70), min_size=1, max_size=4),
    st.integers(1, 40),
    st.integers(0, 1),
    st.integers(-60, 60),
    st.sampled_from(["", "sum", "column", "pad"]),
)
def test_random_parts(sizes: list[int], other: int, dim: int, shift: int, then: str) -> None:
    parts = [random(*((n, other) if dim == 0 else (other, n))) for n in sizes]

    def function(*parts: Any) -> Any:
        found = tj.roll(tj.cat(parts, dim), shift, dim) * 3
        if then == "sum":
            return found.sum(-1), found
        if then == "column":
            return found, found.sum(0)
        return F.pad(found, (2, 33, 1, 0), value=-1.0) if then == "pad" else found

    made, wide = tj.compile(function, backend="llvm"), [x.double() for x in parts]
    for _ in range(3):
        found = made(*parts)
    for y, exact, added in zip(*map(several, (found, function(*wide), function(*map(abs, wide)))), strict=True):
        assert_within(y, exact, spread(abs(added), 1 + sum(sizes) + other))
