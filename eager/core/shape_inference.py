"""Shape inference: shapes and dtypes of an op's results from those of its inputs, without data.

Pointwise and reduce ops follow from their kind; an op's own `infer` comes first; the rest run on arrays of zeros that take no
memory (all strides 0). For ops whose result's shape depends on values there is no answer: `DataDependentError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arrays import dtypes
from .op import Op


class Spec(NamedTuple):
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: dtypes.dtype

    def __str__(self) -> str:
        return f"{self.dtype.abbreviation}[{', '.join(map(str, self.shape))}]"


class DataDependentError(RuntimeError):
    """The shape of an op's result depends on values."""


def infer(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Spec, ...]:
    """Return the specs of an op's results, given specs and numbers as inputs."""
    if op.infer is not None:
        return op.infer(*inputs, **attrs)  # type: ignore[no-any-return]
    if op.kind == "pointwise":
        shape = np.broadcast_shapes(*[x.shape for x in inputs if isinstance(x, Spec)])
        return (Spec(shape, result_dtype(op, inputs, attrs)),)
    if op.kind == "reduce" and "dims" in attrs and isinstance(inputs[0], Spec):
        return (Spec(reduced(inputs[0].shape, attrs), result_dtype(op, inputs, attrs)),)
    return run_on_zeros(op, inputs, attrs)


# ---- common values of `Op.infer`


def like_first(x: Spec, *others: Any, **attrs: Any) -> tuple[Spec]:
    """One result, with the spec of the first input."""
    return (x,)


def with_indices(x: Spec, **attrs: Any) -> tuple[Spec, Spec]:
    """Values with the input's spec, and their int64 indices."""
    return x, Spec(x.shape, dtypes.int64)


def from_attrs(*inputs: Any, shape: tuple[int, ...], dtype: dtypes.dtype | None = None, **attrs: Any) -> tuple[Spec]:
    """One result with the attributes' shape and dtype; without a dtype, that of the first input."""
    return (Spec(tuple(shape), inputs[0].dtype if dtype is None else dtype),)


# ----


def reduced(shape: tuple[int, ...], attrs: dict[str, Any]) -> tuple[int, ...]:
    dims, keepdim = attrs["dims"], attrs["keepdim"]
    return tuple(1 if i in dims else n for i, n in enumerate(shape) if keepdim or i not in dims)


def result_dtype(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> dtypes.dtype:
    """The dtype of a pointwise or reduce op's result: from one element in each dimension."""
    single = tuple(Spec((1,) * len(x.shape), x.dtype) if isinstance(x, Spec) else x for x in inputs)
    return run_on_zeros(op, single, attrs)[0].dtype


def run_on_zeros(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Spec, ...]:
    found = run_kernel(op, [zeros(x) if isinstance(x, Spec) else x for x in inputs], attrs)
    return tuple(Spec(r.shape, dtypes.from_numpy(r.dtype)) for r in found)


def run_kernel(op: Op, arrays: Sequence[Any], attrs: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Run an op's kernel on placeholder arrays, ignoring warnings about their values."""
    if op.data_dependent:
        raise DataDependentError(f"the shape of {op.name}'s result depends on the values of its inputs")
    half = next((x.dtype for x in arrays if isinstance(x, np.ndarray) and x.dtype in dtypes.HALF), None) if op.upcast else None
    if half is not None:
        arrays = [x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype in dtypes.HALF else x for x in arrays]
    with np.errstate(all="ignore"):
        result = op.numpy_function(*arrays) if op.ufunc is not None else op.run(np, *arrays, **attrs)  # type: ignore[misc]
    found = [np.asarray(r) for r in (result if type(result) is tuple else (result,))]
    return found if half is None else [r.astype(half) if r.dtype == np.float32 else r for r in found]


def zeros(spec: Spec) -> np.ndarray[Any, Any]:
    one = np.zeros((), spec.dtype.numpy)
    return np.ndarray(spec.shape, one.dtype, one, 0, (0,) * len(spec.shape))
