"""What a matrix product is: operands anywhere in memory, and an epilogue that says what becomes of the results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..ir.builder import HALVES, Function, Type, Value
from ..ir.register_tile import PAIR, Join
from ..ir.target import Target

# line(first, lanes, mask) is the vector that begins at a row or a column of a line
Line = Callable[[Value, int, Value | None], Value]
# load(f, batch indices, "row" or "column", index) is the line along the rows of a column, or along the columns of a row
Load = Callable[[Function, list[Value], str, Value], Line]
# epilogue(f, batch indices, m, n of the first lane, the results as a vector along n, a mask or None) stores what it wants.
Epilogue = Callable[[Function, list[Value], Value, Value, Value, Value | None], None]
# fetch(f, batch indices, m, n of the first lane, lanes) asks for the memory that the epilogue of a vector will want.
Fetch = Callable[[Function, list[Value], Value, Value, int], None]

PAIRS = "llvm.x86.avx512bf16.dpbf16ps"  # the instruction
FEW_ROWS = 4  # with fewer, laying the right operand out in pairs takes longer than it saves


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
    def half(self) -> bool:
        """Whether it is converted where it is read, or multiplied in pairs."""
        return self.scalar in HALVES


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
    pairs: bool = False  # a step of the depth is two bfloats, which are multiplied and added up by one instruction

    @property
    def steps(self) -> int:
        """Of the depth."""
        return -(-self.k // 2) if self.pairs else self.k

    @property
    def cell(self) -> str:
        """What operands are packed as: one for each step of the depth."""
        return PAIR if self.pairs else self.scalar


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


def paired(gemm: Gemm, target: Target) -> Gemm:
    """The product in pairs, if the CPU multiplies pairs of bfloats and it pays to lay them out like that."""
    lanes = min(target.lanes(gemm.scalar), 1 << (gemm.n - 1).bit_length())
    worth = gemm.m >= FEW_ROWS or not straight(gemm.b)
    fits = gemm.scalar == "float" and gemm.a.scalar == gemm.b.scalar == "bfloat" and gemm.k > 1
    return replace(gemm, pairs=True) if fits and worth and multiplies_pairs(target, lanes) else gemm


def multiplies_pairs(target: Target, lanes: int) -> bool:
    """Whether there is an instruction for so many sums of pairs of bfloats."""
    return target.has("avx512bf16") and target.has("avx512vl") and lanes in (4, 8, 16)


def join_pairs(f: Function, a: Value, b: Value, total: Value) -> Value:
    """Products of pairs of bfloats, added to sums of floats. Subnormal numbers count as 0 here, whether they come or go."""
    lanes = total.type.lanes
    name, kind = f"{PAIRS}.{32 * lanes}", f"<{2 * lanes} x bfloat>"
    f.declared[name] = f"declare {total.type} @{name}({total.type}, {kind}, {kind})"
    first, second = (f.value(f"bitcast {x} to {kind}", Type("bfloat", 2 * lanes)) for x in (a, b))
    return f.value(f"call {total.type} @{name}({total}, {kind} {first.name}, {kind} {second.name})", total.type)


def registers(target: Target) -> int:
    """Vector registers there are."""
    return 32 if target.has("avx512f") or target.triple.startswith(("aarch64", "arm64")) else 16


def join_of(target: Target) -> Join:
    """Multiply and add: as one instruction, where there is one."""
    if target.has("fma") or target.triple.startswith(("aarch64", "arm64")):
        return Function.fma
    return lambda f, a, b, total: f.add(f.mul(a, b), total)
