"""Batch normalisation layers, and the running statistics that they share with instance norm."""

from __future__ import annotations

from typing import Any

from ...arrays.dtypes import int64
from ...core.tensor import Tensor
from ...ops.create import ones, tensor, zeros
from .. import functional as F
from ..module import Module
from .normalization import _Affine


class _NormBase(_Affine):
    """Base of batch and instance norm: running statistics, which are buffers."""

    _version = 2  # since 2 there is num_batches_tracked
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    _ndims: tuple[int, int]  # how many dims an input may have: the fewer, the more

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._make_affine((num_features,), affine, affine and bias, device, dtype)
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, device=device, dtype=dtype) if tracked else None)
        self.register_buffer("running_var", ones(num_features, device=device, dtype=dtype) if tracked else None)
        self.register_buffer("num_batches_tracked", tensor(0, dtype=int64, device=device) if tracked else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Forget what was seen in training."""
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Weights become 1, biases 0, and running statistics those of a standard distribution."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input_dim(self, input: Tensor) -> None:
        fewer, more = self._ndims
        if input.ndim not in self._ndims:
            expected = f"{more}D" if fewer == more else f"{fewer}D or {more}D"
            raise ValueError(f"expected {expected} input (got {input.ndim}D input)")

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        key = f"{prefix}num_batches_tracked"
        if (local_metadata.get("version") or 1) < 2 and self.track_running_stats and key not in state_dict:
            count = self.num_batches_tracked
            state_dict[key] = tensor(0, dtype=int64) if count is None else count
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


class _BatchNorm(_NormBase):
    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        mean, var, training, momentum = self.running_mean, self.running_var, self.training, self.momentum
        if training and self.track_running_stats:
            count = self.num_batches_tracked
            if count is not None:
                count.add_(1)
                if momentum is None:  # then the running statistics are plain means over all batches
                    momentum = 1.0 / float(count)
        elif training:
            mean = var = None
        by_batch = training or (mean is None and var is None)
        return F.batch_norm(input, mean, var, self.weight, self.bias, by_batch, 0.0 if momentum is None else momentum, self.eps)  # type: ignore[no-any-return]


class BatchNorm1d(_BatchNorm):
    """Mean 0 and variance 1 for each feature, over the batch: (N, C) or (N, C, L)."""

    _ndims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Mean 0 and variance 1 for each channel, over a batch of images: (N, C, H, W)."""

    _ndims = (4, 4)


class BatchNorm3d(_BatchNorm):
    """Mean 0 and variance 1 for each channel, over a batch of volumes: (N, C, D, H, W)."""

    _ndims = (5, 5)


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the batches of all processes of a group. There is one process, so it is the batch norm of any shape."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.ndim}D input)")

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """The module with its batch norms made into this one; they keep their parameters and statistics."""
        found = module
        if isinstance(module, _BatchNorm):
            found = cls(
                module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats, process_group
            )
            found._parameters.update(module._parameters)
            found._buffers.update(module._buffers)
            found.training = module.training
        for name, child in module.named_children():
            found.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return found
