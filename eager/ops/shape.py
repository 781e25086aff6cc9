"""Shapes: what people call to rearrange tensors, composed of the movement primitives."""

from __future__ import annotations

import math
from typing import Any

from ..op import apply, public
from ..samples import A, sample
from ..tensor import Tensor, as_index, wrap_dim
from .movement import CAT, CLONE, EXPAND, PERMUTE, SLICE, SPLIT, UNBIND, VIEW
from .pointwise import cast, result_type


def sizes(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape given as `f(2, 3)` or `f((2, 3))`."""
    if len(shape) == 1 and not isinstance(shape[0], int) and hasattr(shape[0], "__iter__"):
        shape = tuple(shape[0])
    return tuple([n if n.__class__ is int else as_index(n, "a size") for n in shape])


def resolved(shape: tuple[int, ...], input: Tensor, name: str) -> tuple[int, ...]:
    """A shape with its -1 worked out, checked against the number of elements."""
    count = input._array.size
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        if shape.count(-1) > 1:
            raise RuntimeError(f"{name}: only one dimension can be inferred, but the shape is {list(shape)}")
        if known == 0 and count == 0:
            raise RuntimeError(
                f"cannot reshape tensor of 0 elements into shape {list(shape)} because the unspecified dimension size -1 "
                "can be any value and is ambiguous"
            )
        if known and count % known == 0:
            shape = tuple(count // known if n == -1 else n for n in shape)
    if any(n < -1 for n in shape):
        raise RuntimeError(f"{name}: invalid shape dimension {min(shape)} in {list(shape)}")
    if math.prod(shape) != count or -1 in shape:
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {count} (a tensor of shape {list(input.shape)})")
    return shape


def viewable(array: Any, shape: tuple[int, ...]) -> bool:
    """Whether `shape` can be shown on the same memory: each run of dims that is split or merged must be contiguous."""
    if array.flags.c_contiguous or array.size == 0:
        return True
    old = [(n, s) for n, s in zip(array.shape, array.strides, strict=True) if n != 1]
    new = [n for n in shape if n != 1]
    i = j = 0
    while i < len(old) and j < len(new):
        have, want, last = old[i][0], new[j], i
        while have != want:
            if have < want:
                last += 1
                have *= old[last][0]
            else:
                j += 1
                want *= new[j]
        if any(old[k][1] != old[k + 1][1] * old[k + 1][0] for k in range(i, last)):
            return False
        i, j = last + 1, j + 1
    return True


@public(samples=[sample(A(2, 6), (3, -1)), sample(A(2, 3), (6,)), sample(A(1, 1), ())])
def reshape(input: Tensor, *shape: Any) -> Tensor:
    """Another shape for the same elements: a view when the memory allows it, else a copy."""
    found = resolved(sizes(shape), input, "reshape")
    if not viewable(input._array, found):
        input = apply(CLONE, (input,))
    return apply(VIEW, (input,), {"shape": found})  # type: ignore[no-any-return]


@public(samples=[sample(A(2, 6), 3, 4, peer=False), sample(A(2, 6), (3, -1), peer=False)], op=VIEW)
def view(input: Tensor, *shape: Any) -> Tensor:
    """Another shape on the same memory; an error where the memory does not allow it."""
    if len(shape) == 1 and not isinstance(shape[0], int) and not hasattr(shape[0], "__iter__"):
        return view_dtype(input, shape[0])
    found = resolved(sizes(shape), input, "view")
    if not viewable(input._array, found):
        raise RuntimeError(
            f"view size is not compatible with input tensor's size and stride (shape {list(input.shape)} to {list(found)}: at least "
            "one dimension spans across two contiguous subspaces). Use .reshape(...) instead."
        )
    return apply(VIEW, (input,), {"shape": found})  # type: ignore[no-any-return]


def view_dtype(input: Tensor, dtype: Any) -> Tensor:
    """The same bits as another dtype."""
    from .. import dtypes
    from .convert import detach

    t = detach(input)
    t._array = input._array.view(dtypes.as_dtype(dtype).numpy)
    return t


@public(samples=[sample(A(2, 3, 4), (2, 0, 1)), sample(A(2, 3), (-1, 0))], op=PERMUTE)
def permute(input: Tensor, *dims: Any) -> Tensor:
    """A view with the dims in another order."""
    wanted = sizes(dims)
    ndim = input._array.ndim
    found = tuple(wrap_dim(d, ndim) for d in wanted)
    if len(found) != ndim:
        raise RuntimeError(
            f"permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired ordering "
            f"of dimensions i.e. input.dim() = {ndim} is not equal to len(dims) = {len(found)}".replace("(sparse_coo)", "")
        )
    if len(set(found)) != ndim:
        raise RuntimeError(f"permute(): duplicate dims are not allowed, got {list(wanted)}")
    return apply(PERMUTE, (input,), {"dims": found})  # type: ignore[no-any-return]


@public(samples=[sample(A(2, 3, 4), 0, 2), sample(A(2, 3), -1, 0), sample(A(), 0, 0)])
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """A view with two dims swapped."""
    ndim = input._array.ndim
    a, b = wrap_dim(dim0, ndim), wrap_dim(dim1, ndim)
    order = list(range(ndim))
    if ndim:
        order[a], order[b] = order[b], order[a]
    return apply(PERMUTE, (input,), {"dims": tuple(order)})  # type: ignore[no-any-return]


@public(samples=[sample(A(2, 3)), sample(A(3))])
def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; vectors and numbers stay as they are."""
    if input._array.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {input._array.ndim}D; use .mT or transpose")
    return transpose(input, 0, 1) if input._array.ndim == 2 else input


@public(samples=[sample(A(2, 1, 3), 1), sample(A(1, 2, 1)), sample(A(2, 3), 0), sample(A(1, 2, 1, 1), (0, 2))], inplace=False)
def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """A view without the dims of length 1 (all of them, or those named)."""
    shape = input._array.shape
    if dim is None:
        dims = set(range(len(shape)))
    else:
        dims = {wrap_dim(d, len(shape)) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))}
    found = tuple(n for i, n in enumerate(shape) if not (n == 1 and i in dims))
    return apply(VIEW, (input,), {"shape": found}) if viewable(input._array, found) else _drop(input, dims)  # type: ignore[no-any-return]


