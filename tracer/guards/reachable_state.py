"""The objects that a function can reach by name, and guards on what they are.

A skipped call does not look its variables up, so a guard has to notice when one of them is rebound: a global, a closure
variable, an attribute, an element of a list. `ReachableState` walks over all of it once and notes the bindings. Modules count
their changes; they are compared with what they were only when the count has moved.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

import numpy as np

from ...eager.core.library import defining_module
from ...eager.core.structure.object_graph import walk_objects
from ...eager.core.tensor import Tensor
from ...eager.nn.module import Module
from ...eager.nn.module_hooks import GLOBAL_HOOKS
from ...eager.nn.mutation_counter import ModuleTable
from ...eager.optim.optimizer import Optimizer
from .code_guards import class_namespace
from .name_guards import NameGuards
from .plain_values import PLAIN_TYPES, equal_plain_values, holds_same_items, is_non_user_module

NOT_FOLLOWED = (types.BuiltinFunctionType, np.ndarray, np.generic, *PLAIN_TYPES)
BY_STRING = {"getattr", "vars", "globals", "eval", "exec", "attrgetter", "asdict", "astuple", "__dict__", "__getattribute__"}
NOT_IMPLICIT = {
    "__init__", "__new__", "__post_init__", "__init_subclass__", "__class_getitem__", "__del__", "__eq__", "__ne__", "__hash__",
    "__lt__", "__le__", "__gt__", "__ge__", "__repr__", "__str__", "__format__", "__dir__", "__sizeof__", "__replace__",
    "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__",
}  # fmt: skip
MAX_COMPARED_ITEMS = 1000  # of a list or dict: longer ones are guarded by their length
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
    """Modules, optimizers and tensors that some objects lead to, and the bindings through which they are found.

    Bindings are noted where the functions that are reached mention the name: nobody reads `trainer.history` who does not spell
    it, unless names are put together at run time (`BY_STRING`).
    """

    def __init__(self, *starts: Any) -> None:
        self.mentioned: set[str] = {"forward", "__call__"}
        known = 0
        while len(self.mentioned) != known:  # functions that are found mention more names, which lead to more functions
            known = len(self.mentioned)
            self.all_names = not self.mentioned.isdisjoint(BY_STRING)
            self._walk(starts)

    def _walk(self, starts: Iterable[Any]) -> None:
        self.modules: list[Module] = []
        self.optimizers: list[Optimizer] = []
        self.tensors: dict[int, Tensor] = {}
        self.functions: list[types.FunctionType] = []
        self.instances: list[Any] = []  # objects of the user's classes
        self.cells: list[tuple[Any, Any]] = []  # closure cells and their contents
        self.names: list[tuple[dict[str, Any], str, Any]] = []  # namespace, name in it, value
        self.fields: list[tuple[dict[str, Any], str, Any]] = []  # the same, of objects
        self.seen: dict[int, Any] = {}
        self.again: set[int] = set()  # ids of objects that several paths lead to
        for x in walk_objects(starts, is_not_followed, self._parts, self.again):
            self.seen[id(x)] = x
            if len(self.seen) > MAX_REACHABLE_OBJECTS:
                raise NotPureError(f"it can reach more than {MAX_REACHABLE_OBJECTS} objects")

    def _parts(self, x: Any) -> Iterable[Any]:
        if isinstance(x, Tensor):
            self.tensors[id(x)] = x
            return ()
        if isinstance(x, Module):
            self.modules.append(x)
            rest = {k: v for k, v in x.__dict__.items() if k not in _COMPARED_SEPARATELY}
            if not is_non_user_module(type(x).__module__):
                self._note(self.fields, x.__dict__, rest)
            own = (*x._parameters.values(), *x._buffers.values(), *x._modules.values())
            return [*own, *rest.values(), type(x)]
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
        if isinstance(x, type):
            return [
                *self._methods(x),
                *[v for c in user_classes(x) for v in self._note(self.names, class_namespace(c), vars(c))],
            ]
        if isinstance(x, types.ModuleType):
            return self._note(self.names, vars(x), vars(x))
        if isinstance(x, dict):
            return x.values()
        if isinstance(x, (list, tuple, set, frozenset)):
            return x
        return self._attributes(x)

    def _methods(self, cls: type) -> list[Any]:
        """Return the methods of the user's that may run: those that Python calls only to make, compare or show an object have
        to be mentioned."""
        return user_methods(cls, lambda name: name not in NOT_IMPLICIT or name in self.mentioned)

    def _note(self, notes: list[tuple[dict[str, Any], str, Any]], space: dict[str, Any], fields: Any) -> list[Any]:
        """Note the bindings of a namespace whose names are mentioned; returns the objects they hold."""
        found = [(name, v) for name, v in list(fields.items()) if self.all_names or name in self.mentioned]
        notes += [(space, name, v) for name, v in found]
        return [v for _, v in found]

    def _function(self, x: types.FunctionType) -> Iterable[Any]:
        if is_non_user_module(defining_module(x)):
            return (x.__dict__.get("__wrapped__"),)
        self.functions.append(x)
        found: list[Any] = [x.__defaults__, x.__kwdefaults__, x.__dict__.get("__wrapped__")]
        for cell in filled_cells(x):
            self.cells.append((cell, cell.cell_contents))
            found.append(cell.cell_contents)
        self.mentioned |= referenced_names(x.__code__)
        space = x.__globals__
        for name in global_names(x.__code__):
            if name in space and not isinstance(space[name], types.BuiltinFunctionType):
                self.names.append((space, name, space[name]))
                found.append(space[name])
        return found

    def _attributes(self, x: Any) -> Iterable[Any]:
        """Note the attributes of a user's object, and go on with them."""
        fields = getattr(x, "__dict__", None)
        foreign = is_non_user_module(type(x).__module__) and type(x).__name__ not in NAMESPACE_CLASSES
        if type(fields) is dict and foreign and isinstance(fields.get("function"), types.FunctionType):
            return (x.function,)  # a compiled function
        if foreign:
            return ()
        self.instances.append(x)
        if type(fields) is not dict:
            return (type(x),)
        return [*self._note(self.fields, fields, fields), type(x)]

    def guards(self) -> NameGuards:
        """Return guards on all bindings, for a function that is promised to touch only tensors."""
        guards = NameGuards()
        for function in self.functions:
            guards.function_parts(function)
        guards.abstract_classes = not self.mentioned.isdisjoint(("isinstance", "issubclass"))
        for x in self.instances:
            guards.instance(x)
            if type(fields := getattr(x, "__dict__", None)) is dict:
                guards.sized[id(fields)] = fields
        for module in self.modules:
            for table in (module._parameters, module._buffers, module._modules):
                guards.table(table)
        for cell, held in self.cells:
            guards.cells[id(cell)] = (cell, held)
        for space, name, held in (*self.names, *self.fields):
            guards.elements[id(space), name] = (space, name, held)
        bound = [held for *_, held in (*self.cells, *self.names, *self.fields)]
        for x in walk_objects(bound, lambda x: not isinstance(x, (list, dict, tuple)), items_of):
            if not isinstance(x, tuple) and id(x) not in guards.tables and len(x) <= MAX_COMPARED_ITEMS:
                guards.container(x)
        return guards

    def drop_changed(self, guards: NameGuards) -> None:
        """Drop guards on attributes and items that the call itself has changed since: the promise is that these do not matter,
        and that the call need not change them."""
        for i, (x, was) in list(guards.containers.items()):
            if not holds_same_items(x, was):
                del guards.containers[i]
        for space, name, held in self.fields:
            found = space.get(name, ReachableState)
            if found is not held and not equal_plain_values(found, held):
                guards.elements.pop((id(space), name), None)

    def holds(self, t: Tensor) -> bool:
        """True if the walk has met this tensor."""
        return id(t) in self.tensors

    def lone(self, x: Any) -> bool:
        """True if an object that the walk began with was met only once: nothing else leads to it."""
        return id(x) in self.seen and id(x) not in self.again


