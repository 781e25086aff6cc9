"""Unrolled reductions: pooling windows and sums of a few terms, written out term by term.

A loop over a handful of columns would waste vectors. Unrolled, the rows are the vector's lanes.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from ...tracer.graph.ir import Form, Node
from ..ir.expr import Expr, Guard, is_never_true, simplify_guard
from ..ir.index import ZERO, Index
from .definitions import define
from .op_lowering import Place, Reader, as_bool, convert_scalar, dtype_of, merge_guards, shape_of

MAX_UNROLLED_TERMS = 9  # of a reduction over dims
MAX_WINDOW = 25  # elements of a pooling window
COMBINE = {"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum", "all": "bitwise_and", "any": "bitwise_or"}
POOLS = ("max_pool", "max_pool_put", "max_pool_pick")


def is_unrolled(node: Node, forms: dict[str, Form]) -> bool:
    """True if a node is lowered by unrolling."""
    name = node.op.name
    if name in POOLS:
        return math.prod(node.attrs["kernel"]) <= MAX_WINDOW and forms[node.results[0]].dtype.kind in "fiu"
    if name not in COMBINE or "dims" not in node.attrs or not isinstance(node.operands[0], str):
        return False
    form = forms[node.operands[0]]
    length = math.prod(form.shape[d] for d in node.attrs["dims"]) if form.shape else 1
    return 1 <= length <= MAX_UNROLLED_TERMS and form.itemsize > 2 and form.size >= 16 * length * length


@define("sum", "prod", "amax", "amin", "all", "any")
def unrolled_reduction(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    """All terms of a reduction, in order."""
    x, name, exprs = node.operands[0], node.op.name, reader.exprs
    shape = shape_of(reader, x)
    dims = sorted(d % max(len(shape), 1) for d in node.attrs["dims"]) if shape else []
    rest = iter(place)
    kept: list[Index | None] = []
    for d in range(len(shape)):
        if d in dims:
            kept.append(None)
            if node.attrs["keepdim"]:
                next(rest)
        else:
            kept.append(next(rest))
    dtype = dtype_of(reader.forms[node.results[0]])
    found: Expr | None = None
    for terms in itertools.product(*[range(shape[d]) for d in dims]):
        at = iter(terms)
        inner = tuple(ZERO + next(at) if i is None else i for i in kept)
        term = reader.get(x, inner, guard)
        term = exprs.cast(as_bool(exprs, term) if name in ("all", "any") else term, dtype)
        found = term if found is None else exprs.op(COMBINE[name], dtype, found, term)
    assert found is not None
    return found


# ---- windows


def window_offsets(kernel: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(itertools.product(*[range(k) for k in kernel]))


@define("max_pool")
def max_pool(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    """The first largest element of a window, or its position there; NaN is larger than all before it."""
    exprs, x = reader.exprs, node.operands[0]
    geometry, kernel = node.attrs["geometry"], node.attrs["kernel"]
    size, dtype = shape_of(reader, x)[2:], dtype_of(reader.forms[x])
    kind = dtype_of(reader.forms[node.results[1]])
    lowest = exprs.const(lowest_value(dtype), dtype)
    best, winner, seen = lowest, exprs.const(0, kind), exprs.const(False, "bool")
    for number, offsets in enumerate(window_offsets(kernel)):
        inner = [
            o * s + (k * d - p[0])
            for o, s, k, d, p in zip(place[2:], geometry.stride, offsets, geometry.dilation, geometry.padding, strict=True)
        ]
        inside: Guard = tuple(zip(inner, size, strict=True))
        if is_never_true(inside):
            continue
        inside = simplify_guard(inside)
        here = exprs.inside(inside)
        value = reader.get(x, (*place[:2], *inner), merge_guards(guard, inside))
        better = exprs.op("gt", "bool", value, best)
        if dtype.startswith(("float", "bfloat")):
            better = exprs.op("bitwise_or", "bool", better, exprs.op("ne", "bool", value, value))
        if seen.kind != "const":
            better = exprs.op("bitwise_or", "bool", better, exprs.op("logical_not", "bool", seen))
        elif not seen.data:  # the first
            better = exprs.const(True, "bool")
        if inside:
            better = here if better.kind == "const" else exprs.op("bitwise_and", "bool", better, here)
        best = exprs.where(better, value, best)
        winner = exprs.where(better, exprs.const(number, kind), winner)
        seen = here if seen.kind == "const" and not seen.data else logical_or(reader, seen, here)
    return winner if which else best


def logical_or(reader: Reader, a: Expr, b: Expr) -> Expr:
    for x in (a, b):
        if x.kind == "const" and x.data:
            return x
    return reader.exprs.op("bitwise_or", "bool", a, b)


def lowest_value(dtype: str) -> Any:
    if dtype.startswith(("float", "bfloat")):
        return -math.inf
    bits = int("".join(c for c in dtype if c.isdigit()))
    return 0 if dtype.startswith("u") else -(1 << bits - 1)


@define("max_pool_put")
def max_pool_put(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    """The sum of the gradients of all windows whose largest element this is."""
    exprs, (g, winners) = reader.exprs, node.operands
    geometry, kernel = node.attrs["geometry"], node.attrs["kernel"]
    out, dtype = shape_of(reader, g)[2:], dtype_of(reader.forms[g])
    kind = dtype_of(reader.forms[winners])
    zero = exprs.const(convert_scalar(0, dtype), dtype)
    disjoint = max(geometry.dilation) == 1 and all(s == k for s, k in zip(geometry.stride, kernel, strict=True))
    if disjoint:  # windows do not overlap: one window and one position for each element
        shifted = [i + p[0] for i, p in zip(place[2:], geometry.padding, strict=True)]
        inner = [i // s for i, s in zip(shifted, geometry.stride, strict=True)]
        number = ZERO
        for i, s in zip(shifted, geometry.stride, strict=True):
            number = number * s + i % s
        inside = simplify_guard(tuple((i, n * s) for i, n, s in zip(shifted, out, geometry.stride, strict=True)))
        chosen = exprs.cast(reader.get(winners, (*place[:2], *inner), merge_guards(guard, inside)), "int64")
        value = reader.get(g, (*place[:2], *inner), merge_guards(guard, inside))
        here = exprs.op("eq", "bool", chosen, exprs.index(number))
        if inside:
            here = exprs.op("bitwise_and", "bool", here, exprs.inside(inside))
        return exprs.where(here, value, zero)
    found = zero
    for number_, offsets in enumerate(window_offsets(kernel)):
        inside_: list[tuple[Index, int]] = []
        inner = []
        for i, s, k, d, p, n in zip(place[2:], geometry.stride, offsets, geometry.dilation, geometry.padding, out, strict=True):
            shifted_ = i + (p[0] - k * d)
            inside_.append((shifted_, (n - 1) * s + 1))
            if s > 1:
                inside_.append((shifted_ % s, 1))
            inner.append(shifted_ // s)
        if is_never_true(tuple(inside_)):
            continue
        there = simplify_guard(tuple(inside_))
        chosen = reader.get(winners, (*place[:2], *inner), merge_guards(guard, there))
        won = exprs.op("eq", "bool", chosen, exprs.const(number_, kind))
        won = exprs.op("bitwise_and", "bool", won, exprs.inside(there)) if there else won
        part = exprs.where(won, reader.get(g, (*place[:2], *inner), merge_guards(guard, there)), zero)
        found = part if found is zero else exprs.op("add", dtype, found, part)
    return found


@define("max_pool_pick")
def max_pool_pick(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    """The elements at the recorded positions of the largest."""
    exprs, (x, winners) = reader.exprs, node.operands
    geometry, kernel = node.attrs["geometry"], node.attrs["kernel"]
    size, dtype = shape_of(reader, x)[2:], dtype_of(reader.forms[x])
    chosen = reader.get(winners, place, guard)
    found = exprs.const(convert_scalar(0, dtype), dtype)
    for number, offsets in enumerate(window_offsets(kernel)):
        inner = [
            o * s + (k * d - p[0])
            for o, s, k, d, p in zip(place[2:], geometry.stride, offsets, geometry.dilation, geometry.padding, strict=True)
        ]
        inside: Guard = tuple(zip(inner, size, strict=True))
        if is_never_true(inside):
            continue
        inside = simplify_guard(inside)
        value = reader.get(x, (*place[:2], *inner), merge_guards(guard, inside))
        here = exprs.op("eq", "bool", chosen, exprs.const(number, chosen.dtype))
        found = exprs.where(here, value, found)
    return found
