"""Random numbers in generated code are those of the eager ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.codegen.emitted import Emitted, worst
from tapejit.codegen.llvm.ir.builder import F64, I64, Function, Type, Value, constant
from tapejit.codegen.llvm.math import philox
from tapejit.codegen.llvm.math.philox import Bits, Elements
from tapejit.eager.arrays import philox as eager
from tapejit.eager.ops import random as ops

SEEDS = [(0, 0), (1, 7), (2**64 - 1, 2**32 + 5), (0x123456789ABCDEF0, 2**64 - 1)]
COUNT = 1000


def i64(x: int) -> Value:
    return constant(x - (1 << 64) if x >= 1 << 63 else x, I64)


def drawn(make: Any, seed: int, call: int, lanes: int, result: Any, run: bool, start: int = 0) -> Any:
    """COUNT elements of `make(f, bits, elements)`, by runs or by indices."""

    def body(f: Function, index: Value) -> Value:
        bits = Bits(f, i64(seed), i64(call))
        first = index if lanes == 1 else f.lane(index, 0)
        return make(f, bits, Elements(lanes, first=first) if run else Elements(lanes, at=index))

    index = start + np.arange(-(-COUNT // 16) * 16)
    return Emitted(body, np.int64, lanes, result=result)(index)[:COUNT]


@pytest.mark.parametrize(("lanes", "run"), [(16, True), (4, True), (8, False), (1, False)])
@pytest.mark.parametrize(("seed", "call"), SEEDS)
def test_words(seed: int, call: int, lanes: int, run: bool) -> None:
    want = np.concatenate([w.copy() for _, w in eager.chunks(np, seed, call, COUNT)])[:COUNT]
    assert (drawn(philox.words32, seed, call, lanes, np.uint32, run) == want).all()
    want = np.concatenate([w.copy() for _, w in eager.chunks(np, seed, call, 2 * COUNT)])[: 2 * COUNT].view(np.uint64)
    assert (drawn(philox.words64, seed, call, lanes, np.uint64, run) == want).all()


def test_words_far_away() -> None:
    """Blocks beyond 2**32 use the counter's second word."""
    start = 1 << 35
    mixer = eager.Mixer(np, COUNT, 5)
    want = mixer(start // 4, COUNT // 4, 9)
    assert (drawn(philox.words32, 5, 9, 16, np.uint32, True, start) == want).all()


@pytest.mark.parametrize(("lanes", "run"), [(16, True), (8, False), (2, False)])
@pytest.mark.parametrize("dtype", [tj.float32, tj.float64, tj.float16, tj.bfloat16])
def test_uniform(dtype: Any, lanes: int, run: bool) -> None:
    kind = {"float16": "half", "bfloat16": "bfloat", "float32": "float", "float64": "double"}[dtype.name]
    held = np.float64 if kind == "double" else np.float32
    found = drawn(lambda f, b, e: philox.uniform(f, b, e, kind), 3, 4, lanes, held, run)
    want = ops.run_uniform(np, 3, 4, 0, 1, shape=(COUNT,), dtype=dtype, device=tj.device("cpu"))
    assert (found == want.astype(held)).all() and len(set(found)) > 200
    low, high = (constant(x, F64) for x in (-1.3, 0.7))
    if kind in ("float", "double"):
        found = drawn(lambda f, b, e: philox.scale_uniform(f, philox.uniform(f, b, e, kind), low, high), 3, 4, lanes, held, run)
        assert (found == ops.run_uniform(np, 3, 4, -1.3, 0.7, shape=(COUNT,), dtype=dtype, device=tj.device("cpu"))).all()


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0, 1e-9, 0.1 + 0.2])
def test_mask(p: float) -> None:
    def kept(f: Function, bits: Bits, elements: Elements) -> Value:
        return philox.mask(f, bits, elements, philox.mask_bound(f, constant(p, F64)))

    want = eager.bernoulli(np, 11, 12, COUNT, p)
    for lanes, run in ((16, True), (4, False)):
        assert (drawn(kept, 11, 12, lanes, np.bool_, run) == want).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bernoulli(dtype: Any) -> None:
    kind = "float" if dtype is np.float32 else "double"
    p = constant(0.37, Type(kind, 8))
    found = drawn(lambda f, b, e: philox.bernoulli(f, b, e, p), 1, 2, 8, np.bool_, True)
    assert (found == ops.run_bernoulli(np, np.full(COUNT, 0.37, dtype), 1, 2).astype(bool)).all()


@pytest.mark.parametrize(("lanes", "run"), [(16, True), (4, True), (8, False), (1, False)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal(dtype: Any, lanes: int, run: bool) -> None:
    kind = "float" if dtype is np.float32 else "double"
    found = drawn(lambda f, b, e: philox.normal(f, b, e, kind), 8, 9, lanes, dtype, run)
    each = 1 if kind == "float" else 2
    words = np.concatenate([w.copy() for _, w in eager.chunks(np, 8, 9, each * COUNT)])
    pair = eager._pair32(words) if kind == "float" else eager._pair64(words)
    more = np.float64 if kind == "float" else np.longdouble
    exact = eager._box_muller(np, *(x.astype(more) for x in pair))[:COUNT]
    off, where = worst(found, exact)
    assert off <= 3, where


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 2), (-5, 60), (0, 1 << 16), (0, (1 << 16) + 1), (-(1 << 31), 1 << 31), (-7, 1 << 40), (-(1 << 63), (1 << 63) - 1)],
)
def test_integers(low: int, high: int) -> None:
    want = eager.integers(np, 21, 22, COUNT, low, high)
    for lanes, run in ((16, True), (4, False), (1, False)):
        found = drawn(lambda f, b, e: philox.integers(f, b, e, i64(low), i64(high)), 21, 22, lanes, np.int64, run)
        assert (found == want).all()
