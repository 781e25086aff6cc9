"""Trace: values, the entries that produced them, and the path that the entries form.

A *value* is a tensor as the function's code saw it; a *slot* is an array. Several values may show one slot (a tensor and its
`detach()`), and several slots may share one memory (a tensor and its views): `roots` maps a slot to the slot that owns its
memory. Values are numbered in order of appearance, so two paths with a common prefix use the same numbers in it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from ...eager.arrays.deferred import DeferredArray
from ...eager.core.library import is_library
from ...eager.core.op import Op
from ...eager.core.tensor import Tensor


def user_line() -> str:
    """Return file:line of the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_library(frame.f_code):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Value:
    """Tensor of a trace."""

    __slots__ = ("form", "index", "inference", "own_version_counter", "requires_grad", "slot", "tracked", "view")

    def __init__(self, index: int, slot: int, t: Tensor, form: type[DeferredArray], view: tuple[int, Any, bool] | None) -> None:
        self.index = index
        self.slot = slot
        self.form = form
        self.view = view  # for a view: its base value, the view op, and whether it was made without grad
        self.requires_grad = t.tj_requires_grad
        self.own_version_counter = has_own_version_counter(t)
        self.inference = t.tj_inference
        self.tracked = t.tj_node is not None  # has a node on the tape; a leaf that requires a gradient has none

    def __repr__(self) -> str:
        return f"v{self.index}"


def has_own_version_counter(t: Tensor) -> bool:
    """True if a tensor has its own version counter on memory it shares, as `x.data` does."""
    box: Any = t.tj_versions
    return box is not None and len(box) > 1 and box[1].parent is not None


_NONE = object()


def same_setting(a: Any, b: Any) -> bool:
    """True if two settings are identical: equal, of one type, zeros of one sign, and NaN the same as NaN."""
    kind = a.__class__
    if kind is not b.__class__:
        return False
    if kind is dict:
        if len(a) != len(b):
            return False
        for k, v in a.items():
            w = b.get(k, _NONE)
            if v is not w and not same_setting(v, w):
                return False
        return True
    if kind is tuple or kind is list:
        return len(a) == len(b) and all(same_setting(x, y) for x, y in zip(a, b, strict=True))
    if kind is float:
        return (a == b and (a != 0 or math.copysign(1, a) == math.copysign(1, b))) or (a != a and b != b)
    return a is b or bool(a == b)


# ---- guards on an entry's inputs: the index of a value known by then, or one of these


