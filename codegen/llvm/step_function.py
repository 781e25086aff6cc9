"""Step functions: kernels, each emitted once, and the function that all threads run together.

A step function calls the phases of the kernels in rounds, each thread with its share of the pieces, with a barrier between
rounds. Phases share a round if none needs another's results or overwrites what it reads; kernels that differ in buffers,
scalars and sizes alone, such as an optimizer's updates of all parameters, are one table kernel. Opaque ops are called in
Python: there the step ends, and another one follows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ...tracer.graph.ir import Form
from ..nests.horizontal_fusion import sizeless_signature
from ..nests.kernels import Launch, signature
from ..nests.loop_nest import Nest
from ..schedule.memory_plan import MemoryPlan
from .ir.builder import I64, PTR, Module, Type, Value, constant
from .ir.kernel import NativeKernel, Phase
from .ir.target import Target
from .loops.nest_emitter import emit_nest
from .loops.scan import emit_scan, native_scan
from .loops.scatter import emit_scatter
from .loops.table_kernel import TableEntry, count_pieces, emit_table_kernel, table_entries
from .runtime import jit
from .runtime import thread_pool as threads

FAILED = "failed"  # flag: a bounds check has ended the step
MAX_STACK_BYTES = 1 << 18  # scratch per thread that is on its stack; more goes to the arena
MIN_SHARED_PIECES = 8  # phases with fewer pieces are dealt out together


@dataclass
class KernelCall:
    """A kernel with its IR and arguments: (buffer, offset in bytes), then the places of scalars."""

    launch: Launch
    kernel: NativeKernel
    text: str
    args: list[tuple[str, int]]
    numbers: list[int]
    entries: tuple[TableEntry, ...] = ()  # of a table kernel: its arguments

    @property
    def shared(self) -> str:
        """Name of the kernel's shared memory in the arena."""
        return f"shared {self.launch.step.number}"


