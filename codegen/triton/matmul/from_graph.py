"""Matmuls as Triton kernels: `print_matmul` is the entry for all launches that are a contraction and its epilogue.

Matmul nodes become contractions here: the rows of a batch are rows of one matrix where all of them share the other operand.
"""

from __future__ import annotations

import math

from ....tracer.graph.ir import Form
from ...ir.expr import ExprBuilder
from ...ir.index import ZERO, unflatten_index
from ...lowering.op_lowering import broadcast
from ...nests.kernels import Launch
from ...nests.problems.conv import read_conv
from ...nests.problems.matmul import MatmulProblem, read_matmul
from ...schedule.step import Domain
from ..printing.kernel_text import Printed
from .implicit_gemm_conv import conv_of
from .problem import Contraction, Operands, batch_of, epilogue_nest, in_halves
from .tile_configs import Config, configs
from .tile_kernel import MatmulPrinter


def print_matmul(
    launch: Launch, forms: dict[str, Form], target: str = "sm_90", precision: str = "ieee", config: Config | None = None
) -> Printed:
    """Print the kernels of a launch of kind "matmul". The default configuration is the table's first for the target;
    `precision` is that of float32: "ieee", or "tf32" where it may be less."""
    work = contraction_of(launch, forms)
    return MatmulPrinter(work, config or configs(work, target, precision)[0], precision).printed()


def contraction_of(launch: Launch, forms: dict[str, Form]) -> Contraction:
    assert launch.node is not None and launch.nest is not None
    if launch.node.op.name != "matmul":
        return conv_of(launch, read_conv(launch.node, launch.operands, forms), forms)
    return matmul_of(launch, read_matmul(launch.node, launch.operands, forms), forms)


def matmul_of(launch: Launch, problem: MatmulProblem, forms: dict[str, Form]) -> Contraction:
    assert launch.nest is not None
    exprs = ExprBuilder()
    operands = Operands(launch, forms, exprs)
    a, b, batch, rows, cols, depth = problem.a, problem.b, problem.batch, problem.m, problem.n, problem.k
    leading = (*batch, rows)
    batches = math.prod(batch)
    if problem.has_one_right_matrix:
        batches, rows = 1, batches * rows
    outer, inner, number = Domain(rows, depth), Domain(depth, cols), batch_of(batches)
    which = unflatten_index(number, batch)
    row = unflatten_index(outer.row, leading) if batches == 1 else (*which, outer.row)
    first = operands.at(a.name, broadcast((*row, outer.col), a.shape))
    second = operands.at(b.name, broadcast((*which, inner.row, inner.col), b.shape))
    first, second = in_halves(first, second)
    own = Domain(rows, cols)
    nest = epilogue_nest(launch.nest, exprs, rows, cols, number * rows + own.row, own.col if cols > 1 else ZERO)
    sizes = f"{batches} x " if batches > 1 else ""
    return Contraction(batches, rows, cols, depth, first, second, nest, f"{sizes}[{rows}, {depth}] @ [{depth}, {cols}]")
