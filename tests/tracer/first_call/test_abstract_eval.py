"""What is foreseen of an op's results, against what it makes: each op that the samples of the table lead to, forward and
backward, on memory in order, out of order and with gaps, and in half precision; and what an op refuses is not foreseen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.harness import HALF, LAYOUT, Case, cases, flat, gradients, scatter, tensors
from tapejit.eager.core.dispatch import execute
from tapejit.eager.core.generator import default_generator
from tapejit.eager.core.op import Op
from tapejit.eager.core.tape.node import local
from tapejit.eager.core.tensor import Tensor
from tapejit.tracer.first_call.abstract_eval import AbstractEvalError, abstract_eval, in_order, stand_in
from tapejit.tracer.first_call.abstract_recorder import abstract_results
from tapejit.tracer.trace.call_frame import is_decomposed, run_decomposed


class Watch:
    """A handler of `apply` that runs each op, and compares what it makes with what was foreseen."""

    def __enter__(self) -> Watch:
        self.before, local.state.handler = local.state.handler, self
        self.unforeseen: set[str] = set()
        return self

    def __exit__(self, *_: Any) -> None:
        local.state.handler = self.before

    def __call__(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> Any:
        state = local.state
        if is_decomposed(op, inputs, state):
            return run_decomposed(op, inputs, attrs, out)
        found = foresight(op, inputs, attrs)
        if found is None:
            self.unforeseen.add(op.name)
        state.handler = None
        try:
            result = execute(op, inputs, attrs, out, state)
        finally:
            state.handler = self
        if found is not None and out is None:
            made, several = found
            assert several is (type(result) is tuple), op
            real = [t.tj_array for t in (result if several else (result,))]
            assert [form(a) for a in made] == [form(a) for a in real], op
        return result


def foresight(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    drawn = default_generator.get_state().tolist()
    try:
        return None if op.mutates else abstract_results(op, [x.tj_array if isinstance(x, Tensor) else x for x in inputs], attrs)
    except (Exception, AbstractEvalError):  # as `AbstractRecorder.perform` has it
        return None
    finally:
        assert default_generator.get_state().tolist() == drawn


def form(array: Any) -> Any:
    """Strides of dims that have no second element are nobody's business; NumPy chooses them by how it got there."""
    strides = [s if n > 1 and array.size else 0 for n, s in zip(array.shape, array.strides, strict=True)]
    return array.shape, array.dtype, strides


@pytest.mark.parametrize("case", cases())
def test_forms(case: Case) -> None:
    with Watch() as watch:
        case.call(tensors(case, case.arrays()))
        if case.key not in LAYOUT:
            case.call(tensors(case, [scatter(a) for a in case.arrays()]))
        if case.differentiable:
            gradients(case, tensors(case, case.arrays(), grad=True))
    assert not watch.unforeseen - UNFORESEEN.keys()


# Ops that have to run before their results are known; in all others a recorder need not.
VALUES, RARE = "what it makes depends on values", "it has no rule, and no meaning in other ops"
UNFORESEEN = {
    **dict.fromkeys(("nonzero", "repeats", "unique", "unique_consecutive", "bincount", "histc", "bags", "bag_winners"), VALUES),
    **dict.fromkeys(("searchsorted", "scatter_reduce", "triangle_indices", "topk", "recurrence", "labels"), RARE),
    **dict.fromkeys(("median", "nanmedian", "frequency", "embedding_renormalise", "multinomial", "bernoulli"), RARE),
    **dict.fromkeys(("ctc", "ctc_backward", "euclidean"), "its meaning looks at values, or is of another dtype"),
}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("case", cases(lambda c: any(s.kind == "float" for s in c.specs)))
def test_forms_of_half_precision(case: Case, dtype: str) -> None:
    with Watch():
        try:
            case.call(tensors(case, case.arrays(), HALF[dtype]))
        except RuntimeError as error:
            if "not implemented for" not in str(error) and "Low precision" not in str(error):
                raise


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32])
@pytest.mark.parametrize("case", cases(lambda c: any(s.kind == "float" for s in c.specs)))
def test_forms_of_whole_numbers(case: Case, dtype: Any) -> None:
    """Where an op takes them in the place of floats: with a number among them, its parts may be of another dtype than it is."""
    whole = [np.abs(a * 3).astype(dtype) if a.dtype.kind == "f" else a for a in case.arrays()]
    try:
        with np.errstate(invalid="ignore"):  # -inf is no whole number
            case.call(tensors(case, whole))
    except (RuntimeError, TypeError, ValueError, AssertionError, np.linalg.LinAlgError):
        return  # refused
    with Watch(), np.errstate(invalid="ignore"):
        case.call(tensors(case, whole))


