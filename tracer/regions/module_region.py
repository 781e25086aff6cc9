"""Calls of the library's own modules as regions: see `region.py`.

What a layer does follows from its settings, its tensors and its arguments, as long as its code is the library's. Settings are
looked at only when something about modules has changed in the process; tensors are looked up in the modules' tables each time.
"""

from __future__ import annotations

import sys
import weakref
from types import FunctionType
from typing import Any

from ...eager.core.library import MODULES, is_trusted
from ...eager.nn.module import Module
from ...eager.nn.mutation_counter import MUTATION_COUNT
from ..trace.specialize import ReplayWriter
from ..trace.trace import same_setting
from .function_region import ON_MISS, CallRegion, is_setting
from .region import FirstUse, NoRegionError, RegionStart

MODULE_CALL = Module.__call__
HOOK_TABLES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
TABLES = ("_parameters", "_buffers", "_modules")


def is_library_layer(module: Module) -> bool:
    """True if a module's class is the library's, and so is its code."""
    cls = type(module)
    if not is_trusted(cls, MODULES) or vars(sys.modules[cls.__module__]).get(cls.__name__) is not cls:
        return False
    forward = cls.forward
    return type(forward) is FunctionType and is_trusted(forward, MODULES) and cls.__call__ is MODULE_CALL


def settings_of(module: Module) -> dict[str, Any]:
    """Return a module's attributes beyond its tables; an error if its behaviour does not follow from them."""
    fields = module.__dict__
    if not is_library_layer(module) or any(fields[name] for name in HOOK_TABLES):
        raise NoRegionError("a module runs user code")
    found = {name: value for name, value in fields.items() if not isinstance(value, (dict, set)) and name != "_version_number"}
    for name, value in fields.items():
        if name not in found and name not in TABLES and name != "_version_number" and value:
            raise NoRegionError(f"a module has {name}")
        if name in found and not is_setting(value, name.startswith("_")):
            raise NoRegionError(f"a module's {name} can change unnoticed")
    return {name: list(value) if isinstance(value, list) else value for name, value in found.items()}


class LayerState:
    """A module inside a region, as it was when recorded."""

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
            if not same_setting(settings_of(module), self.settings):
                return False
        except NoRegionError:
            return False
        self.version = module._version_number
        return True


class ModuleRegion(CallRegion):
    """A call of a module."""

    holds = ("layers", "tables", "sources", "absent", "given")

    def __init__(self, frame: Any, mark: RegionStart, module: Module, given: tuple[Any, Any], result: Any) -> None:
        self.layers = layers = [LayerState(m) for m in module.modules()]
        if MUTATION_COUNT[0] != mark.changes:
            raise NoRegionError("it changes a module")
        self.seen = mark.changes  # the count of changes when the layers were looked at last
        self.tables = tuple((layer.table, layer.children) for layer in layers if layer.children)
        self.absent = tuple((t, name) for layer in layers for t in layer.tables[:2] for name, x in t.items() if x is None)
        super().__init__(frame, mark, module, type(module).__name__, given, result, {layer.cls for layer in layers})

    def see_members(self, frame: Any, known: dict[int, int], bound: set[int]) -> None:
        """Note the table and name of each parameter and buffer that is used, and its value number."""
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
                            raise NoRegionError("a NumPy array shares the memory of a parameter")
                    found.append((table, name, n, t.tj_requires_grad, FirstUse(self.fresh[n].value) if first else None))
        self.sources = tuple(found)

    # ---- entering

    def tests(self, source: ReplayWriter) -> list[str]:
        """Return tests of settings, and of children that were exchanged in the tables directly."""
        source.space.update(COUNT=MUTATION_COUNT)
        tests = ["(COUNT[0] != R.seen and not R.same_layers())"]
        tests += [f"[*{source.constant(table)}.values()] != {source.constant(children)}" for table, children in self.tables]
        return tests + [f"{source.constant(table)}.get({name!r}) is not None" for table, name in self.absent]

    def look_at_members(self, source: ReplayWriter) -> dict[int, str]:
        targets: dict[int, str] = {}
        for i, (table, name, n, flag, fresh) in enumerate(self.sources):
            source.add(f"p{i} = {source.constant(table)}.get({name!r})")
            if fresh is None:
                source.known(f"p{i}", n, flag, ON_MISS)
            else:
                source.bind(f"p{i}", n, flag, fresh, n in self.mutated, ON_MISS)
            targets[n] = f"p{i}"
        return targets

    def same_layers(self) -> bool:
        """Something about modules has changed: whether it was none of these."""
        count = MUTATION_COUNT[0]
        if not all(layer.is_same() for layer in self.layers):
            return False
        self.seen = count
        return True
