"""Direct convolutions and their gradients, without im2col: the register tile reads windows in place.

The input is laid out so that a window's elements are at constant offsets (`input_layout.py`). The input gradient is a
convolution, too, of the output gradient with the flipped kernel: both are in `direct_kernel.py`. The weight gradient is in
`weight_grad_outer.py`, and for few output channels in `weight_grad_dot.py`.

Halves are converted while they are laid out. Where the CPU multiplies pairs of bfloats, two channels are laid out as one
channel of pairs instead; weights are packed like that in a phase before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ....eager.ops.spatial.windows import Geometry, input_size, kernel_size, output_size, spans
from ..gemm.problem import Epilogue, has_pair_products, multiply_add_for, multiply_add_pairs, vector_registers
from ..ir.builder import FLOATS, HALF_SCALARS, Module
from ..ir.kernel import NativeKernel
from ..ir.target import Target
from .direct_kernel import DirectConvKernel
from .input_layout import ConvArray, PaddedInput
from .problem import DirectConv, choose_tile, merge_lines, with_channel_pairs
from .weight_grad_dot import DotWeightGradient
from .weight_grad_outer import OuterWeightGradient


@dataclass(frozen=True)
class NativeConv:
    """`conv` of x and w, `conv_input_grad` of g and w, or `conv_weight_grad` of x and g, on kernel parameters."""

    op: str
    first: ConvArray
    second: ConvArray
    geometry: Geometry

    @property
    def wide(self) -> str:
        """Type of the sums."""
        return "float" if self.first.scalar in HALF_SCALARS else self.first.scalar


def emit_conv(
    module: Module, name: str, conv: NativeConv, pointers: int, epilogue: Epilogue, target: Target
) -> NativeKernel | None:
    """The kernel of a convolution; none if it is not covered.

    The epilogue gets [sample], channel, index of the first output in its channel, vector and mask. For the gradient of the
    weights it gets [], output channel, index of the first weight in it, vector and mask.
    """
    scalar = conv.first.scalar
    if scalar not in FLOATS or conv.second.scalar != scalar or 0 in (*conv.first.shape, *conv.second.shape):
        return None
    if conv.op == "conv_weight_grad":
        gradient = _weight_gradient(conv, target, pointers, epilogue)
        return gradient.emit(module, name) if gradient is not None else None
    lanes = target.lanes(conv.wide)
    slide = _forward_conv(conv, lanes) if conv.op == "conv" else _input_gradient(conv, lanes)
    if scalar != "bfloat" or slide.c == 1 or not has_pair_products(target, lanes):
        slide, join = merge_lines(slide), multiply_add_for(target)
    else:
        slide, join = merge_lines(with_channel_pairs(slide)), multiply_add_pairs
    tile = choose_tile(slide, vector_registers(target))
    return DirectConvKernel(slide, tile, pointers, epilogue, join).emit(module, name)


def _forward_conv(conv: NativeConv, lanes: int) -> DirectConv:
    x, w, geometry = conv.first, conv.second, conv.geometry
    kernel = w.shape[2:]
    size = tuple(n + a + b for n, (a, b) in zip(x.shape[2:], geometry.padding, strict=True))
    before = tuple(a for a, _ in geometry.padding)
    windows = PaddedInput(x, before, (1,) * len(kernel), size, geometry.stride, lanes, conv.wide)
    m, c = w.shape[0] // geometry.groups, w.shape[1]
    out = output_size(x.shape[2:], kernel, geometry)
    strides = w.strides
    of_group = m * strides[0]
    return DirectConv(
        windows, w, geometry.groups, m, c, out, kernel, geometry.dilation, of_group, strides[0], strides[1], strides[2:], 0
    )


def _input_gradient(conv: NativeConv, lanes: int) -> DirectConv:
    """The input gradient: the output gradient dilated by the stride, convolved with the flipped kernel."""
    g, w, geometry = conv.first, conv.second, conv.geometry
    kernel = w.shape[2:]
    out = input_size(g.shape[2:], kernel, geometry)
    reach = spans(kernel, geometry.dilation)
    before = tuple(span - 1 - a for span, (a, _) in zip(reach, geometry.padding, strict=True))
    size = tuple(n + span - 1 for n, span in zip(out, reach, strict=True))
    windows = PaddedInput(g, before, geometry.stride, size, (1,) * len(kernel), lanes, conv.wide)
    m, c = w.shape[1], w.shape[0] // geometry.groups
    strides = w.strides
    last = sum((k - 1) * s for k, s in zip(kernel, strides[2:], strict=True))
    turned = tuple(-s for s in strides[2:])
    of_group = c * strides[0]
    return DirectConv(
        windows, w, geometry.groups, m, c, out, kernel, geometry.dilation, of_group, strides[1], strides[0], turned, last
    )


def _weight_gradient(
    conv: NativeConv, target: Target, pointers: int, epilogue: Epilogue
) -> DotWeightGradient | OuterWeightGradient | None:
    x, g, geometry = conv.first, conv.second, conv.geometry
    if g.strides[-1] != 1:
        return None
    lanes, room = target.lanes(conv.wide), vector_registers(target)
    kernel = kernel_size(x.shape[2:], g.shape[2:], geometry)
    size = tuple(n + a + b for n, (a, b) in zip(x.shape[2:], geometry.padding, strict=True))
    before = tuple(a for a, _ in geometry.padding)
    windows = PaddedInput(x, before, (1,) * len(kernel), size, geometry.stride, lanes, conv.wide)
    dense = all(s == math.prod(g.shape[i + 1 :]) for i, s in enumerate(g.strides) if i > 1)
    many = 2 * (g.shape[1] // geometry.groups) >= lanes
    if not (many and dense):
        return DotWeightGradient(
            windows, g, geometry.groups, kernel, geometry.dilation, room, pointers, epilogue, multiply_add_for(target)
        )
    join = multiply_add_for(target)
    if g.scalar == "bfloat" and g.shape[-1] % 2 == 0 and has_pair_products(target, lanes):
        windows, join = replace(windows, scalar="bfloat"), multiply_add_pairs
    return OuterWeightGradient(windows, g, geometry.groups, kernel, geometry.dilation, room, pointers, epilogue, join)
