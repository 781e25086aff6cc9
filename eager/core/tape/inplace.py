"""In-place writes on the tape, and views that stay right through them.

An in-place op computes its value as any other op does and then writes it into memory that exists. Its history follows
the value: a whole tensor takes over the value's node; a view hands it to its base through `view_scatter`, whose
gradient lets everything outside the view through and passes the view's part to the value. Views notice that their
base's history changed by a count (`_rebased`) and get a new node by repeating, on the tape, the view ops they were
made by.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays import devices
from ...arrays import dtypes
from .node import PENDING, Node, edge_of, local, save_output, settle
from ..tensor import Tensor, tensor_changed, versions_of

REMEDY = "Update it under no_grad(), or use the out-of-place op."


def check_target(target: Tensor, tracked: bool, grad_mode: bool, name: str) -> None:
    """Refuse in-place writes that would lose gradients, with PyTorch's errors."""
    array = target._array
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
    if not grad_mode:
        return
    base = target._base
    if target._requires_grad and target._node is None:
        raise RuntimeError(f"{name}: a leaf Variable that requires grad is being used in an in-place operation. {REMEDY}")
    if base is not None and base._requires_grad and base._node is None:
        raise RuntimeError(
            f"{name}: a view of a leaf Variable that requires grad is being used in an in-place operation. {REMEDY}"
        )
    if target._by_function:
        raise function_view(name, "is being modified inplace")
    if base is not None and target._made_without_grad and (tracked or base._requires_grad):
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


def record(target: Tensor, value: Tensor, name: str) -> None:
    """`value` has been computed: put it into `target`'s memory and let `target` take over its history."""
    if value._array.shape != target._array.shape:
        raise RuntimeError(
            f"{name}: output with shape {list(target.shape)} doesn't match the broadcast shape {list(value.shape)}"
        )
    if value._array.dtype != target._array.dtype:
        if not dtypes.can_cast(value.dtype, target.dtype):
            raise RuntimeError(
                f"{name}: result type {value.dtype.legacy} can't be cast to the desired output type {target.dtype.legacy}"
            )
        value = value.to(target.dtype)
    if type(value._array) is np.ndarray:
        target._array[...] = value._array
    else:
        with devices.on(target.device):
            overlap = value._array.data.mem is target._array.data.mem  # which CuPy does not look out for
            target._array[...] = value._array.copy() if overlap else value._array
    versions = versions_of(target)
    versions[0] += 1
    if local.state.grad and (value._requires_grad or target._requires_grad):
        take_history(target, value)


def take_history(target: Tensor, value: Tensor) -> None:
    tensor_changed()
    base = target._base
    if base is None and value._requires_grad:
        keep_retaining(target, value._node)
        target._node = value._node
        target._requires_grad = True
        _reuse_output(target, value)
        target._rebased += 1
        return
    from ...ops.shape.views import VIEW_SCATTER

    base = target if base is None else base  # overwritten by a constant: what was there gets a gradient of zeros
    node = Node(VIEW_SCATTER, (edge_of(base), edge_of(value)), {"chain": (*base._undo, *target._chain)})
    keep_retaining(base, node)
    base._node, base._requires_grad = node, True
    base._rebased += 1
    target._requires_grad = True


def keep_retaining(t: Tensor, node: Node | None) -> None:
    """After `retain_grad()` it is the gradient of the value as it is now that the tensor wants."""
    before = t._node
    if before is not None and before.retained is not None and node is not None:
        node.retained, before.retained = before.retained, None


def _reuse_output(target: Tensor, value: Tensor) -> None:
    """A node that saved its output refers to the target's memory instead, so that in place saves memory."""
    node = value._node
    saved = None if node is None else node.saved.get("out")
    if node is not None and saved is not None and saved[0] is value._array:
        node.saved["out"] = save_output(target)


def current_node(t: Tensor) -> Node | None:
    """A tensor's node; a view whose base was rewritten since gets a new one first."""
    if t._node is PENDING:
        settle(t)
    base = t._base
    if base is not None and t._rebased != base._rebased:
        refresh(t, base)
    return t._node


def refresh(view: Tensor, base: Tensor) -> None:
    """Make the view again from its base, for the sake of the history."""
    if view._by_function:
        raise function_view("a view", "its base or another view of its base has been modified inplace")
    view._rebased = base._rebased
    view._requires_grad = base._requires_grad
    if base._requires_grad:
        state = local.state
        before = state.grad, state.handler, state.tracer
        state.grad, state.handler, state.tracer = True, None, None  # for the history alone: no op that anybody asked for
        try:
            node = follow(base, (*base._undo, *view._chain))._node
            keep_retaining(view, node)
            view._node = node
        finally:
            state.grad, state.handler, state.tracer = before


def follow(base: Tensor, chain: tuple[Any, ...]) -> Tensor:
    """Apply a chain of view ops."""
    from ..op import apply

    for op, attrs, index in chain:
        base = apply(op, (base,), attrs)
        if index is not None:
            base = base[index]  # type: ignore[index]  # a tuple of outputs
    return base
