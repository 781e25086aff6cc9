"""The same call in PyTorch and here: finding PyTorch's function, turning arguments and results over."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import tapejit as tj
import torch
from support.harness import Case, flat

torch.set_num_threads(1)  # the tests' tensors are small: threads only wait for each other, on a busy machine for long

NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def to_torch(x: Any) -> Any:
    """An argument as PyTorch takes it."""
    if isinstance(x, np.ndarray):
        if x.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(x.astype(np.float32)).bfloat16()
        return torch.from_numpy(x.copy())
    if isinstance(x, tj.dtype):
        return getattr(torch, x.name)
    if isinstance(x, tj.device):
        return torch.device(str(x))
    if type(x) in (tuple, list):
        return type(x)(to_torch(v) for v in x)
    return x


def torch_function(case: Case) -> Any:
    """PyTorch's function of the same name in the same namespace, or its method."""
    for space in sorted(case.op.namespaces, reverse=True):  # torch.dropout is another function than nn.functional.dropout
        found: Any = torch
        for part in filter(None, space.split(".")):
            found = getattr(found, part, None)
        if found is not None and hasattr(found, case.op.name):
            return getattr(found, case.op.name)
    return getattr(torch.Tensor, case.op.name, None)


def torch_call(case: Case, values: list[Any]) -> Any:
    """The sample with PyTorch's function on PyTorch's tensors."""
    function = torch_function(case)

    def converted(*args: Any, **kwargs: Any) -> Any:
        return function(*to_torch(args), **{k: to_torch(v) for k, v in kwargs.items()})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations there are none of our business
        return case.call(values, converted)


def numpy_of(x: Any) -> Any:
    """A result of either library as a NumPy array; half precision as float32."""
    if isinstance(x, torch.Tensor):
        x = x.detach().clone()
        return (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x).numpy()
    if isinstance(x, tj.Tensor):
        x = x.detach()
        return (x.float() if x.dtype in (tj.float16, tj.bfloat16) else x).numpy()
    return np.asarray(x)


def dtype_name(x: Any) -> str:
    if isinstance(x, (torch.Tensor, tj.Tensor)):
        return str(x.dtype).rpartition(".")[2]
    return type(x).__name__


def assert_alike(mine: Any, theirs: Any, rtol: float, atol: float, dtypes: bool = True) -> None:
    """The same structure, shapes, dtypes and values."""
    a, b = flat(mine), flat(theirs)
    assert len(a) == len(b), f"{len(a)} results, but PyTorch has {len(b)}"
    for x, y in zip(a, b, strict=True):
        if y is None:
            assert x is None
            continue
        if dtypes:
            assert dtype_name(x) == dtype_name(y), f"the dtype is {dtype_name(x)}, in PyTorch {dtype_name(y)}"
        p, q = numpy_of(x), numpy_of(y)
        assert p.shape == q.shape, f"the shape is {p.shape}, in PyTorch {q.shape}"
        if q.dtype.kind == "f":
            scale = np.max(np.abs(q[np.isfinite(q)]), initial=1.0)
            np.testing.assert_allclose(p, q, rtol=rtol, atol=atol * scale)
        else:
            np.testing.assert_array_equal(p, q)


def outcome(action: Any, library: Any) -> Any:
    """Return the result of an action with a library, or the type of its exception."""
    try:
        return action(library)
    except Exception as error:
        return type(error)
