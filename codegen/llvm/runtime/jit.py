"""JIT: compiles LLVM IR to objects, links them in memory, and returns addresses.

Code generation only: emitted IR is not optimised again. Several texts compile at the same time, in parallel with emitting
more of them (`Batch`), each in a thread with an LLVM context and a target machine of its own; llvmlite's global lock is
bypassed for those calls, as nothing is shared. Objects are bytes that can be stored on disk. The small code model is used,
so that constants are operands of instructions: all sections of an object are placed together, and anything further away is
called through a table.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_char_p, string_at
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi

from ....eager.backends import get_num_threads
from ...program import disk_cache as disk
from ..ir.target import Target, host
from . import perf_map
from .fork_safety import init_lock, no_fork

Job = tuple[str, int]  # IR text, optimisation level of the code generator

_thread_state = threading.local()
_library_numbers = itertools.count()


class CompileFailed(RuntimeError):  # noqa: N818 (names an event, not an error of the user's)
    """LLVM rejected the IR, or could not link: a sentence that says why."""


class Library:
    """Linked code. It stays in memory as long as this object lives; `library[name]` is an address."""

    def __init__(self, linked: Any, exports: Sequence[str]) -> None:
        self._linked = linked
        self.addresses: dict[str, int] = {name: linked[name] for name in exports}

    def __getitem__(self, name: str) -> int:
        return self.addresses[name]

    def __repr__(self) -> str:
        return f"Library({', '.join(f'{name} at {address:#x}' for name, address in self.addresses.items())})"


# ---- texts to objects


def compile_text(text: str, target: Target | None = None, opt: int = 3) -> bytes:
    """Compile one module to an object. The text is verified; `opt` is the code generator's level, 0 to 3."""
    with no_fork:
        return _emit(text, target or host(), opt, as_object=True)


class Batch:
    """Texts that are compiled to objects, several at a time, while more of them are still being emitted. Objects in the disk
    cache are not compiled again."""

    def __init__(self, target: Target | None = None) -> None:
        self.target = target or host()
        self._lock = threading.Lock()
        self._found: dict[Job, bytes | BaseException | None] = {}
        self._waiting: list[Job] = []
        self._helpers: list[threading.Thread] = []
        self._helping = 0

    def add(self, text: str, opt: int = 3, now: bool = True) -> None:
        """Add a text, unless it was added before. Unless `now`, it may wait for a free helper or for `objects`."""
        with self._lock:
            if (text, opt) in self._found:
                return
            self._found[text, opt] = None
            self._waiting.append((text, opt))
            if not now or self._helping >= get_num_threads() - 1:
                return
            self._helping += 1
        self._helpers.append(threading.Thread(target=self._help, name="tapejit-compile"))
        self._helpers[-1].start()

    def objects(self) -> list[bytes]:
        """An object per text, in the order they were added. The caller helps compiling, and waits for the rest."""
        while (job := self._next()) is not None:
            self._compile(job)
        for helper in self._helpers:
            helper.join()
        for found in self._found.values():
            if isinstance(found, BaseException):
                raise found
        return [found for found in self._found.values() if isinstance(found, bytes)]

    def keys(self) -> list[str]:
        """Keys of these objects in the disk cache."""
        return [object_key(text, self.target, opt) for text, opt in self._found]

    def _next(self, helper: bool = False) -> Job | None:
        """The longest waiting text. A helper that finds none ends."""
        with self._lock:
            if self._waiting:
                job = max(self._waiting, key=lambda job: len(job[0]))
                self._waiting.remove(job)
                return job
            self._helping -= helper
            return None

    def _help(self) -> None:
        while (job := self._next(helper=True)) is not None:
            try:
                self._compile(job)
            except BaseException as error:  # raised by `objects`
                self._found[job] = error

    def _compile(self, job: Job) -> None:
        text, opt = job
        key = object_key(text, self.target, opt)
        with no_fork:
            found = disk.get(key)
            if found is None:
                found = _emit(text, self.target, opt, as_object=True)
                disk.put(key, found)
        self._found[job] = found


def objects(texts: Sequence[str], target: Target | None = None, opt: int = 3) -> list[bytes]:
    """Compile texts; an object per text."""
    batch = Batch(target)
    several = list(dict.fromkeys(texts))
    for i, text in enumerate(several):
        batch.add(text, opt, now=i > 0)  # this thread takes the first
    found = dict(zip(several, batch.objects(), strict=True))
    return [found[text] for text in texts]


