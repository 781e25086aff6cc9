"""Arranging elements anew: repeated, rolled, flipped, padded, triangles and diagonals of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays import dtypes
from ...arrays.op_samples import A, I, sample
from ...core.dispatch import apply
from ...core.op import Op, primitive
from ...core.registration import public
from ...core.tensor import Tensor, as_index, wrap_dim, wrap_dims
from ..create import arange
from ..indexing.primitives import ALL, INDEX
from ..pointwise import put, select_elements, where
from .reshape import cat, diagonal, expand, reshape, sizes, transpose
from .views import FLIP, SLICE, UNDIAGONAL, UNSLICE

# ---- repeating


@public(
    samples=[
        sample(A(2, 3), (2, 1, 2), peer=False),
        sample(A(3), 2, peer=False),
        sample(A(), (2, 2), peer=False),
        sample(A(2), 0, peer=False),
    ]
)
def repeat(input: Tensor, *counts: Any, repeats: Any = None) -> Tensor:
    """Copies of the tensor side by side: as often as given along each dim, with new dims in front."""
    times, shape = sizes(counts if repeats is None else (repeats,)), input.tj_array.shape
    if len(times) < len(shape):
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor: "
            f"got {list(times)} for shape {list(shape)}"
        )
    if any(n < 0 for n in times):
        raise RuntimeError(f"Trying to create tensor with negative dimension: repeat dims {list(times)}")
    full = (1,) * (len(times) - len(shape)) + shape
    split = [n for size in full for n in (1, size)]
    wide = [n for pair in zip(times, full, strict=True) for n in pair]
    joined = tuple(n * m for n, m in zip(times, full, strict=True))
    copied = expand(reshape(input, split), wide).clone()
    return reshape(copied, joined)


@public(samples=[sample(A(2, 3), (2,)), sample(A(2), (2, 3)), sample(A(), (2,))])
def tile(input: Tensor, *counts: Any, dims: Any = None) -> Tensor:
    """Copies of the tensor side by side, counted from the last dim."""
    times = sizes(counts if dims is None else (dims,))
    return repeat(input, (1,) * (input.tj_array.ndim - len(times)) + times)


REPEATS = primitive("repeats", "index", lambda xp, counts: run_repeats(xp, counts), data_dependent=True)


def run_repeats(xp: Any, counts: Any) -> Any:
    """0 as often as the first count says, then 1 as often as the second, and so on."""
    ends = xp.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if ends.size else 0
    return xp.searchsorted(ends, xp.arange(total), side="right")


@public(
    samples=[
        sample(A(2, 3), 2),
        sample(A(2, 3), 3, dim=1),
        sample(A(2, 3), I(3, hi=3), dim=-1),
        sample(A(4), I(4, hi=3)),
        sample(A(2, 3), I(1, lo=2, hi=3), 0),
        sample(I(4, hi=3), grad=False),
        sample(A(), 3),
    ]
)
def repeat_interleave(input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    """Each element, or slice along `dim`, several times in a row. With counts alone: the indices that do it."""
    if repeats is None:
        check_counts(input)
        return apply(REPEATS, (input,))
    x = reshape(input, -1) if dim is None else input
    place = wrap_dim(0 if dim is None else dim, x.tj_array.ndim)
    if x.tj_array.ndim == 0:
        x = reshape(x, 1)
    length = x.tj_array.shape[place]
    if isinstance(repeats, Tensor) and repeats.tj_array.size != 1:
        check_counts(repeats)
        if repeats.tj_array.size != length:
            raise RuntimeError(
                "repeats must have the same size as input along dim, but got "
                f"repeats.size(0) = {repeats.tj_array.size} and input.size({place}) = {length}"
            )
        index = apply(REPEATS, (repeats,))
        if output_size is not None and index.tj_array.size != output_size:
            raise RuntimeError(f"repeat_interleave: output_size is {output_size} but the counts sum to {index.tj_array.size}")
        return apply(INDEX, (x, index), {"dims": (place,)})
    count = as_index(repeats.reshape(()) if isinstance(repeats, Tensor) else repeats, "repeats")
    if count < 0:
        raise RuntimeError(f"repeats must be non-negative, got {count}")
    shape = x.tj_array.shape
    split, wide = (*shape[: place + 1], 1, *shape[place + 1 :]), (*shape[: place + 1], count, *shape[place + 1 :])
    copied = expand(reshape(x, split), wide).clone()
    return reshape(copied, (*shape[:place], length * count, *shape[place + 1 :]))


def check_counts(repeats: Tensor) -> None:
    if repeats.tj_array.dtype.kind != "i" or repeats.tj_array.dtype.itemsize < 4:
        raise RuntimeError(f"repeats has to be Long or Int tensor, got {repeats.dtype}")
    if repeats.tj_array.ndim > 1:
        raise RuntimeError(f"repeats must be 0-dim or 1-dim tensor, got shape {list(repeats.shape)}")
    if repeats.tj_array.size and int(repeats.amin().item()) < 0:
        raise RuntimeError("repeats can not be negative")


# ---- rolling and flipping


def run_roll(xp: Any, x: Any, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Any:
    return xp.roll(x, shifts, dims)


def expand_roll(x: Tensor, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Tensor:
    for shift, d in zip(shifts, dims, strict=True):
        n = x.tj_array.shape[d]
        cut = (-shift) % n if n else 0
        front = (ALL,) * d
        x = cat([x[(*front, slice(cut, None))], x[(*front, slice(0, cut))]], d) if cut else x
    return x.clone()


ROLL: Op = primitive(
    "roll",
    "movement",
    run_roll,
    grad={"x": lambda g, shifts, dims: apply(ROLL, (g,), {"shifts": tuple(-s for s in shifts), "dims": dims})},
    expand=expand_roll,
)


@public(samples=[sample(A(2, 3), 1), sample(A(2, 3), -2, 1), sample(A(3, 4), (1, 6), (0, 1)), sample(A(), 2)], op=ROLL)
def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Elements moved along dims, those that fall off coming in again at the other end; without dims, as if flat."""
    amounts = tuple(as_index(s, "a shift") for s in (shifts if isinstance(shifts, (tuple, list)) else (shifts,)))
    if not amounts:
        raise RuntimeError("`shifts` required")
    if dims is None or (isinstance(dims, (tuple, list)) and not dims):
        if len(amounts) != 1:
            raise RuntimeError(f"shifts and dimensions must align. shifts: {len(amounts)}, dims:0")
        flat = apply(ROLL, (reshape(input, -1),), {"shifts": amounts, "dims": (0,)})
        return reshape(flat, input.tj_array.shape)
    places = tuple(wrap_dim(d, input.tj_array.ndim) for d in (dims if isinstance(dims, (tuple, list)) else (dims,)))
    if len(places) != len(amounts):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(amounts)}, dims:{len(places)}")
    if input.tj_array.ndim == 0:
        return input.clone()
    return apply(ROLL, (input,), {"shifts": amounts, "dims": places})


