"""What a tensor can be asked about its gradient: hooks that see or replace it, and `retain_grad` to keep it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..tape import RemovableHandle
from ..tensor import Tensor


def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook(grad)` once this tensor's gradient is known; what it returns, if anything, replaces the gradient."""
    if not self.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    node = self.grad_fn
    if node is not None:
        if node.hooks is None:
            node.hooks = {}
        return RemovableHandle.add(node.hooks, hook)
    if self._hooks is None:
        self._hooks = {}
    return RemovableHandle.add(self._hooks, hook)


def register_post_accumulate_grad_hook(self: Tensor, hook: Callable[[Tensor], Any]) -> RemovableHandle:
    """Call `hook(leaf)` after a backward pass has added to this leaf's `.grad`."""
    if not self.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if self.grad_fn is not None:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    if self._after_accumulate is None:
        self._after_accumulate = {}
    return RemovableHandle.add(self._after_accumulate, hook)


def retain_grad(self: Tensor) -> None:
    """Have backward passes fill `.grad` although this tensor is not a leaf."""
    if not self.requires_grad:
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    node = self.grad_fn
    if node is not None:
        node.retained = weakref.ref(self)  # weak: a node must not keep its own output alive


def retains_grad(self: Tensor) -> bool:
    node = self.grad_fn
    return node is not None and node.retained is not None and node.retained() is self


Tensor.register_hook = register_hook  # type: ignore[attr-defined]
Tensor.register_post_accumulate_grad_hook = register_post_accumulate_grad_hook  # type: ignore[attr-defined]
Tensor.retain_grad = retain_grad  # type: ignore[attr-defined]
Tensor.retains_grad = property(retains_grad)  # type: ignore[attr-defined]
