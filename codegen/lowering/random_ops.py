"""Lower random ops. They are counter-based: an element follows from the op's seed, its call number and the element's position,
so it is the same wherever it is computed."""

from __future__ import annotations

from ...tracer.graph.ir import Form, Node
from ..ir.expr import Expr, Guard
from ..ir.index import flatten_index
from .definitions import define
from .op_lowering import Place, Reader, dtype_of, scalar, shape_of

RANDOM_OPS = ("random_uniform", "random_normal", "random_integers", "random_mask")


def is_lowerable_random(node: Node, forms: dict[str, Form]) -> bool:
    """True for random ops with elements."""
    return node.op.name in RANDOM_OPS and all(forms[x].size > 0 for x in node.results)


@define(*RANDOM_OPS)
def random_element(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    """The op on its seed, call number and parameters, and the element's flat position."""
    exprs, (name,) = reader.exprs, node.results
    kind = "int64" if node.op.name == "random_integers" else "float64"
    seed, call, *settings = node.operands
    given = [scalar(reader, seed, "int64"), scalar(reader, call, "int64")]
    given += [scalar(reader, x, kind) for x in settings]
    at = exprs.index(flatten_index(place, shape_of(reader, name)))
    dtype = dtype_of(reader.forms[name])
    made = "int64" if kind == "int64" else "bool" if node.op.name == "random_mask" else dtype
    return exprs.cast(exprs.op(node.op.name, made, *given, at), dtype)
