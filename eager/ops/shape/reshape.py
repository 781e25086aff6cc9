"""Shapes: the same elements with other dims, mostly as views. All of it is composed of the movement primitives.

Joining and parting is in `join.py`, repeating, padding and the like in `rearrange.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arrays import dtypes
from ...arrays.op_samples import A, I, sample
from ...core.cast import cast
from ...core.dispatch import apply
from ...core.errors import broadcast_error
from ...core.registration import public
from ...core.tape.inplace import REMEDY, move_retain_grad
from ...core.tape.node import local
from ...core.tensor import Size, Tensor, as_index, tensor_changed, wrap_dim, wrap_dims
from ..pointwise import put, result_type
from .views import AS_STRIDED, CAT, CLONE, DIAGONAL, EXPAND, PERMUTE, SPLIT, UNBIND, VIEW, WINDOWS, inverse


def sizes(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape given as `f(2, 3)` or `f((2, 3))`."""
    if len(shape) == 1 and not isinstance(shape[0], int) and hasattr(shape[0], "__iter__"):
        shape = tuple(shape[0])
    return tuple([n if n.__class__ is int else as_index(n, "a size") for n in shape])


def resolve_shape(shape: tuple[int, ...], input: Tensor, name: str) -> tuple[int, ...]:
    """A shape with its -1 worked out, checked against the number of elements."""
    count = input.tj_array.size
    if math.prod(shape) == count and (not shape or min(shape) >= 0):
        return shape
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
        raise RuntimeError(
            f"shape '{list(shape)}' is invalid for input of size {count} (a tensor of shape {list(input.shape)})"
        )
    return shape


def can_view(array: Any, shape: tuple[int, ...]) -> bool:
    """True if `shape` can be shown on the same memory: each run of dims that is split or merged must be contiguous."""
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
def reshape(input: Tensor, *lengths: Any, shape: Any = None) -> Tensor:
    """Another shape for the same elements: a view when the memory allows it, else a copy."""
    found = resolve_shape(sizes(lengths if shape is None else (shape,)), input, "reshape")
    if not can_view(input.tj_array, found):
        input = apply(CLONE, (input,))
    return apply(VIEW, (input,), {"shape": found})


@public(samples=[sample(A(2, 6), 3, 4, peer=False), sample(A(2, 6), (3, -1), peer=False)], op=VIEW)
def view(input: Tensor, *lengths: Any, size: Any = None, dtype: Any = None) -> Tensor:
    """Another shape on the same memory, an error where the memory does not allow it; or the same bits as another dtype."""
    if dtype is not None:
        return view_dtype(input, dtype)
    if len(lengths) == 1 and not isinstance(lengths[0], int) and not hasattr(lengths[0], "__iter__"):
        return view_dtype(input, lengths[0])
    found = resolve_shape(sizes(lengths if size is None else (size,)), input, "view")
    if not can_view(input.tj_array, found):
        raise RuntimeError(
            f"view size is not compatible with input tensor's size and stride (shape {list(input.shape)} to {list(found)}: at "
            "least one dimension spans across two contiguous subspaces). Use .reshape(...) instead."
        )
    return apply(VIEW, (input,), {"shape": found})


def view_dtype(input: Tensor, dtype: Any) -> Tensor:
    """The same bits as another dtype."""
    from ..convert import detach

    kind, t = dtypes.as_dtype(dtype), detach(input)
    if kind.numpy.itemsize != input.tj_array.itemsize:
        size = input.tj_array.shape[-1] * input.tj_array.itemsize if input.tj_array.ndim else 0
        if size % kind.numpy.itemsize or not size or input.tj_array.strides[-1] != input.tj_array.itemsize:
            raise RuntimeError(
                f"view: a tensor of shape {list(input.shape)} and {input.dtype} cannot be viewed as {kind}: the last dimension "
                f"must be in order in memory (use .contiguous() first) and its {size} bytes divisible by {kind.numpy.itemsize}"
            )
    t.tj_array = input.tj_array.view(kind.numpy)
    return t