def _drop(input: Tensor, dims: set[int]) -> Tensor:
    shape = input._array.shape
    place = tuple(0 if n == 1 and i in dims else slice(None) for i, n in enumerate(shape))
    return apply(SLICE, (input,), {"index": place})  # type: ignore[no-any-return]


@public(samples=[sample(A(2, 3), 0), sample(A(2, 3), -1), sample(A(), 0)])
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """A view with a new dim of length 1."""
    place = wrap_dim(dim, input._array.ndim + 1)
    return apply(SLICE, (input,), {"index": (slice(None),) * place + (None, ...)})  # type: ignore[no-any-return]


@public(samples=[sample(A(3, 1), (2, 3, 4)), sample(A(3, 1), (-1, 4)), sample(A(), (2,))], op=EXPAND)
def expand(input: Tensor, *size: Any) -> Tensor:
    """A view with dims of length 1 stretched, and new ones in front; -1 keeps a length."""
    wanted, shape = sizes(size), input._array.shape
    extra = len(wanted) - len(shape)
    if extra < 0:
        raise RuntimeError(
            f"expand({list(shape)}, size={list(wanted)}): the number of sizes provided ({len(wanted)}) must be greater or equal to "
            f"the number of dimensions in the tensor ({len(shape)})"
        )
    found = []
    for i, n in enumerate(wanted):
        have = shape[i - extra] if i >= extra else 1
        if n == -1:
            if i < extra:
                raise RuntimeError(f"expand: -1 is not allowed for the new leading dimension {i} of {list(wanted)}")
            n = have
        if have not in (1, n) or n < 0:
            raise RuntimeError(
                f"The expanded size of the tensor ({n}) must match the existing size ({have}) at non-singleton dimension {i}. "
                f"Target sizes: {list(wanted)}. Tensor sizes: {list(shape)}"
            )
        found.append(n)
    if tuple(found) == shape:
        found_view = apply(VIEW, (input,), {"shape": shape}) if viewable(input._array, shape) else input
        return found_view  # type: ignore[no-any-return]
    return apply(EXPAND, (input,), {"shape": tuple(found)})  # type: ignore[no-any-return]


