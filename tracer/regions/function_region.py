"""Calls of the library's own code as regions: what a function is given and returns. Functions of `nn.functional` are here,
modules, which have tensors and settings besides, in `module_region.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any

from ...eager.arrays import devices, dtypes
from ...eager.core.generator import default_generator
from ...eager.core.library import is_library
from ...eager.core.structure.pytree import flatten, unflatten
from ...eager.core.tensor import Tensor, wrap
from ..trace.specialize import ReplayWriter
from ..trace.trace import same_setting
from .region import MISSED, NoRegionError, Region, RegionStart, random_draws

SETTING_TYPES = (int, float, bool, str, type(None), dtypes.dtype, devices.device)
ON_MISS = "R.undo(f); return MISSED"


def is_setting(value: Any, private: bool) -> bool:
    """True for values that a layer may depend on and that cannot change unnoticed."""
    if isinstance(value, SETTING_TYPES):
        return True
    if isinstance(value, tuple) or (private and isinstance(value, list)):
        return all(is_setting(v, private) for v in value)
    return isinstance(value, (FunctionType, type)) and is_library(value, "eager")


class CallRegion(Region):
    """A call of a function of the library."""

    holds: tuple[str, ...] = ("given",)

    def __init__(
        self,
        frame: Any,
        mark: RegionStart,
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
            raise NoRegionError("it reads a tensor that is neither an argument nor a module's")
        self.places = slice(mark.numbers, frame.trace.numbers)
        self.numbers = list(frame.scalars[self.places])
        self.draws = random_draws(self, frame, mark)
        self.checks = [call for call in self.entries if call.check is not None]
        for call in self.checks:
            if any(n in self.inside for n in call.inputs[call.check.first : call.check.last] if isinstance(n, int)):
                raise NoRegionError("it checks indices that it computes")
        self.returns(result, known)

    def see_members(self, frame: Any, known: dict[int, int], bound: set[int]) -> None:
        """Note the tensors that the code reads besides its arguments."""

    def arguments(self, given: tuple[Any, Any], known: dict[int, int], bound: set[int]) -> list[Any]:
        """Describe each argument: (value number, requires_grad, how to bind it) of a tensor, or (None, None, setting)."""
        parts: list[Any] = []
        self.layout = flatten(given, parts)
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
            found.append((n, x.tj_requires_grad, self.fresh[n] if first else None))
        return found

    def returns(self, result: Any, known: dict[int, int]) -> None:
        """Note the result: tensors by their value numbers, everything else as constants."""
        parts: list[Any] = []
        self.shape = flatten(result, parts)
        numbers = [known.get(id(x)) if isinstance(x, Tensor) else None for x in parts]
        for x, n in zip(parts, numbers, strict=True):
            if n is None and not is_setting(x, False):
                raise NoRegionError("it returns an object that no op made")
        self.results = [(n, x if n is None else None) for x, n in zip(parts, numbers, strict=True)]
        self.only = numbers[0] if self.shape is None else None
        self.keep(self.inside[n] for n in numbers if n in self.inside)

    # ---- entering

    def source(self) -> ReplayWriter:
        source = ReplayWriter("enter", "R, f, args, kwargs")
        source.space.update(
            MISSED=MISSED, same_setting=same_setting, dtypes=dtypes, devices=devices, flatten=flatten, unflatten=unflatten,
            take=default_generator.take_call, LAYOUT=self.layout,
        )  # fmt: skip
        self.look_at_code(source)
        source.add("T = f.tensors; A = f.held; B = f.arrays; N = f.number; S = f.slots")
        for i, (n, flag, want) in enumerate(self.given):
            if n is None:
                name = source.constant(want)
                source.add(f"if x{i} is not {name} and not same_setting(x{i}, {name}): {ON_MISS}")
            elif want is not None:
                source.add(f"if not f.bind({source.constant(want)}, x{i}): {ON_MISS}")
            else:
                plain = f"x{i} is T[{n}] and x{i}.tj_array is A[{n}] and x{i}.tj_requires_grad is {flag}"
                source.add(f"if not ({plain} or f.fits({n}, x{i}, {flag})): {ON_MISS}")
        targets = self.look_at_members(source)
        if self.checks:
            source.add(f"if not R.checked(f): {ON_MISS}")
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
            source.add(f"return unflatten({source.constant(self.shape)}, iter([{parts}]))")
        return source

    def look_at_code(self, source: ReplayWriter) -> None:
        """Write the checks of the code, the grad mode, the defaults, and the number of arguments."""
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
            source.add("parts = []", "if flatten((args, kwargs), parts) != LAYOUT: return MISSED")
        if count:
            source.add("".join(f"x{i}, " for i in range(count)) + f"= {'args' if self.flat else 'parts'}")
        for i, name in enumerate(self.names if self.flat else (), count):
            source.add(f"x{i} = kwargs.get({name!r}, MISSED)")  # MISSED equals no recorded argument

    def tests(self, source: ReplayWriter) -> list[str]:
        """Return further tests that are true if the code would do something else."""
        return []

    def look_at_members(self, source: ReplayWriter) -> dict[int, str]:
        """Write the lookup of tensors besides the arguments; returns their variables by value number."""
        return {}

    def checked(self, frame: Any) -> bool:
        """Check indices. If one is out of range, Python runs and the op itself raises the error."""
        try:
            return all(c.check.settled(frame, tuple(self.shown(frame, n) for n in c.inputs), c.attrs) for c in self.checks)
        except IndexError:
            return False

    def shown(self, frame: Any, n: Any) -> Any:
        """An input of an op that checks its indices; of the others it asks the form only."""
        if not isinstance(n, int):
            return n
        t = frame.tensors[n]
        if t is None:
            value = self.inside[n]
            t = wrap(value.form(frame, value.slot))
        return t
