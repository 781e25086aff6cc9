"""Resizing: interpolation in every mode, and pixels moved between channels and space.

Every mode of `interpolate` works on one dim after the other, and along a dim each output is a weighted sum of a few
inputs. `Taps` is the table of those inputs and weights, `resample` the op that applies it. The transpose of a table is a
table too, so `resample` is its own gradient, to any order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...arrays.op_samples import A, I, sample
from ...core.dispatch import apply
from ...core.errors import warn
from ...core.op import primitive
from ...core.registration import public
from ...core.tensor import Tensor, as_index
from ..create import tensor
from ..pointwise import where

Array = np.ndarray[Any, Any]


class Taps:
    """Return the inputs, and their weights, that each output is interpolated from along a dim.

    `columns` has (indices, weights or None if they are all 1, where there is an input or None if everywhere), each for all
    outputs: outputs with fewer inputs than others have places without one.
    """

    def __init__(self, size: int, outputs: Array, inputs: Array, weights: Array, length: int) -> None:
        order = np.argsort(outputs, kind="stable")
        outputs, inputs, weights = outputs[order], inputs[order], weights[order]
        counts = np.bincount(outputs, minlength=length)
        rank = np.arange(len(outputs)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.size, self.length = size, length
        self.entries = (outputs, inputs, weights)
        self.columns: list[tuple[Array, Array | None, Array | None]] = []
        for i in range(max(1, int(counts.max(initial=0)))):
            mine = rank == i
            index, weight, there = np.zeros(length, np.int64), np.ones(length), np.zeros(length, np.bool_)
            index[outputs[mine]], weight[outputs[mine]], there[outputs[mine]] = inputs[mine], weights[mine], True
            self.columns.append((index, None if (weight == 1).all() else weight, None if there.all() else there))
        self._key = (size, length, *(a.tobytes() for a in self.entries))
        self._transposed: Taps | None = None

    @property
    def transposed(self) -> Taps:
        """The table of the gradient."""
        if self._transposed is None:
            outputs, inputs, weights = self.entries
            self._transposed = Taps(self.length, inputs, outputs, weights, self.size)
            self._transposed._transposed = self
        return self._transposed

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Taps) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Taps({self.size} to {self.length}, up to {len(self.columns)} inputs each)"


def run_resample(xp: Any, x: Any, *, dim: int, taps: Taps) -> Any:
    if taps.size == 0:
        return xp.zeros((*x.shape[:dim], taps.length, *x.shape[dim + 1 :]), x.dtype)
    along = (-1,) + (1,) * (x.ndim - 1 - dim)
    total: Any = None
    for index, weight, there in taps.columns:
        part = x.take(xp.asarray(index), axis=dim)
        if weight is not None:
            part *= xp.asarray(weight.astype(x.dtype)).reshape(along)
        if there is not None:
            part = xp.where(xp.asarray(there).reshape(along), part, xp.zeros((), x.dtype))
        if total is None:
            total = part
        else:
            total += part
    return total


def expand_resample(x: Tensor, *, dim: int, taps: Taps) -> Tensor:
    if taps.size == 0:
        return x.new_zeros(*x.shape[:dim], taps.length, *x.shape[dim + 1 :])  # type: ignore[no-any-return]
    along = (-1,) + (1,) * (x.ndim - 1 - dim)
    total: Any = None
    for index, weight, there in taps.columns:
        part = x.index_select(dim, tensor(index, device=x.device))
        if weight is not None:
            part = part * tensor(weight, dtype=x.dtype, device=x.device).reshape(along)
        if there is not None:
            part = where(tensor(there, device=x.device).reshape(along), part, 0)
        total = part if total is None else total + part
    return total  # type: ignore[no-any-return]


RESAMPLE = primitive(
    "resample",
    "composite",
    run_resample,
    grad={"x": lambda g, dim, taps: resample(g, dim, taps.transposed)},
    infer=lambda x, *, dim, taps: (x._replace(shape=(*x.shape[:dim], taps.length, *x.shape[dim + 1 :])),),
    expand=expand_resample,
)


def resample(x: Tensor, dim: int, taps: Taps) -> Tensor:
    """Apply a table along a dim."""
    return apply(RESAMPLE, (x,), {"dim": dim, "taps": taps})  # type: ignore[no-any-return]


# ---- the tables. `scale` is how many inputs an output stands for.


def table(size: int, index: Array, weight: Array) -> Taps:
    """From arrays [output, tap]; an index outside means the nearest input inside."""
    length, count = index.shape
    outputs = np.repeat(np.arange(length), count)
    return Taps(size, outputs, np.clip(index, 0, size - 1).reshape(-1), weight.reshape(-1), length)


def selected(size: int, index: Array) -> Taps:
    """Each output is one input."""
    return table(size, index[:, None], np.ones((len(index), 1)))


@functools.lru_cache(256)
def nearest(size: int, length: int, scale: float, exact: bool) -> Taps:
    """The input at or before the output's beginning, or the one under its middle (`exact`).

    Rounded to float32 as PyTorch does: another precision would floor to another input here and there.
    """
    begins = (np.arange(length) + 0.5 * exact) * float(np.float32(scale))
    return selected(size, np.floor(begins.astype(np.float32)).astype(np.int64))


def sources(length: int, scale: float, align_corners: bool) -> Array:
    """Return the centres of the outputs in coordinates of the inputs' centres."""
    positions = np.arange(length, dtype=np.float64)
    return positions * scale if align_corners else (positions + 0.5) * scale - 0.5


