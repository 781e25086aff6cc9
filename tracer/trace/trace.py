"""What a recording consists of: values, the entries that made them, and the path they form.

A *value* is a tensor as a function's code saw it; a *slot* is an array. Several values may show one slot (a tensor and what
`detach()` made of it), and several slots one memory (a tensor and its views): `roots` says whose memory a slot shows.
Values are numbered in the order in which they appear, so that two paths which begin alike number alike.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import Any

from ...eager.core.op import Op
from ...eager.arrays.deferred import Pending
from ...eager.core.tensor import Tensor

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INSIDE = (*[os.path.join(PACKAGE, part) + os.sep for part in ("eager", "tracer", "codegen")], "<tapejit ")


def users_line() -> str:
    """file:line of the innermost frame that is not of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Value:
    """A tensor of a trace."""

    __slots__ = ("apart", "form", "index", "inference", "requires_grad", "slot", "tracked", "view")

    def __init__(self, index: int, slot: int, t: Tensor, form: type[Pending], view: tuple[int, Any, bool] | None) -> None:
        self.index = index
        self.slot = slot
        self.form = form
        self.view = view  # of a view: the value it was made of, by which op, whether without grad
        self.requires_grad = t._requires_grad
        self.apart = counts_apart(t)
        self.inference = t._inference
        self.tracked = t._node is not None  # has a place on the tape; a leaf that wants a gradient has none

    def __repr__(self) -> str:
        return f"v{self.index}"


def counts_apart(t: Tensor) -> bool:
    """Whether a tensor has a version counter of its own on another one's memory: it is `x.data`."""
    box: Any = t._versions
    return box is not None and len(box) > 1 and box[1].parent is not None


_NONE = object()


def alike(a: Any, b: Any) -> bool:
    """Whether two settings are the same: equal, of one type, zeros of one sign, and NaN the same as NaN."""
    kind = a.__class__
    if kind is not b.__class__:
        return False
    if kind is dict:
        if len(a) != len(b):
            return False
        for k, v in a.items():
            w = b.get(k, _NONE)
            if v is not w and not alike(v, w):
                return False
        return True
    if kind is tuple or kind is list:
        return len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b, strict=True))
    if kind is float:
        return (a == b and (a != 0 or math.copysign(1, a) == math.copysign(1, b))) or (a != a and b != b)
    return a is b or bool(a == b)


# ---- what an entry expects of an input: a number of a value that is known by then, or one of these


