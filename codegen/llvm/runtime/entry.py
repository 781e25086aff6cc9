"""Entry point of programs: a built-in function, written in LLVM IR, that binds arrays and scalars and runs a step.

`program(arrays, scalars)` takes two lists. It puts the addresses of some of the arrays and some of the scalars into the
program's table, releases the GIL, runs the step on all threads or on this one, and returns True. It returns False, and does
nothing, if another thread is running the same program, or one that shares its arena: both allow one run at a time.

One function serves all programs: what differs (slots, places, the step) is in a descriptor, an array of words that Python
passes as the function's `self`. So a program needs no code of its own for that.

The table is an array of 8-byte words: addresses of the bound slots in order, then the scalars, then constant words. Objects
are read at CPython's long-standing field offsets; `bind` verifies these once, and uses Python's calls if they differ.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from . import entry_ir, jit, thread_choice_ir, thread_pool
from .arena import HostArena, allocate_aligned
from .entry_ir import (
    DESCRIPTOR,
    DESCRIPTOR_WORDS,
    NUMBER_KINDS,
    OBJECT_HEADER,
    PARALLEL_FLAG,
    PYTHON_IMPORTS,
    RELEASES_GIL_FLAG,
)
from .fork_safety import init_lock, no_fork
from .thread_pool_ir import MAX_THREADS

BoundProgram = Callable[[list[Any], list[Any]], bool]


@dataclass(frozen=True)
class ArgumentBinding:
    """Arguments of a program: arrays by slot, scalars by place.

    A scalar is a "double"; an "i64", where too large a number is an error; or the low 64 "bits" of any integer.
    """

    slots: tuple[int, ...]
    numbers: tuple[tuple[int, str], ...] = ()

    @property
    def words(self) -> int:
        """Words of the table before the constants."""
        return len(self.slots) + len(self.numbers)


def bind(
    step: int,
    binding: ArgumentBinding,
    constants: Sequence[int] = (),
    *,
    parallel: bool = True,
    releases_gil: bool = True,
    max_threads: int = MAX_THREADS,
    keep: Any = None,
    shares: int | None = None,
) -> BoundProgram:
    """A program from the address of its step. `keep` lives as long as the program: the library, the arena. With `shares`, it
    gets that many bytes of the shared arena, or of its own; the first constant is for their address.

    It never runs on more than `max_threads`, whatever `tj.set_num_threads` says later: its scratch memory may be for so
    many. The arrays are only read here: they have to stay alive until it returns.
    """
    flags = (PARALLEL_FLAG if parallel else 0) | (RELEASES_GIL_FLAG if releases_gil else 0)
    words = _descriptor(step, binding, constants, flags, max_threads)
    if shares is not None:
        place = int(words[DESCRIPTOR["table"]]) + binding.words
        if not shared_arena().admit(words, place, DESCRIPTOR["lock"], shares):
            own, words[place] = allocate_aligned(shares)
            keep = (keep, own)
    return _bind_native(words, keep) if _fields_are_known() else _bind_in_python(words, binding, keep)


def prepare_runtime() -> None:
    """Compile once per process what `bind` needs: the workers' code, and the built-in function's."""
    _fields_are_known()


def thread_timings(program: BoundProgram) -> dict[str, float]:
    """Measurements of a parallel program: seconds of a run on all threads and alone, 0 if not tried yet."""
    state = program.__self__[DESCRIPTOR["state"] :]  # type: ignore[attr-defined]
    rate = thread_pool.process_pool().ticks_per_second
    found = {name: float(state[thread_choice_ir.STATE[f"ticks_{name}"]]) / rate for name in ("together", "alone")}
    return {**found, "runs alone": float(state[thread_choice_ir.STATE["alone"]])}


def _descriptor(step: int, binding: ArgumentBinding, constants: Sequence[int], flags: int, most: int = 1) -> Any:
    """The descriptor of a program, as an array whose table begins on a cache line."""
    numbers = [x for place, kind in binding.numbers for x in (place, NUMBER_KINDS[kind])]
    before = DESCRIPTOR_WORDS + len(binding.slots) + len(numbers)
    total = before + binding.words + len(constants)
    room = np.zeros(total + 16, np.int64)
    first = -(room.ctypes.data // 8) % 8
    words = room[first : first + total + 8]
    table = before + -before % 8
    head = {
        "step": step,
        "flags": flags,
        "slots": len(binding.slots),
        "numbers": len(binding.numbers),
        "length": max(binding.slots, default=-1) + 1,
        "table": table,
        "most": most,
    }
    for name, value in head.items():
        words[DESCRIPTOR[name]] = value
    words[DESCRIPTOR["lock"]] = words.ctypes.data
    for name, value in thread_choice_ir.initial_state().items():
        words[DESCRIPTOR["state"] + thread_choice_ir.STATE[name]] = value
    words[DESCRIPTOR_WORDS:before] = [*binding.slots, *numbers]
    words[table + binding.words : table + binding.words + len(constants)] = np.array(constants, np.uint64).view(np.int64)
    return words


def _bind_native(words: Any, keep: Any) -> BoundProgram:
    return _new_function(ctypes.addressof(_code().definition), words, (words, keep))


_prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
_new_function = _prototype(("PyCFunction_NewEx", ctypes.pythonapi))  # from a definition, `self`, and what it keeps alive


class _Definition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class _Code:
    """The built-in function's code and definition. Tests replace some of what it calls."""

    def __init__(self, replaced: Mapping[str, int] | None = None) -> None:
        pool = thread_pool.process_pool()
        python = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in PYTHON_IMPORTS}
        types = {"list_type": id(list), "float_type": id(float), "array_type": id(np.ndarray), "type_error": id(TypeError)}
        imports = {**python, **types, **pool.imports(), "pool": pool.address, **(replaced or {})}
        self.library = jit.link(
            jit.objects([entry_ir.entry_ir()], opt=0), imports, ["tj_program", "tj_epoch", "tj_copy", "tj_take"]
        )
        take = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(self.library["tj_take"])
        self.shared = HostArena(take)
        fastcall = 0x80  # METH_FASTCALL: arguments come as an array
        self.definition = _Definition(b"program", self.library["tj_program"], fastcall, b"Runs a compiled program.")
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """Release programs in a forked child that other threads were running in the parent."""
        ctypes.c_int64.from_address(self.library["tj_epoch"]).value += 1


