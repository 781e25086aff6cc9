"""Joining tensors and parting them, beyond `cat`, `stack`, `split` and `unbind`, which `reshape.py` has."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ...arrays.op_samples import A, sample
from ...core.cast import cast
from ...core.dispatch import apply
from ...core.errors import warn
from ...core.registration import public
from ...core.tensor import Tensor, as_index, wrap, wrap_dim
from ..convert import transfer
from ..indexing.primitives import INDEX
from ..pointwise import result_type
from .reshape import as_tensor_list, atleast_1d, atleast_2d, atleast_3d, cat, expand, reshape, split, stack, tensor_list
from .views import SLICE, SPLIT, UNSLICE

# ---- joining


@public(samples=[sample([A(2, 3), A(1, 3)]), sample([A(2, 1), A(2, 2)], dim=1)], method=False)
def concat(tensors: Any, dim: int = 0) -> Tensor:
    """The same as `cat`."""
    return cat(tensors, dim)


@public(samples=[sample([A(2, 3), A(1, 3)]), sample([A(2, 1), A(2, 2)], dim=1)], method=False)
def concatenate(tensors: Any, dim: int = 0) -> Tensor:
    """The same as `cat`."""
    return cat(tensors, dim)


def listed(name: str, tensors: Any) -> tuple[Tensor, ...]:
    parts = tensor_list(tensors, name)
    if not parts:
        raise RuntimeError(f"{name} expects a non-empty TensorList")
    return tuple(parts)


@public(samples=[sample([A(2), A(3)]), sample([A(2, 1), A(2, 2)]), sample([A(), A(2)])], method=False)
def hstack(tensors: Any) -> Tensor:
    """Join side by side: along the first dim of vectors, along the second of all else."""
    parts = atleast_1d(listed("hstack", tensors))
    return cat(parts, 0 if parts[0].tj_array.ndim == 1 else 1)


@public(samples=[sample([A(3), A(3)]), sample([A(2, 2), A(1, 2)]), sample([A(2), A(1, 2)])], method=False)
def vstack(tensors: Any) -> Tensor:
    """Join one below the other, vectors as rows."""
    return cat(atleast_2d(listed("vstack", tensors)), 0)


@public(samples=[sample([A(3), A(3)])], method=False)
def row_stack(tensors: Any) -> Tensor:
    """The same as `vstack`."""
    return vstack(tensors)


@public(samples=[sample([A(3), A(3)]), sample([A(2, 3), A(2, 3)]), sample([A(1, 2, 1), A(1, 2, 3)])], method=False)
def dstack(tensors: Any) -> Tensor:
    """Join along the third dim."""
    return cat(atleast_3d(listed("dstack", tensors)), 2)


@public(samples=[sample([A(3), A(3, 2)]), sample([A(), A()])], method=False)
def column_stack(tensors: Any) -> Tensor:
    """Join side by side, vectors as columns."""
    parts = listed("column_stack", tensors)
    return cat([p if p.tj_array.ndim > 1 else reshape(p, p.tj_array.size, 1) for p in parts], 1)


@public(samples=[sample(A(2, 2), A(1, 3)), sample(A(), A(2), A(2, 1))], method=False)
def block_diag(*tensors: Tensor) -> Tensor:
    """A matrix with matrices along its diagonal and zeros elsewhere; vectors count as rows."""
    for i, t in enumerate(tensor_list(tensors, "block_diag")):
        if t.tj_array.ndim > 2:
            raise RuntimeError(
                f"block_diag: Input tensors must have 2 or fewer dimensions. Input {i} has {t.tj_array.ndim} dimensions"
            )
    blocks = [reshape(t, 1, t.tj_array.size) if t.tj_array.ndim < 2 else t for t in tensors]
    common = result_type(*blocks)
    width = sum(b.tj_array.shape[1] for b in blocks)
    rows, start = [], 0
    for b in blocks:
        height, own = b.tj_array.shape
        attrs = {"index": (slice(None), slice(start, start + own)), "shape": (height, width), "fill": 0}
        rows.append(apply(UNSLICE, (cast(b, common),), attrs))
        start += own
    return cat(rows, 0)


# ---- every combination


@public(
    samples=[sample(A(2), A(3), indexing="ij"), sample(A(2), A(3), indexing="xy"), sample([A(2), A()], indexing="ij")],
    method=False,
)
def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    """Views of vectors as coordinates of a grid; "ij" counts rows first, "xy" columns."""
    parts = as_tensor_list("meshgrid", tensors)
    if indexing is None:
        warn("meshgrid: pass indexing='ij' (the default) or 'xy'; the default may change")
        indexing = "ij"
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f'meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    if not parts:
        raise RuntimeError("meshgrid expects a non-empty TensorList")
    for p in parts:
        if p.tj_array.ndim > 1:
            raise RuntimeError(f"meshgrid: Expected 0D or 1D tensor in the tensor list but got a shape {list(p.shape)}")
    if len({p.tj_array.dtype for p in parts}) > 1:
        raise RuntimeError(f"meshgrid expects all tensors to have the same dtype, got {[p.dtype.name for p in parts]}")
    swap = indexing == "xy" and len(parts) > 1
    places = [1, 0, *range(2, len(parts))] if swap else list(range(len(parts)))
    shape = [0] * len(parts)
    for p, place in zip(parts, places, strict=True):
        shape[place] = p.tj_array.size
    return tuple(
        expand(reshape(p, tuple(p.tj_array.size if d == place else 1 for d in range(len(parts)))), shape)
        for p, place in zip(parts, places, strict=True)
    )


@public(samples=[sample(A(2), A(3)), sample(A(3)), sample(A(2), A(1), A(2))], method=False)
def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All tuples with one element of each vector, as rows."""
    for t in tensor_list(tensors, "cartesian_prod"):
        if t.tj_array.ndim != 1:
            raise RuntimeError(f"cartesian_prod: Expect a 1D vector, but got shape {list(t.shape)}")
    if len(tensors) == 1:
        return tensors[0]
    return stack([reshape(g, -1) for g in meshgrid(*tensors, indexing="ij")], 1)