# ---- errors


def others(case: Case) -> list[list[np.ndarray]]:
    """The arrays of a sample, with one of them a little different: in a size, in the number of dims, in the dtype."""
    arrays, found = case.arrays(), []
    for i, a in enumerate(arrays):
        strange = [a.astype(np.int64 if a.dtype.kind == "f" else np.float64), a[None]]
        if a.ndim and a.size:
            strange += [np.resize(a, (*a.shape[:-1], a.shape[-1] + 1)), np.resize(a, (a.shape[0] + 1, *a.shape[1:])), a[0]]
        found += [[*arrays[:i], np.array(b, order="C"), *arrays[i + 1 :]] for b in strange]
    return found


@pytest.mark.parametrize("case", cases(lambda c: bool(c.specs)))
def test_errors_come_where_eager_execution_has_them(case: Case) -> None:
    def call(inputs: list[Any]) -> Any:
        """What a call makes, and what it raises, seen from within."""
        try:
            tj.manual_seed(0)
            return "made", [t.detach().clone() for t in flat(case.call(inputs)) if isinstance(t, tj.Tensor)]
        except Exception as error:
            return "raised", [type(error), str(error)]

    for arrays in others(case):
        made = [tj.tensor(a) for a in arrays]
        eagerly = call(made)
        compiled = tj.compile(call, backend="plain")(made)
        assert compiled[0] == eagerly[0]
        if eagerly[0] == "raised":
            assert compiled[1] == eagerly[1]
        else:
            assert [t.numpy().tobytes() for t in compiled[1]] == [t.numpy().tobytes() for t in eagerly[1]]


# ---- stand-ins


def test_stand_ins() -> None:
    big = stand_in(((1 << 14, 1 << 13), np.dtype(np.float64), (1 << 16, 8)))
    assert big.nbytes == 1 << 30
    assert not big[::4096, ::4096].any()  # there is memory behind it, of zeros
    turned = stand_in(((3, 4), np.dtype(np.float32), (4, 12)))
    assert turned.strides == (4, 12)
    assert turned[1:].base is turned
    assert stand_in(((0, 3), np.dtype(np.float32), in_order((0, 3), np.dtype(np.float32), range(2)))).size == 0


def test_other_numbers_are_foreseen_apart() -> None:
    x = np.ones(3, np.uint8)
    add = tj.eager.core.op.PRIMITIVES["add"]
    assert abstract_eval(add, [x, 1], {})[0][0][1] == np.uint8
    with pytest.raises(AbstractEvalError):
        abstract_eval(add, [x, 300], {})
    assert abstract_eval(add, [x, 1.0], {})[0][0][1] != np.uint8
    assert abstract_eval(add, [x, True], {})[0][0][1] == np.uint8


@pytest.mark.parametrize(
    ("shape", "order"),
    [((2, 1, 3), (2, 1, 0)), ((1, 3, 2), (2, 1, 0)), ((2, 1, 2, 2), (3, 2, 0, 1)), ((1, 2, 2, 1), (3, 2, 1, 0))],
)
def test_strides_of_dims_of_size_one(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    """In results of permuted tensors, where they mean nothing, but are seen."""
    memory = tj.arange(float(np.prod(shape))).view([shape[dim] for dim in order])
    x = memory.permute([order.index(dim) for dim in range(len(shape))])
    for other in (x, tj.ones(shape), x.contiguous()):
        for backend in ("plain", "llvm"):
            f = tj.compile(lambda x, y: x * 2 + y, backend=backend)
            assert f(x, other).stride() == (x * 2 + other).stride()
