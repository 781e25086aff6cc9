"""Sums over a great depth with few results, in parts: threads would have no work otherwise.

Each part of the depth is a piece of its own. It leaves its sums in shared memory, and a last phase adds them up, in the order
of the parts, and hands the results to the epilogue. How many parts there are follows from the shape, so results do not depend
on the number of threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

from ..ir.builder import BYTES, I64, Function, Module, Type, Value, constant
from .problem import Epilogue
from ..ir.kernel import Phase
from ..ir.register_tile import first_lanes, scaled
from ..ir.work_ranges import parameters, unravel, whole


@dataclass(frozen=True)
class Parts:
    """What parts of the depth leave: for each of them the results of all matrices of a batch."""

    count: int
    batch: tuple[int, ...]
    m: int
    n: int
    kind: Type  # of vectors along n
    pointers: int  # of the kernel
    offset: int  # bytes in shared memory before it

    @property
    def width(self) -> int:
        """Of a row, in whole vectors."""
        return math.ceil(self.n / self.kind.lanes) * self.kind.lanes

    @property
    def each(self) -> int:
        """Elements that a part leaves."""
        return math.prod(self.batch) * self.m * self.width

    @property
    def size(self) -> int:
        """Bytes of all parts; none if there is only one, which needs no place."""
        return self.count * self.each * BYTES[self.kind.scalar] if self.count > 1 else 0

    def place(self, f: Function, batch: list[Value], part: Value, m: Value, n: Value) -> Value:
        """Where a part leaves a sum."""
        row = m
        for i, index in enumerate(batch):
            row = f.add(row, scaled(f, index, math.prod(self.batch[i + 1 :]) * self.m))
        element = f.add(f.add(scaled(f, part, self.each), scaled(f, row, self.width)), n)
        return f.pointer(f.pointer(f.params[self.pointers], self.offset, "i8"), element, self.kind.scalar)

    def add_up(self, module: Module, name: str, epilogue: Epilogue) -> Phase:
        """The last phase, whose pieces are rows."""
        f = module.function(name, parameters(self.pointers))
        begin, end = f.params[-2:]
        sizes, lanes = (*self.batch, self.m), self.kind.lanes
        with f.loop(begin, end) as loop:
            *batch, m = unravel(f, loop.index, sizes)

            def one(n: Value, count: int) -> None:
                places = [self.place(f, batch, constant(part, I64), m, n) for part in range(self.count)]
                total = reduce(f.add, [f.load(place, self.kind) for place in places])
                epilogue(f, batch, m, n, total, first_lanes(count, lanes))

            whole(self.n).each(f, lanes, one)
        f.back()
        return Phase(name, math.prod(sizes), aside=True)