def is_not_followed(x: Any) -> bool:
    if isinstance(x, type):
        return is_non_user_module(x.__module__)
    return isinstance(x, NOT_FOLLOWED) or (isinstance(x, types.ModuleType) and is_non_user_module(x.__name__))


def items_of(x: Any) -> Iterable[Any]:
    return list(x.values()) if isinstance(x, dict) else x


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


def user_classes(cls: type) -> list[type]:
    """Return the user's classes in `cls.__mro__`."""
    return [c for c in cls.__mro__ if not is_non_user_module(c.__module__)]


def user_methods(cls: type, may_run: Callable[[str], bool]) -> list[Any]:
    """Return the functions that the user's classes define, as they are and without wrappers."""
    found = [f for c in user_classes(cls) for name, f in vars(c).items() if callable(f) and may_run(name)]
    return [*found, *[inspect.unwrap(f) for f in found if "__wrapped__" in getattr(f, "__dict__", ())]]


def filled_cells(function: types.FunctionType) -> list[Any]:
    """Return the cells of a closure that hold something."""
    return [cell for cell in function.__closure__ or () if is_filled(cell)]


def is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@functools.lru_cache(1000)
def global_names(code: types.CodeType) -> frozenset[str]:
    """Return the names that code and the functions inside it look up in their module."""
    names = {
        x.argval for x in dis.get_instructions(code) if x.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    }
    inner = [global_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(names.union(*inner))


def referenced_names(code: types.CodeType) -> set[str]:
    """Return the names that code and the functions inside it spell: of globals, attributes and methods."""
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

    __slots__ = ("cls", "fields", "holders", "module", "tables", "version")

    def __init__(self, module: Module) -> None:
        self.module = ref(module)  # weak, so that the module can be collected
        self.cls = type(module)
        self.version = module._version_number
        self.fields = {k: v for k, v in module.__dict__.items() if k != VERSION_FIELD}
        self.holders = [(v, freeze(v)) for v in self.fields.values() if isinstance(v, (dict, list))]
        self.tables = [(x, was) for x, was in self.holders if type(x) is ModuleTable]

    def has_same_tables(self) -> bool:
        """True if its tables are unchanged, which others may write without it."""
        return all(is_unchanged(x, was) for x, was in self.tables if x or was)

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
    """The states of several modules, and the hooks that are registered for all modules. Looked at when a counter has moved."""

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
            elif not setting.has_same_tables():
                return False
        return self.have_same_hooks()

    def have_same_hooks(self) -> bool:
        """True if the hooks of all modules are the same: those are counted as changes of tensors."""
        return self.everywhere == GLOBAL_HOOKS

    def changed_by_itself(self) -> Module | None:
        """Return a module that differs from what it was, if there is one."""
        return next((s.module() for s in self.modules if not s.holds()), None)
