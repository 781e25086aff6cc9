"""Calls of the library's own modules as regions: see `regions.py`.

What a layer does follows from its settings, its tensors and its arguments, as long as its code is the library's. Settings are
looked at only when something about modules has changed in the process; tensors are looked up in the modules' tables each time.
"""

from __future__ import annotations

import sys
import weakref
from types import FunctionType
from typing import Any

from ..eager import devices, dtypes
from ..eager.nn.changes import COUNT, PATCHED
from ..eager.nn.module import Module
from ..eager.random import default_generator
from ..eager.tensor import Tensor, wrap
from .regions import MISSED, Fresh, Mark, NoRegionError, Region, draws_of
from .source import Source
from .trace import alike

LIBRARY = Module.__module__.rpartition(".")[0] + "."  # where the classes of layers are
EAGER = LIBRARY.removesuffix("nn.")
CALL = Module.__call__
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
TABLES = ("_parameters", "_buffers", "_modules")
PLAIN = (int, float, bool, str, type(None), dtypes.dtype, devices.device)


def is_ours(module: Module) -> bool:
    """Whether a module's code is all the library's, as far as its class goes."""
    cls = type(module)
    if not cls.__module__.startswith(LIBRARY) or vars(sys.modules[cls.__module__]).get(cls.__name__) is not cls:
        return False
    forward = cls.forward
    return type(forward) is FunctionType and forward.__module__.startswith(LIBRARY) and cls.__call__ is CALL


def is_setting(value: Any, private: bool) -> bool:
    """Whether an attribute is something that a layer can depend on and that cannot change unnoticed."""
    if isinstance(value, PLAIN):
        return True
    if isinstance(value, tuple) or (private and isinstance(value, list)):
        return all(is_setting(v, private) for v in value)
    return isinstance(value, (FunctionType, type)) and value.__module__.startswith(EAGER)


def settings_of(module: Module) -> dict[str, Any]:
    """A module's attributes beyond its tables; an error if it cannot be known by them."""
    fields = module.__dict__
    if not is_ours(module) or any(fields[name] for name in HOOKS):
        raise NoRegionError("a module runs code of its own")
    found = {name: value for name, value in fields.items() if type(value) not in (dict, set) and name != "_version_number"}
    for name, value in fields.items():
        if name not in found and name not in TABLES and name != "_version_number" and value:
            raise NoRegionError(f"a module has {name}")
        if name in found and not is_setting(value, name.startswith("_")):
            raise NoRegionError(f"a module's {name} can change unnoticed")
    return {name: list(value) if isinstance(value, list) else value for name, value in found.items()}


class Layer:
    """A module inside a region as it was."""

    __slots__ = ("children", "cls", "module", "settings", "table", "tables", "version")

    def __init__(self, module: Module) -> None:
        self.module = weakref.ref(module)
        self.cls = type(module)
        self.settings = settings_of(module)
        self.tables = tuple(module.__dict__[name] for name in TABLES)
        self.table = module._modules
        self.children = list(module._modules.values())
        self.version = module._version_number

    def is_same(self) -> bool:
        module = self.module()
        if module is None:
            return False
        if module._version_number == self.version:
            return True
        fields = module.__dict__
        if type(module) is not self.cls or any(fields[n] is not t for n, t in zip(TABLES, self.tables, strict=True)):
            return False
        try:
            if not alike(settings_of(module), self.settings):
                return False
        except NoRegionError:
            return False
        self.version = module._version_number
        return True


def parts_of(x: Any, found: list[Any]) -> Any:
    """Put what nested arguments hold into a list; returns how they are nested, None for what is not."""
    if type(x) in (tuple, list):
        return (type(x), *[parts_of(v, found) for v in x])
    if type(x) is dict:
        return (dict, *[(k, parts_of(v, found)) for k, v in x.items()])
    found.append(x)
    return None


