"""Guards on the arguments of a skipped call, compiled to one Python function.

Tensors are guarded by their form (class, shape, dtype, strides, device) and by the pattern of memory that they share
(`memory_pattern.py`); everything else is guarded by equality. The function runs at every call, so it is unrolled: one test per
thing, no loops. The names that the compiled function reads are guarded in `name_guards.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import ref

import numpy as np

from ...eager.arrays.deferred import DeferredArray, form_of, resolve_array
from ...eager.arrays.devices import device_of
from ...eager.arrays.exported_memory import ExportedBuffer
from ...eager.core.structure.pytree import leaves
from ...eager.core.tensor import Tensor
from ..trace.generated_python import compile_function
from ..trace.trace import Value
from .memory_pattern import may_overlap
from .plain_values import PLAIN_TYPES, equal_plain_values
from .reachable_state import NotPureError, ReachableState, is_weakly_trackable
from .tensor_guards import has_form

ON_FAILURE = "<otherwise>"  # placeholder in guard lines for the statement that runs when a guard fails


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
        # objects that nothing else keeps alive: guarded by a weak reference
        self.lone = {id(x): x for x in leaves(self.given) if reach.lone(x) and is_weakly_trackable(x)}
        self.values: list[tuple[int, Value]] = []  # place, value
        self.slots: list[int] = []
        self.without: set[int] = set()
        self.counts: list[tuple[int, int]] = []  # places that are written, and how often
        self.pinned: dict[int, int] = {}  # place -> id of the tensor
        self.captured_ids: frozenset[int] = frozenset()
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

    def pin(self, t: Tensor) -> None:
        """Require that an argument is this very tensor, which names keep alive."""
        self.pinned[self.places[id(t)]] = id(t)

    def not_captured(self, captured: Iterable[int]) -> None:
        """Require that no argument is one of these tensors, by their ids: the function reads them by name."""
        self.captured_ids = frozenset(captured) - self.places.keys()

    def written(self, tensors: tuple[Tensor, ...]) -> list[tuple[Tensor, int]]:
        return [(tensors[place], count) for place, count in self.counts]

    def there(self, args: Any, kwargs: Any) -> bool:
        """Materialise arguments that hold deferred memory. False if there are none."""
        found = [x for x in leaves((args, kwargs)) if isinstance(x, Tensor) and isinstance(x.tj_array, DeferredArray)]
        for t in found:
            t.tj_array = resolve_array(t.tj_array)
        return bool(found)

    def complete(self, writes: dict[int, int]) -> None:
        """Compile `match`. `writes` maps the slots from outside that the program writes to how often it does."""
        self.counts = [(place, writes[v.slot]) for place, v in self.values if v.slot in writes]
        self.space: dict[str, Any] = {
            "ndarray": np.ndarray, "DeferredArray": DeferredArray, "has_form": has_form,
            "equal": equal_plain_values, "CAPTURED": self.captured_ids, "may_overlap": may_overlap,
            "ExportedBuffer": ExportedBuffer,
        }  # fmt: skip
        self.tests: list[str] = []
        self.seen: set[int] = set()
        args, kwargs = self.given
        self._container(args, "args")
        self._container(kwargs, "kwargs")
        self._require_same_arrays()
        self._require_separate_memory(bool(writes))
        tensors = "".join(f"t{i}, " for i in range(len(self.tensors)))
        for place, value in self.values:
            self._fail_if(f"id(a{place}) in memory.ids")  # the function captures the same memory
            self.tests.append(f"arrays[{value.slot}] = a{place}")
        self.found = f"({tensors})"  # expression for the tuple of tensor arguments
        lines = ["try:", *[f"    {line}" for line in (*self.text("return None"), f"return {self.found}")]]
        lines += ["except (KeyError, ValueError, AttributeError):", "    return None"]  # a name is gone
        self.match = self.function("match(args, kwargs, arrays, memory)", lines)
        del self.given, self.tensors, self.seen, self.lone

    def text(self, otherwise: str) -> list[str]:
        """Return the guards as lines over the parameters of `match`; `otherwise` runs where one fails."""
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
            if type(getattr(x, "__dict__", None)) is dict:
                self._fail_if(f"x.__dict__ is not {self._constant(x.__dict__)}")
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
        if i in self.pinned:
            self._fail_if(f"id({t}) != {self.pinned[i]}")
        elif self.captured_ids:
            self._fail_if(f"id({t}) in CAPTURED")
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
        self._fail_if(f"{t}.tj_inference is not {x.tj_inference}")
        written = any(i == place for place, _ in self.counts)
        if written:
            self._fail_if(f"{t}.tj_base is not None" + (f" or not {a}.flags.writeable" if form.on_cpu else ""))
        else:
            self._fail_if(f"{t}.tj_base is not None and {t}.tj_rebased != {t}.tj_base.tj_rebased")
        if x.tj_requires_grad:
            self._fail_if(f"{t}.tj_hooks or {t}.tj_accumulate_hooks")
        if i in self.without:
            self._fail_if(f"{t}.tj_grad is not None")

    def _require_same_arrays(self) -> None:
        """Require that arguments which were one array still are, and that those which were different arrays still are."""
        first: dict[int, int] = {}
        for i, t in enumerate(self.tensors):
            j = first.setdefault(id(resolve_array(t.tj_array)), i)
            if j != i:
                self._fail_if(f"a{i} is not a{j} or t{i} is t{j}")
        places = list(first.values())
        if len(places) > 4:
            self._fail_if(f"len({{{', '.join(f'id(a{i})' for i in places)}}}) != {len(places)}")
        for n, i in enumerate(places if len(places) <= 4 else ()):
            for j in places[:n]:
                self._fail_if(f"a{i} is a{j}")

    def _require_separate_memory(self, writes: bool) -> None:
        """Require that what the program writes overlaps no other input."""
        written = {place for place, _ in self.counts}
        used = dict.fromkeys(place for place, _ in self.values)
        self.tests += ["owners = memory.owners"] if writes else []
        for i in used if writes else ():
            a = f"a{i}"
            if i in written:
                self._fail_if(f"memory.all.overlap({a})")
            else:
                # nearly always what owns the memory
                self.tests += [f"o = {a} if (b := {a}.base) is None else b.array if b.__class__ is ExportedBuffer else b"]
                near = "o.__class__ is not ndarray or o.base is not None or id(o) in owners"
                self._fail_if(f"({near}) and memory.written.overlap({a})")
            for j in written - {i}:
                self._fail_if(f"({a}.base is not None or a{j}.base is not None) and may_overlap({a}, a{j})")
