"""Loop nests: the computation of a step, as loops over rows and columns with scalar expressions in them.

    for r in rows:
        values of the row
        for c in columns:   # once for each stage
            totals of the row, elements that are stored

A total is complete when its stage is over, so expressions that need it are in a later stage. Totals of columns, and of one
value per row ("down"), are accumulated separately: each piece of the rows has its own, and they are combined at the end.

Nests that differ only in buffers, scalars and sizes may be fused into one (`horizontal_fusion.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ..ir.expr import Expr, indirect_exprs, walk
from ..ir.index import Index, IndirectIndex, Var, depends_on
from ..lowering.op_lowering import dtype_of
from ..schedule.fusion import Schedule
from ..schedule.step import Domain, Step, UnfusableError

MIN_COLUMNS = 16  # shorter rows would waste vectors


@dataclass
class Store:
    """An element that is stored."""

    buffer: str
    index: Index
    expr: Expr
    dtype: str  # in memory
    overwrites: bool = False  # it overwrites memory that the nest reads, so it is in the last stage
    nontemporal: bool = False  # as a non-temporal store, if `flag` is set

    @property
    def flag(self) -> str:
        """The name of the flag that says that the buffer's memory is not new."""
        return f"{self.buffer} again"


@dataclass
class Scatter:
    """An element that is added to one of a buffer of zeros."""

    buffer: str
    index: Index
    expr: Expr
    dtype: str


@dataclass
class Total:
    """A reduction by `op`: of a row (kind "total"), of a column ("column"), or of one value per row ("down")."""

    name: str
    op: str
    expr: Expr
    dtype: str
    kind: str
    buffer: str | None = None  # where a column or down is stored


@dataclass
class Stage:
    """One loop over the columns, and what is computed once per row before it."""

    before: list[Store] = field(default_factory=list)  # once per row; totals of earlier stages are known
    totals: list[Total] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    columns: list[Total] = field(default_factory=list)
    downs: list[Total] = field(default_factory=list)  # once per row, before the loop

    @property
    def loops(self) -> bool:
        return bool(self.totals or self.stores or self.columns)


@dataclass
class Nest:
    """See the module's text. The epilogue of a contraction is one stage, without totals."""

    domain: Domain
    stages: list[Stage]
    vector: str  # r or c: the vectorised loop
    lines: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    scatters: tuple[Scatter, ...] = ()
    fused_with: tuple[Nest, ...] = ()  # nests with the same body and other buffers, scalars and sizes, in the same kernel

    @property
    def all(self) -> tuple[Nest, ...]:
        """All nests of the kernel, one by one."""
        return (replace(self, fused_with=()), *self.fused_with) if self.fused_with else (self,)

    def stores(self) -> list[Store]:
        return [s for nest in (self, *self.fused_with) for stage in nest.stages for s in (*stage.before, *stage.stores)]

    def totals(self) -> list[Total]:
        return [t for stage in self.stages for t in (*stage.totals, *stage.columns, *stage.downs)]

    def expressions(self) -> list[Expr]:
        rows: list[Store | Scatter] = [*self.stores(), *self.scatters]
        picks = [e for s in rows for e in indirect_exprs(s.index)]
        return [*[s.expr for s in rows], *picks, *[t.expr for t in self.totals()]]

    def loads(self) -> list[Expr]:
        return [e for e in walk(self.expressions()) if e.kind == "load"]

    def reads(self) -> set[str]:
        """The buffers that are loaded from."""
        return set[str]().union(*[e.reads for e in self.expressions()])

    def buffers(self) -> list[str]:
        """All buffers, in the order in which they appear."""
        names = [e.data[0] for e in self.loads()] + [s.buffer for s in self.stores()] + [s.buffer for s in self.scatters]
        names += [t.buffer for t in self.totals() if t.buffer is not None]
        return list(dict.fromkeys(names))

    def numbers(self) -> list[int]:
        """The places of all runtime scalars, in the order in which they appear."""
        return list(dict.fromkeys(e.data for e in walk(self.expressions()) if e.kind == "number"))

    def __str__(self) -> str:
        return nest_text(self)


