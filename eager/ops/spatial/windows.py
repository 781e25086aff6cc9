"""Windows that slide over the spatial dims of [batch, channel, ...]: their sizes, and the windows themselves as a view.

Convolution and pooling are described by a `Geometry`; `windows` and its transpose `unwindows` are what they mean, in public
ops. `unfold` and `fold` are the windows as the columns of a matrix, and back.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...arrays.op_samples import A, sample
from ...core.dispatch import apply
from ...core.op import primitive
from ...core.registration import public
from ...core.tensor import Tensor, as_index
from ..shape.views import SLICE, UNSLICE, UNWINDOWS, WINDOWS, strided

Ints = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


class Geometry(NamedTuple):
    """Geometry of windows over an input, for each spatial dim.

    Padding is (before, after) and always makes the windows end where the padded input ends; what no window reaches is cut
    off by a negative number. So the sizes of input, kernel and output follow from any two of them.
    """

    stride: Ints
    padding: Pairs
    dilation: Ints
    groups: int = 1


# Columns are made for so many bytes at a time: a CPU's cache, or what fills a GPU.
CPU_BLOCK, GPU_BLOCK = 4 << 20, 256 << 20

# ---- sizes


def spans(kernel: Ints, dilation: Ints) -> Ints:
    """Return the extent of a window, dilation included."""
    return tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))


def exact(size: Ints, kernel: Ints, stride: Ints, padding: Pairs, dilation: Ints, groups: int = 1) -> Geometry:
    """The geometry with the end of the padding moved to the end of the last window."""
    found = []
    for n, span, s, (before, after) in zip(size, spans(kernel, dilation), stride, padding, strict=True):
        spare = (n + before + after - span) % s
        found.append((before, after - spare))
    return Geometry(stride, tuple(found), dilation, groups)


def output_size(size: Ints, kernel: Ints, geometry: Geometry) -> Ints:
    reach = zip(size, spans(kernel, geometry.dilation), geometry.stride, geometry.padding, strict=True)
    return tuple((n + before + after - span) // s + 1 for n, span, s, (before, after) in reach)


def input_size(size: Ints, kernel: Ints, geometry: Geometry) -> Ints:
    reach = zip(size, spans(kernel, geometry.dilation), geometry.stride, geometry.padding, strict=True)
    return tuple((n - 1) * s + span - before - after for n, span, s, (before, after) in reach)


def kernel_size(size: Ints, out: Ints, geometry: Geometry) -> Ints:
    reach = zip(size, out, geometry.stride, geometry.padding, geometry.dilation, strict=True)
    return tuple((n + before + after - (m - 1) * s - 1) // d + 1 for n, m, s, (before, after), d in reach)


def overlap(size: Ints, padding: Pairs) -> tuple[tuple[slice, ...], tuple[slice, ...], Ints]:
    """Locate an input in its padded form: the part of the input, its slice there, and the padded size."""
    part, place = [], []
    for n, (before, after) in zip(size, padding, strict=True):
        first = max(-before, 0)
        last = max(first, n - max(-after, 0))
        part.append(slice(first, last))
        place.append(slice(max(before, 0), max(before, 0) + last - first))
    return tuple(part), tuple(place), tuple(n + before + after for n, (before, after) in zip(size, padding, strict=True))


# ---- kernels


def places(kernel: Ints, out: Ints, geometry: Geometry) -> Iterator[tuple[Ints, tuple[slice, ...]]]:
    """Each place in a window, with the elements of the padded input that stand there."""
    for offset in itertools.product(*map(range, kernel)):
        reach = zip(offset, out, geometry.stride, geometry.dilation, strict=True)
        yield offset, tuple(slice(k * d, k * d + s * (m - 1) + 1, s) for k, m, s, d in reach)


def window_view(xp: Any, x: Any, first: int, kernel: Ints, out: Ints, geometry: Geometry) -> Any:
    """A view [..., *kernel, *out, ...] of a padded array whose spatial dims begin at `first`."""
    n = len(kernel)
    steps = x.strides[first : first + n]
    between = tuple(d * s for d, s in zip(geometry.dilation, steps, strict=True))
    along = tuple(t * s for t, s in zip(geometry.stride, steps, strict=True))
    shape = (*x.shape[:first], *kernel, *out, *x.shape[first + n :])
    return strided(xp, x, shape, (*x.strides[:first], *between, *along, *x.strides[first + n :]))


def padded(xp: Any, x: Any, first: int, padding: Pairs) -> Any:
    """A C-ordered array with zeros around (or less of) the spatial dims, which begin at `first`."""
    whole = (slice(None),) * first
    part, place, size = overlap(x.shape[first : first + len(padding)], padding)
    if size == x.shape[first : first + len(padding)] and part == place:
        return xp.ascontiguousarray(x)
    full = xp.zeros((*x.shape[:first], *size, *x.shape[first + len(padding) :]), x.dtype)
    full[whole + place] = x[whole + part]
    return full


def add_windows(full: Any, parts: Any, geometry: Geometry) -> None:
    """The transpose of `window_view`: add [sample, channel, *kernel, *out] to a padded array where they stand in it."""
    n, whole = full.ndim - 2, (slice(None), slice(None))
    for offset, where in places(parts.shape[2 : 2 + n], parts.shape[2 + n :], geometry):
        full[whole + where] += parts[whole + offset]


def block_bytes(xp: Any) -> int:
    return CPU_BLOCK if xp is np else GPU_BLOCK


def batches(xp: Any, count: int, bytes_each: int) -> Iterator[slice]:
    """The samples that are worked on together."""
    step = max(1, block_bytes(xp) // max(1, bytes_each))
    return (slice(i, min(i + step, count)) for i in range(0, count, step))


def bands(xp: Any, bytes_each: int, size: Ints, out: Ints, kernel: Ints, geometry: Geometry) -> list[tuple[slice, Pairs]]:
    """Split one sample whose windows are too many: bands of output lines, each with the padding that cuts them out."""
    step, reach, (before, _) = geometry.stride[0], spans(kernel, geometry.dilation)[0], geometry.padding[0]
    lines = max(1, min(out[0], out[0] * block_bytes(xp) // max(1, bytes_each)))
    found = []
    for first in range(0, out[0], lines):
        last = min(first + lines, out[0])
        cut = (before - first * step, (last - 1) * step + reach - before - size[0])
        found.append((slice(first, last), (cut, *geometry.padding[1:])))
    return found


def run_columns(xp: Any, x: Any, *, kernel: Ints, geometry: Geometry) -> Any:
    out = output_size(x.shape[2:], kernel, geometry)
    view = window_view(xp, padded(xp, x, 2, geometry.padding), 2, kernel, out, geometry)
    return view.reshape(x.shape[0], x.shape[1] * math.prod(kernel), math.prod(out))


def run_uncolumns(xp: Any, g: Any, *, kernel: Ints, counts: Ints, geometry: Geometry) -> Any:
    parts = g.reshape(g.shape[0], g.shape[1] // math.prod(kernel), *kernel, *counts)
    size, whole = input_size(counts, kernel, geometry), (slice(None), slice(None))
    part, place, room = overlap(size, geometry.padding)
    found = xp.zeros((*parts.shape[:2], *size), g.dtype)
    for block in batches(xp, g.shape[0], math.prod(parts.shape[1:]) * g.itemsize):
        full = xp.zeros((block.stop - block.start, parts.shape[1], *room), g.dtype)
        add_windows(full, parts[block], geometry)
        found[(block, slice(None), *part)] = full[whole + place]
    return found


# ---- windows


def padded_tensor(x: Tensor, padding: Pairs, fill: float = 0) -> Tensor:
    """`fill` around the dims from 2 on; negative padding cuts off."""
    part, place, size = overlap(x.shape[2:], padding)
    if any(s != slice(0, n) for s, n in zip(part, x.shape[2:], strict=True)):
        x = apply(SLICE, (x,), {"index": (slice(None), slice(None), *part)})
    if size == tuple(x.shape[2:]):
        return x
    attrs = {"index": (slice(None), slice(None), *place), "shape": (*x.shape[:2], *size), "fill": fill}
    return apply(UNSLICE, (x,), attrs)  # type: ignore[no-any-return]


def windows(x: Tensor, kernel: Ints, geometry: Geometry, fill: float = 0) -> Tensor:
    """All windows of the dims from 2 on, as [sample, channel, *out, *kernel]."""
    x = padded_tensor(x, geometry.padding, fill)
    for i, (span, d, s) in enumerate(zip(spans(kernel, geometry.dilation), geometry.dilation, geometry.stride, strict=True)):
        x = apply(WINDOWS, (x,), {"dim": 2 + i, "size": span, "step": s})
        if d > 1:
            x = apply(SLICE, (x,), {"index": (..., slice(None, None, d))})
    return x


def unwindows(x: Tensor, kernel: Ints, geometry: Geometry) -> Tensor:
    """Sum windows back into the input's shape: the transpose of `windows`."""
    n = len(kernel)
    full = input_size(tuple(x.shape[2 : 2 + n]), kernel, geometry._replace(padding=((0, 0),) * n))
    for i in reversed(range(n)):
        span = spans(kernel, geometry.dilation)[i]
        if geometry.dilation[i] > 1:
            attrs = {"index": (..., slice(None, None, geometry.dilation[i])), "shape": (*x.shape[:-1], span), "fill": 0}
            x = apply(UNSLICE, (x,), attrs)
        x = apply(UNWINDOWS, (x,), {"dim": 2 + i, "size": span, "step": geometry.stride[i], "length": full[i]})
    return padded_tensor(x, tuple((-before, -after) for before, after in geometry.padding))


