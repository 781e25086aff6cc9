"""Guards on names: globals, closure cells, attributes and elements that a proved function reads.

`NameGuards` collects them while the prover runs, then compiles them to one Python function without loops, which is called
before each skipped call.
"""

from __future__ import annotations

from abc import get_cache_token
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import is_
from typing import Any

from ...eager.nn.mutation_counter import ModuleTable
from ..trace.generated_python import compile_function
from .code_guards import class_namespace
from .plain_values import PLAIN_TYPES, different_items_test, equal_plain_values, holds_same_items, is_non_user_module

ABSENT = object()
GONE = "(AttributeError, KeyError, ValueError)"  # what looking up a name raises that is not there any more


class Proof:
    """A proof that the Python of a function may be skipped while `holds()`."""

    def __init__(self, guards: NameGuards) -> None:
        self.guards: NameGuards | None = guards  # all that it asks; None once it asks more
        self.holds = guards.function()
        self.found = {id(x): x for x in guards.read()}

    def rests_on(self, same_code: Callable[[], bool]) -> None:
        """Require that the library's code is unchanged, too."""
        holds, self.guards = self.holds, None
        self.holds = lambda: holds() and same_code()

    def forget(self) -> None:
        """Drop what is guarded: the proof is not used any more."""
        self.holds, self.found, self.guards = lambda: False, {}, None

    def reads(self, x: Any) -> bool:
        """True if the function read this object from a name, rather than from its arguments."""
        return id(x) in self.found


class NameGuards:
    """Collects what a function reads, and compiles the check that all of it is unchanged."""

    def __init__(self, given: Iterable[Any] = ()) -> None:
        self.given = {id(x) for x in given}  # objects among the arguments, which must not be kept
        self.attributes: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.elements: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.cells: dict[int, tuple[Any, Any]] = {}
        self.containers: dict[int, tuple[Any, Any]] = {}
        self.tables: dict[int, dict[str, Any]] = {}  # of modules: their parameters, buffers and children
        self.sized: dict[int, Any] = {}  # namespaces that must gain no name: of classes whose instances' attributes were read
        self.abstract_classes = False  # if abstract base classes are asked about: one may register another class

    def is_given(self, x: Any) -> bool:
        """True for an object that is an argument."""
        return id(x) in self.given

    def attribute(self, x: Any, name: str) -> Any:
        """Read and guard an attribute of a class, a function or a namespace."""
        held = getattr(x, name)
        self.attributes[id(x), name] = (x, name, held)
        return held

    def element(self, space: Any, name: str) -> Any:
        """Read and guard a name in a dict; `ABSENT` guards that it is not there."""
        held = space.get(name, ABSENT)
        self.elements[id(space), name] = (space, name, held)
        return held

    def cell(self, cell: Any) -> Any:
        held = cell.cell_contents
        self.cells[id(cell)] = (cell, held)
        return held

    def container(self, x: Any) -> None:
        """Guard all items of a list or a dict."""
        self.containers[id(x)] = (x, x.copy())

    def table(self, table: dict[str, Any]) -> None:
        if table:
            self.tables[id(table)] = table

    def function_parts(self, function: Any) -> None:
        """Guard what a call of a function depends on beside its names: its code and its defaults. Where it has none, its
        calls give all arguments, and defaults that it gets later change nothing."""
        self.attribute(function, "__code__")
        if function.__defaults__:
            self.attribute(function, "__defaults__")
        if function.__kwdefaults__:
            self.attribute(function, "__kwdefaults__")
            self.container(function.__kwdefaults__)

    def instance(self, x: Any) -> None:
        """Guard that attributes of an object are looked up as before: its class, its dict, and no new names in its class."""
        if not self.is_given(x):  # of which these are looked at with the arguments
            self.attribute(x, "__class__")
            if hasattr(x, "__dict__"):
                self.attribute(x, "__dict__")
        self.class_names(type(x))

    def class_names(self, cls: type) -> None:
        """Guard that a class and its bases gain no name: a property would come before an instance's own attribute."""
        self.sized |= {id(c): class_namespace(c) for c in cls.__mro__ if not is_non_user_module(c.__module__)}

    def read(self) -> Iterator[Any]:
        """Yield every object that a guarded name holds."""
        places = (*self.attributes.values(), *self.elements.values(), *self.cells.values(), *self.containers.values())
        for held in [*[place[-1] for place in places], *self.tables.values()]:
            if isinstance(held, dict):
                yield from held.values()
            elif isinstance(held, (list, tuple)):
                yield from held
            else:
                yield held

    def function(self) -> Callable[[], bool]:
        """Compile the check."""
        space: dict[str, Any] = {}

        def constant(x: Any) -> str:
            space[f"k{len(space)}"] = x
            return f"k{len(space) - 1}"

        body = [f"        {line}" for line in (*self.lines(space, constant, "return False"), "return True")]
        text = ["def holds():", "    try:", *body, f"    except {GONE}:", "        return False"]
        return compile_function("holds", text, "name guards", space)

    def lines(self, space: dict[str, Any], constant: Callable[[Any], str], otherwise: str) -> list[str]:
        """Write the check as lines, for a block that catches `GONE`; `otherwise` is the statement where it fails."""
        space.update(equal=equal_plain_values, same_items=holds_same_items, ABSENT=ABSENT)
        tests: list[str] = []

        def stands_for(place: str, held: Any) -> None:
            known = constant(held)
            more = f" and not equal({place}, {known})" if isinstance(held, PLAIN_TYPES) else ""
            tests.append(f"{place} is not {known}{more}")

        for x, name, held in self.attributes.values():
            stands_for(f"{constant(x)}.{name}", held)
        for x, name, held in self.elements.values():
            stands_for(f"{constant(x)}.get({name!r}, ABSENT)" if held is ABSENT else f"{constant(x)}[{name!r}]", held)
        for cell, held in self.cells.values():
            stands_for(f"{constant(cell)}.cell_contents", held)
        for x, was in self.containers.values():
            tests.append(different_items_test(constant(x), constant(was), was))
        if self.sized:
            tests.append(" or ".join([f"len({constant(fields)}) != {len(fields)}" for fields in self.sized.values()]))
        if self.abstract_classes:
            tests.append(f"{constant(get_cache_token)}() != {constant(get_cache_token())}")
        tables = [table for table in self.tables.values() if type(table) is not ModuleTable]  # those count their changes
        if tables:
            found = [v for table in tables for v in table.values()]
            space.update(chain=chain.from_iterable, values=dict.values, is_=is_, TABLES=tables, FOUND=found)
            tests.append(f"sum(map(len, TABLES)) != {len(found)}")
            tests.append("not all(map(is_, chain(map(values, TABLES)), FOUND))")
        return [f"if {test}: {otherwise}" for test in tests]
