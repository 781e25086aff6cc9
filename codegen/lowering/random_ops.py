"""Random numbers as expressions: counter-based, so each element follows from the op's seed, its call number and the element's
place, and comes out the same wherever it is computed."""

from __future__ import annotations

from ...tracer.graph.ir import Form, Node
from ..ir.expr import Expr, Guard
from ..ir.index import flattened
from .op_lowering import Place, Reader, define, dtype_of, scalar, shape_of

DRAWN = ("random_uniform", "random_normal", "random_integers", "random_mask")


def drawable(node: Node, forms: dict[str, Form]) -> bool:
    """Whether random numbers are made element by element."""
    return node.op.name in DRAWN and all(forms[x].size > 0 for x in node.results)


@define(*DRAWN)
def drawn(reader: Reader, node: Node, which: int, place: Place, guard: Guard) -> Expr:
    """The op on seed, call number and its settings, and the element's number."""
    exprs, (name,) = reader.exprs, node.results
    kind = "int64" if node.op.name == "random_integers" else "float64"
    seed, call, *settings = node.operands
    given = [scalar(reader, seed, "int64"), scalar(reader, call, "int64")]
    given += [scalar(reader, x, kind) for x in settings]
    at = exprs.index(flattened(place, shape_of(reader, name)))
    dtype = dtype_of(reader.forms[name])
    made = "int64" if kind == "int64" else "bool" if node.op.name == "random_mask" else dtype
    return exprs.cast(exprs.op(node.op.name, made, *given, at), dtype)