def expand_columns(x: Tensor, *, kernel: Ints, geometry: Geometry) -> Tensor:
    """All windows as [sample, channel * place, position]."""
    n = len(kernel)
    order = (0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))
    found = windows(x, kernel, geometry).permute(order)
    return found.reshape(x.shape[0], x.shape[1] * math.prod(kernel), math.prod(found.shape[2 + n :]))  # type: ignore[no-any-return]


def expand_uncolumns(g: Tensor, *, kernel: Ints, counts: Ints, geometry: Geometry) -> Tensor:
    """The transpose of `columns`."""
    n = len(kernel)
    g = g.reshape(g.shape[0], g.shape[1] // math.prod(kernel), *kernel, *counts)
    return unwindows(g.permute(0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n)), kernel, geometry)


def columns(x: Tensor, kernel: Ints, geometry: Geometry) -> Tensor:
    return apply(COLUMNS, (x,), {"kernel": kernel, "geometry": geometry})  # type: ignore[no-any-return]


def uncolumns(g: Tensor, kernel: Ints, counts: Ints, geometry: Geometry) -> Tensor:
    return apply(UNCOLUMNS, (g,), {"kernel": kernel, "counts": counts, "geometry": geometry})  # type: ignore[no-any-return]


COLUMNS = primitive(
    "columns",
    "composite",
    run_columns,
    grad={"x": lambda g, kernel, geometry, x_shape: uncolumns(g, kernel, output_size(x_shape[2:], kernel, geometry), geometry)},
    expand=expand_columns,
    upcast=False,
)
UNCOLUMNS = primitive(
    "uncolumns",
    "composite",
    run_uncolumns,
    grad={"g": lambda gradient, kernel, geometry: columns(gradient, kernel, geometry)},
    expand=expand_uncolumns,
)


