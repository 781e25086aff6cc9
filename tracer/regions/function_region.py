"""Calls of the library's own code as regions: what a function is given and returns. Functions of `nn.functional` are here,
modules, which have tensors and settings besides, in `modules.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any

from ...eager.arrays import devices
from ...eager.arrays import dtypes
from ...eager.nn.module import Module
from ...eager.random import default_generator
from ...eager.core.tensor import Tensor, wrap
from .region import MISSED, Mark, NoRegionError, Region, draws_of
from ..trace.specialize import Source
from ..trace.trace import alike

EAGER = Module.__module__.rpartition(".")[0].removesuffix("nn")  # where the library's functions are
PLAIN = (int, float, bool, str, type(None), dtypes.dtype, devices.device)
UNDONE = "R.undo(f); return MISSED"


def is_setting(value: Any, private: bool) -> bool:
    """Whether an attribute is something that a layer can depend on and that cannot change unnoticed."""
    if isinstance(value, PLAIN):
        return True
    if isinstance(value, tuple) or (private and isinstance(value, list)):
        return all(is_setting(v, private) for v in value)
    return isinstance(value, (FunctionType, type)) and value.__module__.startswith(EAGER)


def parts_of(x: Any, found: list[Any]) -> Any:
    """Put what nested arguments hold into a list; returns how they are nested, None for what is not."""
    if type(x) in (tuple, list):
        return (type(x), *[parts_of(v, found) for v in x])
    if type(x) is dict:
        return (dict, *[(k, parts_of(v, found)) for k, v in x.items()])
    found.append(x)
    return None


class CallRegion(Region):
    """A call of a function of the library."""

    holds: tuple[str, ...] = ("given",)

    def __init__(
        self,
        frame: Any,
        mark: Mark,
        owner: Any,
        title: str,
        given: tuple[Any, Any],
        result: Any,
        classes: Iterable[type] = (),
    ) -> None:
        super().__init__(frame, mark, owner, title, classes)
        self.dtype, self.device = dtypes._default, devices._default_device
        known = {i: n for i, n in frame.number.items() if frame.tensors[n] is not None}
        bound: set[int] = set()
        self.given = self.arguments(given, known, bound)
        self.see_members(frame, known, bound)
        if bound != self.fresh.keys():
            raise NoRegionError("it sees a tensor that is neither an argument nor a module's")
        self.places = slice(mark.numbers, frame.trace.numbers)
        self.numbers = list(frame.scalars[self.places])
        self.draws = draws_of(self, frame, mark)
        self.checks = [call for call in self.entries if call.check is not None]
        for call in self.checks:
            if any(n in self.inside for n in call.inputs[call.check.first : call.check.last] if isinstance(n, int)):
                raise NoRegionError("it looks at indices that it makes")
        self.returns(result, known)

    def see_members(self, frame: Any, known: dict[int, int], bound: set[int]) -> None:
        """Note the tensors that the code has besides its arguments."""

    def arguments(self, given: tuple[Any, Any], known: dict[int, int], bound: set[int]) -> list[Any]:
        """Of each argument: the number of a tensor, whether it wants a gradient, how to bind it; or what else it is."""
        parts: list[Any] = []
        self.layout = parts_of(given, parts)
        self.flat = all(part is None for part in self.layout[1][1:]) and all(part is None for _, part in self.layout[2][1:])
        self.names = tuple(given[1])
        found: list[Any] = []
        for x in parts:
            if not isinstance(x, Tensor):
                if not is_setting(x, False):
                    raise NoRegionError("an argument is neither a tensor nor a plain value")
                found.append((None, None, x))
                continue
            n = known.get(id(x))
            if n is None:
                raise NoRegionError("an argument is not used")
            first = n in self.fresh and n not in bound
            if first:
                bound.add(n)
            found.append((n, x._requires_grad, self.fresh[n] if first else None))
        return found

    def returns(self, result: Any, known: dict[int, int]) -> None:
        """Note what is returned: tensors by number, all else as it is."""
        parts: list[Any] = []
        self.shape = parts_of(result, parts)
        numbers = [known.get(id(x)) if isinstance(x, Tensor) else None for x in parts]
        for x, n in zip(parts, numbers, strict=True):
            if n is None and not is_setting(x, False):
                raise NoRegionError("it returns something that no op has made")
        self.results = [(n, x if n is None else None) for x, n in zip(parts, numbers, strict=True)]
        self.only = numbers[0] if self.shape is None else None
        self.keep(self.inside[n] for n in numbers if n in self.inside)

    # ---- entering

    def source(self) -> Source:
        source = Source("enter", "R, f, args, kwargs")
        source.space.update(
            MISSED=MISSED, alike=alike, dtypes=dtypes, devices=devices, parts_of=parts_of, rebuilt=rebuilt,
            take=default_generator.take_call, LAYOUT=self.layout,
        )  # fmt: skip
        self.look_at_code(source)
        source.add("T = f.tensors; A = f.held; B = f.arrays; N = f.number; S = f.slots")
        for i, (n, flag, want) in enumerate(self.given):
            if n is None:
                name = source.constant(want)
                source.add(f"if x{i} is not {name} and not alike(x{i}, {name}): {UNDONE}")
            elif want is not None:
                source.add(f"if not f.bind({source.constant(want)}, x{i}): {UNDONE}")
            else:
                plain = f"x{i} is T[{n}] and x{i}._array is A[{n}] and x{i}._requires_grad is {flag}"
                source.add(f"if not ({plain} or f.fits({n}, x{i}, {flag})): {UNDONE}")
        targets = self.look_at_members(source)
        if self.checks:
            source.add(f"if not R.checked(f): {UNDONE}")
        if self.numbers:
            source.add(f"f.scalars[{self.places.start}:{self.places.stop}] = {source.constant(self.numbers)}")
        for seed, call in self.draws:
            source.add(f"f.scalars[{seed}], f.scalars[{call}] = take()")
        for value in self.kept:
            source.promise(value)
        self.finished(source, targets)
        if self.only is not None:
            source.add(f"return T[{self.only}]")
        else:
            parts = ", ".join(source.constant(x) if n is None else f"T[{n}]" for n, x in self.results)
            source.add(f"return rebuilt({source.constant(self.shape)}, iter([{parts}]))")
        return source

    def look_at_code(self, source: Source) -> None:
        """Whether the code does what it did, and how many arguments it is given."""
        tests = [f"not {source.constant(self.same_code)}()", *self.tests(source), f"f.state.grad is not {self.grad}"]
        tests += [f"dtypes._default is not {source.constant(self.dtype)}"]
        tests += [f"devices._default_device is not {source.constant(self.device)}"]
        named = len(self.names)
        count = len(self.given) - named if self.flat else len(self.given)
        if self.flat:
            tests.append(f"len(args) != {count}")
            tests.append(f"len(kwargs) != {named}" if named else "kwargs")
        source.add(f"if {' or '.join(tests)}: return MISSED")
        if not self.flat:
            source.add("parts = []", "if parts_of((args, kwargs), parts) != LAYOUT: return MISSED")
        if count:
            source.add("".join(f"x{i}, " for i in range(count)) + f"= {'args' if self.flat else 'parts'}")
        for i, name in enumerate(self.names if self.flat else (), count):
            source.add(f"x{i} = kwargs.get({name!r}, MISSED)")  # of another name, it is no value that was given

    def tests(self, source: Source) -> list[str]:
        """What says that the code is another one now."""
        return []

    def look_at_members(self, source: Source) -> dict[int, str]:
        """Tensors that the code has besides its arguments get variables: these, by the values' numbers."""
        return {}

    def checked(self, frame: Any) -> bool:
        """Whether indices are good. If they are not, the op itself says so."""
        try:
            return all(c.check.settled(frame, tuple(self.shown(frame, n) for n in c.inputs), c.attrs) for c in self.checks)
        except IndexError:
            return False

    def shown(self, frame: Any, n: Any) -> Any:
        """An input of an op that looks at its indices; of the others it asks the form only."""
        if not isinstance(n, int):
            return n
        t = frame.tensors[n]
        if t is None:
            value = self.inside[n]
            t = wrap(value.form(frame, value.slot))
        return t


def rebuilt(shape: Any, parts: Any) -> Any:
    """Nested containers with parts in them."""
    if shape is None:
        return next(parts)
    kind = shape[0]
    if kind is dict:
        return {k: rebuilt(s, parts) for k, s in shape[1:]}
    return kind([rebuilt(s, parts) for s in shape[1:]])
