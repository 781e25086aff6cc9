"""A segment as a program on a GPU: put together from its recipe, whether that was just made or comes from the disk cache.

`on_gpu(placed, slots, plain)` gives what `native` gives for the CPU. If the device refuses something, there is one warning that
says what to do, everything is as it was, and the plain program runs from then on.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

from ...eager import backends
from ...eager.backends import are_deterministic_algorithms_enabled
from ...eager.arrays.devices import module_for
from ...eager.arrays.devices import on as on_device
from ...tracer.graph.ir import Form, Graph, GraphError
from ..program import disk_cache as cache
from ..program.builder import Opaque
from ..nests.kernels import Launch
from ..program.cache_key import name_of
from ..prepare.device_placement import Placed, on
from ..program.call_wrapper import Program, check_outputs, runner
from .matmul import cublas as blas
from .runtime import autotune as tune
from .build import Assembly, GpuBuild
from .runtime.kernel_cache import Binary, CompileError, kept, versions
from .printing.expr_printer import PRODUCT
from .runtime.cuda_graph import FEWEST
from .runtime.driver import DeviceError, remedy, target
from .runtime.output_pool import Keeping
from .runtime.launcher import GEMM, OP, Launcher, Recipe, RefusedError, from_text
from .launches.launch_unit import own

MOST_VARIANTS = 4  # of a program: sets of arrays that are not where kernels expect them


class Gpu:
    """A program, and what there is to be told about it."""

    def __init__(self, placed: Placed, slots: int, plain: Program) -> None:
        check_outputs(placed.graph)
        self.placed = placed
        self.slots = slots
        self.plain = plain
        self.where = placed.where
        self.xp = module_for(self.where)
        self.target = target(self.where)
        self.library = blas.usable(self.xp)
        self.stopped = False
        self.stream = -1
        self.from_disk = False
        self.beside = False  # whether native code runs before, for what is on the CPU
        self.make()
        self.run: Program = self.in_turn

    def make(self) -> None:
        with on_device(self.where):
            self.launcher = self.made(frozenset())
        self.variants: dict[frozenset[int], Launcher | None] = {}
        recipe = self.launcher.recipe
        self.kept = [Keeping(self.xp, self.where) for _ in recipe.memories if len(recipe.rows) >= FEWEST]
        self.inner = runner(recipe, self.placed.graph, [self.go], self.plain, self.xp, self.kept or None)

    @cached_property
    def build(self) -> GpuBuild:
        chosen = precision(), are_deterministic_algorithms_enabled(), self.library
        found = GpuBuild(self.placed.graph, self.slots, self.target, *chosen)
        if tune.wanted(self.xp):
            found.prints = tune.Tuned(found.prints, tune.Tuner(self.xp, self.where, self.target))
        return found

    def made(self, unaligned: frozenset[str]) -> Launcher:
        """What launches the kernels, on memory of its own."""
        chosen = (*settings(), str(tune.wanted(self.xp)), str(self.library), *sorted(unaligned))
        name = name_of(self.placed.graph, self.slots, "triton", self.target, *versions(), *chosen)
        known = kept_on_disk(name)
        if known is not None:
            self.from_disk = True
            return self.launching(*known)
        assembly = self.build.assembly(unaligned)
        recipe = assembly.recipe()
        found = self.launching(recipe, dict(assembly.made))
        if any(kind == OP for kind, _ in recipe.order):
            self.add_ops(found, assembly)
        elif name is not None:
            cache.put(name, recipe.text())
        return found

    def launching(self, recipe: Recipe, binaries: dict[str, Binary]) -> Launcher:
        try:
            return Launcher(recipe, binaries, self.xp, self.where)
        except self.xp.cuda.memory.OutOfMemoryError as reason:
            raise DeviceError(f"{recipe.arena} bytes of memory are not there ({reason}); {remedy(str(reason))}") from reason

    @property
    def recipe(self) -> Recipe:
        return self.launcher.recipe

    def add_ops(self, launcher: Launcher, assembly: Assembly) -> None:
        """What is called as it is."""
        constants = {name: self.xp.asarray(c) for name, c in self.build.constants.items()}
        for i, x in enumerate(assembly.units):
            if x.called:
                launcher.ops[i] = Called(self, launcher, assembly, x.launches[0], constants)

    # ---- running

    def in_turn(self, arrays: list[Any], scalars: list[Any]) -> None:
        """Run, when no other program runs on the device."""
        with self.launcher.arena.taken() as free:
            if free and not self.stopped:
                self.once(arrays, scalars)
                return
        self.plain(arrays, scalars)

    def once(self, arrays: list[Any], scalars: list[Any]) -> None:
        try:
            if self.xp.cuda.runtime.getDevice() == self.where.index:
                self.follow()
                self.inner(arrays, scalars)
            else:
                with on_device(self.where):
                    self.follow()
                    self.inner(arrays, scalars)
        except (RefusedError, self.xp.cuda.memory.OutOfMemoryError) as reason:
            del arrays[self.slots :]
            if isinstance(reason.__cause__, blas.LibraryError) and self.left_library(reason):
                self.once(arrays, scalars)
                return
            self.stop(str(reason))
            self.plain(arrays, scalars)

    def left_library(self, reason: Exception) -> bool:
        """Kernels for all products from now on; whether there are some."""
        self.library = False
        self.__dict__.pop("build", None)
        told = f"[compile] a program multiplies without cuBLAS from now on: {reason}; TAPEJIT_CUBLAS=0 does so from the start"
        warnings.warn(told, RuntimeWarning, stacklevel=2)
        try:
            self.make()
        except (GraphError, CompileError, DeviceError):
            return False
        return True

    def follow(self) -> None:
        """On another stream than before memory of outputs is another: who used it there may not be done with it."""
        stream = self.xp.cuda.get_current_stream().ptr
        if stream != self.stream:
            self.stream = stream
            for x in self.kept:
                x.forget()

    def go(self, arrays: list[Any], scalars: list[Any]) -> bool:
        """Run the kernels; False if the plain program has to run in their place."""
        launcher: Launcher | None = self.launcher
        assert launcher is not None
        if not launcher.bind(arrays, scalars):
            launcher = self.variant(frozenset(launcher.unaligned()))
            if launcher is None:
                return False
            launcher.bind(arrays, scalars)
        return launcher(arrays, scalars)

    def variant(self, slots: frozenset[int]) -> Launcher | None:
        """The program for arrays that are at addresses which are no multiples of 16 bytes; None if there is none."""
        if slots not in self.variants and len(self.variants) < MOST_VARIANTS:
            names = frozenset(name for name, slot in self.build.inputs.items() if slot in slots)
            try:
                self.variants[slots] = self.made(names)
            except (GraphError, CompileError, DeviceError) as reason:
                self.variants[slots] = None
                told = f"[compile] arrays at addresses that are no multiples of 16 bytes are computed with plainly: {reason}"
                warnings.warn(told, RuntimeWarning, stacklevel=2)
        return self.variants.get(slots)

    def stop(self, reason: str) -> None:
        """No more kernels are launched."""
        self.stopped = True
        told = f"[compile] a program runs without its kernels from now on: {reason}; {remedy(reason)}"
        warnings.warn(told, RuntimeWarning, stacklevel=2)

    @property
    def what(self) -> str:
        """In a few words, for `explain`."""
        called, gemms = (sum(kind == x for kind, _ in self.recipe.order) for x in (OP, GEMM))
        launches = len(self.recipe.rows)
        found = f"Triton kernels for {self.target}, {launches} launch{'es' * (launches != 1)}"
        found += f", {gemms} product{'s' * (gemms > 1)} by cuBLAS" if gemms else ""
        found += f", {called} ops called as they are" if called else ""
        return found + (", and native code for what is on the CPU" if self.beside else "")

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        with on_device(self.where):
            self.xp.cuda.get_current_stream().synchronize()

    @property
    def graph(self) -> Graph:
        return self.placed.graph

    def report(self, llvm: bool = False, assembly: bool = False) -> dict[str, Any]:
        """All there is to be told; with the kernels' texts where a native program would show its own."""
        from ..inspect.gpu_report import report

        return report(self, llvm or assembly)

    def __str__(self) -> str:
        """The texts of the kernels."""
        return "\n\n".join(dict.fromkeys(x.printed.source for x in self.build.units() if x.printed is not None))