def contiguous(self: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor itself if its memory is in order, else a copy that is."""
    return self if self._array.flags.c_contiguous else apply(CLONE, (self,))


@public(samples=[sample(A(2, 3, 4)), sample(A(2, 3, 4), 1), sample(A(2, 3, 4), 0, 1), sample(A())])
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Join the dims from start_dim to end_dim into one."""
    shape = input._array.shape
    a, b = wrap_dim(start_dim, len(shape)), wrap_dim(end_dim, len(shape))
    if a > b:
        raise RuntimeError(f"flatten() has invalid args: start_dim {start_dim} cannot come after end_dim {end_dim}")
    if not shape:
        return reshape(input, 1)
    return reshape(input, *shape[:a], math.prod(shape[a : b + 1]), *shape[b + 1 :]) if a != b else input


@public(samples=[sample([A(2, 3), A(1, 3)]), sample([A(2, 1), A(2, 2), A(2, 3)], dim=-1)], method=False, op=CAT)
def cat(tensors: Any, dim: int = 0) -> Tensor:
    """Join tensors along a dim."""
    parts = list(tensors)
    if not parts:
        raise ValueError("cat(): expected a non-empty list of Tensors")
    if not all(isinstance(p, Tensor) for p in parts):
        kind = next(type(p).__name__ for p in parts if not isinstance(p, Tensor))
        raise TypeError(f"cat(): expected Tensors, but found {kind} in the list")
    kept = [p for p in parts if p._array.shape != (0,)] or parts[:1]
    first = kept[0]._array.shape
    if not first:
        raise RuntimeError("zero-dimensional tensor (at position 0) cannot be concatenated; use stack")
    place = wrap_dim(dim, len(first))
    for i, p in enumerate(kept):
        shape = p._array.shape
        if len(shape) != len(first):
            raise RuntimeError(f"Tensors must have same number of dimensions: got {len(first)} and {len(shape)} in cat()")
        if any(n != m for d, (n, m) in enumerate(zip(first, shape, strict=True)) if d != place):
            raise RuntimeError(
                f"Sizes of tensors must match except in dimension {place}. Expected {list(first)} but got {list(shape)} for tensor "
                f"number {i} in the list."
            )
    common = parts[0].dtype if all_same([p._array.dtype for p in parts]) else result_type(*parts)
    return apply(CAT, tuple([cast(p, common) for p in kept]), {"dim": place})  # type: ignore[no-any-return]


def all_same(values: list[Any]) -> bool:
    return all(v == values[0] for v in values)


@public(samples=[sample([A(2, 3), A(2, 3)]), sample([A(2), A(2), A(2)], dim=-1)], method=False)
def stack(tensors: Any, dim: int = 0) -> Tensor:
    """Join tensors of one shape along a new dim."""
    parts = list(tensors)
    if not parts:
        raise RuntimeError("stack expects a non-empty TensorList")
    shapes = [p._array.shape for p in parts]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(shapes[0])} at entry 0 and {list(shape)} at entry {i}"
            )
    place = wrap_dim(dim, len(shapes[0]) + 1)
    return cat([unsqueeze(p, place) for p in parts], place)


@public(samples=[sample(A(5, 2), 2), sample(A(5, 2), [1, 4]), sample(A(2, 6), 3, dim=1)])
def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of pieces of a length, or of the lengths given."""
    if tensor._array.ndim == 0:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    place = wrap_dim(dim, tensor._array.ndim)
    length = tensor._array.shape[place]
    if isinstance(split_size_or_sections, int):
        size = split_size_or_sections
        if size < 0 or (size == 0 and length):
            raise RuntimeError(f"split expects split_size be non-negative, but got split_size={size}")
        lengths = [min(size, length - i) for i in range(0, length, size)] if length else [0]
    else:
        lengths = [as_index(n, "a section") for n in split_size_or_sections]
        if sum(lengths) != length or min(lengths, default=0) < 0:
            raise RuntimeError(
                f"split_with_sizes expects split_sizes to sum exactly to {length} (input tensor's size at dimension {place}), "
                f"but got split_sizes={lengths}"
            )
    return apply(SPLIT, (tensor,), {"sizes": tuple(lengths), "dim": place})  # type: ignore[no-any-return]


@public(samples=[sample(A(2, 3)), sample(A(2, 3), 1)], op=UNBIND)
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of the slices along a dim."""
    if input._array.ndim == 0:
        raise RuntimeError("unbind: Dimension specified as 0 but tensor has no dimensions")
    return apply(UNBIND, (input,), {"dim": wrap_dim(dim, input._array.ndim)})  # type: ignore[no-any-return]


Tensor.contiguous = contiguous
Tensor.T = property(lambda self: permute(self, *reversed(range(self._array.ndim))))  # type: ignore[assignment]