class KernelEmitter:
    """Emits kernels; equal ones once."""

    def __init__(self, forms: dict[str, Form], target: Target, layout: Callable[[str], tuple[int, ...]], chooser: Any) -> None:
        self.forms = forms
        self.target = target
        self.layout = layout
        self.chooser = chooser  # of the plans of matmuls; None if there are none
        self.known: dict[Any, tuple[NativeKernel, str]] = {}

    def make(self, launch: Launch) -> KernelCall | None:
        """The kernel of a step; None if there is none, and the op has to be called in Python."""
        if launch.kind == "nest":
            return self.nest(launch)
        if launch.kind == "matmul":
            return self.contraction(launch)
        if launch.kind in ("attention", "scan"):
            return self.unfused(launch)
        return None

    def once(self, key: Any, write: Callable[[Module, str], NativeKernel | None]) -> tuple[NativeKernel, str] | None:
        if key not in self.known:
            module = Module(self.target.features)
            name = "k" + hashlib.sha256(repr((key, self.target)).encode()).hexdigest()[:16]
            kernel = write(module, name)
            if kernel is None:
                return None
            self.known[key] = (kernel, str(module))
        return self.known[key]

    def nest(self, launch: Launch) -> KernelCall:
        nest = launch.nest
        assert nest is not None
        if nest.fused_with:
            return self.table_kernel(launch, nest)
        sizes = {s.buffer: self.forms[s.buffer].size for s in nest.scatters}
        key = ("nest", signature(nest, launch.buffers, launch.numbers), tuple(sizes.values()))
        buffers = [*launch.buffers, *[s.flag for s in nest.stores() if s.nontemporal]]
        found = self.once(key, lambda m, name: self.loops(m, name, launch, buffers, sizes))
        assert found is not None
        return KernelCall(launch, *found, [(b, 0) for b in buffers], launch.numbers)

    def table_kernel(self, launch: Launch, nest: Nest) -> KernelCall:
        """A table kernel: its code is the same however many nests there are."""
        table, first = table_entries(nest.all), nest.all[0]
        found = self.once(
            ("table kernel", sizeless_signature(first)), lambda m, name: emit_table_kernel(m, name, first, self.target)
        )
        assert found is not None
        kernel, text = found
        kernel = replace(kernel, phases=tuple(replace(phase, pieces=count_pieces(table)) for phase in kernel.phases))
        return KernelCall(launch, kernel, text, [], launch.numbers, table)

    def placeholder(self, launch: Launch) -> KernelCall:
        """A stand-in for a nest that may become part of a table kernel: it takes part in scheduling, and has no IR yet."""
        return KernelCall(launch, NativeKernel((Phase("", 1),)), "", [], [])

    def loops(self, module: Module, name: str, launch: Launch, buffers: list[str], sizes: dict[str, int]) -> NativeKernel:
        assert launch.nest is not None
        if sizes:
            return emit_scatter(module, name, launch.nest, sizes, launch.buffers, launch.numbers, self.target)
        return emit_nest(module, name, launch.nest, buffers, launch.numbers, self.target)

    def offset(self, view: tuple[str, int, tuple[int, ...]]) -> tuple[str, int]:
        return view[0], view[1] * self.forms[view[0]].itemsize

    def contraction(self, launch: Launch) -> KernelCall:
        from .contractions import contraction_problem, emit_contraction, fused_buffers  # imported on first use
        from .gemm.prologue import prologue_nests

        node, nest = launch.node, launch.nest
        assert node is not None and nest is not None
        buffers, before = fused_buffers(launch, self.forms), prologue_nests(launch, self.forms)
        nests = tuple(signature(n, [*buffers, *before], launch.numbers) for n in (nest, *before.values()))
        computed = tuple(x in before for x in node.operands)
        key = ("matmul", contraction_problem(launch, self.forms), computed, nests)
        found = self.once(key, lambda m, name: emit_contraction(m, name, launch, self.forms, self.target, self.chooser))
        assert found is not None
        args = [(buffers[0], 0) if x in before else self.offset(launch.operands[x]) for x in node.operands]
        return KernelCall(launch, *found, [*args, *[(b, 0) for b in buffers]], launch.numbers)

    def unfused(self, launch: Launch) -> KernelCall | None:
        """A kernel of attention or a scan: operands and results, without prologue or epilogue."""
        node = launch.node
        assert node is not None
        names = list(dict.fromkeys([*node.values(), *node.results]))
        views = {x: launch.operands.get(x, (x, 0, self.layout(x))) for x in names}
        pointers = {x: i for i, x in enumerate(names)}
        if launch.kind == "attention":
            from .attention.from_graph import emit_attention, native_attention  # imported on first use

            attention, backward = native_attention(node, views, self.forms, pointers), node.op.name == "attention_backward"
            if attention is None:
                return None
            key: Any = ("attention", attention, backward, len(names))
            found = self.once(key, lambda m, name: emit_attention(m, name, attention, backward, len(names), self.target))
        else:
            scan = native_scan(node, views, self.forms, pointers)
            if scan is None:
                return None
            found = self.once(("scan", scan, len(names)), lambda m, name: emit_scan(m, name, scan, len(names), self.target))
        return None if found is None else KernelCall(launch, *found, [self.offset(views[x]) for x in names], [])


# ---- the step


@dataclass
class WordTable:
    """Words by which a step finds its memory: addresses of arrays, scalars, constant addresses."""

    slots: dict[str, int] = field(default_factory=dict)  # word of each bound buffer
    numbers: dict[int, int] = field(default_factory=dict)  # word of each scalar
    fixed: dict[str, int] = field(default_factory=dict)  # word of each constant, and of the arena


class RoundScheduler:
    """Schedules phases into rounds: each as early as its inputs are there and nobody reads what it overwrites."""

    def __init__(self, arena: MemoryPlan) -> None:
        self.arena = arena
        self.written: dict[str, int] = {}  # per buffer: first round after its last write
        self.read: dict[str, int] = {}  # per buffer: first round after its last read
        self.sharing: dict[str, list[str]] = {}
        self.stops: dict[int, list[str]] = {}  # per round: checks that may end the step before it

    def schedule(self, kernels: list[KernelCall]) -> list[list[tuple[KernelCall, Phase]]]:
        found: list[list[tuple[KernelCall, Phase]]] = []
        first, checks = 0, list[str]()  # earliest round after the checks so far, and checks not waited for yet
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
        """Let the step end where checks fail, as soon as all of them are done, but not before round `first`."""
        if checks:
            first = max(first, *[self.written[b] for b in checks])
            self.stops.setdefault(first, []).extend(checks)
            checks.clear()
        return first

    def latest(self, buffer: str, known: dict[str, int]) -> int:
        """Earliest round in which a buffer, or one that shares its memory, may be touched."""
        if buffer not in self.sharing:
            self.sharing[buffer] = [buffer, *self.arena.sharing(buffer)]
        return max(known.get(b, 0) for b in self.sharing[buffer])


