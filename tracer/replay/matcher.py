"""Match op calls against a trace: check the guards on an op's inputs, and create its pending results."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np

from ...eager.arrays.deferred import DeferredArray, resolve_array
from ...eager.arrays.exported_memory import is_exported
from ...eager.core.tape.node import PLACEHOLDER_NODE, State, _numbers, edge_of
from ...eager.core.tensor import Tensor, versions_of, wrap
from ..guards.tensor_guards import has_form
from ..trace.trace import Alias, Call, Constant, NewInput, Number, Trace, Value, same_setting
from .bailout import Bailout


class Matcher(Bailout):
    """Mixin of `Replayer` that tracks the next entry."""

    def __init__(self, state: State, trace: Trace, function: Any) -> None:
        self.state = state
        self.trace = trace
        self.function = function  # the compiled function: holds the other paths, and is notified of divergences
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
            self.held[value.index] = t.tj_array
            if value.requires_grad:
                t.tj_requires_grad = True
                t.tj_node = PLACEHOLDER_NODE
            if value.inference:
                t.tj_inference = True
            if value.view is not None:
                self.link(t, value)
        return t  # type: ignore[no-any-return]

    def link(self, t: Tensor, value: Value) -> None:
        """Set the base of a view."""
        assert value.view is not None
        n, step, without_grad = value.view
        while self.tensors[n] is None:
            n = self.moved[n]
        x = self.tensors[n]
        base = x if x.tj_base is None else x.tj_base
        t.tj_base, t.tj_view_chain, t.tj_made_without_grad = (
            base,
            (*x.tj_view_chain, step),
            without_grad or x.tj_made_without_grad,
        )
        t.tj_rebased = base.tj_rebased
        t.tj_versions = versions_of(base)

    def move(self, cursor: int) -> None:
        """Move the cursor: the next op is compared with this entry."""
        self.cursor = cursor
        if self.state.autocast is None and self.state.handler is not None:
            self.state.handler = MethodType(self.trace.steps[cursor], self)

    def matches(self, entry: Call, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Tensor | None) -> bool:
        """True if an op's inputs match the recorded guards. Tensors seen for the first time are bound to their values."""
        if self.state.grad is not entry.grad or (attrs is not entry.attrs and not same_setting(attrs, entry.attrs)):
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
                return x is self.tensors[want] and x.tj_requires_grad is flag and self.unchanged(want)
            return x is self.tensors[want] and x.tj_array is self.held[want] and x.tj_requires_grad is flag
        if kind is Number:
            if x.__class__ is want.type:
                self.scalars[want.place] = x
                return True
            return False
        return want.is_(x) if kind is Constant else self.bind(want, x)  # type: ignore[no-any-return]

    def bind(self, want: Any, x: Any) -> bool:
        """Bind a tensor seen for the first time to its value, if it has the recorded form."""
        if not isinstance(x, Tensor):
            return False
        array = x.tj_array
        if type(array) is np.ndarray and want.__class__ is NewInput and want.plain is not None:  # fast path
            n, slot, shape, dtype, strides, flag = want.plain
            box = x.tj_versions
            if (
                array.dtype is dtype
                and array.shape == shape
                and array.strides == strides
                and x.tj_requires_grad is flag
                and x.tj_node is None
                and x.tj_inference is False
                and (box is None or len(box) == 1 or not is_exported(box))
                and (i := id(x)) not in self.number
                and (j := id(array)) not in self.slots
            ):
                self.number[i] = n
                self.slots[j] = slot
                self.tensors[n] = x
                self.held[n] = self.arrays[slot] = array
                return True
        value = want.value
        if x.tj_requires_grad is not value.requires_grad or x.tj_inference is not value.inference:
            return False
        if isinstance(array, DeferredArray) and array.frame is not self:
            array = x.tj_array = resolve_array(array)
        known = self.number.get(id(x))
        if known is not None and known >= value.index:
            known = None  # left over from an attempt to match another path
        if known is not None and self.held[known] is array:
            return False  # the entry should have referred to it by its index
        if want.__class__ is Alias:
            place = array.slot if isinstance(array, DeferredArray) else self.slots.get(id(array))
            owner = self.trace.owners.get(value.slot)
            if place != value.slot or (owner in self.copies and not self.unchanged(owner)):
                return False
            if owner is not None and self.has_own_counter(x, owner) is not value.own_version_counter:
                return False
        else:
            if isinstance(array, DeferredArray) or self.slots.get(id(array), value.slot) != value.slot:
                return False
            if (x.tj_node is not None) is not value.tracked or not has_form(array, value.form):
                return False
            self.arrays[value.slot] = array
            if is_exported(x.tj_versions):  # other code may write it before the program runs
                if value.slot not in self.trace.shared:
                    return False
                self.copies[value.index] = self.arrays[value.slot] = copied(array)
            self.slots[id(array)] = value.slot
            if x.tj_node is not None:
                self.outer_nodes[value.index] = edge_of(x)
        if known is not None:
            self.tensors[known] = None  # it shows another array now
            self.moved[known] = value.index
        self.number[id(x)] = value.index
        self.tensors[value.index] = x
        self.held[value.index] = None if value.index in self.copies else array
        return True

    def has_own_counter(self, x: Tensor, owner: int) -> bool:
        """True if a tensor on the memory of another one from outside does not share its version counter."""
        t = self.tensors[owner]
        return t is None or x.tj_versions is None or x.tj_versions is not t.tj_versions

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


def copied(array: Any) -> Any:
    """Copy an array with the same strides."""
    low, high = np.lib.array_utils.byte_bounds(array)
    memory = np.empty(high - low, np.uint8)
    found = np.ndarray(array.shape, array.dtype, memory, array.ctypes.data - low, array.strides)
    found[...] = array
    return found
