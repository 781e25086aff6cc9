"""Convolutions and their gradients, without a matrix of windows: the register tile reads the windows where they are.

The input is laid out so that a window's elements are at constant offsets (`windows.py`). The gradient of the input is a
convolution, too, of the gradient with the kernel turned round: both are in `sliding.py`. The gradient of the weights is in
`conv_outer.py`, and for few output channels in `conv_weights.py`.

Halves are converted while they are laid out. Where the CPU multiplies pairs of bfloats, two channels are laid out as one of
pairs instead; weights are packed like that in a phase before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ....eager.ops.spatial.windows import Geometry, input_size, kernel_size, output_size, spans
from ..ir.builder import FLOATS, HALVES, Module
from ..gemm.problem import Epilogue, join_of, join_pairs, multiplies_pairs, registers
from .weight_grad_outer import Outer
from .weight_grad_dot import Gradient
from ..ir.kernel import Kernel
from .problem import Slide, flat, paired, tile_for
from .direct_kernel import Sliding
from ..ir.target import Target
from .input_layout import Array, Windows


@dataclass(frozen=True)
class Conv:
    """What an op does: `conv` of x and w, `conv_input_grad` of g and w, `conv_weight_grad` of x and g."""

    op: str
    first: Array
    second: Array
    geometry: Geometry

    @property
    def wide(self) -> str:
        """What it is added up in."""
        return "float" if self.first.scalar in HALVES else self.first.scalar


def emit_conv(module: Module, name: str, conv: Conv, pointers: int, epilogue: Epilogue, target: Target) -> Kernel | None:
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
    slide = _forward(conv, lanes) if conv.op == "conv" else _backward(conv, lanes)
    if scalar != "bfloat" or slide.c == 1 or not multiplies_pairs(target, lanes):
        slide, join = flat(slide), join_of(target)
    else:
        slide, join = flat(paired(slide)), join_pairs
    tile = tile_for(slide, registers(target))
    return Sliding(slide, tile, pointers, epilogue, join).emit(module, name)


def _forward(conv: Conv, lanes: int) -> Slide:
    x, w, geometry = conv.first, conv.second, conv.geometry
    kernel = w.shape[2:]
    size = tuple(n + a + b for n, (a, b) in zip(x.shape[2:], geometry.padding, strict=True))
    before = tuple(a for a, _ in geometry.padding)
    windows = Windows(x, before, (1,) * len(kernel), size, geometry.stride, lanes, conv.wide)
    m, c = w.shape[0] // geometry.groups, w.shape[1]
    out = output_size(x.shape[2:], kernel, geometry)
    strides = w.strides
    of_group = m * strides[0]
    return Slide(
        windows, w, geometry.groups, m, c, out, kernel, geometry.dilation, of_group, strides[0], strides[1], strides[2:], 0
    )


def _backward(conv: Conv, lanes: int) -> Slide:
    """The gradient spread out by the stride, and the kernel turned round."""
    g, w, geometry = conv.first, conv.second, conv.geometry
    kernel = w.shape[2:]
    out = input_size(g.shape[2:], kernel, geometry)
    reach = spans(kernel, geometry.dilation)
    before = tuple(span - 1 - a for span, (a, _) in zip(reach, geometry.padding, strict=True))
    size = tuple(n + span - 1 for n, span in zip(out, reach, strict=True))
    windows = Windows(g, before, geometry.stride, size, (1,) * len(kernel), lanes, conv.wide)
    m, c = w.shape[1], w.shape[0] // geometry.groups
    strides = w.strides
    last = sum((k - 1) * s for k, s in zip(kernel, strides[2:], strict=True))
    turned = tuple(-s for s in strides[2:])
    of_group = c * strides[0]
    return Slide(
        windows, w, geometry.groups, m, c, out, kernel, geometry.dilation, of_group, strides[1], strides[0], turned, last
    )


def _weight_gradient(conv: Conv, target: Target, pointers: int, epilogue: Epilogue) -> Gradient | Outer | None:
    x, g, geometry = conv.first, conv.second, conv.geometry
    if g.strides[-1] != 1:
        return None
    lanes, room = target.lanes(conv.wide), registers(target)
    kernel = kernel_size(x.shape[2:], g.shape[2:], geometry)
    size = tuple(n + a + b for n, (a, b) in zip(x.shape[2:], geometry.padding, strict=True))
    before = tuple(a for a, _ in geometry.padding)
    windows = Windows(x, before, (1,) * len(kernel), size, geometry.stride, lanes, conv.wide)
    dense = all(s == math.prod(g.shape[i + 1 :]) for i, s in enumerate(g.strides) if i > 1)
    many = 2 * (g.shape[1] // geometry.groups) >= lanes
    if not (many and dense):
        return Gradient(windows, g, geometry.groups, kernel, geometry.dilation, room, pointers, epilogue, join_of(target))
    join = join_of(target)
    if g.scalar == "bfloat" and g.shape[-1] % 2 == 0 and multiplies_pairs(target, lanes):
        windows, join = replace(windows, scalar="bfloat"), join_pairs
    return Outer(windows, g, geometry.groups, kernel, geometry.dilation, room, pointers, epilogue, join)
