"""Every op of the table, on every one of its samples: values, dtypes, gradients to second order, and manners."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from support.harness import (
    ALL,
    HALF,
    LAYOUT,
    Case,
    assert_same,
    assert_slopes,
    cases,
    execute_now,
    flat,
    floats,
    gradients,
    numerical,
    oracles,
    projected,
    scatter,
    tensors,
    value,
    weights_like,
)
from tapejit.eager.arrays.dtypes import can_cast
from tapejit.eager.arrays.op_samples import A
from tapejit.eager.core.op import OPS, PRIMITIVES, Op
from tapejit.eager.core.tape.node import local

# Ops whose results follow from nothing a sample can say. Each has tests of its own.
WITHOUT_SAMPLES: dict[str, str] = {}
WITHOUT_ORACLE: dict[str, str] = {}
# Ops that are meant to write into an argument.
WRITES: dict[str, str] = {}


def writes(case: Case) -> bool:
    return case.key in WRITES or case.op.name.endswith("_")


# ---- the table itself


def test_every_op_has_samples() -> None:
    missing = sorted(key for key, op in OPS.items() if not op.samples and key not in WITHOUT_SAMPLES)
    assert not missing, f"no samples: {missing}"


def test_every_op_has_an_oracle() -> None:
    missing = sorted({c.key for c in ALL} - oracles().keys() - WITHOUT_ORACLE.keys())
    assert not missing, f"no NumPy reference in tests/oracles: {missing}"


def test_no_oracle_without_an_op() -> None:
    assert not sorted(oracles().keys() - OPS.keys())


def test_every_op_says_what_it_does() -> None:
    silent = sorted(key for key, op in OPS.items() if not (inspect.getdoc(op.function) or "").strip())
    assert not silent, f"no docstring: {silent}"


def test_every_op_has_type_hints() -> None:
    bare = []
    for key, op in OPS.items():
        signature = inspect.signature(op.function)
        parameters = [p for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        if signature.return_annotation is signature.empty or any(p.annotation is p.empty for p in parameters):
            bare.append(key)
    assert not bare, f"no type hints: {sorted(bare)}"


# ---- values and dtypes


@pytest.mark.parametrize("case", cases(lambda c: c.key in oracles()))
def test_value(case: Case) -> None:
    found = case.call(tensors(case, case.arrays()))
    assert_same(found, case.call(case.arrays(), oracles()[case.key]))


def keeps_dtype(case: Case) -> bool:
    """True if floating-point results have the dtype of the floating-point inputs."""
    return any(s.kind == "float" for s in case.specs) and case.sample.kwargs.get("dtype") is None


@pytest.mark.parametrize("case", cases(keeps_dtype))
def test_float32(case: Case) -> None:
    arrays = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in case.arrays()]
    found = case.call(tensors(case, arrays))
    exact = case.call(tensors(case, arrays, tj.float64))
    for t, reference in zip(flat(found), flat(exact), strict=True):
        if isinstance(reference, tj.Tensor):
            assert t.dtype == (tj.float32 if reference.dtype == tj.float64 else reference.dtype)
    assert_same(floats(found), floats(exact), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("case", cases(keeps_dtype))
def test_half(case: Case, dtype: str) -> None:
    half = HALF[dtype]
    inputs = tensors(case, case.arrays(), half)
    try:
        found = case.call(inputs)
    except RuntimeError as error:
        if "not implemented for" in str(error) or "Low precision" in str(error):
            return  # as in PyTorch, where linear algebra has no half precision
        raise
    exact = case.call([t.double() if t.is_floating_point() else t for t in inputs])
    loose = 2e-2 if half is tj.float16 else 1e-1
    for t, reference in zip(flat(found), flat(exact), strict=True):
        if isinstance(reference, tj.Tensor):
            assert t.shape == reference.shape
            assert t.dtype == (half if reference.dtype == tj.float64 else reference.dtype)
            if reference.dtype == tj.float64:
                assert_same(t, reference, rtol=loose, atol=loose)


@pytest.mark.parametrize("case", cases(lambda c: bool(c.specs) and c.key not in LAYOUT))
def test_any_memory_layout(case: Case) -> None:
    straight, scattered = case.arrays(), [scatter(a) for a in case.arrays()]
    assert_same(case.call(tensors(case, scattered)), case.call(tensors(case, straight)), rtol=1e-12, atol=1e-13)
    if case.differentiable:
        expected = gradients(case, tensors(case, straight, grad=True))
        assert_same(gradients(case, tensors(case, scattered, grad=True)), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("case", cases(lambda c: bool(c.specs) and not writes(c)))
def test_leaves_its_inputs_alone(case: Case) -> None:
    inputs = tensors(case, case.arrays(), grad=True)
    if case.differentiable:
        gradients(case, inputs)
    else:
        case.call(inputs)
    for t, before in zip(inputs, case.arrays(), strict=True):
        assert t._version == 0
        np.testing.assert_array_equal(value(t), before)


# ---- other ways to call


def begins_with_tensor(case: Case) -> bool:
    return bool(case.sample.args) and isinstance(case.sample.args[0], A)


@pytest.mark.parametrize("case", cases(lambda c: c.op.method and begins_with_tensor(c)))
def test_method(case: Case) -> None:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, case.op.name)(*args, **kwargs)

    assert_same(case.call(tensors(case, case.arrays()), method), case.call(tensors(case, case.arrays())), 0, 0)


@pytest.mark.parametrize("case", cases(lambda c: c.op.inplace and begins_with_tensor(c)))
def test_in_place(case: Case) -> None:
    def in_place(self: Any, *args: Any, **kwargs: Any) -> Any:
        copy = self.clone()
        found = getattr(copy, case.op.name + "_")(*args, **kwargs)
        assert found is copy
        assert found._version == 1
        return found

    inputs = tensors(case, case.arrays())
    expected = case.call(inputs)
    if expected.shape != inputs[0].shape or not can_cast(expected.dtype, inputs[0].dtype):
        with pytest.raises(RuntimeError):
            case.call(inputs, in_place)
        return
    assert_same(case.call(inputs, in_place), expected.to(inputs[0].dtype), 0, 0)
    if case.differentiable:
        inputs = tensors(case, case.arrays(), grad=True)
        assert_same(gradients(case, inputs, function=in_place), gradients(case, inputs), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("case", cases(lambda c: "out" in inspect.signature(c.op.function).parameters))
def test_out(case: Case) -> None:
    expected = case.call(tensors(case, case.arrays()))
    out = expected.clone().zero_()

    def into(*args: Any, **kwargs: Any) -> Any:
        assert case.op.function is not None
        return case.op.function(*args, out=out, **kwargs)

    assert case.call(tensors(case, case.arrays()), into) is out
    assert_same(out, expected, 0, 0)


# ---- gradients


@pytest.mark.parametrize("case", cases(lambda c: bool(c.differentiable)))
def test_gradient(case: Case) -> None:
    weights: list[np.ndarray] = []

    def number(values: list[np.ndarray]) -> float:
        outputs = floats(case.call(tensors(case, values)))
        weights[:] = weights or weights_like(outputs, case.random("weights"))
        return sum(float((value(t) * w).sum()) for t, w in zip(outputs, weights, strict=True))

    inputs = tensors(case, case.arrays(), grad=True)
    assert any(t.requires_grad for t in floats(case.call(inputs))), "no output has a history"
    found = gradients(case, inputs)
    for g, i in zip(found, case.differentiable, strict=True):
        assert g is None or (g.shape == inputs[i].shape and g.dtype == inputs[i].dtype)
    assert_slopes(found, numerical(case, number), "gradient")


@pytest.mark.parametrize("case", cases(lambda c: bool(c.differentiable) and c.sample.gradgrad))
def test_second_gradient(case: Case) -> None:
    arrays = case.arrays()
    random = case.random("second")
    weights = [random.uniform(-1, 1, arrays[i].shape) for i in case.differentiable]

    def number(values: list[np.ndarray]) -> float:
        found = gradients(case, tensors(case, values, grad=True))
        return sum(float((value(g) * w).sum()) for g, w in zip(found, weights, strict=True) if g is not None)

    inputs = tensors(case, arrays, grad=True)
    first = gradients(case, inputs, create_graph=True)
    pairs = [(g, w) for g, w in zip(first, weights, strict=True) if g is not None]
    if not pairs:
        return
    total = projected([g for g, _ in pairs], [w for _, w in pairs])
    wanted = [inputs[i] for i in case.differentiable]
    second: Any = [None] * len(wanted)
    if total.requires_grad:
        second = tj.autograd.grad(total, wanted, allow_unused=True)
    assert_slopes(list(second), numerical(case, number, limit=24), "second gradient")


@pytest.mark.parametrize("dtype", ["float32", *HALF])
@pytest.mark.parametrize("case", cases(lambda c: bool(c.differentiable)))
def test_gradients_have_their_inputs_dtype(case: Case, dtype: str) -> None:
    inputs = tensors(case, case.arrays(), getattr(tj, dtype), grad=True)
    try:
        found = gradients(case, inputs)
    except RuntimeError as error:
        if "not implemented for" in str(error) or "Low precision" in str(error):
            return
        raise
    exact = gradients(case, [t.detach().double().requires_grad_() if t.requires_grad else t for t in inputs])
    for g, i, reference in zip(found, case.differentiable, exact, strict=True):
        assert (g is None) == (reference is None)
        if g is not None:
            assert (g.shape, g.dtype) == (inputs[i].shape, inputs[i].dtype)
            if dtype == "float32":
                assert_same(g, reference, rtol=1e-3, atol=1e-4)


# ---- the op's other meanings, for the compiler


class Recorder:
    """Notes the calls of `apply` that have another meaning to compare with, and what they were given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Op, tuple[Any, ...], dict[str, Any]]] = []

    def __enter__(self) -> Recorder:
        local.state.handler = self.handle
        return self

    def __exit__(self, *_: object) -> None:
        local.state.handler = None

    def handle(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any = None) -> Any:
        if op.expand is not None or own_body(op):
            self.calls.append((op, tuple(snapshot(x) for x in inputs), attrs))
        return execute_now(op, inputs, attrs, out)


