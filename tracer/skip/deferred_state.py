"""What a step leaves behind without doing it: each thing is *lent*, and is settled when somebody looks at it.

A step that nobody watches need not tell each parameter that its memory was written, nor give each leaf a gradient, at each
call. The tensor holds a `Pending` instead; whoever looks makes it real, with all the calls counted that there were since. That
costs those who look, once for each thing they look at, and a call that follows lends it again.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ...eager.arrays.deferred import Pending
from ...eager.core.tensor import Tensor, versions_of, wrap
from ..replay.matcher import has_form
from ..trace.trace import Value


def box_count(t: Tensor) -> int:
    """How often a tensor's version counter is referred to."""
    return sys.getrefcount(t._versions)


def _lone_box() -> int:
    t = wrap(np.empty(1))
    t._versions = [0]
    return box_count(t)


LONE_BOX = _lone_box()


class Captured:
    """A tensor that a pure function has from elsewhere than its arguments; or the gradient of one."""

    __slots__ = ("leaf", "pending", "pure", "since", "tensor", "value", "writes")

    def __init__(self, pure: Any, value: Value, tensor: Tensor, leaf: Tensor | None) -> None:
        self.pure = pure
        self.value = value
        self.tensor = tensor
        self.leaf = leaf  # of a gradient: whose it is
        self.writes = 0  # how often a call writes it
        self.since = 0  # the number of calls when it was lent
        self.pending: Pending | None = None

    def find(self) -> bool:
        """Whether there is a tensor as there was."""
        if self.leaf is not None:
            if self.leaf._grad is None:
                return False
            self.tensor = self.leaf._grad
        t, value = self.tensor, self.value
        if t._requires_grad is not value.requires_grad or (t._node is not None) is not value.tracked:
            return False
        if t._hooks or t._after_accumulate or (t._base is not None and t._rebased != t._base._rebased):
            return False
        return not isinstance(t._array, Pending) and has_form(t._array, value.form)

    def still(self) -> bool:
        """The same while it may be lent: whether it is the tensor that it was."""
        t, value = self.tensor, self.value
        if self.leaf is not None and self.leaf._grad is not t:
            return False
        if t._requires_grad is not value.requires_grad or (t._node is not None) is not value.tracked:
            return False
        if t._hooks or t._after_accumulate or (t._base is not None and t._rebased != t._base._rebased):
            return False
        return t._array is (self.pure.arrays[value.slot] if self.pending is None else self.pending)

    def lend(self) -> bool:
        """Hide the memory, so that who looks at it or at its version asks for it. False if others have the version counter."""
        t = self.tensor
        if t._versions is not None and box_count(t) > LONE_BOX:
            return False
        self.pending = t._array = self.value.form(self, self.value.slot)
        self.since = self.pure.count
        return True

    def read(self, pending: Pending) -> None:
        """Somebody looks."""
        with self.pure.lock:
            if self.pending is not None:
                self.settle()
                self.pure.seen.append(self)

    def settle(self) -> None:
        """The tensor shows its memory again, unless it shows another by now."""
        pending, t = self.pending, self.tensor
        if pending is None:
            return
        array = self.pure.arrays[self.value.slot]
        pending.become(array)
        self.pending = None
        if t._array is pending:
            t._array = array
            self.count(self.pure.count - self.since)

    def count(self, calls: int) -> None:
        versions_of(self.tensor)[0] += self.writes * calls


class Kept:
    """What becomes of a leaf's gradient."""

    __slots__ = ("away", "given", "leaf", "pure", "required", "value", "writes")

    def __init__(self, pure: Any, leaf: Tensor, required: bool, value: Value | None) -> None:
        self.pure = pure
        self.leaf = leaf
        self.required = required  # there must be none before
        self.value = value  # what it is afterwards; None for none
        self.writes = 0  # how often it is written after it is made
        self.given: Tensor | None = None
        self.away = False  # it is not among what has to be done at the next call

    def fits(self) -> bool:
        """Whether the leaf is as it was."""
        leaf = self.leaf
        return not (leaf._hooks or leaf._after_accumulate or (self.required and leaf._grad is not None))

    def still(self) -> bool:
        """The same while it may be lent. A gradient that somebody has set or dropped is given again at the next call."""
        leaf = self.leaf
        if leaf._hooks or leaf._after_accumulate:
            return False
        if leaf._grad is not self.given:
            if self.required:
                return False
            if self.away:
                self.settle()
                self.away = False
                self.pure.seen.append(self)
        return True

    def lend(self) -> bool:
        """Give the leaf a gradient that is filled in when somebody looks."""
        if self.value is None:
            self.leaf._grad = None
        else:
            self.given = self.leaf._grad = wrap(self.value.form(self, self.value.slot))
            self.given._lender = self
        self.away = True
        return True

    def read(self, pending: Pending) -> None:
        """Somebody looks."""
        self.look()

    def look(self) -> None:
        with self.pure.lock:
            if self.given is not None:
                self.settle()
                self.away = False
                self.pure.seen.append(self)

    def settle(self) -> None:
        """The gradient is there, and no later call will change it."""
        gradient, value = self.given, self.value
        if gradient is None or value is None:
            return
        array, self.pure.arrays[value.slot] = self.pure.arrays[value.slot], None
        gradient._array.become(array)
        gradient._array = array
        del gradient._lender
        by_guest = self.pure.written
        writes = self.writes if by_guest is None else by_guest[id(self.leaf)]
        if writes:
            gradient._versions = [writes]
        self.given = None

    def count(self, calls: int) -> None:
        raise AssertionError("a gradient can always be lent")