@public(samples=[sample(A(2, 3), (0,)), sample(A(2, 3), [0, -1]), sample(A(3), 0, peer=False)], op=FLIP)
def flip(input: Tensor, *places: Any, dims: Any = None) -> Tensor:
    """Elements in the opposite order along dims; always a copy."""
    wanted = sizes(places if dims is None else (dims,))
    found = wrap_dims(wanted, input.tj_array.ndim) if wanted else ()
    return apply(FLIP, (input,), {"dims": found if input.tj_array.ndim else ()})


def reversed_(self: Tensor) -> Tensor:
    """`reversed(x)`: the rows in the opposite order."""
    return flip(self, 0) if self.tj_array.ndim else self


setattr(Tensor, "__reversed__", reversed_)  # noqa: B010 -- methods are not declared


@public(samples=[sample(A(2, 3)), sample(A(2, 3, 2))])
def fliplr(input: Tensor) -> Tensor:
    """The columns in the opposite order."""
    if input.tj_array.ndim < 2:
        raise RuntimeError("fliplr: Input must be >= 2-d.")
    return flip(input, 1)


@public(samples=[sample(A(2, 3)), sample(A(3))])
def flipud(input: Tensor) -> Tensor:
    """The rows in the opposite order."""
    if input.tj_array.ndim < 1:
        raise RuntimeError("flipud: Input must be >= 1-d.")
    return flip(input, 0)


@public(samples=[sample(A(2, 3)), sample(A(2, 3), 2), sample(A(2, 3), -1), sample(A(2, 3, 2), 1, (1, 2)), sample(A(2, 3), 4)])
def rot90(input: Tensor, k: int = 1, dims: Any = (0, 1)) -> Tensor:
    """Turned by k quarters, from the first dim named towards the second."""
    if len(dims) != 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    ndim = input.tj_array.ndim
    if ndim < 2:
        raise RuntimeError(f"expected total dims >= 2, but got total dims = {ndim}")
    a, b = wrap_dim(dims[0], ndim), wrap_dim(dims[1], ndim)
    if a == b:
        raise RuntimeError(f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}")
    turns = k % 4
    if turns == 0:
        return input.clone()
    if turns == 2:
        return flip(input, a, b)
    return transpose(flip(input, b), a, b) if turns == 1 else flip(transpose(input, a, b), b)


