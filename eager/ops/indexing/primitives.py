"""The primitives that pick and put by index tensors, and what all ops that do so share.

`index` picks; its gradient `index_sum` adds up what was picked; `index_put` overwrites and `index_add` adds. `x[...]` is in
`getitem.py`, what has a name in `select.py`, what picks along one dim with an index for each element in `gather.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arrays import dtypes
from ...core.dispatch import InPlace, apply, write
from ...core.op import Op, primitive
from ...core.shape_inference import Spec, from_attrs, like_first
from ...core.tape.node import local
from ...core.tensor import Tensor
from ..pointwise import out_or_inplace

ALL = slice(None)
UNSIGNED = {4: np.uint32, 8: np.uint64}


class OutOfBoundsError(IndexError, RuntimeError):
    """An index outside of its dimension: PyTorch raises an IndexError in some ops and a RuntimeError in others."""


# ---- the primitives: arrays `indices` at the dims `dims`, all else whole; `strict` refuses negative indices


def numpy_index(indices: tuple[Any, ...], dims: tuple[int, ...]) -> tuple[Any, ...]:
    """NumPy's index for arrays at some dims."""
    place: list[Any] = [ALL] * (dims[-1] + 1)
    for d, index in zip(dims, indices, strict=True):
        place[d] = index
    return tuple(place)


def wrap_and_check(xp: Any, index: Any, dim: int, size: int, strict: bool = False) -> Any:
    """The index with negative values counted from the end, or PyTorch's error for values outside of the dimension."""
    if index.size == 0:
        return index
    if strict and int(index.view(UNSIGNED[index.itemsize]).max()) < size:  # one look: negative ones become huge
        return index
    low, high = int(index.min()), int(index.max())
    if high >= size or low < (0 if strict else -size):
        wrong = high if high >= size else low
        raise OutOfBoundsError(f"index {wrong} is out of bounds for dimension {dim} with size {size}")
    return index if low >= 0 else xp.where(index < 0, index + size, index)


def wrap_and_check_all(
    xp: Any, x: Any, indices: tuple[Any, ...], dims: tuple[int, ...], strict: bool = False
) -> tuple[Any, ...]:
    return tuple(wrap_and_check(xp, i, d, x.shape[d], strict) for i, d in zip(indices, dims, strict=True))


def run_index(xp: Any, x: Any, *indices: Any, dims: tuple[int, ...], strict: bool = False) -> Any:
    if strict or xp is not np:
        indices = wrap_and_check_all(xp, x, indices, dims, strict)
    try:
        return x.take(indices[0], dims[0]) if len(dims) == 1 else x[numpy_index(indices, dims)]
    except IndexError:  # NumPy looks itself, so the bounds are only looked at again for the message
        wrap_and_check_all(xp, x, indices, dims)
        raise


def add_at(xp: Any, full: Any, values: Any, indices: tuple[Any, ...], dims: tuple[int, ...], strict: bool = False) -> Any:
    """full[indices] += values, where an index that occurs twice counts twice; `full` is contiguous."""
    indices = wrap_and_check_all(xp, full, indices, dims, strict)
    if xp is np:
        _add_at_positions(full, values, indices, dims)
        return full
    if full.dtype.kind in "biu" and full.dtype.itemsize < 4:  # CuPy adds only to wider integers
        wide = full.astype(np.int64)
        xp.add.at(wide, numpy_index(indices, dims), values)
        return wide.astype(full.dtype)
    xp.add.at(full, numpy_index(indices, dims), values)
    return full


