"""Tuning candidates: plans that give the same bits as the model's, and the choice among them by measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.codegen.kernels import Compiled, guarded, target
from tapejit.codegen.llvm.gemm.problem import GemmOperand, GemmProblem, with_pairs
from tapejit.codegen.llvm.gemm.select_kernel import emit_gemm, gemm_shape, store_epilogue
from tapejit.codegen.llvm.ir.blocking import GemmPlan, GemmShape, choose_plan
from tapejit.codegen.llvm.ir.builder import Module, constant
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.llvm.runtime.jit import CompileFailed
from tapejit.codegen.llvm.tuning.candidates import PLAN_CHANGES, candidates, is_valid_plan, same_bits, search
from tapejit.codegen.llvm.tuning.measure import PlanRace, memory_extent, trial_bytes

SCALARS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double", np.dtype(ml_dtypes.bfloat16): "bfloat"}
SCALARS[np.dtype(np.float16)] = "half"
LAYOUTS = st.sampled_from(["rows", "columns", "gaps"])


def laid_out(rng: np.random.Generator, shape: tuple[int, ...], how: str, dtype: Any) -> np.ndarray:
    """Random numbers of many magnitudes, in memory by rows, by columns, or with gaps."""
    values = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(dtype)
    if how == "rows":
        return guarded(values)
    if how == "columns":
        return guarded(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    found = guarded(np.zeros((*shape[:-1], 2 * shape[-1]), dtype))[..., ::2]
    found[...] = values
    return found


def matmul(a: np.ndarray, b: np.ndarray, bits: int) -> GemmProblem:
    """The matmul of two batches; those of size 1 are broadcast."""
    batch = tuple(max(n) for n in zip(a.shape[:-2], b.shape[:-2], strict=True))
    sides = []
    for i, x in enumerate((a, b)):
        *lead, row, column = (s // x.itemsize for s in x.strides)
        lead = [0 if n == 1 else s for n, s in zip(x.shape[:-2], lead, strict=True)]
        sides.append(GemmOperand(i, tuple(lead), row, column, SCALARS[x.dtype]))
    wide = "double" if a.dtype == np.float64 else "float"
    return with_pairs(GemmProblem(batch, a.shape[-2], b.shape[-1], a.shape[-1], sides[0], sides[1], wide), target(bits))


def results(gemm: GemmProblem, plan: GemmPlan, a: np.ndarray, b: np.ndarray, bits: int, lines: int) -> bytes:
    """Compute 3 x + 1 + 1 + ... for the matmul's elements x."""
    count = gemm.m * gemm.n
    strides = tuple(int(np.prod(gemm.batch[i + 1 :])) * count for i in range(len(gemm.batch)))
    store = store_epilogue(2, strides, gemm.n, 1, gemm.scalar)

    def epilogue(f: Any, batch: Any, row: Any, column: Any, value: Any, mask: Any) -> None:
        value = f.mul(value, constant(3, value.type))
        for _ in range(lines):
            value = f.add(value, constant(1, value.type))
        store(f, batch, row, column, value, mask)

    module = Module(host().features)
    kernel = emit_gemm(module, "matmul", gemm, 3, epilogue, target(bits), plan)
    dtype = {"float": np.float32, "double": np.float64}[gemm.scalar]
    found = guarded(np.full((*gemm.batch, gemm.m, gemm.n), np.nan, dtype))
    Compiled(module, kernel, 3)(a, b, found, order=np.random.default_rng(0))
    return found.tobytes()


def same_for_all(a: np.ndarray, b: np.ndarray, bits: int, lines: int, few: np.random.Generator | None = None) -> None:
    gemm = matmul(a, b, bits)
    shape = gemm_shape(gemm, target(bits))
    plans = candidates(shape)
    if few is not None:  # some of them, and some with one more change
        some = [plans[i] for i in few.permutation(len(plans))[:2]]
        more = [p for plan in some for change in PLAN_CHANGES for p in change(shape, plan) if is_valid_plan(shape, p)]
        plans = [plans[0], *some, *[more[i] for i in few.permutation(len(more))[:2]]]
    found = {plan: results(gemm, plan, a, b, bits, lines) for plan in plans}
    different = [str(plan) for plan, data in found.items() if data != found[plans[0]]]
    assert not different, f"other bits than by {plans[0]}: {different}"


