"""Layers that learn the size of their input at the first call: LazyLinear, LazyConv*, LazyBatchNorm*, LazyInstanceNorm*.

Until then their parameters have no shape. The first call gives them one and makes each layer into the plain one; the
parameter objects stay, so an optimizer may already have them.
"""

from __future__ import annotations

from typing import Any

from ...arrays.dtypes import int64
from ...core.tensor import Tensor
from ...ops.create import tensor
from ..module import Module
from ..uninitialized import UninitializedBuffer, UninitializedParameter, is_lazy
from .batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from .conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .instancenorm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from .linear import Linear


class LazyModuleMixin:
    """Put before a module class: subclasses define `initialize_parameters(*inputs)` and may say what they become."""

    cls_to_become: type[Module] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._initialize_hook = self.register_forward_pre_hook(infer_parameters, with_kwargs=True)  # type: ignore[attr-defined]

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Give the parameters their shapes, by the inputs of the first call."""
        raise NotImplementedError(f"initialize_parameters is not implemented for {type(self).__name__}")

    def has_uninitialized_params(self: Any) -> bool:
        """True if a parameter or buffer of this module, without its submodules, has no shape yet."""
        return any(is_lazy(t) for t in (*self._parameters.values(), *self._buffers.values()))

    def reset_parameters(self: Any) -> None:
        """Draw new parameters, if they are there."""
        if not self.has_uninitialized_params() and self._size() != 0:
            super().reset_parameters()  # type: ignore[misc]

    def _size(self) -> int:
        """The size of the input that the module is made for; 0 if it does not know it yet."""
        return 1

    def _load_from_state_dict(
        self: Any, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: list[str], *rest: Any
    ) -> None:
        """Give parameters without a shape the shape of the loaded ones."""
        own = {prefix + name: t for name, t in self._own_state().items() if is_lazy(t)}
        without = [key for key in own if is_lazy(state_dict.get(key))]
        for key, t in own.items():
            if isinstance(state_dict.get(key), Tensor) and key not in without:
                t.materialize(state_dict[key].shape)
        for key in without:
            del state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *rest)  # type: ignore[misc]
        missing[:] = [key for key in missing if key not in without]


def infer_parameters(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before the first call: find the shapes, and be a plain layer from now on."""
    module.initialize_parameters(*args, **kwargs)
    if module.has_uninitialized_params():
        raise RuntimeError(f"module {type(module).__name__} has not been fully initialized")
    module._initialize_hook.remove()
    del module._initialize_hook
    if module.cls_to_become is not None:
        module.__class__ = module.cls_to_become


