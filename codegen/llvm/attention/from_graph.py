"""Attention kernels, forward and backward, from graph nodes."""

from __future__ import annotations

from typing import Any

from ....tracer.graph.ir import Form, Node
from ...nests.problems.attention import FLOATS, read_attention
from ...schedule.step import BufferView
from ..ir.builder import Module
from ..ir.kernel import NativeKernel
from ..ir.target import Target
from ..math.scalar_ops import SCALARS
from .backward import emit_backward
from .blocks import NativeAttention, TensorLayout
from .forward import emit_forward


def native_attention(
    node: Node, views: dict[str, BufferView], forms: dict[str, Form], pointers: dict[str, int]
) -> NativeAttention | None:
    """Read an attention node whose operands and results are pointers; None if there is no kernel for it."""
    problem = read_attention(node, views, forms)
    if problem is None:
        return None
    tensors, ndim = problem.tensors, len(problem.batch) + 2
    kinds = {"bool": "i8", **{name: SCALARS[name] for name in FLOATS}}
    mask = tensors.get("mask")
    others = (node.operands[0], node.results[0])
    if any(x.dtype != problem.dtype for x in tensors.values() if x.name in others) or (mask and mask.dtype not in kinds):
        return None
    layouts: dict[str, Any] = {role: TensorLayout(pointers[x.name], x.padded_strides(ndim)) for role, x in tensors.items()}
    if problem.backward:
        layouts.pop("out", None)  # the native kernels do without it
    return NativeAttention(
        batch=problem.batch,
        queries=problem.queries,
        keys=problem.keys,
        width=problem.width,
        value_width=problem.value_width,
        scale=problem.scale,
        causal=problem.causal,
        group=problem.group,
        scalar=SCALARS[problem.dtype],
        mask_scalar="i8" if mask is None else kinds[mask.dtype],
        **layouts,
    )


def emit_attention(
    module: Module, name: str, spec: NativeAttention, backward: bool, pointers: int, target: Target
) -> NativeKernel | None:
    return (emit_backward if backward else emit_forward)(module, name, spec, pointers, target)
