"""Flash attention as native code: equal to unfused attention in float64, for every layout and vector width."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.codegen.attention import CASES, DTYPES, EDGE, Case, Guarded, arrays_of, expected
from tapejit.codegen.llvm.attention.backward import emit_backward
from tapejit.codegen.llvm.attention.blocks import NativeAttention, TensorLayout
from tapejit.codegen.llvm.attention.forward import emit_forward
from tapejit.codegen.llvm.ir.builder import Module
from tapejit.codegen.llvm.ir.kernel import NativeKernel
from tapejit.codegen.llvm.ir.target import host, target_for
from tapejit.codegen.llvm.runtime.jit import Library, compile_text, link
from tapejit.eager.ops.neural.attention import run_attention, run_attention_backward

FILLED = 255  # bytes of NaN: memory of a kernel's own that nobody has written must not be looked at
ROUNDED = {"half": 2.0**-11, "bfloat": 2.0**-8}  # by how much rounding to a half changes a number

# ---- running a kernel


def run(library: Library, kernel: NativeKernel, arrays: Sequence[np.ndarray], threads: int) -> None:
    """All phases, each with its pieces in as many shares as there are threads, the last share first."""
    shared, scratch = room(kernel.shared), room(kernel.scratch)
    for phase in kernel.phases:
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(arrays) + 2), *[ctypes.c_int64] * 2)(library[phase.function])
        bounds = [phase.pieces * i // threads for i in range(threads + 1)]
        for begin, end in reversed(list(itertools.pairwise(bounds))):
            call(*[x.ctypes.data for x in arrays], aligned(shared), aligned(scratch), begin, end)
    for memory, size in ((shared, kernel.shared), (scratch, kernel.scratch)):
        start = aligned(memory) - memory.ctypes.data
        assert (memory[:start] == FILLED).all() and (memory[start + size :] == FILLED).all(), "written outside of its memory"


def room(size: int) -> np.ndarray:
    return np.full(size + 128, FILLED, np.uint8)


def aligned(memory: np.ndarray) -> int:
    return -(-memory.ctypes.data // 64) * 64


# ---- problems


class Problem:
    """The arrays of a case in guarded memory, and what describes them to the emitters."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray]) -> None:
        dtype, rows = arrays["query"].dtype, (*case.batch, case.queries)
        self.places = {name: Guarded(x, case.order, case.gap) for name, x in arrays.items() if name != "mask"}
        self.places["out"] = Guarded(np.zeros((*rows, case.value_width), dtype), case.order, case.gap)
        self.places["log_total"] = Guarded(np.zeros((*rows, 1), np.float32 if dtype.itemsize == 2 else dtype))
        for part, need in zip(("query", "key", "value"), case.needs, strict=True):
            if need:
                self.places[f"of_{part}"] = Guarded(np.zeros_like(arrays[part]), case.order, case.gap)
        mask = arrays.get("mask")
        if mask is not None:
            self.places["mask"] = Guarded(mask)
            self.places["mask"].array = np.broadcast_to(self.places["mask"].array, (*rows, case.keys))
        layouts: dict[str, Any] = {name: held.layout(i) for i, (name, held) in enumerate(self.places.items())}
        kinds = {"bool": "i8", **{np.dtype(dtype).name: scalar for scalar, dtype in DTYPES.items()}}
        sizes = (case.batch, case.queries, case.keys, case.width, case.value_width, case.scale)
        kind = "i8" if mask is None else kinds[mask.dtype.name]
        self.spec = NativeAttention(
            *sizes, causal=case.causal, group=case.group, scalar=case.scalar, mask_scalar=kind, **layouts
        )

    def run(self, library: Library, kernel: NativeKernel, written: Sequence[str], threads: int) -> None:
        """Runs a kernel and checks the canaries."""
        for held in self.places.values():
            held.before = held.memory.copy()
        run(library, kernel, [held.memory[EDGE:] for held in self.places.values()], threads)
        for name, held in self.places.items():
            held.check(name in written)


def native(case: Case, arrays: dict[str, np.ndarray], bits: int = 512, threads: int = 1, opt: int = 0) -> dict[str, np.ndarray]:
    """Return what both kernels give. They are compiled the quick way, if `opt` is not 3 as in programs."""
    problem, target = Problem(case, arrays), dataclasses.replace(host(), bits=bits)
    module, count = Module(target.features), len(problem.places)
    forward = emit_forward(module, "forward", problem.spec, count, target)
    backward = emit_backward(module, "backward", problem.spec, count, target)
    assert forward is not None and backward is not None
    names = [phase.function for kernel in (forward, backward) for phase in kernel.phases]
    library = link([compile_text(str(module), opt=opt)], {}, names)
    grads = [name for name in problem.places if name.startswith("of_")]
    problem.run(library, forward, ["out", "log_total"], threads)
    problem.run(library, backward, grads, threads)
    return {name: problem.places[name].array for name in ("out", "log_total", *grads)}


