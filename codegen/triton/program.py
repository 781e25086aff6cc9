"""Compiles a segment for a GPU and runs it: key -> load or build -> executable -> call.

`on_gpu(graph, slots, reference)` gives what `compile_graph` in `codegen/llvm/program.py` gives for the CPU. If the device
refuses something, there is one warning that says what to do, all memory is as it was, and the reference program runs from then
on.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

from ...eager.arrays.devices import module_for
from ...eager.arrays.devices import on as on_device
from ...eager.backends import are_deterministic_algorithms_enabled
from ...tracer.graph.ir import Graph, GraphError
from ...tracer.graph.passes import run_step
from ...tracer.trace.logging import counted, display_line
from ..program.call_wrapper import Program, check_outputs, make_call_wrapper
from ..program.executable import lookup_in_words
from ..program.report_hook import report
from .build import GpuBuild
from .executable import GpuExecutable, bind, load, precision
from .executable import key as key_of
from .matmul import cublas as blas
from .runtime import autotune as tune
from .runtime.cuda_graph import MIN_GRAPH_LAUNCHES
from .runtime.driver import DeviceError, remedy, target
from .runtime.kernel_cache import Binary, KernelCompileError
from .runtime.launcher import GEMM, OP, Launcher, LaunchRefusedError
from .runtime.output_pool import OutputPool

MAX_VARIANTS = 4  # executables of a program for sets of unaligned arrays


class GpuProgram:
    """GPU program: its executable, its launcher, and the reference program that runs where they cannot."""

    def __init__(self, graph: Graph, slots: int, reference: Program) -> None:
        check_outputs(graph)
        self.graph = graph
        self.slots = slots
        self.reference = reference
        self.where = graph.where
        self.xp = module_for(self.where)
        self.target = target(self.where)
        self.library = blas.usable(self.xp)
        self.stopped = False
        self.stream = -1
        self.from_disk = False
        self.beside = False  # True if native code for what is on the CPU runs before it
        self.make()
        self.run: Program = self.in_turn

    def make(self) -> None:
        with on_device(self.where):
            self.executable, self.launcher = self.made(frozenset())
        self.variants: dict[frozenset[int], Launcher | None] = {}
        executable, replays = self.executable, len(self.executable.plan.rows) >= MIN_GRAPH_LAUNCHES
        self.kept = [OutputPool(self.xp, self.where) for _ in executable.memories if replays]
        self.inner = make_call_wrapper(executable, self.graph, [self.go], self.reference, self.xp, self.kept or None)

    @cached_property
    def build(self) -> GpuBuild:
        chosen = precision(), are_deterministic_algorithms_enabled(), self.library
        found = GpuBuild(self.graph, self.slots, self.target, *chosen)
        if tune.is_enabled(self.xp):
            found.prints = tune.TuningPrinter(found.prints, tune.Tuner(self.xp, self.where, self.target))
        return found

    def made(self, unaligned: frozenset[str]) -> tuple[GpuExecutable, Launcher]:
        """Load or build the executable, and bind its launcher."""
        name, known = run_step(
            "disk cache",
            lambda: self.look_up(unaligned),
            lambda found: lookup_in_words(found[0], found[1] and counted(len(found[1][1]), "kernel")),
        )
        if known is not None:
            self.from_disk = True
            return known[0], self.bound(*known)
        assembly = self.build.assembly(unaligned)
        executable = run_step("executable", assembly.executable, lambda x: counted(len(x.plan.order), "launch step"))
        launcher = self.bound(executable, dict(assembly.made))
        if executable.has_opaque_ops:
            launcher.ops = assembly.opaque_ops(launcher, self.xp, self.where)
        elif name is not None:
            executable.store(name)
        return executable, launcher

    def look_up(self, unaligned: frozenset[str]) -> tuple[str | None, tuple[GpuExecutable, dict[str, Binary]] | None]:
        """The cache key of the program, and the program if it is on disk."""
        settings = str(tune.is_enabled(self.xp)), str(self.library)
        name = key_of(self.graph, self.slots, self.target, *settings, *sorted(unaligned))
        return name, load(name)

    def bound(self, executable: GpuExecutable, binaries: dict[str, Binary]) -> Launcher:
        """Bind an executable, as a step of the log."""
        return run_step(
            "load and bind",
            lambda: bind(executable, binaries, self.xp, self.where),
            lambda _: f"{counted(len(binaries), 'kernel')}, {executable.arena:,} bytes of arena",
        )

    # ---- running

    def in_turn(self, arrays: list[Any], scalars: list[Any]) -> None:
        """Run once no other program runs on the device; the reference program runs if this thread is in one already."""
        with self.launcher.arena.taken() as free:
            if free and not self.stopped:
                self.once(arrays, scalars)
                return
        self.reference(arrays, scalars)

    def once(self, arrays: list[Any], scalars: list[Any]) -> None:
        try:
            if self.xp.cuda.runtime.getDevice() == self.where.index:
                self.follow()
                self.inner(arrays, scalars)
            else:
                with on_device(self.where):
                    self.follow()
                    self.inner(arrays, scalars)
        except (LaunchRefusedError, self.xp.cuda.memory.OutOfMemoryError) as reason:
            del arrays[self.slots :]
            if isinstance(reason.__cause__, blas.LibraryError) and self.left_library(reason):
                self.once(arrays, scalars)
                return
            self.stop(str(reason))
            self.reference(arrays, scalars)

    def left_library(self, reason: Exception) -> bool:
        """Rebuild without cuBLAS; False if there are no kernels for all matmuls."""
        self.library = False
        self.__dict__.pop("build", None)
        where = f"[compile] the GPU program that begins at {self.first_line}"
        message = f"{where} multiplies without cuBLAS from now on: {reason}. TAPEJIT_CUBLAS=0 does so from the start."
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        try:
            self.make()
        except (GraphError, KernelCompileError, DeviceError):
            return False
        return True

    def follow(self) -> None:
        """Forget pooled outputs when the stream changes: work on the old one may still use them."""
        stream = self.xp.cuda.get_current_stream().ptr
        if stream != self.stream:
            self.stream = stream
            for x in self.kept:
                x.forget()

    def go(self, arrays: list[Any], scalars: list[Any]) -> bool:
        """Run the kernels; False if the reference program has to run in their place."""
        launcher: Launcher | None = self.launcher
        assert launcher is not None
        if not launcher.bind(arrays, scalars):
            launcher = self.variant(frozenset(launcher.unaligned()))
            if launcher is None:
                return False
            launcher.bind(arrays, scalars)
        return launcher(arrays, scalars)

    def variant(self, slots: frozenset[int]) -> Launcher | None:
        """Launcher for arrays whose addresses are not multiples of 16 bytes; None if there is none."""
        if slots not in self.variants and len(self.variants) < MAX_VARIANTS:
            names = frozenset(name for name, slot in self.build.inputs.items() if slot in slots)
            try:
                self.variants[slots] = self.made(names)[1]
            except (GraphError, KernelCompileError, DeviceError) as reason:
                self.variants[slots] = None
                where = f"[compile] the GPU program that begins at {self.first_line}"
                what = "runs as the reference program for inputs whose addresses are not multiples of 16 bytes"
                message = f"{where} {what}: {reason}. A .clone() of such an input is aligned."
                warnings.warn(message, RuntimeWarning, stacklevel=2)
        return self.variants.get(slots)

    def stop(self, reason: str) -> None:
        """Launch no more kernels: the reference program runs from now on."""
        self.stopped = True
        where = f"[compile] the GPU program that begins at {self.first_line}"
        message = f"{where} runs without its kernels from now on: {reason}; {remedy(reason)}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)

    @property
    def first_line(self) -> str:
        """File and line of the program's first op."""
        return display_line(next((node.line for node in self.graph.nodes if node.line), "an unknown line"))

    @property
    def what(self) -> str:
        """Summary for `explain`."""
        called, gemms = (sum(kind == x for kind, _ in self.executable.plan.order) for x in (OP, GEMM))
        launches = len(self.executable.plan.rows)
        found = f"Triton kernels for {self.target}, {launches} launch{'es' * (launches != 1)}"
        found += f", {gemms} matmul{'s' * (gemms > 1)} by cuBLAS" if gemms else ""
        found += f", {called} opaque op{'s' * (called > 1)}" if called else ""
        return found + (", and native code for what is on the CPU" if self.beside else "")

    def wait(self) -> None:
        """Block until the device has finished all work of the current stream."""
        with on_device(self.where):
            self.xp.cuda.get_current_stream().synchronize()

    def report(self, llvm: bool = False, assembly: bool = False) -> dict[str, Any]:
        """Report for `explain(kernels=True)`, with Triton texts where a native program would show its own."""
        return report("triton", self, llvm, assembly)

    def __str__(self) -> str:
        """Texts of the kernels."""
        return "\n\n".join(dict.fromkeys(x.printed.source for x in self.build.units() if x.printed is not None))


def on_gpu(graph: Graph, slots: int, reference: Program) -> GpuProgram:
    """Make the GPU program of a graph; it is called with a list of `slots` arrays. `reference` runs where it cannot."""
    return GpuProgram(graph, slots, reference)
