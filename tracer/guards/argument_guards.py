"""Guards on the arguments of a skipped call, compiled to one Python function.

Tensors are guarded by their form (class, shape, dtype, strides, device) and have to lie in separate memory; everything else is
guarded by equality. The names that the function reads are guarded in the same generated function. It runs at every call, so it
is unrolled: one test per thing, no loops.
"""

from __future__ import annotations

from operator import is_
from typing import Any
from weakref import ref

import numpy as np

from ...eager.arrays.deferred import DeferredArray, form_of, resolve_array
from ...eager.arrays.devices import device_of
from ...eager.core.structure.pytree import leaves
from ...eager.core.tensor import Tensor
from ..trace.generated_python import compile_function
from ..trace.trace import Value
from .plain_values import PLAIN_TYPES, equal_plain_values
from .reachable_state import NotPureError, ReachableState, is_weakly_trackable
from .tensor_guards import has_form

MAX_UNROLLED_ITEMS = 8  # longer lists are compared by a function call
ON_FAILURE = "<otherwise>"  # placeholder in guard lines for the statement that runs when a guard fails


def holds_same_items(x: Any, was: Any) -> bool:
    """True if a list or dict holds the same objects, or equal plain values, in the same order."""
    if len(x) != len(was) or (isinstance(x, dict) and list(x) != list(was)):
        return False
    a, b = (x.values(), was.values()) if isinstance(x, dict) else (x, was)
    return all(map(is_, a, b)) or all(p is q or equal_plain_values(p, q) for p, q in zip(a, b, strict=True))


def different_items_test(x: str, known: str, was: Any) -> str:
    """Write the Python test that is true when the items differ. Short lists are compared item by item, without a call."""
    if not isinstance(was, list) or len(was) > MAX_UNROLLED_ITEMS:
        return f"not same_items({x}, {known})"
    others = " or ".join(f"{x}[{i}] is not {known}[{i}]" for i in range(len(was))) or "False"
    return f"len({x}) != {len(was)} or ({others}) and not same_items({x}, {known})"


