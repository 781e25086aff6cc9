"""A whole program as native code: kernels, each emitted once, and a step function that all threads run together.

The step function calls the phases of the kernels in rounds, each thread with its share of the pieces, with a barrier between
two rounds. Phases are in one round if none needs what another makes, or would overwrite what it reads; those that differ in
buffers, numbers and sizes alone, as the updates of all parameters by an optimizer, are one kernel. Ops without a kernel are
called in Python: there the step ends, and another one goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ...tracer.graph.ir import Form
from ..nests.kernels import Launch, signature
from ..nests.loop_nest import Nest
from ..schedule.memory_plan import Arena
from ..nests.horizontal_fusion import form
from .runtime import jit
from .runtime import thread_pool as threads
from .ir.builder import I64, PTR, Module, Type, Value, constant
from .loops.table_kernel import Entry, emit_family, entries, pieces
from .ir.kernel import Kernel, Phase
from .loops.nest_emitter import emit
from .loops.scan import emit_scan, scan_of
from .loops.scatter import emit_scatter
from .ir.target import Target

FAILED = "failed"  # a flag: a check has ended the step
ON_STACK = 1 << 18  # bytes of its own that a thread has on its stack; more is in the arena, for so many threads
MANY = 8  # pieces from which a phase is shared among the threads for itself


@dataclass
class Made:
    """A kernel with its text, and what it is called with: (buffer, offset in bytes), then the places of numbers."""

    launch: Launch
    kernel: Kernel
    text: str
    args: list[tuple[str, int]]
    numbers: list[int]
    entries: tuple[Entry, ...] = ()  # of a kernel that finds all that in a table: what is in it

    @property
    def shared(self) -> str:
        """The name of the memory that all threads share."""
        return f"shared {self.launch.step.number}"


class Kernels:
    """Emits kernels; those that are the same are emitted once."""

    def __init__(self, forms: dict[str, Form], target: Target, layout: Callable[[str], tuple[int, ...]], chooser: Any) -> None:
        self.forms = forms
        self.target = target
        self.layout = layout
        self.chooser = chooser  # of the plans of products; None where there are none
        self.known: dict[Any, tuple[Kernel, str]] = {}

    def make(self, launch: Launch) -> Made | None:
        """The kernel of a step; None if there is none, and the op has to be called as it is."""
        if launch.kind == "nest":
            return self.nest(launch)
        if launch.kind == "product":
            return self.product(launch)
        if launch.kind in ("attention", "scan"):
            return self.alone(launch)
        return None

    def once(self, key: Any, write: Callable[[Module, str], Kernel | None]) -> tuple[Kernel, str] | None:
        if key not in self.known:
            module = Module(self.target.features)
            name = "k" + hashlib.sha256(repr((key, self.target)).encode()).hexdigest()[:16]
            kernel = write(module, name)
            if kernel is None:
                return None
            self.known[key] = (kernel, str(module))
        return self.known[key]

    def nest(self, launch: Launch) -> Made:
        nest = launch.nest
        assert nest is not None
        if nest.also:
            return self.family(launch, nest)
        sizes = {s.buffer: self.forms[s.buffer].size for s in nest.scatters}
        key = ("nest", signature(nest, launch.buffers, launch.numbers), tuple(sizes.values()))
        buffers = [*launch.buffers, *[s.flag for s in nest.stores() if s.past]]
        found = self.once(key, lambda m, name: self.loops(m, name, launch, buffers, sizes))
        assert found is not None
        return Made(launch, *found, [(b, 0) for b in buffers], launch.numbers)

    def family(self, launch: Launch, nest: Nest) -> Made:
        """Of nests that differ in buffers, numbers and sizes: the code is the same however many there are."""
        table, first = entries(nest.all), nest.all[0]
        found = self.once(("family", form(first)), lambda m, name: emit_family(m, name, first, self.target))
        assert found is not None
        kernel, text = found
        kernel = replace(kernel, phases=tuple(replace(phase, pieces=pieces(table)) for phase in kernel.phases))
        return Made(launch, kernel, text, [], launch.numbers, table)

    def later(self, launch: Launch) -> Made:
        """What a nest that may be one of many is until that is decided: it is in a round, and has no text yet."""
        return Made(launch, Kernel((Phase("", 1),)), "", [], [])

    def loops(self, module: Module, name: str, launch: Launch, buffers: list[str], sizes: dict[str, int]) -> Kernel:
        assert launch.nest is not None
        if sizes:
            return emit_scatter(module, name, launch.nest, sizes, launch.buffers, launch.numbers, self.target)
        return emit(module, name, launch.nest, buffers, launch.numbers, self.target)

    def offset(self, view: tuple[str, int, tuple[int, ...]]) -> tuple[str, int]:
        return view[0], view[1] * self.forms[view[0]].itemsize

    def product(self, launch: Launch) -> Made:
        from .contractions import around, emit_product, spec_of  # not imported before there is a product
        from .gemm.prologue import prologues

        node, nest = launch.node, launch.nest
        assert node is not None and nest is not None
        buffers, before = around(launch, self.forms), prologues(launch, self.forms)
        nests = tuple(signature(n, [*buffers, *before], launch.numbers) for n in (nest, *before.values()))
        computed = tuple(x in before for x in node.operands)
        key = ("product", spec_of(launch, self.forms), computed, nests)
        found = self.once(key, lambda m, name: emit_product(m, name, launch, self.forms, self.target, self.chooser))
        assert found is not None
        args = [(buffers[0], 0) if x in before else self.offset(launch.operands[x]) for x in node.operands]
        return Made(launch, *found, [*args, *[(b, 0) for b in buffers]], launch.numbers)

    def alone(self, launch: Launch) -> Made | None:
        """A kernel of operands and results, and nothing else."""
        node = launch.node
        assert node is not None
        names = list(dict.fromkeys([*node.values(), *node.results]))
        views = {x: launch.operands.get(x, (x, 0, self.layout(x))) for x in names}
        pointers = {x: i for i, x in enumerate(names)}
        if launch.kind == "attention":
            from .attention.from_graph import attention_of, emit_attention  # not imported before there is one

            attention, backward = attention_of(node, views, self.forms, pointers), node.op.name == "attention_backward"
            if attention is None:
                return None
            key: Any = ("attention", attention, backward, len(names))
            found = self.once(key, lambda m, name: emit_attention(m, name, attention, backward, len(names), self.target))
        else:
            scan = scan_of(node, views, self.forms, pointers)
            if scan is None:
                return None
            found = self.once(("scan", scan, len(names)), lambda m, name: emit_scan(m, name, scan, len(names), self.target))
        return None if found is None else Made(launch, *found, [self.offset(views[x]) for x in names], [])


# ---- the step


@dataclass
class Table:
    """Words that a step finds its memory by: bound arrays, numbers, addresses that never change."""

    slots: dict[str, int] = field(default_factory=dict)  # of bound buffers: which word
    numbers: dict[int, int] = field(default_factory=dict)  # of numbers: which word
    fixed: dict[str, int] = field(default_factory=dict)  # of constants, and of the arena: which word


class Rounds:
    """Puts phases into rounds, each as early as what it reads is there and nobody reads what it overwrites."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.written: dict[str, int] = {}  # of buffers: the round after which what was written is there
        self.read: dict[str, int] = {}  # and the one after which nobody reads it any more
        self.sharing: dict[str, list[str]] = {}
        self.stops: dict[int, list[str]] = {}  # of rounds: the checks that may end the step before them

    def of(self, kernels: list[Made]) -> list[list[tuple[Made, Phase]]]:
        found: list[list[tuple[Made, Phase]]] = []
        first, checks = 0, list[str]()  # the round that what comes after checks is in at least, and checks nobody waits for yet
        for made in kernels:
            reads, writes = made.launch.reads, set(made.launch.writes)
            if made.kernel.shared:
                writes.add(made.shared)
            at = max([0, *[self.latest(b, self.written) for b in reads | writes], *[self.latest(b, self.read) for b in writes]])
            if not made.launch.check:
                first = self.stop(checks, first)
                at = max(at, first)
            for phase in made.kernel.phases:
                if phase.pieces == 0:
                    continue
                while len(found) <= at:
                    found.append([])
                found[at].append((made, phase))
                at += 1
            self.read.update({b: max(at, self.read.get(b, 0)) for b in reads})
            self.written.update({b: max(at, self.written.get(b, 0)) for b in writes})
            checks += [made.launch.check] if made.launch.check else []
        self.stop(checks, len(found))
        return found

    def stop(self, checks: list[str], first: int) -> int:
        """Have the step end where checks say so, as soon as all of them are done; no sooner than in a round."""
        if checks:
            first = max(first, *[self.written[b] for b in checks])
            self.stops.setdefault(first, []).extend(checks)
            checks.clear()
        return first

    def latest(self, buffer: str, known: dict[str, int]) -> int:
        """The round before which nothing may happen to a buffer, or to one that shares memory with it."""
        if buffer not in self.sharing:
            self.sharing[buffer] = [buffer, *self.arena.sharing(buffer)]
        return max(known.get(b, 0) for b in self.sharing[buffer])


