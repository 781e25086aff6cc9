"""Programs as Python callables: a built-in function, written in LLVM text, that binds arrays and numbers and runs a step.

`program(arrays, scalars)` takes two lists. It puts the addresses of some of the arrays and some of the numbers into the
program's table, releases the GIL, runs the step on all threads or on this one, and returns True. It returns False, and does
nothing, if another thread is just running the same program, or one that shares its arena: both are for one run at a time.

One function serves all programs: what is particular to one (which slots, which places, its step) is in a descriptor, an array
of words that Python hands the function as its `self`. So a program needs no code of its own for that.

The table is an array of 8-byte words: addresses of the bound slots in order, then the numbers, then constant words.
Objects are read where CPython has had its fields since long; `bind` tries that once, and goes the slow way if it fails.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from . import thread_choice_ir as choice
from . import entry_ir as entry_text
from . import jit
from . import thread_pool as threads
from .entry_ir import FROM_PYTHON, HEAD, HEAD_WORDS, HEADER, KINDS, PARALLEL, RELEASES
from .thread_pool_ir import MOST_THREADS
from .arena import Shared, aligned
from .fork_safety import at_work, making

Program = Callable[[list[Any], list[Any]], bool]


@dataclass(frozen=True)
class Binding:
    """What a program takes: arrays by slot, numbers by place.

    A number is a "double"; an "i64", for which too large a number is an error; or the last 64 "bits" of any integer.
    """

    slots: tuple[int, ...]
    numbers: tuple[tuple[int, str], ...] = ()

    @property
    def words(self) -> int:
        """That come before the constants in the table."""
        return len(self.slots) + len(self.numbers)


def bind(
    step: int,
    binding: Binding,
    constants: Sequence[int] = (),
    *,
    parallel: bool = True,
    releases_gil: bool = True,
    most_threads: int = MOST_THREADS,
    keep: Any = None,
    shares: int | None = None,
) -> Program:
    """A program from the address of its step. `keep` lives as long as it: the library, the arena. If it `shares` the memory
    that programs have in common, it gets so many bytes of it, or of its own: the first constant is for where they begin.

    It never runs on more than `most_threads`, whatever `tj.set_num_threads` says later: its scratch memory may be for so many.
    The arrays are only looked at: they have to stay alive until it returns.
    """
    flags = (PARALLEL if parallel else 0) | (RELEASES if releases_gil else 0)
    words = _descriptor(step, binding, constants, flags, most_threads)
    if shares is not None:
        place = int(words[HEAD["table"]]) + binding.words
        if not memory().admit(words, place, HEAD["lock"], shares):
            own, words[place] = aligned(shares)
            keep = (keep, own)
    return _native(words, keep) if _fields_are_known() else _slow(words, binding, keep)


def shared_by_programs() -> None:
    """Make what `bind` needs once in a process: the workers' code, and the built-in function's."""
    _fields_are_known()


def measured(program: Program) -> dict[str, float]:
    """What a parallel program has found out about itself: seconds for a run on all threads and alone, 0 for not tried yet."""
    state = program.__self__[HEAD["state"] :]  # type: ignore[attr-defined]
    rate = threads.pool().ticks_per_second
    found = {name: float(state[choice.STATE[f"ticks_{name}"]]) / rate for name in ("together", "alone")}
    return {**found, "runs alone": float(state[choice.STATE["alone"]])}


def _descriptor(step: int, binding: Binding, constants: Sequence[int], flags: int, most: int = 1) -> Any:
    """The words of a program, as an array whose table begins on a cache line."""
    numbers = [x for place, kind in binding.numbers for x in (place, KINDS[kind])]
    before = HEAD_WORDS + len(binding.slots) + len(numbers)
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
        words[HEAD[name]] = value
    words[HEAD["lock"]] = words.ctypes.data
    for name, value in choice.initial().items():
        words[HEAD["state"] + choice.STATE[name]] = value
    words[HEAD_WORDS:before] = [*binding.slots, *numbers]
    words[table + binding.words : table + binding.words + len(constants)] = np.array(constants, np.uint64).view(np.int64)
    return words


def _native(words: Any, keep: Any) -> Program:
    return _new_function(ctypes.addressof(_code().definition), words, (words, keep))


_prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
_new_function = _prototype(("PyCFunction_NewEx", ctypes.pythonapi))  # of a definition, `self`, and what it keeps alive


class _Definition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class _Code:
    """The built-in function's code, and what CPython wants to know of it. Tests replace some of what it calls."""

    def __init__(self, replaced: Mapping[str, int] | None = None) -> None:
        pool = threads.pool()
        python = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in FROM_PYTHON}
        types = {"list_type": id(list), "float_type": id(float), "array_type": id(np.ndarray), "type_error": id(TypeError)}
        imports = {**python, **types, **pool.imports(), "pool": pool.address, **(replaced or {})}
        self.library = jit.link(
            jit.objects([entry_text.text()], opt=0), imports, ["tj_program", "tj_epoch", "tj_copy", "tj_take"]
        )
        take = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(self.library["tj_take"])
        self.shared = Shared(take)
        fastcall = 0x80  # METH_FASTCALL: arguments come as an array
        self.definition = _Definition(b"program", self.library["tj_program"], fastcall, b"Runs a compiled program.")
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """Programs that other threads were running in the parent are free again in the child."""
        ctypes.c_int64.from_address(self.library["tj_epoch"]).value += 1


