"""Layers that rearrange images and their like: resizing, pixels to channels and back, padding, windows."""

from __future__ import annotations

from typing import Any

from ...core.tensor import Tensor
from .. import functional as F
from ..module import Module
from ..sizes import _ntuple

Sizes = int | tuple[int, ...]

# ---- resizing


class Upsample(Module):
    """Resizes to a size or by a factor."""

    def __init__(
        self,
        size: Sizes | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.name, self.size, self.mode = type(self).__name__, size, mode
        factors = tuple(float(f) for f in scale_factor) if isinstance(scale_factor, tuple) else None
        self.scale_factor = factors or (float(scale_factor) if scale_factor else None)  # type: ignore[arg-type]
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        how = {"align_corners": self.align_corners, "recompute_scale_factor": self.recompute_scale_factor}
        return F.interpolate(input, self.size, self.scale_factor, self.mode, **how)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        by = f"scale_factor={self.scale_factor!r}" if self.scale_factor is not None else f"size={self.size!r}"
        return f"{by}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Resizes images by repeating pixels."""

    def __init__(self, size: Sizes | None = None, scale_factor: float | tuple[float, ...] | None = None) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """Resizes images with straight lines between pixels; corners stay where they are."""

    def __init__(self, size: Sizes | None = None, scale_factor: float | tuple[float, ...] | None = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)


# ---- pixels and channels


class PixelShuffle(Module):
    """Channels become pixels: (C * r * r, H, W) to (C, H * r, W * r)."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Pixels become channels: (C, H * r, W * r) to (C * r * r, H, W)."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Channels of all groups in turn."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


# ---- windows


class Unfold(Module):
    """The windows of images as columns."""

    def __init__(self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Module):
    """Images from columns that are windows; where these overlap, their sum."""

    def __init__(
        self, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, dilation={self.dilation}, "
            f"padding={self.padding}, stride={self.stride}"
        )


# ---- padding


class _Pad(Module):
    """Padding of the last dims, given as one number or as (before, after) for each dim, last dim first."""

    _dims: int
    _mode: str

    def __init__(self, padding: Sizes) -> None:
        super().__init__()
        self.padding = _ntuple(2 * self._dims)(padding)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self._mode)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ReflectionPadNd(_Pad):
    _mode = "reflect"


class ReflectionPad1d(_ReflectionPadNd):
    """Pads sequences with their reflection."""

    _dims = 1


class ReflectionPad2d(_ReflectionPadNd):
    """Pads images with their reflection."""

    _dims = 2


class ReflectionPad3d(_ReflectionPadNd):
    """Pads volumes with their reflection."""

    _dims = 3


class _ReplicationPadNd(_Pad):
    _mode = "replicate"


class ReplicationPad1d(_ReplicationPadNd):
    """Pads sequences with copies of their ends."""

    _dims = 1


class ReplicationPad2d(_ReplicationPadNd):
    """Pads images with copies of their edges."""

    _dims = 2


class ReplicationPad3d(_ReplicationPadNd):
    """Pads volumes with copies of their faces."""

    _dims = 3


class _CircularPadNd(_Pad):
    _mode = "circular"

    def forward(self, input: Tensor) -> Tensor:
        fewer = self._dims + 1
        if input.ndim not in (fewer, fewer + 1):
            raise ValueError(f"expected {fewer}D or {fewer + 1}D input (got {input.ndim}D input)")
        return super().forward(input)


class CircularPad1d(_CircularPadNd):
    """Pads sequences as if they were rings."""

    _dims = 1


class CircularPad2d(_CircularPadNd):
    """Pads images with their opposite edges."""

    _dims = 2


class CircularPad3d(_CircularPadNd):
    """Pads volumes with their opposite faces."""

    _dims = 3


class _ConstantPadNd(_Pad):
    _mode = "constant"

    def __init__(self, padding: Sizes, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPadNd):
    """Pads sequences with a number."""

    _dims = 1


class ConstantPad2d(_ConstantPadNd):
    """Pads images with a number."""

    _dims = 2


class ConstantPad3d(_ConstantPadNd):
    """Pads volumes with a number."""

    _dims = 3


class _ZeroPadNd(_ConstantPadNd):
    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ZeroPad1d(_ZeroPadNd, ConstantPad1d):
    """Pads sequences with zeros."""


class ZeroPad2d(_ZeroPadNd, ConstantPad2d):
    """Pads images with zeros."""


class ZeroPad3d(_ZeroPadNd, ConstantPad3d):
    """Pads volumes with zeros."""
