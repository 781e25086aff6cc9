"""Instance normalisation layers."""

from __future__ import annotations

from typing import Any

from ...core.errors import warn
from ...core.tensor import Tensor
from .. import functional as F
from .batchnorm import _NormBase


class _InstanceNorm(_NormBase):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        unbatched = input.ndim == self._ndims[0]
        channels = input.ndim - self._ndims[0]
        if input.shape[channels] != self.num_features:
            self._wrong_size(channels, input.shape[channels])
        result = self._normalised(input.unsqueeze(0) if unbatched else input)
        return result.squeeze(0) if unbatched else result  # type: ignore[no-any-return]

    def _normalised(self, input: Tensor) -> Tensor:
        by_input, momentum = self.training or not self.track_running_stats, 0.0 if self.momentum is None else self.momentum
        return F.instance_norm(  # type: ignore[no-any-return]
            input, self.running_mean, self.running_var, self.weight, self.bias, by_input, momentum, self.eps
        )

    def _wrong_size(self, dim: int, size: int) -> None:
        if self.affine:
            raise ValueError(
                f"expected input's size at dim={dim} to match num_features ({self.num_features}), but got: {size}."
            )
        warn(
            f"input's size at dim={dim} does not match num_features. You can silence this warning by not passing in "
            "num_features, which is not used because affine=False"
        )


class InstanceNorm1d(_InstanceNorm):
    """Mean 0 and variance 1 for each channel of each sequence: (N, C, L) or (C, L)."""

    _ndims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Mean 0 and variance 1 for each channel of each image: (N, C, H, W) or (C, H, W)."""

    _ndims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Mean 0 and variance 1 for each channel of each volume: (N, C, D, H, W) or (C, D, H, W)."""

    _ndims = (4, 5)