@public(samples=[sample(A(2, 3, 4), (2, 0, 1)), sample(A(2, 3), (-1, 0))], op=PERMUTE)
def permute(input: Tensor, *order: Any, dims: Any = None) -> Tensor:
    """A view with the dims in another order."""
    wanted = sizes(order if dims is None else (dims,))
    ndim = input.tj_array.ndim
    found = tuple(wrap_dim(d, ndim) for d in wanted)
    if len(found) != ndim:
        raise RuntimeError(
            "permute: number of dimensions in the tensor input does not match the length of the desired ordering of dimensions "
            f"i.e. input.dim() = {ndim} is not equal to len(dims) = {len(found)}"
        )
    if len(set(found)) != ndim:
        raise RuntimeError(f"permute(): duplicate dims are not allowed, got {list(wanted)}")
    return apply(PERMUTE, (input,), {"dims": found})


@public(samples=[sample(A(2, 3, 4), 0, 2), sample(A(2, 3), -1, 0), sample(A(), 0, 0)])
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """A view with two dims swapped."""
    ndim = input.tj_array.ndim
    a, b = wrap_dim(dim0, ndim), wrap_dim(dim1, ndim)
    order = list(range(ndim))
    if ndim:
        order[a], order[b] = order[b], order[a]
    return apply(PERMUTE, (input,), {"dims": tuple(order)})


@public(samples=[sample(A(2, 3)), sample(A(3))])
def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; vectors and numbers stay as they are."""
    if input.tj_array.ndim > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {input.tj_array.ndim}D; use .mT or transpose"
        )
    return transpose(input, 0, 1) if input.tj_array.ndim == 2 else input


@public(samples=[sample(A(2, 1, 3), 1), sample(A(1, 2, 1)), sample(A(2, 3), 0), sample(A(1, 2, 1, 1), (0, 2))], inplace=False)
def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """A view without the dims of length 1 (all of them, or those named)."""
    shape = input.tj_array.shape
    dims = wrap_dims(dim, len(shape)) if dim is None or dim != () else ()
    found = tuple(n for i, n in enumerate(shape) if not (n == 1 and i in dims))
    return apply(VIEW, (input,), {"shape": found})


@public(samples=[sample(A(2, 3), 0), sample(A(2, 3), -1), sample(A(), 0)])
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """A view with a new dim of length 1."""
    shape = input.tj_array.shape
    place = wrap_dim(dim, len(shape) + 1)
    return apply(VIEW, (input,), {"shape": (*shape[:place], 1, *shape[place:])})


@public(samples=[sample(A(3, 1), (2, 3, 4)), sample(A(3, 1), (-1, 4)), sample(A(), (2,))], op=EXPAND)
def expand(input: Tensor, *lengths: Any, size: Any = None) -> Tensor:
    """A view with dims of length 1 stretched, and new ones in front; -1 keeps a length."""
    wanted, shape = sizes(lengths if size is None else (size,)), input.tj_array.shape
    extra = len(wanted) - len(shape)
    if extra < 0:
        raise RuntimeError(
            f"expand({list(shape)}, size={list(wanted)}): the number of sizes provided ({len(wanted)}) must be greater or "
            f"equal to the number of dimensions in the tensor ({len(shape)})"
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
    op = VIEW if tuple(found) == shape else EXPAND
    return apply(op, (input,), {"shape": tuple(found)})


def contiguous(self: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor itself if its memory is in order, else a copy that is."""
    return self if self.tj_array.flags.c_contiguous else apply(CLONE, (self,))


