"""Guards on names: globals, closure cells, attributes and elements that a proved function reads.

`NameGuards` collects them while the prover runs, then compiles them to one Python function without loops, which is called
before each skipped call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import is_
from typing import Any

from ..trace.generated_python import compile_function
from .argument_guards import different_items_test, holds_same_items
from .plain_values import PLAIN_TYPES, equal_plain_values

ABSENT = object()


class Proof:
    """A proof that the Python of a function may be skipped while `holds()`."""

    def __init__(self, guards: NameGuards) -> None:
        self.holds = guards.function()
        self.found = {id(x): x for x in guards.read()}

    def rests_on(self, same_code: Callable[[], bool]) -> None:
        """Require that the library's code is unchanged, too."""
        holds = self.holds
        self.holds = lambda: holds() and same_code()

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
        self.forms: dict[int, Any] = {}  # tensors whose shape or dtype was read

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

    def form(self, tensor: Any) -> None:
        self.forms[id(tensor)] = tensor

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
        """Compile the check. It also fails while a debugger or profiler is active, which has to see the lines run."""
        space: dict[str, Any] = {
            "gettrace": sys.gettrace, "getprofile": sys.getprofile,
            "equal": equal_plain_values, "same_items": holds_same_items, "ABSENT": ABSENT,
        }  # fmt: skip
        lines = ["if gettrace() is not None or getprofile() is not None: return False"]

        def constant(x: Any) -> str:
            space[f"k{len(space)}"] = x
            return f"k{len(space) - 1}"

        def stands_for(place: str, held: Any) -> None:
            known = constant(held)
            more = f" and not equal({place}, {known})" if isinstance(held, PLAIN_TYPES) else ""
            lines.append(f"if {place} is not {known}{more}: return False")

        if sys.version_info >= (3, 12):  # tools that observe without a trace function
            space["tool"] = sys.monitoring.get_tool
            lines.append("if tool(0) is not None or tool(1) is not None: return False")
        for x, name, held in self.attributes.values():
            stands_for(f"{constant(x)}.{name}", held)
        for x, name, held in self.elements.values():
            stands_for(f"{constant(x)}.get({name!r}, ABSENT)", held)
        for cell, held in self.cells.values():
            stands_for(f"{constant(cell)}.cell_contents", held)
        for x, was in self.containers.values():
            lines.append(f"if {different_items_test(constant(x), constant(was), was)}: return False")
        for x in self.forms.values():  # deferred memory, too: its form is known without materialising it
            array, shape, dtype = f"{constant(x)}.tj_array", constant(x.tj_array.shape), constant(x.tj_array.dtype)
            lines.append(f"if {array}.shape != {shape} or {array}.dtype != {dtype}: return False")
        if self.tables:
            tables = list(self.tables.values())
            found = [v for table in tables for v in table.values()]
            space.update(chain=chain.from_iterable, values=dict.values, is_=is_, TABLES=tables, FOUND=found)
            lines.append(f"if sum(map(len, TABLES)) != {len(found)}: return False")
            lines.append("if not all(map(is_, chain(map(values, TABLES)), FOUND)): return False")
        body = [f"        {line}" for line in (*lines, "return True")]
        text = ["def holds():", "    try:", *body, "    except (AttributeError, ValueError):", "        return False"]  # gone
        return compile_function("holds", text, "name guards", space)
