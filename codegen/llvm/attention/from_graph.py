"""Attention, forward and backward, from nodes of the graph."""

from __future__ import annotations

from typing import Any

from ....tracer.graph.ir import Form, Node
from ...lowering.op_lowering import dtype_of
from ...schedule.step import View
from .forward import emit_forward
from .backward import emit_backward
from .blocks import Attention, Layout
from ..ir.builder import Module
from ..ir.kernel import Kernel
from ..ir.target import Target
from ..math.scalar_ops import HALVES, SCALARS

FLOATS = ("float32", "float64", *HALVES)


def attention_of(node: Node, views: dict[str, View], forms: dict[str, Form], pointers: dict[str, int]) -> Attention | None:
    """The problem of an attention node, whose operands and results are pointers; None if there is no kernel for it."""
    backward = node.op.name == "attention_backward"
    query, key, value, mask = node.operands[1:5] if backward else node.operands[:4]
    shape, keys = forms[query].shape, forms[key].shape
    kind = dtype_of(forms[query])
    alike = (key, value, node.operands[0], node.results[0])
    if kind not in FLOATS or not all(forms[x].dtype == forms[query].dtype for x in alike):
        return None
    if len(shape) != len(keys) or shape[:-3] != keys[:-3] or (len(shape) > 2 and shape[-3] % keys[-3]):
        return None

    def layout(name: str, ndim: int = len(shape)) -> Layout:
        sizes, strides = forms[name].shape, views[name][2]
        wide = [0] * (ndim - len(sizes)) + [0 if n == 1 else s for n, s in zip(sizes, strides, strict=True)]
        return Layout(pointers[name], tuple(wide))

    given: dict[str, Any] = {}
    if isinstance(mask, str):
        kinds = {"bool": "i8", **{name: SCALARS[name] for name in FLOATS}}
        if forms[mask].dtype.name not in kinds:
            return None
        given.update(mask=layout(mask), mask_scalar=kinds[forms[mask].dtype.name])
    if backward:
        names = iter(node.results)
        slopes = [layout(next(names)) if need else None for need in node.attrs["needs"]]
        given.update(pull=layout(node.operands[0]), log_total=layout(node.operands[5]))
        given.update(of_query=slopes[0], of_key=slopes[1], of_value=slopes[2])
    else:
        given.update(out=layout(node.results[0]), log_total=layout(node.results[1]))
    return Attention(
        batch=shape[:-2],
        queries=shape[-2],
        keys=keys[-2],
        width=shape[-1],
        value_width=forms[value].shape[-1],
        scale=node.attrs["scale"],
        query=layout(query),
        key=layout(key),
        value=layout(value),
        causal=node.attrs["causal"],
        group=shape[-3] // keys[-3] if len(shape) > 2 else 1,
        scalar=SCALARS[kind],
        **given,
    )


def emit_attention(module: Module, name: str, spec: Attention, backward: bool, pointers: int, target: Target) -> Kernel | None:
    return (emit_backward if backward else emit_forward)(module, name, spec, pointers, target)
