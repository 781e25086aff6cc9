"""The objects that a function can reach by name, and guards on what they are.

A skipped call does not look its variables up, so a guard has to notice when one of them is rebound: a global, a closure
variable, an attribute, an element of a list. `ReachableState` walks over all of it once and notes the bindings. Modules count
their changes; they are compared with what they were only when the count has moved.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable
from typing import Any
from weakref import ref

import numpy as np

from ...eager.core.structure.object_graph import walk_objects
from ...eager.core.tensor import Tensor
from ...eager.nn.module import Module
from ...eager.nn.module_hooks import GLOBAL_HOOKS
from ...eager.optim.optimizer import Optimizer
from .plain_values import PLAIN_TYPES, equal_plain_values, is_non_user_module

NOT_FOLLOWED = (type, types.ModuleType, types.BuiltinFunctionType, np.ndarray, np.generic, *PLAIN_TYPES)
NAMESPACE_CLASSES = {"SimpleNamespace", "Namespace"}  # of types and argparse: their attributes are the user's
MAX_REACHABLE_OBJECTS = 100_000  # larger object graphs are not guarded: Python keeps running
_COMPARED_SEPARATELY = {
    "_version_number",
    "_parameters",
    "_buffers",
    "_modules",
}  # of a module, compared by themselves or not at all


class NotPureError(Exception):
    """The reason why Python cannot be skipped, as a clause about the function."""


class UndecidedError(NotPureError):
    """Undecided so far: another call may show whether Python can be skipped."""


class ReachableState:
    """Modules, optimizers and tensors that some objects lead to, and the bindings through which they are found."""

    def __init__(self, *starts: Any) -> None:
        self.modules: list[Module] = []
        self.optimizers: list[Optimizer] = []
        self.tensors: dict[int, Tensor] = {}
        self.cells: list[tuple[Any, Any]] = []  # closure cells and their contents
        self.names: list[tuple[dict[str, Any], str, Any]] = []  # namespace, name in it, value
        self.lists: list[tuple[Any, Any]] = []  # lists and dicts, and copies of them
        self.seen: dict[int, Any] = {}
        self.again: set[int] = set()  # ids of objects that several paths lead to
        for x in walk_objects(starts, lambda x: isinstance(x, NOT_FOLLOWED), self._parts, self.again):
            self.seen[id(x)] = x
            if len(self.seen) > MAX_REACHABLE_OBJECTS:
                raise NotPureError(f"it can reach more than {MAX_REACHABLE_OBJECTS} objects")

    def _parts(self, x: Any) -> Iterable[Any]:
        if isinstance(x, Tensor):
            self.tensors[id(x)] = x
            return ()
        if isinstance(x, Module):
            self.modules.append(x)
            rest = [v for k, v in x.__dict__.items() if k not in _COMPARED_SEPARATELY]
            own = (*x._parameters.values(), *x._buffers.values(), *x._modules.values())
            return [*own, *rest, *user_methods(type(x))]
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
        if is_non_user_module(x.__module__):
            return ()
        found: list[Any] = [x.__defaults__, x.__kwdefaults__, getattr(x, "__wrapped__", None)]
        for cell in filled_cells(x):
            self.cells.append((cell, cell.cell_contents))
            found.append(cell.cell_contents)
        space = x.__globals__
        for name in referenced_names(x.__code__):
            if name in space and not isinstance(space[name], (type, types.ModuleType, types.BuiltinFunctionType)):
                self.names.append((space, name, space[name]))
                found.append(space[name])
        return found

    def _attributes(self, x: Any) -> Iterable[Any]:
        """Note the attributes of a user's object, and go on with them."""
        fields = getattr(x, "__dict__", None)
        if (
            type(fields) is dict
            and isinstance(fields.get("function"), types.FunctionType)
            and is_non_user_module(type(x).__module__)
        ):
            return (x.function,)  # a compiled function
        if type(fields) is not dict or (is_non_user_module(type(x).__module__) and type(x).__name__ not in NAMESPACE_CLASSES):
            return ()
        self.names += [(fields, name, value) for name, value in fields.items() if not isinstance(value, PLAIN_TYPES)]
        return [*fields.values(), *user_methods(type(x))]

    def same_names(self) -> bool:
        """True if all names and cells hold what they held."""
        for cell, held in self.cells:
            if cell.cell_contents is not held and not equal_plain_values(cell.cell_contents, held):
                return False
        for space, name, held in self.names:
            found = space.get(name, ReachableState)
            if found is not held and not equal_plain_values(found, held):
                return False
        return True

    def holds(self, t: Tensor) -> bool:
        """True if the walk has met this tensor."""
        return id(t) in self.tensors

    def lone(self, x: Any) -> bool:
        """True if an object that the walk began with was met only once: nothing else leads to it."""
        return id(x) in self.seen and id(x) not in self.again


