"""Pooling: the maximum or the mean of windows, over 1, 2 or 3 spatial dims by one body.

The maximum and the sum over a window are taken along one dim after the other, with one pass over shifted strided slices
for each place in the window. `max_pool` also says which place of its window won; its gradient puts a number there
(`max_pool_put`), whose own gradient picks from there (`max_pool_pick`). `mean_pool` and `mean_pool_spread` are each
other's transposes. Nothing is padded: slices end where the input ends. For windows that differ in length, see
`adaptive_pool.py`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...arrays import dtypes
from ...arrays.op_samples import A, I, Sample, sample
from ...core.dispatch import apply
from ...core.op import primitive
from ...core.registration import public
from ...core.tensor import Tensor, as_index
from ..create import arange, tensor
from .windows import Geometry, Ints, batches, by, input_size, output_size, spans, unwindows, windows

# ---- slices


class Line(NamedTuple):
    """The windows along one dim: how many there are, their places, and how they lie."""

    out: int
    places: int
    step: int
    before: int
    dilation: int


def lines(size: Ints, kernel: Ints, geometry: Geometry) -> list[Line]:
    starts = tuple(before for before, _ in geometry.padding)
    return list(map(Line, output_size(size, kernel, geometry), kernel, geometry.stride, starts, geometry.dilation))


def reach(size: int, line: Line, place: int) -> tuple[slice, slice] | None:
    """The windows of which this place lies inside the input, and the inputs there."""
    shift = place * line.dilation - line.before
    first, last = max(0, -(shift // line.step)), min(line.out, (size - 1 - shift) // line.step + 1)
    if last <= first:
        return None
    begin = first * line.step + shift
    return slice(first, last), slice(begin, begin + (last - first - 1) * line.step + 1, line.step)


def at(dim: int, index: Any) -> tuple[Any, ...]:
    return (slice(None),) * dim + (index,)


# ---- the maximum


def best_along(xp: Any, values: Any, winners: Any, dim: int, line: Line, unit: int) -> Any:
    """The maximum over windows along one dim, and the number of the place where it stands; at ties the first one.

    A place that is NaN beats all before it, as in PyTorch. `winners` are the numbers so far, None for the first dim.
    """
    best, won = first_inside(xp, values, winners, dim, line, unit)
    for place in range(1, line.places):
        pair = reach(values.shape[dim], line, place)
        if pair is None:
            continue
        here, there = at(dim, pair[0]), at(dim, pair[1])
        value, so_far = values[there], best[here]
        better = value > so_far
        if values.dtype.kind == "f":
            better |= value != value
        number = won.dtype.type(place * unit)
        won[here] = xp.where(better, winners[there] + number, won[here])
        xp.maximum(so_far, value, out=so_far)
    return best, won


def first_inside(xp: Any, values: Any, winners: Any, dim: int, line: Line, unit: int) -> Any:
    """Return the first element of each window that lies inside the input."""
    if line.before == 0:
        start = at(dim, slice(0, (line.out - 1) * line.step + 1, line.step))
        return values[start].copy(order="C"), winners[start].copy(order="C")
    begins = np.arange(line.out) * line.step - line.before
    skipped = np.maximum(0, -(begins // line.dilation))
    index = begins + skipped * line.dilation
    empty = index >= values.shape[dim]  # a dilated window may step over all of a short input
    index[empty] = skipped[empty] = 0
    best = values.take(xp.asarray(index), axis=dim)
    if empty.any():
        best[at(dim, xp.asarray(empty))] = lowest(dtypes.from_numpy(values.dtype))
    numbers = xp.asarray((skipped * unit).astype(winners.dtype)).reshape((-1,) + (1,) * (values.ndim - dim - 1))
    return best, winners.take(xp.asarray(index), axis=dim) + numbers


def run_max_pool(xp: Any, x: Any, *, kernel: Ints, geometry: Geometry) -> Any:
    """The maxima, and the numbers of their places in the windows."""
    kind = np.dtype(np.uint8 if math.prod(kernel) <= 256 else np.int32)
    along = lines(x.shape[2:], kernel, geometry)

    def pool(values: Any) -> Any:
        winners, unit = xp.broadcast_to(xp.zeros((), kind), values.shape), 1
        for i in reversed(range(len(along))):
            values, winners = best_along(xp, values, winners, 2 + i, along[i], unit)
            unit *= kernel[i]
        return values, winners

    return by_planes(xp, pool, x, tuple(line.out for line in along), (x.dtype, kind))


def by_planes(xp: Any, function: Any, x: Any, out: Ints, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """A function of [plane, 1, *size], applied to as many planes at a time as a cache holds."""
    count = x.shape[0] * x.shape[1]
    planes = x.reshape(count, 1, *x.shape[2:])
    results = tuple(xp.empty((*x.shape[:2], *out), kind) for kind in kinds)
    for block in batches(xp, count, 4 * math.prod(x.shape[2:]) * x.itemsize):
        for result, found in zip(results, function(planes[block]), strict=True):
            result.reshape(count, 1, *out)[block] = found
    return results


def positions(xp: Any, winners: Any, kernel: Ints, geometry: Geometry, size: Ints) -> Any:
    """Return the positions of the maxima in the memory of the whole input."""
    paces = [math.prod(size[i + 1 :]) for i in range(len(size))]
    offsets, begins = np.zeros((), np.int64), np.zeros((), np.int64)
    for i, pace in enumerate(paces):
        offsets = offsets[..., None] + np.arange(kernel[i]) * geometry.dilation[i] * pace
        begins = begins[..., None] + (np.arange(winners.shape[2 + i]) * geometry.stride[i] - geometry.padding[i][0]) * pace
    planes = xp.arange(winners.shape[0] * winners.shape[1]).reshape(*winners.shape[:2], *(1,) * len(size))
    found = xp.asarray(offsets.reshape(-1))[winners]
    found += xp.asarray(begins)
    found += planes * math.prod(size)
    if max(geometry.dilation) > 1:  # a window that steps over all of a short input has no winner inside
        found = xp.clip(found, 0, planes.size * math.prod(size) - 1)
    return found.reshape(-1)


def run_put(xp: Any, g: Any, winners: Any, *, kernel: Ints, geometry: Geometry) -> Any:
    size = input_size(g.shape[2:], kernel, geometry)
    full = xp.zeros(math.prod((*g.shape[:2], *size)), g.dtype)
    where = positions(xp, winners, kernel, geometry, size)
    apart = max(geometry.dilation) == 1 and all(s >= k for s, k in zip(geometry.stride, kernel, strict=True))
    if apart:  # no input is in two windows
        full[where] = g.reshape(-1)
    else:
        xp.add.at(full, where, g.reshape(-1))
    return full.reshape(*g.shape[:2], *size)


def run_pick(xp: Any, x: Any, winners: Any, *, kernel: Ints, geometry: Geometry) -> Any:
    where = positions(xp, winners, kernel, geometry, x.shape[2:])
    return x.reshape(-1).take(where).reshape(winners.shape)


def lowest(dtype: dtypes.dtype) -> float:
    return -math.inf if dtype.is_floating_point else int(dtypes.iinfo(dtype).min)


def places_last(x: Tensor, kernel: Ints, geometry: Geometry, fill: float) -> Tensor:
    """The windows as [sample, channel, *out, place]."""
    return windows(x, kernel, geometry, fill).flatten(x.ndim)  # type: ignore[no-any-return]


def expand_max_pool(x: Tensor, *, kernel: Ints, geometry: Geometry) -> tuple[Tensor, Tensor]:
    values, indices = places_last(x, kernel, geometry, lowest(x.dtype)).max(-1)
    return values, indices.to(dtypes.uint8 if math.prod(kernel) <= 256 else dtypes.int32)


def expand_pick(x: Tensor, winners: Tensor, *, kernel: Ints, geometry: Geometry) -> Tensor:
    flat = places_last(x, kernel, geometry, 0)
    return flat.gather(-1, winners.long().unsqueeze(-1)).squeeze(-1)  # type: ignore[no-any-return]


def expand_put(g: Tensor, winners: Tensor, *, kernel: Ints, geometry: Geometry) -> Tensor:
    flat = g.new_zeros(*g.shape, math.prod(kernel)).scatter(-1, winners.long().unsqueeze(-1), g.unsqueeze(-1))
    return unwindows(flat.reshape(*g.shape, *kernel), kernel, geometry)


MAX_POOL = primitive(
    "max_pool",
    "composite",
    run_max_pool,
    grad={"x": lambda gs, out1, kernel, geometry: max_pool_put(gs[0], out1, kernel, geometry)},
    expand=expand_max_pool,
)
MAX_POOL_PUT = primitive(
    "max_pool_put",
    "composite",
    run_put,
    grad={"g": lambda gradient, winners, kernel, geometry: max_pool_pick(gradient, winners, kernel, geometry)},
    expand=expand_put,
)
MAX_POOL_PICK = primitive(
    "max_pool_pick",
    "composite",
    run_pick,
    grad={"x": lambda g, winners, kernel, geometry: max_pool_put(g, winners, kernel, geometry)},
    expand=expand_pick,
)


def max_pool_put(g: Tensor, winners: Tensor, kernel: Ints, geometry: Geometry) -> Tensor:
    return apply(MAX_POOL_PUT, (g, winners), {"kernel": kernel, "geometry": geometry})  # type: ignore[no-any-return]


def max_pool_pick(x: Tensor, winners: Tensor, kernel: Ints, geometry: Geometry) -> Tensor:
    return apply(MAX_POOL_PICK, (x, winners), {"kernel": kernel, "geometry": geometry})  # type: ignore[no-any-return]


def flat_indices(winners: Tensor, kernel: Ints, geometry: Geometry, size: Ints, sources: Any = None) -> Tensor:
    """Return the positions of the maxima in the input: indices into its flattened spatial dims.

    `sources` says for each dim, if pooling was done on elements picked from an input of that size, which ones they were.
    """
    codes, unit, pace = winners.long(), 1, 1
    total: Any = 0
    for i in reversed(range(len(kernel))):
        offset = codes // unit % kernel[i] * geometry.dilation[i]
        begin = arange(winners.shape[2 + i], device=winners.device) * geometry.stride[i] - geometry.padding[i][0]
        position = offset + begin.reshape(-1, *(1,) * (len(kernel) - 1 - i))
        if sources is not None:
            position = tensor(sources[i], device=winners.device)[position]
        total = total + position * pace
        unit, pace = unit * kernel[i], pace * size[i]
    return total  # type: ignore[no-any-return]


# ---- the mean

Divisor = int | tuple[Ints, ...]  # one for all windows, or for each dim one for each window


def products(divisor: tuple[Ints, ...]) -> Any:
    """The product of the dims' divisors for each window."""
    total = np.ones((), np.int64)
    for counts in divisor:
        total = total[..., None] * np.asarray(counts)
    return total