def make_nest(schedule: Schedule, step: Step, stored: set[str]) -> Nest:
    """The loop nest of a step that stores the members in `stored`."""
    assert step.domain is not None
    domain, forms = step.domain, schedule.forms
    depth = StageDepths(step)
    stages: list[Stage] = []

    def stage(n: int) -> Stage:
        while len(stages) <= n:
            stages.append(Stage())
        return stages[n]

    stage(0)
    for m in step.members.values():
        dtype = dtype_of(forms[m.name])
        if m.kind == "matmul":
            if m.name in stored:
                place = domain.place(forms[m.name].shape)
                assert place is not None
                expr = schedule.exprs.matmul(dtype)
                stage(0).stores.append(Store(m.name, schedule.address(m.name, place), expr, dtype))
            continue
        assert m.expr is not None
        if m.kind == "scatter":
            assert m.index is not None
            row = Scatter(m.name, m.index, m.expr, dtype)
            return Nest(domain, stages, "c", (m.node.line,), (m.node.op.name,), (row,))
        buffer = schedule.write_back_targets.get(m.name, m.name)
        if m.kind == "total":
            stage(depth.of(m.expr)).totals.append(Total(m.name, m.node.op.name, m.expr, dtype, m.kind))
            if m.name in stored:
                place = domain.place(forms[m.name].shape)
                if place is None or math.prod(forms[m.name].shape) != domain.rows:
                    raise AssertionError(m.name)
                expr = schedule.exprs.total(m.name, dtype)
                stage(depth.of(expr)).before.append(Store(m.name, schedule.address(m.name, place), expr, dtype))
        elif m.kind in ("column", "down"):
            total = Total(m.name, m.node.op.name, m.expr, dtype, m.kind, m.name)
            target = stage(depth.of(m.expr))
            (target.columns if m.kind == "column" else target.downs).append(total)
        elif m.name in stored:
            place = domain.place(forms[m.name].shape)
            assert place is not None
            index = schedule.address(buffer, place)
            store = Store(buffer, index, m.expr, dtype, overwrites=m.name in schedule.write_back_targets)
            by_row = domain.cols != 1 and math.prod(forms[m.name].shape) == domain.rows
            target = stage(depth.of(m.expr))
            (target.before if by_row else target.stores).append(store)
    overwrite_last(stages)
    lines = tuple(dict.fromkeys(m.node.line for m in step.members.values() if m.node.line))
    ops = tuple(m.node.op.name for m in step.members.values())
    return Nest(domain, stages, vector_loop(domain, step), lines, ops)


def overwrite_last(stages: list[Stage]) -> None:
    """Move stores that overwrite what the nest reads to the end: elements into the last loop, values of rows after it."""
    last = stages[-1]
    rows = [x for s in stages for x in s.before if x.overwrites]
    for s in stages:
        s.before = [x for x in s.before if not x.overwrites]
        if s is not last:
            last.stores += [x for x in s.stores if x.overwrites]
            s.stores = [x for x in s.stores if not x.overwrites]
    if rows:
        stages.append(Stage(before=rows))


