"""Matmul kernels in half precision: pairs of bfloat16 where the CPU multiplies them, converted where they are read
otherwise."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.codegen.kernels import Compiled, guarded, target
from tapejit.codegen.llvm.gemm.problem import GemmOperand, GemmProblem, with_pairs
from tapejit.codegen.llvm.gemm.select_kernel import emit_gemm, gemm_shape, store_epilogue
from tapejit.codegen.llvm.ir.blocking import choose_plan
from tapejit.codegen.llvm.ir.builder import Module, Type, constant
from tapejit.codegen.llvm.ir.target import CPUS, host, target_for
from tapejit.codegen.llvm.runtime import jit

from .test_gemm import BATCHES, SIZES, check, laid_out, operand

BFLOAT = ml_dtypes.bfloat16
HALVES = st.sampled_from([BFLOAT, BFLOAT, np.float16])
LAYOUTS = st.sampled_from(["rows", "rows", "columns", "columns", "gaps"])
DOT = "dpbf16ps"
in_pairs = pytest.mark.skipif(not host().has("avx512bf16"), reason="this CPU does not multiply pairs of bfloat16")


def matmul(a: np.ndarray, b: np.ndarray, batch: tuple[int, ...] = ()) -> GemmProblem:
    return GemmProblem(batch, a.shape[-2], b.shape[-1], a.shape[-1], operand(0, a, batch), operand(1, b, batch), "float")


def text(gemm: GemmProblem, cpu: Any) -> str:
    module = Module(cpu.features)
    emit_gemm(module, "matmul", gemm, 3, store_epilogue(2, (), gemm.n, 1), cpu)
    return str(module)


@settings(max_examples=150)
@given(SIZES, SIZES, SIZES, LAYOUTS, LAYOUTS, HALVES, st.sampled_from([512, 512, 256, 128, 32]))
def test_any_shape_and_layout(m: int, n: int, k: int, left: str, right: str, dtype: Any, bits: int) -> None:
    rng = np.random.default_rng(m * 10000 + n * 100 + k)
    a, b = laid_out(rng, (m, k), left, dtype), laid_out(rng, (k, n), right, dtype)
    check(matmul(a, b), a, b, bits)


@settings(max_examples=30)
@given(SIZES, SIZES, SIZES, *[st.sampled_from(["rows", "columns"])] * 2, BATCHES, BATCHES)
def test_batches(m: int, n: int, k: int, left: str, right: str, first: tuple[int, int], second: tuple[int, int]) -> None:
    rng = np.random.default_rng(m * 10000 + n * 100 + k)
    a, b = laid_out(rng, (*first, m, k), left, BFLOAT), laid_out(rng, (*second, k, n), right, BFLOAT)
    check(matmul(a, b, (3, 2)), a, b, 512)


@pytest.mark.parametrize("dtype", [BFLOAT, np.float16])
@pytest.mark.parametrize(
    ("left", "right"), [("rows", "rows"), ("rows", "columns"), ("columns", "rows"), ("columns", "columns")]
)
@pytest.mark.parametrize(("m", "n", "k"), [(200, 300, 101), (130, 700, 520), (64, 40, 6001), (1, 1000, 300), (1000, 1, 301)])
def test_many_blocks(m: int, n: int, k: int, left: str, right: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = laid_out(rng, (m, k), left, dtype), laid_out(rng, (k, n), right, dtype)
    check(matmul(a, b), a, b, 512)


@in_pairs
@settings(max_examples=80)
@given(st.integers(1, 90), st.integers(3, 150), st.integers(2, 60), LAYOUTS, LAYOUTS, st.data())
def test_any_plan(m: int, n: int, k: int, left: str, right: str, data: Any) -> None:
    """Whatever the plan, the result is right: blocks, packing and loop order are free."""
    rng = np.random.default_rng(m * 10000 + n * 100 + k)
    a, b = laid_out(rng, (2, m, k), left, BFLOAT), laid_out(rng, (2, k, n), right, BFLOAT)
    gemm = dataclasses.replace(matmul(a, b, (2,)), pairs=True)
    plan = choose_plan(gemm_shape(gemm, target(512)))
    depth = data.draw(st.integers(1, gemm.steps))
    plan = dataclasses.replace(
        plan,
        rows=data.draw(st.integers(1, 8)),
        vectors=data.draw(st.integers(1, 3)),
        row_pieces=data.draw(st.integers(1, 12)),
        column_pieces=data.draw(st.integers(1, 9)),
        depth=depth,
        unroll=2 if gemm.steps % 2 == 0 and depth % 2 == 0 else 1,
        pack_a=plan.pack_a or data.draw(st.booleans()),
        per_piece_a=data.draw(st.booleans()),
        per_piece_b=data.draw(st.booleans()),
    )
    check(gemm, a, b, 512, plan=plan)


def doubled(x: GemmOperand, scalar: str) -> GemmOperand:
    """An operand that is computed while it is packed: twice what is there, as halves or as floats."""

    def load(f: Any, batch: Any, along: str, other: Any) -> Any:
        def line(first: Any, lanes: int, mask: Any) -> Any:
            i64 = Type("i64", lanes)
            there, fixed = f.add(f.splat(first, lanes), f.steps(lanes)), f.splat(other, lanes)
            rows, columns = (there, fixed) if along == "row" else (fixed, there)
            place = f.add(f.mul(rows, constant(x.row, i64)), f.mul(columns, constant(x.column, i64)))
            value = f.convert("fpext", f.gather(f.params[x.pointer], place, "bfloat", mask), "float")
            value = f.mul(value, constant(2, value.type))
            value = value if mask is None else f.select(mask, value, constant(float("nan"), value.type))
            return f.convert("fptrunc", value, scalar) if scalar == "bfloat" else value

        return line

    return dataclasses.replace(x, load=load)


@pytest.mark.parametrize("scalar", ["bfloat", "float"])
@pytest.mark.parametrize("how", ["rows", "columns"])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 7, 3), (37, 45, 61), (70, 33, 16), (9, 100, 41)])
def test_prologues(scalar: str, how: str, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    a, b = laid_out(rng, (m, k), how, BFLOAT), laid_out(rng, (k, n), how, BFLOAT)
    plain = matmul(a, b)
    gemm = dataclasses.replace(plain, a=doubled(plain.a, scalar), b=doubled(plain.b, scalar))
    module = Module(host().features)
    kernel = emit_gemm(module, "matmul", gemm, 3, store_epilogue(2, (), n, 1), target(512))
    found = guarded(np.full((m, n), np.nan, np.float32))
    Compiled(module, kernel, 3)(a, b, found, order=np.random.default_rng(1))
    np.testing.assert_allclose(found, 4 * (a.astype(np.float64) @ b.astype(np.float64)), rtol=0, atol=1e-5 * (4 + k))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 40, 33), (20, 40, 33), (20, 1, 34), (20, 3, 65), (20, 40, 1)])
def test_infinities_and_nans(m: int, n: int, k: int) -> None:
    """They reach the results that they belong to and no others: what fills up an odd depth is 0 on both sides."""
    rng = np.random.default_rng(0)
    a, b = (guarded(rng.standard_normal(shape).astype(BFLOAT)) for shape in ((m, k), (k, n)))
    a[0, 0], b[k - 1, n - 1] = np.inf, np.nan
    if m > 2:
        a[2, k - 1] = -np.inf
    module = Module(host().features)
    kernel = emit_gemm(module, "matmul", matmul(a, b), 3, store_epilogue(2, (), n, 1), target(512))
    found = guarded(np.zeros((m, n), np.float32))
    Compiled(module, kernel, 3)(a, b, found)
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@in_pairs
def test_products_of_pairs_take_subnormal_numbers_for_zero() -> None:
    """As docs/codegen.md says: what is below 2 ** -126 in magnitude, in an operand or in a sum."""
    a, b = np.full((16, 32), 2.0**-130).astype(BFLOAT), np.full((32, 32), 2.0**10).astype(BFLOAT)
    found = np.full((16, 32), np.nan, np.float32)
    module = Module(host().features)
    kernel = emit_gemm(module, "matmul", matmul(a, b), 3, store_epilogue(2, (), 32, 1), target(512))
    Compiled(module, kernel, 3)(a, b, found)
    assert not found.any()
    a, b = np.full((16, 32), 2.0**-70).astype(BFLOAT), np.full((32, 32), 2.0**-70).astype(BFLOAT)
    Compiled(module, kernel, 3)(a, b, found)
    assert not found.any()


def test_only_cpus_that_have_it_multiply_pairs() -> None:
    large, row = np.zeros((64, 64), BFLOAT), np.zeros((1, 64), BFLOAT)
    for cpu, has in (
        ("x86-64-v2", False),
        ("haswell", False),
        ("x86-64-v4", False),
        ("cooperlake", True),
        ("neoverse-n1", False),
    ):
        assert (DOT in text(matmul(large, large), target_for(cpu))) == has
        assert (DOT in text(matmul(row, large.T), target_for(cpu))) == has
    narrow = dataclasses.replace(target_for("cooperlake"), bits=64)
    assert DOT not in text(matmul(large, large), narrow)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", [BFLOAT, np.float16])
def test_no_cpu_calls_a_library_for_halves(cpu: str, dtype: Any) -> None:
    square = np.zeros((33, 33), dtype)
    for a, b in ((square, square), (square[:1], square.T), (square.T, square.T)):
        assert "__" not in jit.assembly(text(matmul(a, b), target_for(cpu)), target_for(cpu), opt=0)


def test_other_matmuls_are_not_in_pairs() -> None:
    cpu = target_for("cooperlake")
    for dtype in (np.float32, np.float16):
        assert DOT not in text(matmul(*[np.zeros((64, 64), dtype)] * 2), cpu)
    few, large = np.zeros((2, 64), BFLOAT), np.zeros((64, 64), BFLOAT)
    assert not with_pairs(matmul(few, large), cpu).pairs  # laying the right operand out would take longer than it saves
    assert with_pairs(matmul(large, large), cpu).pairs


def test_few_rows_read_halves_where_they_are() -> None:
    """A matmul of one row is as quick as memory: nothing of the large operand is copied."""
    for dtype in (BFLOAT, np.float16):
        row, large = np.zeros((1, 512), dtype), np.zeros((512, 512), dtype)
        for right in (large, large.T):
            module = Module(host().features)
            kernel = emit_gemm(module, "matmul", matmul(row, right), 3, store_epilogue(2, (), 512, 1), host())
            assert kernel.shared + kernel.scratch <= 8192