class ModuleRegion(Region):
    """A call of a module."""

    holds = ("layers", "tables", "sources", "absent", "given")

    def __init__(self, frame: Any, mark: Mark, module: Module, given: tuple[Any, Any], result: Any) -> None:
        super().__init__(frame, mark, module, type(module).__name__)
        layers = [Layer(m) for m in module.modules()]
        if COUNT[0] != mark.changes:
            raise NoRegionError("it changes a module")
        self.layers = layers
        self.seen = mark.changes  # the count of changes when the layers were looked at last
        self.classes = tuple({(layer.cls, layer.cls.forward) for layer in layers})
        self.tables = tuple((layer.table, layer.children) for layer in layers if layer.children)
        self.dtype, self.device = dtypes._default, devices._default_device
        known = {i: n for i, n in frame.number.items() if frame.tensors[n] is not None}
        bound: set[int] = set()
        self.given = self.arguments(frame, given, known, bound)
        self.sources = self.tensors_of(frame, known, bound)
        self.absent = tuple((t, name) for layer in layers for t in layer.tables[:2] for name, x in t.items() if x is None)
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

    def arguments(self, frame: Any, given: tuple[Any, Any], known: dict[int, int], bound: set[int]) -> list[Any]:
        """Of each argument: the number of a tensor, whether it wants a gradient, how to bind it; or what else it is."""
        parts: list[Any] = []
        self.layout = parts_of(given, parts)
        self.flat = not given[1] and all(part is None for part in self.layout[1][1:])
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

    def tensors_of(self, frame: Any, known: dict[int, int], bound: set[int]) -> tuple[Any, ...]:
        """Where each parameter and buffer that is used is to be found, and what to expect there."""
        used = {n for call in self.entries for n in (*call.inputs, call.out) if isinstance(n, int)}
        found = []
        for layer in self.layers:
            for table in layer.tables[:2]:
                for name, t in table.items():
                    n = None if t is None else known.get(id(t))
                    if n is None or n not in used:
                        continue
                    first = n in self.fresh and n not in bound
                    if first:
                        bound.add(n)
                        if frame.trace.values[n].slot in frame.trace.shared:
                            raise NoRegionError("a NumPy array shows the memory of a parameter")
                    found.append((table, name, n, t._requires_grad, Fresh(self.fresh[n].value) if first else None))
        return tuple(found)

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
            COUNT=COUNT, MISSED=MISSED, CALL=CALL, Module=Module, dtypes=dtypes, devices=devices, alike=alike,
            parts_of=parts_of, LAYOUT=self.layout, DTYPE=self.dtype, DEVICE=self.device, take=default_generator.take_call,
            rebuilt=rebuilt,
        )  # fmt: skip
        self.look_at_code(source)
        source.add("T = f.tensors; A = f.held; B = f.arrays; N = f.number; S = f.slots")
        missed = "R.undo(f); return MISSED"
        for i, (n, flag, want) in enumerate(self.given):
            if n is None:
                name = source.constant(want)
                source.add(f"if x{i} is not {name} and not alike(x{i}, {name}): {missed}")
            elif want is not None:
                source.add(f"if not f.bind({source.constant(want)}, x{i}): {missed}")
            else:
                plain = f"x{i} is T[{n}] and x{i}._array is A[{n}] and x{i}._requires_grad is {flag}"
                source.add(f"if not ({plain} or f.fits({n}, x{i}, {flag})): {missed}")
        targets: dict[int, str] = {}
        for i, (table, name, n, flag, fresh) in enumerate(self.sources):
            source.add(f"p{i} = {source.constant(table)}.get({name!r})")
            if fresh is None:
                source.known(f"p{i}", n, flag, missed)
            else:
                source.bind(f"p{i}", n, flag, fresh, missed)
            targets[n] = f"p{i}"
        if self.checks:
            source.add(f"if not R.checked(f): {missed}")
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
        """Whether the code is what it was, nobody has exchanged modules behind their parents' back, and how many arguments."""
        tests = [f"f.state.grad is not {self.grad}", "(COUNT[0] != R.seen and not R.same_layers())"]
        tests += [f"{source.constant(cls)}.forward is not {source.constant(forward)}" for cls, forward in self.classes]
        tests += [f"[*{source.constant(table)}.values()] != {source.constant(children)}" for table, children in self.tables]
        tests += [f"{source.constant(table)}.get({name!r}) is not None" for table, name in self.absent]
        tests += ["Module.__call__ is not CALL", "dtypes._default is not DTYPE", "devices._default_device is not DEVICE"]
        if self.flat:
            tests.append(f"kwargs or len(args) != {len(self.given)}")
        source.add(f"if {' or '.join(tests)}: return MISSED")
        if not self.flat:
            source.add("parts = []", "if parts_of((args, kwargs), parts) != LAYOUT: return MISSED")
        if self.given:
            source.add("".join(f"x{i}, " for i in range(len(self.given))) + f"= {'args' if self.flat else 'parts'}")

    def same_layers(self) -> bool:
        """Something about modules has changed: whether it was none of these."""
        count = COUNT[0]
        if PATCHED or not all(layer.is_same() for layer in self.layers):
            return False
        self.seen = count
        return True

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