class LazyLinear(LazyModuleMixin, Linear):
    """A Linear whose in_features is the size of its first input."""

    cls_to_become = Linear

    def __init__(self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(0, 0, False)
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        self.out_features = out_features
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def _size(self) -> int:
        return self.in_features

    def initialize_parameters(self, input: Tensor) -> None:
        """in_features is the last dim of the input."""
        if self.has_uninitialized_params():
            self.in_features = input.shape[-1]
            self.weight.materialize((self.out_features, self.in_features))
            if self.bias is not None:
                self.bias.materialize((self.out_features,))
            self.reset_parameters()
        if self.in_features == 0:  # the parameters were loaded
            self.in_features = self.weight.shape[-1]


class _LazyConv(LazyModuleMixin):
    """Base of lazy convolutions."""

    weight: Any
    bias: Any
    in_channels: Any
    out_channels: Any

    def _make(self: Any, out_channels: int, bias: bool, device: Any, dtype: Any) -> None:
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        self.out_channels = out_channels
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def _size(self: Any) -> int:
        return int(self.in_channels)

    def initialize_parameters(self: Any, input: Tensor, *args: Any, **kwargs: Any) -> None:
        """in_channels is the dim before the spatial ones."""
        n = self._dims
        if self.has_uninitialized_params():
            if input.ndim not in (n + 1, n + 2):
                raise RuntimeError(
                    f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to {type(self).__name__}, but got input of "
                    f"size: {input.shape}"
                )
            self.in_channels = input.shape[-n - 1]
            if self.in_channels % self.groups:
                raise ValueError("in_channels must be divisible by groups")
            first, second = self.in_channels, self.out_channels
            channels = (first, second // self.groups) if self.transposed else (second, first // self.groups)
            self.weight.materialize((*channels, *self.kernel_size))
            if self.bias is not None:
                self.bias.materialize((self.out_channels,))
            self.reset_parameters()
        if self.in_channels == 0:  # the parameters were loaded
            self.in_channels = self.weight.shape[0] if self.transposed else self.weight.shape[1] * self.groups


class _LazyPlainConv(_LazyConv):
    def __init__(
        self,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode)
        self._make(out_channels, bias, device, dtype)


class _LazyTransposedConv(_LazyConv):
    def __init__(
        self,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(0, 0, kernel_size, stride, padding, output_padding, groups, False, dilation, padding_mode)
        self._make(out_channels, bias, device, dtype)


class LazyConv1d(_LazyPlainConv, Conv1d):
    """A Conv1d whose in_channels is that of its first input."""

    cls_to_become = Conv1d


class LazyConv2d(_LazyPlainConv, Conv2d):
    """A Conv2d whose in_channels is that of its first input."""

    cls_to_become = Conv2d


class LazyConv3d(_LazyPlainConv, Conv3d):
    """A Conv3d whose in_channels is that of its first input."""

    cls_to_become = Conv3d


class LazyConvTranspose1d(_LazyTransposedConv, ConvTranspose1d):
    """A ConvTranspose1d whose in_channels is that of its first input."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyTransposedConv, ConvTranspose2d):
    """A ConvTranspose2d whose in_channels is that of its first input."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyTransposedConv, ConvTranspose3d):
    """A ConvTranspose3d whose in_channels is that of its first input."""

    cls_to_become = ConvTranspose3d


class _LazyNorm(LazyModuleMixin):
    """Base of lazy batch and instance norms."""

    weight: Any
    bias: Any
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any
    num_features: Any
    affine: Any
    track_running_stats: Any

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(0, eps, momentum, False, False)
        self.affine, self.track_running_stats = affine, track_running_stats
        if affine:
            self.weight = UninitializedParameter(device=device, dtype=dtype)
            if bias:
                self.bias = UninitializedParameter(device=device, dtype=dtype)
        if track_running_stats:
            self.running_mean = UninitializedBuffer(device=device, dtype=dtype)
            self.running_var = UninitializedBuffer(device=device, dtype=dtype)
            self.num_batches_tracked = tensor(0, dtype=int64, device=device)

    def _size(self: Any) -> int:
        return int(self.num_features)

    def initialize_parameters(self: Any, input: Tensor) -> None:
        """num_features is the second dim; of an unbatched input to an instance norm, the first."""
        members = [t for t in (*self._parameters.values(), self.running_mean, self.running_var) if t is not None]
        unbatched = issubclass(self.cls_to_become, _UNBATCHED) and input.ndim == self._ndims[0]
        if self.num_features == 0:
            known = [t.shape[0] for t in members if not is_lazy(t)]  # they were loaded
            self.num_features = known[0] if known else input.shape[0 if unbatched else 1]
        if self.has_uninitialized_params():
            for t in members:
                if is_lazy(t):
                    t.materialize((self.num_features,))
            self.reset_parameters()


_UNBATCHED = (InstanceNorm1d, InstanceNorm2d, InstanceNorm3d)


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """A BatchNorm1d whose num_features is that of its first input."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """A BatchNorm2d whose num_features is that of its first input."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """A BatchNorm3d whose num_features is that of its first input."""

    cls_to_become = BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """An InstanceNorm1d whose num_features is that of its first input."""

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """An InstanceNorm2d whose num_features is that of its first input."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """An InstanceNorm3d whose num_features is that of its first input."""

    cls_to_become = InstanceNorm3d
