"""Matrix products: batched, with operands of any strides, and an epilogue that says what becomes of the results.

Which kernel it is depends on the shape: dot products if there are few rows or columns (`dots.py`), or else register tiles over
blocks (`product.py`), cut up as `blocking.py` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ..ir.blocking import Plan, Shape, choose
from ..ir.builder import BYTES, I64, Function, Module, Type, Value, constant
from .problem import Epilogue, Fetch, Gemm, Load, Operand, all_differ, by_depth, join_of, join_pairs, paired, registers
from .dot_kernel import emit_dots, suits
from ..ir.kernel import Kernel
from ..ir.register_tile import scaled
from .tiled_kernel import Product
from ..ir.target import Target

Chooser = Callable[[Gemm, Shape], Plan]

__all__ = ["Chooser", "Epilogue", "Gemm", "Operand", "emit", "shape_of", "store_to"]


def by_model(gemm: Gemm, shape: Shape) -> Plan:
    return choose(shape)


def emit(
    module: Module,
    name: str,
    gemm: Gemm,
    pointers: int,
    epilogue: Epilogue,
    target: Target,
    plan: Plan | None = None,
    chooser: Chooser = by_model,
    fetch: Fetch | None = None,
) -> Kernel:
    """The kernel of a product, whose functions take `pointers` pointers. The plan is chosen if it is not given, and with it
    whether it is done in pairs."""
    if 0 in (*gemm.batch, gemm.m, gemm.n):
        return Kernel(())
    if gemm.n == 1 and by_depth(gemm.a) and plan is None:
        return emit(module, name, _swapped(gemm), pointers, _one_by_one(gemm.m, epilogue), target, chooser=chooser)
    if suits(gemm, target.lanes(gemm.scalar)) and plan is None:
        return emit_dots(module, name, gemm, pointers, epilogue, target)
    shape: Shape | None = None
    if plan is None:
        gemm = paired(gemm, target)
        shape = shape_of(gemm, target)
        plan = chooser(gemm, shape)
    work = Product(gemm, plan, pointers, epilogue, join_pairs if gemm.pairs else join_of(target), fetch)
    phases = [work.pack(module, f"{name}_pack")] if work.packed_size else []
    phases.append(work.compute(module, name))
    if plan.parts > 1:
        phases.append(work.parts.add_up(module, f"{name}_add", epilogue))
    return Kernel(tuple(phases), work.shared_size, work.scratch_size, shape)


def store_to(
    pointer: int, batch: tuple[int, ...], row: int, column: int, scalar: str = "float", accumulate: bool = False
) -> Epilogue:
    """An epilogue that stores the results as they are, or adds them to what is there."""

    def epilogue(f: Function, indices: list[Value], m: Value, n: Value, value: Value, mask: Value | None) -> None:
        place = scaled(f, m, row)
        for index, stride in zip(indices, batch, strict=True):
            if stride:
                place = f.add(place, scaled(f, index, stride))
        where = f.pointer(f.params[pointer], f.add(place, scaled(f, n, column)), scalar)
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


def _swapped(gemm: Gemm) -> Gemm:
    """The transpose of a product."""
    a, b = (replace(x, row=x.column, column=x.row, load=_turned_load(x.load)) for x in (gemm.b, gemm.a))
    return Gemm(gemm.batch, gemm.n, gemm.m, gemm.k, a, b, gemm.scalar)


def _turned_load(load: Load | None) -> Load | None:
    if load is None:
        return None
    there = {"row": "column", "column": "row"}

    return lambda f, batch, along, other: load(f, batch, there[along], other)


def _one_by_one(m: int, epilogue: Epilogue) -> Epilogue:
    """For the transpose of a product of one column: each lane of its results is a row."""

    def each(f: Function, batch: list[Value], column: Value, row: Value, value: Value, mask: Value | None) -> None:
        lanes, scalar = value.type.lanes, value.type.scalar
        room = f.stack(Type(scalar), lanes)
        f.store(value, room)
        last = f.intrinsic("smin", f.add(row, constant(lanes, I64)), constant(m, I64))
        with f.loop(row, last) as loop:
            one = f.load(f.pointer(room, f.sub(loop.index, row), scalar), Type(scalar))
            epilogue(f, batch, loop.index, column, one, None)

    return each


def shape_of(gemm: Gemm, target: Target) -> Shape:
    a, b = gemm.a, gemm.b
    in_place = a.column == 1 and gemm.k % 2 == 0 if gemm.pairs else not a.half  # converting an element for all lanes is slow
    return Shape(
        batch=math.prod(gemm.batch),
        m=gemm.m,
        n=gemm.n,
        k=max(gemm.steps, 1),
        lanes=target.lanes(gemm.scalar),
        registers=registers(target),
        size=BYTES[gemm.scalar],
        pack_a=a.load is not None or not in_place,
        pack_b=b.load is not None or gemm.pairs or (b.column != 1 and gemm.n > 1),
        by_depth=by_depth(a),
        same_a=not all_differ(gemm, a),
        same_b=not all_differ(gemm, gemm.b),
        half_b=b.half,
    )