def snapshot(x: Any) -> Any:
    """A leaf with the same values, that wants a gradient if the original did."""
    if not isinstance(x, tj.Tensor):
        return x
    copy = tj.from_numpy(value(x).copy()).to(x.dtype)
    return copy.requires_grad_(x.requires_grad)


def own_body(op: Op) -> bool:
    """True if an op spells out its scalar expression; the default one only names the op."""
    return op.body is not None and not op.body.__qualname__.startswith("primitive.")


@pytest.mark.parametrize("case", cases(lambda c: bool(c.specs)))
def test_kernels_agree_with_their_meaning(case: Case) -> None:
    with Recorder() as recorder:
        inputs = tensors(case, case.arrays(), grad=True)
        if case.differentiable:
            gradients(case, inputs, create_graph=case.sample.gradgrad)
        else:
            case.call(inputs)
    for op, given, attrs in recorder.calls:
        if op.expand is not None:
            agrees_with_expansion(op, given, attrs)
        if own_body(op):
            agrees_with_body(op, given, attrs)


def agrees_with_expansion(op: Op, given: tuple[Any, ...], attrs: dict[str, Any]) -> None:
    assert op.expand is not None
    with tj.no_grad():
        assert_same(execute_now(op, given, attrs), op.expand(*given, **attrs))
    wanted = [x for x in given if isinstance(x, tj.Tensor) and x.requires_grad]
    if not wanted or op.grad is None:
        return
    found = []
    for function in (lambda: execute_now(op, given, attrs), lambda: op.expand(*given, **attrs)):  # type: ignore[misc]
        outputs = floats(function())
        total = projected(outputs, weights_like(outputs, np.random.default_rng(1)))
        found.append(tj.autograd.grad(total, wanted, materialize_grads=True))
    assert_same(found[0], found[1], rtol=1e-8, atol=1e-9)