@public(samples=[sample(A(2, 3, 4)), sample(A(2, 3, 4), 1), sample(A(2, 3, 4), 0, 1), sample(A())])
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Join the dims from start_dim to end_dim into one."""
    shape = input.tj_array.shape
    a, b = wrap_dim(start_dim, len(shape)), wrap_dim(end_dim, len(shape))
    if a > b:
        raise RuntimeError(f"flatten() has invalid args: start_dim {start_dim} cannot come after end_dim {end_dim}")
    if not shape:
        return reshape(input, 1)
    return reshape(input, *shape[:a], math.prod(shape[a : b + 1]), *shape[b + 1 :]) if a != b else input


@public(samples=[sample([A(2, 3), A(1, 3)]), sample([A(2, 1), A(2, 2), A(2, 3)], dim=-1)], method=False, op=CAT)
def cat(tensors: Any, dim: int = 0, *, out: Any = None) -> Tensor:
    """Join tensors along a dim."""
    parts = tensor_list(tensors, "cat")
    if not parts:
        raise ValueError("cat(): expected a non-empty list of Tensors")
    kept = [p for p in parts if p.tj_array.shape != (0,)] or parts[:1]
    first = kept[0].tj_array.shape
    if not first:
        raise RuntimeError("zero-dimensional tensor (at position 0) cannot be concatenated; use stack")
    place = wrap_dim(dim, len(first))
    before, after = first[:place], first[place + 1 :]
    for i, p in enumerate(kept):
        shape = p.tj_array.shape
        if len(shape) != len(first):
            raise RuntimeError(f"Tensors must have same number of dimensions: got {len(first)} and {len(shape)} in cat()")
        if shape[:place] != before or shape[place + 1 :] != after:
            raise RuntimeError(
                f"Sizes of tensors must match except in dimension {place}. Expected {list(first)} but got {list(shape)} for "
                f"tensor number {i} in the list."
            )
    return put(CAT, tuple(promote_all(kept, parts)), {"dim": place}, out)


def tensor_list(tensors: Any, name: str) -> list[Tensor]:
    """Check that the inputs of a join are tensors and nothing else."""
    if isinstance(tensors, Tensor):
        raise TypeError(f"{name}(): argument 'tensors' must be tuple of Tensors, not Tensor")
    if not hasattr(tensors, "__iter__"):
        raise TypeError(f"{name}(): argument 'tensors' must be tuple of Tensors, not {type(tensors).__name__}")
    parts = list(tensors)
    for p in parts:
        if not isinstance(p, Tensor):
            raise TypeError(f"{name}(): expected Tensors, but found {type(p).__name__} in the list")
    return parts


def promote_all(kept: list[Tensor], parts: list[Tensor]) -> list[Tensor]:
    """The tensors in the dtype that all parts promote to."""
    dtype = parts[0].tj_array.dtype
    for p in parts:
        if p.tj_array.dtype is not dtype:
            common = result_type(*parts)
            return [cast(p, common) for p in kept]
    return kept


@public(samples=[sample([A(2, 3), A(2, 3)]), sample([A(2), A(2), A(2)], dim=-1)], method=False)
def stack(tensors: Any, dim: int = 0, *, out: Any = None) -> Tensor:
    """Join tensors of one shape along a new dim."""
    parts = tensor_list(tensors, "stack")
    if not parts:
        raise RuntimeError("stack expects a non-empty TensorList")
    shape = parts[0].tj_array.shape
    for i, p in enumerate(parts):
        if p.tj_array.shape != shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(shape)} at entry 0 and {list(p.shape)} at entry {i}"
            )
    place = wrap_dim(dim, len(shape) + 1)
    attrs = {"shape": (*shape[:place], 1, *shape[place:])}
    return put(CAT, tuple([apply(VIEW, (p,), attrs) for p in promote_all(parts, parts)]), {"dim": place}, out)


@public(samples=[sample(A(5, 2), 2), sample(A(5, 2), [1, 4]), sample(A(2, 6), 3, dim=1)])
def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of pieces of a length, or of the lengths given."""
    if tensor.tj_array.ndim == 0:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    place = wrap_dim(dim, tensor.tj_array.ndim)
    length = tensor.tj_array.shape[place]
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
    return apply(SPLIT, (tensor,), {"sizes": tuple(lengths), "dim": place})


@public(samples=[sample(A(2, 3)), sample(A(2, 3), 1)], op=UNBIND)
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of the slices along a dim."""
    if input.tj_array.ndim == 0:
        raise IndexError("unbind: Dimension specified as 0 but tensor has no dimensions")
    return apply(UNBIND, (input,), {"dim": wrap_dim(dim, input.tj_array.ndim)})


@public(samples=[sample(A(2, 3)), sample(A())])
def ravel(input: Tensor) -> Tensor:
    """All elements in one dim: a view when the memory allows it."""
    return reshape(input, -1) if input.tj_array.size else reshape(input, 0)


@public(samples=[sample(A(2, 6), 1, (2, -1)), sample(A(6, 2), -2, (3, 2)), sample(A(4), 0, [4])])
def unflatten(input: Tensor, dim: int, sizes: Any) -> Tensor:
    """A view with one dim replaced by several."""
    shape = input.tj_array.shape
    place, parts = wrap_dim(dim, len(shape)), _sizes_of(sizes)
    if not parts:
        raise RuntimeError("unflatten: sizes must be non-empty")
    known = math.prod(n for n in parts if n != -1)
    if -1 in parts and known and shape[place] % known == 0:
        parts = tuple(shape[place] // known if n == -1 else n for n in parts)
    if math.prod(parts) != shape[place] or min(parts) < 0:
        raise RuntimeError(
            f"unflatten: Provided sizes {list(parts)} don't multiply up to the size of dim {place} ({shape[place]}) in the "
            "input tensor"
        )
    return view(input, *shape[:place], *parts, *shape[place + 1 :])


def _sizes_of(shape: Any) -> tuple[int, ...]:
    return sizes((shape,))


@public(samples=[sample(A(2, 3), A(3, 2, grad=False)), sample(A(4), A(2, 2, grad=False))])
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """`reshape` to another tensor's shape."""
    return reshape(input, other.tj_array.shape)


