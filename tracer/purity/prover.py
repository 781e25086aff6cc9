"""Proving that the Python of a function only touches tensors, so that it can be skipped as with `pure=True`, unpromised.

The function's source is gone through with what its names stand for now. It may call the library's functions and modules, the
methods of tensors and optimizers, and functions and modules of the user's that are written in the same way; it may read
attributes and elements, which are guarded (`proof_guards.py`); it may assign local variables. Whatever else it does, even in a
branch that cannot be told not to be taken, ends the proof: writing to an attribute, a list or a global, printing, anything
unknown. Which branch is taken may depend on what is guarded alone: reading a tensor's value ends a segment, and what does that
is never skipped. So nothing has to be known of what a function computes, only that nobody but tensors could notice.

Calls and attributes are here, statements and expressions in `proof_body.py`.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from typing import Any

from ...eager.nn.modules.container import ModuleList, Sequential
from ...eager.nn.module import Module
from ...eager.optim.optimizer import Optimizer
from ...eager.core.tensor import Tensor
from ..guards.name_guards import ABSENT, Guards, Proof
from .verified_source import UnprovedError, definition
from .abstract_values import MADE, Items, Known, Method, as_given, is_made, is_tensor, may_be_tensor, objects
from ..guards.reachable_state import LIBRARY, can_be_watched, of_others

OPS = tuple(f"{LIBRARY}eager.{name}" for name in ("ops.", "op", "operators"))  # where functions are that only run ops
LAYERS = tuple(f"{LIBRARY}eager.{name}." for name in ("nn", "optim"))
FROM_DATA = {"tensor", "as_tensor", "asarray", "from_numpy", "frombuffer", "from_dlpack", "new_tensor"}  # it may change unseen
FORM = {"shape", "ndim", "dtype", "device", "is_cuda", "itemsize"}
SIZES = {"dim", "size", "numel", "nelement", "ndimension", "is_floating_point", "is_contiguous", "element_size"}
OF_CAPTURED = {"shape", "ndim", "dtype", "dim", "size", "numel", "nelement", "ndimension", "is_floating_point", "element_size"}
TURNED = {"T", "mT", "H", "mH"}
PYTHONS = (len, min, max, abs, sum, int, float, bool, slice, divmod)
SEQUENCES = (tuple, list, zip, enumerate, reversed)
WALKS = ("parameters", "train", "eval")  # methods of modules
WALKED_BY = (*WALKS, "named_parameters", "_named_members", "named_modules", "modules", "children", "named_children")
DEEPEST = 30  # calls within calls
MOST_ROUNDS = 1000  # of a loop that goes through numbers


def prove(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Proof:
    """That Python may be skipped; an `UnprovedError` says why it may not."""
    given, named = [as_given(x) for x in args], {name: as_given(x) for name, x in kwargs.items()}
    found = [what for x in (*given, *named.values()) for what in objects(x)]
    for what in found:
        if not can_be_watched(what):
            raise UnprovedError(f"it is given a {type(what).__name__}, which would be kept alive")
    guards = Guards(found)
    Prover(guards, 0).call(Known(function), given, named)
    return Proof(guards)


class Prover:
    """Goes through calls."""

    def __init__(self, guards: Guards, depth: int) -> None:
        self.guards = guards
        self.depth = depth
        if depth > DEEPEST:
            raise UnprovedError("its functions call each other too often")

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What a call gives."""
        if isinstance(function, Method):
            return self.method(function, args, kwargs)
        if not isinstance(function, Known):
            raise UnprovedError("it calls what it has computed")
        what = function.what
        if isinstance(what, functools.partial):
            for name in ("func", "args", "keywords"):
                self.guards.attribute(what, name)
            self.guards.container(what.keywords)
            named = {name: Known(x) for name, x in what.keywords.items()}
            return self.call(Known(what.func), [*map(Known, what.args), *args], {**named, **kwargs})
        if isinstance(what, types.MethodType):
            return self.call(Known(what.__func__), [Known(what.__self__), *args], kwargs)
        if isinstance(what, Module):
            return self.module(what, args, kwargs)
        if isinstance(what, types.FunctionType):
            users = not in_library(what) and not of_others(what.__module__)
            return self.users(what, args, kwargs) if users else self.ops(what, args, kwargs)
        if type(what).__module__.startswith(LIBRARY) and callable(vars(what).get("function")):  # a compiled one
            return self.call(Known(what.function), args, kwargs)
        return self.pythons(what, args, kwargs)

    def users(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A function of the user's."""
        from .statements import Body  # each calls the other

        code = function.__code__
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_VARKEYWORDS):
            raise UnprovedError(f"{function.__name__} is no plain function")
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
                variables[name] = Items(list(bound.get(name, ())))
            else:
                variables[name] = bound[name] if name in bound else Known(parameter.default)
        return Body(Prover(self.guards, self.depth + 1), function, variables).run(definition(code))

    def ops(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A function of the library."""
        if not in_library(function):
            raise UnprovedError(f"it calls {function.__qualname__}")
        if function.__name__ in FROM_DATA or not all(map(is_made, (*args, *kwargs.values()))):
            raise UnprovedError(f"it gives {function.__name__} something that may change")
        return MADE

    def pythons(self, what: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A function of Python's."""
        if what is isinstance and not kwargs:
            return MADE
        if what is range and args and not kwargs and all(isinstance(x, Known) and type(x.what) is int for x in args):
            rounds = range(*[x.what for x in args])
            return Items([Known(i) for i in rounds]) if len(rounds) <= MOST_ROUNDS else MADE
        if what is range or any(what is x for x in PYTHONS) or getattr(what, "__module__", None) == math.__name__:
            if not kwargs and all(is_made(x) and (x is MADE or not may_be_tensor(x)) for x in args):
                return MADE
        elif any(what is x for x in SEQUENCES) and not kwargs and args:
            return self.sequence(what, [self.parts(x) for x in args])
        raise UnprovedError(f"it calls {getattr(what, '__qualname__', type(what).__name__)}")

    def sequence(self, what: Any, given: list[list[Any] | None]) -> Any:
        """Things in another order, or beside each other."""
        if any(parts is None for parts in given):
            if all(is_made(p) for parts in given for p in parts or ()):
                return MADE
            raise UnprovedError("it goes through objects and what ops have made together")
        (first, *_), found = given, [parts for parts in given if parts is not None]
        if what is zip:
            return Items([Items(list(parts)) for parts in zip(*found, strict=False)])
        if what is enumerate:
            return Items([Items([Known(i), part]) for i, part in enumerate(first or ())])
        return Items(list(reversed(first or ()) if what is reversed else first or ()), own=what is list)

    def parts(self, source: Any) -> list[Any] | None:
        """What there is to go through; None if it is what ops have made, of any number."""
        if isinstance(source, Items):
            if source.exact or not is_made(source):
                return list(source.parts)
            return None
        if may_be_tensor(source):
            return None
        what = source.what if isinstance(source, Known) else source
        if type(what) is ModuleList or type(what) is Sequential:
            return list(self.children(what))
        if type(what) is list or type(what) is tuple:
            if type(what) is list:
                self.guards.container(what)
            return [Known(x) for x in what]
        raise UnprovedError(f"it goes through a {type(what).__name__}")

    def method(self, method: Method, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if method.function is not None:
            return self.call(Known(method.function), [method.of, *args], kwargs)
        if isinstance(method.of, Known) and isinstance(method.of.what, Module) and not args and not kwargs:
            return self.walk(method.of.what, method.name)
        if isinstance(method.of, Items):
            if method.name == "append" and method.of.own and len(args) == 1 and not kwargs:
                method.of.parts.append(args[0])
                method.of.exact = False
                return Known(None)
            raise UnprovedError(f"it calls {method.name} of a list")
        if not all(map(is_made, (*args, *kwargs.values()))):
            raise UnprovedError(f"it gives {method.name} something that may change")
        return MADE

    # ---- modules

    def module(self, module: Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
        cls = type(module)
        if self.guards.attribute(cls, "__call__") is not Module.__call__ or "forward" in module.__dict__:
            raise UnprovedError(f"{cls.__name__} is called in a way of its own")
        forward = self.guards.attribute(cls, "forward")
        if cls is Sequential and not kwargs and len(args) == 1:
            (found,) = args
            for child in self.children(module):
                found = self.call(child, [found], {})
            return found
        if not in_library(forward):
            return self.call(Known(forward), [Known(module), *args], kwargs)
        for layer in module.modules():
            self.layer(layer)
        if not all(map(is_made, (*args, *kwargs.values()))):
            raise UnprovedError(f"it gives {cls.__name__} something that may change")
        return MADE

    def layer(self, layer: Module) -> None:
        """A layer of the library's, with what it has."""
        cls = type(layer)
        if not in_library(cls) or not in_library(self.guards.attribute(cls, "forward")) or "forward" in layer.__dict__:
            raise UnprovedError(f"{cls.__name__} is inside a layer of the library")
        for name, value in layer.__dict__.items():
            if callable(value) and not in_library(value):
                raise UnprovedError(f"{cls.__name__}.{name} is a function of its own")
        for table in (layer._parameters, layer._buffers, layer._modules):
            self.guards.table(table)

    def walk(self, module: Module, name: str) -> Any:
        """All parameters of a module; or a switch of all of it to the mode that it is in, which does nothing."""
        for layer in module.modules():
            for method in WALKED_BY:
                if self.guards.attribute(type(layer), method) is not getattr(Module, method) or method in layer.__dict__:
                    raise UnprovedError(f"{type(layer).__name__} has a {method} of its own")
            if name == "parameters":
                self.guards.table(layer._parameters)
                self.guards.table(layer._modules)
            elif self.guards.element(layer.__dict__, "training") is not (name == "train"):
                raise UnprovedError(f"it switches {type(layer).__name__} to another mode")
        return Items([Known(p) for p in module.parameters()]) if name == "parameters" else Known(module)

    def children(self, module: Module) -> list[Known]:
        self.guards.table(module._modules)
        return [Known(child) for child in module._modules.values()]

    # ---- attributes

    def attribute(self, of: Any, name: str) -> Any:
        if name.startswith("__"):
            raise UnprovedError(f"it reads {name}")
        if isinstance(of, Items):
            return Method(of, name)
        if may_be_tensor(of):
            return self.of_tensor(of, name)
        if not isinstance(of, Known):
            raise UnprovedError(f"it reads {name} of what it has computed")
        what = of.what
        if isinstance(what, types.ModuleType):
            return Known(self.guards.attribute(what, name))
        if isinstance(what, Optimizer):
            return self.of_optimizer(what, name)
        if isinstance(what, Module):
            for table in (what._parameters, what._buffers, what._modules):
                if name in table:
                    return Known(self.guards.element(table, name))
            if name in WALKS:
                return Method(of, name)
        return self.of_object(what, name)

    def of_tensor(self, of: Any, name: str) -> Any:
        """The form of a captured tensor is not looked at unless ops are given it: where it is read, it is guarded."""
        found = inspect.getattr_static(Tensor, name, None)
        if found is None:
            raise UnprovedError(f"it reads {name} of a tensor")
        self.guards.attribute(Tensor, name)
        if isinstance(of, Known) and name in OF_CAPTURED:
            self.guards.form(of.what)
            of = MADE
        if name in TURNED or (name in FORM and of is MADE):
            return MADE
        plain = inspect.unwrap(found) if isinstance(found, types.FunctionType) else None
        runs_ops = plain is not None and plain.__module__.startswith(OPS) and name not in FROM_DATA
        if runs_ops or name == "backward" or (name in SIZES and of is MADE):
            return Method(of, name)
        raise UnprovedError(f"it reads {name} of a tensor")

    def of_optimizer(self, optimizer: Optimizer, name: str) -> Any:
        cls = type(optimizer)
        if name not in ("step", "zero_grad") or not in_library(self.guards.attribute(cls, name)) or not in_library(cls):
            raise UnprovedError(f"it reads {name} of an optimizer")
        self.guards.attribute(cls, "update")
        if self.guards.element(optimizer.__dict__, name) is not ABSENT:
            raise UnprovedError(f"the optimizer has a {name} of its own")
        return Method(Known(optimizer), name)

    def of_object(self, what: Any, name: str) -> Any:
        """An attribute that is simply there."""
        cls = type(what)
        if not self.guards.is_given(what):  # of which that is looked at with the arguments
            self.guards.attribute(what, "__class__")
        usual = next(c for c in (Module, types.SimpleNamespace, object) if isinstance(what, c))
        for hook in ("__getattribute__", "__getattr__"):
            if inspect.getattr_static(cls, hook, None) is not inspect.getattr_static(usual, hook, None):
                raise UnprovedError(f"{cls.__name__} finds its attributes in a way of its own")
        of_class = inspect.getattr_static(cls, name, ABSENT)
        fields = getattr(what, "__dict__", None)
        if hasattr(type(of_class), "__set__") or type(fields) is not dict:
            raise UnprovedError(f"{cls.__name__}.{name} is computed")
        held = self.guards.element(fields, name)
        if held is not ABSENT:
            return Known(held)
        if of_class is ABSENT or (hasattr(type(of_class), "__get__") and not isinstance(of_class, types.FunctionType)):
            raise UnprovedError(f"{cls.__name__}.{name} is computed")
        self.guards.attribute(cls, name)
        return Method(Known(what), name, of_class) if isinstance(of_class, types.FunctionType) else Known(of_class)


def in_library(what: Any) -> bool:
    """Whether it is code of this library that does nothing but run ops."""
    if isinstance(what, types.FunctionType):
        return str(inspect.unwrap(what).__module__).startswith((*OPS, *LAYERS))
    return is_tensor(what) or str(getattr(what, "__module__", "")).startswith(LIBRARY)
