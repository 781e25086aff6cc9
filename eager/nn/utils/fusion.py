"""Batch norm folded into the layer before it, for evaluation."""

from __future__ import annotations

import copy
from typing import TypeVar

from ...core.tensor import Tensor
from ...ops.pointwise import rsqrt
from ..modules.batchnorm import _BatchNorm
from ..modules.conv import _ConvNd
from ..modules.linear import Linear
from ..parameter import Parameter

C = TypeVar("C", bound=_ConvNd)


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a convolution that does what convolution and batch norm do together."""
    scale: Tensor = rsqrt(bn_rv + bn_eps) if bn_w is None else bn_w * rsqrt(bn_rv + bn_eps)
    outputs = 1 if transpose else 0
    shape = [-1 if d == outputs else 1 for d in range(conv_w.ndim)]
    shift = (-bn_rm if conv_b is None else conv_b - bn_rm) * scale
    weight, bias = conv_w * scale.reshape(shape), shift if bn_b is None else shift + bn_b
    kind = conv_w.dtype if conv_b is None else conv_b.dtype
    wants = conv_b is not None and conv_b.requires_grad
    return Parameter(weight.to(conv_w.dtype), conv_w.requires_grad), Parameter(bias.to(kind), wants)


def fuse_conv_bn_eval(conv: C, bn: _BatchNorm, transpose: bool = False) -> C:
    """One convolution for a convolution and the batch norm after it; both have to be in evaluation mode."""
    mean, var = _statistics(conv.training or bn.training, bn)
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(conv.weight, conv.bias, mean, var, bn.eps, bn.weight, bn.bias, transpose)
    return fused


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor, bn_b: Tensor
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a linear layer that does what linear layer and batch norm do together."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def fuse_linear_bn_eval(linear: Linear, bn: _BatchNorm) -> Linear:
    """One linear layer for a linear layer and the batch norm after it; both have to be in evaluation mode."""
    mean, var = _statistics(linear.training or bn.training, bn)
    if bn.num_features not in (1, linear.out_features):
        raise AssertionError(
            "To fuse, linear.out_features == bn.num_features or bn.num_features == 1, got "
            f"linear.out_features={linear.out_features} and bn.num_features={bn.num_features}"
        )
    fused = copy.deepcopy(linear)
    fused.weight, fused.bias = fuse_conv_bn_weights(linear.weight, linear.bias, mean, var, bn.eps, bn.weight, bn.bias)
    return fused


def _statistics(training: bool, bn: _BatchNorm) -> tuple[Tensor, Tensor]:
    if training:
        raise AssertionError("Fusion only for eval!")
    if bn.running_mean is None or bn.running_var is None:
        raise AssertionError("bn.running_mean and bn.running_var must not be None")
    return bn.running_mean, bn.running_var
