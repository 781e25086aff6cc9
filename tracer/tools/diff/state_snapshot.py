"""The state that a step can change, noted before it changes, and put back: `diff` runs a step as if it had never run.

The contents of arrays are copied when an op first comes across them, so that what no op touches costs nothing. Everything else
that the step can reach by name (a tensor's gradient, what an optimizer remembers, a counter) is noted before it begins.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ....eager.arrays import devices
from ....eager.nn.module import Module
from ....eager.arrays.deferred import Pending, resolved
from ....eager.random import default_generator
from ....eager.core.tape.node import Node, edge_of
from ....eager.core.tensor import Tensor
from ...api.compile import Compiled

PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.BuiltinFunctionType, np.ndarray)

LIBRARY = __name__.rpartition(".tracer")[0] + "."


class Copy:
    """An array as it was: an array of the same form on a memory's copy."""

    def __init__(self, memory: Memory, array: Any) -> None:
        self.memory = memory
        self.shape, self.dtype, self.strides = array.shape, array.dtype, array.strides
        self.plain = type(array) is np.ndarray and array.size > 0
        if self.plain:
            self.address = array.ctypes.data
            self.low, self.high = np.lib.array_utils.byte_bounds(array)
        else:  # nothing, or on another device, where arrays from outside are taken for separate
            self.array_itself = devices.copy(array)

    def array(self) -> Any:
        """The copy, as an array; arrays that overlapped do so here."""
        if not self.plain:
            return self.array_itself
        low, content = self.memory.part_of(self.low)
        return np.ndarray(self.shape, self.dtype, content, self.address - low, self.strides)


class Memory:
    """Copies of memory, each byte as it was when it was first asked for."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, bytearray]] = []  # address and content; they do not overlap

    def part_of(self, address: int) -> tuple[int, bytearray]:
        return next(p for p in self.parts if p[0] <= address < p[0] + len(p[1]))

    def save(self, array: Any) -> Copy:
        copy = Copy(self, array)
        if copy.plain:
            low, high = copy.low, copy.high
            common = [(at, part) for at, part in self.parts if at < high and low < at + len(part)]
            if not any(at <= low and high <= at + len(part) for at, part in common):
                self._join(min([low, *[at for at, _ in common]]), max([high, *[at + len(part) for at, part in common]]), common)
        return copy

    def _join(self, low: int, high: int, common: list[tuple[int, bytearray]]) -> None:
        """Copy some memory; what was copied before stays as it was then."""
        content = bytearray(ctypes.string_at(low, high - low))
        for at, part in common:
            content[at - low : at - low + len(part)] = part
        self.parts = [(at, part) for at, part in self.parts if not (at < high and low < at + len(part))]
        self.parts.append((low, content))


class Before:
    """See the module's text."""

    def __init__(self, function: Any, args: Any, kwargs: Any) -> None:
        self.tensors: dict[int, tuple[Tensor, dict[str, Any], int, list[int] | None]] = {}
        self.arrays: dict[int, Any] = {}
        self.memory = Memory()
        self.contents: dict[int, Copy] = {}
        self.holders: dict[int, tuple[Any, Any]] = {}  # dicts, lists and sets, and what was in them
        self.cells: list[tuple[Any, Any]] = []  # of closures
        self.names: list[tuple[dict[str, Any], str, Any]] = []  # globals
        self.nodes: dict[int, tuple[Node, Any]] = {}  # of the tape from before: a backward pass may use it up
        self.frame: Any = None  # what runs the step
        self.random = default_generator.get_state()
        for x in reachable((args, kwargs, function)):
            self._note(x)
        for t in [x for x in reachable((args, kwargs)) if isinstance(x, Tensor)]:
            self.touch(t)

    def _note(self, x: Any) -> None:
        """Note what may become of an object that the step can reach."""
        if isinstance(x, Tensor):
            self.see(x)
        elif isinstance(x, types.FunctionType):
            self.cells += [(c, c.cell_contents) for c in bound(x)]
            self.names += [(x.__globals__, n, x.__globals__[n]) for n in names_of(x.__code__) if n in x.__globals__]
        elif isinstance(x, (dict, list, set)):
            self._hold(x)
        elif not isinstance(x, Compiled) and is_users(type(x)):
            self._hold(getattr(x, "__dict__", None))

    def _hold(self, x: Any) -> None:
        if x is not None:
            self.holders.setdefault(id(x), (x, x.copy()))

    def see(self, t: Tensor) -> None:
        """Note what is known of a tensor, apart from its content."""
        if id(t) in self.tensors or (isinstance(t._array, Pending) and t._array.frame is self.frame is not None):
            return  # known, or made by the step
        array = t._array = resolved(t._array)
        self.arrays[id(array)] = array
        box = t._versions
        rest = {name: value for name, value in t.__dict__.items() if name != "_array"}
        self.tensors[id(t)] = (t, rest, id(array), None if box is None else box[:1])
        self._hold(t._hooks)
        self._hold(t._after_accumulate)
        for other in (t._grad, t._base):
            if other is not None:
                self.see(other)

    def touch(self, t: Tensor) -> None:
        """An op is about to use a tensor: its content, as long as it is there."""
        self.see(t)
        array = t._array
        if id(array) in self.arrays and id(array) not in self.contents:
            self.contents[id(array)] = self.memory.save(array)

    def walk(self, roots: Iterable[Tensor]) -> None:
        """Note the part of the tape that a backward pass is about to go through."""
        stack = [edge_of(r) for r in roots]
        seen: set[int] = set()
        while stack:
            edge = stack.pop()
            if isinstance(edge, Tensor):
                self.see(edge)
            elif edge is not None and id(edge) not in seen:
                seen.add(id(edge))
                stack.extend(edge.edges)
                if self.frame.is_outer(edge):  # what the step itself has put there may go
                    self.nodes.setdefault(id(edge), (edge, edge.saved))

    def restore(self) -> None:
        for key, copy in self.contents.items():
            array, was = self.arrays[key], copy.array()
            if devices.to_numpy(array).tobytes() != devices.to_numpy(was).tobytes():
                with devices.on(devices.device_of(array)):
                    array[...] = was
        for t, rest, key, version in self.tensors.values():
            t.__dict__.clear()
            t.__dict__.update(rest, _array=self.arrays[key])
            if version is not None:
                t._versions[:1] = version  # type: ignore[index]
        for node, saved in self.nodes.values():
            node.saved = saved
        for held, content in self.holders.values():
            put_back(held, content)
        for cell, value in self.cells:
            cell.cell_contents = value
        for names, name, value in self.names:
            names[name] = value
        default_generator.set_state(self.random)