def _add_at_positions(full: Any, values: Any, indices: tuple[Any, ...], dims: tuple[int, ...]) -> None:
    """NumPy's `add.at` is several times quicker on flat memory with flat positions; a piece at a time, which fits the cache."""
    steps = [math.prod(full.shape[d + 1 :]) for d in range(full.ndim)]
    picked = sum(i * steps[d] for i, d in zip(indices, dims, strict=True)).reshape(-1)  # type: ignore[union-attr]
    rest = [d for d in range(full.ndim) if d not in dims]
    at = dims[0] if dims[-1] - dims[0] + 1 == len(dims) else 0
    before, after = (_positions([full.shape[d] for d in ds], [steps[d] for d in ds]) for ds in (rest[:at], rest[at:]))
    values = values.reshape(before.size, picked.size, after.size)
    memory = full.reshape(-1)
    outer = before[:, None, None] + after
    piece = max(1, 65536 // max(1, outer.size))
    for start in range(0, picked.size, piece):
        places = outer + picked[start : start + piece, None]
        np.add.at(memory, places.reshape(-1), values[:, start : start + piece].reshape(-1))


def _positions(lengths: list[int], steps: list[int]) -> Any:
    """Return the flat memory offsets of the elements of a block of these lengths and strides."""
    found = np.zeros(1, np.int64)
    for n, step in zip(lengths, steps, strict=True):
        found = (found[:, None] + np.arange(n) * step).reshape(-1)
    return found


def run_index_sum(xp: Any, g: Any, *indices: Any, dims: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    return add_at(xp, xp.zeros(shape, g.dtype), g, indices, dims)


def run_index_add(xp: Any, x: Any, values: Any, *indices: Any, dims: tuple[int, ...], strict: bool = False) -> Any:
    return add_at(xp, x.copy(order="C"), values, indices, dims, strict)


def put_at(xp: Any, full: Any, values: Any, indices: tuple[Any, ...], dims: tuple[int, ...], strict: bool = False) -> Any:
    """full[indices] = values; nothing is written if an index is out of bounds."""
    if strict or xp is not np:
        indices = wrap_and_check_all(xp, full, indices, dims, strict)
    try:
        full[numpy_index(indices, dims)] = values
    except IndexError:
        wrap_and_check_all(xp, full, indices, dims)
        raise
    return full


def run_index_put(xp: Any, x: Any, values: Any, *indices: Any, dims: tuple[int, ...], strict: bool = False) -> Any:
    return put_at(xp, x.copy(order="C"), values, indices, dims, strict)


def index_gradient(g: Tensor, x_shape: Any, indices: Any, dims: tuple[int, ...]) -> tuple[Tensor | None, ...]:
    return (apply(INDEX_SUM, (g, *indices), {"dims": dims, "shape": x_shape}), *[None] * len(indices))


def index_sum_gradient(g: Tensor, indices: Any, dims: tuple[int, ...]) -> tuple[Tensor | None, ...]:
    return (apply(INDEX, (g, *indices), {"dims": dims}), *[None] * len(indices))


def index_put_gradient(g: Tensor, indices: Any, needs: Any, dims: tuple[int, ...]) -> tuple[Tensor | None, ...]:
    kept = apply(INDEX_PUT, (g, g.new_zeros(()), *indices), {"dims": dims}) if needs[0] else None
    put = apply(INDEX, (g, *indices), {"dims": dims}) if needs[1] else None
    return (kept, put, *[None] * len(indices))


def index_add_gradient(g: Tensor, indices: Any, needs: Any, dims: tuple[int, ...]) -> tuple[Tensor | None, ...]:
    added = apply(INDEX, (g, *indices), {"dims": dims}) if needs[1] else None
    return (g, added, *[None] * len(indices))


def infer_index(x: Spec, *indices: Spec, dims: tuple[int, ...], strict: bool = False) -> tuple[Spec]:
    """Place the indexed dims where the indices are if these are adjacent, else in front: as in NumPy."""
    picked = np.broadcast_shapes(*[i.shape for i in indices])
    rest = [n for d, n in enumerate(x.shape) if d not in dims]
    at = dims[0] if dims[-1] - dims[0] + 1 == len(dims) else 0
    return (Spec((*rest[:at], *picked, *rest[at:]), x.dtype),)


INDEX = primitive("index", "index", run_index, grad=index_gradient, infer=infer_index)
INDEX_SUM = primitive("index_sum", "index", run_index_sum, grad=index_sum_gradient, upcast=True, infer=from_attrs)
INDEX_PUT = primitive("index_put", "index", run_index_put, grad=index_put_gradient, infer=like_first)
INDEX_ADD = primitive(
    "index_add",
    "index",
    run_index_add,
    grad=index_add_gradient,
    expand=lambda x, values, *indices, dims, strict=False: (
        x + apply(INDEX_SUM, (values, *indices), {"dims": dims, "shape": x.tj_array.shape})
    ),
    upcast=True,
)
NONZERO = primitive("nonzero", "index", lambda xp, x: xp.nonzero(x), data_dependent=True)


def in_place_op(op: Op, kernel: Any) -> Op:
    """The op that writes into its first input: without history `kernel` works on its memory, else it is `op` and a store.

    `kernel(xp, x, *rest, **attrs)` changes x, which is contiguous, or returns another array to be stored.
    """

    def run(xp: Any, x: Any, *rest: Any, **attrs: Any) -> None:
        half = op.upcast and x.dtype in dtypes.HALF
        if half or not x.flags.c_contiguous or any(hasattr(r, "dtype") and xp.may_share_memory(x, r) for r in rest):
            arrays = [a.astype(np.float32) if half and hasattr(a, "dtype") and a.dtype == x.dtype else a for a in (x, *rest)]
            x[...] = op.run(xp, *arrays, **attrs)  # type: ignore[misc]
            return
        found = kernel(xp, x, *rest, **attrs)
        if found is not x:
            x[...] = found

    def meaning(x: Tensor, *rest: Any, **attrs: Any) -> None:
        write(x, apply(op, (x, *rest), attrs), op.name + "_")

    return primitive(op.name + "_into", op.kind, run, expand=meaning, mutates=(0,), upcast=False)


def store_in_out(value: Tensor, out: Any, name: str) -> Tensor:
    """The value, stored in `out` if there is one: an in-place op's tensor, or PyTorch's `out=`, which has no gradient."""
    if out is None:
        return value
    if not isinstance(out, InPlace) and local.state.grad and (value.tj_requires_grad or out.tj_requires_grad):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of the arguments "
            "requires grad."
        )
    return out_or_inplace(value, out, name)


def store_result(op: Op, into: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], input: Tensor, out: Any) -> Tensor:
    """The result in the input's shape; with `out`, which may mark an in-place op, stored there."""
    if isinstance(out, InPlace):
        apply(into, inputs, attrs)
        return out.tensor
    found = apply(op, inputs, attrs)
    if found.tj_array.shape != input.tj_array.shape:
        found = found.reshape(input.tj_array.shape)
    return store_in_out(found, out, op.name)


INDEX_PUT_INTO = in_place_op(INDEX_PUT, lambda xp, x, values, *indices, **attrs: put_at(xp, x, values, indices, **attrs))
INDEX_ADD_INTO = in_place_op(INDEX_ADD, lambda xp, x, values, *indices, **attrs: add_at(xp, x, values, indices, **attrs))