SCRATCH = "scratch"  # arena buffer that holds all threads' scratch memory


def rounded(size: int) -> int:
    return -(-size // 64) * 64


class StepWriter:
    """Emits step functions."""

    def __init__(self, arena: MemoryPlan, table: WordTable) -> None:
        self.arena = arena
        self.table = table
        self.module = Module()
        self.module.globals["barrier"] = "declare void @tj_barrier(ptr)"

    def step(self, name: str, kernels: list[KernelCall]) -> int:
        """Emit a function that runs kernels; returns its number of rounds."""
        f = self.module.function(name, [("table", PTR), ("thread", I64), ("threads", I64), ("pool", PTR)])
        self.f = f
        self.scratch = self.scratch_memory(max((k.kernel.scratch for k in kernels), default=0))
        plan = RoundScheduler(self.arena)
        rounds = plan.schedule(kernels)
        for i in range(len(rounds) + (len(rounds) in plan.stops)):
            if i:
                f.emit(f"call void @tj_barrier({f.params[3]})")
            if i in plan.stops:
                self.stop_if(plan.stops[i])
            if i < len(rounds):
                self.round(rounds[i])
        f.ret()
        return len(rounds)

    def stop_if(self, checks: list[str]) -> None:
        """End the step, in all threads, if a check failed; the caller sees that in the buffer `FAILED`."""
        f, bad = self.f, constant(0, Type("i8"))
        for name in checks:
            bad = f.or_(bad, f.load(self.address(name, 0), Type("i8")))
        stop, go_on = f.name_for("stop"), f.name_for("good")
        f.branch(f.compare("ne", bad, constant(0, bad.type)), stop, go_on)
        f.label(stop)
        with f.when(f.compare("eq", f.params[1], constant(0, I64))):
            f.store(constant(1, Type("i8")), self.address(FAILED, 0))
        f.ret()
        f.label(go_on)

    def scratch_memory(self, size: int) -> Value:
        """Scratch memory of this thread."""
        if not size:
            return Value("null", PTR)
        if size <= MAX_STACK_BYTES:
            return self.f.stack(Type("i8"), size)
        base, share = self.address(SCRATCH, 0), constant(rounded(size), I64)
        return self.f.once("scratch", lambda f: f.pointer(base, f.mul(f.params[1], share), "i8"))

    def round(self, items: list[tuple[KernelCall, Phase]]) -> None:
        """Phases that do not depend on each other. Each is shared among the threads; small ones are dealt out together."""
        f = self.f
        few = sum(phase.pieces for _, phase in items if phase.pieces < MIN_SHARED_PIECES)
        at = 0
        for made, phase in items:
            _, thread, count, _ = f.params
            total = phase.pieces if phase.pieces >= MIN_SHARED_PIECES else few
            first = f.binary("udiv", f.mul(thread, constant(total, I64)), count)
            last = f.binary("udiv", f.mul(f.add(thread, constant(1, I64)), constant(total, I64)), count)
            if phase.pieces < MIN_SHARED_PIECES:
                first = f.intrinsic("smax", f.sub(first, constant(at, I64)), constant(0, I64))
                last = f.intrinsic("smin", f.sub(last, constant(at, I64)), constant(phase.pieces, I64))
                at += phase.pieces
            with f.when(f.compare("lt", first, last)):
                f.call(phase.function, None, *self.arguments(made), first, last)
        if any(made.kernel.nontemporal for made, _ in items):  # may become visible later than a barrier's or a lock's stores
            f.call("llvm.x86.sse.sfence", None)

    def arguments(self, made: KernelCall) -> list[Value]:
        if made.entries:
            args = [self.f.params[0], self.entries(made.entries)]
        else:
            args = [self.address(b, offset) for b, offset in made.args] + [self.number(n) for n in made.numbers]
        return [*args, self.address(made.shared, 0) if made.kernel.shared else Value("null", PTR), self.scratch]

    def entries(self, rows: tuple[TableEntry, ...]) -> Value:
        """The table of a table kernel, as a constant: it refers to words of the step's table, which has addresses and
        scalars."""
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
        """Word with the base address of a buffer, and the offset in bytes from there."""
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


def link_step(texts: list[str], steps: StepWriter, names: list[str]) -> jit.Library:
    """Compile and link everything."""
    objects = jit.objects([*dict.fromkeys(texts), str(steps.module)])
    return jit.link(objects, threads.process_pool().imports(), names)
