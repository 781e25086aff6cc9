"""A segment as a program on a GPU: put together from its recipe, whether that was just made or comes from the disk cache.

`on_gpu(placed, slots, plain)` gives what `native` gives for the CPU. If the device refuses something, there is one warning that
says what to do, everything is as it was, and the plain program runs from then on.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

from ...eager.devices import module_for
from ...eager.devices import on as on_device
from ...tracer.graph import Form, GraphError
from ..build import Opaque, check_outputs
from ..kernels import Launch
from ..place import Placed, on
from ..recipe import Program, one_at_a_time, runner
from .assemble import Assembly, GpuBuild, own
from .body import PRODUCT
from .driver import DeviceError, remedy, target
from .launch import Launcher, RefusedError

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
        self.stopped = False
        with on_device(self.where):
            self.launcher = self.made(frozenset())
        self.variants: dict[frozenset[int], Launcher | None] = {}
        graph, recipe = placed.graph, self.launcher.recipe
        self.inner = runner(recipe, graph, [self.go], plain, self.xp)
        self.run: Program = one_at_a_time(self.once, plain)

    @cached_property
    def build(self) -> GpuBuild:
        return GpuBuild(self.placed.graph, self.slots, self.target)

    def made(self, unaligned: frozenset[str]) -> Launcher:
        """What launches the kernels, on memory of its own."""
        assembly = self.build.assembly(unaligned)
        recipe = assembly.recipe()
        try:
            found = Launcher(recipe, dict(assembly.made), self.xp, self.where)
        except self.xp.cuda.memory.OutOfMemoryError as reason:
            raise DeviceError(f"{recipe.arena} bytes of memory are not there ({reason}); {remedy(str(reason))}") from reason
        self.add_ops(found, assembly)
        return found

    def add_ops(self, launcher: Launcher, assembly: Assembly) -> None:
        """What is called as it is."""
        constants = {name: self.xp.asarray(c) for name, c in self.build.constants.items()}
        for x in self.build.flat:
            if x.kernel is None:
                launcher.ops[x.step] = Called(self, launcher, assembly, self.build.steps[x.step], x.step, constants)

    # ---- running

    def once(self, arrays: list[Any], scalars: list[Any]) -> None:
        if self.stopped:
            self.plain(arrays, scalars)
            return
        try:
            if self.xp.cuda.runtime.getDevice() == self.where.index:
                self.inner(arrays, scalars)
            else:
                with on_device(self.where):
                    self.inner(arrays, scalars)
        except (RefusedError, self.xp.cuda.memory.OutOfMemoryError) as reason:
            del arrays[self.slots :]
            self.stop(str(reason))
            self.plain(arrays, scalars)

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
            except GraphError:
                self.variants[slots] = None
        return self.variants.get(slots)

    def stop(self, reason: str) -> None:
        """No more kernels are launched."""
        self.stopped = True
        told = f"[compile] a program runs without its kernels from now on: {reason}; {remedy(reason)}"
        warnings.warn(told, RuntimeWarning, stacklevel=2)

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        with on_device(self.where):
            self.xp.cuda.get_current_stream().synchronize()

    def __str__(self) -> str:
        """The texts of the kernels."""
        return "\n\n".join(dict.fromkeys(x.printed.source for x in self.build.flat if x.printed is not None))


class Called(Opaque):
    """An op as it is, on CuPy's arrays. Where something follows it, its result goes where that reads it."""

    def __init__(
        self, gpu: Gpu, launcher: Launcher, assembly: Assembly, launch: Launch, step: int, constants: dict[str, Any]
    ) -> None:
        xp, memory = gpu.xp, launcher.memory

        def place(form: Form, at: int, strides: tuple[int, ...]) -> Any:
            return xp.ndarray(form.shape, form.dtype, memory + at, strides)

        super().__init__(gpu.build, launch, assembly.arena, place, xp)
        self.attrs = on(self.node.attrs, gpu.where)
        self.followed = launch.nest is not None
        self.product = own(PRODUCT, step)
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


def on_gpu(placed: Placed, slots: int, plain: Program) -> Gpu:
    """The program of a graph on a GPU; a list of so many arrays will be given. `plain` runs where it cannot."""
    return Gpu(placed, slots, plain)