class NewInput:
    """Guard for a tensor from outside that appears for the first time: it is bound to a value if it has the recorded form."""

    __slots__ = ("plain", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        form = value.form
        # for one on the CPU without a history: its index, slot and form, read by `Replayer.bind`
        plain = (value.index, value.slot, form.shape, form.dtype, form.strides, value.requires_grad)
        self.plain = plain if form.on_cpu and not value.tracked else None

    def key(self) -> Any:
        v = self.value
        return ("first", v.form, v.requires_grad, v.tracked)


class Alias:
    """Guard for a new tensor on a known array, as `detach()` makes."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def key(self) -> Any:
        return ("alias", self.value.slot, self.value.requires_grad)


class Number:
    """Runtime scalar: a Python number that may differ from call to call, of the same type."""

    __slots__ = ("place", "type")

    def __init__(self, place: int, kind: type) -> None:
        self.place = place
        self.type = kind

    def key(self) -> Any:
        return ("number", self.type)

    def __repr__(self) -> str:
        return f"s{self.place}"


class Constant:
    """Guard for an input that must be unchanged: a number that gradients were computed from, or None."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def is_(self, x: Any) -> bool:
        return same_setting(x, self.value)

    def key(self) -> Any:
        return ("constant", type(self.value), repr(self.value))


# ---- entries


class Call:
    """Entry of one op."""

    __slots__ = (
        "attrs", "check", "flags", "grad", "inputs", "line", "mutated", "op", "out", "results", "several", "step", "turned",
        "wants",
    )  # fmt: skip

    def __init__(
        self,
        op: Op,
        wants: tuple[Any, ...],
        inputs: tuple[Any, ...],
        flags: tuple[Any, ...],
        attrs: dict[str, Any],
        out: int | None,
        results: tuple[Value, ...],
        several: bool,
        grad: bool,
        mutated: tuple[int, ...],
        line: str,
    ) -> None:
        self.op = op
        self.wants = wants
        self.inputs = inputs  # indices of values, runtime scalars (Number) or constants (Constant)
        self.flags = flags  # requires_grad of each input, None for inputs that are not tensors
        self.attrs = attrs
        self.out = out  # index of the value written into
        self.results = results
        self.several = several
        self.grad = grad
        self.mutated = mutated  # indices of values from outside whose memory is written
        self.line = line
        self.turned = False  # True if the write makes its target require a gradient
        self.step: Any = None  # its specialised matcher: see replay/entry_matchers.py
        self.check: Any = None  # bounds check of index values, as the op would do it

    def key(self) -> Any:
        wants = tuple(w if isinstance(w, int) else w.key() for w in self.wants)
        results = tuple((v.form, v.requires_grad) for v in self.results)
        return ("call", self.op.name, wants, repr(self.attrs), self.out, results, self.grad, self.mutated)

    def __repr__(self) -> str:
        made = ", ".join(map(repr, self.results)) or (f"v{self.out}" if self.out is not None else "")
        given = ", ".join(f"v{i}" if isinstance(i, int) else repr(getattr(i, "value", i)) for i in self.inputs)
        settings = "".join(f", {k}={v}" for k, v in self.attrs.items())
        return (f"{made} = " if made else "") + f"{self.op.name}({given}{settings})"


class Backward:
    """Entry of a whole backward pass: its effects follow from guards already checked."""

    __slots__ = (
        "accumulate", "calls", "effects", "end", "firsts", "flags", "found", "freed", "given", "implicit", "line", "mutated",
        "plain", "ran", "retain", "roots", "same_code", "seeds", "step", "wanted",
    )  # fmt: skip

    op = None

    def __init__(
        self, roots: tuple[int, ...], seeds: tuple[Any, ...], retain: bool, wanted: Any, accumulate: bool, line: str
    ) -> None:
        self.roots = roots
        self.seeds = seeds
        self.retain = retain
        self.wanted = wanted
        self.accumulate = accumulate
        self.line = line
        self.calls: list[Call] = []  # the ops inside
        self.effects: list[Effect] = []  # changes of the leaves' gradients
        self.flags: tuple[tuple[int, bool], ...] = ()  # requires_grad of the leaves, which may change without an op
        self.firsts: list[tuple[int, Value]] = []  # gradients that existed before: (leaf, value)
        self.found: tuple[int | None, ...] = ()  # for autograd.grad: the values returned
        self.mutated: tuple[int, ...] = ()
        self.freed: tuple[Any, ...] = ()  # plans of nodes from before the last graph break that it frees
        self.given: tuple[int, ...] = ()  # indices of the seeds
        self.implicit = False  # True if it starts from an implicit seed of 1
        self.end = (0, 0)  # number of values and slots after it
        self.plain: tuple[tuple[int, Value], ...] = ()  # if it only gives leaves their first gradients: these
        self.step: Any = None  # then its specialised matcher: see replay/entry_matchers.py
        self.ran: Any = None  # the code that ran, and its guard: see guards/code_guards.py
        self.same_code: Any = None

    def settle(self, values: list[Value]) -> None:
        """Finish the entry, when all of its fields are known."""
        made = [(e.leaf, values[e.after]) for e in self.effects]
        alone = self.implicit and len(self.roots) == 1 and self.accumulate and not (self.firsts or self.found or self.mutated)
        first = all(e.before is None for e in self.effects) and len({v.index for _, v in made}) == len(made)
        if alone and first and all(v.view is None and not v.requires_grad for _, v in made) and len(self.flags) == len(made):
            self.plain = tuple(made)

    def key(self) -> Any:
        effects = tuple((e.leaf, e.before, e.after) for e in self.effects)
        firsts = tuple((leaf, v.form) for leaf, v in self.firsts)
        inner = tuple(c.key() for c in self.calls)
        seeds = tuple(w if isinstance(w, int) else w.key() for w in self.seeds)
        how = (self.roots, self.implicit, seeds, self.retain, self.wanted, self.accumulate, self.flags)
        return ("backward", how, effects, firsts, inner)

    def __repr__(self) -> str:
        return f"backward({', '.join(f'v{r}' for r in self.roots)}): {len(self.calls)} ops"


class Effect:
    """Gradient of a leaf before and after a backward pass: indices of values, None for no gradient."""

    __slots__ = ("after", "before", "leaf")

    def __init__(self, leaf: int, before: int | None, after: int) -> None:
        self.leaf = leaf
        self.before = before
        self.after = after


WRITTEN = "writes memory that another tensor shares"  # reason of graph breaks after writes


class Break:
    """Graph break: Python reads a value, or does something that is not recorded. All pending work is computed first."""

    __slots__ = ("line", "reason", "state")

    op = None

    def __init__(self, reason: str, line: str, state: Any) -> None:
        self.reason = reason
        self.line = line
        self.state = state  # the tape at this point

    def key(self) -> Any:
        return ("break",)

    def __repr__(self) -> str:
        return f"break: {self.reason}"


class End(Break):
    """End of a path: the function returned."""

    __slots__ = ()

    def key(self) -> Any:
        return ("end",)


Entry = Any  # Call | Backward | Break


class Trace:
    """Trace of one path through a function, from its call to its end."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.values: list[Value] = []
        self.roots: list[int] = []  # for each slot: the slot that owns its memory
        self.outside: set[int] = set()  # slots of arrays from outside
        self.numbers = 0  # number of runtime scalars
        self.programs: dict[Any, Any] = {}  # by segment and by the values that outlive it
        self.segments: dict[tuple[int, int], Any] = {}  # the program that each segment used last
        self.steps: list[Callable[..., Any]] = []  # matcher of each entry: see replay/entry_matchers.py
        self.replays = 0
        self.used = 0  # time of the last replay, for eviction
        self.keys: tuple[Any, ...] = ()  # keys of its entries, once complete
        self.counts: list[tuple[int, int, int]] = []  # number of values, slots and runtime scalars before each entry
        self.owners: dict[int, int] = {}  # for each slot from outside: the value that introduced it
        self.made: dict[tuple[int, int], tuple[list[int], bool]] = {}  # see `promises`
        self.written: set[int] = set()  # slots from outside whose memory is written
        self.sources: dict[int, int] = {}  # for copies: their source
        self.constants: dict[int, Any] = {}  # arrays computed from constants alone, which may serve as indices
        self.regions: dict[int, dict[int, Any]] = {}  # by first entry and id of the module or optimizer
        self.step_regions: list[Any] = []  # per entry: region of the optimizer step that begins there, or `NOWHERE`
        self.impure: str | None = None  # for a function declared pure: why it needs Python
        self.quickest = math.inf  # seconds of the fastest replay
        self.purified = self.skipped = 0  # how often guards were built for it, and how often they let Python be skipped
        self.reshaped = False  # a tensor changed shape in place, which its views do not follow
        self.moving: set[int] = set()  # entries before which Python makes slices: see record/moving_slices.py
        self.shared: set[int] = set()  # slots from outside that code other than tensors may write
        self.counters: dict[int, int] = {}  # slots from outside -> an earlier one whose tensor has the same version counter

    def complete(self) -> None:
        """Finish the trace, when all entries are recorded."""
        self.keys = tuple(e.key() for e in self.entries)
        values = slots = numbers = 0
        for entry in self.entries:
            self.counts.append((values, slots, numbers))
            if isinstance(entry, Call):
                news = [w.value for w in entry.wants if isinstance(w, (NewInput, Alias))] + list(entry.results)
                values += len(news)
                slots += sum(1 for w in entry.wants if isinstance(w, NewInput)) + len(entry.results)
                numbers += sum(1 for w in entry.wants if isinstance(w, Number))
            elif isinstance(entry, Backward):
                values, slots = entry.end
                entry.settle(self.values)
            self.written.update(self.values[n].slot for n in getattr(entry, "mutated", ()))
        for value in self.values:
            if value.slot in self.outside:
                self.owners.setdefault(value.slot, value.index)

    def base(self, value: Value) -> int:
        """Return the base value of a view."""
        while value.view is not None:
            value = self.values[value.view[0]]
        return value.index

    def promises(self, start: int, stop: int) -> tuple[list[int], bool]:
        """Return the values that some entries produce and Python can see, and whether views are among them."""
        found = self.made.get((start, stop))
        if found is None:
            results: list[int] = []
            for entry in self.entries[start:stop]:
                if isinstance(entry, Call):
                    results += [v.index for v in entry.results]
                elif isinstance(entry, Backward):
                    results += sorted(
                        {e.after for e in entry.effects if e.before is None} | {n for n in entry.found if n is not None}
                    )
            results = list(dict.fromkeys(results))
            found = self.made[start, stop] = (results, any(self.values[n].view is not None for n in results))
        return found

    def obstacle(self) -> str | None:
        """Return why this trace cannot be replayed: memory shared with NumPy is read from a copy, so it must not be written or
        viewed."""
        if self.reshaped:
            return "a tensor's shape is changed in place; use the function without the underscore"
        if self.written & self.shared:
            return "writes memory that a NumPy array shares; clone() the tensor first"
        for entry in self.entries:
            if isinstance(entry, Call) and entry.op.view and self.values[entry.inputs[0]].slot in self.shared:
                return "views memory that a NumPy array shares; clone() the tensor first"
        return None

    def breaks(self) -> list[Break]:
        return [e for e in self.entries if isinstance(e, Break)]

    def outermost(self) -> list[Any]:
        """Return the regions not nested in another, in order."""
        found: list[Any] = []
        for start in sorted(self.regions):
            for region in sorted(self.regions[start].values(), key=lambda r: -r.stop)[:1]:
                if not found or region.start >= found[-1].stop:
                    found.append(region)
        return found

    def __str__(self) -> str:
        """Format one line per op, with the user's line; ops of a region are listed below it."""
        begins = {region.start: region for region in self.outermost()}
        lines, inside = [], 0  # the entry at which the current region ends
        for k, entry in enumerate(self.entries):
            if k in begins:
                lines.append(f"{begins[k]}  # {entry.line}")
                inside = begins[k].stop
            lines.append("    " * (k < inside) + f"{entry!r}  # {entry.line}")
            lines += [f"    {call!r}" for call in getattr(entry, "calls", ())]
        return "\n".join(lines)
