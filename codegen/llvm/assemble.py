"""A whole program as native code: kernels, each emitted once, and a step function that all threads run together.

The step function calls the phases of the kernels in their order, each thread with its share of the pieces. Between two kernels
there is a barrier only if one needs what the other makes, or would overwrite what it reads. Ops without a kernel are called in
Python: there the step ends, and another one goes on after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...tracer.graph import Form
from ..kernels import Launch, signature
from ..plan import Arena
from . import jit, threads
from .builder import I64, PTR, Module, Type, Value, constant
from .contract import attention_of, emit_attention, emit_product, spec_of
from .emit import emit
from .kernel import Kernel
from .scatter import emit_scatter
from .target import Target

FAILED = "failed"  # a flag: a check has ended the step
MOST_SCRATCH = 1 << 20  # bytes on a thread's stack


@dataclass
class Made:
    """A kernel with its text, and what it is called with: (buffer, offset in bytes), then the places of numbers."""

    launch: Launch
    kernel: Kernel
    text: str
    args: list[tuple[str, int]]
    numbers: list[int]
    name: str = ""


class Kernels:
    """Emits kernels; those that are the same are emitted once."""

    def __init__(self, forms: dict[str, Form], target: Target, layout: Callable[[str], tuple[int, ...]]) -> None:
        self.forms = forms
        self.target = target
        self.layout = layout
        self.known: dict[Any, tuple[Kernel, str]] = {}

    def make(self, launch: Launch) -> Made | None:
        """The kernel of a step; None if there is none, and the op has to be called as it is."""
        if launch.kind == "nest":
            return self.nest(launch)
        if launch.kind == "product":
            return self.product(launch)
        return self.attention(launch) if launch.kind == "attention" else None

    def once(self, key: Any, write: Callable[[Module, str], Kernel | None]) -> tuple[Kernel, str] | None:
        if key not in self.known:
            module = Module()
            name = "k" + hashlib.sha256(repr((key, self.target)).encode()).hexdigest()[:16]
            kernel = write(module, name)
            if kernel is None:
                return None
            self.known[key] = (kernel, str(module))
        return self.known[key]

    def nest(self, launch: Launch) -> Made:
        nest = launch.nest
        assert nest is not None
        sizes = {s.buffer: self.forms[s.buffer].size for s in nest.scatters}
        key = ("nest", signature(nest, launch.buffers, launch.numbers), tuple(sizes.values()))
        found = self.once(key, lambda m, name: self.loops(m, name, launch, sizes))
        assert found is not None
        return Made(launch, *found, [(b, 0) for b in launch.buffers], launch.numbers)

    def loops(self, module: Module, name: str, launch: Launch, sizes: dict[str, int]) -> Kernel:
        assert launch.nest is not None
        if sizes:
            return emit_scatter(module, name, launch.nest, sizes, launch.buffers, launch.numbers, self.target)
        return emit(module, name, launch.nest, launch.buffers, launch.numbers, self.target)

    def offset(self, view: tuple[str, int, tuple[int, ...]]) -> tuple[str, int]:
        return view[0], view[1] * self.forms[view[0]].itemsize

    def product(self, launch: Launch) -> Made:
        node, nest = launch.node, launch.nest
        assert node is not None and nest is not None
        spec = spec_of(node, launch.operands, self.forms)
        buffers = nest.buffers()
        key = ("product", spec, signature(nest, buffers, launch.numbers))
        found = self.once(key, lambda m, name: emit_product(m, name, launch, self.forms, self.target))
        assert found is not None
        views = [launch.operands[x] for x in node.operands]
        return Made(launch, *found, [*map(self.offset, views), *[(b, 0) for b in buffers]], launch.numbers)

    def attention(self, launch: Launch) -> Made | None:
        node = launch.node
        assert node is not None
        names = list(dict.fromkeys([*node.values(), *node.results]))
        views = {x: launch.operands.get(x, (x, 0, self.layout(x))) for x in names}
        pointers = {x: i for i, x in enumerate(names)}
        spec = attention_of(node, views, self.forms, pointers)
        if spec is None:
            return None
        backward = node.op.name == "attention_backward"
        found = self.once(
            ("attention", spec, backward, len(names)),
            lambda m, name: emit_attention(m, name, spec, backward, len(names), self.target),
        )
        return None if found is None else Made(launch, *found, [self.offset(views[x]) for x in names], [])


# ---- the step


@dataclass
class Table:
    """Words that a step finds its memory by: bound arrays, numbers, addresses that never change."""

    slots: dict[str, int] = field(default_factory=dict)  # of bound buffers: which word
    numbers: dict[int, int] = field(default_factory=dict)  # of numbers: which word
    fixed: dict[str, int] = field(default_factory=dict)  # of constants, and of the arena: which word


class Steps:
    """Writes step functions."""

    def __init__(self, arena: Arena, table: Table) -> None:
        self.arena = arena
        self.table = table
        self.module = Module()
        self.module.globals["barrier"] = "declare void @tj_barrier(ptr)"

    def step(self, name: str, kernels: list[Made]) -> int:
        """A function that runs kernels; returns how many barriers it has."""
        f = self.module.function(name, [("table", PTR), ("thread", I64), ("threads", I64), ("pool", PTR)])
        self.f = f
        scratch = max((k.kernel.scratch for k in kernels), default=0)
        if scratch > MOST_SCRATCH:
            raise jit.CompileFailed(f"[compile] a kernel wants {scratch} bytes of its own for each thread")
        self.scratch = f.stack(Type("i8"), scratch) if scratch else Value("null", PTR)
        self.words: dict[Any, Value] = {}
        read: set[str] = set()
        written: set[str] = set()
        barriers = 0
        checks: list[str] = []
        for k, made in enumerate(kernels):
            shared = f"shared {made.launch.step.number}"
            mine = made.launch.writes | ({shared} if made.kernel.shared else set())
            if self.clash(made.launch.reads | mine, written) or self.clash(mine, read):
                self.barrier()
                barriers += 1
                read, written = set(), set()
            for i, phase in enumerate(made.kernel.phases):
                if i:
                    self.barrier()
                    barriers += 1
                    read, written = set(), set()
                self.call(made, phase.function, phase.pieces, shared)
            read |= made.launch.reads
            written |= mine
            if made.launch.check:
                checks.append(made.launch.check)
                if k + 1 == len(kernels) or not kernels[k + 1].launch.check:
                    self.barrier()
                    barriers += 1
                    self.stop_if(checks)
                    read, written, checks = set(), set(), []
        f.back()
        return barriers

    def stop_if(self, checks: list[str]) -> None:
        """End the step, in all threads, where a check says so; whoever runs it finds that in the buffer `FAILED`."""
        f, bad = self.f, constant(0, Type("i8"))
        for name in checks:
            bad = f.or_(bad, f.load(self.address(name, 0), Type("i8")))
        stop, go_on = f.name_for("stop"), f.name_for("good")
        f.branch(f.compare("ne", bad, constant(0, bad.type)), stop, go_on)
        f.label(stop)
        with f.when(f.compare("eq", f.params[1], constant(0, I64))):
            f.store(constant(1, Type("i8")), self.address(FAILED, 0))
        f.back()
        f.label(go_on)

    def clash(self, a: set[str], b: set[str]) -> bool:
        return not a.isdisjoint(b) or any(self.arena.overlap(x, y) for x in a for y in b)

    def barrier(self) -> None:
        self.f.emit(f"call void @tj_barrier({self.f.params[3]})")

    def call(self, made: Made, function: str, pieces: int, shared: str) -> None:
        f = self.f
        args = [self.address(b, offset) for b, offset in made.args] + [self.number(n) for n in made.numbers]
        args += [self.address(shared, 0) if made.kernel.shared else Value("null", PTR), self.scratch]
        _, thread, count, _ = f.params
        if pieces == 1:
            first, last = constant(0, I64), constant(1, I64)
            condition = f.compare("eq", thread, constant(0, I64))
        else:
            first = f.binary("udiv", f.mul(thread, constant(pieces, I64)), count)
            last = f.binary("udiv", f.mul(f.add(thread, constant(1, I64)), constant(pieces, I64)), count)
            condition = f.compare("lt", first, last)
        with f.when(condition):
            f.call(function, None, *args, first, last)

    def word(self, place: int) -> Value:
        return self.f.once(("word", place), lambda f: f.load(f.pointer(f.params[0], place, "i64"), PTR))

    def address(self, buffer: str, offset: int) -> Value:
        table = self.table
        if buffer in table.slots:
            base = self.word(table.slots[buffer])
        elif buffer in table.fixed:
            base = self.word(table.fixed[buffer])
        else:
            base, offset = self.word(table.fixed["arena"]), offset + self.arena.offsets[buffer]
        if not offset:
            return base
        return self.f.once(("at", base.name, offset), lambda f: f.pointer(base, offset, "i8"))

    def number(self, place: int) -> Value:
        word = self.table.numbers[place]
        return self.f.once(("number", word), lambda f: f.pointer(f.params[0], word, "i64"))


def built(texts: list[str], steps: Steps, names: list[str]) -> jit.Library:
    """Everything compiled and linked."""
    objects = jit.objects([*dict.fromkeys(texts), str(steps.module)])
    return jit.link(objects, threads.pool().imports(), names)


def aligned(size: int) -> tuple[Any, int]:
    """Memory for so many bytes, and an address in it that is a multiple of 64."""
    memory = np.empty(size + 64, np.uint8)
    start = memory.ctypes.data
    return memory, start + -start % 64
