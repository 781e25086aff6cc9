"""Read the elements that a step needs: from its own members, from memory, or by inlining the definitions of others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...tracer.graph.ir import Form, Node
from ..ir.expr import Expr, Guard
from ..ir.index import unflatten_index
from ..lowering.op_lowering import Place, as_bool, convert_scalar, definition_of, dtype_of
from .step import Step, UnfusableError

if TYPE_CHECKING:
    from .fusion import Schedule


class ElementReader:
    """The `Reader` of a step, or of an operand if `step` is None; with `upto`, it sees only the members before that one."""

    def __init__(self, schedule: Schedule, step: Step | None, upto: str | None = None) -> None:
        self.schedule = schedule
        self.step = step
        self.exprs = schedule.exprs
        self.forms: dict[str, Form] = schedule.forms
        self.members: Iterable[str] = ()
        self.number = len(schedule.steps) if step is None else step.number
        if step is not None:
            names = list(step.members)
            self.members = set(names if upto is None else names[: names.index(upto)])

    def define(self, node: Node, which: int, place: Place) -> Expr:
        return definition_of(node)(self, node, which, place, ())

    def input_of(self, node: Node, kind: str) -> Expr:
        """The element that a reduction combines at a row and column; at a row, for kind "down"."""
        assert self.step is not None and self.step.domain is not None
        x, domain = node.operands[0], self.step.domain
        found = self.get(x, unflatten_index(domain.row if kind == "down" else domain.flat, self.forms[x].shape), ())
        return as_bool(self.exprs, found) if node.op.name in ("all", "any") else found

    def get(self, name: str, place: Place, guard: Guard) -> Expr:
        cache = self.step.cache if self.step is not None else {}
        key = (name, tuple(i.key for i in place), tuple((i.key, n) for i, n in guard))
        found = cache.get(key)
        if found is None:
            found = cache[key] = self.read(name, place, guard)
        return found

    def read(self, name: str, place: Place, guard: Guard) -> Expr:
        if name in self.members:
            return self.own(name, place)
        schedule = self.schedule
        if name in schedule.inlined or (name in schedule.materialised and schedule.home_step.get(name, 0) >= self.number):
            node, which = schedule.producer[name]
            return definition_of(node)(self, node, which, place, guard)
        if name not in schedule.home_step:
            raise UnfusableError
        if schedule.home_step[name] >= self.number:
            raise UnfusableError
        buffer, dtype = schedule.write_back_targets.get(name, name), dtype_of(self.forms[name])
        if not self.forms[name].size and self.step is not None:  # the loops do not run, but code before them does
            return self.exprs.const(convert_scalar(0, dtype), dtype)
        return self.exprs.load(buffer, schedule.address(buffer, place), guard, dtype)

    def own(self, name: str, place: Place) -> Expr:
        """A member of the same step, at the place where the loop is. UnfusableError for any other place."""
        assert self.step is not None and self.step.domain is not None
        member = self.step.members[name]
        if member.kind in ("column", "down") or place != self.step.domain.place(self.forms[name].shape):
            raise UnfusableError
        if member.kind == "total":
            return self.exprs.total(name, dtype_of(self.forms[name]))
        if member.kind == "matmul":
            return self.exprs.matmul(dtype_of(self.forms[name]))
        assert member.expr is not None
        return member.expr
