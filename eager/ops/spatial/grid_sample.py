"""Sampling images and volumes at places of one's own: `grid_sample`, and `affine_grid` for the places of a linear map.

Along each dim a place is between a few pixels, its taps, and takes a weighted sum of them; over all dims it is the sum over
all combinations of taps. Taps outside the image count for nothing, unless the padding has led them back in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from ...arrays.op_samples import A, sample
from ...core.errors import warn
from ...core.registration import public
from ...core.tensor import Tensor
from ..create import linspace, ones, zeros
from ..pointwise import where
from ..shape.reshape import stack

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")
_CUBIC = -0.75  # the parameter of Keys' kernel, as in `interpolate`

Taps = list[tuple[Tensor, Tensor | None]]  # of a dim: pixel numbers (whole, but floats, and maybe outside) and weights


def check(input: Tensor, grid: Tensor, mode: str, padding_mode: str) -> None:
    if mode not in _MODES:
        raise ValueError(
            f"nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: '{mode}'"
        )
    if padding_mode not in _PADDINGS:
        raise ValueError(
            "nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', but got: "
            f"'{padding_mode}'"
        )
    sizes = f"input with sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
    if input.ndim not in (4, 5) or grid.ndim != input.ndim:
        raise RuntimeError(f"grid_sampler(): expected 4D or 5D input and grid with same number of dimensions, but got {sizes}")
    if input.shape[0] != grid.shape[0]:
        raise RuntimeError(f"grid_sampler(): expected grid and input to have same batch size, but got {sizes}")
    if grid.shape[-1] != input.ndim - 2:
        raise RuntimeError(
            f"grid_sampler(): expected grid to have size {input.ndim - 2} in last dimension, but got grid with sizes "
            f"{list(grid.shape)}"
        )
    if 0 in input.shape[2:]:
        raise RuntimeError(
            "grid_sampler(): expected input to have non-empty spatial dimensions, but input has sizes "
            f"{list(input.shape)} with a dimension being empty"
        )
    if mode == "bicubic" and input.ndim != 4:
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")
    if input.dtype != grid.dtype:
        raise RuntimeError(
            f"grid_sampler(): expected input and grid to have same dtype, but input has {input.dtype} and grid has {grid.dtype}"
        )


def warn_of_default(align_corners: bool | None) -> bool:
    if align_corners is None:
        warn(
            "Default grid_sample and affine_grid behavior has changed to align_corners=False since 1.3.0. Please specify "
            "align_corners=True if the old behavior is desired. See the documentation of grid_sample for details."
        )
    return bool(align_corners)


def clipped(x: Tensor, size: int) -> Tensor:
    """Places outside are those on the border, and do not move with x."""
    return where((x > 0) & (x < size - 1), x, x.detach().clamp(0, size - 1))


def reflected(x: Tensor, size: int, align_corners: bool) -> Tensor:
    """Places outside are mirrored at the border, as often as it takes: at pixels' centres, or at their outer edges."""
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span == 0:
        return x * 0
    x = (x - low).abs()
    turns = (x.detach() / span).floor()
    rest = x - turns * span
    return clipped(where(turns % 2 == 0, rest + low, span - rest + low), size)


def padded(x: Tensor, size: int, padding_mode: str, align_corners: bool) -> Tensor:
    if padding_mode == "border":
        return clipped(x, size)
    return reflected(x, size, align_corners) if padding_mode == "reflection" else x


def keys(t: Tensor) -> Tensor:
    """Keys' cubic convolution kernel at distances between 0 and 1, and `keys_outer` between 1 and 2."""
    return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1


def keys_outer(t: Tensor) -> Tensor:
    return ((_CUBIC * t - 5 * _CUBIC) * t + 8 * _CUBIC) * t - 4 * _CUBIC


def taps(x: Tensor, size: int, mode: str, padding_mode: str, align_corners: bool) -> Taps:
    """The pixels and weights of places along a dim, -1 and 1 being its ends."""
    x = (x + 1) * ((size - 1) / 2) if align_corners else ((x + 1) * size - 1) / 2
    if mode == "bicubic":
        below = x.detach().floor()
        t = x - below
        weights = (keys_outer(t + 1), keys(t), keys(1 - t), keys_outer(2 - t))
        return [(padded(below + i - 1, size, padding_mode, align_corners), w) for i, w in enumerate(weights)]
    x = padded(x, size, padding_mode, align_corners)
    if mode == "nearest":
        return [(x.detach().round(), None)]
    below = x.detach().floor()
    t = x - below
    return [(below, 1 - t), (below + 1, t)]


