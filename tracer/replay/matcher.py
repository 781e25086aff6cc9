"""Comparing what Python does with a recording: whether an op's inputs are what was recorded, and what it promises then."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np

from ...eager.arrays.devices import device_of
from ...eager.arrays.exported_memory import exposed
from ...eager.arrays.deferred import Pending, resolved
from ...eager.core.tape.node import PENDING, State, _numbers, edge_of
from ...eager.core.tensor import Tensor, versions_of, wrap
from .bailout import Fallback
from ..trace.trace import Alias, Call, Constant, First, Number, Trace, Value, alike


class Matching(Fallback):
    """The part of a replayer that knows what comes next."""

    def __init__(self, state: State, trace: Trace, function: Any) -> None:
        self.state = state
        self.trace = trace
        self.function = function  # the compiled function: its other paths, and whom to tell about divergences
        self.entries = trace.entries
        self.cursor = self.start = 0
        self.tensors = [None] * len(trace.values)
        self.held = [None] * len(trace.values)
        self.arrays = [None] * len(trace.roots)
        self.scalars = [None] * trace.numbers
        self.number = {}
        self.slots = {}
        self.moved = {}
        self.earlier = {}
        self.copies = {}
        self.used = []
        self.hidden = []
        self.outer_nodes = {}
        self.made = {}
        self.boxes = {}
        self.foreign = []
        self.brought = 0
        self.begin = next(_numbers)

    def promised(self, value: Value) -> Tensor:
        t = self.tensors[value.index]
        if t is None:
            t = self.tensors[value.index] = wrap(value.form(self, value.slot))
            self.held[value.index] = t._array
            if value.requires_grad:
                t._requires_grad = True
                t._node = PENDING
            if value.inference:
                t._inference = True
            if value.view is not None:
                self.link(t, value)
        return t  # type: ignore[no-any-return]

    def link(self, t: Tensor, value: Value) -> None:
        """Tell a view what it is a view of."""
        assert value.view is not None
        n, step, without_grad = value.view
        while self.tensors[n] is None:
            n = self.moved[n]
        x = self.tensors[n]
        base = x if x._base is None else x._base
        t._base, t._chain, t._made_without_grad = base, (*x._chain, step), without_grad or x._made_without_grad
        t._rebased = base._rebased
        t._versions = versions_of(base)

    def move(self, cursor: int) -> None:
        """The next op is compared with this entry."""
        self.cursor = cursor
        if self.state.autocast is None and self.state.handler is not None:
            self.state.handler = MethodType(self.trace.steps[cursor], self)

    def matches(self, entry: Call, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> bool:
        """Whether an op's inputs are what was recorded. Tensors that appear for the first time get their numbers."""
        if self.state.grad is not entry.grad or (attrs is not entry.attrs and not alike(attrs, entry.attrs)):
            return False
        given = inputs if out is None else (*inputs, out)
        if len(given) != len(entry.wants) or (out is None) is not (entry.out is None):
            return False
        for x, want, flag in zip(given, entry.wants, entry.flags, strict=True):
            if not self.fits(want, x, flag):
                return False
        return entry.check is None or entry.check.settled(self, inputs, attrs)

    def fits(self, want: Any, x: Any, flag: Any) -> bool:
        kind = want.__class__
        if kind is int:
            if want in self.copies:
                return x is self.tensors[want] and x._requires_grad is flag and self.unchanged(want)
            return x is self.tensors[want] and x._array is self.held[want] and x._requires_grad is flag
        if kind is Number:
            if x.__class__ is want.type:
                self.scalars[want.place] = x
                return True
            return False
        return want.is_(x) if kind is Constant else self.bind(want, x)  # type: ignore[no-any-return]

    def bind(self, want: Any, x: Any) -> bool:
        """Give a tensor that appears for the first time its number, if it is of the recorded form."""
        if not isinstance(x, Tensor):
            return False
        array = x._array
        if type(array) is np.ndarray and want.__class__ is First and want.plain is not None:  # the usual case at once
            n, slot, shape, dtype, strides, flag = want.plain
            box = x._versions
            if (
                array.dtype is dtype
                and array.shape == shape
                and array.strides == strides
                and x._requires_grad is flag
                and x._node is None
                and (box is None or len(box) == 1 or not exposed(box))
                and (i := id(x)) not in self.number
                and (j := id(array)) not in self.slots
            ):
                self.number[i] = n
                self.slots[j] = slot
                self.tensors[n] = x
                self.held[n] = self.arrays[slot] = array
                return True
        value = want.value
        if x._requires_grad is not value.requires_grad:
            return False
        if isinstance(array, Pending) and array.frame is not self:
            array = x._array = resolved(array)
        known = self.number.get(id(x))
        if known is not None and known >= value.index:
            known = None  # from an attempt to compare with another path
        if known is not None and self.held[known] is array:
            return False  # it should have been named by its number
        if want.__class__ is Alias:
            place = array.slot if isinstance(array, Pending) else self.slots.get(id(array))
            owner = self.trace.owners.get(value.slot)
            if place != value.slot or (owner in self.copies and not self.unchanged(owner)):
                return False
        else:
            if isinstance(array, Pending) or self.slots.get(id(array), value.slot) != value.slot:
                return False
            if (x._node is not None) is not value.tracked or not has_form(array, value.form):
                return False
            self.arrays[value.slot] = array
            if exposed(x._versions):  # somebody may write it before the program runs
                if value.slot not in self.trace.shared:
                    return False
                self.copies[value.index] = self.arrays[value.slot] = copied(array)
            self.slots[id(array)] = value.slot
            if x._node is not None:
                self.outer_nodes[value.index] = edge_of(x)
        if known is not None:
            self.tensors[known] = None  # it shows another array now
            self.moved[known] = value.index
        self.number[id(x)] = value.index
        self.tensors[value.index] = x
        self.held[value.index] = None if value.index in self.copies else array
        return True

    def versions(self, slot: int) -> list[int]:
        root = self.trace.roots[slot]
        owner = self.trace.owners.get(root)
        t = None if owner is None else self.tensors[owner]
        return versions_of(t) if t is not None else super().versions(slot)

    def owner(self, slot: int) -> int | None:
        return self.trace.owners.get(slot)

    def hidden_views(self, array: Any) -> int:
        kept = [v for node in self.used for v in node.saved.values() if type(v) is tuple and v]
        return sum(part[0] is array for v in kept for part in (v if type(v[0]) is tuple else (v,)) if type(part) is tuple)


def has_form(array: Any, form: type[Pending]) -> bool:
    if array.shape != form.shape or array.dtype is not form.dtype or array.strides != form.strides:
        return False
    return type(array) is np.ndarray if form.where.type == "cpu" else device_of(array) == form.where


def copied(array: Any) -> Any:
    """A copy with the same strides."""
    low, high = np.lib.array_utils.byte_bounds(array)
    memory = np.empty(high - low, np.uint8)
    found = np.ndarray(array.shape, array.dtype, memory, array.ctypes.data - low, array.strides)
    found[...] = array
    return found
