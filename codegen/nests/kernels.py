"""The kernels of a schedule: for each step what is to be emitted, of which buffers and numbers; what it reads and writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...tracer.graph.ir import Node
from ..ir.expr import Expr, walk
from ..lowering.unroll_reductions import POOLS, WINDOW
from ..schedule.fusion import PRODUCTS, Schedule
from ..ir.index import Index, Picked, Var
from ..lowering.op_lowering import dtype_of
from .loop_nest import Nest, choose_rows, nest_of
from ..prepare.canonicalize import Prepared
from .simplify import simpler
from ..schedule.step import Domain, Step

CONVOLUTIONS = PRODUCTS[1:]
ATTENTION = ("attention", "attention_backward")
SCANS = ("cumsum", "cumprod", "logcumsumexp", "recurrence", "cummax", "cummin")


@dataclass
class Launch:
    """A step of the program: a nest, an op with a kernel of its own (and the nest that follows it), or an op as it is."""

    step: Step
    kind: str  # nest, product, attention, scan, opaque
    node: Node | None
    nest: Nest | None
    buffers: list[str]
    numbers: list[int]
    operands: dict[str, tuple[str, int, tuple[int, ...]]] = field(default_factory=dict)  # as buffer, offset, strides
    computed: dict[str, Expr] = field(default_factory=dict)  # operands that are computed while they are read, of d0, d1, ...
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    check: str = ""  # the buffer that says whether the program has to stop here


def contraction(node: Node, schedule: Schedule) -> Domain | None:
    """The domain of what may follow a product; None for what is no product that native code has a kernel for."""
    found = product_domain(node, schedule)
    if found is not None and node.op.name == "conv_weight_grad":
        pull = schedule.strided(node.operands[1])
        if pull is None or pull[2][-1] != 1:
            return None
    return found


def product_domain(node: Node, schedule: Schedule) -> Domain | None:
    """The domain of what may follow a product; None for what is no product of floats."""
    name, forms = node.op.name, schedule.forms
    if name not in PRODUCTS or not all(isinstance(x, str) for x in node.operands):
        return None
    kinds = {dtype_of(forms[x]) for x in node.operands}
    if any(forms[x].ndim < 2 for x in node.operands) or not kinds <= {"float32", "float64", "float16", "bfloat16"}:
        return None
    if len(kinds) > 1:
        return None
    shape = forms[node.results[0]].shape
    if 0 in shape or any(0 in forms[x].shape for x in node.operands):
        return None
    if name == "matmul":
        return Domain(math.prod(shape[:-1]), shape[-1])
    if name == "conv_weight_grad":
        return Domain(shape[0], math.prod(shape[1:]))
    return Domain(shape[0] * shape[1], math.prod(shape[2:]))


def kept(node: Node) -> bool:
    """Composites that have kernels of their own."""
    if node.op.name in POOLS:
        return math.prod(node.attrs["kernel"]) <= WINDOW
    return node.op.name in ATTENTION or node.op.name in CONVOLUTIONS


def in_halves(node: Node) -> bool:
    """Those of them that read and write halves as they are."""
    return node.op.name in ATTENTION or node.op.name in CONVOLUTIONS


def scheduled(graph: Prepared, gpu: bool = False, packing: Any = None) -> Schedule:
    """The steps of a graph. Kernels for GPUs take all products of floats, and compute what they read while they read it; for
    CPUs `packing` judges what they compute while they pack it."""
    schedule = Schedule(graph, product_domain, gpu=True) if gpu else Schedule(graph, contraction, packing=packing)
    schedule.run()
    return schedule


def launches(schedule: Schedule) -> list[Launch]:
    for step in schedule.steps:
        if step.domain is not None and not step.decided:
            choose_rows(schedule, step)
    readers: dict[str, set[int]] = {}
    for step in schedule.steps:
        for x in step.reads:
            readers.setdefault(x, set()).add(step.number)
    found = []
    for step in schedule.steps:
        stored = {m for m in step.members if m in schedule.kept or readers.get(m, set()) - {step.number}}
        found.append(launch(schedule, step, stored))
    return found


def launch(schedule: Schedule, step: Step, stored: set[str]) -> Launch:
    nest = nest_of(schedule, step, stored) if step.domain is not None else None
    if nest is not None and not schedule.gpu:
        nest = simpler(nest, schedule.exprs)
    node = step.node
    if node is None:
        assert nest is not None
        found = Launch(step, "nest", None, nest, nest.buffers(), nest.numbers())
        found.reads = nest.reads()
        found.check = step.check
    else:
        kind = "product" if step.domain is not None else kind_of(schedule, node)
        operands = step.views
        buffers = list(dict.fromkeys(b for b, _, _ in operands.values()))
        computed = list(step.computed.values())
        buffers = list(dict.fromkeys([*buffers, *[e.data[0] for e in walk(computed) if e.kind == "load"]]))
        found = Launch(step, kind, node, nest, buffers, [], operands, step.computed)
        found.reads = set(buffers)
        if nest is not None:
            found.buffers = list(dict.fromkeys([*buffers, *nest.buffers()]))
            found.numbers = sorted({*nest.numbers(), *[e.data for e in walk(computed) if e.kind == "number"]})
            found.reads |= nest.reads()
        else:
            found.buffers += [x for x in node.results if x not in buffers]
            found.writes = set(node.results)
    if nest is not None:
        found.writes = (
            {s.buffer for s in nest.stores()}
            | {s.buffer for s in nest.scatters}
            | {t.buffer for t in nest.totals() if t.buffer is not None}
        )
    return found


def kind_of(schedule: Schedule, node: Node) -> str:
    """What an op is that has a kernel of its own, and nothing that follows it; or "opaque", if it is called as it is."""
    if node.op.name in ATTENTION:
        return "attention"
    form = schedule.forms[node.results[0]]
    return "scan" if node.op.name in SCANS and form.ndim and form.size else "opaque"


def heirs(launch: Launch, apart: bool = False) -> list[tuple[str, str]]:
    """Buffers that are read only where another one is then written, and that one: they may be in the same place. If the threads
    that read and write an element go on `apart`, whoever writes it must need what was there: so it was read by then."""
    nest = launch.nest
    if nest is None or nest.scatters:
        return []
    operands = {view[0] for view in launch.operands.values()}.union(*[e.reads for e in launch.computed.values()])
    loads: dict[str, list[tuple[int, Expr]]] = {}  # of each buffer, with the stage it is read in
    for i, part in enumerate(nest.stages):
        roots = [x.expr for x in (*part.before, *part.stores)] + [t.expr for t in (*part.totals, *part.columns, *part.downs)]
        for e in walk(roots):
            if e.kind == "load":
                loads.setdefault(e.data[0], []).append((i, e))
    old = nest.reads() - operands - launch.writes
    found = []
    for i, stage in enumerate(nest.stages):
        for s in stage.stores:
            before = sorted(old & s.expr.reads if apart else old)
            found += [(b, s.buffer) for b in before if b != s.buffer and read_before(loads.get(b, []), s.index, i)]
    return found


def read_before(loads: list[tuple[int, Expr]], index: Index, stage: int) -> bool:
    """Whether all loads of a buffer are at an index, and none after a stage."""
    return all(i <= stage and e.data[1] == index and not e.data[2] for i, e in loads)


# ---- which kernels are the same


def signature(nest: Nest, buffers: list[str], numbers: list[int]) -> Any:
    """Equal for nests that differ only in which buffers and numbers they are of."""
    return (nest.domain.rows, nest.domain.cols, nest.vector, *inside(nest, buffers, numbers))


def inside(nest: Nest, buffers: list[str], numbers: list[int], of_index: Callable[[Index], Any] | None = None) -> Any:
    """What a nest does at each element, whichever its buffers and numbers are. `of_index` says what counts of an index, all of
    it unless told."""
    order = {b: i for i, b in enumerate(buffers)}
    places = {n: i for i, n in enumerate(numbers)}
    known: dict[Expr, int] = {}
    totals = {t.name: i for i, t in enumerate(nest.totals())}

    def index(i: Index) -> Any:
        if of_index is not None:
            return of_index(i)
        return (i.const, *[(atom(a), n) for a, n in i.terms])

    def atom(a: Any) -> Any:
        if isinstance(a, Var):
            return a.key
        if isinstance(a, Picked):
            return ("picked", known[a.expr], a.size)
        return (type(a).__name__, index(a.index), a.n)

    def guard(g: Any) -> Any:
        return tuple((index(i), n) for i, n in g)

    rows: list[Any] = []
    for e in walk(nest.expressions()):
        data: Any = e.data
        if e.kind == "load":
            data = (order[e.data[0]], index(e.data[1]), guard(e.data[2]))
        elif e.kind == "index":
            data = index(e.data)
        elif e.kind == "inside":
            data = guard(e.data)
        elif e.kind == "number":
            data = places[e.data]
        elif e.kind == "total":
            data = totals[e.data]
        elif e.kind == "const":
            data = (type(e.data).__name__, repr(e.data))
        known[e] = len(rows)
        rows.append((e.kind, e.dtype, data, tuple(known[a] for a in e.args)))
    stages = [
        (
            tuple((order[s.buffer], index(s.index), known[s.expr], s.dtype) for s in stage.before),
            tuple((order[s.buffer], index(s.index), known[s.expr], s.dtype, s.past) for s in stage.stores),
            tuple(
                (t.op, known[t.expr], t.dtype, t.kind, -1 if t.buffer is None else order[t.buffer])
                for t in (*stage.totals, *stage.columns, *stage.downs)
            ),
        )
        for stage in nest.stages
    ]
    added = tuple((order[s.buffer], index(s.index), known[s.expr], s.dtype) for s in nest.scatters)
    return (tuple(rows), tuple(stages), added)