class NumpyBuilder:
    """Scalar expressions over NumPy arrays: what an op's `body` is given here in the place of a code generator."""

    def __getattr__(self, name: str) -> Any:
        if name == "cast":
            return lambda x, dtype: x.astype(dtype.numpy)
        if name == "clamp":
            return np.clip
        op = PRIMITIVES[name]
        return op.numpy_function or (lambda *xs: op.run(np, *xs))  # type: ignore[misc]


def agrees_with_body(op: Op, given: tuple[Any, ...], attrs: dict[str, Any]) -> None:
    assert op.body is not None
    parameters = list(inspect.signature(op.body).parameters)
    arrays = [value(x) if isinstance(x, tj.Tensor) else x for x in given]
    builder = NumpyBuilder()
    with tj.no_grad():
        expected = value(execute_now(op, given, attrs))
    if op.kind == "pointwise":
        found = op.body(builder, *arrays, **{k: v for k, v in attrs.items() if k in parameters})
    elif parameters == ["b", "acc", "x"] and set(attrs) == {"dims", "keepdim"} and expected.size:
        dims = attrs["dims"]
        kept = [d for d in range(arrays[0].ndim) if d not in dims]
        x = arrays[0].transpose(*kept, *dims).reshape(*(arrays[0].shape[d] for d in kept), -1)
        if x.shape[-1] == 0:
            return
        found = x[..., 0]
        for i in range(1, x.shape[-1]):
            found = op.body(builder, found, x[..., i])
        found = np.asarray(found).reshape(expected.shape)
    else:
        return
    assert_same(np.asarray(found).astype(expected.dtype), expected)
