"""Launches: for each step of a schedule, the kernel to emit with its buffers and scalars, and what it reads and writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...tracer.graph.ir import Node
from ..ir.expr import Expr, walk
from ..ir.index import Index, IndirectIndex, Var
from ..lowering.op_lowering import dtype_of
from ..lowering.unroll_reductions import MAX_WINDOW, POOLS
from ..prepare.primitive_graph import PrimitiveGraph
from ..schedule.fusion import CONTRACTIONS, Schedule
from ..schedule.step import Domain, Step
from .loop_nest import Nest, choose_rows, make_nest
from .simplify import simplify

CONVOLUTIONS = CONTRACTIONS[1:]
ATTENTION = ("attention", "attention_backward")
SCANS = ("cumsum", "cumprod", "logcumsumexp", "recurrence", "cummax", "cummin")


@dataclass
class Launch:
    """One kernel: a loop nest; a contraction, with its epilogue as a nest; attention or a scan; or an opaque op."""

    step: Step
    kind: str  # nest, matmul, attention, scan, opaque
    node: Node | None
    nest: Nest | None
    buffers: list[str]
    numbers: list[int]
    operands: dict[str, tuple[str, int, tuple[int, ...]]] = field(default_factory=dict)  # as buffer, offset, strides
    computed: dict[str, Expr] = field(default_factory=dict)  # prologues: operands as expressions of d0, d1, ...
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    check: str = ""  # the flag that stops the program after this launch


def native_epilogue_domain(node: Node, schedule: Schedule) -> Domain | None:
    """The domain of a contraction's epilogue; None for nodes that native code has no contraction kernel for."""
    found = epilogue_domain(node, schedule)
    if found is not None and node.op.name == "conv_weight_grad":
        pull = schedule.strided(node.operands[1])
        if pull is None or pull[2][-1] != 1:
            return None
    return found


def epilogue_domain(node: Node, schedule: Schedule) -> Domain | None:
    """The domain of a contraction's epilogue; None for nodes that are no contraction of floats."""
    name, forms = node.op.name, schedule.forms
    if name not in CONTRACTIONS or not all(isinstance(x, str) for x in node.operands):
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


def has_own_kernel(node: Node) -> bool:
    """True for composites that have a kernel, and are not decomposed."""
    if node.op.name in POOLS:
        return math.prod(node.attrs["kernel"]) <= MAX_WINDOW
    return node.op.name in ATTENTION or node.op.name in CONVOLUTIONS


def has_half_kernel(node: Node) -> bool:
    """True for composites whose kernel reads and writes 16-bit floats."""
    return node.op.name in ATTENTION or node.op.name in CONVOLUTIONS


def make_schedule(graph: PrimitiveGraph, gpu: bool = False, packing: Any = None) -> Schedule:
    """Fuse a graph. GPU kernels take all contractions of floats, and compute prologues as they load; on CPUs `packing` is the
    cost model of prologues, which are computed while packing."""
    schedule = Schedule(graph, epilogue_domain, gpu=True) if gpu else Schedule(graph, native_epilogue_domain, packing=packing)
    schedule.run()
    return schedule


def make_launches(schedule: Schedule) -> list[Launch]:
    for step in schedule.steps:
        if step.domain is not None and not step.rows_fixed:
            choose_rows(schedule, step)
    readers: dict[str, set[int]] = {}
    for step in schedule.steps:
        for x in step.reads:
            readers.setdefault(x, set()).add(step.number)
    found = []
    for step in schedule.steps:
        stored = {m for m in step.members if m in schedule.visible or readers.get(m, set()) - {step.number}}
        found.append(make_launch(schedule, step, stored))
    return found


def make_launch(schedule: Schedule, step: Step, stored: set[str]) -> Launch:
    nest = make_nest(schedule, step, stored) if step.domain is not None else None
    if nest is not None and not schedule.gpu:
        nest = simplify(nest, schedule.exprs)
    node = step.node
    if node is None:
        assert nest is not None
        found = Launch(step, "nest", None, nest, nest.buffers(), nest.numbers())
        found.reads = nest.reads()
        found.check = step.check
    else:
        kind = "matmul" if step.domain is not None else kernel_kind(schedule, node)
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


def kernel_kind(schedule: Schedule, node: Node) -> str:
    """The kind of kernel for an op without an epilogue; "opaque" if there is none."""
    if node.op.name in ATTENTION:
        return "attention"
    form = schedule.forms[node.results[0]]
    return "scan" if node.op.name in SCANS and form.ndim and form.size else "opaque"


def in_place_pairs(launch: Launch, unordered: bool = False) -> list[tuple[str, str]]:
    """Pairs of a buffer that is read and one that is written, which may share memory: each element is read before it is
    overwritten. With `unordered` threads, the overwriting expression must itself read the element."""
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
            before = sorted(old & s.expr.reads if unordered else old)
            found += [(b, s.buffer) for b in before if b != s.buffer and read_before(loads.get(b, []), s.index, i)]
    return found


def read_before(loads: list[tuple[int, Expr]], index: Index, stage: int) -> bool:
    """True if all loads of a buffer are at `index`, and none is after `stage`."""
    return all(i <= stage and e.data[1] == index and not e.data[2] for i, e in loads)


# ---- equal kernels


def signature(nest: Nest, buffers: list[str], numbers: list[int]) -> Any:
    """A key that is equal for nests that differ only in their buffers and scalars."""
    return (nest.domain.rows, nest.domain.cols, nest.vector, *body_signature(nest, buffers, numbers))


def body_signature(nest: Nest, buffers: list[str], numbers: list[int], index_key: Callable[[Index], Any] | None = None) -> Any:
    """A key of the computation at each element, whatever the buffers and scalars. `index_key` is the part of an index that
    counts, all of it by default."""
    order = {b: i for i, b in enumerate(buffers)}
    places = {n: i for i, n in enumerate(numbers)}
    known: dict[Expr, int] = {}
    totals = {t.name: i for i, t in enumerate(nest.totals())}

    def index(i: Index) -> Any:
        if index_key is not None:
            return index_key(i)
        return (i.const, *[(atom(a), n) for a, n in i.terms])

    def atom(a: Any) -> Any:
        if isinstance(a, Var):
            return a.key
        if isinstance(a, IndirectIndex):
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
            tuple((order[s.buffer], index(s.index), known[s.expr], s.dtype, s.nontemporal) for s in stage.stores),
            tuple(
                (t.op, known[t.expr], t.dtype, t.kind, -1 if t.buffer is None else order[t.buffer])
                for t in (*stage.totals, *stage.columns, *stage.downs)
            ),
        )
        for stage in nest.stages
    ]
    added = tuple((order[s.buffer], index(s.index), known[s.expr], s.dtype) for s in nest.scatters)
    return (tuple(rows), tuple(stages), added)
