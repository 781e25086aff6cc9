"""Deferred side effects of a skipped call: version counters and gradients, materialised when first read.

A step that nobody observes need not count a write for each parameter, nor give each leaf a gradient, at every call. The tensor
holds a `DeferredArray` instead; whoever reads it materialises it, with all calls since then counted. Only readers pay,
once for each thing that they read, and the next call defers it again.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ...eager.arrays.deferred import DeferredArray
from ...eager.core.tensor import Tensor, versions_of, wrap
from ..guards.tensor_guards import has_form
from ..trace.trace import Value


def counter_refcount(t: Tensor) -> int:
    """Return the reference count of a tensor's version counter."""
    return sys.getrefcount(t.tj_versions)


def _lone_counter_refcount() -> int:
    t = wrap(np.empty(1))
    t.tj_versions = [0]
    return counter_refcount(t)


LONE_COUNTER_REFCOUNT = _lone_counter_refcount()


class CapturedTensor:
    """A tensor that a function reads by name, rather than as an argument; or the gradient of such a tensor."""

    __slots__ = ("leaf", "pending", "requires_grad", "since", "skipped", "tensor", "tracked", "value", "writes")

    def __init__(self, skipped: Any, value: Value, tensor: Tensor, leaf: Tensor | None) -> None:
        self.skipped = skipped
        self.value = value
        self.tensor = tensor
        self.requires_grad, self.tracked = tensor.tj_requires_grad, tensor.tj_node is not None
        self.leaf = leaf  # for a gradient: the leaf that it belongs to
        self.writes = 0  # writes per call
        self.since = 0  # number of calls when it was deferred
        self.pending: DeferredArray | None = None

    def find(self) -> bool:
        """True if the tensor is there, has its form, and can be bound."""
        if self.leaf is not None:
            if self.leaf.tj_grad is None:
                return False
            self.tensor = self.leaf.tj_grad
        t, value = self.tensor, self.value
        if t.tj_requires_grad is not self.requires_grad or (t.tj_node is not None) is not self.tracked:
            return False
        if t.tj_hooks or t.tj_accumulate_hooks or (t.tj_base is not None and t.tj_rebased != t.tj_base.tj_rebased):
            return False
        return not isinstance(t.tj_array, DeferredArray) and has_form(t.tj_array, value.form)

    def is_unchanged(self) -> bool:
        """The same check for a tensor that is bound and may be deferred."""
        t, value = self.tensor, self.value
        if self.leaf is not None and self.leaf.tj_grad is not t:
            return False
        if t.tj_requires_grad is not self.requires_grad or (t.tj_node is not None) is not self.tracked:
            return False
        if t.tj_hooks or t.tj_accumulate_hooks or (t.tj_base is not None and t.tj_rebased != t.tj_base.tj_rebased):
            return False
        return t.tj_array is (self.skipped.arrays[value.slot] if self.pending is None else self.pending)

    def defer(self) -> bool:
        """Hide the memory, so that reading it or its version calls `read`. False if others hold the version counter."""
        t = self.tensor
        if t.tj_versions is not None and counter_refcount(t) > LONE_COUNTER_REFCOUNT:
            return False
        self.pending = t.tj_array = self.value.form(self, self.value.slot)
        self.since = self.skipped.count - 1  # the call that ends now counts
        return True

    def read(self, pending: DeferredArray | None) -> None:
        """Materialise: the memory or the version is being read."""
        with self.skipped.lock:
            if self.pending is not None:
                self.materialise()
                self.skipped.seen.append(self)

    def materialise(self) -> None:
        """Give the tensor its memory and count the writes, unless somebody gave it other memory meanwhile."""
        pending, t = self.pending, self.tensor
        if pending is None:
            return
        array = self.skipped.arrays[self.value.slot]
        pending.become(array)
        self.pending = None
        if t.tj_array is pending:
            t.tj_array = array
            self.count(self.skipped.count - self.since)

    def count(self, calls: int) -> None:
        versions_of(self.tensor)[0] += self.writes * calls


class LeafGradient:
    """The gradient that a call leaves in a leaf, or removes from it."""

    __slots__ = ("given", "is_deferred", "leaf", "required", "skipped", "value", "writes")

    def __init__(self, skipped: Any, leaf: Tensor, required: bool, value: Value | None) -> None:
        self.skipped = skipped
        self.leaf = leaf
        self.required = required  # the leaf must have none before the call
        self.value = value  # the gradient after the call; None for none
        self.writes = 0  # writes per call after it is made
        self.given: Tensor | None = None
        self.is_deferred = False  # if not, the next call has to defer it again

    def fits(self) -> bool:
        """True if the leaf can get its gradient from this call: no hooks, and no gradient where none may be."""
        leaf = self.leaf
        return not (leaf.tj_hooks or leaf.tj_accumulate_hooks or (self.required and leaf.tj_grad is not None))

    def is_unchanged(self) -> bool:
        """The same check while it may be deferred. A gradient that somebody set or dropped is given again at the next call."""
        leaf = self.leaf
        if leaf.tj_hooks or leaf.tj_accumulate_hooks:
            return False
        if leaf.tj_grad is not self.given:
            if self.required:
                return False
            if self.is_deferred:
                self.materialise()
                self.is_deferred = False
                self.skipped.seen.append(self)
        return True

    def defer(self) -> bool:
        """Give the leaf a gradient whose memory is filled in when it is read."""
        if self.value is None:
            self.leaf.tj_grad = None
        else:
            self.given = self.leaf.tj_grad = wrap(self.value.form(self, self.value.slot))
            self.given.tj_owner = self
        self.is_deferred = True
        return True

    def read(self, pending: DeferredArray | None) -> None:
        """Materialise: the gradient is being read."""
        self.look()

    def look(self) -> None:
        with self.skipped.lock:
            if self.given is not None:
                self.materialise()
                self.is_deferred = False
                self.skipped.seen.append(self)

    def materialise(self) -> None:
        """Give the gradient its memory, which later calls do not change any more."""
        gradient, value = self.given, self.value
        if gradient is None or value is None:
            return
        array, self.skipped.arrays[value.slot] = self.skipped.arrays[value.slot], None
        gradient.tj_array.become(array)
        gradient.tj_array = array
        del gradient.tj_owner
        by_borrower = self.skipped.written
        writes = self.writes if by_borrower is None else by_borrower[id(self.leaf)]
        if writes:
            gradient.tj_versions = [writes]
        self.given = None

    def count(self, calls: int) -> None:
        raise AssertionError("a gradient can always be deferred")