def object_key(text: str, target: Target | None = None, opt: int = 3) -> str:
    """Key of a module's object in the disk cache."""
    target = target or host()
    return disk.key(text, str(opt), target.triple, target.cpu, target.features, *versions())


@cache
def versions() -> tuple[str, ...]:
    """Versions that generated code depends on, besides its text and the CPU."""
    from .... import __version__

    return f"tapejit {__version__}", f"llvmlite {llvmlite.__version__}", "LLVM " + ".".join(map(str, llvm.llvm_version_info))


def assembly(text: str, target: Target | None = None, opt: int = 3) -> str:
    """A module's assembly, for people."""
    with no_fork:
        return _emit(text, target or host(), opt, as_object=False).decode()


def _emit(text: str, target: Target, opt: int, as_object: bool) -> bytes:
    machine = _machine(target, opt)
    with llvm.create_context() as context, _parse(text, context) as module:
        module.triple = target.triple
        module.data_layout = _layout(target)
        with ffi.OutputString() as said:
            if _unlocked("LLVMPY_VerifyModule")(module, said):
                raise CompileFailed(f"[compile] LLVM rejects the generated code: {_first_line(str(said))}")
        with ffi.OutputString() as said:
            buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, int(as_object), said)
            if not buffer:
                raise CompileFailed(f"[compile] LLVM generated no code for {target.cpu}: {_first_line(str(said))}")
        try:
            return string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _parse(text: str, context: Any) -> Any:
    said = c_char_p(None)
    pointer = _unlocked("LLVMPY_ParseAssembly")(context, c_char_p(text.encode()), byref(said))
    if said.value is None:
        return llvm.ModuleRef(pointer, context)
    message = said.value.decode(errors="replace")
    ffi.lib.LLVMPY_DisposeString(said)
    raise CompileFailed(f"[compile] LLVM cannot parse the generated code: {_first_line(message)}")


def _unlocked(name: str) -> Callable[..., Any]:
    """A function of llvmlite without its lock, where available: for calls on objects that only this thread has."""
    function = getattr(ffi.lib, name)
    return getattr(function, "_cfn", function)


def _machine(target: Target, opt: int) -> Any:
    """This thread's target machine."""
    kept: dict[Any, Any] = _thread_state.__dict__.setdefault("machines", {})
    if (target, opt) not in kept:
        kept[target, opt] = _new_machine(target, opt)
    return kept[target, opt]


def _new_machine(target: Target, opt: int) -> Any:
    model = "jitdefault" if os.name == "nt" else "small"
    try:
        found = llvm.Target.from_triple(target.triple)
        return found.create_target_machine(
            cpu=target.cpu, features=target.features, opt=opt, reloc="pic", codemodel=model, jit=True
        )
    except RuntimeError as error:
        raise CompileFailed(f"[compile] LLVM has no code generator for {target}: {error}") from None


@cache
def _layout(target: Target) -> str:
    return str(_new_machine(target, 0).target_data)


def _first_line(message: str) -> str:
    return " ".join(message.strip().splitlines()[:1]) or "no reason given"


# ---- objects to addresses


def link(objects: Sequence[bytes], imports: Mapping[str, int], exports: Sequence[str]) -> Library:
    """Link objects that may call each other. Other symbols are in `imports`, by address, or in libc."""
    builder = llvm.JITLibraryBuilder().add_current_process()
    for data in objects:
        builder.add_object_img(data)
    for name, address in imports.items():
        builder.import_symbol(name, address)
    names = list(dict.fromkeys([*exports, *perf_map.functions(objects)] if perf_map.is_enabled() else exports))
    for name in names:
        builder.export_symbol(name)
    with no_fork:
        with init_lock:
            linker = _linker()
        try:
            linked = builder.link(linker, f"tapejit{next(_library_numbers)}")
        except RuntimeError as error:
            raise CompileFailed(f"[compile] cannot link the generated code: {_first_line(str(error))}") from None
    library = Library(linked, names)
    if perf_map.is_enabled():
        perf_map.append_to_map(objects, library.addresses)
    return library


@cache
def _linker() -> Any:
    """One linker per process, never disposed of: threads may run its code until the very end."""
    linker = llvm.create_lljit_compiler(_new_machine(host(), 3), use_jit_link=os.name != "nt", suppress_errors=True)
    _never_freed.append(linker)
    return linker


_never_freed: list[Any] = []
