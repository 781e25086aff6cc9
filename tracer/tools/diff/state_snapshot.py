"""Snapshot and restore the state that a step can change, so that after `diff` it is as if the step had not run.

Array contents are copied when an op first uses them, so arrays that no op touches cost nothing. Everything else
that the step can reach by name (a tensor's gradient, an optimizer's state, a counter) is saved before it starts.
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
from ....eager.arrays.deferred import DeferredArray, resolve_array
from ....eager.core.generator import default_generator
from ....eager.core.library import is_library
from ....eager.core.structure.object_graph import walk_objects
from ....eager.core.tape.node import Node, edge_of
from ....eager.core.tensor import Tensor
from ....eager.nn.module import Module
from ...api.compiled_function import CompiledFunction
from ...guards.reachable_state import filled_cells, referenced_names

PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.BuiltinFunctionType, np.ndarray)


class Copy:
    """Saved array: the same form, over a copy of its memory."""

    def __init__(self, memory: Memory, array: Any) -> None:
        self.memory = memory
        self.shape, self.dtype, self.strides = array.shape, array.dtype, array.strides
        self.plain = type(array) is np.ndarray and array.size > 0
        if self.plain:
            self.address = array.ctypes.data
            self.low, self.high = np.lib.array_utils.byte_bounds(array)
        else:  # empty, or on another device, where outside arrays are assumed not to overlap
            self.array_itself = devices.copy(array)

    def array(self) -> Any:
        """Return the copy as an array. Arrays that overlapped still do."""
        if not self.plain:
            return self.array_itself
        low, content = self.memory.part_of(self.low)
        return np.ndarray(self.shape, self.dtype, content, self.address - low, self.strides)


class Memory:
    """Copies of memory, each byte as it was when it was first asked for."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, bytearray]] = []  # addresses and contents, without overlap

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
        """Copy a range of memory; bytes copied earlier keep their first content."""
        content = bytearray(ctypes.string_at(low, high - low))
        for at, part in common:
            content[at - low : at - low + len(part)] = part
        self.parts = [(at, part) for at, part in self.parts if not (at < high and low < at + len(part))]
        self.parts.append((low, content))