@settings(max_examples=40)
@given(st.integers(1, 90), st.integers(2, 150), st.integers(1, 70), LAYOUTS, LAYOUTS, st.integers(0, 40), st.data())
def test_candidates_give_the_same_bits(m: int, n: int, k: int, left: str, right: str, lines: int, data: Any) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.float64, ml_dtypes.bfloat16, np.float16]))
    bits = data.draw(st.sampled_from([512, 512, 256, 128]))
    first, second = data.draw(st.sampled_from([((), ()), ((2,), (2,)), ((2,), (1,)), ((1, 3), (2, 3))]))
    rng = np.random.default_rng(m * 10000 + n * 100 + k)
    a, b = laid_out(rng, (*first, m, k), left, dtype), laid_out(rng, (*second, k, n), right, dtype)
    same_for_all(a, b, bits, lines, rng)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("m", "n", "k", "left", "right"),
    [(64, 64, 4096, "columns", "rows"), (40, 24, 9002, "rows", "columns"), (130, 300, 600, "columns", "columns")],
)
def test_candidates_of_great_depths_give_the_same_bits(dtype: Any, m: int, n: int, k: int, left: str, right: str) -> None:
    """The depth in blocks, and shared out to threads."""
    rng = np.random.default_rng(0)
    same_for_all(laid_out(rng, (m, k), left, dtype), laid_out(rng, (k, n), right, dtype), 512, 0)


