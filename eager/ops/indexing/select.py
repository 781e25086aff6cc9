"""Picking and putting by name: along a dim by an index (`index_select` and its family), by masks, by flat positions.

Composed of the primitives in `primitives.py` and `eager/ops/shape/views.py`, so their gradients and second gradients come with
them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arrays import dtypes
from ...arrays.op_samples import A, B, I, sample
from ...core.cast import cast
from ...core.dispatch import apply, write
from ...core.op import Op
from ...core.registration import public
from ...core.tensor import Tensor, as_index, wrap_dim
from ..convert import transfer
from ..create import arange
from ..pointwise import where
from ..shape.reshape import broadcast_shape, stack
from ..shape.views import DIAGONAL, SLICE, VIEW_SCATTER
from .gather import check_index, scatter_reduce
from .getitem import SplitIndex, broadcast_to_selection
from .primitives import (
    ALL,
    INDEX,
    INDEX_ADD,
    INDEX_ADD_INTO,
    INDEX_PUT,
    INDEX_PUT_INTO,
    NONZERO,
    OutOfBoundsError,
    store_in_out,
    store_result,
)

# ---- one index for a whole dim


def as_index_vector(name: str, index: Any, dim: int, input: Tensor) -> tuple[int, Tensor]:
    """The dim counted from the front, and the index as a vector."""
    check_index(name, index)
    place = wrap_dim(dim, input.tj_array.ndim)
    if index.tj_array.ndim > 1:
        raise OutOfBoundsError(f"{name}(): Index is supposed to be a vector, but got shape {list(index.shape)}")
    return place, index.reshape(-1)


def at_dim(op: Any, inputs: tuple[Any, ...], dim: int, strict: bool = True) -> Tensor:
    return apply(op, inputs, {"dims": (dim,), "strict": strict})


@public(
    samples=[
        sample(A(3, 4), 0, I(5, hi=3)),
        sample(A(3, 4), -1, I(2, hi=4)),
        sample(A(), 0, I(1, hi=1)),
        sample(A(2, 3), 1, I(0)),
    ]
)
def index_select(input: Tensor, dim: int, index: Tensor, *, out: Any = None) -> Tensor:
    """The slices along `dim` that a vector of indices names."""
    place, index = as_index_vector("index_select", index, dim, input)
    x = input if input.tj_array.ndim else input.reshape(1)
    try:
        found = at_dim(INDEX, (x, index), place)
    except OutOfBoundsError as error:
        raise IndexError(f"index_select(): index out of range in self: {error}") from None
    return store_in_out(found if input.tj_array.ndim else found.reshape(()), out, "index_select")


@public(
    samples=[
        sample(A(3, 4), 0, I(5, hi=3), A(5, 4)),
        sample(A(3, 4), -1, I(2, hi=4), A(3, 2), alpha=0.5),
        sample(A(), 0, I(1, hi=1), A(1), peer=False),
    ],
    inplace=True,
    op=INDEX_ADD,
)
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1, out: Any = None) -> Tensor:
    """The tensor with alpha * source added to the slices along `dim` that the index names."""
    place, index = as_index_vector("index_add", index, dim, input)
    if source.tj_array.dtype != input.tj_array.dtype:
        raise RuntimeError(
            f"index_add(): self ({input.dtype.legacy}) and source ({source.dtype.legacy}) must have the same scalar type"
        )
    check_source("index_add", input, place, index, source)
    scaled = source if alpha == 1 else source * dtypes.representable("index_add", input.dtype, alpha)
    return put_along_dim(INDEX_ADD, INDEX_ADD_INTO, input, place, index, scaled, out)


def check_source(name: str, input: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    """The source has a slice for each index, shaped like the tensor's."""
    shape, want = source.tj_array.shape or (1,), input.tj_array.shape or (1,)
    if dim >= len(shape) or shape[dim] != index.tj_array.size:
        have = shape[dim] if dim < len(shape) else 1
        raise OutOfBoundsError(
            f"{name}(): Number of indices ({index.tj_array.size}) should be equal to source.size(dim): ({have}), for dim: {dim}"
        )
    if len(shape) != len(want) or any(n != m for d, (n, m) in enumerate(zip(shape, want, strict=True)) if d != dim):
        raise OutOfBoundsError(
            f"{name}(): source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape = "
            f"{list(input.shape)} source.shape = {list(source.shape)}"
        )


