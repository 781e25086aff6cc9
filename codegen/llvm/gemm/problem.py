"""Matmul problems: operands anywhere in memory, and an epilogue that receives the results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..ir.builder import HALF_SCALARS, Function, Type, Value
from ..ir.register_tile import PAIR, MultiplyAdd
from ..ir.target import Target

# reader(first, lanes, mask) returns the vector that begins at row or column `first` of a line
LineReader = Callable[[Value, int, Value | None], Value]
# load(f, batch indices, "row" or "column", index) returns a reader along the rows of a column, or the columns of a row
OperandLoader = Callable[[Function, list[Value], str, Value], LineReader]
# epilogue(f, batch indices, m, n of the first lane, results as a vector along n, mask or None) stores what it computes.
Epilogue = Callable[[Function, list[Value], Value, Value, Value, Value | None], None]
# prefetch(f, batch indices, m, n of the first lane, lanes) prefetches the memory that the epilogue of a vector touches.
EpiloguePrefetch = Callable[[Function, list[Value], Value, Value, int], None]

DOT_PAIRS_INTRINSIC = "llvm.x86.avx512bf16.dpbf16ps"
MIN_ROWS_FOR_PAIRS = 4  # with fewer, packing the right operand in pairs takes longer than it saves


@dataclass(frozen=True)
class GemmOperand:
    """A matrix, or a batch of them. Element (batch..., row, column) is at the sum of index * stride, in elements."""

    pointer: int  # index of the kernel's parameter
    batch: tuple[int, ...]  # strides; 0 where it is broadcast
    row: int
    column: int
    scalar: str = "float"  # in memory
    load: OperandLoader | None = None  # prologue that computes the operand instead

    @property
    def half(self) -> bool:
        """True if it is in half precision: converted where it is read, or multiplied in pairs."""
        return self.scalar in HALF_SCALARS


@dataclass(frozen=True)
class GemmProblem:
    """result[batch..., m, n] = sum over k of a[batch..., m, k] * b[batch..., k, n]"""

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: GemmOperand
    b: GemmOperand
    scalar: str  # of the sums: float or double
    pairs: bool = False  # a step of the depth is two bfloats, multiplied and accumulated by one instruction

    @property
    def steps(self) -> int:
        """Steps along the depth."""
        return -(-self.k // 2) if self.pairs else self.k

    @property
    def cell(self) -> str:
        """Type that operands are packed as: one cell per step of the depth."""
        return PAIR if self.pairs else self.scalar


def distinct_batch(gemm: GemmProblem, operand: GemmOperand) -> tuple[int, ...]:
    """Sizes of the batch dims along which an operand's matrices differ; 1 for the others."""
    return tuple(size if stride else 1 for size, stride in zip(gemm.batch, operand.batch, strict=True))


def count_matrices(gemm: GemmProblem, operand: GemmOperand) -> int:
    return math.prod(distinct_batch(gemm, operand))


def is_unshared(gemm: GemmProblem, operand: GemmOperand) -> bool:
    """True if every matrix of the batch has its own operand."""
    return count_matrices(gemm, operand) == math.prod(gemm.batch)


def is_row_packed(operand: GemmOperand) -> bool:
    """True unless the right operand is column-major: its panels are copied row by row, without a transpose."""
    return operand.column == 1 or operand.row != 1


def is_column_major(operand: GemmOperand) -> bool:
    """True if the left operand is column-major: its panels have the rows of one depth step side by side."""
    return operand.row == 1 and operand.column != 1


def with_pairs(gemm: GemmProblem, target: Target) -> GemmProblem:
    """The problem in pairs of bfloats, if the CPU has the instruction and packing pairs pays."""
    lanes = min(target.lanes(gemm.scalar), 1 << (gemm.n - 1).bit_length())
    pays = gemm.m >= MIN_ROWS_FOR_PAIRS or not is_row_packed(gemm.b)
    fits = gemm.scalar == "float" and gemm.a.scalar == gemm.b.scalar == "bfloat" and gemm.k > 1
    return replace(gemm, pairs=True) if fits and pays and has_pair_products(target, lanes) else gemm


def has_pair_products(target: Target, lanes: int) -> bool:
    """True if an instruction accumulates pair products of bfloats into `lanes` sums."""
    return target.has("avx512bf16") and target.has("avx512vl") and lanes in (4, 8, 16)


def multiply_add_pairs(f: Function, a: Value, b: Value, total: Value) -> Value:
    """Accumulate products of bfloat pairs into float sums. The instruction flushes subnormal inputs and results to 0."""
    lanes = total.type.lanes
    name, kind = f"{DOT_PAIRS_INTRINSIC}.{32 * lanes}", f"<{2 * lanes} x bfloat>"
    f.declared[name] = f"declare {total.type} @{name}({total.type}, {kind}, {kind})"
    first, second = (f.value(f"bitcast {x} to {kind}", Type("bfloat", 2 * lanes)) for x in (a, b))
    return f.value(f"call {total.type} @{name}({total}, {kind} {first.name}, {kind} {second.name})", total.type)


def vector_registers(target: Target) -> int:
    """Number of vector registers."""
    return 32 if target.has("avx512f") or target.triple.startswith(("aarch64", "arm64")) else 16


def multiply_add_for(target: Target) -> MultiplyAdd:
    """Multiply-add for a target: fused if it has the instruction."""
    if target.has("fma") or target.triple.startswith(("aarch64", "arm64")):
        return Function.fma
    return lambda f, a, b, total: f.add(f.mul(a, b), total)
