"""What tuning tries: plans that give the same bits as the model's, and which of them is taken by what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import Compiled, guarded, target
from tapejit.codegen.llvm.ir.blocking import Plan, Shape, choose
from tapejit.codegen.llvm.ir.builder import Module, constant
from tapejit.codegen.llvm.tuning.candidates import CHANGES, candidates, fits, same_bits, search
from tapejit.codegen.llvm.gemm.select_kernel.problem import paired
from tapejit.codegen.llvm.gemm.select_kernel.select_kernel import Gemm, Operand, emit, shape_of, store_to
from tapejit.codegen.llvm.runtime.jit import CompileFailed
from tapejit.codegen.llvm.ir.target import host
from tapejit.codegen.llvm.tuning.measure import Trials, bytes_of, span

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


def product(a: np.ndarray, b: np.ndarray, bits: int) -> Gemm:
    """The product of two batches; those of size 1 are broadcast."""
    batch = tuple(max(n) for n in zip(a.shape[:-2], b.shape[:-2], strict=True))
    sides = []
    for i, x in enumerate((a, b)):
        *lead, row, column = (s // x.itemsize for s in x.strides)
        lead = [0 if n == 1 else s for n, s in zip(x.shape[:-2], lead, strict=True)]
        sides.append(Operand(i, tuple(lead), row, column, SCALARS[x.dtype]))
    wide = "double" if a.dtype == np.float64 else "float"
    return paired(Gemm(batch, a.shape[-2], b.shape[-1], a.shape[-1], sides[0], sides[1], wide), target(bits))


def results(gemm: Gemm, plan: Plan, a: np.ndarray, b: np.ndarray, bits: int, lines: int) -> bytes:
    """What 3 x + 1 + 1 + ... is for the product's elements x."""
    count = gemm.m * gemm.n
    strides = tuple(int(np.prod(gemm.batch[i + 1 :])) * count for i in range(len(gemm.batch)))
    store = store_to(2, strides, gemm.n, 1, gemm.scalar)

    def epilogue(f: Any, batch: Any, row: Any, column: Any, value: Any, mask: Any) -> None:
        value = f.mul(value, constant(3, value.type))
        for _ in range(lines):
            value = f.add(value, constant(1, value.type))
        store(f, batch, row, column, value, mask)

    module = Module(host().features)
    kernel = emit(module, "product", gemm, 3, epilogue, target(bits), plan)
    dtype = {"float": np.float32, "double": np.float64}[gemm.scalar]
    found = guarded(np.full((*gemm.batch, gemm.m, gemm.n), np.nan, dtype))
    Compiled(module, kernel, 3)(a, b, found, order=np.random.default_rng(0))
    return found.tobytes()


