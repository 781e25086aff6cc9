"""Convolution: windows as a view, and a contraction.

`conv`, `conv_input_grad` and `conv_weight_grad` are each linear in both of their inputs and are each other's gradients, so
derivatives of any order need nothing else; a transposed convolution is `conv_input_grad`. One body serves 1, 2 and 3
spatial dims. The kernels copy the windows of a few samples at a time into a matrix for BLAS and never keep it; `expand`
says the same with the windows of `windows.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ...arrays.op_samples import A, I, sample
from ...core.dispatch import apply
from ...core.op import primitive
from ...core.registration import public
from ...core.tensor import Tensor
from .windows import (
    Geometry,
    Ints,
    Pairs,
    add_windows,
    bands,
    batches,
    by,
    columns,
    exact,
    input_size,
    kernel_size,
    output_size,
    overlap,
    padded,
    per_dim,
    spans,
    uncolumns,
    window_view,
)

# From so many channels on, BLAS gets windows as rows of [place, channel], whose memory is in longer runs.
MIN_ROW_CHANNELS = 16

# ---- kernels


def by_rows(channels: int, kernel: Ints, geometry: Geometry) -> bool:
    """True if windows become rows [place, channel] rather than columns [channel, place]. 1x1 needs no copy as columns."""
    return channels >= MIN_ROW_CHANNELS and (math.prod(kernel) > 1 or math.prod(geometry.stride) > 1)


def blocks(xp: Any, x: Any, kernel: Ints, out: Ints, geometry: Geometry, rows: bool) -> Iterator[tuple[slice, slice, Any]]:
    """The windows of some samples at some positions, as matrices.

    Columns are [sample, group, channel * place, position], rows are [group, sample * position, place * channel].
    """
    n, groups, rest = len(kernel), geometry.groups, math.prod(out[1:])
    total = x.shape[1] * math.prod(kernel) * math.prod(out) * x.itemsize
    pieces = bands(xp, total, x.shape[2:], out, kernel, geometry)
    if rows:
        x = x.transpose(0, *range(2, n + 2), 1)
    first, shaped = (1, as_rows) if rows else (2, as_columns)
    for samples in batches(xp, x.shape[0], total):
        for lines, padding in pieces:
            full = padded(xp, x[samples], first, padding)
            view = window_view(xp, full, first, kernel, (lines.stop - lines.start, *out[1:]), geometry)
            yield samples, slice(lines.start * rest, lines.stop * rest), shaped(view, n, groups)


def as_columns(view: Any, n: int, groups: int) -> Any:
    width = math.prod(view.shape[1 : 2 + n]) // groups
    return view.reshape(view.shape[0], groups, width, math.prod(view.shape[2 + n :]))


def as_rows(view: Any, n: int, groups: int) -> Any:
    channels = view.shape[-1] // groups
    width, length = math.prod(view.shape[1 : 1 + n]) * channels, view.shape[0] * math.prod(view.shape[1 + n : -1])
    view = view.reshape(*view.shape[:-1], groups, channels)
    return view.transpose(2 * n + 1, 0, *range(n + 1, 2 * n + 1), *range(1, n + 1), 2 * n + 2).reshape(groups, length, width)


def convolve(xp: Any, x: Any, w: Any, bias: Any, geometry: Geometry) -> Any:
    groups, kernel, n = geometry.groups, w.shape[2:], w.ndim - 2
    out = output_size(x.shape[2:], kernel, geometry)
    length, each = math.prod(out), w.shape[0] // groups
    result = xp.empty((x.shape[0], w.shape[0], *out), x.dtype)
    grouped = result.reshape(x.shape[0], groups, each, length)
    if bias is not None:
        bias = bias.reshape(groups, each, 1)
    rows = by_rows(w.shape[1], kernel, geometry)
    w = w.reshape(groups, each, *w.shape[1:])
    width = math.prod(w.shape[2:])
    if rows:
        w = w.transpose(0, *range(3, n + 3), 2, 1).reshape(groups, width, each)
    else:
        w = xp.ascontiguousarray(w.reshape(groups, each, width))  # BLAS takes no negative strides
    for samples, positions, parts in blocks(xp, x, kernel, out, geometry, rows):
        place = grouped[samples, :, :, positions]
        if rows:
            found = xp.matmul(parts, w).reshape(groups, place.shape[0], place.shape[3], each).transpose(1, 0, 3, 2)
            if bias is None:
                place[...] = found
            else:
                xp.add(found, bias, out=place)
        else:
            xp.matmul(w, parts, out=place)
            if bias is not None:
                place += bias
    return result


def turned(w: Any, groups: int) -> Any:
    """The weight of the convolution that is the transpose of a convolution with stride 1."""
    n = w.ndim - 2
    w = w[(slice(None), slice(None)) + (slice(None, None, -1),) * n]
    w = w.reshape(groups, -1, *w.shape[1:]).swapaxes(1, 2)
    return w.reshape(-1, *w.shape[2:])


def run_input_grad(xp: Any, g: Any, w: Any, *, geometry: Geometry) -> Any:
    groups, kernel, out = geometry.groups, w.shape[2:], g.shape[2:]
    if max(geometry.stride) == 1:
        reach = zip(spans(kernel, geometry.dilation), geometry.padding, strict=True)
        padding = tuple((span - 1 - before, span - 1 - after) for span, (before, after) in reach)
        return convolve(xp, g, turned(w, groups), None, geometry._replace(padding=padding))
    size, channels = input_size(out, kernel, geometry), groups * w.shape[1]
    result = xp.zeros((g.shape[0], channels, *size), g.dtype)
    across = w.reshape(groups, w.shape[0] // groups, w.shape[1] * math.prod(kernel)).swapaxes(1, 2)
    total = channels * math.prod(kernel) * math.prod(out) * g.itemsize
    pieces = bands(xp, total, size, out, kernel, geometry)
    for samples in batches(xp, g.shape[0], total):
        for lines, padding in pieces:
            some = g[samples, :, lines]
            count, here = some.shape[0], some.shape[2:]
            parts = xp.matmul(across, some.reshape(count, groups, w.shape[0] // groups, math.prod(here)))
            part, place, room = overlap(size, padding)
            full = xp.zeros((count, channels, *room), g.dtype)
            add_windows(full, parts.reshape(count, channels, *kernel, *here), geometry)
            result[(samples, slice(None), *part)] += full[(slice(None), slice(None), *place)]
    return result


def run_weight_grad(xp: Any, x: Any, g: Any, *, geometry: Geometry) -> Any:
    groups, out, n = geometry.groups, g.shape[2:], g.ndim - 2
    kernel = kernel_size(x.shape[2:], out, geometry)
    channels, each, length = x.shape[1] // groups, g.shape[1] // groups, math.prod(out)
    rows = by_rows(channels, kernel, geometry)
    result = xp.zeros((g.shape[1], *kernel, channels) if rows else (g.shape[1], channels, *kernel), x.dtype)
    total = result.reshape(groups, each, channels * math.prod(kernel))
    grouped = g.reshape(g.shape[0], groups, each, length)
    for samples, positions, parts in blocks(xp, x, kernel, out, geometry, rows):
        some = grouped[samples, :, :, positions]
        if rows:
            total += xp.matmul(some.transpose(1, 2, 0, 3).reshape(groups, each, parts.shape[1]), parts)
        else:
            total += xp.add.reduce(xp.matmul(some, parts.swapaxes(2, 3)))
    return xp.ascontiguousarray(result.transpose(0, n + 1, *range(1, n + 1))) if rows else result


# ---- the same in public ops


def expand_conv(x: Tensor, w: Tensor, *, geometry: Geometry) -> Tensor:
    groups, kernel = geometry.groups, tuple(w.shape[2:])
    out = output_size(tuple(x.shape[2:]), kernel, geometry)
    width = w.shape[1] * math.prod(kernel)
    parts = columns(x, kernel, geometry).reshape(x.shape[0], groups, width, math.prod(out))
    return (w.reshape(groups, w.shape[0] // groups, width) @ parts).reshape(x.shape[0], w.shape[0], *out)  # type: ignore[no-any-return]


def expand_input_grad(g: Tensor, w: Tensor, *, geometry: Geometry) -> Tensor:
    groups, kernel, out = geometry.groups, tuple(w.shape[2:]), tuple(g.shape[2:])
    each, width = w.shape[0] // groups, w.shape[1] * math.prod(kernel)
    parts = w.reshape(groups, each, width).mT @ g.reshape(g.shape[0], groups, each, math.prod(out))
    return uncolumns(parts.reshape(g.shape[0], groups * width, math.prod(out)), kernel, out, geometry)


def expand_weight_grad(x: Tensor, g: Tensor, *, geometry: Geometry) -> Tensor:
    groups, out = geometry.groups, tuple(g.shape[2:])
    kernel = kernel_size(tuple(x.shape[2:]), out, geometry)
    each, width = g.shape[1] // groups, x.shape[1] // groups * math.prod(kernel)
    parts = columns(x, kernel, geometry).reshape(x.shape[0], groups, width, math.prod(out))
    total = (g.reshape(g.shape[0], groups, each, math.prod(out)) @ parts.mT).sum(0)
    return total.reshape(g.shape[1], x.shape[1] // groups, *kernel)  # type: ignore[no-any-return]


# ---- the ops


def conv_shape(x: Any, w: Any, bias: Any = None, *, geometry: Geometry) -> tuple[Any]:
    return (x._replace(shape=(x.shape[0], w.shape[0], *output_size(x.shape[2:], w.shape[2:], geometry))),)


def input_grad_shape(g: Any, w: Any, *, geometry: Geometry) -> tuple[Any]:
    size = input_size(g.shape[2:], w.shape[2:], geometry)
    return (g._replace(shape=(g.shape[0], w.shape[1] * geometry.groups, *size)),)


def weight_grad_shape(x: Any, g: Any, *, geometry: Geometry) -> tuple[Any]:
    kernel = kernel_size(x.shape[2:], g.shape[2:], geometry)
    return (x._replace(shape=(g.shape[1], x.shape[1] // geometry.groups, *kernel)),)


def conv(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    return apply(CONV, (x, w), {"geometry": geometry})  # type: ignore[no-any-return]


def conv_input_grad(g: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    return apply(CONV_INPUT_GRAD, (g, w), {"geometry": geometry})  # type: ignore[no-any-return]


def conv_weight_grad(x: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    return apply(CONV_WEIGHT_GRAD, (x, g), {"geometry": geometry})  # type: ignore[no-any-return]


CONV_GRADIENTS = {
    "x": lambda g, w, geometry: conv_input_grad(g, w, geometry),
    "w": lambda g, x, geometry: conv_weight_grad(x, g, geometry),
}
CONV = primitive(
    "conv",
    "contraction",
    lambda xp, x, w, *, geometry: convolve(xp, x, w, None, geometry),
    grad=CONV_GRADIENTS,
    infer=conv_shape,
    expand=expand_conv,
)
CONV_BIAS = primitive(
    "conv_bias",
    "contraction",
    lambda xp, x, w, bias, *, geometry: convolve(xp, x, w, bias, geometry),
    grad={**CONV_GRADIENTS, "bias": lambda g: g.sum((0, *range(2, g.ndim)))},
    infer=conv_shape,
    expand=lambda x, w, bias, *, geometry: with_bias(conv(x, w, geometry), bias),
)
CONV_INPUT_GRAD = primitive(
    "conv_input_grad",
    "contraction",
    run_input_grad,
    grad={
        "g": lambda gradient, w, geometry: conv(gradient, w, geometry),
        "w": lambda gradient, g, geometry: conv_weight_grad(gradient, g, geometry),
    },
    infer=input_grad_shape,
    expand=expand_input_grad,
)
CONV_WEIGHT_GRAD = primitive(
    "conv_weight_grad",
    "contraction",
    run_weight_grad,
    grad={
        "x": lambda gradient, g, geometry: conv_input_grad(g, gradient, geometry),
        "g": lambda gradient, x, geometry: conv(x, gradient, geometry),
    },
    infer=weight_grad_shape,
    expand=expand_weight_grad,
)


def with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias.reshape(1, -1, *(1,) * (x.ndim - 2))  # type: ignore[no-any-return]


# ---- arguments


def check_numbers(stride: Ints, padding: Ints, dilation: Ints) -> None:
    if min(stride) < 1:
        raise RuntimeError(f"non-positive stride is not supported, but got {list(stride)}")
    if min(padding) < 0:
        raise RuntimeError(f"negative padding is not supported, but got {list(padding)}")
    if min(dilation) < 1:
        raise RuntimeError(f"dilation should be greater than zero, but got {list(dilation)}")


def check_tensors(name: str, n: int, input: Any, weight: Any, bias: Any, groups: int, transposed: bool) -> None:
    for word, x in (("input", input), ("weight", weight), ("bias", bias)):
        if not isinstance(x, Tensor) and not (word == "bias" and x is None):
            raise TypeError(f"{name}(): argument '{word}' must be Tensor, not {type(x).__name__}")
        if x is not None and x.dtype != input.dtype:
            raise RuntimeError(
                f"Input type ({input.dtype.name}) and {word} type ({x.dtype.name}) should be the same; "
                "convert one with .to(dtype)"
            )
    if input.dtype.name == "bool":
        raise NotImplementedError(f"\"{name}\" not implemented for 'Bool'; convert the input with .float()")
    shape, w = list(input.shape), list(weight.shape)
    if len(shape) not in (n + 1, n + 2):
        raise RuntimeError(
            f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to {name}, but got input of size: {shape}"
        )
    if len(w) != n + 2:
        raise RuntimeError(f"Expected {n + 2}D weight for {name}, but got weight of size: {w}")
    if groups < 1:
        raise RuntimeError(f"non-positive groups is not supported, but got groups={groups}")
    if w[0] < groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, but got weight of size {w} instead"
        )
    if w[0] % groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, "
            f"but got weight of size {w} instead"
        )
    if min(w[2:]) < 1:
        raise RuntimeError(f"kernel size should be greater than zero, but got weight of size {w} for {name}")
    given = "Given transposed=1" if transposed else f"Given groups={groups}"
    channels, outputs = (w[0], w[1] * groups) if transposed else (w[1] * groups, w[0])
    if shape[-n - 1] != channels:
        raise RuntimeError(
            f"{given}, weight of size {w}, expected input{shape} to have {channels} channels, "
            f"but got {shape[-n - 1]} channels instead"
        )
    if bias is not None and tuple(bias.shape) != (outputs,):
        raise RuntimeError(
            f"{given}, weight of size {w}, expected bias to be 1-dimensional with {outputs} elements, "
            f"but got bias of size {list(bias.shape)} instead"
        )
    if 0 in shape[-n:]:
        raise RuntimeError(f"Only zero batch or zero channel inputs are supported, but got input shape: {shape}")


def padding_pairs(padding: Any, kernel: Ints, stride: Ints, dilation: Ints) -> Pairs:
    n = len(kernel)
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * n
        if padding != "same":
            raise RuntimeError(f"Invalid padding string: '{padding}'; expected 'valid' or 'same'")
        if max(stride) > 1:
            raise RuntimeError(f"padding='same' is not supported for strided convolutions, but got stride={list(stride)}")
        return tuple(((span - 1) // 2, span // 2) for span in spans(kernel, dilation))
    return tuple((p, p) for p in per_dim(padding, n, "padding"))


def convolution(
    name: str, n: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    check_tensors(name, n, input, weight, bias, groups, False)
    kernel, size = tuple(weight.shape[2:]), tuple(input.shape[-n:])
    stride, dilation = per_dim(stride, n, "stride"), per_dim(dilation, n, "dilation")
    check_numbers(stride, (0,), dilation)
    pairs = padding_pairs(padding, kernel, stride, dilation)
    check_numbers(stride, tuple(a for a, _ in pairs), dilation)
    room = tuple(m + a + b for m, (a, b) in zip(size, pairs, strict=True))
    reach = spans(kernel, dilation)
    if any(r > m for r, m in zip(reach, room, strict=True)):
        raise RuntimeError(
            f"Calculated padded input size per channel: {by(room)}. Kernel size: {by(reach)}. "
            "Kernel size can't be greater than actual input size"
        )
    geometry = exact(size, kernel, stride, pairs, dilation, groups)
    batched = input.ndim == n + 2
    x = input if batched else input.unsqueeze(0)
    found = conv(x, weight, geometry) if bias is None else apply(CONV_BIAS, (x, weight, bias), {"geometry": geometry})
    return found if batched else found.squeeze(0)  # type: ignore[no-any-return]


def transposed_convolution(
    name: str,
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Tensor:
    check_tensors(name, n, input, weight, bias, groups, True)
    kernel, size = tuple(weight.shape[2:]), tuple(input.shape[-n:])
    stride, padding = per_dim(stride, n, "stride"), per_dim(padding, n, "padding")
    extra, dilation = per_dim(output_padding, n, "output_padding"), per_dim(dilation, n, "dilation")
    check_numbers(stride, padding, dilation)
    if min(extra) < 0:
        raise RuntimeError(f"negative output_padding is not supported, but got {list(extra)}")
    if any(e >= s and e >= d for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise RuntimeError(
            f"output padding must be smaller than either stride or dilation, but got output_padding: {list(extra)} "
            f"stride: {list(stride)} dilation: {list(dilation)}"
        )
    pairs = tuple((p, p - e) for p, e in zip(padding, extra, strict=True))
    geometry = Geometry(stride, pairs, dilation, groups)
    out = input_size(size, kernel, geometry)
    if min(out) < 1:
        raise RuntimeError(
            f"Given input size per channel: {by(size)}. Calculated output size per channel: {by(out)}. Output size is too small"
        )
    batched = input.ndim == n + 2
    found = conv_input_grad(input if batched else input.unsqueeze(0), weight, geometry)
    found = with_bias(found, bias)
    return found if batched else found.squeeze(0)  # type: ignore[no-any-return]


# ---- the public functions

BOTH = ("", "nn.functional")


@public(
    *BOTH,
    samples=[
        sample(A(2, 3, 6), A(4, 3, 3), A(4), stride=2, padding=1),
        sample(A(4, 7), A(2, 2, 2), dilation=3, groups=2),
        sample(A(1, 2, 5), A(3, 2, 4), padding="same"),
        sample(I(1, 2, 5), I(3, 2, 2), I(3), grad=False),
    ],
    method=False,
)
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Slide `weight` [out, in / groups, width] over the last dim of `input` [batch, in, length] and sum up the products."""
    return convolution("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@public(
    *BOTH,
    samples=[
        sample(A(2, 2, 4, 3), A(3, 2, 2, 3), A(3), padding=1),
        sample(A(2, 5, 6), A(3, 2, 2, 2), stride=(2, 3), padding=(1, 0)),
        sample(A(1, 4, 3, 3), A(4, 2, 2, 1), A(4), groups=2, padding="valid"),
        sample(A(1, 2, 5, 5), A(2, 2, 2, 3), dilation=(2, 1), padding="same"),
        sample(A(1, 16, 2, 2), A(2, 16, 1, 1), A(2), stride=2, padding=1),
    ],
    method=False,
)
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Slide `weight` [out, in / groups, height, width] over an image [batch, in, height, width] and sum up the products."""
    return convolution("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@public(
    *BOTH,
    samples=[
        sample(A(1, 2, 3, 3, 2), A(2, 2, 2, 2, 2), A(2), padding=(1, 0, 0)),
        sample(A(1, 4, 4, 3), A(2, 1, 2, 2, 1), stride=(1, 2, 2), dilation=(2, 1, 1)),
    ],
    method=False,
)
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Slide `weight` [out, in / groups, depth, height, width] over a volume and sum up the products."""
    return convolution("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


@public(
    *BOTH,
    samples=[
        sample(A(2, 3, 4), A(3, 2, 3), A(2), stride=2, padding=1, output_padding=1),
        sample(A(4, 3), A(4, 2, 2), groups=2, dilation=2, output_padding=1),
    ],
    method=False,
)
def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The transpose of `conv1d`: every input element spreads `weight` [in, out / groups, width] over the output."""
    return transposed_convolution("conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation)


@public(
    *BOTH,
    samples=[
        sample(A(2, 2, 3, 3), A(2, 2, 2, 3), A(2), stride=(2, 1), padding=(0, 1), output_padding=(1, 0)),
        sample(A(4, 2, 3), A(4, 1, 2, 2), A(2), groups=2),
        sample(A(1, 2, 2, 2), A(2, 2, 2, 2), stride=3, dilation=2, padding=1),
    ],
    method=False,
)
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The transpose of `conv2d`: every input element spreads `weight` [in, out / groups, height, width] over the output."""
    return transposed_convolution("conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation)


@public(
    *BOTH,
    samples=[sample(A(1, 2, 2, 2, 2), A(2, 2, 2, 1, 2), A(2), stride=(2, 1, 1), padding=(1, 0, 0), output_padding=(1, 0, 0))],
    method=False,
)
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The transpose of `conv3d`: every input element spreads `weight` [in, out / groups, *kernel] over the output."""
    return transposed_convolution("conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, groups, dilation)