class First:
    """A tensor from outside that appears for the first time: it gets a number, if it is of the form it had."""

    __slots__ = ("plain", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        form = value.form
        # of one on the CPU without a history: its number, slot and form, at hand for `Replayer.bind`
        plain = (value.index, value.slot, form.shape, form.dtype, form.strides, value.requires_grad)
        self.plain = plain if form.on_cpu and not value.tracked else None

    def key(self) -> Any:
        v = self.value
        return ("first", v.form, v.requires_grad, v.tracked)


class Alias:
    """A new tensor on an array that is known, as `detach()` makes."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def key(self) -> Any:
        return ("alias", self.value.slot, self.value.requires_grad)


class Number:
    """A Python number that may be another one at each call, of the same type."""

    __slots__ = ("place", "type")

    def __init__(self, place: int, kind: type) -> None:
        self.place = place
        self.type = kind

    def key(self) -> Any:
        return ("number", self.type)

    def __repr__(self) -> str:
        return f"s{self.place}"


class Constant:
    """Something that must be what it was: a number that gradients were made of, or None."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def is_(self, x: Any) -> bool:
        return alike(x, self.value)

    def key(self) -> Any:
        return ("constant", type(self.value), repr(self.value))


# ---- entries


class Call:
    """An op."""

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
        self.inputs = inputs  # numbers of values, or places of numbers (Number) or constants (Constant)
        self.flags = flags  # for each input whether it required a gradient, None for what is no tensor
        self.attrs = attrs
        self.out = out  # the number of the value written into
        self.results = results
        self.several = several
        self.grad = grad
        self.mutated = mutated  # numbers of values from outside whose memory is written
        self.line = line
        self.turned = False  # what is written into requires a gradient by that
        self.step: Any = None  # the comparison with it: see steps.py
        self.check: Any = None  # looks at the values of indices, as the op would

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
    """A whole backward pass: what it does follows from what was checked before it."""

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
        self.effects: list[Effect] = []  # what became of the leaves' gradients
        self.flags: tuple[tuple[int, bool], ...] = ()  # of the leaves: whether they want a gradient, which may change unseen
        self.firsts: list[tuple[int, Value]] = []  # gradients from before: (leaf, value)
        self.found: tuple[int | None, ...] = ()  # for autograd.grad: what it returned
        self.mutated: tuple[int, ...] = ()
        self.freed: tuple[Any, ...] = ()  # plans of nodes from before the last break that it uses up
        self.given: tuple[int, ...] = ()  # the numbers of the seeds
        self.implicit = False  # it begins with 1, which it makes itself
        self.end = (0, 0)  # how many values and slots there are after it
        self.plain: tuple[tuple[int, Value], ...] = ()  # if it only gives leaves their first gradients: these
        self.step: Any = None  # then a function that does: see steps.py
        self.ran: Any = None  # the code that ran, and whether it would now: see witness.py
        self.same_code: Any = None

    def settle(self, values: list[Value]) -> None:
        """All about it is known."""
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
    """A leaf's gradient before and after a backward pass: numbers of values, None for none."""

    __slots__ = ("after", "before", "leaf")

    def __init__(self, leaf: int, before: int | None, after: int) -> None:
        self.leaf = leaf
        self.before = before
        self.after = after


WRITTEN = "memory that others can see is written"  # the reason of breaks after writes


class Break:
    """Python reads a value, or does something that is not recorded: all that is pending is computed first."""

    __slots__ = ("line", "reason", "state")

    op = None

    def __init__(self, reason: str, line: str, state: Any) -> None:
        self.reason = reason
        self.line = line
        self.state = state  # the tape as it was here

    def key(self) -> Any:
        return ("break",)

    def __repr__(self) -> str:
        return f"break: {self.reason}"


class End(Break):
    """The function returned."""

    __slots__ = ()

    def key(self) -> Any:
        return ("end",)


Entry = Any  # Call | Backward | Break


class Trace:
    """One path through a function, from its call to its end."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.values: list[Value] = []
        self.roots: list[int] = []  # of each slot: the slot whose memory it shows
        self.outside: set[int] = set()  # slots of arrays from outside
        self.numbers = 0  # how many runtime scalars
        self.programs: dict[Any, Any] = {}  # by segment and by what outlives it
        self.segments: dict[tuple[int, int], Any] = {}  # the program that a segment used last
        self.steps: list[Callable[..., Any]] = []  # the comparison for each entry: see steps.py
        self.replays = 0
        self.used = 0  # when it was last replayed, for eviction
        self.keys: tuple[Any, ...] = ()  # of its entries, when it is complete
        self.counts: list[tuple[int, int, int]] = []  # before each entry: how many values, slots and numbers there are
        self.owners: dict[int, int] = {}  # of each slot from outside: the value that brought it
        self.made: dict[tuple[int, int], tuple[list[int], bool]] = {}  # see `promises`
        self.written: set[int] = set()  # slots from outside whose memory is written
        self.sources: dict[int, int] = {}  # of copies: what they are copies of
        self.constants: dict[int, Any] = {}  # arrays that are made of constants alone, which indices may be
        self.regions: dict[int, dict[int, Any]] = {}  # by the entry they begin with and the id of the module or optimizer
        self.foreseen: list[Any] = []  # for each entry the region of the optimizer's step that begins there, or `NOWHERE`
        self.impure: str | None = None  # of a function that is said to be pure: why it needs Python
        self.quickest = math.inf  # seconds of a replay
        self.purified = self.skipped = 0  # how often guards were made for it, and how often they let Python be skipped
        self.reshaped = False  # a tensor got another shape in place, which its views do not follow
        self.moving: set[int] = set()  # entries before which slices are made by Python: see moving.py
        self.shared: set[int] = set()  # slots from outside that others than tensors may write

    def complete(self) -> None:
        """All entries are there."""
        self.keys = tuple(e.key() for e in self.entries)
        values = slots = numbers = 0
        for entry in self.entries:
            self.counts.append((values, slots, numbers))
            if isinstance(entry, Call):
                news = [w.value for w in entry.wants if isinstance(w, (First, Alias))] + list(entry.results)
                values += len(news)
                slots += sum(1 for w in entry.wants if isinstance(w, First)) + len(entry.results)
                numbers += sum(1 for w in entry.wants if isinstance(w, Number))
            elif isinstance(entry, Backward):
                values, slots = entry.end
                entry.settle(self.values)
            self.written.update(self.values[n].slot for n in getattr(entry, "mutated", ()))
        for value in self.values:
            if value.slot in self.outside:
                self.owners.setdefault(value.slot, value.index)

    def base(self, value: Value) -> int:
        """The value that a view goes back to."""
        while value.view is not None:
            value = self.values[value.view[0]]
        return value.index

    def promises(self, start: int, stop: int) -> tuple[list[int], bool]:
        """The values that some entries make and Python can see, and whether there are views among them."""
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
        """Why this cannot be replayed: memory that NumPy shows is read from a copy, so it must not be written or viewed."""
        if self.reshaped:
            return "a tensor's shape is changed in place; use the function without the underscore"
        if self.written & self.shared:
            return "memory that a NumPy array shows is written; clone() the tensor first"
        for entry in self.entries:
            if isinstance(entry, Call) and entry.op.view and self.values[entry.inputs[0]].slot in self.shared:
                return "memory that a NumPy array shows is viewed; clone() the tensor first"
        return None

    def breaks(self) -> list[Break]:
        return [e for e in self.entries if isinstance(e, Break)]

    def outermost(self) -> list[Any]:
        """The regions that are in no other, in order."""
        found: list[Any] = []
        for start in sorted(self.regions):
            for region in sorted(self.regions[start].values(), key=lambda r: -r.stop)[:1]:
                if not found or region.start >= found[-1].stop:
                    found.append(region)
        return found

    def __str__(self) -> str:
        """One line for each op, with the user's line; those of a region are below it."""
        begins = {region.start: region for region in self.outermost()}
        lines, inside = [], 0  # where the region ends that the entry is in
        for k, entry in enumerate(self.entries):
            if k in begins:
                lines.append(f"{begins[k]}  # {entry.line}")
                inside = begins[k].stop
            lines.append("    " * (k < inside) + f"{entry!r}  # {entry.line}")
            lines += [f"    {call!r}" for call in getattr(entry, "calls", ())]
        return "\n".join(lines)