def divided(xp: Any, total: Any, divisor: Divisor) -> Any:
    """Integers are divided as C does, towards zero."""
    by = xp.asarray(np.asarray(divisor if isinstance(divisor, int) else products(divisor), total.dtype))
    return total / by if total.dtype.kind == "f" else xp.sign(total) * xp.sign(by) * (xp.abs(total) // xp.abs(by))


def sum_along(xp: Any, x: Any, dim: int, line: Line) -> Any:
    size, k = x.shape[dim], line.places
    if line.step == k and line.before == 0 and size == line.out * k and k > 4:  # few long sums: one call
        return xp.add.reduce(x.reshape(*x.shape[:dim], line.out, k, *x.shape[dim + 1 :]), axis=dim + 1, dtype=x.dtype)
    total = xp.zeros((*x.shape[:dim], line.out, *x.shape[dim + 1 :]), x.dtype)
    for place in range(k):
        pair = reach(size, line, place)
        if pair is not None:
            total[at(dim, pair[0])] += x[at(dim, pair[1])]
    return total


def spread_along(xp: Any, g: Any, dim: int, size: int, line: Line) -> Any:
    full = xp.zeros((*g.shape[:dim], size, *g.shape[dim + 1 :]), g.dtype)
    for place in range(line.places):
        pair = reach(size, line, place)
        if pair is not None:
            full[at(dim, pair[1])] += g[at(dim, pair[0])]
    return full


def run_mean_pool(xp: Any, x: Any, *, kernel: Ints, geometry: Geometry, divisor: Divisor) -> Any:
    along = lines(x.shape[2:], kernel, geometry)
    if all(line.out == 1 and line.before == 0 for line in along) and kernel == x.shape[2:]:
        return divided(xp, xp.add.reduce(x, axis=tuple(range(2, x.ndim)), keepdims=True, dtype=x.dtype), divisor)

    def pool(total: Any) -> Any:
        for i in reversed(range(len(along))):
            total = sum_along(xp, total, 2 + i, along[i])
        return (divided(xp, total, divisor),)

    return by_planes(xp, pool, x, tuple(line.out for line in along), (x.dtype,))[0]


def run_mean_spread(xp: Any, g: Any, *, kernel: Ints, geometry: Geometry, divisor: Divisor) -> Any:
    size = input_size(g.shape[2:], kernel, geometry)
    g = divided(xp, g, divisor)
    for i, line in enumerate(lines(size, kernel, geometry)):
        g = spread_along(xp, g, 2 + i, size[i], line)
    return g


def divisor_tensor(divisor: Divisor, x: Tensor) -> Any:
    return divisor if isinstance(divisor, int) else tensor(products(divisor), dtype=x.dtype, device=x.device)


def expand_mean_pool(x: Tensor, *, kernel: Ints, geometry: Geometry, divisor: Divisor) -> Tensor:
    total = places_last(x, kernel, geometry, 0).sum(-1)
    if x.dtype.is_floating_point:
        return total / divisor_tensor(divisor, x)  # type: ignore[no-any-return]
    return total.div(divisor_tensor(divisor, x), rounding_mode="trunc").to(x.dtype)  # type: ignore[no-any-return]


def expand_mean_spread(g: Tensor, *, kernel: Ints, geometry: Geometry, divisor: Divisor) -> Tensor:
    g = g / divisor_tensor(divisor, g)
    spread = g.reshape(*g.shape, *(1,) * len(kernel)).expand(*g.shape, *kernel)
    return unwindows(spread, kernel, geometry)


def mean_pool(x: Tensor, kernel: Ints, geometry: Geometry, divisor: Divisor) -> Tensor:
    return apply(MEAN_POOL, (x,), {"kernel": kernel, "geometry": geometry, "divisor": divisor})  # type: ignore[no-any-return]


def mean_pool_spread(g: Tensor, kernel: Ints, geometry: Geometry, divisor: Divisor) -> Tensor:
    return apply(MEAN_POOL_SPREAD, (g,), {"kernel": kernel, "geometry": geometry, "divisor": divisor})  # type: ignore[no-any-return]


MEAN_POOL = primitive(
    "mean_pool",
    "composite",
    run_mean_pool,
    grad={"x": lambda g, kernel, geometry, divisor: mean_pool_spread(g, kernel, geometry, divisor)},
    expand=expand_mean_pool,
)
MEAN_POOL_SPREAD = primitive(
    "mean_pool_spread",
    "composite",
    run_mean_spread,
    grad={"g": lambda gradient, kernel, geometry, divisor: mean_pool(gradient, kernel, geometry, divisor)},
    expand=expand_mean_spread,
)

# ---- arguments


def pool_numbers(value: Any, n: int, name: str, word: str) -> Ints:
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(numbers) not in (1, n):
        raise RuntimeError(f"{name}: {word} must either be a single int, or a tuple of {n} ints, but got {numbers}")
    found = tuple(as_index(v, f"{name}'s {word}") for v in numbers)
    return found * n if len(found) == 1 else found


def check_input(name: str, n: int, input: Any) -> None:
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}")
    if input.ndim not in (n + 1, n + 2) or 0 in input.shape[-n - 1 :]:
        raise RuntimeError(
            f"{name}: Expected {n + 1}D or {n + 2}D (batch mode) tensor with optional 0 dim batch size for input, "
            f"but got:{list(input.shape)}"
        )
    if input.dtype.category == dtypes.BOOL:
        raise NotImplementedError(f"\"{name}\" not implemented for 'Bool'; convert the input with .float()")