def same_for_all(a: np.ndarray, b: np.ndarray, bits: int, lines: int, few: np.random.Generator | None = None) -> None:
    gemm = product(a, b, bits)
    shape = shape_of(gemm, target(bits))
    plans = candidates(shape)
    if few is not None:  # some of them, and some with one more change
        some = [plans[i] for i in few.permutation(len(plans))[:2]]
        more = [p for plan in some for change in CHANGES for p in change(shape, plan) if fits(shape, p)]
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
    gemm = product(a, b, 512)
    shape = shape_of(gemm, target(512))
    model = choose(shape)
    other = dataclasses.replace(model, parts=model.parts // 2)
    assert results(gemm, model, a, b, 512, 0) != results(gemm, other, a, b, 512, 0)
    assert not fits(shape, other) and all(same_bits(model, plan) for plan in candidates(shape))


SHAPE = Shape(1, 256, 256, 256, 16, 32, 4, False, False, False, False, False)


def changed(**what: Any) -> Plan:
    return dataclasses.replace(choose(SHAPE), **what)


@pytest.mark.parametrize(
    "plan",
    [
        changed(parts=2),
        changed(lanes=8),
        changed(rows=9, vectors=3),  # more registers than there are
        changed(rows=0),
        changed(vectors=0),
        changed(down=1, across=1),  # nothing for other threads
        changed(down=9, across=1),  # shares that are not equal
        changed(down=512),
        changed(depth=0),
        changed(depth=512),
        changed(depth=130),  # which its rounds of four do not divide
        changed(unroll=0),
        changed(across=2, down=4, own_a=True),  # packed twice
    ],
)
def test_what_is_no_plan_for_a_shape(plan: Plan) -> None:
    assert fits(SHAPE, choose(SHAPE)) and not fits(SHAPE, plan)


def test_what_has_to_be_packed_is() -> None:
    packed = dataclasses.replace(SHAPE, pack_a=True, pack_b=True)
    assert all(plan.pack_a and plan.pack_b for plan in candidates(packed))
    assert {(plan.pack_a, plan.pack_b) for plan in candidates(SHAPE)} == {(i, j) for i in (False, True) for j in (False, True)}


def test_there_are_some_for_every_way_to_cut() -> None:
    plans = candidates(SHAPE)
    assert plans[0] == choose(SHAPE) and len(plans) == len(set(plans)) > 15
    assert all(len({getattr(plan, name) for plan in plans}) > 1 for name in ("rows", "vectors", "down", "across", "depth"))


# ---- which is taken


def by(seconds: Any) -> Any:
    return lambda plans, last: [seconds(plan) for plan in plans]


def test_the_quickest_is_found_step_by_step() -> None:
    def seconds(plan: Plan) -> float:
        return plan.rows * 100 + plan.across + plan.depth / 1000 + plan.pack_b

    plan, gain = search(SHAPE, by(seconds))
    least = min(p.rows for p in candidates(SHAPE))
    assert (plan.rows, plan.across, plan.depth, plan.pack_b) == (least, 1, 128, False)
    assert gain == seconds(choose(SHAPE)) / seconds(plan)


@pytest.mark.parametrize(("quicker", "taken"), [(1.0, False), (1.02, False), (1.04, True), (0.5, False)])
def test_what_is_hardly_quicker_is_not_taken(quicker: float, taken: bool) -> None:
    model = choose(SHAPE)
    plan, gain = search(SHAPE, by(lambda p: 1.0 if p == model else 1 / quicker))
    assert (plan != model) is taken and gain == (pytest.approx(quicker) if taken else 1.0)


def test_the_last_race_decides() -> None:
    model = choose(SHAPE)

    def race(plans: Sequence[Plan], last: bool) -> list[float | None]:
        return [1.0 if (p == model) is last else 2.0 for p in plans]

    assert search(SHAPE, race) == (model, 1.0)


def test_without_time_it_is_the_models() -> None:
    assert search(SHAPE, lambda plans, last: [None] * len(plans)) == (choose(SHAPE), 1.0)


# ---- measuring


def small(batch: tuple[int, ...] = ()) -> Gemm:
    lead = (32 * 32,) if batch else ()
    return Gemm(batch, 32, 32, 32, Operand(0, lead, 32, 1), Operand(1, lead, 32, 1), "float")


@pytest.mark.parametrize("batch", [(), (3,)])
def test_plans_are_run(batch: tuple[int, ...]) -> None:
    gemm = small(batch)
    plans, trials = candidates(shape_of(gemm, host()))[:3], Trials(gemm, host(), seconds=60.0)
    assert all(took is not None and took > 0 for took in trials(plans))
    assert set(trials.runs) == set(plans)


def test_when_the_time_is_over_nothing_more_is_run() -> None:
    gemm = small()
    plans, trials = candidates(shape_of(gemm, host())), Trials(gemm, host(), seconds=0.0)
    assert trials(plans) == [None] * len(plans) and len(trials.runs) == 1


def test_a_plan_that_does_not_compile_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = small()
    plans, trials = candidates(shape_of(gemm, host()))[:3], Trials(gemm, host(), seconds=60.0)
    of = trials.run_of

    def failing(plan: Plan) -> Any:
        if plan == plans[1]:
            raise CompileFailed("no")
        return of(plan)

    monkeypatch.setattr(trials, "run_of", failing)
    first, second, third = trials(plans)
    assert first is not None and second is None and third is not None


def test_memory_of_operands_with_any_strides() -> None:
    assert span(Operand(0, (), 5, 1), (), 3, 4) == (14, 0)
    assert span(Operand(0, (), -5, 1), (), 3, 4) == (14, 10)
    assert span(Operand(0, (0,), 0, 2), (7,), 3, 4) == (7, 0)
    gemm = Gemm((), 3, 2, 4, Operand(0, (), -4, 1), Operand(1, (), 1, -4, "half"), "float")
    assert bytes_of(gemm) == 4 * 12 + 2 * 8 + 4 * 6
    plan = choose(shape_of(gemm, host()))
    assert Trials(gemm, host()).run_of(plan)(1) >= 0


def test_a_plan_in_words() -> None:
    words = str(changed(rows=8, vectors=2, down=4, across=2, depth=128, pack_a=False, pack_b=True, own_b=False))
    start = "tiles of 8 x 32 in 8 pieces (4 down, 2 across, 1 deep), 128 steps at once, 4 written out"
    assert words == f"{start}, left as it is, right packed before"
