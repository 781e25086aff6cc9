"""Functionalise a segment: turn its entries into an SSA graph, in which writes to memory become new values, written back at the
end.

Each memory has a root (the slot that shows all of it) and a current value. An in-place op defines a new value: its own result
if it writes the whole memory, else a `view_scatter` into it. A view is taken from the current value of its memory when it is
read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...eager.arrays import dtypes
from ...eager.arrays.deferred import form
from ...eager.arrays.devices import device
from ...eager.core.cast import CAST
from ...eager.core.dispatch import STORE
from ...eager.core.op import Op
from ...eager.core.shape_inference import infer
from ...eager.ops.shape.views import CLONE, VIEW_SCATTER
from ..trace.queries import calls_between, values_used, written_roots
from ..trace.trace import Call, Number, Trace
from .ir import Chain, Form, Graph, GraphError, Input, Node, Operand, Output, WriteBack, as_spec, described, verified


def graph_of(trace: Trace, start: int, stop: int, outputs: Iterable[int]) -> Graph:
    """Build the graph of some entries; its outputs are the wanted slots that these entries produce."""
    builder = GraphBuilder(trace, start, stop)
    for call in calls_between(trace, start, stop):
        builder.add(call)
    return verified(builder.finished(outputs))


class GraphBuilder:
    """Builder that tracks, entry by entry, the current value of each memory and the views of it."""

    def __init__(self, trace: Trace, start: int, stop: int) -> None:
        self.trace = trace
        self.nodes: list[Node] = []
        self.forms: dict[str, Form] = {}
        self.inputs: dict[int, Input] = {}
        self.numbers: dict[int, Number] = {}
        self.count = 0
        self.current: dict[int, str] = {}  # root of each memory -> name of its current value
        self.version: dict[int, int] = {}  # root of each memory -> number of writes so far
        self.views: dict[int, tuple[int, str]] = {}  # each view -> (version it was taken from, its value)
        self.maker = {v.slot: call for call in calls_between(trace, 0, stop) if call.op.view for v in call.results}
        self.form_of: dict[int, Form] = {}
        for value in trace.values:
            self.form_of.setdefault(value.slot, value.form)
        ops = calls_between(trace, start, stop)
        self.made = {v.slot for call in ops for v in call.results}
        self.roots = self.roots_from_before(ops, written_roots(trace, start, stop))

    def roots_from_before(self, ops: list[Call], written: Iterable[int]) -> set[int]:
        """Return the slots from before the segment that become inputs: the slots used, except that memory which is written
        enters as its root if several slots show it or if elements of one overlap."""
        used: dict[int, set[int]] = {}
        for call in ops:
            for slot in [self.trace.values[n].slot for n in values_used(call)]:
                if slot not in self.made:
                    used.setdefault(self.trace.roots[slot], set()).add(slot)
        for root in used.keys() & set(written):
            if len(used[root]) > 1 or any(overlaps(self.form_of[s]) for s in used[root]):
                used[root] = {root}
        return {s for slots in used.values() for s in slots}

    # ---- memory

    def is_root(self, slot: int) -> bool:
        return slot in self.roots or slot not in self.maker

    def parent(self, slot: int) -> int:
        return self.trace.values[self.maker[slot].inputs[0]].slot

    def root(self, slot: int) -> int:
        while not self.is_root(slot):
            slot = self.parent(slot)
        return slot

    def chain(self, slot: int) -> Chain:
        """Return the view ops that lead from the root to a slot."""
        found: Chain = ()
        while not self.is_root(slot):
            call = self.maker[slot]
            index = [v.slot for v in call.results].index(slot) if call.several else None
            found = ((call.op, call.attrs, index), *found)
            slot = self.parent(slot)
        return found

    def holds(self, root: int) -> str:
        """Return the current value of a memory; memory from before the segment is an input."""
        if root not in self.current:
            found = self.inputs[root] = Input(f"x{len(self.inputs)}", root)
            self.current[root] = found.name
            self.forms[found.name] = self.form_of[root]
        return self.current[root]

    def read(self, slot: int) -> str:
        """Return the current value of a slot: a view is taken again after a write."""
        if self.is_root(slot):
            return self.holds(slot)
        version = self.version.get(self.root(slot), 0)
        known = self.views.get(slot)
        if known is None or known[0] != version:
            call = self.maker[slot]
            names = self.node(call.op, (self.read(self.parent(slot)),), call.attrs, self.result_forms(call), call)
            self.views.update({v.slot: (version, name) for v, name in zip(call.results, names, strict=True)})
        return self.views[slot][1]

    def write(self, slot: int, value: str, call: Call) -> None:
        """Set the current value of a slot."""
        root = self.root(slot)
        before = self.holds(root)
        if slot != root:
            attrs = {"chain": self.chain(slot)}
            (value,) = self.node(VIEW_SCATTER, (before, value), attrs, [self.form_of[root]], call)
        self.current[root] = value
        self.version[root] = self.version.get(root, 0) + 1

    # ---- nodes

    def node(
        self, op: Op, operands: tuple[Operand, ...], attrs: dict[str, Any], forms: list[Form], call: Call, several: bool = False
    ) -> list[str]:
        names = [f"v{self.count + i}" for i in range(len(forms))]
        self.count += len(forms)
        self.forms.update(zip(names, forms, strict=True))
        self.nodes.append(Node(op, operands, attrs, tuple(names), several or (op is call.op and call.several), call.line))
        return names

    def result_forms(self, call: Call) -> list[Form]:
        return [v.form for v in call.results]

    def slot(self, ref: Any) -> int | None:
        return self.trace.values[ref].slot if isinstance(ref, int) else None

    def add(self, call: Call) -> None:
        if call.op.view:
            for value in call.results:
                self.read(value.slot)
            return
        operands: list[Operand] = []
        for x in call.inputs:
            slot = self.slot(x)
            operands.append(x if slot is None else self.read(slot))
            if isinstance(x, Number):
                self.numbers[x.place] = x
        if call.out is not None:
            self.add_in_place(call, tuple(operands), self.trace.values[call.out].slot)
        elif call.op.mutates:
            self.add_update(call, tuple(operands))
        else:
            names = self.node(call.op, tuple(operands), call.attrs, self.result_forms(call), call)
            self.current.update({v.slot: name for v, name in zip(call.results, names, strict=True)})

    def add_in_place(self, call: Call, operands: tuple[Operand, ...], slot: int) -> None:
        """Add an op that writes into a slot: its result, converted if necessary, becomes the current value of the slot."""
        target, whole = self.form_of[slot], self.is_root(slot)
        if call.op is STORE:
            value, found, fresh = operands[0], self.forms[operands[0]], False
        else:
            found = self.inferred(call, operands, target)
            fitting = found.dtype == target.dtype and whole
            (value,), fresh = self.node(call.op, operands, call.attrs, [target if fitting else found], call), True
        if found.shape != target.shape:
            raise GraphError(f"[compile] {call.op.name} at {call.line} writes a tensor of another shape")
        if found.dtype != target.dtype:
            attrs = {"dtype": dtypes.from_numpy(target.dtype), "source": dtypes.from_numpy(found.dtype)}
            kind = target if whole else contiguous(target.shape, target.dtype, target.where)
            (value,), fresh = self.node(CAST, (value,), attrs, [kind], call), True
        if whole and not fresh:
            (value,) = self.node(CLONE, (value,), {}, [target], call)
        self.write(slot, value, call)

    def inferred(self, call: Call, operands: tuple[Operand, ...], target: Form) -> Form:
        """Infer the form of an op's result before it is stored in its target."""
        try:
            (spec,) = infer(call.op, tuple(as_spec(x, self.forms) for x in operands), call.attrs)
        except Exception:  # a kernel that rejects zeros
            return contiguous(target.shape, target.dtype, target.where)
        return contiguous(spec.shape, spec.dtype.numpy, target.where)

    def add_update(self, call: Call, operands: tuple[Operand, ...]) -> None:
        slots = [self.slot(x) for x in call.inputs]
        roots = [None if s is None else self.root(s) for s in slots]
        written = [i for i in call.op.mutates if slots[i] is not None]
        for i in written:
            if roots.count(roots[i]) > 1:
                raise GraphError(f"[compile] {call.op.name} at {call.line} writes memory that another of its inputs shares")
        forms = [self.form_of[slots[i]] for i in written]  # type: ignore[index]
        names = self.node(call.op, operands, call.attrs, forms, call, several=len(written) != 1)
        for i, name in zip(written, names, strict=True):
            self.write(slots[i], name, call)  # type: ignore[arg-type]

    def finished(self, outputs: Iterable[int]) -> Graph:
        found = []
        for slot in sorted(set(outputs) & self.made):
            root = self.root(slot)
            value = self.holds(root)
            found.append(Output(slot, self.inputs[root].name if root in self.inputs else value, self.chain(slot)))
        for x in self.inputs.values():
            if self.version.get(x.slot) and overlaps(self.form_of[x.slot]):
                raise GraphError(
                    f"[compile] {x.name}, {described(self.forms[x.name])}, is written, and its elements share memory"
                )
        back = tuple(WriteBack(x, self.current[x.slot]) for x in self.inputs.values() if self.version.get(x.slot))
        numbers = tuple(n for _, n in sorted(self.numbers.items()))
        return Graph(tuple(self.inputs.values()), numbers, tuple(self.nodes), tuple(found), back, self.forms)


def overlaps(form: Form) -> bool:
    """True if elements of an array may share memory, as those of an expanded one do."""
    reach = form.itemsize  # extent of the dims with smaller strides
    for step, n in sorted((abs(s), n) for s, n in zip(form.strides, form.shape, strict=True) if n > 1):
        if step < reach:
            return form.size > 0
        reach += step * (n - 1)
    return False


def contiguous(shape: tuple[int, ...], dtype: np.dtype[Any], where: device) -> Form:
    strides, step = [], dtype.itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return form(shape, dtype, tuple(reversed(strides)), where)
