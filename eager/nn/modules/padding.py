"""Padding layers: reflection, replication, circular, constant and zero padding."""

from __future__ import annotations

from typing import Any

from ...core.tensor import Tensor
from .. import functional as F
from ..module import Module
from ..sizes import Sizes, _ntuple


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