# ---- padding

_image = A(1, 2, 4, 3)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 3), (1, 2)),
        sample(A(2, 3), (1, -1, 0, 2), value=0.5),
        sample(A(2, 3), (-1, -1)),
        sample(A(1, 4), (3, 1), mode="reflect"),
        sample(_image, (1, 2, 0, 3), mode="reflect"),
        sample(A(1, 4), (2, 5), mode="replicate"),
        sample(_image, (1, 2, 3, 0), mode="replicate"),
        sample(A(1, 4), (4, 1), mode="circular"),
        sample(_image, (1, 2, 3, 1), mode="circular"),
        sample(A(1, 1, 2, 2, 2), (1, 0, 0, 1, 1, 1), mode="circular"),
    ],
)
def pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """Elements added around, two numbers for each dim from the last one on: a constant, or mirrored, edge or wrapped ones."""
    amounts = tuple(as_index(n, "a padding") for n in pad)
    ndim = input.tj_array.ndim
    if len(amounts) % 2:
        raise RuntimeError(f"pad: Padding length must be divisible by 2, got {list(amounts)}")
    if len(amounts) // 2 > ndim:
        raise RuntimeError(
            "pad: Padding length should be less than or equal to two times the input dimension but got padding length "
            f"{len(amounts)} and input of dimension {ndim}"
        )
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    pairs = {ndim - 1 - k: (amounts[2 * k], amounts[2 * k + 1]) for k in range(len(amounts) // 2)}
    if mode == "constant":
        return pad_constant(input, pairs, 0.0 if value is None else value)
    if value is not None and value != 0:
        raise RuntimeError(f'Padding mode "{mode}" doesn\'t take in value argument')
    if ndim - len(pairs) not in (1, 2) or len(pairs) > 3:
        raise NotImplementedError(
            "pad: Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now, with all dims padded but the "
            f"first one or two; got input of shape {list(input.shape)} and padding {list(amounts)}"
        )
    for d, (before, after) in pairs.items():
        n = input.tj_array.shape[d]
        if mode != "circular" and n + before + after < 1:
            raise RuntimeError(f"pad: input of size {n} at dimension {d} is too small for padding ({before}, {after})")
        input = PADDERS[mode](input, d, before, after)
    return input if any(any(p) for p in pairs.values()) else input.clone()


def pad_constant(input: Tensor, pairs: dict[int, tuple[int, int]], value: Any) -> Tensor:
    shape = list(input.tj_array.shape)
    cut, place = [ALL] * len(shape), [ALL] * len(shape)
    for d, (before, after) in pairs.items():
        n = shape[d]
        if n + before + after < 0 or max(-before, 0) + max(-after, 0) > n:
            raise RuntimeError(
                f"pad: The input size {n}, plus negative padding {before} and {after} resulted in a negative output size, "
                f"which is invalid. Check dimension {d} of your input."
            )
        cut[d] = slice(max(-before, 0), n - max(-after, 0))
        place[d] = slice(max(before, 0), max(before, 0) + cut[d].stop - cut[d].start)
        shape[d] = n + before + after
    if any(min(p) < 0 for p in pairs.values()):
        input = apply(SLICE, (input,), {"index": tuple(cut)})
    attrs = {"index": tuple(place) or (...,), "shape": tuple(shape), "fill": dtypes.representable("pad", input.dtype, value)}
    return apply(UNSLICE, (input,), attrs)


def piece(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    return apply(SLICE, (x,), {"index": (*(ALL,) * dim, slice(start, stop))})


def trimmed(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Without what negative paddings take away."""
    n = x.tj_array.shape[dim]
    if min(before, after) >= 0:
        return x
    return piece(x, dim, max(-before, 0), n - max(-after, 0))


def joined(before: Tensor | None, x: Tensor, after: Tensor | None, dim: int) -> Tensor:
    parts = [p for p in (before, x, after) if p is not None]
    return cat(parts, dim) if len(parts) > 1 else x


def pad_reflect(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    n = x.tj_array.shape[dim]
    if before >= n or after >= n:
        raise RuntimeError(
            "pad: Argument #4: Padding size should be less than the corresponding input dimension, but got: padding "
            f"({before}, {after}) at dimension {dim} of input {list(x.shape)}"
        )
    left = flip(piece(x, dim, 1, before + 1), dim) if before > 0 else None
    right = flip(piece(x, dim, n - 1 - after, n - 1), dim) if after > 0 else None
    return joined(left, trimmed(x, dim, before, after), right, dim)


def pad_replicate(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    n = x.tj_array.shape[dim]
    if n == 0:
        raise RuntimeError(f"pad: Expected a non-empty dimension {dim} to replicate, but got input {list(x.shape)}")

    def edge(at: int, count: int) -> Tensor:
        return expand(piece(x, dim, at, at + 1), tuple(count if d == dim else -1 for d in range(x.tj_array.ndim)))

    left = edge(0, before) if before > 0 else None
    right = edge(n - 1, after) if after > 0 else None
    return joined(left, trimmed(x, dim, before, after), right, dim)


def pad_circular(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    x = trimmed(x, dim, before, after)
    n = x.tj_array.shape[dim]
    if before > n or after > n:
        raise RuntimeError(
            f"pad: Padding value causes wrapping around more than once: padding ({before}, {after}) at dimension {dim} of "
            f"input {list(x.shape)}"
        )
    left = piece(x, dim, n - before, n) if before > 0 else None
    right = piece(x, dim, 0, after) if after > 0 else None
    return joined(left, x, right, dim)


PADDERS = {"reflect": pad_reflect, "replicate": pad_replicate, "circular": pad_circular}

# ---- triangles and diagonals


def triangle(name: str) -> Any:
    def run(xp: Any, x: Any, *, diagonal: int) -> Any:
        below = xp.tri(*x.shape[-2:], diagonal if name == "tril" else diagonal - 1, dtype=bool)
        zero = xp.zeros((), x.dtype)
        return select_elements(xp, below, x, zero) if name == "tril" else select_elements(xp, below, zero, x)

    def meaning(x: Tensor, *, diagonal: int) -> Tensor:
        rows, columns = (arange(n, device=x.device) for n in x.tj_array.shape[-2:])
        edge, zero = reshape(rows, -1, 1) + diagonal, x.new_zeros(())  # of its dtype: with the number 0, a bool would be an int
        return where(columns <= edge if name == "tril" else columns >= edge, x, zero)

    op: Op = primitive(
        name,
        "composite",
        run,
        grad={"x": lambda g, diagonal: apply(op, (g,), {"diagonal": diagonal})},
        expand=meaning,
        upcast=False,
    )

    def function(input: Tensor, diagonal: int = 0, *, out: Any = None) -> Tensor:
        if input.tj_array.ndim < 2:
            raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")
        return put(op, (input,), {"diagonal": diagonal}, out)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"The {'lower' if name == 'tril' else 'upper'} triangle of matrices, from a diagonal on; zeros elsewhere."
    )
    cases = [sample(A(3, 4)), sample(A(2, 3, 3), 1), sample(A(3, 3), diagonal=-1), sample(I(3, 2), grad=False)]
    return public(samples=cases, inplace=True, op=op)(function)


tril = triangle("tril")
triu = triangle("triu")


def with_diagonal(x: Tensor, shape: tuple[int, ...], offset: int, dim1: int, dim2: int) -> Tensor:
    return apply(UNDIAGONAL, (x,), {"shape": shape, "offset": offset, "dim1": dim1, "dim2": dim2})


@public(samples=[sample(A(3)), sample(A(3), 1), sample(A(3, 4)), sample(A(3, 4), diagonal=-1)])
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A matrix with a vector on its diagonal; of a matrix, a copy of its diagonal."""
    if input.tj_array.ndim not in (1, 2):
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {input.tj_array.ndim}D")
    if input.tj_array.ndim == 1:
        return diag_embed(input, diagonal, 0, 1)
    return _diagonal(input, diagonal).clone()


_diagonal = diagonal


@public(samples=[sample(A(2, 2)), sample(A(3), -1), sample(A())])
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements on its diagonal."""
    return diag_embed(reshape(input, -1), offset)


@public(samples=[sample(A(2, 3)), sample(A(2, 3), 1), sample(A(2, 3), -1, 0, 2), sample(A(3))])
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last dim as the diagonals of new matrices."""
    ndim = input.tj_array.ndim + 1
    a, b = wrap_dim(dim1, ndim), wrap_dim(dim2, ndim)
    if a == b or input.tj_array.ndim == 0:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    size = input.tj_array.shape[-1] + abs(offset)
    rest = iter(input.tj_array.shape[:-1])
    shape = tuple(size if d in (a, b) else next(rest) for d in range(ndim))
    return with_diagonal(input, shape, offset, a, b)
