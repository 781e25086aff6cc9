"""Prove that the Python of a function only touches tensors, so that it can be skipped as with `pure=True`, without a promise.

The prover walks through the function's source with the current values of its names. The function may call the library's
functions and modules, methods of tensors and optimizers, and user functions and modules that are written in the same way; it
may read attributes and elements, which are guarded (`tracer/guards/name_guards.py`); it may assign local variables. Anything
else ends the proof, even in a branch that may not be taken: writing to an attribute, a list or a global, printing, anything
unknown. Branches may only depend on guarded values: reading a tensor's value ends a segment, and a call that does so is never
skipped. So the proof need not know what a function computes, only that skipping it can be noticed in tensors alone.

Calls and attributes are here, statements and expressions in `statements.py`.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from typing import Any

from ...eager.core.library import MODULES, OPS, OPTIMIZERS, is_library, is_trusted
from ...eager.core.tensor import Tensor
from ...eager.nn.module import Module
from ...eager.nn.modules.container import ModuleList, Sequential
from ...eager.optim.optimizer import Optimizer
from ..guards.name_guards import ABSENT, NameGuards, Proof
from ..guards.plain_values import is_non_user_module
from ..guards.reachable_state import is_weakly_trackable
from .abstract_values import (
    OP_RESULT,
    BoundMethod,
    KnownObject,
    SequenceValue,
    abstract_argument,
    is_op_input,
    is_tensor,
    may_be_tensor,
    objects_in,
)
from .verified_source import UnprovedError, verified_definition

FROM_MUTABLE_DATA = {
    "tensor",
    "as_tensor",
    "asarray",
    "from_numpy",
    "frombuffer",
    "from_dlpack",
    "new_tensor",
}  # it may change unseen
TENSOR_ATTRIBUTES = {"shape", "ndim", "dtype", "device", "is_cuda", "itemsize"}
TENSOR_SIZE_METHODS = {"dim", "size", "numel", "nelement", "ndimension", "is_floating_point", "is_contiguous", "element_size"}
CAPTURED_ATTRIBUTES = {
    "shape",
    "ndim",
    "dtype",
    "dim",
    "size",
    "numel",
    "nelement",
    "ndimension",
    "is_floating_point",
    "element_size",
}
TRANSPOSES = {"T", "mT", "H", "mH"}
SCALAR_BUILTINS = (len, min, max, abs, sum, int, float, bool, slice, divmod)
SEQUENCE_BUILTINS = (tuple, list, zip, enumerate, reversed)
MODULE_METHODS = ("parameters", "train", "eval")  # methods of modules
METHODS_BEHIND = (
    *MODULE_METHODS,
    "named_parameters",
    "_named_members",
    "named_modules",
    "modules",
    "children",
    "named_children",
)
MAX_CALL_DEPTH = 30  # calls within calls
MAX_RANGE_LENGTH = 1000  # of a loop that goes through numbers


def prove(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Proof:
    """Prove that Python may be skipped; an `UnprovedError` says why it may not."""
    given, named = [abstract_argument(x) for x in args], {name: abstract_argument(x) for name, x in kwargs.items()}
    found = [what for x in (*given, *named.values()) for what in objects_in(x)]
    for what in found:
        if not is_weakly_trackable(what):
            raise UnprovedError(f"it gets a {type(what).__name__} as an argument, which a guard would keep alive")
    guards = NameGuards(found)
    Prover(guards, 0).call(KnownObject(function), given, named)
    return Proof(guards)


class Prover:
    """Abstract evaluation of calls and attributes."""

    def __init__(self, guards: NameGuards, depth: int) -> None:
        self.guards = guards
        self.depth = depth
        if depth > MAX_CALL_DEPTH:
            raise UnprovedError(f"its calls are nested more than {MAX_CALL_DEPTH} deep")

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the abstract result of a call."""
        if isinstance(function, BoundMethod):
            return self.method(function, args, kwargs)
        if not isinstance(function, KnownObject):
            raise UnprovedError("it calls a computed value")
        what = function.what
        if isinstance(what, functools.partial):
            for name in ("func", "args", "keywords"):
                self.guards.attribute(what, name)
            self.guards.container(what.keywords)
            named = {name: KnownObject(x) for name, x in what.keywords.items()}
            return self.call(KnownObject(what.func), [*map(KnownObject, what.args), *args], {**named, **kwargs})
        if isinstance(what, types.MethodType):
            return self.call(KnownObject(what.__func__), [KnownObject(what.__self__), *args], kwargs)
        if isinstance(what, Module):
            return self.module(what, args, kwargs)
        if isinstance(what, types.FunctionType):
            users = not is_library_code(what) and not is_non_user_module(what.__module__)
            return self.users(what, args, kwargs) if users else self.ops(what, args, kwargs)
        if is_library(type(what)) and callable(vars(what).get("function")):  # a compiled one
            return self.call(KnownObject(what.function), args, kwargs)
        return self.pythons(what, args, kwargs)

    def users(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Prove a call of the user's function by walking through its source."""
        from .statements import FunctionBody  # the two modules call each other

        code = function.__code__
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_VARKEYWORDS):
            raise UnprovedError(f"`{function.__name__}` is not a plain function")
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self.guards.attribute(function, name)
        signature = inspect.Signature.from_callable(function, follow_wrapped=False)
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError as reason:
            raise UnprovedError(str(reason)) from None
        variables: dict[str, Any] = {}
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                variables[name] = SequenceValue(list(bound.get(name, ())))
            else:
                variables[name] = bound[name] if name in bound else KnownObject(parameter.default)
        return FunctionBody(Prover(self.guards, self.depth + 1), function, variables).run(verified_definition(code))

    def ops(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Evaluate a call of a library function: its arguments have to be inputs of ops."""
        if not is_library_code(function):
            raise UnprovedError(f"it calls `{function.__qualname__}`")
        if function.__name__ in FROM_MUTABLE_DATA or not all(map(is_op_input, (*args, *kwargs.values()))):
            raise UnprovedError(f"it passes `{function.__name__}` an object that may change")
        return OP_RESULT

    def pythons(self, what: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Evaluate a call of a builtin."""
        if what is isinstance and not kwargs:
            return OP_RESULT
        if what is range and args and not kwargs and all(isinstance(x, KnownObject) and type(x.what) is int for x in args):
            rounds = range(*[x.what for x in args])
            return SequenceValue([KnownObject(i) for i in rounds]) if len(rounds) <= MAX_RANGE_LENGTH else OP_RESULT
        if what is range or any(what is x for x in SCALAR_BUILTINS) or getattr(what, "__module__", None) == math.__name__:
            if not kwargs and all(is_op_input(x) and (x is OP_RESULT or not may_be_tensor(x)) for x in args):
                return OP_RESULT
        elif any(what is x for x in SEQUENCE_BUILTINS) and not kwargs and args:
            return self.sequence(what, [self.parts(x) for x in args])
        raise UnprovedError(f"it calls `{getattr(what, '__qualname__', type(what).__name__)}`")

    def sequence(self, what: Any, given: list[list[Any] | None]) -> Any:
        """Evaluate `tuple`, `list`, `zip`, `enumerate` and `reversed`."""
        if any(parts is None for parts in given):
            if all(is_op_input(p) for parts in given for p in parts or ()):
                return OP_RESULT
            raise UnprovedError("it mixes tensors and Python objects in one iterable")
        (first, *_), found = given, [parts for parts in given if parts is not None]
        if what is zip:
            return SequenceValue([SequenceValue(list(parts)) for parts in zip(*found, strict=False)])
        if what is enumerate:
            return SequenceValue([SequenceValue([KnownObject(i), part]) for i, part in enumerate(first or ())])
        return SequenceValue(list(reversed(first or ()) if what is reversed else first or ()), own=what is list)

    def parts(self, source: Any) -> list[Any] | None:
        """Return the items of an iterable; None for the result of an op, of any length."""
        if isinstance(source, SequenceValue):
            if source.exact or not is_op_input(source):
                return list(source.parts)
            return None
        if may_be_tensor(source):
            return None
        what = source.what if isinstance(source, KnownObject) else source
        if type(what) is ModuleList or type(what) is Sequential:
            return list(self.children(what))
        if type(what) is list or type(what) is tuple:
            if type(what) is list:
                self.guards.container(what)
            return [KnownObject(x) for x in what]
        raise UnprovedError(f"it iterates over a {type(what).__name__}")

    def method(self, method: BoundMethod, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if method.function is not None:
            return self.call(KnownObject(method.function), [method.of, *args], kwargs)
        if isinstance(method.of, KnownObject) and isinstance(method.of.what, Module) and not args and not kwargs:
            return self.walk(method.of.what, method.name)
        if isinstance(method.of, SequenceValue):
            if method.name == "append" and method.of.own and len(args) == 1 and not kwargs:
                method.of.parts.append(args[0])
                method.of.exact = False
                return KnownObject(None)
            raise UnprovedError(f"it calls `{method.name}` of a list")
        if not all(map(is_op_input, (*args, *kwargs.values()))):
            raise UnprovedError(f"it passes `{method.name}` an object that may change")
        return OP_RESULT

    # ---- modules

    def module(self, module: Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
        cls = type(module)
        if self.guards.attribute(cls, "__call__") is not Module.__call__ or "forward" in module.__dict__:
            raise UnprovedError(f"{cls.__name__} overrides `__call__`, or has a `forward` attribute")
        forward = self.guards.attribute(cls, "forward")
        if cls is Sequential and not kwargs and len(args) == 1:
            (found,) = args
            for child in self.children(module):
                found = self.call(child, [found], {})
            return found
        if not is_library_code(forward):
            return self.call(KnownObject(forward), [KnownObject(module), *args], kwargs)
        for layer in module.modules():
            self.layer(layer)
        if not all(map(is_op_input, (*args, *kwargs.values()))):
            raise UnprovedError(f"it passes {cls.__name__} an object that may change")
        return OP_RESULT

    def layer(self, layer: Module) -> None:
        """Guard a layer of the library: its class, its attributes and its tables."""
        cls = type(layer)
        if (
            not is_library_code(cls)
            or not is_library_code(self.guards.attribute(cls, "forward"))
            or "forward" in layer.__dict__
        ):
            raise UnprovedError(f"a library layer contains {cls.__name__}, whose code is not the library's")
        for name, value in layer.__dict__.items():
            if callable(value) and not is_library_code(value):
                raise UnprovedError(f"{cls.__name__}.{name} is a user function inside a library layer")
        for table in (layer._parameters, layer._buffers, layer._modules):
            self.guards.table(table)

    def walk(self, module: Module, name: str) -> Any:
        """Evaluate `parameters()`, or `train()` and `eval()` of a module that is already in this mode, which do nothing."""
        for layer in module.modules():
            for method in METHODS_BEHIND:
                if self.guards.attribute(type(layer), method) is not getattr(Module, method) or method in layer.__dict__:
                    raise UnprovedError(f"{type(layer).__name__} overrides `{method}`")
            if name == "parameters":
                self.guards.table(layer._parameters)
                self.guards.table(layer._modules)
            elif self.guards.element(layer.__dict__, "training") is not (name == "train"):
                raise UnprovedError(f"it switches {type(layer).__name__} between training and evaluation")
        return SequenceValue([KnownObject(p) for p in module.parameters()]) if name == "parameters" else KnownObject(module)

    def children(self, module: Module) -> list[KnownObject]:
        self.guards.table(module._modules)
        return [KnownObject(child) for child in module._modules.values()]

    # ---- attributes

    def attribute(self, of: Any, name: str) -> Any:
        if name.startswith("__"):
            raise UnprovedError(f"it reads `{name}`")
        if isinstance(of, SequenceValue):
            return BoundMethod(of, name)
        if may_be_tensor(of):
            return self.of_tensor(of, name)
        if not isinstance(of, KnownObject):
            raise UnprovedError(f"it reads `{name}` of a computed value")
        what = of.what
        if isinstance(what, types.ModuleType):
            return KnownObject(self.guards.attribute(what, name))
        if isinstance(what, Optimizer):
            return self.of_optimizer(what, name)
        if isinstance(what, Module):
            for table in (what._parameters, what._buffers, what._modules):
                if name in table:
                    return KnownObject(self.guards.element(table, name))
            if name in MODULE_METHODS:
                return BoundMethod(of, name)
        return self.of_object(what, name)

    def of_tensor(self, of: Any, name: str) -> Any:
        """The form of a captured tensor is not looked at unless ops are given it: where it is read, it is guarded."""
        found = inspect.getattr_static(Tensor, name, None)
        if found is None:
            raise UnprovedError(f"it reads `{name}` of a tensor")
        self.guards.attribute(Tensor, name)
        if isinstance(of, KnownObject) and name in CAPTURED_ATTRIBUTES:
            self.guards.form(of.what)
            of = OP_RESULT
        if name in TRANSPOSES or (name in TENSOR_ATTRIBUTES and of is OP_RESULT):
            return OP_RESULT
        plain = inspect.unwrap(found) if isinstance(found, types.FunctionType) else None
        runs_ops = plain is not None and is_trusted(plain, OPS) and name not in FROM_MUTABLE_DATA
        if runs_ops or name == "backward" or (name in TENSOR_SIZE_METHODS and of is OP_RESULT):
            return BoundMethod(of, name)
        raise UnprovedError(f"it reads `{name}` of a tensor")

    def of_optimizer(self, optimizer: Optimizer, name: str) -> Any:
        cls = type(optimizer)
        if (
            name not in ("step", "zero_grad")
            or not is_library_code(self.guards.attribute(cls, name))
            or not is_library_code(cls)
        ):
            raise UnprovedError(f"it reads `{name}` of an optimizer")
        self.guards.attribute(cls, "update")
        if self.guards.element(optimizer.__dict__, name) is not ABSENT:
            raise UnprovedError(f"the optimizer has an attribute `{name}` that replaces the method")
        return BoundMethod(KnownObject(optimizer), name)

    def of_object(self, what: Any, name: str) -> Any:
        """An attribute that is simply there."""
        cls = type(what)
        if not self.guards.is_given(what):  # of which that is looked at with the arguments
            self.guards.attribute(what, "__class__")
        usual = next(c for c in (Module, types.SimpleNamespace, object) if isinstance(what, c))
        for hook in ("__getattribute__", "__getattr__"):
            if inspect.getattr_static(cls, hook, None) is not inspect.getattr_static(usual, hook, None):
                raise UnprovedError(f"{cls.__name__} customises attribute access")
        of_class = inspect.getattr_static(cls, name, ABSENT)
        fields = getattr(what, "__dict__", None)
        if hasattr(type(of_class), "__set__") or type(fields) is not dict:
            raise UnprovedError(f"{cls.__name__}.{name} is computed, as by a property")
        held = self.guards.element(fields, name)
        if held is not ABSENT:
            return KnownObject(held)
        if of_class is ABSENT or (hasattr(type(of_class), "__get__") and not isinstance(of_class, types.FunctionType)):
            raise UnprovedError(f"{cls.__name__}.{name} is computed, as by a property")
        self.guards.attribute(cls, name)
        return (
            BoundMethod(KnownObject(what), name, of_class)
            if isinstance(of_class, types.FunctionType)
            else KnownObject(of_class)
        )


def is_library_code(what: Any) -> bool:
    """Whether it is code of this library that does nothing but run ops."""
    if isinstance(what, types.FunctionType):
        return is_trusted(inspect.unwrap(what), OPS, MODULES, OPTIMIZERS)
    return is_tensor(what) or is_library(what)
