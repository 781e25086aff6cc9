"""Flash attention as Triton kernels, run by Triton's interpreter: equal to float64 attention with whole matrices."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support import shadow
from support.codegen.attention import CASES, EDGE, Case, Guarded, arrays_of, expected
from support.codegen.programs import run
from tapejit.codegen.nests.kernels import Launch
from tapejit.codegen.schedule.step import Step
from tapejit.codegen.triton.printing.kernel_text import Printed
from tapejit.eager.arrays import dtypes
from tapejit.eager.ops.neural.attention import ATTENTION, ATTENTION_BACKWARD
from tapejit.tracer.execute import reference_program as program
from tapejit.tracer.graph.functionalize import contiguous
from tapejit.tracer.graph.ir import Form, Node
from tapejit.tracer.trace.trace import Constant

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tapejit[gpu]', on Linux")

from support.codegen import interpreted
from tapejit.codegen.prepare.decompose import CPU
from tapejit.codegen.triton.attention import problem as attention_parts
from tapejit.codegen.triton.attention.forward import print_attention
from tapejit.codegen.triton.attention.problem import AttentionConfig
from tapejit.codegen.triton.device import compile as aot
from tapejit.codegen.triton.device.interpreter import run_kernels as launch
from tapejit.codegen.triton.device.specs import shared_memory

NOT_GIVEN = ["odd", "bool mask, causal", "float mask", "groups", "causal, more keys", "no key", "no query"]
HALF = {"half": "float16", "bfloat": "bfloat16"}
TOLERANCE = {"float": 3e-5, "double": 1e-11, "half": 4e-3, "bfloat": 3e-2}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about infinities
        yield


class Problem:
    """The arrays of a case in guarded memory, each in a buffer of its own, and launches of them."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray]) -> None:
        self.case = case
        dtype, rows = arrays["query"].dtype, (*case.batch, case.queries)
        wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
        self.places = {name: Guarded(x, case.order, case.gap) for name, x in arrays.items() if name != "mask"}
        self.places["out"] = Guarded(np.zeros((*rows, case.value_width), dtype), case.order, case.gap)
        self.places["log_total"] = Guarded(np.zeros((*rows, 1), wide))
        for part, need in zip(("query", "key", "value"), case.needs, strict=True):
            if need:
                self.places[f"of_{part}"] = Guarded(np.zeros_like(arrays[part]), case.order, case.gap)
        if "mask" in arrays:
            self.places["mask"] = Guarded(arrays["mask"])
        self.forms: dict[str, Form] = {x: contiguous(p.array.shape, p.array.dtype, CPU) for x, p in self.places.items()}

    def strides(self, name: str) -> tuple[int, ...]:
        array = self.places[name].array
        return tuple(s // array.itemsize for s in array.strides)

    def launch(self, backward: bool, given: bool) -> Launch:
        """Results are views with an offset, too, as nothing here puts them at the beginning of their memory."""
        case = self.case
        mask: Any = "mask" if "mask" in self.places else Constant(0)
        inputs: tuple[Any, ...] = ("query", "key", "value", mask)
        attrs: dict[str, Any] = {"scale": case.scale, "causal": case.causal}
        results = ("out", "log_total")
        if backward:
            inputs = ("pull", *inputs, "log_total", *["out"] * given)
            attrs["needs"] = case.needs
            results = tuple(x for x in ("of_query", "of_key", "of_value") if x in self.places)
        node = Node(ATTENTION_BACKWARD if backward else ATTENTION, inputs, attrs, results, True, "model.py:7")
        views = {x: (x, EDGE, self.strides(x)) for x in (*inputs, *results) if isinstance(x, str)}
        return Launch(Step(0, None, node), "attention", node, None, list(views), [], views)

    def run(self, printed: Printed | None, written: tuple[str, ...]) -> None:
        assert printed is not None
        for held in self.places.values():
            held.before = held.memory.copy()
        launch(printed, {name: held.memory for name, held in self.places.items()}, {})
        for name, held in self.places.items():
            held.check(name in written)


def found_by(
    case: Case, arrays: dict[str, np.ndarray], config: AttentionConfig | None = None, given: bool = True
) -> dict[str, np.ndarray]:
    """Return what both kernels give, with the forward's result given to the backward kernel or not."""
    problem = Problem(case, arrays)
    for backward in (False, True):
        which = problem.launch(backward, given)
        assert which.node is not None
        problem.run(print_attention(which, problem.forms, problem.strides, config=config), which.node.results)
    grads = [name for name in problem.places if name.startswith("of_")]
    return {name: problem.places[name].array for name in ("out", "log_total", *grads)}


def compare(case: Case, found: dict[str, np.ndarray], right: dict[str, np.ndarray], scalar: str = "") -> None:
    tolerance = TOLERANCE[scalar or case.scalar]
    for name, x in found.items():
        np.testing.assert_allclose(x.astype(np.float64), right[name], rtol=tolerance, atol=tolerance, err_msg=name)


SLOW = ("many keys, causal", "many heads", "many heads, whole tiles", "many heads, fewer queries", "many groups, whole tiles")
SHAPES = {name: case for name, case in CASES.items() if name not in SLOW} | {
    "80 wide": Case((2,), 33, 47, 80, 80, causal=True),
    "64 wide": Case((1, 2), 65, 65, 64, 64, causal=True, order=(0, 2, 1, 3)),
    "several blocks": Case((1,), 150, 150, 8, 8, causal=True),
}


@pytest.mark.parametrize("name", SHAPES)
def test_equals_float64(name: str) -> None:
    case = SHAPES[name]
    arrays = arrays_of(case)
    compare(case, found_by(case, arrays), expected(case, arrays))


@pytest.mark.parametrize("name", NOT_GIVEN)
def test_the_result_need_not_be_given(name: str) -> None:
    """A kernel before makes the rows' mean slopes, if the backward pass is compiled for itself."""
    case = CASES[name]
    arrays = arrays_of(case)
    compare(case, found_by(case, arrays, given=False), expected(case, arrays))


@pytest.mark.parametrize("config", [AttentionConfig(16, 32, 4, 1), AttentionConfig(64, 16, 4, 1)], ids=str)
@pytest.mark.parametrize("name", ["causal, odd", "causal, more queries", "causal, more keys", "bool mask"])
def test_any_blocks(name: str, config: AttentionConfig) -> None:
    case = CASES[name]
    arrays = arrays_of(case)
    compare(case, found_by(case, arrays, config), expected(case, arrays))


@pytest.mark.parametrize("scalar", HALF)
@pytest.mark.parametrize("name", ["odd", "bool mask, causal", "float mask", "groups", "a vector and one"])
def test_halves(name: str, scalar: str) -> None:
    """Sums are in float32; what is multiplied is rounded."""
    case = CASES[name]
    arrays = cast(arrays_of(case), dtypes.by_name(HALF[scalar]).numpy)
    compare(case, found_by(case, arrays), expected(case, cast(arrays, np.float64)), scalar)


def cast(arrays: dict[str, np.ndarray], dtype: Any) -> dict[str, np.ndarray]:
    return {name: x if name == "mask" else x.astype(dtype) for name, x in arrays.items()}


# ---- compiled for devices that are not here

UNITS = r"mma\.sync|wgmma\.mma_async|tcgen05\.mma|v_mfma"  # what multiplies matrices


def compiled(width: int, scalar: str, target: str) -> Iterator[tuple[Any, aot.Resources]]:
    case = Case((2, 4), 256, 256, width, width, order=(0, 2, 1, 3))
    problem = Problem(case, cast(arrays_of(case), dtypes.by_name(scalar).numpy))
    for backward in (False, *[True] * (target != "sm_100")):  # which takes long there
        found = print_attention(problem.launch(backward, True), problem.forms, problem.strides, target)
        assert found is not None and len(found.kernels) == 1
        made = aot.compile_kernel(found, found.kernels[0], target)
        yield made, aot.resources(made, target)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_halves_are_multiplied_by_matrix_units(target: str) -> None:
    for made, used in compiled(64, "bfloat16", target):
        assert used.spills == 0 and used.shared <= (65536 if target == "gfx942" else 163840), used
        assert re.search(UNITS, made.asm["amdgcn" if target == "gfx942" else "ptx"])
        assert 128 in used.loads and set(used.loads) <= {128, 32}, used  # 32: log-sum-exp
        assert 128 in used.stores or target == "gfx942", used


def test_single_precision_compiles() -> None:
    for _, used in compiled(32, "float32", "sm_90"):
        assert used.spills == 0 and 128 in used.loads and 128 in used.stores, used


def test_devices_for_desks_have_less_shared_memory() -> None:
    for _, used in compiled(256, "bfloat16", "sm_120"):
        assert used.spills == 0 and used.shared <= shared_memory("sm_120"), used


# ---- in programs


@pytest.fixture
def seen(monkeypatch: Any) -> Iterator[shadow.Seen]:
    """Everything that is replayed is also run by kernels; none of attention is called as it is."""
    found = shadow.Seen()
    make = interpreted.shadowed(found, shadow.both, program.make_program)
    monkeypatch.setattr(program, "make_program", make)
    yield found
    assert found.runs
    launches = [(x, k) for p in found.programs for x, k in zip(p.launches, p.kernels, strict=True)]
    kernels = [k for x, k in launches if x.kind == "attention"]
    assert kernels and all(k is not None and len(k.kernels) == 1 for k in kernels)


@pytest.mark.parametrize("dtype", [tj.float32, tj.bfloat16])
def test_heads_of_one_matmul(seen: Any, dtype: Any) -> None:
    """Queries, keys and values are views of one buffer; the gradient of a sum is one number for all."""
    x = tj.from_numpy(np.random.default_rng(0).standard_normal((2, 20, 8 * 16)).astype(np.float32)).to(dtype).requires_grad_()

    def function() -> Any:
        q, k, v = x[..., :64].reshape(2, 20, 4, 16), x[..., 64:96].reshape(2, 20, 2, 16), x[..., 96:].reshape(2, 20, 2, 16)
        heads = [t.transpose(1, 2) for t in (q, k, v)]
        found = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        return [found, tj.autograd.grad(found.sum(), [x])]

    seen.tolerance = 5
    run(function)


def test_indices_of_64_bits(monkeypatch: Any) -> None:
    monkeypatch.setattr(attention_parts, "LARGE", 1)
    case = CASES["groups"]
    arrays = arrays_of(case)
    compare(case, found_by(case, arrays), expected(case, arrays))
    problem = Problem(case, cast(arrays, np.float16))
    found = print_attention(problem.launch(True, True), problem.forms, problem.strides, "sm_80")
    assert found is not None and "tl.program_id(0).to(tl.int64)" in found.source
    assert aot.resources(aot.compile_kernel(found, found.kernels[0], "sm_80"), "sm_80").spills == 0


def test_matmuls_may_be_rounded_to_tf32() -> None:
    """The interpreter does not round; that matrix units are used shows only in what is compiled."""
    case = Case((1, 2), 128, 128, 32, 32)
    problem = Problem(case, arrays_of(case))
    found = print_attention(problem.launch(False, True), problem.forms, problem.strides, "sm_80", "tf32")
    assert found is not None and 'input_precision="tf32"' in found.source
    made = aot.compile_kernel(found, found.kernels[0], "sm_80")
    assert re.search(UNITS, made.asm["ptx"]) and aot.resources(made, "sm_80").spills == 0