class Before:
    """Snapshot of a step's reachable state; see the module docstring."""

    def __init__(self, function: Any, args: Any, kwargs: Any) -> None:
        self.tensors: dict[int, tuple[Tensor, dict[str, Any], int, list[int] | None]] = {}
        self.arrays: dict[int, Any] = {}
        self.memory = Memory()
        self.contents: dict[int, Copy] = {}
        self.holders: dict[int, tuple[Any, Any]] = {}  # dicts, lists and sets, with their items
        self.cells: list[tuple[Any, Any]] = []  # closure cells
        self.names: list[tuple[dict[str, Any], str, Any]] = []  # globals
        self.nodes: dict[int, tuple[Node, Any]] = {}  # existing tape nodes: a backward pass may free them
        self.frame: Any = None  # the frame of the step
        self.random = default_generator.get_state()
        for x in reachable((args, kwargs, function)):
            self._note(x)
        for t in [x for x in reachable((args, kwargs)) if isinstance(x, Tensor)]:
            self.touch(t)

    def _note(self, x: Any) -> None:
        """Save the mutable state of an object that the step can reach."""
        if isinstance(x, Tensor):
            self.see(x)
        elif isinstance(x, types.FunctionType):
            self.cells += [(c, c.cell_contents) for c in filled_cells(x)]
            self.names += [(x.__globals__, n, x.__globals__[n]) for n in referenced_names(x.__code__) if n in x.__globals__]
        elif isinstance(x, (dict, list, set)):
            self._hold(x)
        elif not isinstance(x, CompiledFunction) and is_users(type(x)):
            self._hold(getattr(x, "__dict__", None))

    def _hold(self, x: Any) -> None:
        if x is not None:
            self.holders.setdefault(id(x), (x, x.copy()))

    def see(self, t: Tensor) -> None:
        """Save a tensor's attributes, but not its content."""
        if id(t) in self.tensors or (isinstance(t.tj_array, DeferredArray) and t.tj_array.frame is self.frame is not None):
            return  # known, or made by the step
        array = t.tj_array = resolve_array(t.tj_array)
        self.arrays[id(array)] = array
        box = t.tj_versions
        rest = {name: value for name, value in t.__dict__.items() if name != "tj_array"}
        self.tensors[id(t)] = (t, rest, id(array), None if box is None else box[:1])
        self._hold(t.tj_hooks)
        self._hold(t.tj_accumulate_hooks)
        for other in (t.tj_grad, t.tj_base):
            if other is not None:
                self.see(other)

    def touch(self, t: Tensor) -> None:
        """Save a tensor's content before an op uses it."""
        self.see(t)
        array = t.tj_array
        if id(array) in self.arrays and id(array) not in self.contents:
            self.contents[id(array)] = self.memory.save(array)

    def walk(self, roots: Iterable[Tensor]) -> None:
        """Save the part of the tape that a backward pass is about to walk."""
        stack = [edge_of(r) for r in roots]
        seen: set[int] = set()
        while stack:
            edge = stack.pop()
            if isinstance(edge, Tensor):
                self.see(edge)
            elif edge is not None and id(edge) not in seen:
                seen.add(id(edge))
                stack.extend(edge.edges)
                if self.frame.is_outer(edge):  # nodes added by the step itself need not be kept
                    self.nodes.setdefault(id(edge), (edge, edge.saved))

    def restore(self) -> None:
        for key, copy in self.contents.items():
            array, was = self.arrays[key], copy.array()
            if devices.to_numpy(array).tobytes() != devices.to_numpy(was).tobytes():
                with devices.on(devices.device_of(array)):
                    array[...] = was
        for t, rest, key, version in self.tensors.values():
            t.__dict__.clear()
            t.__dict__.update(rest, tj_array=self.arrays[key])
            if version is not None:
                t.tj_versions[:1] = version  # type: ignore[index]
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
    """Restore a container's items if they have changed."""
    if isinstance(held, list):
        held[:] = content
    elif same(held, content) and (isinstance(held, set) or same(held.values(), content.values())):
        return
    else:
        held.clear()
        held.update(content)


def same(some: Iterable[Any], others: Iterable[Any]) -> bool:
    """True if both hold the same objects, in the same order."""
    return [id(x) for x in some] == [id(x) for x in others]


def is_users(cls: type) -> bool:
    """False for the standard library's classes: other threads may be using their objects."""
    return cls.__module__.partition(".")[0] not in sys.stdlib_module_names or cls.__name__.endswith("Namespace")


def reachable(start: Any) -> Iterator[Any]:
    """Walk all objects reachable through containers, attributes, closures and the globals that functions name."""
    return walk_objects([start], is_skipped, parts)


def is_skipped(x: Any) -> bool:
    return isinstance(x, PLAIN) or (isinstance(x, types.FunctionType) and of_library(x))


def of_library(function: types.FunctionType) -> bool:
    name = function.__module__ or ""
    return is_library(name) or name.partition(".")[0] in sys.stdlib_module_names


def parts(x: Any) -> Iterable[Any]:
    if isinstance(x, dict):
        return [*x.values(), *[k for k in x if isinstance(k, Tensor)]]
    if isinstance(x, (list, tuple, set, frozenset)):
        return x
    if isinstance(x, Tensor):
        return ()
    if isinstance(x, types.FunctionType):
        return surroundings(x)
    if isinstance(x, CompiledFunction):
        return (x.function,)
    if isinstance(x, types.MethodType):
        return x.__self__, x.__func__
    if isinstance(x, functools.partial):
        return x.func, x.args, x.keywords
    return list(getattr(x, "__dict__", {}).values()) + ([type(x).forward] if isinstance(x, Module) else [])


def surroundings(function: types.FunctionType) -> list[Any]:
    """Collect the objects that a function can reach by name."""
    cells = [c.cell_contents for c in filled_cells(function)]
    names = [function.__globals__[name] for name in referenced_names(function.__code__) if name in function.__globals__]
    return [function.__defaults__, function.__kwdefaults__, *cells, *names]
