"""Where the elements come from that a step reads: its own members, memory, or the definitions of what is computed again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...tracer.graph.ir import Form, Node
from ..ir.expr import Expr, Guard
from ..ir.index import unflattened
from ..lowering.op_lowering import Place, converted, definition_of, dtype_of, truth
from .step import Step, UnfusableError

if TYPE_CHECKING:
    from .fusion import Schedule


class Reading:
    """Reads elements for a step: from its members, from memory, or through definitions."""

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
        """What a reduction adds up, at a row and column; `down` goes down the rows, and there is one for each."""
        assert self.step is not None and self.step.domain is not None
        x, domain = node.operands[0], self.step.domain
        found = self.get(x, unflattened(domain.row if kind == "down" else domain.flat, self.forms[x].shape), ())
        return truth(self.exprs, found) if node.op.name in ("all", "any") else found

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
        if name in schedule.transparent or (name in schedule.repeated and schedule.home.get(name, 0) >= self.number):
            node, which = schedule.maker[name]
            return definition_of(node)(self, node, which, place, guard)
        if name not in schedule.home:
            raise UnfusableError
        if schedule.home[name] >= self.number:
            raise UnfusableError
        buffer, dtype = schedule.backs.get(name, name), dtype_of(self.forms[name])
        if not self.forms[name].size and self.step is not None:  # loops that read it do not run; what is before them does
            return self.exprs.const(converted(0, dtype), dtype)
        return self.exprs.load(buffer, schedule.address(buffer, place), guard, dtype)

    def own(self, name: str, place: Place) -> Expr:
        """A value of the same step, where the loop is."""
        assert self.step is not None and self.step.domain is not None
        member = self.step.members[name]
        if member.kind in ("column", "down") or place != self.step.domain.place(self.forms[name].shape):
            raise UnfusableError
        if member.kind == "total":
            return self.exprs.total(name, dtype_of(self.forms[name]))
        if member.kind == "product":
            return self.exprs.product(dtype_of(self.forms[name]))
        assert member.expr is not None
        return member.expr