@functools.lru_cache(256)
def linear(size: int, length: int, scale: float, align_corners: bool) -> Taps:
    """Between the two nearest inputs; an equal length is a copy, whatever the scale factor was."""
    if length == size:
        return selected(size, np.arange(size))
    source = np.clip(sources(length, scale, align_corners), 0, size - 1)
    low = np.floor(source).astype(np.int64)
    share = source - low
    return table(size, np.stack([low, low + 1], 1), np.stack([1 - share, share], 1))


def cubic_kernel(x: Array, a: float) -> Array:
    """Keys' cubic at distances x."""
    x = np.abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


@functools.lru_cache(256)
def cubic(size: int, length: int, scale: float, align_corners: bool) -> Taps:
    """A cubic through the four nearest inputs."""
    source = sources(length, scale, align_corners)[:, None]
    index = np.floor(source).astype(np.int64) + np.arange(-1, 3)
    return table(size, index, cubic_kernel(source - index, -0.75))


@functools.lru_cache(256)
def smooth(size: int, length: int, scale: float, is_cubic: bool) -> Taps:
    """Linear or cubic with a kernel as wide as an output, so that shrinking leaves no jagged edges (`antialias`)."""
    wide = max(scale, 1.0)
    reach = (2.0 if is_cubic else 1.0) * wide
    outputs, inputs, weights = [], [], []
    for i in range(length):
        center = scale * (i + 0.5)
        begin, end = max(int(center - reach + 0.5), 0), min(int(center + reach + 0.5), size)
        distance = (np.arange(begin, end) - center + 0.5) / wide
        share = cubic_kernel(distance, -0.5) if is_cubic else np.maximum(1 - np.abs(distance), 0)
        outputs.append(np.full(end - begin, i))
        inputs.append(np.arange(begin, end))
        weights.append(share / share.sum())
    return Taps(size, np.concatenate(outputs), np.concatenate(inputs), np.concatenate(weights), length)