class StageDepths:
    """The stage in which an expression can be computed: after those of the totals it depends on."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.known: dict[Expr, int] = {}

    def of(self, expr: Expr) -> int:
        for e in walk([expr]) if expr not in self.known else ():
            if e in self.known:
                continue
            if e.kind == "total":
                inner = self.step.members[e.data].expr
                assert inner is not None
                self.known[e] = self.of(inner) + 1
            else:
                self.known[e] = max((self.known[x] for x in e.inner), default=0)
        return self.known[expr]


def vector_loop(domain: Domain, step: Step) -> str:
    """The loop to vectorise: the one along which most elements are contiguous."""
    if step.node is not None or any(m.kind in ("column", "down") for m in step.members.values()):
        return "c"
    if domain.cols == 1 and domain.rows > 1:
        return "r"
    return "r" if domain.rows > 1 and step.reads_across() else "c"


def choose_rows(schedule: Schedule, step: Step) -> None:
    """Choose the domain of a step without reductions: as few rows as leave affine addresses along the columns."""
    shape, size = step.shape, math.prod(step.shape)
    lengths = [math.prod(shape[k:]) for k in range(len(shape) + 1)]
    fitting = step.domain  # the last domain for which all members can be computed
    while lengths:
        cols = lengths.pop(0)
        step.domain, step.cache = Domain(size // cols if cols else 0, cols), {}
        try:
            schedule.rebuild_exprs(step)
        except UnfusableError:  # a member seems to read another one at a place where the loop is not
            continue
        fitting = step.domain
        found = [n for m in step.members.values() if m.expr for e in walk([m.expr]) for n in stride_breaks(e, step.domain)]
        if not found:
            break
        finer = math.gcd(cols, *found)
        if MIN_COLUMNS <= finer < cols and finer not in lengths:
            lengths = sorted({*lengths, finer}, reverse=True)
        if not lengths or lengths[0] < MIN_COLUMNS:
            break  # elements are gathered instead
    if step.domain is not fitting:
        step.domain, step.cache = fitting, {}
        schedule.rebuild_exprs(step)
    step.rows_fixed = True


def stride_breaks(e: Expr, domain: Domain) -> list[int]:
    """The lengths after which the addresses of an expression are not affine along the columns."""
    return [a.n for i in e.indices for a, _ in i.terms if not isinstance(a, (Var, IndirectIndex)) and depends_on(a, domain.c)]


# ---- printing


def nest_text(nest: Nest) -> str:
    if nest.fused_with:
        return fused_nest_text(nest)
    domain = nest.domain
    lines = [f"for r in range({domain.rows}):" + ("  # vectorised" if nest.vector == "r" else "")]
    for stage in nest.stages:
        lines += [f"    {t.name} {update_operator(t.op)} {t.expr}" for t in stage.downs]
        lines += [f"    {s.buffer}[{s.index}] = {s.expr}" for s in stage.before]
        if stage.loops:
            lines.append(f"    for c in range({domain.cols}):" + ("  # vectorised" if nest.vector == "c" else ""))
        lines += [f"        {t.name} {update_operator(t.op)} {t.expr}" for t in stage.totals]
        lines += [f"        {t.name}[c] {update_operator(t.op)} {t.expr}" for t in stage.columns]
        lines += [f"        {s.buffer}[{s.index}] = {s.expr}" + "  # non-temporal" * s.nontemporal for s in stage.stores]
    if nest.scatters:
        lines.append(f"    for c in range({domain.cols}):")
        lines += [f"        {s.buffer}[{s.index}] += {s.expr}" for s in nest.scatters]
    return "\n".join(lines) + "\n"


def fused_nest_text(nest: Nest) -> str:
    """One loop in the names of the first nest, over a table of sizes, buffers and scalars."""
    given = [", ".join([*x.buffers(), *[f"s{n}" for n in x.numbers()]]) for x in nest.all]
    rows = [f"    ({x.domain.cols}, {names})," for x, names in zip(nest.all, given, strict=True)]
    stores = [f"        {s.buffer}[{s.index}] = {s.expr}" for s in nest.all[0].stores()]
    loop = "    for c in range(n):  # vectorised"
    return "\n".join([f"for n, {given[0]} in (", *rows, "):", loop, *stores]) + "\n"


def update_operator(op: str) -> str:
    return {"sum": "+=", "prod": "*=", "amax": "max=", "amin": "min=", "all": "&=", "any": "|="}[op]
