"""The statements and expressions of a function that is being proved: see `proof.py`."""

from __future__ import annotations

import ast
import builtins
import functools
import operator
import types
from collections.abc import Callable
from typing import Any

from ...eager.core.tape.grad_mode import enable_grad, no_grad
from ...eager.nn.modules.container import ModuleList
from ...eager.core.tensor import Tensor
from .prover import Prover
from ..guards.name_guards import ABSENT
from .verified_source import Definition, UnprovedError
from .abstract_values import MADE, Fields, Items, Known, Unknown, is_made, is_plain, joined, may_be_tensor

LONGEST = 100  # rounds of a loop that are gone through one by one
ARITHMETIC: dict[type[ast.AST], tuple[str, Callable[..., Any]]] = {
    ast.Add: ("__add__", operator.add), ast.Sub: ("__sub__", operator.sub), ast.Mult: ("__mul__", operator.mul),
    ast.Div: ("__truediv__", operator.truediv), ast.FloorDiv: ("__floordiv__", operator.floordiv),
    ast.Mod: ("__mod__", operator.mod), ast.Pow: ("__pow__", operator.pow), ast.MatMult: ("__matmul__", operator.matmul),
    ast.Eq: ("__eq__", operator.eq), ast.NotEq: ("__ne__", operator.ne), ast.Lt: ("__lt__", operator.lt),
    ast.LtE: ("__le__", operator.le), ast.Gt: ("__gt__", operator.gt), ast.GtE: ("__ge__", operator.ge),
    ast.USub: ("__neg__", operator.neg), ast.UAdd: ("__pos__", operator.pos),
}  # fmt: skip


