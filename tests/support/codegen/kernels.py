"""Emitted kernels, compiled and run for tests: pieces in any order, on memory that ends where a page may not be touched."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import tapejit as tj
from tapejit.codegen.llvm.ir.builder import Module
from tapejit.codegen.llvm.ir.kernel import NativeKernel
from tapejit.codegen.llvm.ir.target import Target, host
from tapejit.codegen.llvm.program import NativeProgram
from tapejit.codegen.llvm.runtime import jit
from tapejit.codegen.llvm.step_function import KernelCall, KernelEmitter

PAGE = mmap.PAGESIZE
count = itertools.count()
libc = ctypes.CDLL(None)


def target(bits: int) -> Target:
    """This machine, with vectors of another width: LLVM takes any."""
    here = host()
    return Target(here.triple, here.cpu, here.features, bits)


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy whose last byte is the last before a page that may be neither read nor written."""
    array = np.ascontiguousarray(array)
    room = -(-array.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, room + PAGE)
    whole = np.frombuffer(memory, np.uint8)
    assert libc.mprotect(ctypes.c_void_p(whole.ctypes.data + room), ctypes.c_size_t(PAGE), 0) == 0
    found = whole[room - array.nbytes : room].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def machine() -> Any:
    here = host()
    return llvm.Target.from_triple(here.triple).create_target_machine(cpu=here.cpu, features=here.features, opt=3, jit=True)


class Compiled:
    """A kernel that can be called with arrays."""

    def __init__(self, module: Module, kernel: NativeKernel, pointers: int) -> None:
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        self.kernel = kernel
        self.jit = llvm.create_lljit_compiler(machine())
        builder = llvm.JITLibraryBuilder().add_object_img(machine().emit_object(parsed)).add_current_process()
        for phase in kernel.phases:
            builder = builder.export_symbol(phase.function)
        self.library = builder.link(self.jit, f"kernel{next(count)}")
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (pointers + 2), ctypes.c_int64, ctypes.c_int64)
        self.functions = [kind(self.library[phase.function]) for phase in kernel.phases]

    def __call__(self, *arrays: np.ndarray, order: np.random.Generator | None = None) -> None:
        """All pieces, at once or one by one in a random order, each with other scratch memory that is full of NaNs."""
        shared = guarded(np.full(-(-self.kernel.shared // 64) * 64, 255, np.uint8))
        room = -(-self.kernel.scratch // 64) * 64
        places = [x.ctypes.data for x in arrays] + [shared.ctypes.data]
        for function, phase in zip(self.functions, self.kernel.phases, strict=True):
            for begin, end in ranges(phase.pieces, order):
                scratch = guarded(np.full(room, 255, np.uint8))
                function(*places, scratch.ctypes.data, begin, end)


def ranges(pieces: int, order: np.random.Generator | None) -> Sequence[tuple[int, int]]:
    if order is None:
        return [(0, pieces)]
    cuts = sorted({0, pieces, *order.integers(0, pieces + 1, 4).tolist()})
    found = list(itertools.pairwise(cuts))
    return [found[i] for i in order.permutation(len(found))]


def native_of(function: Callable[..., Any], *args: Any) -> NativeProgram:
    """The native program of a function that is one segment."""
    made = tj.compile(function, backend="llvm")
    for _ in range(3):
        made(*args)
    (segment,) = made.traces[0].programs.values()
    assert segment.native is not None
    return segment.native


class OneKernel:
    """The one kernel of a program, for some CPU."""

    def __init__(self, native: NativeProgram, cpu: Target) -> None:
        build = native.build
        made = KernelEmitter(build.forms, cpu, build.layout, build.plans).make(build.steps[0])
        assert len(build.steps) == 1 and made is not None and not made.numbers
        self.made: KernelCall = made
        names = [phase.function for phase in made.kernel.phases]
        self.library = jit.link([jit.compile_text(made.text, cpu)], {}, names)
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(made.args) + 2), ctypes.c_int64, ctypes.c_int64)
        self.functions = [kind(self.library[name]) for name in names]

    def __call__(self, arrays: dict[str, np.ndarray], order: np.random.Generator | None = None) -> None:
        kernel = self.made.kernel
        places = [arrays[b].ctypes.data for b, _ in self.made.args]
        for function, phase in zip(self.functions, kernel.phases, strict=True):
            for begin, end in ranges(phase.pieces, order):
                own = [guarded(np.full(-(-n // 64) * 64, 255, np.uint8)) for n in (kernel.shared, kernel.scratch)]
                function(*places, *[x.ctypes.data for x in own], begin, end)