def put_along_dim(op: Op, into: Op, input: Tensor, dim: int, index: Tensor, source: Tensor, out: Any) -> Tensor:
    """Put slices along a dim; a 0-dim tensor counts as one of length 1."""
    inputs = (input, source, index) if input.tj_array.ndim else (input.reshape(1), source.reshape(1), index)
    return store_result(op, into, inputs, {"dims": (dim,), "strict": True}, input, out)


@public(
    samples=[sample(A(5, 2), 0, I(3, hi=5, distinct=True), A(3, 2)), sample(A(2, 4), -1, I(2, hi=4, distinct=True), A(2, 2))],
    inplace=True,
)
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor, *, out: Any = None) -> Tensor:
    """The tensor with the slices along `dim` that the index names replaced by those of the source."""
    place, index = as_index_vector("index_copy", index, dim, input)
    if source.tj_array.dtype != input.tj_array.dtype:
        raise RuntimeError(
            "index_copy(): self and source expected to have the same dtype, but got (self) "
            f"{input.dtype.legacy} and (source) {source.dtype.legacy}"
        )
    check_source("index_copy", input, place, index, source)
    return put_along_dim(INDEX_PUT, INDEX_PUT_INTO, input, place, index, source, out)


@public(
    samples=[
        sample(A(3, 4), 0, I(2, hi=3), 1.5),
        sample(A(3, 4), 1, I(2, lo=-4, hi=4), -1),
        sample(A(3), 0, I(2, hi=3), A()),
        sample(A(), 0, I(1, hi=1), 2.0),
    ],
    inplace=True,
)
def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """The tensor with a number in the slices along `dim` that the index names."""
    place, index = as_index_vector("index_fill", index, dim, input)
    filler = as_fill_value("index_fill", input, value)
    x = input if input.tj_array.ndim else input.reshape(1)
    length = x.tj_array.shape[place]
    chosen = (x.new_zeros((length,), dtype=dtypes.bool_), x.new_ones(index.tj_array.shape, dtype=dtypes.bool_), index)
    mask = at_dim(INDEX_PUT, chosen, 0, strict=False).reshape((length,) + (1,) * (x.tj_array.ndim - place - 1))
    found = where(mask, filler, x)
    return found if input.tj_array.ndim else found.reshape(())


def as_fill_value(name: str, input: Tensor, value: Any) -> Tensor:
    """A fill value, a number or a 0-dim tensor, as a 0-dim tensor of the input's dtype and device."""
    if isinstance(value, Tensor):
        if value.tj_array.ndim:
            raise RuntimeError(
                f"{name} only supports a 0-dimensional value tensor, but got tensor with {value.tj_array.ndim} dimension(s)."
            )
        return cast(transfer(value, input.device), input.dtype)
    return input.new_full((), dtypes.representable(name, input.dtype, value))


