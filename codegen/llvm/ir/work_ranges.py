"""Pieces of a kernel, and spans of a dim that are gone through in units: what all contractions have in common."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .builder import I64, PTR, Function, Type, Value, constant
from .register_tile import scaled


def parameters(pointers: int) -> list[tuple[str, Type]]:
    """Of a function that does pieces of a phase."""
    named = [(f"p{i}", PTR) for i in range(pointers)]
    return [*named, ("shared", PTR), ("scratch", PTR), ("begin", I64), ("end", I64)]


def aligned(size: int) -> int:
    return (size + 63) // 64 * 64


def unravel(f: Function, index: Value, sizes: tuple[int, ...]) -> list[Value]:
    """The indices along dims of these sizes, the last of them the fastest."""
    found: list[Value] = []
    for axis in range(len(sizes) - 1, -1, -1):
        size = constant(sizes[axis], I64)
        if sizes[axis] == 1:
            found.append(constant(0, I64))
        elif math.prod(sizes[:axis]) == 1:
            found.append(index)
        else:
            found.append(f.rem(index, size))
            index = f.div(index, size)
    return found[::-1]


@dataclass(frozen=True)
class Span:
    """A part of a dim that is gone through in units; the last unit of the dim may be smaller."""

    start: Value
    stop: Value
    whole: bool  # it is the whole dim
    total: int  # size of the dim

    def each(self, f: Function, unit: int, body: Callable[[Value, int], None]) -> None:
        """`body(index, size)` for each unit."""
        rest = self.total % unit
        full = constant(self.total - rest, I64)
        if self.whole and self.total - rest == unit:
            body(constant(0, I64), unit)
        elif self.total > rest:
            stop = full if self.whole else f.intrinsic("smin", self.stop, full) if rest else self.stop
            with f.loop(self.start, stop, unit) as loop:
                body(loop.index, unit)
        if rest and self.whole:
            body(full, rest)
        elif rest:
            with f.when(f.compare("eq", self.stop, constant(self.total, I64))):
                body(full, rest)


def whole(total: int) -> Span:
    return Span(constant(0, I64), constant(total, I64), True, total)


def block(f: Function, index: Value, size: int, total: int) -> Span:
    """The block with an index, of blocks of a size."""
    if size >= total:
        return whole(total)
    start = scaled(f, index, size)
    stop = f.add(start, constant(size, I64))
    return Span(start, f.intrinsic("smin", stop, constant(total, I64)) if total % size else stop, False, total)


def share(f: Function, index: Value, count: int, unit: int, total: int) -> Span:
    """One of so many parts of a dim, each of whole units, that differ by one unit at most."""
    if count == 1:
        return whole(total)
    units = math.ceil(total / unit)

    def at(part: Value) -> Value:
        return scaled(f, f.div(scaled(f, part, units), constant(count, I64)), unit)

    stop = at(f.add(index, constant(1, I64)))
    return Span(at(index), f.intrinsic("smin", stop, constant(total, I64)) if total % unit else stop, False, total)