def test_parts_of_the_depth_change_bits_and_are_no_candidates() -> None:
    rng = np.random.default_rng(0)
    a, b = laid_out(rng, (64, 8192), "columns", np.float32), laid_out(rng, (8192, 64), "rows", np.float32)
    gemm = matmul(a, b, 512)
    shape = gemm_shape(gemm, target(512))
    model = choose_plan(shape)
    other = dataclasses.replace(model, split_k=model.split_k // 2)
    assert results(gemm, model, a, b, 512, 0) != results(gemm, other, a, b, 512, 0)
    assert not is_valid_plan(shape, other) and all(same_bits(model, plan) for plan in candidates(shape))


SHAPE = GemmShape(1, 256, 256, 256, 16, 32, 4, False, False, False, False, False)


def changed(**what: Any) -> GemmPlan:
    return dataclasses.replace(choose_plan(SHAPE), **what)


@pytest.mark.parametrize(
    "plan",
    [
        changed(split_k=2),
        changed(lanes=8),
        changed(rows=9, vectors=3),  # more registers than there are
        changed(rows=0),
        changed(vectors=0),
        changed(row_pieces=1, column_pieces=1),  # nothing for other threads
        changed(row_pieces=9, column_pieces=1),  # shares that are not equal
        changed(row_pieces=512),
        changed(depth=0),
        changed(depth=512),
        changed(depth=130),  # which its rounds of four do not divide
        changed(unroll=0),
        changed(column_pieces=2, row_pieces=4, per_piece_a=True),  # packed twice
    ],
)
def test_what_is_no_plan_for_a_shape(plan: GemmPlan) -> None:
    assert is_valid_plan(SHAPE, choose_plan(SHAPE)) and not is_valid_plan(SHAPE, plan)


def test_what_has_to_be_packed_is() -> None:
    packed = dataclasses.replace(SHAPE, pack_a=True, pack_b=True)
    assert all(plan.pack_a and plan.pack_b for plan in candidates(packed))
    assert {(plan.pack_a, plan.pack_b) for plan in candidates(SHAPE)} == {(i, j) for i in (False, True) for j in (False, True)}


def test_there_are_some_for_every_way_to_cut() -> None:
    plans = candidates(SHAPE)
    assert plans[0] == choose_plan(SHAPE) and len(plans) == len(set(plans)) > 15
    names = ("rows", "vectors", "row_pieces", "column_pieces", "depth")
    assert all(len({getattr(plan, name) for plan in plans}) > 1 for name in names)


# ---- which is taken


def by(seconds: Any) -> Any:
    return lambda plans, last: [seconds(plan) for plan in plans]


def test_the_quickest_is_found_step_by_step() -> None:
    def seconds(plan: GemmPlan) -> float:
        return plan.rows * 100 + plan.column_pieces + plan.depth / 1000 + plan.pack_b

    plan, gain = search(SHAPE, by(seconds))
    least = min(p.rows for p in candidates(SHAPE))
    assert (plan.rows, plan.column_pieces, plan.depth, plan.pack_b) == (least, 1, 128, False)
    assert gain == seconds(choose_plan(SHAPE)) / seconds(plan)


@pytest.mark.parametrize(("quicker", "taken"), [(1.0, False), (1.02, False), (1.04, True), (0.5, False)])
def test_what_is_hardly_quicker_is_not_taken(quicker: float, taken: bool) -> None:
    model = choose_plan(SHAPE)
    plan, gain = search(SHAPE, by(lambda p: 1.0 if p == model else 1 / quicker))
    assert (plan != model) is taken and gain == (pytest.approx(quicker) if taken else 1.0)


def test_the_last_race_decides() -> None:
    model = choose_plan(SHAPE)

    def race(plans: Sequence[GemmPlan], last: bool) -> list[float | None]:
        return [1.0 if (p == model) is last else 2.0 for p in plans]

    assert search(SHAPE, race) == (model, 1.0)


def test_without_time_it_is_the_models() -> None:
    assert search(SHAPE, lambda plans, last: [None] * len(plans)) == (choose_plan(SHAPE), 1.0)


# ---- measuring


def small(batch: tuple[int, ...] = ()) -> GemmProblem:
    lead = (32 * 32,) if batch else ()
    return GemmProblem(batch, 32, 32, 32, GemmOperand(0, lead, 32, 1), GemmOperand(1, lead, 32, 1), "float")


@pytest.mark.parametrize("batch", [(), (3,)])
def test_plans_are_run(batch: tuple[int, ...]) -> None:
    gemm = small(batch)
    plans, trials = candidates(gemm_shape(gemm, host()))[:3], PlanRace(gemm, host(), seconds=60.0)
    assert all(took is not None and took > 0 for took in trials(plans))
    assert set(trials.runs) == set(plans)


def test_when_the_time_is_over_nothing_more_is_run() -> None:
    gemm = small()
    plans, trials = candidates(gemm_shape(gemm, host())), PlanRace(gemm, host(), seconds=0.0)
    assert trials(plans) == [None] * len(plans) and len(trials.runs) == 1


def test_a_plan_that_does_not_compile_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = small()
    plans, trials = candidates(gemm_shape(gemm, host()))[:3], PlanRace(gemm, host(), seconds=60.0)
    of = trials.runner

    def failing(plan: GemmPlan) -> Any:
        if plan == plans[1]:
            raise CompileFailed("no")
        return of(plan)

    monkeypatch.setattr(trials, "runner", failing)
    first, second, third = trials(plans)
    assert first is not None and second is None and third is not None


def test_memory_of_operands_with_any_strides() -> None:
    assert memory_extent(GemmOperand(0, (), 5, 1), (), 3, 4) == (14, 0)
    assert memory_extent(GemmOperand(0, (), -5, 1), (), 3, 4) == (14, 10)
    assert memory_extent(GemmOperand(0, (0,), 0, 2), (7,), 3, 4) == (7, 0)
    gemm = GemmProblem((), 3, 2, 4, GemmOperand(0, (), -4, 1), GemmOperand(1, (), 1, -4, "half"), "float")
    assert trial_bytes(gemm) == 4 * 12 + 2 * 8 + 4 * 6
    plan = choose_plan(gemm_shape(gemm, host()))
    assert PlanRace(gemm, host()).runner(plan)(1) >= 0


def test_a_plan_in_words() -> None:
    words = str(
        changed(rows=8, vectors=2, row_pieces=4, column_pieces=2, depth=128, pack_a=False, pack_b=True, per_piece_b=False)
    )
    start = "register tiles of 8 x 32, 8 pieces (4 x 2, split-K 1), depth blocks of 128, unroll 4"
    assert words == f"{start}, left in place, right packed before"
