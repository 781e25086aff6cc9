"""Resizing layers."""

from __future__ import annotations

from ...core.tensor import Tensor
from .. import functional as F
from ..module import Module
from ..sizes import Sizes


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