SCRATCH = "scratch"  # the buffer that threads have shares of


def rounded(size: int) -> int:
    return -(-size // 64) * 64


class Steps:
    """Writes step functions."""

    def __init__(self, arena: Arena, table: Table) -> None:
        self.arena = arena
        self.table = table
        self.module = Module()
        self.module.globals["barrier"] = "declare void @tj_barrier(ptr)"

    def step(self, name: str, kernels: list[Made]) -> int:
        """A function that runs kernels; returns how many rounds it has."""
        f = self.module.function(name, [("table", PTR), ("thread", I64), ("threads", I64), ("pool", PTR)])
        self.f = f
        self.scratch = self.own_memory(max((k.kernel.scratch for k in kernels), default=0))
        plan = Rounds(self.arena)
        rounds = plan.of(kernels)
        for i in range(len(rounds) + (len(rounds) in plan.stops)):
            if i:
                f.emit(f"call void @tj_barrier({f.params[3]})")
            if i in plan.stops:
                self.stop_if(plan.stops[i])
            if i < len(rounds):
                self.round(rounds[i])
        f.back()
        return len(rounds)

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

    def own_memory(self, size: int) -> Value:
        """Memory that each thread has for itself."""
        if not size:
            return Value("null", PTR)
        if size <= ON_STACK:
            return self.f.stack(Type("i8"), size)
        base, share = self.address(SCRATCH, 0), constant(rounded(size), I64)
        return self.f.once("scratch", lambda f: f.pointer(base, f.mul(f.params[1], share), "i8"))

    def round(self, items: list[tuple[Made, Phase]]) -> None:
        """Phases that do not depend on each other. Each is shared among the threads; small ones are dealt out together."""
        f = self.f
        few = sum(phase.pieces for _, phase in items if phase.pieces < MANY)
        at = 0
        for made, phase in items:
            _, thread, count, _ = f.params
            total = phase.pieces if phase.pieces >= MANY else few
            first = f.binary("udiv", f.mul(thread, constant(total, I64)), count)
            last = f.binary("udiv", f.mul(f.add(thread, constant(1, I64)), constant(total, I64)), count)
            if phase.pieces < MANY:
                first = f.intrinsic("smax", f.sub(first, constant(at, I64)), constant(0, I64))
                last = f.intrinsic("smin", f.sub(last, constant(at, I64)), constant(phase.pieces, I64))
                at += phase.pieces
            with f.when(f.compare("lt", first, last)):
                f.call(phase.function, None, *self.arguments(made), first, last)
        if any(made.kernel.past for made, _ in items):  # these stores may be seen later than those of a barrier or a lock
            f.call("llvm.x86.sse.sfence", None)

    def arguments(self, made: Made) -> list[Value]:
        if made.entries:
            args = [self.f.params[0], self.entries(made.entries)]
        else:
            args = [self.address(b, offset) for b, offset in made.args] + [self.number(n) for n in made.numbers]
        return [*args, self.address(made.shared, 0) if made.kernel.shared else Value("null", PTR), self.scratch]

    def entries(self, rows: tuple[Entry, ...]) -> Value:
        """The table of a kernel, as a constant: it names words of the step's table, which has addresses and numbers."""
        words = [len(rows)]
        for x in rows:
            words += [x.begin, x.size, *[n for b in x.buffers for n in self.where(b, 0)]]
            words += [self.table.numbers[n] for n in x.numbers]
        name = f"@table{len(self.module.globals)}"
        numbers = ", ".join(f"i64 {n}" for n in words)
        self.module.globals[name] = f"{name} = internal constant [{len(words)} x i64] [{numbers}]"
        return Value(name, PTR)

    def word(self, place: int) -> Value:
        return self.f.once(("word", place), lambda f: f.load(f.pointer(f.params[0], place, "i64"), PTR))

    def where(self, buffer: str, offset: int) -> tuple[int, int]:
        """The word with an address, and how many bytes further on the place in a buffer is."""
        table = self.table
        if buffer in table.slots:
            return table.slots[buffer], offset
        if buffer in table.fixed:
            return table.fixed[buffer], offset
        return table.fixed["arena"], offset + self.arena.offsets[buffer]

    def address(self, buffer: str, offset: int) -> Value:
        place, offset = self.where(buffer, offset)
        base = self.word(place)
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
