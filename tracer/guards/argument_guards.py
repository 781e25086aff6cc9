"""The guards of a pure function that run at every call, as one Python function made for them.

They are on the arguments: tensors by their form, each on a memory of its own, all else by equality; and on what the function's
names stand for. A call is judged by what it costs beside the program, so this is unrolled: a test for each thing, no loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_
from typing import Any
from weakref import ref

import numpy as np

from ...eager.arrays.devices import device_of
from ...eager.arrays.deferred import Pending, form_of, resolved
from ...eager.core.tensor import Tensor
from ..replay.matcher import has_form
from .reachable_state import PLAIN, NotPureError, Reach, can_be_watched, equal
from ..trace.trace import Value

SHORT = 8  # items
OTHERWISE = "<otherwise>"  # stands in guards for what is done where one does not hold


def leaves(x: Any) -> Iterator[Any]:
    """What containers hold, in order."""
    if isinstance(x, (list, tuple)):
        for part in x:
            yield from leaves(part)
    elif isinstance(x, dict):
        for part in x.values():
            yield from leaves(part)
    else:
        yield x


def containers(x: Any) -> Iterator[Any]:
    """Nested containers themselves."""
    if isinstance(x, (list, tuple, dict)):
        yield x
        for part in x.values() if isinstance(x, dict) else x:
            yield from containers(part)


def like(x: Any, parts: Iterator[Any]) -> Any:
    """A copy of nested containers with other things in them."""
    if isinstance(x, (list, tuple)):
        found = [like(part, parts) for part in x]
        return type(x)(*found) if hasattr(x, "_fields") else type(x)(found)
    return {k: like(v, parts) for k, v in x.items()} if isinstance(x, dict) else next(parts)


def same_items(x: Any, was: Any) -> bool:
    """Whether a list or a dict holds the same objects, plain ones equal."""
    if len(x) != len(was) or (isinstance(x, dict) and list(x) != list(was)):
        return False
    a, b = (x.values(), was.values()) if isinstance(x, dict) else (x, was)
    return all(map(is_, a, b)) or all(p is q or equal(p, q) for p, q in zip(a, b, strict=True))


def other_items(x: str, known: str, was: Any) -> str:
    """The same as a test in Python, for names of both. Short lists are looked at one by one, without a call."""
    if not isinstance(was, list) or len(was) > SHORT:
        return f"not same_items({x}, {known})"
    others = " or ".join(f"{x}[{i}] is not {known}[{i}]" for i in range(len(was))) or "False"
    return f"len({x}) != {len(was)} or ({others}) and not same_items({x}, {known})"


class Arguments:
    """The arguments of a watched call, and what later ones have to be like."""

    def __init__(self, args: Any, kwargs: Any, reach: Reach) -> None:
        self.given = (args, kwargs)
        self.tensors: list[Tensor] = []
        self.places: dict[int, int] = {}
        for x in leaves(self.given):
            if isinstance(x, (np.ndarray, set, frozenset)):
                raise NotPureError(f"an argument is a {type(x).__name__}")
            if isinstance(x, Tensor) and id(x) not in self.places:
                self.places[id(x)] = len(self.tensors)
                self.tensors.append(x)
        self.reach = reach
        self.lone = {id(x): x for x in leaves(self.given) if reach.lone(x) and can_be_watched(x)}  # which nothing keeps alive
        self.values: list[tuple[int, Value]] = []  # place, value
        self.slots: list[int] = []
        self.without: set[int] = set()
        self.counts: list[tuple[int, int]] = []  # places that are written, and how often
        self.match: Any = None

    def place(self, t: Tensor) -> int | None:
        """The place of a tensor among the arguments."""
        return self.places.get(id(t))

    def expect(self, t: Tensor, value: Value) -> None:
        """An argument is an input of the program."""
        self.values.append((self.places[id(t)], value))
        self.slots.append(value.slot)

    def without_gradient(self, place: int) -> None:
        self.without.add(place)

    def written(self, tensors: tuple[Tensor, ...]) -> list[tuple[Tensor, int]]:
        return [(tensors[place], count) for place, count in self.counts]

    def there(self, args: Any, kwargs: Any) -> bool:
        """Settle arguments that are lent by others. False if there are none."""
        found = [x for x in leaves((args, kwargs)) if isinstance(x, Tensor) and isinstance(x._array, Pending)]
        for t in found:
            t._array = resolved(t._array)
        return bool(found)

    def complete(self, writes: dict[int, int]) -> None:
        """All is known: make the function. `writes` has the slots that the program writes."""
        self.counts = [(place, writes[v.slot]) for place, v in self.values if v.slot in writes]
        self.space: dict[str, Any] = {
            "ndarray": np.ndarray, "Pending": Pending, "has_form": has_form, "equal": equal, "same_items": same_items,
        }  # fmt: skip
        self.tests: list[str] = []
        self.seen: set[int] = set()
        self._names()
        args, kwargs = self.given
        self._container(args, "args")
        self._container(kwargs, "kwargs")
        self._apart()
        tensors = "".join(f"t{i}, " for i in range(len(self.tensors)))
        for place, value in self.values:
            self._refuse_if(f"id(a{place}) in ids")  # memory that is captured as well
            self.tests.append(f"arrays[{value.slot}] = a{place}")
        self.found = f"({tensors})"  # the arguments that are tensors, as Python
        lines = ["try:", *[f"    {line}" for line in (*self.text("return None"), f"return {self.found}")]]
        lines += ["except (KeyError, ValueError, AttributeError):", "    return None"]  # a name is gone
        self.match = self.function("match(args, kwargs, arrays, ids)", lines)
        del self.given, self.tensors, self.seen, self.reach, self.lone

    def text(self, otherwise: str) -> list[str]:
        """The guards, as lines over `args`, `kwargs`, `arrays` and `ids`, with what to do where one does not hold."""
        return [line.replace(OTHERWISE, otherwise) for line in self.tests]

    def function(self, head: str, lines: list[str]) -> Any:
        """A Python function of such lines."""
        exec(compile("\n    ".join([f"def {head}:", *lines]), "<tapejit guards>", "exec"), self.space)
        return self.space.pop(head.partition("(")[0])  # so that it does not refer to itself

    def _constant(self, value: Any) -> str:
        name = f"k{len(self.space)}"
        self.space[name] = value
        return name

    def _refuse_if(self, test: str) -> None:
        self.tests.append(f"if {test}: {OTHERWISE}")

    def _names(self) -> None:
        for cell, held in self.reach.cells:
            self._stands_for(f"{self._constant(cell)}.cell_contents", held)
        for space, name, held in self.reach.names:
            self._stands_for(f"{self._constant(space)}[{name!r}]", held)
        for found, was in self.reach.lists:
            self._refuse_if(other_items(self._constant(found), self._constant(was), was))

    def _stands_for(self, place: str, held: Any) -> None:
        known = self._constant(held)
        more = f" and not equal({place}, {known})" if isinstance(held, PLAIN) else ""
        self._refuse_if(f"{place} is not {known}{more}")

    def _container(self, x: Any, place: str) -> None:
        if isinstance(x, (list, tuple, dict)):
            name = f"c{len(self.space)}"
            self.space[name] = None
            self.tests.append(f"{name} = {place}")
            self._refuse_if(f"{name}.__class__ is not {self._constant(type(x))} or len({name}) != {len(x)}")
            keys = list(x) if isinstance(x, dict) else range(len(x))
            if isinstance(x, dict) and x:
                self._refuse_if(f"list({name}) != {self._constant(keys)}")
            for key in keys:
                self._container(x[key], f"{name}[{key!r}]" if isinstance(key, (str, int)) else f"{name}[{self._constant(key)}]")
        elif isinstance(x, Tensor):
            self._tensor(x, place)
        elif id(x) in self.lone:
            known, cls = self._constant(ref(x)), self._constant(type(x))
            self._refuse_if(f"(x := {place}) is None or x is not {known}() or x.__class__ is not {cls}")
        else:
            self._stands_for(place, x)

    def _tensor(self, x: Tensor, place: str) -> None:
        i = self.places[id(x)]
        if i in self.seen:
            self._refuse_if(f"{place} is not t{i}")
            return
        self.seen.add(i)
        t, a = f"t{i}", f"a{i}"
        array = resolved(x._array)
        form = form_of(array, device_of(array))
        self.tests += [f"{t} = {place}"]
        self._refuse_if(f"{t}.__class__ is not {self._constant(type(x))}")
        self.tests.append(f"{a} = {t}._array")
        if form.on_cpu:
            shape, dtype, strides = (self._constant(v) for v in (form.shape, form.dtype, form.strides))
            self._refuse_if(f"{a}.__class__ is not ndarray or {a}.shape != {shape}")
            self._refuse_if(f"{a}.dtype is not {dtype} or {a}.strides != {strides}")
        else:
            self._refuse_if(f"isinstance({a}, Pending)")
            self._refuse_if(f"not has_form({a}, {self._constant(form)})")
        tracked = "is" if x._node is not None else "is not"
        self._refuse_if(f"{t}._requires_grad is not {x._requires_grad} or {t}._node {tracked} None")
        written = any(i == place for place, _ in self.counts)
        if written:
            self._refuse_if(f"{t}._base is not None" + (f" or not {a}.flags.writeable" if form.on_cpu else ""))
        else:
            self._refuse_if(f"{t}._base is not None and {t}._rebased != {t}._base._rebased")
        if x._requires_grad:
            self._refuse_if(f"{t}._hooks or {t}._after_accumulate")
        if i in self.without:
            self._refuse_if(f"{t}._grad is not None")

    def _apart(self) -> None:
        """Arguments that were different arrays have to be."""
        n = len(self.tensors)
        if n > 4:
            self._refuse_if(f"len({{{', '.join(f'id(a{i})' for i in range(n))}}}) != {n}")
        for i in range(n if n <= 4 else 0):
            for j in range(i):
                self._refuse_if(f"a{i} is a{j}")
