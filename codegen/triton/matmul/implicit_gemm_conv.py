"""Implicit GEMM: convolutions and their gradients as contractions, without an im2col matrix; indices locate window elements.

    conv               channels out x (sample, place out),  summed over (channel in, place in the window)
    conv_input_grad    channels in  x (sample, place in),   summed over (channel out, place in the window)
    conv_weight_grad   channels out x (channel in, place in the window), summed over (sample, place out)

Columns are contiguous in memory. Each group is a batch. Elements of the padding are masked, and so are places of the gradient
between the strides, where they are not left out.
"""

from __future__ import annotations

import math

from ....eager.ops.spatial.windows import Geometry
from ....tracer.graph.ir import Form
from ...ir.expr import Expr, ExprBuilder, Guard
from ...ir.index import Index, flatten_index, unflatten_index
from ...lowering.op_lowering import Place
from ...nests.kernels import Launch
from ...nests.problems.conv import ConvProblem
from ...schedule.step import Domain
from .problem import Contraction, Operands, batch_of, epilogue_nest, in_halves


def conv_of(launch: Launch, problem: ConvProblem, forms: dict[str, Form]) -> Contraction:
    return {"conv": forward, "conv_input_grad": of_input, "conv_weight_grad": of_weights}[problem.op](launch, problem, forms)


def forward(launch: Launch, problem: ConvProblem, forms: dict[str, Form]) -> Contraction:
    x, w, geometry, result = problem.first, problem.second, problem.geometry, problem.result
    weights, size = w.shape, x.shape[2:]
    rows, group = weights[0] // geometry.groups, batch_of(geometry.groups)
    cols, depth = result[0] * math.prod(result[2:]), math.prod(weights[1:])
    outer, inner = Domain(rows, depth), Domain(depth, cols)
    exprs = ExprBuilder()
    operands = Operands(launch, forms, exprs)
    first = operands.at(w.name, (group * rows + outer.row, *unflatten_index(outer.col, weights[1:])))
    channel, *taps = unflatten_index(inner.row, weights[1:])
    sample, *places = unflatten_index(inner.col, (result[0], *result[2:]))
    where, guard = in_window(places, taps, size, geometry)
    second = operands.at(x.name, (sample, group * weights[1] + channel, *where), guard)
    own = Domain(rows, cols)
    sample, col = unflatten_index(own.col, (result[0], math.prod(result[2:])))
    row = sample * result[1] + group * rows + own.row
    return made(launch, exprs, (first, second), (geometry.groups, rows, cols, depth), (row, col))


