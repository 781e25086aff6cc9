"""A counter of mutations of modules in this process: a setting, a child, a hook.

A compiled function skips the code of library modules as long as they are unchanged since it was recorded. One comparison of
this counter covers all of them; only when it has moved are they checked one by one.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

MUTATION_COUNT = [0]
_numbers = itertools.count(1)


def count_mutation() -> None:
    MUTATION_COUNT[0] = next(_numbers)


class ModuleTable(dict[str, Any]):
    """The parameters, buffers or children of a module: a dict that counts its changes, whoever makes them."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleTable:
        return ModuleTable({name: copy.deepcopy(value, memo) for name, value in self.items()})

    def __reduce_ex__(self, protocol: Any) -> Any:  # files know dicts
        return dict, (dict(self),)

    def copy(self) -> ModuleTable:
        return ModuleTable(self)

    __copy__ = copy


def _counting(name: str) -> Any:
    change = getattr(dict, name)

    def method(self: ModuleTable, *args: Any, **kwargs: Any) -> Any:
        MUTATION_COUNT[0] = next(_numbers)
        return change(self, *args, **kwargs)

    method.__name__ = name
    return method


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(ModuleTable, _name, _counting(_name))