def memory() -> Shared:
    """What programs have in common."""
    return _code().shared


def _code() -> _Code:
    if not _made:
        with at_work, making:
            if not _made:
                _made.append(_Code())
    return _made[0]


_made: list[_Code] = []  # one at most, for good: programs refer to it


@cache
def _fields_are_known() -> bool:
    """Whether objects look as expected: an array and two numbers are bound, and compared with what Python says they are."""
    array, found = np.arange(5.0), np.zeros(3, np.int64)
    if _word_at(id(array) + HEADER) != array.ctypes.data or _word_at(id(array) + HEADER - 8) != id(np.ndarray):
        return False
    items: list[Any] = [None, array, None]
    if _word_at(id(items) + HEADER) != 3 or _word_at(_word_at(id(items) + HEADER + 8) + 8) != id(array):
        return False
    numbers: list[Any] = [7, 2.5]
    binding = Binding((1,), ((1, "double"), (0, "i64")))
    words = _descriptor(_code().library["tj_copy"], binding, [found.ctypes.data], 0)
    done = _native(words, None)(items, numbers)
    return done is True and found.tolist() == [array.ctypes.data, int(np.float64(2.5).view(np.int64)), 7]


def _word_at(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


def _word(x: Any, kind: str) -> Any:
    if kind == "bits":
        return np.uint64(int(x) & 0xFFFFFFFFFFFFFFFF).view(np.int64)
    return x if kind == "i64" else np.float64(x).view(np.int64)


def _slow(words: Any, binding: Binding, keep: Any) -> Program:
    """The same in Python, for interpreters whose objects look different."""
    pool = threads.pool()
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(int(words[HEAD["step"]]))
    table = words[words[HEAD["table"]] :]

    def program(arrays: list[Any], scalars: list[Any], keep: Any = keep) -> bool:
        lock = int(words[HEAD["lock"]])
        if not memory().take(lock):
            return False
        try:
            for i, slot in enumerate(binding.slots):
                table[i] = arrays[slot].ctypes.data
            for i, (place, kind) in enumerate(binding.numbers, len(binding.slots)):
                table[i] = _word(scalars[place], kind)
            if words[HEAD["flags"]] & PARALLEL:
                pool.run(int(words[HEAD["step"]]), table.ctypes.data, int(words[HEAD["most"]]))
            else:
                run(table.ctypes.data, 0, 1, pool.library["tj_alone"])
        finally:
            ctypes.c_int64.from_address(lock).value = 0
        return True

    return program
