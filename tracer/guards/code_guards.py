"""Guards on the library's own code: would the functions that ran while a region was recorded still do the same?

A region skips the library's Python, and anybody may replace that: a function in a module, a method of a class, a constant.
`code_observer.py` lists the functions that ran. The names that they use resolve in a module or class of the library; while all
of these bindings are unchanged, the functions do what they did.

Modules count assignments to their names (`ObservedModule`), so one comparison covers all of them; names in classes are compared
each time, 15 ns each. The guard is a Python function without loops, and regions that ran the same code share one. Not guarded:
kernels, as a replay never runs them; builtins; other people's modules; names set behind a module's back
(`vars(module)[name] = ...`).
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ...eager.core.library import is_library, without_library_decorators
from ...eager.core.tensor import Tensor
from ...eager.nn.parameter import Buffer, Parameter
from ..trace.generated_python import compile_function
from .code_observer import ObservedCode

TENSOR_CLASSES = (Tensor, Parameter, Buffer)
TENSOR_OPERATORS = tuple(name for name in vars(Tensor) if name.startswith("__") and callable(vars(Tensor)[name]))
REBOUND_BY_LIBRARY = ("_default", "_default_device", "_cache")  # names that the library itself rebinds
MAX_CACHED_GUARDS = 1000  # then the cache is cleared

Binding = tuple[dict[str, Any], str, Any]  # namespace of a module or class, name in it, value it is bound to
Bindings = dict[tuple[int, str], Binding]

NAME_CHANGES = [0]  # a new number for each name that is set in a module of the library
_numbers = itertools.count(1)


class ObservedModule(ModuleType):
    """A module of the library that counts when somebody replaces a name in it."""

    def __setattr__(self, name: str, value: Any) -> None:
        NAME_CHANGES[0] = next(_numbers)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        NAME_CHANGES[0] = next(_numbers)
        super().__delattr__(name)


# ---- guards


_guards_by_code: dict[Any, Callable[[], bool]] = {}


def code_guard(ran: Iterable[ObservedCode], classes: Iterable[type] = ()) -> Callable[[], bool]:
    """Return a function that is true while `ran` would do the same. `classes` are those of objects whose attributes it read."""
    codes = ObservedCode()
    for part in ran:
        codes.update(part)
    kinds = frozenset(classes)
    key = frozenset(codes), kinds
    found = _guards_by_code.get(key)
    if found is None or not found():
        if len(_guards_by_code) >= MAX_CACHED_GUARDS:
            _guards_by_code.clear()
        found = _guards_by_code[key] = CodeDependencies(codes, kinds).function()
    return found


class CodeDependencies:
    """The bindings in modules and classes that some functions depend on."""

    def __init__(self, codes: ObservedCode, classes: Iterable[type]) -> None:
        self.codes = codes
        self.in_modules: Bindings = {}
        self.in_classes: Bindings = {}
        self.names = {name for code, _ in codes.values() for name in code.co_names}
        for code, space in codes.values():
            self.watch(space["__name__"])
            for name in code.co_names:
                if name in space:
                    self.look_up(code, space, name)
            found = class_of(code, space)
            if found is not None:
                add_binding(self.in_classes, class_namespace(found), code.co_name)
        kinds = {c for cls in (*TENSOR_CLASSES, *classes) for c in cls.__mro__ if is_library(c, "eager")}
        self.classes = [class_namespace(cls) for cls in kinds]
        for cls in kinds:
            self.look_in(class_namespace(cls), cls not in TENSOR_CLASSES)

    def watch(self, name: str) -> None:
        module = sys.modules.get(name)
        if type(module) is ModuleType:
            module.__class__ = ObservedModule

    def look_up(self, code: CodeType, space: dict[str, Any], name: str) -> None:
        """Add a name that a function may have read from its module."""
        value = space[name]
        if name in REBOUND_BY_LIBRARY:
            add_binding(self.in_classes, space, name)
        elif isinstance(value, ModuleType):
            add_binding(self.in_modules, space, name)
            if is_library(value, "eager"):
                self.watch(value.__name__)
                for inner in code.co_names:
                    if inner in vars(value) and self.may_matter(vars(value)[inner]):
                        add_binding(self.in_classes if inner in REBOUND_BY_LIBRARY else self.in_modules, vars(value), inner)
        elif not name.startswith("__") and self.may_matter(value):
            add_binding(self.in_modules, space, name)

    def look_in(self, fields: dict[str, Any], constants: bool) -> None:
        """Add the names of a class that the code uses, and operators, which no code spells out."""
        for name in (*(fields.keys() & self.names), *(n for n in TENSOR_OPERATORS if n in fields)):
            value = fields[name]
            if self.may_matter(value) if code_of(value) is not None else constants and not name.startswith("__"):
                add_binding(self.in_classes, fields, name)

    def may_matter(self, value: Any) -> bool:
        """False for functions of the library that did not run."""
        code = code_of(value)
        return code is None or id(code) in self.codes or not is_library(code, "eager")

    def used(self) -> list[set[str]]:
        """Return the names in each class that the code may use."""
        return [{name for name in fields if name in self.names or name.startswith("__")} for fields in self.classes]

    def function(self) -> Callable[[], bool]:
        """Compile the check that all bindings are unchanged."""
        places, classes, before = list(self.in_modules.values()), self.classes, self.used()
        seen, size = [NAME_CHANGES[0]], [sum(map(len, classes))]

        def in_modules() -> bool:
            now = NAME_CHANGES[0]
            if all(space.get(name) is held for space, name, held in places):
                seen[0] = now
                return True
            return False

        def no_others() -> bool:
            """True if the names that classes gained or lost since are none that the code uses."""
            now = sum(map(len, classes))
            if self.used() == before:
                size[0] = now
                return True
            return False

        count = " + ".join(f"len(c{i})" for i in range(len(classes)))
        tests = ["(SET[0] == seen[0] or in_modules())", f"({count} == size[0] or no_others())"]
        space: dict[str, Any] = {
            "SET": NAME_CHANGES,
            "seen": seen,
            "size": size,
            "in_modules": in_modules,
            "no_others": no_others,
        }
        space.update({f"c{i}": fields for i, fields in enumerate(classes)})
        for i, (fields, name, held) in enumerate(self.in_classes.values()):
            space[f"d{i}"], space[f"h{i}"] = fields, held
            tests.append(f"d{i}[{name!r}] is h{i}")
        lines = ["def same():", f"    try: return {' and '.join(tests)}", "    except KeyError: return False"]
        return compile_function("same", lines, "code guards", space)


def add_binding(places: Bindings, space: dict[str, Any], name: str) -> None:
    places[id(space), name] = (space, name, space[name])


def code_of(value: Any) -> CodeType | None:
    """Return the code of a function, method or property, without the library's own decorators."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if not isinstance(value, FunctionType):
        return None
    return without_library_decorators(value).__code__


def class_of(code: CodeType, space: dict[str, Any]) -> type | None:
    """Return the class that defines a method, found by its qualified name."""
    *path, name = code.co_qualname.split(".")
    found: Any = space.get(path[0]) if path else None
    for part in path[1:]:
        found = vars(found).get(part) if isinstance(found, type) else None
    return found if isinstance(found, type) and code_of(vars(found).get(name)) is code else None


def class_namespace(cls: type) -> dict[str, Any]:
    """Return the dict of a class itself, which is quicker to read than the proxy that `vars` gives."""
    (found,) = (x for x in gc.get_referents(vars(cls)) if type(x) is dict)
    return found