@public(samples=[sample(A(4)), sample(A(4), 3), sample(A(3), 2, True), sample(A(2), 3)])
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of r elements of a vector, as rows."""
    if input.tj_array.ndim != 1:
        raise RuntimeError(f"combinations: Expect a 1D vector, but got shape {list(input.shape)}")
    if r < 0:
        raise RuntimeError(f"combinations: Expect a non-negative number, but got {r}")
    if r == 0:
        return input.new_zeros((0,))
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(choose(range(input.tj_array.size), r))
    index = transfer(wrap(np.array(rows, np.int64).reshape(len(rows), r)), input.device)
    return apply(INDEX, (input, index), {"dims": (0,)})


# ---- parting


@public(samples=[sample(A(5, 2), 2), sample(A(2, 6), 4, dim=1), sample(A(3), 5)])
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` views of equal length along a dim; the last may be shorter."""
    if input.tj_array.ndim == 0:
        raise RuntimeError("chunk expects at least a 1-dimensional tensor")
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    length = input.tj_array.shape[wrap_dim(dim, input.tj_array.ndim)]
    if length == 0:
        return split(input, [0] * chunks, dim)
    return split(input, -(-length // chunks), dim)


@public(samples=[sample(A(5, 2), [1, 4]), sample(A(2, 6), (2, 4), dim=-1)])
def split_with_sizes(input: Tensor, split_sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of the lengths given along a dim."""
    return split(input, list(split_sizes), dim)


@public(samples=[sample(A(7, 2), 3), sample(A(7), (1, 3, 9)), sample(A(2, 5), [-2], dim=1), sample(A(5), (4, 2))])
def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of nearly equal lengths, or cut before the indices given, along a dim."""
    if input.tj_array.ndim == 0:
        raise RuntimeError("tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims")
    place = wrap_dim(dim, input.tj_array.ndim)
    length = input.tj_array.shape[place]
    cuts = indices_or_sections
    if isinstance(cuts, Tensor):
        cuts = cuts.tolist()
    if isinstance(cuts, int):
        if cuts <= 0:
            raise RuntimeError(f"number of sections must be larger than 0, got {cuts}")
        lengths = tuple(length // cuts + (i < length % cuts) for i in range(cuts))
        return apply(SPLIT, (input,), {"sizes": lengths, "dim": place})
    ends = [as_index(c, "an index to cut at") for c in cuts]
    front = (slice(None),) * place
    pieces = zip([0, *ends], [*ends, length], strict=True)
    return tuple(apply(SLICE, (input,), {"index": (*front, slice(a, b))}) for a, b in pieces)


def _splitter(name: str, ndim: int, cases: list[Any]) -> Any:
    def function(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
        if input.tj_array.ndim < ndim:
            raise RuntimeError(
                f"{name} requires a tensor with at least {ndim} dimension{'s' * (ndim > 1)}, but got a tensor with "
                f"{input.tj_array.ndim} dimensions!"
            )
        dim = 0 if name == "vsplit" or input.tj_array.ndim == 1 else 1 if name == "hsplit" else 2
        length = input.tj_array.shape[dim]
        if isinstance(indices_or_sections, int) and (indices_or_sections <= 0 or length % indices_or_sections):
            raise RuntimeError(
                f"{name} attempted to split along dimension {dim}, but the size of the dimension {length} is not divisible by "
                f"the split_size {indices_or_sections}!"
            )
        return tensor_split(input, indices_or_sections, dim)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Views of equal lengths, or cut before the indices given, {_along[name]}."
    return public(samples=cases)(function)


_along = {
    "hsplit": "along the second dim (the only one of a vector)",
    "vsplit": "along the first dim",
    "dsplit": "along the third dim",
}
hsplit = _splitter("hsplit", 1, [sample(A(2, 4), 2), sample(A(6), [1, 3])])
vsplit = _splitter("vsplit", 2, [sample(A(4, 2), 2), sample(A(4, 2), (1, 3))])
dsplit = _splitter("dsplit", 3, [sample(A(2, 2, 4), 2), sample(A(1, 2, 4), [3])])
