"""The statements and expressions of a function that is being proved: see `prover.py`."""

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
from ..guards.name_guards import ABSENT
from .abstract_values import (
    OP_RESULT,
    DictValue,
    KnownObject,
    SequenceValue,
    UnknownValue,
    is_op_input,
    is_plain,
    join,
    may_be_tensor,
)
from .prover import Prover
from .verified_source import Definition, UnprovedError

MAX_UNROLLED_ITERATIONS = 100  # rounds of a loop that are gone through one by one
ARITHMETIC: dict[type[ast.AST], tuple[str, Callable[..., Any]]] = {
    ast.Add: ("__add__", operator.add), ast.Sub: ("__sub__", operator.sub), ast.Mult: ("__mul__", operator.mul),
    ast.Div: ("__truediv__", operator.truediv), ast.FloorDiv: ("__floordiv__", operator.floordiv),
    ast.Mod: ("__mod__", operator.mod), ast.Pow: ("__pow__", operator.pow), ast.MatMult: ("__matmul__", operator.matmul),
    ast.Eq: ("__eq__", operator.eq), ast.NotEq: ("__ne__", operator.ne), ast.Lt: ("__lt__", operator.lt),
    ast.LtE: ("__le__", operator.le), ast.Gt: ("__gt__", operator.gt), ast.GtE: ("__ge__", operator.ge),
    ast.BitAnd: ("__and__", operator.and_), ast.BitOr: ("__or__", operator.or_), ast.BitXor: ("__xor__", operator.xor),
    ast.LShift: ("__lshift__", operator.lshift), ast.RShift: ("__rshift__", operator.rshift),
    ast.USub: ("__neg__", operator.neg), ast.UAdd: ("__pos__", operator.pos), ast.Invert: ("__invert__", operator.invert),
}  # fmt: skip
# Methods that Python may call instead, on the other operand.
COMPARISONS = {
    "__lt__": "__gt__",
    "__gt__": "__lt__",
    "__le__": "__ge__",
    "__ge__": "__le__",
    "__eq__": "__eq__",
    "__ne__": "__ne__",
}
UNARY = (ast.USub, ast.UAdd, ast.Invert)
REFLECTED = {n: COMPARISONS.get(n, n.replace("__", "__r", 1)) for kind, (n, _) in ARITHMETIC.items() if kind not in UNARY}


