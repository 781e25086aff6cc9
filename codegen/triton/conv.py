"""Convolutions and their gradients as contractions, without a matrix of windows: indices say where a window's elements are.

    conv               channels out x (sample, place out),  summed over (channel in, place in the window)
    conv_input_grad    channels in  x (sample, place in),   summed over (channel out, place in the window)
    conv_weight_grad   channels out x (channel in, place in the window), summed over (sample, place out)

Columns are what stands side by side in memory. Each group is a batch. Elements of the padding are masked, and so are places of
the gradient between the strides.
"""

from __future__ import annotations

import math

from ...eager.ops.windows import Geometry
from ...tracer.graph import Form, Node
from ..expr import Expr, Exprs, Guard
from ..index import Index, unflattened
from ..kernels import Launch
from ..lower import Place
from ..steps import Domain
from .contraction import Contraction, Operands, batch_of, followed, in_halves


def conv_of(launch: Launch, node: Node, forms: dict[str, Form]) -> Contraction:
    return {"conv": forward, "conv_input_grad": of_input, "conv_weight_grad": of_weights}[node.op.name](launch, node, forms)


def forward(launch: Launch, node: Node, forms: dict[str, Form]) -> Contraction:
    x, w = node.operands
    geometry: Geometry = node.attrs["geometry"]
    result, weights, size = forms[node.results[0]].shape, forms[w].shape, forms[x].shape[2:]
    rows, group = weights[0] // geometry.groups, batch_of(geometry.groups)
    cols, depth = result[0] * math.prod(result[2:]), math.prod(weights[1:])
    outer, inner = Domain(rows, depth), Domain(depth, cols)
    exprs = Exprs()
    operands = Operands(launch, forms, exprs)
    first = operands.at(w, (group * rows + outer.row, *unflattened(outer.col, weights[1:])))
    channel, *taps = unflattened(inner.row, weights[1:])
    sample, *places = unflattened(inner.col, (result[0], *result[2:]))
    where, guard = in_window(places, taps, size, geometry)
    second = operands.at(x, (sample, group * weights[1] + channel, *where), guard)
    return made(launch, exprs, (first, second), (geometry.groups, rows, cols, depth), result, node)


def of_input(launch: Launch, node: Node, forms: dict[str, Form]) -> Contraction:
    g, w = node.operands
    geometry: Geometry = node.attrs["geometry"]
    result, weights, size = forms[node.results[0]].shape, forms[w].shape, forms[g].shape[2:]
    rows, group, summed = weights[1], batch_of(geometry.groups), weights[0] // geometry.groups
    cols, depth = result[0] * math.prod(result[2:]), summed * math.prod(weights[2:])
    outer, inner = Domain(rows, depth), Domain(depth, cols)
    exprs = Exprs()
    operands = Operands(launch, forms, exprs)
    channel, *taps = unflattened(outer.col, (summed, *weights[2:]))
    first = operands.at(w, (group * summed + channel, outer.row, *taps))
    channel, *taps = unflattened(inner.row, (summed, *weights[2:]))
    sample, *places = unflattened(inner.col, (result[0], *result[2:]))
    where, guard = in_output(places, taps, size, geometry)
    second = operands.at(g, (sample, group * summed + channel, *where), guard)
    return made(launch, exprs, (first, second), (geometry.groups, rows, cols, depth), result, node)


def of_weights(launch: Launch, node: Node, forms: dict[str, Form]) -> Contraction:
    x, g = node.operands
    geometry: Geometry = node.attrs["geometry"]
    result, pull, size = forms[node.results[0]].shape, forms[g].shape, forms[x].shape[2:]
    rows, group = result[0] // geometry.groups, batch_of(geometry.groups)
    cols, depth = math.prod(result[1:]), pull[0] * math.prod(pull[2:])
    outer, inner = Domain(rows, depth), Domain(depth, cols)
    exprs = Exprs()
    operands = Operands(launch, forms, exprs)
    sample, *places = unflattened(outer.col, (pull[0], *pull[2:]))
    first = operands.at(g, (sample, group * rows + outer.row, *places))
    sample, *places = unflattened(inner.row, (pull[0], *pull[2:]))
    channel, *taps = unflattened(inner.col, result[1:])
    where, guard = in_window(places, taps, size, geometry)
    second = operands.at(x, (sample, group * result[1] + channel, *where), guard)
    return made(launch, exprs, (first, second), (geometry.groups, rows, cols, depth), result, node)


def made(
    launch: Launch,
    exprs: Exprs,
    operands: tuple[Expr, Expr],
    sizes: tuple[int, int, int, int],
    result: tuple[int, ...],
    node: Node,
) -> Contraction:
    """The contraction, and what follows it: rows of the nest are samples and channels, or channels alone."""
    assert launch.nest is not None
    groups, rows, cols, depth = sizes
    own, group = Domain(rows, cols), batch_of(groups)
    channel = group * rows + own.row
    row, col = channel, own.col
    if node.op.name != "conv_weight_grad":
        sample, col = unflattened(own.col, (result[0], math.prod(result[2:])))
        row = sample * result[1] + channel
    nest = followed(launch.nest, exprs, rows, cols, row, col)
    times = f"{groups} groups, each " if groups > 1 else ""
    what = f"{node.op.name} to {list(result)}: {times}[{rows}, {depth}] @ [{depth}, {cols}]"
    return Contraction(groups, rows, cols, depth, *in_halves(*operands), nest, what)


def in_window(places: list[Index], taps: list[Index], size: tuple[int, ...], geometry: Geometry) -> tuple[Place, Guard]:
    """Where in the input the elements of windows are, and that they are in it."""
    where = []
    for p, t, s, d, (before, _) in zip(places, taps, geometry.stride, geometry.dilation, geometry.padding, strict=True):
        where.append(p * s + t * d - before)
    return tuple(where), tuple(zip(where, size, strict=True))


def in_output(places: list[Index], taps: list[Index], size: tuple[int, ...], geometry: Geometry) -> tuple[Place, Guard]:
    """Where in the output the windows are that have an element of the input at a tap, and that there is one."""
    where: list[Index] = []
    guard: list[tuple[Index, int]] = []
    steps = zip(places, taps, size, geometry.stride, geometry.dilation, geometry.padding, strict=True)
    for p, t, n, s, d, (before, _) in steps:
        shifted = p + before - t * d
        where.append(shifted // s)
        guard.append((shifted, (n - 1) * s + 1))
        if s > 1:
            guard.append((shifted % s, 1))
    return tuple(where), tuple(guard)
