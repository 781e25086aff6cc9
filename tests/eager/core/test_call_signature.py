"""The outside of public functions: other names of arguments, `out=`, and what is no tensor."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.harness import ALL, Case
from tapejit.eager.core.call_signature import expects_tensor
from tapejit.eager.core.op import OPS
from tapejit.eager.core.tape.gradient_rules import parameters


def draw(*shape: int) -> tj.Tensor:
    return tj.from_numpy(np.random.default_rng(0).uniform(-1, 1, shape))


x = draw(2, 3)

# ---- names

TWINS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "sum": (lambda: x.sum(axis=1), lambda: x.sum(dim=1)),
    "mean": (lambda: x.mean(axis=0, keepdims=True), lambda: x.mean(0, True)),
    "tj.sum": (lambda: tj.sum(x, axis=(0, 1)), lambda: tj.sum(x, (0, 1))),
    "max": (lambda: x.max(axis=1, keepdims=True).indices, lambda: x.max(1, keepdim=True).indices),
    "softmax": (lambda: x.softmax(axis=0), lambda: x.softmax(0)),
    "cat": (lambda: tj.cat([x, x], axis=1), lambda: tj.cat([x, x], 1)),
    "concatenate": (lambda: tj.concatenate([x, x], axis=1), lambda: tj.cat([x, x], 1)),
    "squeeze": (lambda: x[:, :1].squeeze(axis=1), lambda: x[:, 0]),
    "linalg.norm": (lambda: tj.linalg.norm(x, axis=1, keepdims=True), lambda: tj.linalg.norm(x, dim=1, keepdim=True)),
    "gather": (
        lambda: x.gather(axis=1, index=tj.zeros(2, 1, dtype=tj.int64)),
        lambda: x.gather(1, tj.zeros(2, 1, dtype=tj.int64)),
    ),
    "split": (lambda: x.split(split_size=2, dim=1)[1], lambda: x[:, 2:]),
    "hsplit": (lambda: x.hsplit(sections=3)[1], lambda: x[:, 1:2]),
    "view": (lambda: x.view(size=(3, 2)), lambda: x.view(3, 2)),
    "view as a dtype": (lambda: x.view(dtype=tj.int64), lambda: x.view(tj.int64)),
    "reshape": (lambda: tj.reshape(x, shape=(6,)), lambda: x.reshape(6)),
    "permute": (lambda: tj.permute(x, dims=(1, 0)), lambda: x.T),
    "expand": (lambda: x[:1].expand(size=(2, 3)), lambda: x[:1].expand(2, 3)),
    "repeat": (lambda: x.repeat(repeats=(2, 1)), lambda: x.repeat(2, 1)),
    "tile": (lambda: tj.tile(x, dims=(2,)), lambda: x.tile(2)),
    "flip": (lambda: tj.flip(x, dims=[0, 1]), lambda: x.flip(0, 1)),
    "nan_to_num": (lambda: x.nan_to_num(nan=None), lambda: x),
}


@pytest.mark.parametrize("name", TWINS)
def test_other_names_of_arguments(name: str) -> None:
    found, expected = (call() for call in TWINS[name])
    assert found.dtype is expected.dtype and found.tolist() == expected.tolist()


def test_one_argument_by_two_names() -> None:
    with pytest.raises(TypeError, match="two of its names"):
        x.sum(dim=1, axis=1)
    with pytest.raises(TypeError, match="multiple values"):
        x.sum(1, axis=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'axes'"):
        x.sum(axes=1)


def test_errors_of_a_renamed_call_are_those_of_the_call() -> None:
    with pytest.raises(IndexError, match="but got 5") as caught:
        x.sum(axis=5)
    assert caught.value.__context__ is None


# ---- out=

OUT: dict[str, Callable[..., Any]] = {
    "cumsum": lambda **out: tj.cumsum(x, 0, **out),
    "amax": lambda **out: tj.amax(x, 1, **out),
    "var": lambda **out: tj.var(x, 1, **out),
    "addmm": lambda **out: tj.addmm(x, draw(2, 2), x, **out),
    "linalg.inv": lambda **out: tj.linalg.inv(draw(2, 2), **out),
    "where": lambda **out: tj.where(x > 0, x, x, **out),
    "exp": lambda **out: tj.exp(x, **out),  # has an `out` of its own
}


@pytest.mark.parametrize("name", OUT)
def test_out_is_filled(name: str) -> None:
    expected = OUT[name]()
    target = tj.zeros(expected.shape, dtype=tj.float64)
    empty = tj.zeros(0, dtype=tj.float64)
    assert OUT[name](out=target) is target and target.tolist() == expected.tolist()
    assert OUT[name](out=empty) is empty and empty.tolist() == expected.tolist()
    assert OUT[name](out=None).tolist() == expected.tolist()


def test_out_of_several_results() -> None:
    values, indices = tj.zeros(2, 3, dtype=tj.float64), tj.zeros(2, 3, dtype=tj.int64)
    found = tj.sort(x, 1, out=(values, indices))
    assert found.values is values and found.indices is indices
    assert values.tolist() == x.sort(1).values.tolist()
    with pytest.raises(TypeError, match="tuple of 2 Tensors"):
        tj.sort(x, 1, out=values)
    before = values.tolist()
    with pytest.raises(RuntimeError, match="Double can't be cast to the desired output type Long"):
        tj.sort(-x, 1, out=(indices, indices))
    with pytest.raises(RuntimeError, match="Long can't be cast to the desired output type Bool"):
        tj.sort(-x, 1, out=(values, indices > 0))
    assert values.tolist() == before  # all or nothing


def test_out_has_no_gradient_and_a_fitting_type() -> None:
    with pytest.raises(RuntimeError, match=r"cumsum\(\): functions with out="):
        tj.cumsum(draw(2, 3).requires_grad_(), 0, out=tj.zeros(2, 3, dtype=tj.float64))
    with pytest.raises(RuntimeError, match="Double can't be cast to the desired output type Long"):
        tj.cumsum(x, 0, out=tj.zeros(2, 3, dtype=tj.int64))
    with pytest.raises(TypeError, match="'out' must be Tensor, not list"):
        tj.cumsum(x, 0, out=[1])
    with pytest.raises(TypeError, match="unexpected keyword argument 'out'"):
        F.mse_loss(x, x, out=x)


# ---- notes


def test_a_note_shows_the_call() -> None:
    with pytest.raises(IndexError) as caught:
        x.var(dim=7)  # whose error comes from deeper down
    assert caught.value.__notes__ == ["in the call var(float64[2, 3], dim=7)"]
    with pytest.raises(RuntimeError) as joined:
        tj.cat([x, x[:, :2]])
    assert joined.value.__notes__ == ["in the call cat([float64[2, 3], float64[2, 2]])"]
    with pytest.raises(TypeError) as wrong:
        tj.sum([1.0] * 100)
    assert wrong.value.__notes__ == ["in the call sum(a list of 100)"]


# ---- no tensors


def due(case: Case) -> list[int]:
    """Return the arrays of a sample that stand where the signature says Tensor."""
    function = case.op.function
    positional = parameters(function)[0]
    found, number = [], 0
    for i, a in enumerate(case.sample.args):
        if isinstance(a, (list, tuple)):
            return found
        if hasattr(a, "kind"):
            if i < len(positional) and expects_tensor(function, positional[i]):
                found.append(number)
            number += 1
    return found


@pytest.mark.parametrize("key", sorted({c.key for c in ALL if due(c)}))
def test_what_is_no_tensor_is_a_type_error(key: str) -> None:
    case = next(c for c in ALL if c.key == key and due(c))
    for place in due(case):
        for wrong in ("words", [1.0], object()):
            values: list[Any] = [tj.from_numpy(a) for a in case.arrays()]
            values[place] = wrong
            with pytest.raises(TypeError, match=type(wrong).__name__):
                case.call(values, OPS[key].public_function)


def test_lists_of_what_is_no_tensor() -> None:
    for call in (tj.cat, tj.stack, tj.hstack, tj.vstack, tj.dstack, tj.column_stack, tj.atleast_1d, tj.meshgrid):
        for wrong in ([x, "a"], [x, None], 3):
            with pytest.raises(TypeError, match="Tensor"):
                call(wrong)
    with pytest.raises(TypeError, match="Tensor"):
        tj.block_diag(x, [1])


# ---- what else stays as it was


def test_faces_are_pickled_by_name() -> None:
    for function in (tj.sum, tj.exp, F.relu, F.softmax, F.layer_norm, tj.linalg.norm, tj.matmul):
        assert pickle.loads(pickle.dumps(function)) is function
        assert function.__doc__


def test_warnings_point_at_the_user_s_line() -> None:
    for call in (lambda: tj.ones(1).var(), lambda: tj.std(tj.ones(1)), lambda: F.softmax(x), lambda: F.mse_loss(x, x[:1])):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert [w.filename for w in caught] == [__file__]


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"])
def test_comparisons_in_place(name: str) -> None:
    y = tj.tensor([0.0, 1.0, 2.0])
    expected = getattr(y, name)(tj.tensor([1.0, 1.0, 0.0]))
    assert getattr(y, name + "_")(tj.tensor([1.0, 1.0, 0.0])) is y
    assert y.dtype is tj.float32 and y.tolist() == expected.float().tolist()