@public(
    samples=[
        sample(A(3, 4, distinct=True), 0, I(4, hi=3), A(4, 4, distinct=True, lo=-1.9, hi=2.1), "amax"),
        sample(A(3, 4), 0, I(4, hi=3), A(4, 4), "mean", include_self=False),
        sample(A(2, 3), 1, I(4, hi=3), A(2, 4), "prod"),
    ],
    inplace=True,
)
def index_reduce(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """The tensor with slices of the source combined into those that the index names: by prod, mean, amax or amin."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.")
    place, index = as_index_vector("index_reduce", index, dim, input)
    check_source("index_reduce", input, place, index, source)
    shape = source.tj_array.shape or (1,)
    wide = index.reshape((-1,) + (1,) * (len(shape) - place - 1)).expand(shape)
    return scatter_reduce(input, place, wide, source, reduce, include_self=include_self)


# ---- several indices


@public(
    samples=[
        sample(A(3, 4), (I(2, hi=3), I(2, hi=4)), A(2), accumulate=True),
        sample(A(5, 2), (I(3, hi=5, distinct=True),), A(2)),
        sample(A(3, 2), (B(3),), A()),
        sample(A(3, 4), (I(5, lo=-3, hi=3),), A(5, 4), True),
    ],
    inplace=True,
)
def index_put(input: Tensor, indices: Any, values: Tensor, accumulate: bool = False, *, out: Any = None) -> Tensor:
    """The tensor with `values` written, or with `accumulate` added, where the index tensors point."""
    for i, index in enumerate(indices):
        if not isinstance(index, Tensor):
            raise TypeError(f"expected Tensor as element {i} in argument 0, but got {type(index).__name__}")
    if not len(indices):
        raise RuntimeError("index_put(): expected at least one index tensor")
    dims, tensors = SplitIndex(input, tuple(i if i.tj_array.ndim else i.reshape(1) for i in indices)).indices()
    inputs = (input, broadcast_to_selection(input, dims, tensors, transfer(values, input.device)), *tensors)
    op, into = (INDEX_ADD, INDEX_ADD_INTO) if accumulate else (INDEX_PUT, INDEX_PUT_INTO)
    return store_result(op, into, inputs, {"dims": dims}, input, out)


@public(samples=[sample(A(3, 4), I(5, lo=-12, hi=12)), sample(A(3), I(2, 2, hi=3)), sample(A(2, 2), I(hi=4))])
def take(input: Tensor, index: Tensor, *, out: Any = None) -> Tensor:
    """Elements by their position in the flattened tensor."""
    found = apply(INDEX, (input.reshape(-1), flat_index("take", input, index)), {"dims": (0,)})
    return store_in_out(found, out, "take")


def flat_index(name: str, input: Tensor, index: Any) -> Tensor:
    if not isinstance(index, Tensor) or index.tj_array.dtype != np.int64:
        kind = index.dtype.legacy if isinstance(index, Tensor) else type(index).__name__
        raise RuntimeError(f"{name}(): Expected a long tensor for index, but got {kind}")
    if input.tj_array.size == 0 and index.tj_array.size:
        raise IndexError(f"{name}(): tried to take from an empty tensor")
    return index


@public(
    samples=[
        sample(A(3, 4), I(3, hi=12, distinct=True), A(3)),
        sample(A(2, 2), I(5, lo=-4, hi=4), A(5), accumulate=True),
        sample(A(2, 2), I(2, 2, hi=4, distinct=True), A(4)),
    ],
    inplace=True,
)
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """The tensor with elements of the source written, or added, at positions in the flattened tensor."""
    flat_index("put", input, index)
    if source.tj_array.size != index.tj_array.size:
        raise IndexError(
            "put(): Expected source and index to have the same number of elements, but got source.numel() = "
            f"{source.tj_array.size}, index.numel() = {index.tj_array.size}"
        )
    if source.tj_array.dtype != input.tj_array.dtype:
        raise RuntimeError(f"put(): self and source expected to have the same dtype, but got {input.dtype} and {source.dtype}")
    inputs = (input.reshape(-1), source.reshape(-1), index.reshape(-1))
    found = apply(INDEX_ADD if accumulate else INDEX_PUT, inputs, {"dims": (0,)})
    return found.reshape(input.tj_array.shape)


# ---- masks


def check_mask(name: str, mask: Any) -> None:
    if not isinstance(mask, Tensor) or mask.tj_array.dtype.kind != "b":
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise RuntimeError(f"{name} only supports boolean masks, but got mask with dtype {kind}; use mask.bool()")


@public(samples=[sample(A(3, 4), B(3, 4)), sample(A(3, 4), B(4)), sample(A(4), B(3, 4)), sample(A(), B(2))])
def masked_select(input: Tensor, mask: Tensor, *, out: Any = None) -> Tensor:
    """The elements where the mask holds, as a vector."""
    check_mask("masked_select", mask)
    shape = broadcast_shape("masked_select", mask.tj_array.shape, input.tj_array.shape)
    chosen = apply(NONZERO, (mask.expand(shape).reshape(-1),))
    return store_in_out(apply(INDEX, (input.expand(shape).reshape(-1), *chosen), {"dims": (0,)}), out, "masked_select")


@public(
    samples=[
        sample(A(3, 4), B(3, 4), 1.5),
        sample(A(3, 4), B(4), -math.inf, grad=False),
        sample(A(3, 4), B(3, 1), A()),
        sample(I(3), B(3), 2.7, grad=False),
    ],
    inplace=True,
)
def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """The tensor with a number where the mask holds."""
    check_mask("masked_fill", mask)
    if isinstance(value, Tensor):
        return where(mask, as_fill_value("masked_fill", input, value), input).contiguous()  # type: ignore[no-any-return]
    return where(mask, dtypes.representable("masked_fill", input.dtype, value), input).contiguous()  # type: ignore[no-any-return]


@public(samples=[sample(A(3, 4), B(3, 4), A(12)), sample(A(3, 4), B(4), A(4, 4))], inplace=True)
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The tensor with elements of the source, in their order, where the mask holds."""
    check_mask("masked_scatter", mask)
    if source.tj_array.dtype != input.tj_array.dtype:
        raise RuntimeError(
            "masked_scatter: expected self and source to have same dtypes but got "
            f"{input.dtype.legacy} and {source.dtype.legacy}"
        )
    shape = broadcast_shape("masked_scatter", mask.tj_array.shape, input.tj_array.shape)
    (chosen,) = apply(NONZERO, (mask.expand(shape).reshape(-1),))
    count = chosen.tj_array.shape[0]
    if source.tj_array.size < count:
        raise RuntimeError(
            f"masked_scatter: Number of elements of source < number of ones in mask: {source.tj_array.size} and {count}"
        )
    inputs = (input.expand(shape).reshape(-1), source.reshape(-1)[:count], chosen)
    return apply(INDEX_PUT, inputs, {"dims": (0,)}).reshape(shape)


# ---- where something is


@public(
    samples=[
        sample(I(3, 4, hi=2), grad=False),
        sample(B(2, 2, 2), as_tuple=True, grad=False),
        sample(I(hi=2), grad=False),
        sample(A(3), grad=False),
    ],
    op=NONZERO,
)
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The indices of the elements that are not zero: a row for each, or a vector for each dim."""
    flat = input.reshape(1) if input.tj_array.ndim == 0 else input
    found = apply(NONZERO, (flat.detach(),))
    if as_tuple:
        return found
    if input.tj_array.ndim == 0:
        return found[0].reshape(-1, 1)[:, :0]
    return stack(found, 1)


@public(samples=[sample(I(3, 4, hi=2), grad=False), sample(I(hi=2), grad=False)])
def argwhere(input: Tensor) -> Tensor:
    """The indices of the elements that are not zero, a row for each."""
    return nonzero(input)


@public(
    "nn.functional",
    samples=[
        sample(I(5, hi=4), 4, grad=False),
        sample(I(2, 3, hi=4), num_classes=6, grad=False),
        sample(I(3, hi=4), grad=False),
    ],
)
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A vector of zeros with a single one, at the element's value, for each element."""
    if tensor.tj_array.dtype != np.int64:
        raise RuntimeError(f"one_hot is only applicable to index tensor of type LongTensor, got {tensor.dtype}; use .long()")
    if tensor.tj_array.size == 0:
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return tensor.new_zeros((*tensor.tj_array.shape, num_classes))
    if int(tensor.amin().item()) < 0:
        raise RuntimeError("one_hot: Class values must be non-negative.")
    largest = int(tensor.amax().item())
    if num_classes == -1:
        num_classes = largest + 1
    elif largest >= num_classes:
        raise RuntimeError(f"one_hot: Class values must be smaller than num_classes: {largest} and {num_classes}.")
    return cast(tensor.unsqueeze(-1) == arange(num_classes, device=tensor.device), dtypes.int64)


# ---- single slices, and the tensor with one replaced


def wrap_scalar_index(name: str, input: Tensor, dim: int, index: Any) -> tuple[int, int]:
    if input.tj_array.ndim == 0:
        raise IndexError(f"{name}() cannot be applied to a 0-dim tensor.")
    place = wrap_dim(dim, input.tj_array.ndim)
    size, i = input.tj_array.shape[place], as_index(index, "an index")
    if not -size <= i < size:
        raise IndexError(f"{name}(): index {i} out of range for tensor of size {list(input.shape)} at dimension {place}")
    return place, i + size if i < 0 else i


@public(samples=[sample(A(3, 4), 0, 1), sample(A(3, 4), -1, -1), sample(A(3), 0, 2)])
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """A view of one slice along `dim`, without that dim."""
    place, i = wrap_scalar_index("select", input, dim, index)
    return apply(SLICE, (input,), {"index": (*(ALL,) * place, i, ...)})


@public(samples=[sample(A(3, 4), 0, 1, 2), sample(A(3, 4), -1, -3, 2), sample(A(3, 4), 1, 4, 0)])
def narrow(input: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """A view of `length` slices along `dim`, from `start` on."""
    if input.tj_array.ndim == 0:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    place = wrap_dim(dim, input.tj_array.ndim)
    size, first = input.tj_array.shape[place], as_index(start, "start")
    if length < 0:
        raise RuntimeError("narrow(): length must be non-negative.")
    if not -size <= first <= size:
        raise IndexError(f"narrow(): start out of range (expected to be in range of [{-size}, {size}], but got {first})")
    first = first + size if first < 0 else first
    if first + length > size:
        raise RuntimeError(f"narrow(): start ({first}) + length ({length}) exceeds dimension size ({size}).")
    return apply(SLICE, (input,), {"index": (*(ALL,) * place, slice(first, first + length))})


def replace_view(name: str, input: Tensor, src: Tensor, op: Any, attrs: dict[str, Any]) -> Tensor:
    """A copy of the tensor with what a view op shows of it replaced."""
    have = apply(op, (input.detach(),), attrs).tj_array.shape
    if src.tj_array.shape != have:
        raise RuntimeError(
            f"{name}: expected src to have a size equal to the slice of self. src size = {list(src.shape)}, "
            f"slice size = {list(have)}"
        )
    return apply(VIEW_SCATTER, (input, cast(src, input.dtype)), {"chain": ((op, attrs, None),)})


@public(
    samples=[
        sample(A(4, 2), A(2, 2), start=2),
        sample(A(3, 4), A(3, 2), 1, 0, 9, 2),
        sample(A(3, 2), A(1, 2), end=-2),
    ]
)
def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A copy of the tensor with the slice start:end:step along `dim` replaced."""
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    attrs = {"index": (*(ALL,) * wrap_dim(dim, input.tj_array.ndim), slice(start, end, step))}
    return replace_view("slice_scatter", input, src, SLICE, attrs)


@public(samples=[sample(A(3, 4), A(4), 0, 1), sample(A(3, 4), A(3), -1, -1)])
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of the tensor with one slice along `dim` replaced."""
    place, i = wrap_scalar_index("select_scatter", input, dim, index)
    return replace_view("select_scatter", input, src, SLICE, {"index": (*(ALL,) * place, i, ...)})


@public(samples=[sample(A(3, 3), A(3)), sample(A(3, 4), A(3), 1), sample(A(2, 3, 4), A(2, 3), 0, 1, 2)])
def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy of the tensor with a diagonal replaced."""
    a, b = wrap_dim(dim1, input.tj_array.ndim), wrap_dim(dim2, input.tj_array.ndim)
    return replace_view("diagonal_scatter", input, src, DIAGONAL, {"offset": offset, "dim1": a, "dim2": b})


def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Write a number into the main diagonal, which begins again below itself in a tall matrix if `wrap`."""
    shape = self.tj_array.shape
    if len(shape) < 2:
        raise RuntimeError(f"fill_diagonal_: dimensions must be larger than 1, got a tensor of shape {list(shape)}")
    if len(shape) > 2 and len(set(shape)) > 1:
        raise RuntimeError(f"fill_diagonal_: all dimensions of input must be of equal length, got {list(shape)}")
    value = as_fill_value("fill_diagonal_", self, fill_value)
    blocks = [self]
    if wrap and len(shape) == 2 and shape[0] > shape[1]:
        blocks = [self[k : k + shape[1]] for k in range(0, shape[0], shape[1] + 1)]
    for block in blocks:
        while block.tj_array.ndim > 1:
            block = apply(DIAGONAL, (block,), {"offset": 0, "dim1": 0, "dim2": block.tj_array.ndim - 1})
        write(block, value, "fill_diagonal_")
    return self


setattr(Tensor, "fill_diagonal_", fill_diagonal_)  # noqa: B010 -- the class has no such attribute to type checkers
