"""Convolutions and their gradients as contractions, without a matrix of windows: indices say where a window's elements are.

    conv               channels out x (sample, place out),  summed over (channel in, place in the window)
    conv_input_grad    channels in  x (sample, place in),   summed over (channel out, place in the window)
    conv_weight_grad   channels out x (channel in, place in the window), summed over (sample, place out)

Columns are what stands side by side in memory. Each group is a batch. Elements of the padding are masked, and so are places of
the gradient between the strides, where they are not left out.
"""

from __future__ import annotations

import math

from ....eager.ops.spatial.windows import Geometry
from ....tracer.graph.ir import Form, Node
from ...ir.expr import Expr, Exprs, Guard
from ...ir.index import Index, flattened, unflattened
from ...nests.kernels import Launch
from ...lowering.op_lowering import Place
from ...schedule.step import Domain
from .problem import Contraction, Operands, batch_of, followed, in_halves


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
    own = Domain(rows, cols)
    sample, col = unflattened(own.col, (result[0], math.prod(result[2:])))
    row = sample * result[1] + group * rows + own.row
    return made(launch, exprs, (first, second), (geometry.groups, rows, cols, depth), (row, col))


def of_input(launch: Launch, node: Node, forms: dict[str, Form]) -> Contraction:
    """Places of the input that are a stride apart have the same taps: they are a batch of their own, if all are as many."""
    g, w = node.operands
    geometry: Geometry = node.attrs["geometry"]
    result, weights, size = forms[node.results[0]].shape, forms[w].shape, forms[g].shape[2:]
    rows, summed = weights[1], weights[0] // geometry.groups
    ways = list(zip(result[2:], geometry.stride, geometry.dilation, strict=True))
    apart = geometry.stride if all(n % s == 0 and math.gcd(s, d) == 1 for n, s, d in ways) else (1,) * len(ways)
    batches, counts = geometry.groups * math.prod(apart), [-(-k // a) for k, a in zip(weights[2:], apart, strict=True)]
    between = [n // a for n, a in zip(result[2:], apart, strict=True)]
    cols, depth = result[0] * math.prod(between), summed * math.prod(counts)
    outer, inner, own = Domain(rows, depth), Domain(depth, cols), Domain(rows, cols)
    group, *phases = unflattened(batch_of(batches), (geometry.groups, *apart))
    exprs = Exprs()
    operands = Operands(launch, forms, exprs)

    def tap(which: list[Index]) -> tuple[list[Index], Guard]:
        """The taps that a phase has, and that there are so many."""
        found = [in_phase(*x) for x in zip(which, phases, apart, geometry.dilation, geometry.padding, strict=True)]
        return found, tuple(zip(found, weights[2:], strict=True))

    def places(column: Index) -> tuple[Index, list[Index]]:
        """The sample of a column, and its place in the input."""
        sample, *found = unflattened(column, (result[0], *between))
        return sample, [i * a + p for i, a, p in zip(found, apart, phases, strict=True)]

    channel, *which = unflattened(outer.col, (summed, *counts))
    taps, there = tap(which)
    first = operands.at(w, (group * summed + channel, outer.row, *taps), there)
    channel, *which = unflattened(inner.row, (summed, *counts))
    taps, there = tap(which)
    sample, at = places(inner.col)
    where, guard = in_output(at, taps, size, geometry, apart)
    second = operands.at(g, (sample, group * summed + channel, *where), (*there, *guard))
    sample, at = places(own.col)
    row, col = sample * result[1] + group * rows + own.row, flattened(at, result[2:])
    return made(launch, exprs, (first, second), (batches, rows, cols, depth), (row, col))


def in_phase(which: Index, phase: Index, apart: int, dilation: int, padding: tuple[int, int]) -> Index:
    """The taps, one after the other, that reach places of a phase: windows that have them there begin at multiples of the
    stride."""
    back = pow(dilation, -1, apart) if apart > 1 else 0
    return which * apart + (phase * back + padding[0] * back % apart) % apart


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
    own = Domain(rows, cols)
    return made(launch, exprs, (first, second), (geometry.groups, rows, cols, depth), (group * rows + own.row, own.col))


def made(
    launch: Launch,
    exprs: Exprs,
    operands: tuple[Expr, Expr],
    sizes: tuple[int, int, int, int],
    place: tuple[Index, Index],
) -> Contraction:
    """The contraction, and what follows it; the place is the nest's row and column."""
    assert launch.nest is not None and launch.node is not None
    batches, rows, cols, depth = sizes
    nest = followed(launch.nest, exprs, rows, cols, *place)
    times = f"{batches} x " if batches > 1 else ""
    what = f"{launch.node.op.name}: {times}[{rows}, {depth}] @ [{depth}, {cols}]"
    return Contraction(batches, rows, cols, depth, *in_halves(*operands), nest, what)


def in_window(places: list[Index], taps: list[Index], size: tuple[int, ...], geometry: Geometry) -> tuple[Place, Guard]:
    """Where in the input the elements of windows are, and that they are in it."""
    where = []
    for p, t, s, d, (before, _) in zip(places, taps, geometry.stride, geometry.dilation, geometry.padding, strict=True):
        where.append(p * s + t * d - before)
    return tuple(where), tuple(zip(where, size, strict=True))


def in_output(
    places: list[Index], taps: list[Index], size: tuple[int, ...], geometry: Geometry, apart: tuple[int, ...]
) -> tuple[Place, Guard]:
    """Where in the output the windows are that have an element of the input at a tap, and that there is one."""
    where: list[Index] = []
    guard: list[tuple[Index, int]] = []
    steps = zip(places, taps, size, geometry.stride, geometry.dilation, geometry.padding, apart, strict=True)
    for p, t, n, s, d, (before, _), phases in steps:
        shifted = p + before - t * d
        where.append(shifted // s)
        if phases == s:  # it is a multiple
            guard.append((shifted // s, n))
        else:
            guard += [(shifted, (n - 1) * s + 1), (shifted % s, 1)]
    return tuple(where), tuple(guard)
