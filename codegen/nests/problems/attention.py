"""Attention problems, read from `attention` and `attention_backward` nodes."""

from __future__ import annotations

from dataclasses import dataclass

from ....tracer.graph.ir import Node
from .tensor_view import Forms, TensorView, Views, tensor_view

FLOATS = ("float32", "float64", "float16", "bfloat16")
GRADIENTS = ("of_query", "of_key", "of_value")


@dataclass(frozen=True)
class AttentionProblem:
    """softmax(query key^T * scale + mask) value for every head, or its gradients.

    `tensors` has query, key, value, and mask if there is one. Forward: out and log_total, which are results. Backward: pull
    (the gradient of out), log_total, out if the node has it, and those of of_query, of_key and of_value that are needed.
    """

    backward: bool
    batch: tuple[int, ...]  # of queries; the last one is heads
    group: int  # heads of queries that share a head of keys
    queries: int
    keys: int
    width: int
    value_width: int
    scale: float
    causal: bool
    dtype: str  # of query, key and value
    tensors: dict[str, TensorView]
    line: str  # of the user's program


def read_attention(node: Node, views: Views, forms: Forms) -> AttentionProblem | None:
    """The problem of a node; None if dtypes differ or heads of queries cannot share heads of keys."""
    names = tensors_of(node)
    query, key, value = (forms[names[x]] for x in ("query", "key", "value"))
    shape, keys = query.shape, key.shape
    tensors = {role: tensor_view(x, views, forms) for role, x in names.items()}
    dtype = tensors["query"].dtype
    if dtype not in FLOATS or any(tensors[x].dtype != dtype for x in ("key", "value")):
        return None
    if len(shape) != len(keys) or shape[:-3] != keys[:-3] or (len(shape) > 2 and (not keys[-3] or shape[-3] % keys[-3])):
        return None
    return AttentionProblem(
        backward=node.op.name == "attention_backward",
        batch=shape[:-2],
        group=shape[-3] // keys[-3] if len(shape) > 2 else 1,
        queries=shape[-2],
        keys=keys[-2],
        width=shape[-1],
        value_width=value.shape[-1],
        scale=node.attrs["scale"],
        causal=node.attrs["causal"],
        dtype=dtype,
        tensors=tensors,
        line=node.line,
    )


def tensors_of(node: Node) -> dict[str, str]:
    """Names of values by what they are to the problem, in the order in which kernels take them."""
    backward = node.op.name == "attention_backward"
    query, key, value, mask = node.operands[1:5] if backward else node.operands[:4]
    names = {"query": query, "key": key, "value": value}
    if isinstance(mask, str):
        names["mask"] = mask
    if not backward:
        return names | {"out": node.results[0], "log_total": node.results[1]}
    names |= {"pull": node.operands[0], "log_total": node.operands[5]}
    if len(node.operands) > 6:
        names["out"] = node.operands[6]
    results = iter(node.results)
    return names | {role: next(results) for role, need in zip(GRADIENTS, node.attrs["needs"], strict=True) if need}