def adaptive_windows(size: int, length: int) -> list[tuple[int, int]]:
    """The windows [begin, end) that cover `size` inputs by `length` outputs."""
    return [(i * size // length, -(-(i + 1) * size // length)) for i in range(length)]


@functools.lru_cache(256)
def means(size: int, length: int) -> Taps:
    """The mean of each adaptive window."""
    found = adaptive_windows(size, length)
    counts = np.array([end - begin for begin, end in found], np.int64)
    inputs = [np.arange(begin, end) for begin, end in found]
    weights = np.repeat(1 / counts, counts)
    return Taps(size, np.repeat(np.arange(length), counts), np.concatenate([np.zeros(0, np.int64), *inputs]), weights, length)


# ---- interpolate

SPATIAL = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}  # how many dims a mode is for
MODES = ("nearest", "linear", "bilinear", "bicubic", "trilinear", "area", "nearest-exact")


def check_mode(input: Tensor, mode: str, align_corners: bool | None, antialias: bool) -> None:
    ndim = input.ndim
    if mode not in MODES or ndim not in (3, 4, 5) or (mode == "bicubic" and ndim != 4):
        raise NotImplementedError(
            f"Input Error: Only 3D, 4D and 5D input Tensors supported (got {ndim}D) for the modes: {' | '.join(MODES)} "
            f"(got {mode})"
        )
    if mode in SPATIAL and ndim != SPATIAL[mode] + 2:
        raise NotImplementedError(f"Got {ndim}D input, but {mode} mode needs {SPATIAL[mode] + 2}D input")
    if align_corners is not None and mode not in SPATIAL:
        raise ValueError(f"align_corners option can only be set with the interpolating modes: {' | '.join(SPATIAL)}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError("Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input")
    if not input.dtype.is_floating_point and mode not in ("nearest", "nearest-exact"):
        raise NotImplementedError(f"interpolate: mode '{mode}' is not implemented for '{input.dtype.legacy}'; use .float()")


def each_dim(value: Any, shape: tuple[int, ...], what: str, name: str) -> tuple[Any, ...]:
    """One value a spatial dim, from one for all or a list."""
    if not isinstance(value, (tuple, list)):
        return (value,) * len(shape)
    if len(value) != len(shape):
        letters = name[0]
        raise ValueError(
            f"Input and {what} must have the same number of spatial dimensions, but got input with spatial dimensions of "
            f"{list(shape)} and {name} of {tuple(value)}. Please provide input tensor in (N, C, d1, d2, ...,dK) format and "
            f"{name} in ({letters}1, {letters}2, ...,{letters}K) format."
        )
    return tuple(value)


def output_sizes(
    shape: tuple[int, ...], size: Any, scale_factor: Any, recompute: bool | None
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """The output's spatial size, and the scale factors where they, and not the sizes, decide on positions."""
    if size is None and scale_factor is None:
        raise ValueError("either size or scale_factor should be defined")
    if size is not None and scale_factor is not None:
        raise ValueError("only one of size or scale_factor should be defined")
    if size is not None:
        if recompute:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
        sizes = tuple(as_index(n, "size of interpolate") for n in each_dim(size, shape, "output", "output size"))
        factors: tuple[float | None, ...] = (None,) * len(shape)
    else:
        given = tuple(float(f) for f in each_dim(scale_factor, shape, "scale_factor", "scale_factor"))
        sizes = tuple(math.floor(n * f) for n, f in zip(shape, given, strict=True))
        factors = (None,) * len(shape) if recompute else given
    if min(*shape, *sizes) < 1:
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input {list(shape)} output {list(sizes)} in interpolate"
        )
    return sizes, factors


def taps_for(mode: str, align_corners: bool, antialias: bool) -> Callable[[int, int, float | None], Taps]:
    """The maker of a mode's tables, from the input's and the output's length and the scale factor."""

    def make(size: int, length: int, factor: float | None) -> Taps:
        if mode == "area":
            return means(size, length)
        scale = size / length if factor is None or factor <= 0 else 1 / factor
        if align_corners:
            scale = (size - 1) / (length - 1) if length > 1 else 0.0
        if mode in ("nearest", "nearest-exact"):
            return nearest(size, length, scale, mode == "nearest-exact")
        if antialias:
            return smooth(size, length, scale, mode == "bicubic")
        return (cubic if mode == "bicubic" else linear)(size, length, scale, align_corners)

    return make


@public(
    "nn.functional",
    samples=[
        sample(A(2, 2, 3), size=5),
        sample(A(1, 2, 3, 4), scale_factor=(2, 0.5)),
        sample(A(1, 2, 3, 2), scale_factor=1.7, mode="nearest-exact"),
        sample(A(2, 2, 3), size=5, mode="linear"),
        sample(A(1, 2, 3, 4), size=(4, 3), mode="bilinear"),
        sample(A(1, 2, 3, 4), size=(5, 2), mode="bilinear", align_corners=True),
        sample(A(1, 1, 3, 4), scale_factor=1.6, mode="bilinear"),
        sample(A(1, 1, 3, 4), scale_factor=1.6, mode="bilinear", recompute_scale_factor=True),
        sample(A(1, 1, 4, 3), size=(3, 5), mode="bicubic"),
        sample(A(1, 1, 4, 3), size=(6, 3), mode="bicubic", align_corners=True),
        sample(A(1, 1, 6, 5), size=(3, 2), mode="bilinear", antialias=True),
        sample(A(1, 1, 6, 5), size=(3, 7), mode="bicubic", antialias=True),
        sample(A(1, 1, 2, 3, 2), size=(3, 2, 3), mode="trilinear"),
        sample(A(1, 2, 5, 4), size=(3, 2), mode="area"),
    ],
)
def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resize the dims after [batch, channel] to `size`, or by `scale_factor`."""
    check_mode(input, mode, align_corners, antialias)
    shape = tuple(input.shape[2:])
    if input.shape[1] == 0:
        raise RuntimeError(f"Non-empty {input.ndim}D data tensor expected but got a tensor with sizes {list(input.shape)}")
    sizes, factors = output_sizes(shape, size, scale_factor, recompute_scale_factor)
    make = taps_for(mode, bool(align_corners), antialias)
    found = input
    for i in reversed(range(len(shape))):
        found = resample(found, 2 + i, make(shape[i], sizes[i], factors[i]))
    return found


@public("nn.functional", samples=[sample(A(1, 2, 2, 3), scale_factor=2, peer=False)])
def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """The old name of `interpolate`."""
    warn("`nn.functional.upsample` is deprecated. Use `nn.functional.interpolate` instead.")
    return interpolate(input, size, scale_factor, mode, align_corners)


# ---- between channels and space


def check_image(name: str, input: Tensor, factor_name: str, factor: int) -> None:
    if input.ndim < 3:
        raise RuntimeError(f"{name} expects input to have at least 3 dimensions, but got input with {input.ndim} dimension(s)")
    if factor < 1:
        raise RuntimeError(f"{name} expects a positive {factor_name}, but got {factor}")


@public("", "nn.functional", samples=[sample(A(2, 4, 2, 3), 2), sample(A(9, 1, 2), 3), sample(I(1, 4, 1, 2), 2)], method=False)
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """[..., channel * r * r, height, width] to [..., channel, height * r, width * r]."""
    r = as_index(upscale_factor, "upscale_factor")
    check_image("pixel_shuffle", input, "upscale_factor", r)
    *batch, channels, height, width = input.shape
    if channels % (r * r):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
            f"but input.size(-3)={channels} is not divisible by {r * r}"
        )
    n = len(batch)
    found = input.reshape(*batch, channels // (r * r), r, r, height, width)
    found = found.permute(*range(n + 1), n + 3, n + 1, n + 4, n + 2)
    return found.reshape(*batch, channels // (r * r), height * r, width * r)  # type: ignore[no-any-return]


@public("", "nn.functional", samples=[sample(A(2, 1, 4, 6), 2), sample(A(1, 3, 6), 3), sample(I(1, 2, 4), 2)], method=False)
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """[..., channel, height * r, width * r] to [..., channel * r * r, height, width]."""
    r = as_index(downscale_factor, "downscale_factor")
    check_image("pixel_unshuffle", input, "downscale_factor", r)
    *batch, channels, height, width = input.shape
    for word, dim, length in (("height", -2, height), ("width", -1, width)):
        if length % r:
            raise RuntimeError(
                f"pixel_unshuffle expects {word} to be divisible by downscale_factor, but input.size({dim})={length} "
                f"is not divisible by {r}"
            )
    n = len(batch)
    found = input.reshape(*batch, channels, height // r, r, width // r, r)
    found = found.permute(*range(n + 1), n + 2, n + 4, n + 1, n + 3)
    return found.reshape(*batch, channels * r * r, height // r, width // r)  # type: ignore[no-any-return]


@public("", "nn.functional", samples=[sample(A(2, 4, 2, 2), 2), sample(A(1, 6, 3), 3)], method=False)
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Deal out the channels of [batch, channel, ...] like cards: the first of each group, then the second of each."""
    if input.ndim < 3:
        raise RuntimeError(f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(input.shape)}")
    if groups < 1:
        raise RuntimeError(f"Number of groups to divide channels in must be positive. Value of groups:{groups}")
    batch, channels, *rest = input.shape
    if channels % groups:
        raise RuntimeError(f"Number of channels must be divisible by groups. Got {channels} channels and {groups} groups.")
    return input.reshape(batch, groups, channels // groups, *rest).transpose(1, 2).reshape(input.shape)  # type: ignore[no-any-return]