class FunctionBody:
    """Abstract evaluation of the body of a user's function: each statement in turn, with what is known of each variable."""

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
        """Evaluate the body, and return the abstract value that the function returns."""
        if isinstance(node, ast.Lambda):
            return self.value(node.body)
        if not self.block(node.body):
            self.returned.append(KnownObject(None))
        return functools.reduce(join, self.returned, self.returned[0] if self.returned else KnownObject(None))

    # ---- statements

    def block(self, statements: list[ast.stmt]) -> bool:
        """Go through statements; True if control never passes their end."""
        return any(self.located(s) for s in statements)

    def located(self, node: ast.stmt) -> bool:
        """Go through a statement; its line is noted in an error."""
        try:
            return self.statement(node)
        except UnprovedError as reason:
            if reason.line is None:
                reason.line = f"{self.function.__code__.co_filename}:{node.lineno}"
            raise

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
            case ast.AugAssign(target, op, value):
                self.augment(op, target, self.value(value))
            case ast.Return(value):
                self.returned.append(KnownObject(None) if value is None else self.value(value))
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
                raise UnprovedError(f"it has a {type(node).__name__.lower()} statement")
        return False

    def branches(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> bool:
        condition = self.value(test)
        if isinstance(condition, KnownObject) and is_plain(condition.what):
            return self.block(body if condition.what else orelse)
        if not is_op_input(condition):
            raise UnprovedError("it branches on an object")
        before = dict(self.variables)
        first = self.block(body)
        after, self.variables = self.variables, before
        second = self.block(orelse)
        if second:
            self.variables = after
        elif not first:
            self.variables = join_variables(self.variables, after)
        return first and second

    def loop(self, target: ast.expr, parts: list[Any] | None, body: list[ast.stmt]) -> None:
        """Evaluate each iteration if their number is known; else two, with variables that may be of any iteration."""
        if parts is not None and len(parts) <= MAX_UNROLLED_ITERATIONS:
            for part in parts:
                self.assign(target, part)
                self.block(body)
            return
        element = OP_RESULT if parts is None else functools.reduce(join, parts)
        for _ in range(2):
            before = dict(self.variables)
            self.assign(target, element)
            self.block(body)
            for name, value in join_variables(self.variables, before).items():
                changed = before.get(name) is not self.variables.get(name)
                self.variables[name] = value if not changed else OP_RESULT if is_op_input(value) else UnknownValue()
        if any(isinstance(v, SequenceValue) and v.own and not v.exact and not is_op_input(v) for v in self.variables.values()):
            raise UnprovedError("it collects Python objects in a loop")

    def context(self, item: ast.withitem) -> None:
        call = item.context_expr
        if isinstance(call, ast.Call) and not call.args and not call.keywords and item.optional_vars is None:
            cls = self.value(call.func)
            if isinstance(cls, KnownObject) and (cls.what is no_grad or cls.what is enable_grad):
                return
        raise UnprovedError("it enters a context manager")

    # ---- variables

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(name):
                if name not in self.local:
                    raise UnprovedError(f"it sets `{name}`, which is not a local variable")
                self.variables[name] = value
            case ast.Tuple(parts) | ast.List(parts):
                for part, v in zip(parts, self.unpacked(value, len(parts)), strict=True):
                    self.assign(part, v)
            case ast.Attribute(of, "grad") if isinstance(value, KnownObject) and value.what is None:
                self.only_tensors(self.value(of), target)
                self.prover.tensor_method("grad")
            case ast.Subscript(of, index):
                self.only_tensors(self.value(of), target)
                self.prover.tensor_method("__setitem__")
                self.either([self.value(index), value])
            case _:
                raise UnprovedError("it writes to an object other than a tensor")

    def only_tensors(self, value: Any, target: ast.expr) -> None:
        if not may_be_tensor(value):
            raise UnprovedError("it writes to an object other than a tensor")

    def unpacked(self, value: Any, count: int) -> list[Any]:
        if isinstance(value, SequenceValue) and value.exact and len(value.parts) == count:
            return value.parts
        self.either([value])
        return [OP_RESULT] * count

    def augment(self, op: ast.operator, target: ast.expr, value: Any) -> None:
        name, _ = ARITHMETIC.get(type(op), ("", None))
        if not name:
            raise UnprovedError("it assigns with an operator that is not arithmetic")
        self.prover.tensor_method(name.replace("__", "__i", 1))
        self.computed(op, [self.value(target), value])
        if isinstance(target, ast.Subscript):
            self.only_tensors(self.value(target.value), target)
        elif isinstance(target, ast.Name) and not isinstance(self.value(target), SequenceValue):
            self.assign(target, OP_RESULT)
        else:
            raise UnprovedError("it writes to an object other than a tensor")

    # ---- expressions

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(what):
                return KnownObject(what)
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
                return SequenceValue([p for part in parts for p in self.spread(part)], own=isinstance(node, ast.List))
            case ast.Dict(keys, values) if all(isinstance(k, ast.Constant) and type(k.value) is str for k in keys):
                return DictValue({k.value: self.value(v) for k, v in zip(keys, values, strict=True)})  # type: ignore[union-attr]
            case ast.Subscript(of, index):
                return self.element(self.value(of), self.value(index))
            case ast.Slice(lower, upper, step):
                return self.either([self.value(x) for x in (lower, upper, step) if x is not None])
            case ast.ListComp(element, [part]) | ast.GeneratorExp(element, [part]):
                return self.comprehension(element, part)
            case _:
                raise UnprovedError(f"it has a {type(node).__name__.lower()} expression")

    def named(self, name: str) -> Any:
        if name in self.variables:
            return self.variables[name]
        if name in self.local:
            raise UnprovedError(f"`{name}` may be unbound")
        if name in self.cells:
            return KnownObject(self.guards.cell(self.cells[name]))
        held = self.guards.element(self.function.__globals__, name)
        if held is not ABSENT:
            return KnownObject(held)
        if not hasattr(builtins, name):
            raise UnprovedError(f"`{name}` is not defined")
        return KnownObject(self.guards.attribute(builtins, name))

    def spread(self, node: ast.expr) -> list[Any]:
        """Evaluate an item of a list or an argument; a starred one stands for several."""
        if not isinstance(node, ast.Starred):
            return [self.value(node)]
        source = self.value(node.value)
        parts = self.prover.parts(source)
        if parts is None or (isinstance(source, SequenceValue) and not source.exact):
            raise UnprovedError("it unpacks the result of an op with `*`")
        return parts

    def call(self, node: ast.Call) -> Any:
        function = self.value(node.func)
        args = [a for arg in node.args for a in self.spread(arg)]
        if any(k.arg is None for k in node.keywords):
            raise UnprovedError("it unpacks a dict with `**`")
        return self.prover.call(function, args, {str(k.arg): self.value(k.value) for k in node.keywords})

    def computed(self, op: ast.AST, values: list[Any]) -> Any:
        """Evaluate arithmetic and comparisons; for known numbers, the result is known."""
        known = [v.what for v in values if isinstance(v, KnownObject)]
        if isinstance(op, (ast.Is, ast.IsNot)) and len(known) == 2:
            return KnownObject((known[0] is known[1]) is isinstance(op, ast.Is))
        if isinstance(op, ast.Not) and known and is_plain(known[0]):
            return KnownObject(not known[0])
        name, function = ARITHMETIC.get(type(op), ("", None))
        if function is not None and len(known) == len(values) and all(map(is_plain, known)):
            try:
                return KnownObject(function(*known))
            except (ArithmeticError, TypeError, ValueError) as reason:
                raise UnprovedError(str(reason)) from None
        for method in (name, REFLECTED.get(name)):
            if method:
                self.prover.tensor_method(method)
        return self.either(values)

    def either(self, values: list[Any]) -> Any:
        """Return the abstract result of an op on tensors and numbers; an error if a value is anything else."""
        if not all(map(is_op_input, values)):
            raise UnprovedError("it computes with Python objects")
        return OP_RESULT

    def choice(self, condition: Any, body: ast.expr, orelse: ast.expr) -> Any:
        if isinstance(condition, KnownObject) and is_plain(condition.what):
            return self.value(body if condition.what else orelse)
        self.either([condition])
        return join(self.value(body), self.value(orelse))

    def element(self, of: Any, index: Any) -> Any:
        known = index.what if isinstance(index, KnownObject) else None
        if isinstance(of, DictValue):
            if known in of.parts:
                return of.parts[known]
            raise UnprovedError("it looks up a key that is missing")
        if isinstance(of, KnownObject) and type(of.what) in (list, dict, tuple) and type(known) in (int, str):
            if type(of.what) is not tuple:
                self.guards.container(of.what)
            try:
                return KnownObject(of.what[known])
            except (LookupError, TypeError) as reason:
                raise UnprovedError(str(reason)) from None
        if isinstance(known, int):
            parts: list[Any] = []
            if isinstance(of, KnownObject) and type(of.what) is ModuleList:
                parts += self.prover.children(of.what)
            elif isinstance(of, SequenceValue) and of.exact:
                parts += of.parts
            if -len(parts) <= known < len(parts):
                return parts[known]
        self.prover.tensor_method("__getitem__")
        return self.either([of, index])

    def comprehension(self, element: ast.expr, part: ast.comprehension) -> Any:
        """Evaluate a comprehension. Its variables are local to it."""
        if part.is_async:
            raise UnprovedError("it is asynchronous")
        parts = self.prover.parts(self.value(part.iter))
        before, local = dict(self.variables), self.local
        self.local = local | {n.id for n in ast.walk(part.target) if isinstance(n, ast.Name)}
        found = []
        for value in [OP_RESULT] if parts is None else parts:
            self.assign(part.target, value)
            for test in part.ifs:
                self.either([self.value(test)])
            found.append(self.value(element))
        self.variables, self.local = before, local
        return SequenceValue(found, exact=parts is not None and not part.ifs, own=True)


def join_variables(mine: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Join the variables after two branches."""
    both = {n: join(mine[n], other[n]) for n in mine.keys() & other.keys()}
    return {**other, **mine, **both}
