"""What a proof rests on: names, attributes and elements that have to be what they were, looked at before each call.

All of it is one Python function without loops, as in `pure_match.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import is_
from typing import Any

from .argument_guards import other_items, same_items
from .reachable_state import PLAIN, equal

ABSENT = object()


class Proof:
    """What may be skipped as long as some guards hold."""

    def __init__(self, guards: Guards) -> None:
        self.holds = guards.function()
        self.found = {id(x): x for x in guards.read()}

    def rests_on(self, same_code: Callable[[], bool]) -> None:
        """The library's code has to be what it was, too."""
        holds = self.holds
        self.holds = lambda: holds() and same_code()

    def reads(self, x: Any) -> bool:
        """Whether a function has an object from elsewhere than its arguments."""
        return id(x) in self.found


class Guards:
    """Collects what is read, and makes the function."""

    def __init__(self, given: Iterable[Any] = ()) -> None:
        self.given = {id(x) for x in given}  # objects among the arguments, which must not be kept
        self.attributes: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.elements: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.cells: dict[int, tuple[Any, Any]] = {}
        self.containers: dict[int, tuple[Any, Any]] = {}
        self.tables: dict[int, dict[str, Any]] = {}  # of modules: their parameters, buffers and children
        self.forms: dict[int, Any] = {}  # tensors whose shape or dtype was read

    def is_given(self, x: Any) -> bool:
        return id(x) in self.given

    def attribute(self, x: Any, name: str) -> Any:
        """An attribute of a class, a function or a namespace."""
        held = getattr(x, name)
        self.attributes[id(x), name] = (x, name, held)
        return held

    def element(self, space: Any, name: str) -> Any:
        """What a dict of names holds, or that it holds nothing."""
        held = space.get(name, ABSENT)
        self.elements[id(space), name] = (space, name, held)
        return held

    def cell(self, cell: Any) -> Any:
        held = cell.cell_contents
        self.cells[id(cell)] = (cell, held)
        return held

    def container(self, x: Any) -> None:
        """A list or a dict."""
        self.containers[id(x)] = (x, x.copy())

    def table(self, table: dict[str, Any]) -> None:
        if table:
            self.tables[id(table)] = table

    def form(self, tensor: Any) -> None:
        self.forms[id(tensor)] = tensor

    def read(self) -> Iterator[Any]:
        """All objects that were found in these places."""
        places = (*self.attributes.values(), *self.elements.values(), *self.cells.values(), *self.containers.values())
        for held in [*[place[-1] for place in places], *self.tables.values()]:
            if isinstance(held, dict):
                yield from held.values()
            elif isinstance(held, (list, tuple)):
                yield from held
            else:
                yield held

    def function(self) -> Callable[[], bool]:
        """Whether all is as it was, and nobody watches Python run: a debugger has to see its lines."""
        space: dict[str, Any] = {
            "gettrace": sys.gettrace, "getprofile": sys.getprofile, "equal": equal, "same_items": same_items, "ABSENT": ABSENT,
        }  # fmt: skip
        lines = ["if gettrace() is not None or getprofile() is not None: return False"]

        def constant(x: Any) -> str:
            space[f"k{len(space)}"] = x
            return f"k{len(space) - 1}"

        def stands_for(place: str, held: Any) -> None:
            known = constant(held)
            more = f" and not equal({place}, {known})" if isinstance(held, PLAIN) else ""
            lines.append(f"if {place} is not {known}{more}: return False")

        if sys.version_info >= (3, 12):  # what watches without a trace function
            space["tool"] = sys.monitoring.get_tool
            lines.append("if tool(0) is not None or tool(1) is not None: return False")
        for x, name, held in self.attributes.values():
            stands_for(f"{constant(x)}.{name}", held)
        for x, name, held in self.elements.values():
            stands_for(f"{constant(x)}.get({name!r}, ABSENT)", held)
        for cell, held in self.cells.values():
            stands_for(f"{constant(cell)}.cell_contents", held)
        for x, was in self.containers.values():
            lines.append(f"if {other_items(constant(x), constant(was), was)}: return False")
        for x in self.forms.values():  # of memory that is lent, too: its form is known without a look at it
            array, shape, dtype = f"{constant(x)}._array", constant(x._array.shape), constant(x._array.dtype)
            lines.append(f"if {array}.shape != {shape} or {array}.dtype != {dtype}: return False")
        if self.tables:
            tables = list(self.tables.values())
            found = [v for table in tables for v in table.values()]
            space.update(chain=chain.from_iterable, values=dict.values, is_=is_, TABLES=tables, FOUND=found)
            lines.append(f"if sum(map(len, TABLES)) != {len(found)}: return False")
            lines.append("if not all(map(is_, chain(map(values, TABLES)), FOUND)): return False")
        body = "".join(f"        {line}\n" for line in (*lines, "return True"))
        text = f"def holds():\n    try:\n{body}    except (AttributeError, ValueError):\n        return False\n"  # it is gone
        exec(compile(text, "<tapejit proof>", "exec"), space)
        return space.pop("holds")  # type: ignore[no-any-return]  # so that it does not refer to itself