def of_input(launch: Launch, problem: ConvProblem, forms: dict[str, Form]) -> Contraction:
    """Contraction of the input gradient. Input places a stride apart share their taps: each such phase is a batch of its own,
    if all have equally many."""
    g, w, geometry, result = problem.first, problem.second, problem.geometry, problem.result
    weights, size = w.shape, g.shape[2:]
    rows, summed = weights[1], weights[0] // geometry.groups
    ways = list(zip(result[2:], geometry.stride, geometry.dilation, strict=True))
    apart = geometry.stride if all(n % s == 0 and math.gcd(s, d) == 1 for n, s, d in ways) else (1,) * len(ways)
    batches, counts = geometry.groups * math.prod(apart), [-(-k // a) for k, a in zip(weights[2:], apart, strict=True)]
    between = [n // a for n, a in zip(result[2:], apart, strict=True)]
    cols, depth = result[0] * math.prod(between), summed * math.prod(counts)
    outer, inner, own = Domain(rows, depth), Domain(depth, cols), Domain(rows, cols)
    group, *phases = unflatten_index(batch_of(batches), (geometry.groups, *apart))
    exprs = ExprBuilder()
    operands = Operands(launch, forms, exprs)

    def tap(which: list[Index]) -> tuple[list[Index], Guard]:
        """Taps of a phase, and the guard that they exist."""
        found = [in_phase(*x) for x in zip(which, phases, apart, geometry.dilation, geometry.padding, strict=True)]
        return found, tuple(zip(found, weights[2:], strict=True))

    def places(column: Index) -> tuple[Index, list[Index]]:
        """Sample of a column, and its place in the input."""
        sample, *found = unflatten_index(column, (result[0], *between))
        return sample, [i * a + p for i, a, p in zip(found, apart, phases, strict=True)]

    channel, *which = unflatten_index(outer.col, (summed, *counts))
    taps, there = tap(which)
    first = operands.at(w.name, (group * summed + channel, outer.row, *taps), there)
    channel, *which = unflatten_index(inner.row, (summed, *counts))
    taps, there = tap(which)
    sample, at = places(inner.col)
    where, guard = in_output(at, taps, size, geometry, apart)
    second = operands.at(g.name, (sample, group * summed + channel, *where), (*there, *guard))
    sample, at = places(own.col)
    row, col = sample * result[1] + group * rows + own.row, flatten_index(at, result[2:])
    return made(launch, exprs, (first, second), (batches, rows, cols, depth), (row, col))


def in_phase(which: Index, phase: Index, apart: int, dilation: int, padding: tuple[int, int]) -> Index:
    """Taps, in order, that reach the places of a phase: windows that have them there begin at multiples of the stride."""
    back = pow(dilation, -1, apart) if apart > 1 else 0
    return which * apart + (phase * back + padding[0] * back % apart) % apart


def of_weights(launch: Launch, problem: ConvProblem, forms: dict[str, Form]) -> Contraction:
    x, g, geometry, result = problem.first, problem.second, problem.geometry, problem.result
    pull, size = g.shape, x.shape[2:]
    rows, group = result[0] // geometry.groups, batch_of(geometry.groups)
    cols, depth = math.prod(result[1:]), pull[0] * math.prod(pull[2:])
    outer, inner = Domain(rows, depth), Domain(depth, cols)
    exprs = ExprBuilder()
    operands = Operands(launch, forms, exprs)
    sample, *places = unflatten_index(outer.col, (pull[0], *pull[2:]))
    first = operands.at(g.name, (sample, group * rows + outer.row, *places))
    sample, *places = unflatten_index(inner.row, (pull[0], *pull[2:]))
    channel, *taps = unflatten_index(inner.col, result[1:])
    where, guard = in_window(places, taps, size, geometry)
    second = operands.at(x.name, (sample, group * result[1] + channel, *where), guard)
    own = Domain(rows, cols)
    return made(launch, exprs, (first, second), (geometry.groups, rows, cols, depth), (group * rows + own.row, own.col))


def made(
    launch: Launch,
    exprs: ExprBuilder,
    operands: tuple[Expr, Expr],
    sizes: tuple[int, int, int, int],
    place: tuple[Index, Index],
) -> Contraction:
    """Build the contraction and its epilogue; the place is the nest's row and column."""
    assert launch.nest is not None and launch.node is not None
    batches, rows, cols, depth = sizes
    nest = epilogue_nest(launch.nest, exprs, rows, cols, *place)
    times = f"{batches} x " if batches > 1 else ""
    what = f"{launch.node.op.name}: {times}[{rows}, {depth}] @ [{depth}, {cols}]"
    return Contraction(batches, rows, cols, depth, *in_halves(*operands), nest, what)


def in_window(places: list[Index], taps: list[Index], size: tuple[int, ...], geometry: Geometry) -> tuple[Place, Guard]:
    """Input places of window elements, and the guard that they are in range."""
    where = []
    for p, t, s, d, (before, _) in zip(places, taps, geometry.stride, geometry.dilation, geometry.padding, strict=True):
        where.append(p * s + t * d - before)
    return tuple(where), tuple(zip(where, size, strict=True))


def in_output(
    places: list[Index], taps: list[Index], size: tuple[int, ...], geometry: Geometry, apart: tuple[int, ...]
) -> tuple[Place, Guard]:
    """Output places of the windows that have an input element at a tap, and the guard that such a window exists."""
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
