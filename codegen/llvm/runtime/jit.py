"""From LLVM's text to machine code in memory: compile to objects, link them, hand out addresses.

Code generation only: what emitters write is not optimised again. Several texts compile at the same time, beside whoever writes
more of them (`Batch`), each in a thread with an LLVM context and a target machine of its own; llvmlite's global lock is passed
by for those calls, as nothing is shared. Objects are bytes that can be kept on disk. The small code model is used, so that
constants are operands of instructions: all parts of an object are placed together, and what is further away is called through a
table.
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
from . import perf_map as perf
from ..ir.target import Target, host
from .fork_safety import at_work, making

Job = tuple[str, int]  # a text, and how hard the code generator tries

_of_thread = threading.local()
_numbers = itertools.count()


class CompileFailed(RuntimeError):  # noqa: N818 (what happened, not an error of the user's)
    """LLVM refused the text, or could not link: a sentence that says why."""


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
    """One module as an object. The text is verified; `opt` is how hard the code generator tries, 0 to 3."""
    with at_work:
        return _emit(text, target or host(), opt, as_object=True)


class Batch:
    """Texts that become objects, several at a time, while more of them are still being written. What the disk cache has is not
    compiled again."""

    def __init__(self, target: Target | None = None) -> None:
        self.target = target or host()
        self._lock = threading.Lock()
        self._found: dict[Job, bytes | BaseException | None] = {}
        self._waiting: list[Job] = []
        self._helpers: list[threading.Thread] = []
        self._helping = 0

    def add(self, text: str, opt: int = 3, now: bool = True) -> None:
        """One more text, unless it was there before. If it need not begin now, it may wait for another one or the end."""
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
        """An object for each text, in the order in which they came. Who asks takes part, and waits for the rest."""
        while (job := self._next()) is not None:
            self._compile(job)
        for helper in self._helpers:
            helper.join()
        for found in self._found.values():
            if isinstance(found, BaseException):
                raise found
        return [found for found in self._found.values() if isinstance(found, bytes)]

    def keys(self) -> list[str]:
        """The names of these objects in the disk cache."""
        return [key_of(text, self.target, opt) for text, opt in self._found]

    def _next(self, helper: bool = False) -> Job | None:
        """The longest text that waits. A helper that finds none goes."""
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
            except BaseException as error:  # it is raised where the objects are wanted
                self._found[job] = error

    def _compile(self, job: Job) -> None:
        text, opt = job
        key = key_of(text, self.target, opt)
        with at_work:
            found = disk.get(key)
            if found is None:
                found = _emit(text, self.target, opt, as_object=True)
                disk.put(key, found)
        self._found[job] = found


def objects(texts: Sequence[str], target: Target | None = None, opt: int = 3) -> list[bytes]:
    """An object for each text."""
    batch = Batch(target)
    several = list(dict.fromkeys(texts))
    for i, text in enumerate(several):
        batch.add(text, opt, now=i > 0)  # one is for this thread
    found = dict(zip(several, batch.objects(), strict=True))
    return [found[text] for text in texts]


def key_of(text: str, target: Target | None = None, opt: int = 3) -> str:
    """The name of a module's object in the disk cache."""
    target = target or host()
    return disk.key(text, str(opt), target.triple, target.cpu, target.features, *versions())


@cache
def versions() -> tuple[str, ...]:
    """What generated code depends on, beside its text and the CPU."""
    from .... import __version__

    return f"tapejit {__version__}", f"llvmlite {llvmlite.__version__}", "LLVM " + ".".join(map(str, llvm.llvm_version_info))


def assembly(text: str, target: Target | None = None, opt: int = 3) -> str:
    """What a module becomes, as the CPU's assembly, for people."""
    with at_work:
        return _emit(text, target or host(), opt, as_object=False).decode()


def _emit(text: str, target: Target, opt: int, as_object: bool) -> bytes:
    machine = _machine(target, opt)
    with llvm.create_context() as context, _parse(text, context) as module:
        module.triple = target.triple
        module.data_layout = _layout(target)
        with ffi.OutputString() as said:
            if _unlocked("LLVMPY_VerifyModule")(module, said):
                raise CompileFailed(f"[compile] LLVM finds the generated code wrong: {_first_line(str(said))}")
        with ffi.OutputString() as said:
            buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, int(as_object), said)
            if not buffer:
                raise CompileFailed(f"[compile] LLVM made no code for {target.cpu}: {_first_line(str(said))}")
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
    raise CompileFailed(f"[compile] LLVM cannot read the generated code: {_first_line(message)}")


def _unlocked(name: str) -> Callable[..., Any]:
    """A function of llvmlite without its lock, where it can be had: for calls on what only this thread has."""
    function = getattr(ffi.lib, name)
    return getattr(function, "_cfn", function)


def _machine(target: Target, opt: int) -> Any:
    """Each thread has its own."""
    kept: dict[Any, Any] = _of_thread.__dict__.setdefault("machines", {})
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
    return " ".join(message.strip().splitlines()[:1]) or "it does not say why"


# ---- objects to addresses


def link(objects: Sequence[bytes], imports: Mapping[str, int], exports: Sequence[str]) -> Library:
    """Puts objects that may call each other into memory. What they call beside that is in `imports`, by address, or in libc."""
    builder = llvm.JITLibraryBuilder().add_current_process()
    for data in objects:
        builder.add_object_img(data)
    for name, address in imports.items():
        builder.import_symbol(name, address)
    names = list(dict.fromkeys([*exports, *perf.functions(objects)] if perf.wanted() else exports))
    for name in names:
        builder.export_symbol(name)
    with at_work:
        with making:
            linker = _linker()
        try:
            linked = builder.link(linker, f"tapejit{next(_numbers)}")
        except RuntimeError as error:
            raise CompileFailed(f"[compile] the generated code cannot be linked: {_first_line(str(error))}") from None
    library = Library(linked, names)
    if perf.wanted():
        perf.write(objects, library.addresses)
    return library


@cache
def _linker() -> Any:
    """One for the whole process, and never disposed of: threads may be in its code until the very end."""
    linker = llvm.create_lljit_compiler(_new_machine(host(), 3), use_jit_link=os.name != "nt", suppress_errors=True)
    _never_freed.append(linker)
    return linker


_never_freed: list[Any] = []