class ArgumentGuards:
    """The guards that later calls have to pass to be like an observed call.

    Built in steps: the constructor reads the arguments, `expect` marks program inputs, `complete` compiles `match`.
    """

    def __init__(self, args: Any, kwargs: Any, reach: ReachableState) -> None:
        self.given = (args, kwargs)
        self.tensors: list[Tensor] = []
        self.places: dict[int, int] = {}
        for x in leaves(self.given):
            if isinstance(x, (np.ndarray, set, frozenset)):
                raise NotPureError(f"an argument is a {type(x).__name__}, which cannot be guarded")
            if isinstance(x, Tensor) and id(x) not in self.places:
                self.places[id(x)] = len(self.tensors)
                self.tensors.append(x)
        self.reach = reach
        # objects that nothing else keeps alive: guarded by a weak reference
        self.lone = {id(x): x for x in leaves(self.given) if reach.lone(x) and is_weakly_trackable(x)}
        self.values: list[tuple[int, Value]] = []  # place, value
        self.slots: list[int] = []
        self.without: set[int] = set()
        self.counts: list[tuple[int, int]] = []  # places that are written, and how often
        self.match: Any = None

    def place(self, t: Tensor) -> int | None:
        """Return the position of a tensor among the arguments."""
        return self.places.get(id(t))

    def expect(self, t: Tensor, value: Value) -> None:
        """Make an argument an input of the program."""
        self.values.append((self.places[id(t)], value))
        self.slots.append(value.slot)

    def without_gradient(self, place: int) -> None:
        self.without.add(place)

    def written(self, tensors: tuple[Tensor, ...]) -> list[tuple[Tensor, int]]:
        return [(tensors[place], count) for place, count in self.counts]

    def there(self, args: Any, kwargs: Any) -> bool:
        """Materialise arguments that hold deferred memory. False if there are none."""
        found = [x for x in leaves((args, kwargs)) if isinstance(x, Tensor) and isinstance(x.tj_array, DeferredArray)]
        for t in found:
            t.tj_array = resolve_array(t.tj_array)
        return bool(found)

    def complete(self, writes: dict[int, int]) -> None:
        """Compile `match`. `writes` maps the slots that the program writes to how often it does."""
        self.counts = [(place, writes[v.slot]) for place, v in self.values if v.slot in writes]
        self.space: dict[str, Any] = {
            "ndarray": np.ndarray, "DeferredArray": DeferredArray, "has_form": has_form,
            "equal": equal_plain_values, "same_items": holds_same_items,
        }  # fmt: skip
        self.tests: list[str] = []
        self.seen: set[int] = set()
        self._names()
        args, kwargs = self.given
        self._container(args, "args")
        self._container(kwargs, "kwargs")
        self._require_distinct_arrays()
        tensors = "".join(f"t{i}, " for i in range(len(self.tensors)))
        for place, value in self.values:
            self._fail_if(f"id(a{place}) in ids")  # the function captures the same memory
            self.tests.append(f"arrays[{value.slot}] = a{place}")
        self.found = f"({tensors})"  # expression for the tuple of tensor arguments
        lines = ["try:", *[f"    {line}" for line in (*self.text("return None"), f"return {self.found}")]]
        lines += ["except (KeyError, ValueError, AttributeError):", "    return None"]  # a name is gone
        self.match = self.function("match(args, kwargs, arrays, ids)", lines)
        del self.given, self.tensors, self.seen, self.reach, self.lone

    def text(self, otherwise: str) -> list[str]:
        """Return the guards as lines over `args`, `kwargs`, `arrays` and `ids`; `otherwise` runs where one fails."""
        return [line.replace(ON_FAILURE, otherwise) for line in self.tests]

    def function(self, head: str, lines: list[str]) -> Any:
        """Compile such lines to a Python function."""
        text = [f"def {head}:", *[f"    {line}" for line in lines]]
        return compile_function(head.partition("(")[0], text, "guards", self.space)

    def _constant(self, value: Any) -> str:
        name = f"k{len(self.space)}"
        self.space[name] = value
        return name

    def _fail_if(self, test: str) -> None:
        self.tests.append(f"if {test}: {ON_FAILURE}")

    def _names(self) -> None:
        for cell, held in self.reach.cells:
            self._require_identical(f"{self._constant(cell)}.cell_contents", held)
        for space, name, held in self.reach.names:
            self._require_identical(f"{self._constant(space)}[{name!r}]", held)
        for found, was in self.reach.lists:
            self._fail_if(different_items_test(self._constant(found), self._constant(was), was))

    def _require_identical(self, place: str, held: Any) -> None:
        known = self._constant(held)
        more = f" and not equal({place}, {known})" if isinstance(held, PLAIN_TYPES) else ""
        self._fail_if(f"{place} is not {known}{more}")

    def _container(self, x: Any, place: str) -> None:
        if isinstance(x, (list, tuple, dict)):
            name = f"c{len(self.space)}"
            self.space[name] = None
            self.tests.append(f"{name} = {place}")
            self._fail_if(f"{name}.__class__ is not {self._constant(type(x))} or len({name}) != {len(x)}")
            keys = list(x) if isinstance(x, dict) else range(len(x))
            if isinstance(x, dict) and x:
                self._fail_if(f"list({name}) != {self._constant(keys)}")
            for key in keys:
                self._container(x[key], f"{name}[{key!r}]" if isinstance(key, (str, int)) else f"{name}[{self._constant(key)}]")
        elif isinstance(x, Tensor):
            self._tensor(x, place)
        elif id(x) in self.lone:
            known, cls = self._constant(ref(x)), self._constant(type(x))
            self._fail_if(f"(x := {place}) is None or x is not {known}() or x.__class__ is not {cls}")
        else:
            self._require_identical(place, x)

    def _tensor(self, x: Tensor, place: str) -> None:
        i = self.places[id(x)]
        if i in self.seen:
            self._fail_if(f"{place} is not t{i}")
            return
        self.seen.add(i)
        t, a = f"t{i}", f"a{i}"
        array = resolve_array(x.tj_array)
        form = form_of(array, device_of(array))
        self.tests += [f"{t} = {place}"]
        self._fail_if(f"{t}.__class__ is not {self._constant(type(x))}")
        self.tests.append(f"{a} = {t}.tj_array")
        if form.on_cpu:
            shape, dtype, strides = (self._constant(v) for v in (form.shape, form.dtype, form.strides))
            self._fail_if(f"{a}.__class__ is not ndarray or {a}.shape != {shape}")
            self._fail_if(f"{a}.dtype is not {dtype} or {a}.strides != {strides}")
        else:
            self._fail_if(f"isinstance({a}, DeferredArray)")
            self._fail_if(f"not has_form({a}, {self._constant(form)})")
        tracked = "is" if x.tj_node is not None else "is not"
        self._fail_if(f"{t}.tj_requires_grad is not {x.tj_requires_grad} or {t}.tj_node {tracked} None")
        written = any(i == place for place, _ in self.counts)
        if written:
            self._fail_if(f"{t}.tj_base is not None" + (f" or not {a}.flags.writeable" if form.on_cpu else ""))
        else:
            self._fail_if(f"{t}.tj_base is not None and {t}.tj_rebased != {t}.tj_base.tj_rebased")
        if x.tj_requires_grad:
            self._fail_if(f"{t}.tj_hooks or {t}.tj_accumulate_hooks")
        if i in self.without:
            self._fail_if(f"{t}.tj_grad is not None")

    def _require_distinct_arrays(self) -> None:
        """Require that arguments which were different arrays still are."""
        n = len(self.tensors)
        if n > 4:
            self._fail_if(f"len({{{', '.join(f'id(a{i})' for i in range(n))}}}) != {n}")
        for i in range(n if n <= 4 else 0):
            for j in range(i):
                self._fail_if(f"a{i} is a{j}")