# ---- arguments


def per_dim(value: Any, n: int, name: str, what: str = "convolution") -> Ints:
    """An argument that is one number for all spatial dims, or one for each."""
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    found = tuple(as_index(v, f"{name} of a {what}") for v in numbers)
    if len(found) not in (1, n):
        raise RuntimeError(
            f"expected {name} to be a single integer value or a list of {n} values to match the {what} dimensions, "
            f"but got {name}={list(found)}"
        )
    return found * n if len(found) == 1 else found


def by(sizes: Any, sign: str = " x ") -> str:
    """(4 x 4), as error messages show sizes."""
    return f"({sign.join(map(str, sizes))})"


# ---- the columns by themselves


def block_geometry(size: Ints, kernel: Ints, dilation: Any, padding: Any, stride: Any) -> tuple[Geometry, Ints]:
    """Checked arguments of `unfold` and `fold`, and how many blocks there are in each direction."""
    stride, dilation, padding = (
        per_dim(v, 2, name, "image") for v, name in ((stride, "stride"), (dilation, "dilation"), (padding, "padding"))
    )
    for name, values in (("kernel size", kernel), ("stride", stride), ("dilation", dilation)):
        if min(values) < 1:
            raise RuntimeError(f"{name} should be greater than zero, but got {list(values)}")
    if min(padding) < 0:
        raise RuntimeError(f"padding should be non-negative, but got {list(padding)}")
    geometry = exact(size, kernel, stride, tuple((p, p) for p in padding), dilation)
    room = (n + 2 * p - r for n, p, r in zip(size, padding, spans(kernel, dilation), strict=True))
    return geometry, tuple(max(free // s + 1, 0) for free, s in zip(room, stride, strict=True))


@public(
    "nn.functional",
    samples=[
        sample(A(2, 2, 3, 4), 2),
        sample(A(2, 4, 5), (2, 3), padding=(1, 0), stride=2),
        sample(A(1, 1, 5, 5), 2, dilation=(2, 3), padding=1),
    ],
)
def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """All blocks of an image [batch, channel, height, width] as columns [batch, channel * block, number of blocks]."""
    if input.ndim not in (3, 4) or 0 in input.shape[-3:]:
        raise RuntimeError(
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, "
            f"but got: {list(input.shape)}"
        )
    size, kernel = tuple(input.shape[-2:]), per_dim(kernel_size, 2, "kernel_size", "image")
    geometry, counts = block_geometry(size, kernel, dilation, padding, stride)
    if min(counts) < 1:
        raise RuntimeError(
            f"Given input with spatial size {size}, kernel_size={kernel}, dilation={geometry.dilation}, padding={padding}, "
            f"calculated shape of the array of sliding blocks as {counts}, but its components must be at least one."
        )
    batched = input.ndim == 4
    found = columns(input if batched else input.unsqueeze(0), kernel, geometry)
    return found if batched else found.squeeze(0)  # type: ignore[no-any-return]


@public(
    "nn.functional",
    samples=[
        sample(A(2, 4, 6), (3, 4), 2),
        sample(A(6, 6), (4, 5), (2, 3), padding=(1, 0), stride=2),
        sample(A(1, 4, 12), (4, 5), 2, dilation=2, padding=(1, 0)),
    ],
)
def fold(input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Blocks [batch, channel * block, number of blocks] added up where they stood in an image of `output_size`."""
    if input.ndim not in (2, 3) or 0 in input.shape[-2:]:
        raise RuntimeError(
            "Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and non-zero dimensions for input, "
            f"but got: {list(input.shape)}"
        )
    size, kernel = per_dim(output_size, 2, "output_size", "image"), per_dim(kernel_size, 2, "kernel_size", "image")
    geometry, counts = block_geometry(size, kernel, dilation, padding, stride)
    width, length = input.shape[-2:]
    if width % math.prod(kernel):
        raise RuntimeError(
            "Expected size of input's dimension 1 to be divisible by the product of kernel_size, "
            f"but got input.size(1)={width} and kernel_size={kernel}."
        )
    if math.prod(counts) != length:
        raise RuntimeError(
            f"Given output_size={size}, kernel_size={kernel}, dilation={geometry.dilation}, padding={padding}, "
            f"stride={geometry.stride}, expected size of input's dimension 2 to match the calculated number of sliding blocks "
            f"{counts[0]} * {counts[1]} = {math.prod(counts)}, but got input.size(2)={length}."
        )
    batched = input.ndim == 3
    found = uncolumns(input if batched else input.unsqueeze(0), kernel, counts, geometry)
    return found if batched else found.squeeze(0)  # type: ignore[no-any-return]
