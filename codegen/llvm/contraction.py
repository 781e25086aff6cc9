"""What a matrix product is: operands anywhere in memory, and an epilogue that says what becomes of the results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .builder import Function, Value
from .micro import Join
from .target import Target

# line(first, lanes, mask) is the vector that begins at a row or a column of a line
Line = Callable[[Value, int, Value | None], Value]
# load(f, batch indices, "row" or "column", index) is the line along the rows of a column, or along the columns of a row
Load = Callable[[Function, list[Value], str, Value], Line]
# epilogue(f, batch indices, m, n of the first lane, the results as a vector along n, a mask or None) stores what it wants.
Epilogue = Callable[[Function, list[Value], Value, Value, Value, Value | None], None]


@dataclass(frozen=True)
class Operand:
    """A matrix, or a batch of them. Element (batch..., row, column) is at the sum of index * stride, in elements."""

    pointer: int  # which parameter of the kernel
    batch: tuple[int, ...]  # strides; 0 where it is broadcast
    row: int
    column: int
    scalar: str = "float"  # in memory
    load: Load | None = None  # computes it instead

    @property
    def plain(self) -> bool:
        """Whether a tile may read it as it is."""
        return self.load is None and self.scalar in ("float", "double")


@dataclass(frozen=True)
class Gemm:
    """result[batch..., m, n] = sum over k of a[batch..., m, k] * b[batch..., k, n]"""

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    scalar: str  # of the sums: float or double


def distinct(gemm: Gemm, operand: Operand) -> tuple[int, ...]:
    """Sizes of the batch dims along which an operand's matrices differ; 1 for the others."""
    return tuple(size if stride else 1 for size, stride in zip(gemm.batch, operand.batch, strict=True))


def matrices(gemm: Gemm, operand: Operand) -> int:
    return math.prod(distinct(gemm, operand))


def all_differ(gemm: Gemm, operand: Operand) -> bool:
    return matrices(gemm, operand) == math.prod(gemm.batch)


def straight(operand: Operand) -> bool:
    """Whether the right operand's rows lie along memory, or at least its columns do not."""
    return operand.column == 1 or operand.row != 1


def by_depth(operand: Operand) -> bool:
    """Whether the left operand's columns lie along memory: panels have rows side by side then, for each step of the depth."""
    return operand.row == 1 and operand.column != 1


def registers(target: Target) -> int:
    """Vector registers there are."""
    return 32 if target.has("avx512f") or target.triple.startswith(("aarch64", "arm64")) else 16


def join_of(target: Target) -> Join:
    """Multiply and add: as one instruction, where there is one."""
    if target.has("fma") or target.triple.startswith(("aarch64", "arm64")):
        return Function.fma
    return lambda f, a, b, total: f.add(f.mul(a, b), total)