@public(samples=[sample(A(6), A(3, 2, grad=False)), sample(A(2, 3), A(2, 1, 3, grad=False))])
def view_as(input: Tensor, other: Tensor) -> Tensor:
    """`view` with another tensor's shape."""
    return view(input, other.tj_array.shape)


@public(samples=[sample(A(3, 1), A(2, 3, 4, grad=False)), sample(A(), A(2, grad=False))])
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """`expand` to another tensor's shape."""
    return expand(input, other.tj_array.shape)


@public(samples=[sample(A(3, 1), (2, 3, 4)), sample(A(), (2,))])
def broadcast_to(input: Tensor, size: Any) -> Tensor:
    """A view broadcast to a shape."""
    return expand(input, _sizes_of(size))


def broadcast_shape(name: str, *shapes: Any) -> tuple[int, ...]:
    """The shape that shapes broadcast to, or PyTorch's error."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise RuntimeError(f"{name}(): {broadcast_error(list(shapes))}") from None


@public(samples=[sample((2, 1), (3,), grad=False), sample((), (4,), (1, 1), grad=False)], method=False)
def broadcast_shapes(*shapes: Any) -> Size:
    """The shape that shapes broadcast to."""
    return Size(broadcast_shape("broadcast_shapes", *[sizes((s,)) for s in shapes]))


@public(samples=[sample(A(2, 1), A(3)), sample(A(), A(2), A(2, 2))], method=False)
def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """Views of the tensors with the shape they broadcast to."""
    parts = as_tensor_list("broadcast_tensors", tensors)
    shape = broadcast_shape("broadcast_tensors", *[p.tj_array.shape for p in parts])
    return tuple(expand(p, shape) for p in parts)


def as_tensor_list(name: str, tensors: tuple[Any, ...]) -> list[Tensor]:
    """Tensors given as `f(a, b)` or `f([a, b])`."""
    return tensor_list(tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors, name)


@public(samples=[sample(A(2, 3, 4), 0, -1), sample(A(2, 3, 4), (0, 1), (1, 2)), sample(A(), 0, 0)])
def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """A view with some dims in other places; the rest keep their order."""
    ndim = input.tj_array.ndim
    pairs = [(d,) if isinstance(d, int) else tuple(d) for d in (source, destination)]
    if len(pairs[0]) != len(pairs[1]):
        raise RuntimeError(
            f"movedim: Invalid source or destination dims: source ({list(pairs[0])} dims) should contain the same number of "
            f"dims as destination ({list(pairs[1])} dims)"
        )
    if ndim == 0:
        return permute(input, [wrap_dim(d, 0) for d in pairs[0]][:0])
    origins, places = wrap_dims(pairs[0], ndim) if pairs[0] else (), wrap_dims(pairs[1], ndim) if pairs[1] else ()
    rest = iter(d for d in range(ndim) if d not in origins)
    moved = dict(zip(places, origins, strict=True))
    return permute(input, [moved[d] if d in moved else next(rest) for d in range(ndim)])


@public(samples=[sample(A(2, 3, 4), 0, -1)])
def moveaxis(input: Tensor, source: Any, destination: Any) -> Tensor:
    """The same as `movedim`."""
    return movedim(input, source, destination)


@public(samples=[sample(A(2, 3, 4), 0, 2)])
def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """The same as `transpose`."""
    return transpose(input, axis0, axis1)


@public(samples=[sample(A(2, 3, 4), 0, 2)])
def swapdims(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """The same as `transpose`."""
    return transpose(input, dim0, dim1)


@public(samples=[sample(A(2, 3)), sample(A(2, 3, 4))])
def adjoint(input: Tensor) -> Tensor:
    """A view with the last two dims swapped."""
    if input.tj_array.ndim == 1:
        raise RuntimeError("tensor.adjoint() is only supported on matrices or batches of matrices. Got 1-D tensor.")
    return transpose(input, -2, -1) if input.tj_array.ndim else input


def _at_least(name: str, wider: Any, cases: list[Any]) -> Any:
    def function(*tensors: Any) -> Any:
        parts = as_tensor_list(name, tensors)
        found = tuple(wider(p) for p in parts)
        return found[0] if len(tensors) == 1 and isinstance(tensors[0], Tensor) else found

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Views with at least {name[-2]} dims, of one tensor or of several."
    return public(samples=cases, method=False)(function)


def _wide_3d(x: Tensor) -> Tensor:
    shape = x.tj_array.shape
    return x if len(shape) > 2 else reshape(x, ((1, 1, 1), (1, *shape, 1), (*shape, 1))[len(shape)])


atleast_1d = _at_least(
    "atleast_1d", lambda x: x if x.tj_array.ndim else reshape(x, 1), [sample(A()), sample(A(2)), sample(A(), A(2, 2))]
)
atleast_2d = _at_least(
    "atleast_2d",
    lambda x: x if x.tj_array.ndim > 1 else reshape(x, 1, x.tj_array.size),
    [sample(A()), sample(A(2)), sample(A(2), A(2, 2))],
)
atleast_3d = _at_least("atleast_3d", _wide_3d, [sample(A()), sample(A(2)), sample(A(2, 3)), sample(A(2, 2), A(2, 1, 2))])


@public(
    samples=[sample(A(3, 4)), sample(A(3, 4), 1), sample(A(3, 4), -1), sample(A(2, 3, 4), 0, -1, 0), sample(A(2, 3), 5)],
    op=DIAGONAL,
)
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of a diagonal, which becomes the last dim."""
    a, b = wrap_dim(dim1, input.tj_array.ndim), wrap_dim(dim2, input.tj_array.ndim)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    return apply(DIAGONAL, (input,), {"offset": offset, "dim1": a, "dim2": b})


