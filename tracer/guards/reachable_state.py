"""What a function can reach by name: its modules, optimizers and tensors, and the places where it finds them.

A function that skips its Python does not look its variables up any more, so somebody has to notice when one of them stands for
something else: a global, a variable of a closure, an attribute, an element of a list. `Reach` walks once over all of it and
notes the places. Modules count their changes; only when the count has moved are they compared with what they were.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterable
from typing import Any
from weakref import ref

import numpy as np

from ...eager.nn.module_hooks import EVERYWHERE
from ...eager.nn.module import Module
from ...eager.optim.optimizer import Optimizer
from ...eager.core.tensor import Tensor
from ..trace.trace import alike

PLAIN = (int, float, bool, str, bytes, complex, type(None))
SKIPPED = (type, types.ModuleType, types.BuiltinFunctionType, np.ndarray, np.generic, *PLAIN)
LIBRARY = __name__.rpartition(".tracer")[0] + "."
OTHERS = {*sys.stdlib_module_names, "numpy", "cupy", "ml_dtypes"}
NAMESPACES = {"SimpleNamespace", "Namespace"}  # of types and argparse: the names in them are the user's
MOST = 100_000  # objects: more is not looked through
_OWN = {"_version_number", "_parameters", "_buffers", "_modules"}  # of a module, compared by themselves or not at all


class NotPureError(Exception):
    """Why Python cannot be skipped."""


class UndecidedError(NotPureError):
    """Another call may tell whether it can."""


class Reach:
    """What some objects lead to."""

    def __init__(self, *starts: Any) -> None:
        self.modules: list[Module] = []
        self.optimizers: list[Optimizer] = []
        self.tensors: dict[int, Tensor] = {}
        self.cells: list[tuple[Any, Any]] = []  # variables of closures, and what they hold
        self.names: list[tuple[dict[str, Any], str, Any]] = []  # a namespace, a name in it, what it stands for
        self.lists: list[tuple[Any, Any]] = []  # lists and dicts, and copies of them
        self.seen: dict[int, Any] = {}
        self.again: set[int] = set()  # ids of what was come across several times
        stack = list(starts)
        while stack:
            x = stack.pop()
            if isinstance(x, SKIPPED):
                continue
            if id(x) in self.seen:
                self.again.add(id(x))
                continue
            self.seen[id(x)] = x
            if len(self.seen) > MOST:
                raise NotPureError(f"it can reach more than {MOST} objects")
            stack.extend(self._parts(x))

    def _parts(self, x: Any) -> Iterable[Any]:
        if isinstance(x, Tensor):
            self.tensors[id(x)] = x
            return ()
        if isinstance(x, Module):
            self.modules.append(x)
            rest = [v for k, v in x.__dict__.items() if k not in _OWN]
            own = (*x._parameters.values(), *x._buffers.values(), *x._modules.values())
            return [*own, *rest, *methods_of(type(x))]
        if isinstance(x, Optimizer):
            self.optimizers.append(x)
            held = [v for values in x.state.values() if isinstance(values, dict) for v in values.values()]
            return [*[p for g in x.param_groups for p in g["params"]], *held]
        if isinstance(x, types.FunctionType):
            return self._function(x)
        if isinstance(x, types.MethodType):
            return x.__self__, x.__func__
        if isinstance(x, functools.partial):
            return x.func, x.args, x.keywords
        if isinstance(x, (list, dict)):
            values = list(x.values() if isinstance(x, dict) else x)
            if any(isinstance(v, (Tensor, Module, Optimizer)) for v in values):
                self.lists.append((x, x.copy()))
            return values
        if isinstance(x, (tuple, set, frozenset)):
            return x
        return self._attributes(x)

    def _function(self, x: types.FunctionType) -> Iterable[Any]:
        if of_others(x.__module__):
            return ()
        found: list[Any] = [x.__defaults__, x.__kwdefaults__, getattr(x, "__wrapped__", None)]
        for cell in x.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError:
                continue  # empty
            self.cells.append((cell, held))
            found.append(held)
        space = x.__globals__
        for name in names_of(x.__code__):
            if name in space and not isinstance(space[name], (type, types.ModuleType, types.BuiltinFunctionType)):
                self.names.append((space, name, space[name]))
                found.append(space[name])
        return found

    def _attributes(self, x: Any) -> Iterable[Any]:
        """The attributes of a user's object."""
        fields = getattr(x, "__dict__", None)
        if type(fields) is dict and isinstance(fields.get("function"), types.FunctionType) and of_others(type(x).__module__):
            return (x.function,)  # a compiled one
        if type(fields) is not dict or (of_others(type(x).__module__) and type(x).__name__ not in NAMESPACES):
            return ()
        self.names += [(fields, name, value) for name, value in fields.items() if not isinstance(value, PLAIN)]
        return [*fields.values(), *methods_of(type(x))]

    def same_names(self) -> bool:
        """Whether all names stand for what they stood for."""
        for cell, held in self.cells:
            if cell.cell_contents is not held and not equal(cell.cell_contents, held):
                return False
        for space, name, held in self.names:
            found = space.get(name, Reach)
            if found is not held and not equal(found, held):
                return False
        return True

    def holds(self, t: Tensor) -> bool:
        """Whether a tensor can be reached."""
        return id(t) in self.tensors

    def lone(self, x: Any) -> bool:
        """Whether nothing else leads to one of the objects that it began with."""
        return id(x) in self.seen and id(x) not in self.again


