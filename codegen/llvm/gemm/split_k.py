"""Split-K: a large depth with few results is divided over pieces, as threads would have no work otherwise.

Each range of the depth is a piece of its own. It leaves its partial sums in shared memory; a last phase adds them up, in order,
and hands the results to the epilogue. The split-K factor follows from the shape, so results do not depend on the number of
threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

from ..ir.builder import BYTES, I64, Function, Module, Type, Value, constant
from ..ir.kernel import Phase
from ..ir.register_tile import first_lanes, scale_index
from ..ir.work_ranges import kernel_parameters, unravel, whole_range
from .problem import Epilogue


@dataclass(frozen=True)
class SplitK:
    """Partial sums of a split depth: `count` ranges, each with the results of all matrices of the batch."""

    count: int
    batch: tuple[int, ...]
    m: int
    n: int
    kind: Type  # vectors along n
    pointers: int  # pointer parameters of the kernel
    offset: int  # bytes of shared memory before the partial sums

    @property
    def width(self) -> int:
        """Elements of a row, in whole vectors."""
        return math.ceil(self.n / self.kind.lanes) * self.kind.lanes

    @property
    def partial_size(self) -> int:
        """Elements that one range leaves."""
        return math.prod(self.batch) * self.m * self.width

    @property
    def size(self) -> int:
        """Bytes of all partial sums; 0 if the depth is not split."""
        return self.count * self.partial_size * BYTES[self.kind.scalar] if self.count > 1 else 0

    def partial_address(self, f: Function, batch: list[Value], part: Value, m: Value, n: Value) -> Value:
        """Address of a partial sum."""
        row = m
        for i, index in enumerate(batch):
            row = f.add(row, scale_index(f, index, math.prod(self.batch[i + 1 :]) * self.m))
        element = f.add(f.add(scale_index(f, part, self.partial_size), scale_index(f, row, self.width)), n)
        return f.pointer(f.pointer(f.params[self.pointers], self.offset, "i8"), element, self.kind.scalar)

    def emit_reduction(self, module: Module, name: str, epilogue: Epilogue) -> Phase:
        """Emit the last phase, whose pieces are rows."""
        f = module.function(name, kernel_parameters(self.pointers))
        begin, end = f.params[-2:]
        sizes, lanes = (*self.batch, self.m), self.kind.lanes
        with f.loop(begin, end) as loop:
            *batch, m = unravel(f, loop.index, sizes)

            def one(n: Value, count: int) -> None:
                places = [self.partial_address(f, batch, constant(part, I64), m, n) for part in range(self.count)]
                total = reduce(f.add, [f.load(place, self.kind) for place in places])
                epilogue(f, batch, m, n, total, first_lanes(count, lanes))

            whole_range(self.n).each(f, lanes, one)
        f.ret()
        return Phase(name, math.prod(sizes), auxiliary=True)