@public(
    "Tensor", name="unfold", samples=[sample(A(7), 0, 3, 2), sample(A(2, 5), -1, 2, 1), sample(A(4, 3), 0, 4, 1)], method=True
)
def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """A view of windows of `size` elements along a dim, `step` apart; a window's elements are the new last dim."""
    if input.tj_array.ndim == 0:
        return unfold(reshape(input, 1), dimension, size, step)[0]
    place = wrap_dim(dimension, input.tj_array.ndim)
    length = input.tj_array.shape[place]
    if step <= 0:
        raise RuntimeError(f"unfold: step is {step} but must be > 0")
    if not 0 <= size <= length:
        raise RuntimeError(f"unfold: maximum size for tensor at dimension {place} is {length} but size is {size}")
    return apply(WINDOWS, (input,), {"dim": place, "size": size, "step": step})


@public(samples=[sample(A(3, 4), (2, 2), (1, 2)), sample(A(12), (3, 2), (4, 1), 1), sample(A(2, 3), (4, 3), (0, 1))])
def as_strided(input: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """A view of the tensor's whole memory with any sizes and strides (in elements)."""
    shape, steps = _sizes_of(size), _sizes_of(stride)
    offset = input.storage_offset() if storage_offset is None else storage_offset
    base = input if input.tj_base is None else input.tj_base
    order = sorted(range(base.tj_array.ndim), key=lambda d: -base.tj_array.strides[d])
    memory = base if base.tj_array.flags.c_contiguous else permute(base, order)
    if not memory.tj_array.flags.c_contiguous:
        raise RuntimeError("as_strided: the tensor's memory has gaps, as that of a NumPy slice; use .contiguous() first")
    if len(shape) != len(steps):
        raise RuntimeError(f"mismatch in length of strides and shape: size {list(shape)}, stride {list(steps)}")
    if any(s < 0 for s in steps):
        raise RuntimeError(f"as_strided: Negative strides are not supported at the moment, got strides: {list(steps)}")
    needed = offset + 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) if 0 not in shape else 0
    if offset < 0 or needed > base.tj_array.size:
        raise RuntimeError(
            f"as_strided: sizes {list(shape)}, strides {list(steps)}, storage offset {offset} require {needed} elements and "
            f"are out of bounds for storage of {base.tj_array.size}"
        )
    return apply(AS_STRIDED, (memory,), {"size": shape, "stride": steps, "offset": offset})


