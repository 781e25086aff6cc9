"""Gradient hooks of tensors and nodes, which see or replace a gradient, and `retain_grad`, which keeps it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..core.tape.engine import sum_to
from ..core.tape.inplace import current_node
from ..core.tape.node import Node, RemovableHandle
from ..core.tensor import Tensor, notify_tape_read

# ---- of tensors


def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook(grad)` once this tensor's gradient is known; what it returns, if anything, replaces the gradient."""
    if not self.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    notify_tape_read(self)
    node = current_node(self)
    if node is not None:
        if node.hooks is None:
            node.hooks = {}
        return RemovableHandle.add(node.hooks, hook)
    if self.tj_hooks is None:
        self.tj_hooks = {}
    return RemovableHandle.add(self.tj_hooks, hook)


def register_post_accumulate_grad_hook(self: Tensor, hook: Callable[[Tensor], Any]) -> RemovableHandle:
    """Call `hook(leaf)` after a backward pass has added to this leaf's `.grad`."""
    if not self.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if current_node(self) is not None:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    if self.tj_accumulate_hooks is None:
        self.tj_accumulate_hooks = {}
    return RemovableHandle.add(self.tj_accumulate_hooks, hook)


def retain_grad(self: Tensor) -> None:
    """Have backward passes fill `.grad` although this tensor is not a leaf."""
    if not self.requires_grad:
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    notify_tape_read(self)
    node = current_node(self)
    if node is not None:
        node.retained = weakref.ref(self)  # weak: a node must not keep its own output alive


def retains_grad(self: Tensor) -> bool:
    node = current_node(self)
    return node is not None and node.retained is not None and node.retained() is self


Tensor.register_hook = register_hook  # type: ignore[attr-defined]
Tensor.register_post_accumulate_grad_hook = register_post_accumulate_grad_hook  # type: ignore[attr-defined]
Tensor.retain_grad = retain_grad  # type: ignore[attr-defined]
Tensor.retains_grad = property(retains_grad)  # type: ignore[attr-defined]


# ---- of nodes


class Watched:
    """Stands in for the `gradients` of one node that has hooks of its own, so that other nodes pay nothing for them."""

    def __init__(self, node: Node) -> None:
        self.node = weakref.ref(node)  # weak: the node refers to this
        self.before: dict[int, Any] = {}
        self.after: dict[int, Any] = {}

    def __call__(self, g: Any) -> tuple[Tensor | None, ...]:
        node = self.node()
        assert node is not None
        gs = tuple(g) if isinstance(g, list) else (g,)
        for hook in tuple(self.before.values()):
            gs = _replaced(hook(gs), gs)
        found = tuple(type(node).gradients(node, list(gs) if isinstance(g, list) else gs[0]))
        if node.broadcast is not None:
            pairs = zip(found, node.broadcast, strict=True)
            found = tuple(None if t is None else sum_to(t, shape) for t, shape in pairs)
        for hook in tuple(self.after.values()):
            found = _replaced(hook(found, gs), found)
        return found


def _replaced(given: Any, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    if given is None:
        return gradients
    given = (given,) if isinstance(given, Tensor) else tuple(given)
    if len(given) != len(gradients):
        raise RuntimeError(f"hook has returned an incorrect number of values (got {len(given)}, but expected {len(gradients)})")
    return given


def _watched(node: Node) -> Watched:
    found = node.__dict__.get("gradients")
    if found is None:
        found = node.__dict__["gradients"] = Watched(node)
        node.own_gradients = False
    return found  # type: ignore[no-any-return]


def register_node_hook(self: Node, hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(grad_inputs, grad_outputs)` when this node's gradients are computed; what it returns replaces the former."""
    return RemovableHandle.add(_watched(self).after, hook)


def register_node_prehook(self: Node, hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(grad_outputs)` before this node's gradients are computed; what it returns replaces them."""
    return RemovableHandle.add(_watched(self).before, hook)


Node.register_hook = register_node_hook  # type: ignore[attr-defined]
Node.register_prehook = register_node_prehook  # type: ignore[attr-defined]
