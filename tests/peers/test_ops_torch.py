"""Every op and sample of the table against PyTorch: values, dtypes and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tapejit as tj
import torch
from peers.common import assert_alike, torch_call, torch_function
from support.harness import Case, cases, flat, floats, gradients, tensors, weights_like

# Calls whose results are meant to differ, with the reason.
DIFFERENT: dict[str, str] = {}
# Composed of pointwise ops and views, which keep the order of their inputs' memory; PyTorch's have kernels that do not.
KEEPS_ORDER = ("batch_norm", "einsum", "instance_norm", "linalg.solve", "one_hot", "renorm", "rot90", "tensordot")
# Which of equal elements comes first is left open by PyTorch; integers have many equal ones.
TIES = dict.fromkeys(
    ("kthvalue", "median", "mode", "nanmedian", "sort", "argsort", "topk", "msort"), "the order of equal elements"
)


def comparable(case: Case) -> bool:
    return case.sample.peer and case.key not in DIFFERENT and not case.op.name.endswith("_")


def torch_inputs(case: Case, arrays: list[np.ndarray], grad: bool = False) -> list[torch.Tensor]:
    found = [torch.from_numpy(a.copy()) for a in arrays]
    return [t.requires_grad_() if grad and i in case.differentiable else t for i, t in enumerate(found)]


def test_pytorch_has_every_op() -> None:
    missing = sorted({c.values[0].key for c in cases(comparable) if torch_function(c.values[0]) is None})
    assert not missing, f"PyTorch has no such function: {missing}; mark their samples peer=False"


@pytest.mark.parametrize("case", cases(comparable))
def test_value(case: Case) -> None:
    mine = case.call(tensors(case, case.arrays()))
    theirs = torch_call(case, torch_inputs(case, case.arrays()))
    assert_alike(mine, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("case", cases(lambda c: comparable(c) and bool(c.differentiable)))
def test_gradient(case: Case) -> None:
    theirs = torch_inputs(case, case.arrays(), grad=True)
    results = torch_call(case, theirs)
    outputs = [t for t in flat_torch(results) if t.is_floating_point()]
    weights = weights_like(outputs, case.random("weights"))
    total = sum((t * torch.from_numpy(w)).sum() for t, w in zip(outputs, weights, strict=True))
    wanted = [theirs[i] for i in case.differentiable]
    expected: Any = [None] * len(wanted)
    try:
        if total.requires_grad:
            expected = torch.autograd.grad(total, wanted, allow_unused=True)
    except RuntimeError:
        pytest.skip("PyTorch has no gradient for this call")
    mine = gradients(case, tensors(case, case.arrays(), grad=True))
    for m, t, x in zip(mine, expected, wanted, strict=True):
        zeros = torch.zeros_like(x)
        assert_alike(np.zeros(x.shape) if m is None else m, zeros if t is None else t, rtol=1e-6, atol=1e-8, dtypes=False)
    for m, t in zip(floats(case.call(tensors(case, case.arrays(), grad=True))), outputs, strict=True):
        assert m.requires_grad == t.requires_grad


@pytest.mark.parametrize("case", cases(lambda c: comparable(c) and c.key not in KEEPS_ORDER))
def test_memory_in_order(case: Case) -> None:
    """Results are contiguous where PyTorch's are, so that `view` works on them; for transposed inputs too."""
    arrays = [np.ascontiguousarray(a.T).T for a in case.arrays()]
    try:
        theirs = torch_call(case, [torch.from_numpy(a) for a in arrays])
    except RuntimeError:
        return  # views that such memory does not allow
    mine = case.call(tensors(case, arrays))
    for m, t in zip(flat(mine), flat(theirs), strict=True):
        if isinstance(t, torch.Tensor) and t.is_contiguous():
            assert m.is_contiguous(), f"strides {m.stride()} for shape {list(m.shape)}, in PyTorch {t.stride()}"


@pytest.mark.parametrize("which", ["input", "output"])
@pytest.mark.parametrize("case", cases(lambda c: comparable(c) and bool(c.differentiable)))
def test_what_may_be_overwritten(case: Case, which: str) -> None:
    """A tensor that PyTorch does not save for the gradient can be overwritten here too."""

    def survives(lib: Any, inputs: list[Any], call: Any) -> bool:
        given = [x * 1 if x.requires_grad else x for x in inputs]
        outputs = [t for t in call(given) if t.requires_grad]
        changed = [x for x in given if x.requires_grad] if which == "input" else outputs
        try:
            total = sum(t.sum() for t in outputs if which == "input")
            for t in changed:
                t.add_(1)
            (sum(t.sum() for t in outputs) if which == "output" else total).backward()
        except RuntimeError:
            return False
        return True

    theirs = torch_inputs(case, case.arrays(), grad=True)
    if survives(torch, theirs, lambda given: flat_torch(torch_call(case, given))):
        assert survives(tj, tensors(case, case.arrays(), grad=True), lambda given: floats(case.call(given)))


def flat_torch(result: Any) -> list[torch.Tensor]:
    if isinstance(result, (tuple, list)):
        return [t for r in result for t in flat_torch(r)]
    return [result] if isinstance(result, torch.Tensor) else []


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("case", cases(lambda c: comparable(c) and any(s.kind == "float" for s in c.specs)))
def test_dtype(case: Case, dtype: str) -> None:
    """Inputs that PyTorch takes are taken, with the same result dtypes and nearly the same values."""
    if case.key in TIES and "int" in dtype:
        pytest.skip(TIES[case.key])
    if "trapezoid" in case.key and dtype == "uint8":
        pytest.skip("differences of bytes wrap around before or after they are multiplied")
    unsigned = dtype in ("bool", "uint8")  # a negative number has no defined value there
    arrays = [np.asarray(np.abs(a)) if unsigned and a.dtype.kind == "f" else a for a in case.arrays()]
    theirs = [t.to(getattr(torch, dtype)) if t.is_floating_point() else t for t in torch_inputs(case, arrays)]
    try:
        expected = torch_call(case, theirs)
    except (RuntimeError, TypeError, NotImplementedError, IndexError, ValueError, AssertionError):
        return
    mine = [t.to(getattr(tj, dtype)) if t.is_floating_point() else t for t in tensors(case, arrays)]
    try:
        found = case.call(mine)
    except (RuntimeError, NotImplementedError):
        if "nn.functional" in case.op.namespaces and "float" not in dtype:
            return  # networks are made of floats; PyTorch takes integers here and there by accident
        raise
    loose = {"float16": 5e-3, "bfloat16": 4e-2}.get(dtype, 2e-5)
    assert_alike(found, expected, rtol=loose, atol=loose)