def is_weakly_trackable(x: Any) -> bool:
    """True for models, optimizers and objects of the user's that can be referred to weakly, so that their end is noticed."""
    if not isinstance(x, (Module, Optimizer)):
        plain = type(getattr(x, "__dict__", None)) is dict and not isinstance(x, (type, types.ModuleType, types.FunctionType))
        if not plain or (is_non_user_module(type(x).__module__) and type(x).__name__ not in NAMESPACE_CLASSES):
            return False
    try:
        ref(x)
    except TypeError:
        return False
    return True


def user_methods(cls: type) -> list[Any]:
    """Return the functions that the user's classes in `cls.__mro__` define."""
    return [
        inspect.unwrap(f) for c in cls.__mro__ if not is_non_user_module(c.__module__) for f in vars(c).values() if callable(f)
    ]


def filled_cells(function: types.FunctionType) -> list[Any]:
    """Return the cells of a closure that hold something."""
    return [cell for cell in function.__closure__ or () if is_filled(cell)]


def is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def referenced_names(code: types.CodeType) -> set[str]:
    """Return the names that code and the functions inside it use: globals, and attributes that are spelled the same."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= referenced_names(constant)
    return names


# ---- modules


def freeze(x: Any) -> Any:
    """Copy nested containers, to compare with later (`is_unchanged`)."""
    if isinstance(x, dict):
        return {k: freeze(v) for k, v in x.items()}
    return [freeze(v) for v in x] if isinstance(x, (list, tuple)) else x


def is_unchanged(x: Any, was: Any) -> bool:
    """Compare with a frozen copy: plain values by equality, everything else by identity."""
    if isinstance(x, dict):
        return isinstance(was, dict) and list(x) == list(was) and all(is_unchanged(v, was[k]) for k, v in x.items())
    if isinstance(x, (list, tuple)):
        return isinstance(was, list) and len(x) == len(was) and all(map(is_unchanged, x, was))
    return x is was or equal_plain_values(x, was)


VERSION_FIELD = "_version_number"


class ModuleState:
    """A module as it was: its attributes, and the contents of those that are containers."""

    __slots__ = ("cls", "fields", "holders", "module", "version")

    def __init__(self, module: Module) -> None:
        self.module = ref(module)  # weak, so that the module can be collected
        self.cls = type(module)
        self.version = module._version_number
        self.fields = {k: v for k, v in module.__dict__.items() if k != VERSION_FIELD}
        self.holders = [(v, freeze(v)) for v in self.fields.values() if isinstance(v, (dict, list))]

    def holds(self) -> bool:
        """True if nothing differs now. What was changed and changed back counts as unchanged."""
        module = self.module()
        if type(module) is not self.cls:  # its class was exchanged, or it is gone
            return False
        now = module.__dict__
        if len(now) - (VERSION_FIELD in now) != len(self.fields):
            return False
        for name, value in self.fields.items():
            found = now.get(name, ReachableState)
            if found is not value and not equal_plain_values(found, value):
                return False
        return all(is_unchanged(x, was) for x, was in self.holders if x or was)


class ModuleStates:
    """The states of several modules, and the hooks that are registered for all modules."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = [ModuleState(m) for m in modules]
        self.everywhere = dict(GLOBAL_HOOKS)

    def hold(self) -> bool:
        """True if none has changed. Only modules whose change counter moved are compared."""
        for setting in self.modules:
            version = getattr(setting.module(), VERSION_FIELD, None)  # None if it is gone
            if version != setting.version:
                if version is None or not setting.holds():
                    return False
                setting.version = version
        return self.everywhere == GLOBAL_HOOKS

    def changed_by_itself(self) -> Module | None:
        """Return a module that differs from what it was, if there is one."""
        return next((s.module() for s in self.modules if not s.holds()), None)
