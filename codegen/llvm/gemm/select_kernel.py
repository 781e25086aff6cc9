"""Entry point for matmul kernels: batched, operands of any strides, results handed to an epilogue.

Selects the kernel by shape: dot products for few rows or columns (`dot_kernel.py`), else register tiles over blocks
(`tiled_kernel.py`), blocked as `codegen/llvm/ir/blocking.py` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ..ir.blocking import GemmPlan, GemmShape, choose_plan
from ..ir.builder import BYTES, I64, Function, Module, Type, Value, constant
from ..ir.kernel import NativeKernel
from ..ir.register_tile import scale_index
from ..ir.target import Target
from .dot_kernel import emit_dot_kernel, suits_dot_kernel
from .problem import (
    Epilogue,
    EpiloguePrefetch,
    GemmProblem,
    OperandLoader,
    is_column_major,
    is_unshared,
    multiply_add_for,
    multiply_add_pairs,
    vector_registers,
    with_pairs,
)
from .tiled_kernel import TiledGemm

PlanChooser = Callable[[GemmProblem, GemmShape], GemmPlan]


def plan_by_model(gemm: GemmProblem, shape: GemmShape) -> GemmPlan:
    return choose_plan(shape)


def emit_gemm(
    module: Module,
    name: str,
    gemm: GemmProblem,
    pointers: int,
    epilogue: Epilogue,
    target: Target,
    plan: GemmPlan | None = None,
    chooser: PlanChooser = plan_by_model,
    prefetch: EpiloguePrefetch | None = None,
) -> NativeKernel:
    """Emit the kernel of a matmul, whose functions take `pointers` pointers. Without `plan`, `chooser` chooses one, and bfloat
    operands may be multiplied in pairs."""
    if 0 in (*gemm.batch, gemm.m, gemm.n):
        return NativeKernel(())
    if gemm.n == 1 and is_column_major(gemm.a) and plan is None:
        return emit_gemm(
            module, name, _transpose(gemm), pointers, _store_lanes_as_rows(gemm.m, epilogue), target, chooser=chooser
        )
    if suits_dot_kernel(gemm, target.lanes(gemm.scalar)) and plan is None:
        return emit_dot_kernel(module, name, gemm, pointers, epilogue, target)
    shape: GemmShape | None = None
    if plan is None:
        gemm = with_pairs(gemm, target)
        shape = gemm_shape(gemm, target)
        plan = chooser(gemm, shape)
    work = TiledGemm(gemm, plan, pointers, epilogue, multiply_add_pairs if gemm.pairs else multiply_add_for(target), prefetch)
    phases = [work.pack(module, f"{name}_pack")] if work.packed_size else []
    phases.append(work.compute(module, name))
    if plan.split_k > 1:
        phases.append(work.split_k.emit_reduction(module, f"{name}_add", epilogue))
    return NativeKernel(tuple(phases), work.shared_size, work.scratch_size, shape)


def store_epilogue(
    pointer: int, batch: tuple[int, ...], row: int, column: int, scalar: str = "float", accumulate: bool = False
) -> Epilogue:
    """An epilogue that stores the results, or adds them to what is there if `accumulate`."""

    def epilogue(f: Function, indices: list[Value], m: Value, n: Value, value: Value, mask: Value | None) -> None:
        place = scale_index(f, m, row)
        for index, stride in zip(indices, batch, strict=True):
            if stride:
                place = f.add(place, scale_index(f, index, stride))
        where = f.pointer(f.params[pointer], f.add(place, scale_index(f, n, column)), scalar)
        lanes = value.type.lanes
        steps = None if column == 1 or lanes == 1 else f.mul(f.steps(lanes), constant(column, Type("i64", lanes)))
        if accumulate:
            kind = value.type.of(scalar)
            before = f.load(where, kind, mask) if steps is None else f.gather(where, steps, scalar, mask)
            value = f.add(value, before if scalar == value.type.scalar else f.convert("fpext", before, value.type.scalar))
        if scalar != value.type.scalar:
            value = f.convert("fptrunc", value, scalar)
        if steps is None:
            f.store(value, where, mask)
        else:
            f.scatter(value, where, steps, mask)

    return epilogue


def _transpose(gemm: GemmProblem) -> GemmProblem:
    """The transposed problem."""
    a, b = (replace(x, row=x.column, column=x.row, load=_transpose_loader(x.load)) for x in (gemm.b, gemm.a))
    return GemmProblem(gemm.batch, gemm.n, gemm.m, gemm.k, a, b, gemm.scalar)


def _transpose_loader(load: OperandLoader | None) -> OperandLoader | None:
    if load is None:
        return None
    there = {"row": "column", "column": "row"}

    return lambda f, batch, along, other: load(f, batch, there[along], other)


def _store_lanes_as_rows(m: int, epilogue: Epilogue) -> Epilogue:
    """Epilogue for the transpose of a matmul with one column: each lane of its results is a row."""

    def each(f: Function, batch: list[Value], column: Value, row: Value, value: Value, mask: Value | None) -> None:
        lanes, scalar = value.type.lanes, value.type.scalar
        room = f.stack(Type(scalar), lanes)
        f.store(value, room)
        last = f.intrinsic("smin", f.add(row, constant(lanes, I64)), constant(m, I64))
        with f.loop(row, last) as loop:
            one = f.load(f.pointer(room, f.sub(loop.index, row), scalar), Type(scalar))
            epilogue(f, batch, loop.index, column, one, None)

    return each


def gemm_shape(gemm: GemmProblem, target: Target) -> GemmShape:
    a, b = gemm.a, gemm.b
    in_place = a.column == 1 and gemm.k % 2 == 0 if gemm.pairs else not a.half  # converting and broadcasting an element is slow
    return GemmShape(
        batch=math.prod(gemm.batch),
        m=gemm.m,
        n=gemm.n,
        k=max(gemm.steps, 1),
        lanes=target.lanes(gemm.scalar),
        registers=vector_registers(target),
        size=BYTES[gemm.scalar],
        pack_a=a.load is not None or not in_place,
        pack_b=b.load is not None or gemm.pairs or (b.column != 1 and gemm.n > 1),
        column_major_a=is_column_major(a),
        broadcast_a=not is_unshared(gemm, a),
        broadcast_b=not is_unshared(gemm, gemm.b),
        half_b=b.half,
    )
