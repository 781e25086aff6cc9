"""Products as Triton kernels: `printed_product` is the entry for all launches that are a contraction and what follows it.

Here is what a product of matrices is: the rows of a batch are rows of one matrix where all of them are multiplied by the same.
"""

from __future__ import annotations

import math

from ....tracer.graph.ir import Form, Node
from ...ir.expr import Exprs
from ...ir.index import ZERO, unflattened
from ...nests.kernels import Launch
from ...lowering.op_lowering import broadcast
from ...schedule.step import Domain
from .tile_configs import Config, configs
from .problem import Contraction, Operands, batch_of, followed, in_halves
from .implicit_gemm_conv import conv_of
from .tile_kernel import Product
from ..printing.kernel_text import Printed


def printed_product(
    launch: Launch, forms: dict[str, Form], target: str = "sm_90", precision: str = "ieee", config: Config | None = None
) -> Printed:
    """The kernels of a launch of kind "product". Without a configuration it is the table's first for the target; `precision` is
    that of float32: "ieee", or "tf32" where it may be less."""
    work = contraction_of(launch, forms)
    return Product(work, config or configs(work, target, precision)[0], precision).printed()


def contraction_of(launch: Launch, forms: dict[str, Form]) -> Contraction:
    assert launch.node is not None and launch.nest is not None
    return (matmul_of if launch.node.op.name == "matmul" else conv_of)(launch, launch.node, forms)


def matmul_of(launch: Launch, node: Node, forms: dict[str, Form]) -> Contraction:
    assert launch.nest is not None
    exprs = Exprs()
    operands = Operands(launch, forms, exprs)
    a, b = node.operands
    shape, left, right = forms[node.results[0]].shape, forms[a].shape, forms[b].shape
    batch, rows, cols, depth = shape[:-2], shape[-2], shape[-1], left[-1]
    batches = math.prod(batch)
    if math.prod(right[:-2]) == 1:
        batches, rows = 1, batches * rows
    outer, inner, number = Domain(rows, depth), Domain(depth, cols), batch_of(batches)
    which = unflattened(number, batch)
    row = unflattened(outer.row, shape[:-1]) if batches == 1 else (*which, outer.row)
    first = operands.at(a, broadcast((*row, outer.col), left))
    second = operands.at(b, broadcast((*which, inner.row, inner.col), right))
    first, second = in_halves(first, second)
    own = Domain(rows, cols)
    nest = followed(launch.nest, exprs, rows, cols, number * rows + own.row, own.col if cols > 1 else ZERO)
    sizes = f"{batches} x " if batches > 1 else ""
    return Contraction(batches, rows, cols, depth, first, second, nest, f"{sizes}[{rows}, {depth}] @ [{depth}, {cols}]")
