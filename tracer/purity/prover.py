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
import types
import typing
from typing import Any

from ...eager.core.library import defining_module, is_library
from ...eager.nn.module import Module
from ...eager.nn.modules.container import ModuleList, Sequential
from ...eager.nn.parameter import Parameter
from ...eager.optim.optimizer import Optimizer
from ..guards.code_guards import TENSOR_CLASSES
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
    may_be_tensor,
    objects_in,
)
from .believed import (
    FORM,
    FROM_MUTABLE_DATA,
    TRANSPOSES,
    believes,
    believes_method,
    getattr_static,
    is_layer_code,
    is_math_function,
    is_own,
)
from .verified_source import UnprovedError, verified_definition

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
            return self.users(what, args, kwargs) if is_user_function(what) else self.ops(what, args, kwargs)
        if is_library(type(what)) and callable(vars(what).get("function")):  # a compiled one
            return self.call(KnownObject(what.function), args, kwargs)
        return self.pythons(what, args, kwargs)

    def users(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Prove a call of the user's function by walking through its source."""
        from .statements import FunctionBody  # the two modules call each other

        code = function.__code__
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_VARKEYWORDS):
            raise UnprovedError(f"`{function.__name__}` is not a plain function")
        self.guards.function_parts(function)
        signature = signature_of(function)
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
        if not believes(function):
            own = function.__name__ in FROM_MUTABLE_DATA and is_own(function)
            raise UnprovedError(f"it calls `{function.__qualname__}`" + (" with data that may change" if own else ""))
        if not all(map(is_op_input, (*args, *kwargs.values()))):
            raise UnprovedError(f"it passes `{function.__name__}` an object that may change")
        return OP_RESULT

    def pythons(self, what: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Evaluate a call of a builtin."""
        if what is isinstance and not kwargs and len(args) == 2:
            return self.instance_check(*args)
        if what is range and args and not kwargs and all(isinstance(x, KnownObject) and type(x.what) is int for x in args):
            rounds = range(*[x.what for x in args])
            return SequenceValue([KnownObject(i) for i in rounds]) if len(rounds) <= MAX_RANGE_LENGTH else OP_RESULT
        if what is range or any(what is x for x in SCALAR_BUILTINS) or is_math_function(what):
            if not kwargs and all(is_op_input(x) and (x is OP_RESULT or not may_be_tensor(x)) for x in args):
                return OP_RESULT
        elif any(what is x for x in SEQUENCE_BUILTINS) and not kwargs and args:
            return self.sequence(what, [self.parts(x) for x in args])
        raise UnprovedError(f"it calls `{getattr(what, '__qualname__', type(what).__name__)}`")

    def instance_check(self, x: Any, classes: Any) -> Any:
        """Evaluate `isinstance`: its result depends on the classes alone, unless a metaclass decides."""
        kinds = classes.parts if isinstance(classes, SequenceValue) else [classes]
        kinds = [k for kind in kinds for k in self.alternatives(kind)]
        if not all(type(kind) is type or kind is Parameter for kind in kinds):
            raise UnprovedError("it calls `isinstance` with a class that decides by itself, such as an abstract base class")
        if isinstance(x, KnownObject):
            if not self.guards.is_given(x.what):
                self.guards.attribute(x.what, "__class__")
        elif not is_op_input(x):
            raise UnprovedError("it calls `isinstance` with a computed object")
        return OP_RESULT

    def alternatives(self, kind: Any) -> list[Any]:
        """Return the classes that the second argument of `isinstance` names."""
        what = kind.what if isinstance(kind, KnownObject) else None
        if isinstance(what, tuple):
            return [k for part in what for k in self.alternatives(KnownObject(part))]
        return list(typing.get_args(what)) if isinstance(what, types.UnionType) else [what]

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
        called = self.guards.attribute(cls, "__call__")
        if called is not Module.__call__ or not is_own(called) or "forward" in module.__dict__:
            raise UnprovedError(f"{cls.__name__} overrides `__call__`, or has a `forward` attribute")
        forward = self.guards.attribute(cls, "forward")
        if cls is Sequential and not kwargs and len(args) == 1:
            (found,) = args
            for child in self.children(module):
                found = self.call(child, [found], {})
            return found
        if not is_layer_code(forward):
            return self.call(KnownObject(forward), [KnownObject(module), *args], kwargs)
        for layer in module.modules():
            self.layer(layer)
        if not all(map(is_op_input, (*args, *kwargs.values()))):
            raise UnprovedError(f"it passes {cls.__name__} an object that may change")
        return OP_RESULT

    def layer(self, layer: Module) -> None:
        """Guard a layer of the library: its class, its attributes and its tables."""
        cls = type(layer)
        if not is_layer_code(cls) or not is_layer_code(self.guards.attribute(cls, "forward")) or "forward" in layer.__dict__:
            raise UnprovedError(f"a library layer contains {cls.__name__}, whose code is not the library's")
        for name, value in layer.__dict__.items():
            if callable(value) and not (believes(value) or is_layer_code(value) or is_op_input(KnownObject(value))):
                raise UnprovedError(f"{cls.__name__}.{name} is a user function inside a library layer")
        for table in (layer._parameters, layer._buffers, layer._modules):
            self.guards.table(table)

    def walk(self, module: Module, name: str) -> Any:
        """Evaluate `parameters()`, or `train()` and `eval()` of a module that is already in this mode, which do nothing."""
        for layer in module.modules():
            for method in METHODS_BEHIND:
                found = self.guards.attribute(type(layer), method)
                if found is not getattr(Module, method) or not is_own(found) or method in layer.__dict__:
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
            return KnownObject(self.of_module(what, name))
        if isinstance(what, Optimizer):
            return self.of_optimizer(what, name)
        if isinstance(what, Module):
            for table in (what._parameters, what._buffers, what._modules):
                if name in table:
                    return KnownObject(self.guards.element(table, name))
            if name in MODULE_METHODS:
                return BoundMethod(of, name)
        return self.of_object(what, name)

    def of_module(self, module: types.ModuleType, name: str) -> Any:
        """A name that is simply there: a module's `__getattr__` is code that runs at each call."""
        usual = type(module).__getattribute__ is types.ModuleType.__getattribute__
        held = self.guards.element(vars(module), name) if usual else ABSENT
        if held is ABSENT:
            raise UnprovedError(f"`{module.__name__}.{name}` is computed when it is read")
        return held

    def of_tensor(self, of: Any, name: str) -> Any:
        """An attribute of a tensor. Its form may be asked for: it is guarded, of captured tensors as of arguments."""
        if name not in FORM and name not in TRANSPOSES and not believes_method(name):
            raise UnprovedError(f"it reads `{name}` of a tensor")
        found = self.tensor_method(name)
        return BoundMethod(of, name) if isinstance(found, types.FunctionType) else OP_RESULT

    def tensor_method(self, name: str) -> Any:
        """Return and guard a method or an operator of tensors, which has to be the library's own in each of their classes."""
        for cls in TENSOR_CLASSES:
            found = inspect.getattr_static(cls, name, None)
            if found is None or not is_own(found):
                raise UnprovedError(f"it reads `{name}` of a tensor" + ("" if found is None else ", which was replaced"))
            self.guards.attribute(cls, name)
        return getattr_static(name)

    def of_optimizer(self, optimizer: Optimizer, name: str) -> Any:
        cls = type(optimizer)
        if name not in ("step", "zero_grad") or not is_layer_code(self.guards.attribute(cls, name)) or not is_layer_code(cls):
            raise UnprovedError(f"it reads `{name}` of an optimizer")
        self.guards.attribute(cls, "update")
        if self.guards.element(optimizer.__dict__, name) is not ABSENT:
            raise UnprovedError(f"the optimizer has an attribute `{name}` that replaces the method")
        return BoundMethod(KnownObject(optimizer), name)

    def of_object(self, what: Any, name: str) -> Any:
        """An attribute that is simply there."""
        cls = type(what)
        self.guards.instance(what)
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


def signature_of(function: types.FunctionType) -> inspect.Signature:
    """The signature by which Python calls a function, whatever its `__signature__` says."""
    plain = types.FunctionType(function.__code__, {}, argdefs=function.__defaults__, closure=function.__closure__)
    plain.__kwdefaults__ = function.__kwdefaults__
    return inspect.Signature.from_callable(plain)


def is_user_function(function: types.FunctionType) -> bool:
    """True for a function of the user's, also if one of the library's decorators is around it."""
    return not (is_non_user_module(defining_module(function)) and is_non_user_module(function.__module__))