@public(samples=[sample(A(2, 3), grad=False), sample(I(4), grad=False)], method=False)
def numel(input: Tensor) -> int:
    """The number of elements."""
    return int(input.tj_array.size)


# ---- on the tensor itself


RESHAPED = "a shape is changed in place"  # what a tracer is told: views of before go on from the first shape


def _take_shape_of(self: Tensor, name: str, function: Any) -> Tensor:
    """Give a tensor another shape in place: it becomes the view that `function` makes of it, memory and history included.

    Views of it that were made before go on from its first shape, so it remembers how to get back there.
    """
    state = local.state
    if state.tracer is not None:
        return state.tracer.graph_break(_take_shape_of, RESHAPED, self, name, function)  # type: ignore[no-any-return]
    if state.grad and self.tj_requires_grad and self.tj_node is None:
        raise RuntimeError(f"{name}: a leaf Variable that requires grad is being used in an in-place operation. {REMEDY}")
    base = self.tj_base
    if state.grad and base is not None and base.tj_requires_grad and base.tj_node is None:
        raise RuntimeError(
            f"{name}: a view of a leaf Variable that requires grad is being used in an in-place operation. {REMEDY}"
        )
    was, state.grad = state.grad, state.grad or self.tj_node is not None
    try:
        found = function(self)
    finally:
        state.grad = was
    if found is self:
        return self
    if self.tj_base is None:
        self.tj_undo_chain = (inverse_view(found.tj_view_chain[-1], self.tj_array.shape), *self.tj_undo_chain)
    else:
        self.tj_rebased = found.tj_rebased
    move_retain_grad(self, found.tj_node)
    self.tj_array, self.tj_node, self.tj_view_chain = found.tj_array, found.tj_node, found.tj_view_chain
    tensor_changed()
    return self


def inverse_view(step: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The view op that undoes a step of a chain: a permutation, or dims of length 1 that came or went."""
    op, attrs, _ = step
    return (op, {"dims": inverse(attrs["dims"])} if op is PERMUTE else {"shape": shape}, None)


def is_same_size(self: Tensor, other: Tensor) -> bool:
    """True if both have the same shape."""
    return bool(self.tj_array.shape == other.tj_array.shape)


def _matrix_transpose(self: Tensor) -> Tensor:
    if self.tj_array.ndim < 2:
        raise RuntimeError(
            f"tensor.mT is only supported on matrices or batches of matrices. Got {self.tj_array.ndim}-D tensor."
        )
    return transpose(self, -2, -1)


def _hermitian(self: Tensor) -> Tensor:
    if self.tj_array.ndim not in (0, 2):
        raise RuntimeError(f"tensor.H is only supported on matrices (2-D tensors). Got {self.tj_array.ndim}-D tensor.")
    return t(self)


def attach() -> None:
    for function in (squeeze, unsqueeze, transpose, swapaxes, swapdims, t):
        name = function.__name__ + "_"

        def method(self: Tensor, *args: Any, _function: Any = function, _name: str = name, **kwargs: Any) -> Tensor:
            return _take_shape_of(self, _name, lambda x: _function(x, *args, **kwargs))

        method.__name__, method.__doc__ = (
            name,
            f"`{function.__name__}`, of this tensor itself: memory is shared, nothing is copied.",
        )
        setattr(Tensor, name, method)
    others = {
        "contiguous": contiguous,
        "is_same_size": is_same_size,
        "T": property(lambda self: permute(self, *reversed(range(self.tj_array.ndim)))),
        "mT": property(_matrix_transpose),
        "mH": property(_matrix_transpose),
        "H": property(_hermitian),
    }
    for name, member in others.items():
        setattr(Tensor, name, member)


attach()