def shared_arena() -> HostArena:
    """The arena that programs of this process share."""
    return _code().shared


def _code() -> _Code:
    if not _instances:
        with no_fork, init_lock:
            if not _instances:
                _instances.append(_Code())
    return _instances[0]


_instances: list[_Code] = []  # one at most, and never freed: programs refer to it


@cache
def _fields_are_known() -> bool:
    """True if objects have the expected fields: binds an array and two scalars, and compares with what Python says they are."""
    array, found = np.arange(5.0), np.zeros(3, np.int64)
    if _word_at(id(array) + OBJECT_HEADER) != array.ctypes.data or _word_at(id(array) + OBJECT_HEADER - 8) != id(np.ndarray):
        return False
    items: list[Any] = [None, array, None]
    if _word_at(id(items) + OBJECT_HEADER) != 3 or _word_at(_word_at(id(items) + OBJECT_HEADER + 8) + 8) != id(array):
        return False
    numbers: list[Any] = [7, 2.5]
    binding = ArgumentBinding((1,), ((1, "double"), (0, "i64")))
    words = _descriptor(_code().library["tj_copy"], binding, [found.ctypes.data], 0)
    done = _bind_native(words, None)(items, numbers)
    return done is True and found.tolist() == [array.ctypes.data, int(np.float64(2.5).view(np.int64)), 7]


def _word_at(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


def _word(x: Any, kind: str) -> Any:
    if kind == "bits":
        return np.uint64(int(x) & 0xFFFFFFFFFFFFFFFF).view(np.int64)
    return x if kind == "i64" else np.float64(x).view(np.int64)


def _bind_in_python(words: Any, binding: ArgumentBinding, keep: Any) -> BoundProgram:
    """The same in Python, for interpreters whose objects have other fields."""
    pool = thread_pool.process_pool()
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(
        int(words[DESCRIPTOR["step"]])
    )
    table = words[words[DESCRIPTOR["table"]] :]

    def program(arrays: list[Any], scalars: list[Any], keep: Any = keep) -> bool:
        lock = int(words[DESCRIPTOR["lock"]])
        if not shared_arena().take(lock):
            return False
        try:
            for i, slot in enumerate(binding.slots):
                table[i] = arrays[slot].ctypes.data
            for i, (place, kind) in enumerate(binding.numbers, len(binding.slots)):
                table[i] = _word(scalars[place], kind)
            if words[DESCRIPTOR["flags"]] & PARALLEL_FLAG:
                pool.run(int(words[DESCRIPTOR["step"]]), table.ctypes.data, int(words[DESCRIPTOR["most"]]))
            else:
                run(table.ctypes.data, 0, 1, pool.library["tj_alone"])
        finally:
            ctypes.c_int64.from_address(lock).value = 0
        return True

    return program
