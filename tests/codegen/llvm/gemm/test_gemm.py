"""Matmul kernels against NumPy in float64: shapes, strides, batches, vector widths, edges, prologues and epilogues."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.codegen.kernels import Compiled, guarded, target
from support.tolerances import assert_within, spread
from tapejit.codegen.llvm.gemm.problem import GemmOperand, GemmProblem
from tapejit.codegen.llvm.gemm.select_kernel import emit_gemm, gemm_shape, store_epilogue
from tapejit.codegen.llvm.ir.blocking import choose_plan
from tapejit.codegen.llvm.ir.builder import Module, Type, constant
from tapejit.codegen.llvm.ir.target import host

SCALARS = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat"}
BATCHES = st.sampled_from([(3, 2), (1, 2), (3, 1), (1, 1)])
SIZES = st.one_of(st.integers(1, 20), st.integers(1, 70), st.sampled_from([15, 16, 17, 31, 32, 33, 48, 63, 64, 65]))


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def operand(pointer: int, x: np.ndarray, batch: tuple[int, ...], **more: Any) -> GemmOperand:
    """Describe an array as an operand of a matmul; dims of size 1 are broadcast over the batch."""
    strides = [s // x.itemsize for s in x.strides]
    lead = tuple(0 if d == 1 else s for d, s in zip(x.shape[:-2], strides[:-2], strict=True))
    assert len(lead) == len(batch)
    return GemmOperand(pointer, lead, strides[-2], strides[-1], SCALARS[x.dtype.name], **more)


def laid_out(rng: np.random.Generator, shape: tuple[int, ...], how: str, dtype: Any) -> np.ndarray:
    """Random numbers in memory by rows, by columns, or with gaps."""
    values = rng.standard_normal(shape)
    if how == "rows":
        return guarded(values.astype(dtype))
    if how == "columns":
        return guarded(values.swapaxes(-1, -2).astype(dtype)).swapaxes(-1, -2)
    wide = guarded(np.full((*shape[:-2], shape[-2] * 2, shape[-1] * 3), np.nan).astype(dtype))
    found = wide[..., 1::2, 2::3]
    found[...] = values.astype(dtype)
    return found


def tolerance(dtype: Any, k: int) -> float:
    return (1e-6 if np.dtype(dtype) != np.float64 else 1e-14) * (4 + k)


def check(gemm: GemmProblem, a: np.ndarray, b: np.ndarray, bits: int, seed: int = 0, plan: Any = None) -> None:
    scalar = {"float": np.float32, "double": np.float64}[gemm.scalar]
    shape = (*gemm.batch, gemm.m, gemm.n)
    strides = dense(shape)
    module = Module(host().features)
    epilogue = store_epilogue(2, strides[:-2], strides[-2], strides[-1], gemm.scalar)
    kernel = emit_gemm(module, "matmul", gemm, 3, epilogue, target(bits), plan)
    compiled = Compiled(module, kernel, 3)
    found = guarded(np.full(shape, np.nan, scalar))
    compiled(a, b, found, order=np.random.default_rng(seed))
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(found, np.broadcast_to(expected, shape), rtol=0, atol=tolerance(scalar, gemm.k))
    again = guarded(np.full(shape, np.nan, scalar))
    compiled(a, b, again)
    assert found.tobytes() == again.tobytes()  # whoever does the pieces, in whatever order


@settings(max_examples=120)
@given(SIZES, SIZES, SIZES, *[st.sampled_from(["rows", "rows", "columns", "columns", "gaps"])] * 2, st.data())
def test_any_shape_and_layout(m: int, n: int, k: int, left: str, right: str, data: Any) -> None:
    bits = data.draw(st.sampled_from([512, 512, 256, 128, 32]))
    dtype = data.draw(st.sampled_from([np.float32, np.float32, np.float64]))
    rng = np.random.default_rng(m * 10000 + n * 100 + k)
    a, b = laid_out(rng, (m, k), left, dtype), laid_out(rng, (k, n), right, dtype)
    check(GemmProblem((), m, n, k, operand(0, a, ()), operand(1, b, ()), SCALARS[np.dtype(dtype).name]), a, b, bits)


@settings(max_examples=30)
@given(SIZES, SIZES, SIZES, *[st.sampled_from(["rows", "columns"])] * 2, BATCHES, BATCHES)
def test_batches(m: int, n: int, k: int, left: str, right: str, first: tuple[int, int], second: tuple[int, int]) -> None:
    rng = np.random.default_rng(m * 10000 + n * 100 + k)
    a, b = laid_out(rng, (*first, m, k), left, np.float32), laid_out(rng, (*second, k, n), right, np.float32)
    check(GemmProblem((3, 2), m, n, k, operand(0, a, (3, 2)), operand(1, b, (3, 2)), "float"), a, b, 512)


@pytest.mark.parametrize(
    ("left", "right"), [("rows", "rows"), ("rows", "columns"), ("columns", "rows"), ("columns", "columns")]
)
@pytest.mark.parametrize(("m", "n", "k"), [(200, 300, 100), (130, 700, 520), (64, 40, 3001), (1, 1000, 300), (1000, 1, 300)])
def test_many_blocks(m: int, n: int, k: int, left: str, right: str) -> None:
    rng = np.random.default_rng(0)
    a, b = laid_out(rng, (m, k), left, np.float32), laid_out(rng, (k, n), right, np.float32)
    check(GemmProblem((), m, n, k, operand(0, a, ()), operand(1, b, ()), "float"), a, b, 512)


@settings(max_examples=60)
@given(st.integers(1, 90), st.integers(1, 150), st.integers(1, 60), st.sampled_from(["rows", "columns", "gaps"]), st.data())
def test_any_plan(m: int, n: int, k: int, how: str, data: Any) -> None:
    """Whatever the plan, the result is right: blocks, packing and loop order are free."""
    rng = np.random.default_rng(m * 10000 + n * 100 + k)
    a, b = laid_out(rng, (2, m, k), how, np.float32), laid_out(rng, (2, k, n), how, np.float32)
    gemm = GemmProblem((2,), m, n, k, operand(0, a, (2,)), operand(1, b, (2,)), "float")
    plan = choose_plan(gemm_shape(gemm, target(512)))
    rows, vectors = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 3))
    depth = data.draw(st.integers(1, k))
    plan = dataclasses.replace(
        plan,
        rows=rows,
        vectors=vectors,
        row_pieces=data.draw(st.integers(1, 12)),
        column_pieces=data.draw(st.integers(1, 9)),
        depth=depth,
        unroll=2 if k % 2 == 0 and depth % 2 == 0 else 1,
        pack_a=plan.pack_a or data.draw(st.booleans()),
        pack_b=plan.pack_b or data.draw(st.booleans()),
        per_piece_a=data.draw(st.booleans()),
        per_piece_b=data.draw(st.booleans()),
        split_k=data.draw(st.sampled_from([1, 1, 2, 3, 8])),
    )
    check(gemm, a, b, 512, plan=plan)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("how", ["rows", "columns"])
def test_half_floats_are_summed_as_floats(dtype: Any, how: str) -> None:
    rng = np.random.default_rng(0)
    a, b = laid_out(rng, (37, 61), how, dtype), laid_out(rng, (61, 45), how, dtype)
    for bits in (512, 256):
        check(GemmProblem((), 37, 45, 61, operand(0, a, ()), operand(1, b, ()), "float"), a, b, bits)


@pytest.mark.parametrize("how", ["rows", "columns"])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 7, 3), (37, 45, 61), (70, 33, 16), (3, 100, 40)])
def test_prologues(how: str, m: int, n: int, k: int) -> None:
    """Operands that are computed while they are packed: here 2 x + 10 row + column."""
    rng = np.random.default_rng(0)
    a, b = laid_out(rng, (2, m, k), how, np.float32), laid_out(rng, (2, k, n), how, np.float32)
    plain = operand(0, a, (2,)), operand(1, b, (2,))

    def prologue(x: GemmOperand) -> Any:
        def load(f: Any, batch: Any, along: str, other: Any) -> Any:
            def line(first: Any, lanes: int, mask: Any) -> Any:
                kind = Type("float", lanes)
                i64 = Type("i64", lanes)
                steps = constant(0, i64) if lanes == 1 else f.steps(lanes)
                there, fixed = f.add(f.splat(first, lanes), steps), f.splat(other, lanes)
                rows, columns = (there, fixed) if along == "row" else (fixed, there)
                place = f.add(f.mul(rows, constant(x.row, i64)), f.mul(columns, constant(x.column, i64)))
                place = f.add(place, f.splat(f.mul(batch[0], constant(x.batch[0], Type("i64"))), lanes))
                value = f.gather(f.params[x.pointer], place, "float", mask)
                value = f.mul(value, constant(2, kind))
                value = f.add(value, f.mul(f.convert("sitofp", rows, "float"), constant(10, kind)))
                return f.add(value, f.convert("sitofp", columns, "float"))

            return line

        return load

    left, right = (dataclasses.replace(x, load=prologue(x)) for x in plain)
    gemm = GemmProblem((2,), m, n, k, left, right, "float")
    module, shape = Module(host().features), (2, m, n)
    kernel = emit_gemm(module, "matmul", gemm, 3, store_epilogue(2, (m * n,), n, 1), target(512))
    found = guarded(np.full(shape, np.nan, np.float32))
    Compiled(module, kernel, 3)(a, b, found, order=np.random.default_rng(1))

    def computed(x: np.ndarray) -> Any:
        rows, columns = np.indices(x.shape[-2:])
        return 2 * x.astype(np.float64) + 10 * rows + columns

    def magnitude(x: np.ndarray) -> Any:
        return computed(np.abs(x))

    # each operand is rounded three times before it is multiplied
    assert_within(found, computed(a) @ computed(b), spread(magnitude(a) @ magnitude(b), k + 6))


@pytest.mark.parametrize("lines", [0, 60])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 7, 3), (37, 45, 61), (130, 110, 40), (20, 1, 9), (3, 3, 4000)])
def test_epilogues_see_each_result_once(lines: int, m: int, n: int, k: int) -> None:
    """result = 3 x + 100 batch + bias[n], added to what is there; cheap ones and ones of many instructions."""
    rng = np.random.default_rng(0)
    a, b = laid_out(rng, (2, m, k), "rows", np.float32), laid_out(rng, (2, k, n), "columns", np.float32)
    bias = guarded(rng.standard_normal(n).astype(np.float32))
    add = store_epilogue(2, (m * n,), n, 1, accumulate=True)

    def epilogue(f: Any, batch: Any, row: Any, column: Any, value: Any, mask: Any) -> None:
        kind = value.type
        value = f.mul(value, constant(3, kind))
        offset = f.convert("sitofp", f.splat(f.mul(batch[0], constant(100, Type("i64"))), kind.lanes), "float")
        value = f.add(f.add(value, offset), f.load(f.pointer(f.params[3], column, "float"), kind, mask))
        for _ in range(lines):
            value = f.add(value, constant(1, kind))
        add(f, batch, row, column, value, mask)

    module = Module(host().features)
    gemm = GemmProblem((2,), m, n, k, operand(0, a, (2,)), operand(1, b, (2,)), "float")
    kernel = emit_gemm(module, "matmul", gemm, 4, epilogue, target(512))
    found = guarded(np.ones((2, m, n), np.float32))
    Compiled(module, kernel, 4)(a, b, found, bias, order=np.random.default_rng(1))
    expected = 1 + 3 * (a.astype(np.float64) @ b) + 100 * np.arange(2)[:, None, None] + bias + lines
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)


def test_results_to_any_strides_and_types() -> None:
    rng = np.random.default_rng(0)
    a, b = laid_out(rng, (13, 21), "rows", np.float32), laid_out(rng, (21, 35), "rows", np.float32)
    for dtype in (np.float32, np.float16):
        module = Module(host().features)
        gemm = GemmProblem((), 13, 35, 21, operand(0, a, ()), operand(1, b, ()), "float")
        kernel = emit_gemm(module, "matmul", gemm, 3, store_epilogue(2, (), 1, 13, SCALARS[np.dtype(dtype).name]), target(512))
        found = guarded(np.zeros((35, 13), dtype))
        Compiled(module, kernel, 3)(a, b, found)
        np.testing.assert_allclose(found.T, a.astype(np.float64) @ b, rtol=2e-3 if dtype == np.float16 else 1e-5, atol=1e-2)


def test_empty_sums_are_zero_and_empty_results_need_no_work() -> None:
    flat = GemmOperand(0, (), 4, 1)
    check(
        GemmProblem((), 5, 20, 0, flat, dataclasses.replace(flat, pointer=1), "float"), np.zeros((5, 0)), np.zeros((0, 20)), 512
    )
    for gemm in (GemmProblem((), 0, 4, 4, flat, flat, "float"), GemmProblem((), 4, 0, 4, flat, flat, "float")):
        assert emit_gemm(Module(), "matmul", gemm, 3, store_epilogue(2, (), 4, 1), target(512)).phases == ()


def test_large_matmuls_fall_into_pieces_and_small_ones_do_not() -> None:
    def pieces(m: int, n: int, k: int) -> int:
        gemm = GemmProblem((), m, n, k, GemmOperand(0, (), k, 1), GemmOperand(1, (), n, 1), "float")
        return emit_gemm(Module(), "matmul", gemm, 3, store_epilogue(2, (), n, 1), target(512)).phases[-1].pieces

    assert pieces(1024, 512, 128) >= 8
    assert pieces(100, 16, 16) == 1


@pytest.mark.parametrize(
    ("left", "right"), [("rows", "rows"), ("rows", "columns"), ("columns", "rows"), ("columns", "columns")]
)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(16, 24, 9001), (64, 64, 4096), (5, 130, 6002), (40, 3, 20000), (1, 1, 300007), (2, 3, 70001)]
)
def test_a_great_depth_is_shared_out(m: int, n: int, k: int, left: str, right: str) -> None:
    rng = np.random.default_rng(0)
    a, b = laid_out(rng, (m, k), left, np.float32), laid_out(rng, (k, n), right, np.float32)
    gemm = GemmProblem((), m, n, k, operand(0, a, ()), operand(1, b, ()), "float")
    # Vectors are no wider than registers: of a load whose mask is never set in the second of two, LLVM 22 makes one without.
    bits = min(512, host().bits)
    phases = emit_gemm(Module(), "matmul", gemm, 3, store_epilogue(2, (), n, 1), target(bits)).phases
    assert max(x.pieces for x in phases if not x.function.endswith(("pack", "add"))) >= 4
    check(gemm, a, b, bits)


def test_depths_are_in_one_where_that_keeps_threads_busy() -> None:
    def parts(batch: int, m: int, n: int, k: int) -> int:
        lead = (m * k,), (k * n,)
        gemm = GemmProblem((batch,), m, n, k, GemmOperand(0, lead[0], k, 1), GemmOperand(1, lead[1], n, 1), "float")
        return choose_plan(gemm_shape(gemm, target(512))).split_k

    assert parts(1, 64, 64, 8192) == 8
    assert parts(1, 1024, 1024, 8192) == parts(1, 64, 64, 512) == parts(16, 64, 64, 8192) == parts(1, 8, 8, 4096) == 1


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(1, 2000), st.integers(1, 2000), st.integers(64, 2000), st.booleans())
def test_threads_have_equal_shares(batch: int, m: int, n: int, k: int, turned: bool) -> None:
    """The number of pieces is a multiple of four, unless one is enough or there are no more tiles to share out."""
    left = GemmOperand(0, (m * k,), 1, m) if turned else GemmOperand(0, (m * k,), k, 1)
    gemm = GemmProblem((batch,), m, n, k, left, GemmOperand(1, (k * n,), n, 1), "float")
    plan = choose_plan(gemm_shape(gemm, target(512)))
    more = math.ceil(m / plan.rows) - plan.row_pieces, math.ceil(n / plan.width) - plan.column_pieces
    pieces = batch * plan.row_pieces * plan.column_pieces
    assert min(more) >= 0
    assert pieces <= 2 or pieces % 4 == 0 or max(more) < 3
