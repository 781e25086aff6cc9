"""Work ranges: parameters of kernel functions, and ranges of a dim that loops walk in units. Shared by all contractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .builder import I64, PTR, Function, Type, Value, constant
from .register_tile import scale_index


def kernel_parameters(pointers: int) -> list[tuple[str, Type]]:
    """Parameters of a function that does pieces of a phase, after `pointers` pointers."""
    named = [(f"p{i}", PTR) for i in range(pointers)]
    return [*named, ("shared", PTR), ("scratch", PTR), ("begin", I64), ("end", I64)]


def align(size: int) -> int:
    """Round a size in bytes up to a multiple of 64."""
    return (size + 63) // 64 * 64


def unravel(f: Function, index: Value, sizes: tuple[int, ...]) -> list[Value]:
    """Indices along dims of these sizes, last dim fastest, from a flat index."""
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
class WorkRange:
    """A range of a dim that is walked in units; the last unit of the dim may be smaller."""

    start: Value
    stop: Value
    whole: bool  # the range is the whole dim
    total: int  # size of the dim

    def each(self, f: Function, unit: int, body: Callable[[Value, int], None]) -> None:
        """Emit `body(index, size)` for each unit."""
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


def whole_range(total: int) -> WorkRange:
    return WorkRange(constant(0, I64), constant(total, I64), True, total)


def block_range(f: Function, index: Value, size: int, total: int) -> WorkRange:
    """The block with an index, where blocks have `size` elements."""
    if size >= total:
        return whole_range(total)
    start = scale_index(f, index, size)
    stop = f.add(start, constant(size, I64))
    return WorkRange(start, f.intrinsic("smin", stop, constant(total, I64)) if total % size else stop, False, total)


def equal_share(f: Function, index: Value, count: int, unit: int, total: int) -> WorkRange:
    """Share `index` of `count` shares of a dim: whole units each, sizes differ by one unit at most."""
    if count == 1:
        return whole_range(total)
    units = math.ceil(total / unit)

    def at(part: Value) -> Value:
        return scale_index(f, f.div(scale_index(f, part, units), constant(count, I64)), unit)

    stop = at(f.add(index, constant(1, I64)))
    return WorkRange(at(index), f.intrinsic("smin", stop, constant(total, I64)) if total % unit else stop, False, total)