def compare(case: Case, found: dict[str, np.ndarray], right: dict[str, np.ndarray], tolerance: float = 0.0) -> None:
    tolerance = tolerance or (1e-12 if case.scalar == "double" else 3e-5)
    for name, x in found.items():
        rounding = 0.0 if name == "log_total" else ROUNDED.get(case.scalar, 0.0)  # once, at the end
        np.testing.assert_allclose(x.astype(np.float64), right[name], rtol=tolerance + rounding, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_equals_float64(name: str) -> None:
    case = CASES[name]
    arrays = arrays_of(case)
    compare(case, native(case, arrays, opt=3), expected(case, arrays))


@pytest.mark.parametrize("bits", [32, 64, 128, 256])
@pytest.mark.parametrize("name", ["odd", "bool mask, causal", "groups", "columns apart", "bfloat16", "float16, float mask"])
def test_any_width_of_vectors(name: str, bits: int) -> None:
    case = CASES[name]
    arrays = arrays_of(case)
    compare(case, native(case, arrays, bits), expected(case, arrays))


@pytest.mark.parametrize("seed", range(16))
def test_random_problems(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = lambda *choices: int(rng.choice(choices))
    case = Case(
        batch=(size(1, 3), 2 * size(1, 4)),
        queries=size(1, 7, 8, 15, 16, 31, 33, 64, 70),
        keys=size(1, 7, 15, 16, 17, 32, 63, 65, 300),
        width=size(1, 4, 15, 16, 17, 32, 64),
        value_width=size(1, 4, 15, 16, 17, 32, 64),
        causal=bool(rng.integers(2)),
        mask=str(rng.choice(["", "bool", "rows", "float"])),
        group=size(1, 2),
        scalar=str(rng.choice(list(DTYPES))),
        order=tuple(int(i) for i in rng.permutation(4)),
        gap=size(1, 1, 2),
    )
    arrays = arrays_of(case)
    compare(case, native(case, arrays, size(128, 256, 512)), expected(case, arrays))


# ---- what else holds


@pytest.mark.parametrize("name", ["groups", "many heads", "causal, odd", "bfloat16, groups", "bfloat16, many keys"])
def test_the_number_of_threads_changes_no_bit(name: str) -> None:
    arrays = arrays_of(CASES[name])
    one, three = native(CASES[name], arrays), native(CASES[name], arrays, threads=3)
    for key, x in one.items():
        np.testing.assert_array_equal(x, three[key], err_msg=key)


def test_equals_the_ops() -> None:
    case = dataclasses.replace(CASES["bool mask, causal"], group=2, scalar="double")
    arrays = arrays_of(case)
    inputs = [arrays[name] for name in ("query", "key", "value", "mask")]
    attributes: dict[str, Any] = {"scale": case.scale, "causal": True}
    out, log_total = run_attention(np, *inputs, **attributes)
    grads = run_attention_backward(np, arrays["pull"], *inputs, log_total, **attributes, needs=case.needs)
    right = dict(zip(("out", "log_total", "of_query", "of_key", "of_value"), (out, log_total, *grads), strict=True))
    assert np.isinf(log_total).any()
    compare(case, native(case, arrays), right)


@pytest.mark.parametrize("scale", [20.0, 1e-3])
def test_large_and_small_scores(scale: float) -> None:
    case = dataclasses.replace(CASES["many keys"], scale=scale, scalar="double")
    arrays = arrays_of(case)
    compare(case, native(case, arrays), expected(case, arrays), 1e-10)  # what is left of slopes that cancel


@pytest.mark.parametrize("mask", ["", "bool"])
def test_nan_stays_in_its_row(mask: str) -> None:
    case = Case((2,), 20, 20, 8, 8, mask=mask)
    arrays = arrays_of(case)
    arrays["query"][0, 5, 3] = np.nan
    found = native(case, arrays)
    for name in ("out", "log_total", "of_query"):
        lost = np.isnan(found[name])
        assert lost[0, 5].all() and not np.delete(lost[0], 5, axis=0).any() and not lost[1].any(), name


@pytest.mark.parametrize("part", ["key", "value"])
def test_tiles_do_not_look_at_later_keys(part: str) -> None:
    case = Case((2,), 40, 40, 8, 8, causal=True)
    arrays = arrays_of(case)
    arrays[part][0, 21] = np.nan
    found = native(case, arrays)
    for name in ("out", "of_query"):
        assert np.isfinite(found[name][0, :16]).all() and np.isnan(found[name][0, 21:]).all(), name


def text_of(case: Case) -> str:
    problem, module = Problem(case, arrays_of(case)), Module(host().features)
    emit_forward(module, "forward", problem.spec, len(problem.places), host())
    emit_backward(module, "backward", problem.spec, len(problem.places), host())
    return str(module)


@pytest.mark.parametrize(
    ("case", "narrow"),
    [
        (Case((4, 4), 64, 64, 32, 32, causal=True), True),
        (Case((4, 4), 64, 64, 32, 32), False),  # all keys of all panels are seen
        (Case((4, 4), 64, 40, 32, 32), True),
    ],
)
def test_scores_that_no_row_of_a_tile_sees_are_not_computed(case: Case, narrow: bool) -> None:
    lanes = host().lanes("float")
    case = dataclasses.replace(case, queries=4 * lanes, keys=case.keys * lanes // 16)
    scores = re.findall(rf"define internal void @matmul_float{lanes}_\d+x(\d)_\d+_1_{2 * lanes}_", text_of(case))
    assert {"2"} < set(scores) if narrow else {"2"} == set(scores)


@pytest.mark.parametrize(
    ("case", "asks"),
    [
        (Case((4, 4), 64, 64, 32, 32, order=(0, 2, 1, 3)), True),
        (Case((1, 1), 64, 64, 32, 32), False),  # there is no other head
        (Case((2, 2), 1024, 1024, 64, 64), False),  # the next head does not fit beside this one
        (Case((4, 4), 64, 64, 32, 32, gap=2), False),  # its columns are not next to each other
    ],
)
def test_the_next_head_is_asked_for(case: Case, asks: bool) -> None:
    assert ("call void @llvm.prefetch" in text_of(case)) is asks


def test_memory_grows_with_the_length_only() -> None:
    def size(length: int) -> int:
        case = Case((1, 2), length, length, 64, 64, causal=True)
        layout = TensorLayout(0, (64 * length, 64 * length, 64, 1))
        names = ("query", "key", "value", "log_total", "out", "pull", "of_query", "of_key", "of_value")
        spec = NativeAttention(case.batch, length, length, 64, 64, 0.125, causal=True, **dict.fromkeys(names, layout))
        kernels = [emit(Module(), "x", spec, 1, host()) for emit in (emit_forward, emit_backward)]
        return sum(kernel.scratch + kernel.shared for kernel in kernels if kernel is not None)

    assert 0 < size(8192) <= 2.01 * size(4096)


def test_what_is_not_covered_is_left_to_others() -> None:
    layout = TensorLayout(0, (1, 1, 1))
    spec = NativeAttention((2,), 3, 3, 4, 4, 0.5, layout, layout, layout, layout, layout, layout, layout)
    for other in (dataclasses.replace(spec, scalar="i32"), dataclasses.replace(spec, keys=0)):
        module = Module()
        assert emit_forward(module, "f", other, 1, host()) is None and emit_backward(module, "b", other, 1, host()) is None
        assert not module.functions


@pytest.mark.parametrize(
    ("cpu", "scalar", "pairs"),
    [
        ("cooperlake", "bfloat", True),
        ("x86-64-v4", "bfloat", False),
        ("cooperlake", "half", False),
        ("haswell", "bfloat", False),
    ],
)
def test_only_cpus_that_have_it_multiply_pairs(cpu: str, scalar: str, pairs: bool) -> None:
    case = Case((2,), 20, 20, 8, 8, scalar=scalar)
    spec, target = Problem(case, arrays_of(case)).spec, target_for(cpu)
    for emit in (emit_forward, emit_backward):
        module = Module(target.features)
        assert emit(module, "attend", spec, 9, target) is not None
        assert ("dpbf16ps" in str(module)) == pairs


def test_infinite_bfloats_stay_in_their_rows() -> None:
    """With an odd width, which is filled up to whole pairs."""
    case = Case((2,), 20, 20, 7, 9, scalar="bfloat")
    arrays = arrays_of(case)
    arrays["query"][0, 5, 6] = np.inf
    found = native(case, arrays)
    for name in ("out", "of_query"):
        lost = ~np.isfinite(found[name].astype(np.float32))
        assert lost[0, 5].any() and not np.delete(lost[0], 5, axis=0).any() and not lost[1].any(), name