class Called(Opaque):
    """An op as it is, on CuPy's arrays. Where something follows it, its result goes where that reads it."""

    def __init__(self, gpu: Gpu, launcher: Launcher, assembly: Assembly, launch: Launch, constants: dict[str, Any]) -> None:
        xp = gpu.xp

        def place(form: Form, at: int, strides: tuple[int, ...]) -> Any:
            return xp.ndarray(form.shape, form.dtype, launcher.memory + at, strides)

        super().__init__(gpu.build, launch, assembly.arena, place, xp)
        self.attrs = on(self.node.attrs, gpu.where)
        self.followed = launch.nest is not None
        self.product = own(PRODUCT, launch)
        self.on_device = constants

    def __call__(self, arrays: list[Any], scalars: list[Any]) -> bool:
        if not self.followed:
            return super().__call__(arrays, scalars)
        form = self.build.forms[self.node.results[0]]
        strides, step = [], form.itemsize
        for n in reversed(form.shape):
            strides.append(step)
            step *= max(n, 1)
        self.place(form, self.arena.offsets[self.product], tuple(reversed(strides)))[...] = self.computed(arrays, scalars)
        return True

    def base(self, arrays: list[Any], buffer: str) -> Any:
        return self.on_device[buffer] if buffer in self.on_device else super().base(arrays, buffer)


def kept_on_disk(name: str | None) -> tuple[Recipe, dict[str, Binary]] | None:
    """A recipe and the code of its kernels, if all of it is there."""
    data = None if name is None else cache.get(name)
    if data is None:
        return None
    try:
        recipe = from_text(data)
    except (ValueError, TypeError):  # written by another version
        return None
    found = {key: kept(key) for key in dict.fromkeys(row.binary for row in recipe.rows)}
    return None if None in found.values() else (recipe, {key: b for key, b in found.items() if b is not None})


def settings() -> tuple[str, ...]:
    """What the user has chosen, and kernels depend on."""
    return str(are_deterministic_algorithms_enabled()), precision()


def precision() -> str:
    """Of products of float32: tf32 where the user has said that this will do."""
    return "tf32" if backends.cuda.matmul.allow_tf32 or backends.get_float32_matmul_precision() != "highest" else "ieee"


def on_gpu(placed: Placed, slots: int, plain: Program) -> Gpu:
    """The program of a graph on a GPU; a list of so many arrays will be given. `plain` runs where it cannot."""
    return Gpu(placed, slots, plain)