def can_be_watched(x: Any) -> bool:
    """Whether something is a model, an optimizer or an object of the user's, of which can be told when it is gone."""
    if not isinstance(x, (Module, Optimizer)):
        plain = type(getattr(x, "__dict__", None)) is dict and not isinstance(x, (type, types.ModuleType, types.FunctionType))
        if not plain or (of_others(type(x).__module__) and type(x).__name__ not in NAMESPACES):
            return False
    try:
        ref(x)
    except TypeError:
        return False
    return True


def equal(a: Any, b: Any) -> bool:
    """Whether two plain values are the same; other objects are not the same unless they are one."""
    return isinstance(a, PLAIN) and isinstance(b, PLAIN) and alike(a, b)


def of_others(name: str | None) -> bool:
    """Whether a module is this library's, Python's or an array library's."""
    name = name or ""
    return f"{name}.".startswith(LIBRARY) or (name.partition(".")[0] in OTHERS and name != "__main__")


def methods_of(cls: type) -> list[Any]:
    """The functions of a user's class."""
    return [inspect.unwrap(f) for c in cls.__mro__ if not of_others(c.__module__) for f in vars(c).values() if callable(f)]


def names_of(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_of(constant)
    return names


# ---- modules


def frozen(x: Any) -> Any:
    """A copy of nested containers, to compare with later."""
    if isinstance(x, dict):
        return {k: frozen(v) for k, v in x.items()}
    return [frozen(v) for v in x] if isinstance(x, (list, tuple)) else x


def unchanged(x: Any, was: Any) -> bool:
    """Whether something is what it was when it was frozen: plain values equal, all else the same objects."""
    if isinstance(x, dict):
        return isinstance(was, dict) and list(x) == list(was) and all(unchanged(v, was[k]) for k, v in x.items())
    if isinstance(x, (list, tuple)):
        return isinstance(was, list) and len(x) == len(was) and all(map(unchanged, x, was))
    return x is was or equal(x, was)


VERSION = "_version_number"


class Setting:
    """A module as it was: its attributes, and what is in those that hold others."""

    __slots__ = ("cls", "fields", "holders", "module", "version")

    def __init__(self, module: Module) -> None:
        self.module = ref(module)  # others may have it alone
        self.cls = type(module)
        self.version = module._version_number
        self.fields = {k: v for k, v in module.__dict__.items() if k != VERSION}
        self.holders = [(v, frozen(v)) for v in self.fields.values() if isinstance(v, (dict, list))]

    def holds(self) -> bool:
        """Whether it is so still. What was changed and changed back counts as unchanged."""
        module = self.module()
        if type(module) is not self.cls:  # another, or none any more
            return False
        now = module.__dict__
        if len(now) - (VERSION in now) != len(self.fields):
            return False
        for name, value in self.fields.items():
            found = now.get(name, Reach)
            if found is not value and not equal(found, value):
                return False
        return all(unchanged(x, was) for x, was in self.holders if x or was)


class Settings:
    """Modules as they were."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = [Setting(m) for m in modules]
        self.everywhere = dict(EVERYWHERE)

    def hold(self) -> bool:
        """Whether they are so still; only those are looked at that have changed somehow."""
        for setting in self.modules:
            version = getattr(setting.module(), VERSION, None)  # None if it is gone
            if version != setting.version:
                if version is None or not setting.holds():
                    return False
                setting.version = version
        return self.everywhere == EVERYWHERE

    def changed_by_itself(self) -> Module | None:
        """A module that is not what it was, if there is one."""
        return next((s.module() for s in self.modules if not s.holds()), None)