@public(
    "nn.functional",
    samples=[
        sample(A(1, 2, 3, 4), A(1, 2, 3, 2, lo=-1.4, hi=1.4), align_corners=False),
        sample(A(2, 1, 3, 3), A(2, 2, 2, 2), mode="bilinear", padding_mode="border", align_corners=True),
        sample(A(1, 2, 4, 3), A(1, 2, 2, 2, lo=-4.0, hi=4.0), padding_mode="reflection", align_corners=False),
        sample(A(1, 1, 4, 3), A(1, 2, 2, 2, lo=-4.0, hi=4.0), padding_mode="reflection", align_corners=True),
        sample(A(1, 2, 3, 4), A(1, 3, 2, 2), mode="nearest", align_corners=False),
        sample(A(1, 1, 4, 4), A(1, 2, 2, 2), mode="bicubic", padding_mode="border", align_corners=False),
        sample(A(1, 1, 4, 5), A(1, 2, 3, 2), mode="bicubic", padding_mode="reflection", align_corners=True),
        sample(A(1, 2, 2, 3, 3), A(1, 2, 1, 2, 3), align_corners=True),
        sample(A(1, 1, 2, 3, 3), A(1, 2, 1, 2, 3), mode="nearest", padding_mode="border", align_corners=False),
    ],
)
def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """The values of images [batch, channel, height, width] at the places (x, y) of a grid, -1 and 1 being the edges."""
    check(input, grid, mode, padding_mode)
    align = warn_of_default(align_corners)
    batch, channels, *sizes = input.shape
    places = grid.shape[1:-1]
    rows = input.flatten(2)
    options = (mode, padding_mode, align)
    along = [taps(grid[..., len(sizes) - 1 - i], size, *options) for i, size in enumerate(sizes)]
    found: Any = 0
    for combination in itertools.product(*along):
        inside: Any = True
        index: Any = 0
        weight: Any = None
        for (pixel, share), size in zip(combination, sizes, strict=True):
            inside = (pixel >= 0) & (pixel <= size - 1) & inside
            index = index * size + pixel
            if share is not None:
                weight = share if weight is None else weight * share
        index = where(inside, index, 0).long().reshape(batch, 1, -1).expand(batch, channels, -1)
        values = rows.gather(2, index).reshape(batch, channels, *places)
        weight = inside.to(input.dtype) if weight is None else where(inside, weight, 0)
        found = found + values * weight.unsqueeze(1)
    return found  # type: ignore[no-any-return]


@public(
    "nn.functional",
    samples=[
        sample(A(2, 2, 3), (2, 1, 3, 4), align_corners=False),
        sample(A(1, 2, 3), [1, 3, 2, 1], align_corners=True),
        sample(A(1, 3, 4), (1, 1, 2, 2, 3), align_corners=False),
    ],
)
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The places that affine maps, [batch, 2, 3] or [batch, 3, 4], send the pixels of images of a size to."""
    sizes = tuple(int(n) for n in size)
    if not theta.is_floating_point():
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    dims = len(sizes) - 2
    if dims not in (2, 3):
        raise NotImplementedError(
            f"affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively. Got size {list(sizes)}."
        )
    if theta.ndim != 3 or tuple(theta.shape[1:]) != (dims, dims + 1):
        raise ValueError(
            f"Expected a batch of {dims}D affine matrices of shape Nx{dims}x{dims + 1} for size {list(sizes)}. Got "
            f"{list(theta.shape)}."
        )
    if min(sizes) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {list(sizes)}")
    align = warn_of_default(align_corners)
    places = sizes[2:]
    columns = [ones(places, dtype=theta.dtype, device=theta.device)]
    for i, n in enumerate(places):  # the last dim comes first, as x
        shape = [1] * dims
        shape[i] = n
        columns.insert(0, steps(n, align, theta).reshape(shape).expand(places))
    base = stack(columns, -1).reshape(1, math.prod(places), dims + 1)
    return (base @ theta.transpose(1, 2)).reshape(sizes[0], *places, dims)  # type: ignore[no-any-return]


def steps(n: int, align_corners: bool, like: Tensor) -> Tensor:
    """The centres of pixels along a dim, from -1 to 1: those of the first and last one, or its outer edges."""
    if n == 1:
        return zeros(1, dtype=like.dtype, device=like.device)
    found = linspace(-1, 1, n, dtype=like.dtype, device=like.device)
    return found if align_corners else found * ((n - 1) / n)