def pool_geometry(
    name: str, input: Tensor, n: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[Ints, Ints, Geometry]:
    """Checked arguments: the kernel, the padding and the geometry of the windows."""
    check_input(name, n, input)
    kernel = pool_numbers(kernel_size, n, name, "kernel_size")
    steps = (
        kernel
        if stride is None or (isinstance(stride, (tuple, list)) and not stride)
        else pool_numbers(stride, n, name, "stride")
    )
    pads, gaps = pool_numbers(padding, n, name, "padding"), pool_numbers(dilation, n, name, "dilation")
    if min(kernel) < 1:
        raise RuntimeError(f"{name}: kernel size should be greater than zero, but got {list(kernel)}")
    if min(steps) < 1:
        raise RuntimeError(f"{name}: stride should not be zero or negative, but got {list(steps)}")
    if min(gaps) < 1:
        raise RuntimeError(f"{name}: dilation should be greater than zero, but got {list(gaps)}")
    for pad, k, d, span in zip(pads, kernel, gaps, spans(kernel, gaps), strict=True):
        if pad < 0:
            raise RuntimeError(f"{name}: pad must be non-negative, but got pad: {pad}")
        if pad > span // 2:
            raise RuntimeError(
                f"{name}: pad should be at most half of effective kernel size, but got pad={pad}, kernel_size={k} "
                f"and dilation={d}"
            )
    size = tuple(input.shape[-n:])
    out = tuple(map(pool_length, size, spans(kernel, gaps), steps, pads, (ceil_mode,) * n))
    if min(out) < 1:
        channels = input.shape[-n - 1]
        raise RuntimeError(
            f"{name}: Given input size: {by((channels, *size), 'x')}. Calculated output size: {by((channels, *out), 'x')}. "
            "Output size is too small"
        )
    ends = (
        (m - 1) * s + span - length - p
        for m, s, span, length, p in zip(out, steps, spans(kernel, gaps), size, pads, strict=True)
    )
    return kernel, pads, Geometry(steps, tuple(zip(pads, ends, strict=True)), gaps)


def pool_length(size: int, span: int, step: int, pad: int, ceil_mode: bool) -> int:
    """Return the number of windows; with `ceil_mode` also one that begins inside and reaches over the end."""
    room = size + 2 * pad - span
    if not ceil_mode:
        return room // step + 1
    count = -(-room // step) + 1
    return count - 1 if (count - 1) * step >= size + pad else count


# ---- the public functions


def maximum_pool(
    name: str,
    n: int,
    input: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    kernel, _, geometry = pool_geometry(name, input, n, kernel_size, stride, padding, dilation, ceil_mode)
    batched = input.ndim == n + 2
    x = input if batched else input.unsqueeze(0)
    values, winners = apply(MAX_POOL, (x,), {"kernel": kernel, "geometry": geometry})
    found = [values]
    if return_indices:
        found.append(flat_indices(winners, kernel, geometry, tuple(x.shape[2:])))
    found = found if batched else [t.squeeze(0) for t in found]
    return tuple(found) if return_indices else found[0]


@public(
    "",
    "nn.functional",
    samples=[
        sample(A(2, 3, 6, distinct=True), 2),
        sample(A(2, 7, distinct=True), 3, stride=2, padding=1, return_indices=True, peer=False),
        sample(A(1, 2, 8, distinct=True), 3, 2, 1, 2, True),
    ],
    method=False,
)
def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window along the last dim of [batch, channel, length], and its index if asked for."""
    return maximum_pool("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@public(
    "",
    "nn.functional",
    samples=[
        sample(A(2, 2, 3, 4, distinct=True), 2),
        sample(A(1, 2, 5, 5, distinct=True), (3, 2), stride=(2, 1), padding=(1, 0)),
        sample(A(2, 5, 5, distinct=True), 2, stride=2, ceil_mode=True),
        sample(A(1, 1, 6, 6, distinct=True), 3, 2, 1, dilation=2),
        sample(A(1, 1, 5, 5, distinct=True), 3, stride=1, padding=1, return_indices=True, peer=False),
        sample(I(1, 2, 4, 4), 2, grad=False),
    ],
    method=False,
)
def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window of an image [batch, channel, height, width], and its index if asked for."""
    return maximum_pool("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@public(
    "",
    "nn.functional",
    samples=[
        sample(A(1, 2, 2, 4, 2, distinct=True), (1, 2, 2)),
        sample(A(1, 3, 4, 3, distinct=True), 2, stride=(1, 2, 1), padding=1, return_indices=True, peer=False),
    ],
    method=False,
)
def max_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window of a volume [batch, channel, depth, height, width], and its index if asked for."""
    return maximum_pool("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def window_counts(size: int, out: int, k: int, step: int, pad: int, include_pad: bool) -> Ints:
    """Return the number of elements that each window of a mean counts along a dim."""
    ends = [(o * step - pad, min(o * step - pad + k, size + pad)) for o in range(out)]
    return tuple(end - begin if include_pad else min(end, size) - max(begin, 0) for begin, end in ends)


def average_pool(
    name: str,
    n: int,
    input: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
) -> Tensor:
    if divisor_override == 0:
        raise RuntimeError(f"{name}: divisor must be not zero")
    kernel, pads, geometry = pool_geometry(name, input, n, kernel_size, stride, padding, 1, ceil_mode)
    size = tuple(input.shape[-n:])
    divisor: Divisor
    if divisor_override is not None:
        divisor = divisor_override
    else:
        dims = zip(size, output_size(size, kernel, geometry), kernel, geometry.stride, pads, strict=True)
        divisor = tuple(window_counts(length, m, k, s, p, count_include_pad) for length, m, k, s, p in dims)
        if all(len(set(counts)) == 1 for counts in divisor):
            divisor = math.prod(counts[0] for counts in divisor)
    batched = input.ndim == n + 2
    found = mean_pool(input if batched else input.unsqueeze(0), kernel, geometry, divisor)
    return found if batched else found.squeeze(0)  # type: ignore[no-any-return]


@public(
    "",
    "nn.functional",
    samples=[
        sample(A(2, 3, 6), 2),
        sample(A(2, 7), 3, stride=2, padding=1, count_include_pad=False),
        sample(A(1, 2, 6), 3, 2, ceil_mode=True),
        sample(A(1, 2, 12), 6),
    ],
    method=False,
)
def avg_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window along the last dim of [batch, channel, length]."""
    return average_pool("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


@public(
    "nn.functional",
    samples=[
        sample(A(2, 2, 3, 4), 2),
        sample(A(2, 5, 5), (3, 2), stride=(2, 1), padding=(1, 0)),
        sample(A(1, 1, 5, 6), 3, stride=2, padding=1, ceil_mode=True),
        sample(A(1, 2, 4, 4), 3, stride=2, padding=1, count_include_pad=False),
        sample(A(1, 2, 4, 4), 2, divisor_override=3),
        sample(I(1, 2, 4, 4, lo=-9, hi=9), 2, grad=False),
    ],
)
def avg_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of an image [batch, channel, height, width]."""
    return average_pool("avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@public(
    "nn.functional",
    samples=[sample(A(1, 2, 2, 4, 2), (1, 2, 2)), sample(A(1, 3, 4, 3), 2, stride=2, padding=1, count_include_pad=False)],
)
def avg_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of a volume [batch, channel, depth, height, width]."""
    return average_pool("avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


# ---- power means, and the way back


def power_pool(n: int, input: Tensor, norm_type: float, kernel_size: Any, stride: Any, ceil_mode: bool) -> Tensor:
    name = f"lp_pool{n}d"
    means_of = average_pool(name, n, input.pow(norm_type), kernel_size, stride, 0, ceil_mode, True)
    count = math.prod(pool_numbers(kernel_size, n, name, "kernel_size"))
    return (means_of * count).pow(1 / norm_type)  # type: ignore[no-any-return]


@public(
    "nn.functional", samples=[sample(A(2, 2, 6, lo=0.2), 2.0, 2), sample(A(2, 7, lo=0.2), 3.0, 3, stride=2, ceil_mode=True)]
)
def lp_pool1d(input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """The `norm_type`-norm of each window along the last dim."""
    return power_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


@public(
    "nn.functional", samples=[sample(A(1, 2, 4, 4, lo=0.2), 2.0, 2), sample(A(2, 4, 5, lo=0.2), 1.5, (2, 3), stride=(1, 2))]
)
def lp_pool2d(input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """The `norm_type`-norm of each window of an image."""
    return power_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


@public("nn.functional", samples=[sample(A(1, 2, 2, 4, 2, lo=0.2), 2.0, 2)])
def lp_pool3d(input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """The `norm_type`-norm of each window of a volume."""
    return power_pool(3, input, norm_type, kernel_size, stride, ceil_mode)


def maximum_unpool(
    name: str, n: int, input: Tensor, indices: Tensor, kernel_size: Any, stride: Any, padding: Any, output_size: Any
) -> Tensor:
    check_input(name, n, input)
    if indices.dtype != dtypes.int64:
        raise RuntimeError(f"{name}: elements in indices should be type int64 but got: {indices.dtype.name}")
    if indices.shape != input.shape:
        raise RuntimeError(
            f"{name}: Expected shape of indices to be same as that of the input tensor ({list(input.shape)}) but got indices "
            f"tensor with shape: {list(indices.shape)}"
        )
    kernel = pool_numbers(kernel_size, n, name, "kernel_size")
    steps = kernel if stride is None else pool_numbers(stride, n, name, "stride")
    pads = pool_numbers(padding, n, name, "padding")
    dims = zip(input.shape[-n:], kernel, steps, pads, strict=True)
    size = tuple((length - 1) * s - 2 * p + k for length, k, s, p in dims)
    if output_size is not None:
        wanted = tuple(output_size)[-n:]
        for i, (m, natural, s) in enumerate(zip(wanted, size, steps, strict=True)):
            if not natural - s < m < natural + s:
                raise ValueError(
                    f'{name}: invalid output_size "{wanted}" (dim {i} must be between {natural - s} and {natural + s})'
                )
        size = wanted
    dim = input.ndim - n
    flat = input.new_zeros(*input.shape[:dim], math.prod(size)).scatter(dim, indices.flatten(dim), input.flatten(dim))
    return flat.reshape(*input.shape[:dim], *size)  # type: ignore[no-any-return]


def _unpool_sample(shape: Ints, places: int, *args: Any, **kwargs: Any) -> Sample:
    return sample(A(*shape), I(*shape, hi=places, distinct=True), *args, **kwargs)


@public("nn.functional", samples=[_unpool_sample((1, 1, 3), 6, 2), _unpool_sample((1, 3), 7, 2, output_size=(7,))])
def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """Put maxima back to where `max_pool1d` found them, with zeros elsewhere."""
    return maximum_unpool("max_unpool1d", 1, input, indices, kernel_size, stride, padding, output_size)


@public("nn.functional", samples=[_unpool_sample((1, 1, 2, 3), 24, 2), _unpool_sample((1, 2, 2), 9, 2, 1)])
def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """Put maxima back to where `max_pool2d` found them, with zeros elsewhere."""
    return maximum_unpool("max_unpool2d", 2, input, indices, kernel_size, stride, padding, output_size)


@public("nn.functional", samples=[_unpool_sample((1, 1, 1, 2, 2), 32, 2)])
def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """Put maxima back to where `max_pool3d` found them, with zeros elsewhere."""
    return maximum_unpool("max_unpool3d", 3, input, indices, kernel_size, stride, padding, output_size)