class Body:
    """Goes through a function."""

    def __init__(self, prover: Prover, function: types.FunctionType, variables: dict[str, Any]) -> None:
        self.prover = prover
        self.guards = prover.guards
        self.function = function
        self.variables = variables
        code = function.__code__
        self.local = {*code.co_varnames, *code.co_cellvars}
        self.cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self.returned: list[Any] = []

    def run(self, node: Definition) -> Any:
        """What the function returns."""
        if isinstance(node, ast.Lambda):
            return self.value(node.body)
        if not self.block(node.body):
            self.returned.append(Known(None))
        return functools.reduce(joined, self.returned, self.returned[0] if self.returned else Known(None))

    # ---- statements

    def block(self, statements: list[ast.stmt]) -> bool:
        """Whether it never goes on after them."""
        return any(self.statement(s) for s in statements)

    def statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Expr(value):
                self.value(value)
            case ast.Assign(targets, value):
                found = self.value(value)
                for target in targets:
                    self.assign(target, found)
            case ast.AnnAssign(target, _, value) if value is not None:
                self.assign(target, self.value(value))
            case ast.AugAssign(target, _, value):
                self.augment(target, self.value(value))
            case ast.Return(value):
                self.returned.append(Known(None) if value is None else self.value(value))
                return True
            case ast.If(test, body, orelse):
                return self.branches(test, body, orelse)
            case ast.For(target, source, body, []):
                self.loop(target, self.prover.parts(self.value(source)), body)
            case ast.With(items, body):
                for item in items:
                    self.context(item)
                return self.block(body)
            case ast.Assert(test):
                self.value(test)
            case ast.Raise():
                return True  # not in the call that was recorded, and so in none that is like it
            case ast.Pass():
                pass
            case _:
                raise UnprovedError(f"there is a {type(node).__name__.lower()} statement in line {node.lineno}")
        return False

    def branches(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> bool:
        condition = self.value(test)
        if isinstance(condition, Known) and is_plain(condition.what):
            return self.block(body if condition.what else orelse)
        if not is_made(condition):
            raise UnprovedError(f"line {test.lineno} depends on an object")
        before = dict(self.variables)
        first = self.block(body)
        after, self.variables = self.variables, before
        second = self.block(orelse)
        if second:
            self.variables = after
        elif not first:
            self.variables = merged(self.variables, after)
        return first and second

    def loop(self, target: ast.expr, parts: list[Any] | None, body: list[ast.stmt]) -> None:
        """Each round if their number is known; else twice, with variables that may be of any round."""
        if parts is not None and len(parts) <= LONGEST:
            for part in parts:
                self.assign(target, part)
                self.block(body)
            return
        element = MADE if parts is None else functools.reduce(joined, parts)
        for _ in range(2):
            before = dict(self.variables)
            self.assign(target, element)
            self.block(body)
            for name, value in merged(self.variables, before).items():
                changed = before.get(name) is not self.variables.get(name)
                self.variables[name] = value if not changed else MADE if is_made(value) else Unknown()
        if any(isinstance(v, Items) and v.own and not v.exact and not is_made(v) for v in self.variables.values()):
            raise UnprovedError("it collects objects in a loop")

    def context(self, item: ast.withitem) -> None:
        call = item.context_expr
        if isinstance(call, ast.Call) and not call.args and not call.keywords and item.optional_vars is None:
            cls = self.value(call.func)
            if isinstance(cls, Known) and (cls.what is no_grad or cls.what is enable_grad):
                return
        raise UnprovedError(f"line {call.lineno} enters a context")

    # ---- variables

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(name):
                if name not in self.local:
                    raise UnprovedError(f"it sets {name}, which is not its own")
                self.variables[name] = value
            case ast.Tuple(parts) | ast.List(parts):
                for part, v in zip(parts, self.unpacked(value, len(parts)), strict=True):
                    self.assign(part, v)
            case ast.Attribute(of, "grad") if isinstance(value, Known) and value.what is None:
                self.only_tensors(self.value(of), target)
                self.guards.attribute(Tensor, "grad")
            case ast.Subscript(of, index):
                self.only_tensors(self.value(of), target)
                self.guards.attribute(Tensor, "__setitem__")
                self.either([self.value(index), value])
            case _:
                raise UnprovedError(f"line {target.lineno} writes to something that is not its own")

    def only_tensors(self, value: Any, target: ast.expr) -> None:
        if not may_be_tensor(value):
            raise UnprovedError(f"line {target.lineno} writes to something that is not its own")

    def unpacked(self, value: Any, count: int) -> list[Any]:
        if isinstance(value, Items) and value.exact and len(value.parts) == count:
            return value.parts
        self.either([value])
        return [MADE] * count

    def augment(self, target: ast.expr, value: Any) -> None:
        self.either([self.value(target), value])
        if isinstance(target, ast.Subscript):
            self.only_tensors(self.value(target.value), target)
        elif isinstance(target, ast.Name) and not isinstance(self.value(target), Items):
            self.assign(target, MADE)
        else:
            raise UnprovedError(f"line {target.lineno} writes to something that is not its own")

    # ---- expressions

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(what):
                return Known(what)
            case ast.Name(name):
                return self.named(name)
            case ast.Attribute(of, name):
                return self.prover.attribute(self.value(of), name)
            case ast.Call():
                return self.call(node)
            case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]):
                return self.computed(op, [self.value(left), self.value(right)])
            case ast.UnaryOp(op, operand):
                return self.computed(op, [self.value(operand)])
            case ast.BoolOp(_, values):
                return self.either([self.value(v) for v in values])
            case ast.IfExp(test, body, orelse):
                return self.choice(self.value(test), body, orelse)
            case ast.Tuple(parts) | ast.List(parts):
                return Items([p for part in parts for p in self.spread(part)], own=isinstance(node, ast.List))
            case ast.Dict(keys, values) if all(isinstance(k, ast.Constant) and type(k.value) is str for k in keys):
                return Fields({k.value: self.value(v) for k, v in zip(keys, values, strict=True)})  # type: ignore[union-attr]
            case ast.Subscript(of, index):
                return self.element(self.value(of), self.value(index))
            case ast.Slice(lower, upper, step):
                return self.either([self.value(x) for x in (lower, upper, step) if x is not None])
            case ast.ListComp(element, [part]) | ast.GeneratorExp(element, [part]):
                return self.comprehension(element, part)
            case _:
                raise UnprovedError(f"there is a {type(node).__name__.lower()} in line {node.lineno}")

    def named(self, name: str) -> Any:
        if name in self.variables:
            return self.variables[name]
        if name in self.local:
            raise UnprovedError(f"{name} may have no value")
        if name in self.cells:
            return Known(self.guards.cell(self.cells[name]))
        held = self.guards.element(self.function.__globals__, name)
        if held is not ABSENT:
            return Known(held)
        if not hasattr(builtins, name):
            raise UnprovedError(f"{name} is not defined")
        return Known(self.guards.attribute(builtins, name))

    def spread(self, node: ast.expr) -> list[Any]:
        """An expression in a list or among arguments, which may stand for several."""
        if not isinstance(node, ast.Starred):
            return [self.value(node)]
        source = self.value(node.value)
        parts = self.prover.parts(source)
        if parts is None or (isinstance(source, Items) and not source.exact):
            raise UnprovedError(f"line {node.lineno} takes apart what ops have made")
        return parts

    def call(self, node: ast.Call) -> Any:
        function = self.value(node.func)
        args = [a for arg in node.args for a in self.spread(arg)]
        if any(k.arg is None for k in node.keywords):
            raise UnprovedError(f"line {node.lineno} takes a dict apart")
        return self.prover.call(function, args, {str(k.arg): self.value(k.value) for k in node.keywords})

    def computed(self, op: ast.AST, values: list[Any]) -> Any:
        """Arithmetic and comparisons; of numbers that are known, the result is."""
        known = [v.what for v in values if isinstance(v, Known)]
        if isinstance(op, (ast.Is, ast.IsNot)) and len(known) == 2:
            return Known((known[0] is known[1]) is isinstance(op, ast.Is))
        if isinstance(op, ast.Not) and known and is_plain(known[0]):
            return Known(not known[0])
        name, function = ARITHMETIC.get(type(op), ("", None))
        if function is not None and len(known) == len(values) and all(map(is_plain, known)):
            try:
                return Known(function(*known))
            except (ArithmeticError, TypeError, ValueError) as reason:
                raise UnprovedError(str(reason)) from None
        if name:
            self.guards.attribute(Tensor, name)
        return self.either(values)

    def either(self, values: list[Any]) -> Any:
        """What is made of tensors and numbers."""
        if not all(map(is_made, values)):
            raise UnprovedError("it computes with objects")
        return MADE

    def choice(self, condition: Any, body: ast.expr, orelse: ast.expr) -> Any:
        if isinstance(condition, Known) and is_plain(condition.what):
            return self.value(body if condition.what else orelse)
        self.either([condition])
        return joined(self.value(body), self.value(orelse))

    def element(self, of: Any, index: Any) -> Any:
        known = index.what if isinstance(index, Known) else None
        if isinstance(of, Fields):
            if known in of.parts:
                return of.parts[known]
            raise UnprovedError("it looks for what is not there")
        if isinstance(of, Known) and type(of.what) in (list, dict, tuple) and type(known) in (int, str):
            if type(of.what) is not tuple:
                self.guards.container(of.what)
            try:
                return Known(of.what[known])
            except (LookupError, TypeError) as reason:
                raise UnprovedError(str(reason)) from None
        if isinstance(known, int):
            parts: list[Any] = []
            if isinstance(of, Known) and type(of.what) is ModuleList:
                parts += self.prover.children(of.what)
            elif isinstance(of, Items) and of.exact:
                parts += of.parts
            if -len(parts) <= known < len(parts):
                return parts[known]
        self.guards.attribute(Tensor, "__getitem__")
        return self.either([of, index])

    def comprehension(self, element: ast.expr, part: ast.comprehension) -> Any:
        """Its variables are its own."""
        if part.is_async:
            raise UnprovedError("it waits for others")
        parts = self.prover.parts(self.value(part.iter))
        before, local = dict(self.variables), self.local
        self.local = local | {n.id for n in ast.walk(part.target) if isinstance(n, ast.Name)}
        found = []
        for value in [MADE] if parts is None else parts:
            self.assign(part.target, value)
            for test in part.ifs:
                self.either([self.value(test)])
            found.append(self.value(element))
        self.variables, self.local = before, local
        return Items(found, exact=parts is not None and not part.ifs, own=True)


def merged(mine: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Variables that are those of one way or of another."""
    both = {n: joined(mine[n], other[n]) for n in mine.keys() & other.keys()}
    return {**other, **mine, **both}