def put_back(held: Any, content: Any) -> None:
    """Fill a container as it was, if it is not."""
    if isinstance(held, list):
        held[:] = content
    elif same(held, content) and (isinstance(held, set) or same(held.values(), content.values())):
        return
    else:
        held.clear()
        held.update(content)


def same(some: Iterable[Any], others: Iterable[Any]) -> bool:
    """Whether they are the same objects, in the same order."""
    return [id(x) for x in some] == [id(x) for x in others]


def is_users(cls: type) -> bool:
    """Whether objects of a class are a program's own, rather than Python's, which other threads may be using."""
    return cls.__module__.partition(".")[0] not in sys.stdlib_module_names or cls.__name__.endswith("Namespace")


def bound(function: types.FunctionType) -> list[Any]:
    """The cells of a closure that hold something."""
    return [c for c in function.__closure__ or () if filled(c)]


def filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def reachable(start: Any) -> Iterator[Any]:
    """Objects that some others lead to: through containers, attributes, closures and the globals that functions name."""
    seen: set[int] = set()
    stack = [start]
    kept = []  # so that no id is used twice
    while stack:
        x = stack.pop()
        if isinstance(x, PLAIN) or id(x) in seen or (isinstance(x, types.FunctionType) and of_library(x)):
            continue
        seen.add(id(x))
        kept.append(x)
        yield x
        stack.extend(parts(x))


def of_library(function: types.FunctionType) -> bool:
    name = function.__module__ or ""
    return name.startswith(LIBRARY) or name.partition(".")[0] in sys.stdlib_module_names


def parts(x: Any) -> Iterable[Any]:
    if isinstance(x, dict):
        return [*x.values(), *[k for k in x if isinstance(k, Tensor)]]
    if isinstance(x, (list, tuple, set, frozenset)):
        return x
    if isinstance(x, Tensor):
        return ()
    if isinstance(x, types.FunctionType):
        return surroundings(x)
    if isinstance(x, Compiled):
        return (x.function,)
    if isinstance(x, types.MethodType):
        return x.__self__, x.__func__
    if isinstance(x, functools.partial):
        return x.func, x.args, x.keywords
    return list(getattr(x, "__dict__", {}).values()) + ([type(x).forward] if isinstance(x, Module) else [])


def surroundings(function: types.FunctionType) -> list[Any]:
    """What a function can reach by name."""
    cells = [c.cell_contents for c in bound(function)]
    names = [function.__globals__[name] for name in names_of(function.__code__) if name in function.__globals__]
    return [function.__defaults__, function.__kwdefaults__, *cells, *names]


def names_of(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_of(constant)
    return names
