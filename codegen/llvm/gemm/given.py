"""What is computed around a product finds its memory and numbers here: a kernel's pointers are those of the two operands, then
those of buffers, then those of numbers. What does not change at all is computed once, at the beginning of each function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...ir.expr import Expr
from ...ir.index import Var
from ..ir.builder import Function
from ..loops.expr_emitter import Emitter, Scope

OPERANDS = 2


class Given:
    """The memory and the numbers that some expressions are made of, in the functions of a kernel."""

    def __init__(self, exprs: Iterable[Expr], buffers: list[str], numbers: list[int]) -> None:
        self.exprs = list(exprs)
        self.buffers = buffers
        self.numbers = numbers
        self.known: dict[Function, tuple[Scope, dict[Any, Any]]] = {}  # of each function: what is computed at its beginning

    def emitter(self, f: Function, outer: Var, inner: Var, lanes: int) -> Emitter:
        """An emitter of vectors along the inner loop, with a scope for what is the same in all of the function and one more."""
        pointers = dict(zip(self.buffers, f.params[OPERANDS:], strict=False))
        numbers = dict(zip(self.numbers, f.params[OPERANDS + len(self.buffers) :], strict=False))
        found = Emitter(f, pointers, numbers, outer, inner, inner, lanes)
        found.multiple = 1  # tiles begin where they like
        found.scopes = [self.beginning(f, found)]
        found.scopes += [Scope(found.scopes[0])]
        return found

    def beginning(self, f: Function, emitter: Emitter) -> Scope:
        if f not in self.known:
            lines, f.lines = f.lines, f.entry
            emitter.ready(self.exprs, 0, straight=True)
            f.lines = lines
            self.known[f] = emitter.scopes[0], emitter.bits
        scope, emitter.bits = self.known[f]
        return scope
