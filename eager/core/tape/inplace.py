"""In-place writes on the tape, and the history of views of the written memory.

An in-place op computes its value as any other op does, then writes it into existing memory. The history follows the value: a
whole tensor takes over the value's node; a view hands it to its base through `view_scatter`, whose gradient passes everything
outside the view on to the base, and the view's part to the value. Views detect by a counter (`tj_rebased`) that their base's
history changed, and get a new node by repeating, on the tape, the view ops that they were made by.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays import devices, dtypes
from ..op import PRIMITIVES
from ..tensor import Tensor, tensor_changed, versions_of
from .node import PLACEHOLDER_NODE, Node, edge_of, local, materialise_tape, save_output

REMEDY = "Update it under no_grad(), or use the out-of-place op."


def check_target(target: Tensor, tracked: bool, grad_mode: bool, name: str) -> None:
    """Refuse in-place writes that would lose gradients, with PyTorch's errors."""
    array = target.tj_array
    if type(array) is np.ndarray and not array.flags.writeable:
        raise RuntimeError(
            f"{name}: unsupported operation: the tensor's memory cannot be written: it is expanded (several elements share one "
            "memory location) or comes from a read-only array. Please clone() the tensor before performing the operation."
        )
    if 0 in array.strides and array.size and any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True)):
        raise RuntimeError(
            f"{name}: unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location. Please clone() the tensor before performing the operation."
        )
    if target.tj_inference and not local.state.inference:
        raise RuntimeError(
            f"{name}: Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone to get a "
            "normal tensor before doing inplace update."
        )
    if not grad_mode:
        return
    base = target.tj_base
    if target.tj_requires_grad and target.tj_node is None:
        raise RuntimeError(f"{name}: a leaf Variable that requires grad is being used in an in-place operation. {REMEDY}")
    if base is not None and base.tj_requires_grad and base.tj_node is None:
        raise RuntimeError(
            f"{name}: a view of a leaf Variable that requires grad is being used in an in-place operation. {REMEDY}"
        )
    if target.tj_by_function:
        raise function_view(name, "is being modified inplace")
    if base is not None and target.tj_made_without_grad and (tracked or base.tj_requires_grad):
        raise RuntimeError(
            f"{name}: A view was created in no_grad mode and is being modified inplace with grad mode enabled. Given that "
            "this use case is ambiguous and error-prone, it is forbidden. Create the view with gradients enabled."
        )


def function_view(name: str, what: str) -> RuntimeError:
    return RuntimeError(
        f"{name}: this view was created inside a custom Function (or because an input was returned as-is) and {what}. The "
        "autograd logic to handle view+inplace would override the custom backward associated with the custom Function, "
        "leading to incorrect gradients. This behavior is forbidden. You can fix this by cloning the output of the custom "
        "Function."
    )


def record_write(target: Tensor, value: Tensor, name: str) -> None:
    """Write a computed value into `target`'s memory, and let `target` take over its history."""
    if value.tj_array.shape != target.tj_array.shape:
        raise RuntimeError(
            f"{name}: output with shape {list(target.shape)} doesn't match the broadcast shape {list(value.shape)}"
        )
    if value.tj_array.dtype != target.tj_array.dtype:
        if not dtypes.can_cast(value.dtype, target.dtype):
            raise RuntimeError(
                f"{name}: result type {value.dtype.legacy} can't be cast to the desired output type {target.dtype.legacy}"
            )
        value = value.to(target.dtype)
    if type(value.tj_array) is np.ndarray:
        target.tj_array[...] = value.tj_array
    else:
        with devices.on(target.device):
            overlap = value.tj_array.data.mem is target.tj_array.data.mem  # CuPy does not check for overlap
            target.tj_array[...] = value.tj_array.copy() if overlap else value.tj_array
    versions = versions_of(target)
    versions[0] += 1
    if local.state.grad and (value.tj_requires_grad or target.tj_requires_grad):
        take_history(target, value)


def take_history(target: Tensor, value: Tensor) -> None:
    tensor_changed()
    base = target.tj_base
    if base is None and value.tj_requires_grad:
        move_retain_grad(target, value.tj_node)
        target.tj_node = value.tj_node
        target.tj_requires_grad = True
        _reuse_output(target, value)
        target.tj_rebased += 1
        return
    base = target if base is None else base  # overwritten by a constant: the old value gets a gradient of zeros
    node = Node(
        PRIMITIVES["view_scatter"], (edge_of(base), edge_of(value)), {"chain": (*base.tj_undo_chain, *target.tj_view_chain)}
    )
    move_retain_grad(base, node)
    base.tj_node, base.tj_requires_grad = node, True
    base.tj_rebased += 1
    target.tj_requires_grad = True


def move_retain_grad(t: Tensor, node: Node | None) -> None:
    """Move `retain_grad()` to the tensor's new node: it asks for the gradient of the current value."""
    before = t.tj_node
    if before is not None and before.retained is not None and node is not None:
        node.retained, before.retained = before.retained, None


def _reuse_output(target: Tensor, value: Tensor) -> None:
    """Let a node that saved its output refer to the target's memory instead, so that in-place ops save memory."""
    node = value.tj_node
    saved = None if node is None else node.saved.get("out")
    if node is not None and saved is not None and saved[0] is value.tj_array:
        node.saved["out"] = save_output(target)


def current_node(t: Tensor) -> Node | None:
    """Return a tensor's node; a view whose base was rewritten since gets a new one first."""
    if t.tj_node is PLACEHOLDER_NODE:
        materialise_tape(t)
    base = t.tj_base
    if base is not None and t.tj_rebased != base.tj_rebased:
        rebuild_view(t, base)
    return t.tj_node


def rebuild_view(view: Tensor, base: Tensor) -> None:
    """Recompute the view from its base, to give it the base's current history."""
    if view.tj_by_function:
        raise function_view("a view", "its base or another view of its base has been modified inplace")
    view.tj_rebased = base.tj_rebased
    view.tj_requires_grad = base.tj_requires_grad
    if base.tj_requires_grad:
        state = local.state
        before = state.grad, state.handler, state.tracer
        state.grad, state.handler, state.tracer = True, None, None  # only the history is wanted: nobody may see these ops
        try:
            node = apply_view_chain(base, (*base.tj_undo_chain, *view.tj_view_chain)).tj_node
            move_retain_grad(view, node)
            view.tj_node = node
        finally:
            state.grad, state.handler, state.tracer = before


def apply_view_chain(base: Tensor, chain: tuple[Any, ...]) -> Tensor:
    """Apply a chain of view ops."""
    from ..dispatch import apply

    for op, attrs, index in chain:
        base = apply(op, (base,), attrs)
        if index is not None:
            base = base[index]  # type: ignore[index]  # a tuple of outputs
    return base
