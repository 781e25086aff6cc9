"""Loop nests: what a step computes, as loops over rows and columns with scalar expressions inside.

    for r in rows:
        for c in columns:   # once for each stage
            totals of the row, elements that are stored
        what there is one of in each row

A total is there when its stage is over, so what depends on it is in a later stage. Totals of columns, and of what there is one
of in each row, are added up beside: each piece of the rows has its own, and they are put together at the end.

Nests that differ in buffers, numbers and sizes alone may be one, which goes through them one after the other (`siblings.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ..ir.expr import Expr, picked, walk
from ..schedule.fusion import Schedule
from ..ir.index import Index, Picked, Var, depends
from ..lowering.op_lowering import dtype_of
from ..schedule.step import Domain, Step, UnfusableError

SHORTEST = 16  # columns that loops have at least, if there are as many


@dataclass
class Store:
    """An element that goes to memory."""

    buffer: str
    index: Index
    expr: Expr
    dtype: str  # in memory
    late: bool = False  # it overwrites what the nest reads: in the last stage
    past: bool = False  # it goes past the caches, if a flag says so

    @property
    def flag(self) -> str:
        """The name of that flag: the buffer's memory is not new."""
        return f"{self.buffer} again"


@dataclass
class Scatter:
    """An element that is added to one of a buffer, which is 0 at first."""

    buffer: str
    index: Index
    expr: Expr
    dtype: str


@dataclass
class Total:
    """A reduction, by `op`: of a row (kind total), of the columns (column) or of the rows' values (down)."""

    name: str
    op: str
    expr: Expr
    dtype: str
    kind: str
    buffer: str | None = None  # of column and down: where it goes


@dataclass
class Stage:
    """One loop over the columns, and what comes before it."""

    before: list[Store] = field(default_factory=list)  # one for each row; what was added up before is known
    totals: list[Total] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    columns: list[Total] = field(default_factory=list)
    downs: list[Total] = field(default_factory=list)  # before the loop, as they are of rows

    @property
    def loops(self) -> bool:
        return bool(self.totals or self.stores or self.columns)


@dataclass
class Nest:
    """See the module's text. With a product it is what follows a contraction: one stage, without totals."""

    domain: Domain
    stages: list[Stage]
    vector: str  # r or c: the loop whose steps are done several at a time
    lines: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    scatters: tuple[Scatter, ...] = ()
    also: tuple[Nest, ...] = ()  # those that do the same with other buffers, numbers and sizes, in the same kernel

    @property
    def all(self) -> tuple[Nest, ...]:
        """It and those that do the same, each for itself."""
        return (replace(self, also=()), *self.also) if self.also else (self,)

    def stores(self) -> list[Store]:
        return [s for nest in (self, *self.also) for stage in nest.stages for s in (*stage.before, *stage.stores)]

    def totals(self) -> list[Total]:
        return [t for stage in self.stages for t in (*stage.totals, *stage.columns, *stage.downs)]

    def expressions(self) -> list[Expr]:
        rows: list[Store | Scatter] = [*self.stores(), *self.scatters]
        picks = [e for s in rows for e in picked(s.index)]
        return [*[s.expr for s in rows], *picks, *[t.expr for t in self.totals()]]

    def loads(self) -> list[Expr]:
        return [e for e in walk(self.expressions()) if e.kind == "load"]

    def reads(self) -> set[str]:
        """The buffers that it loads from."""
        return set[str]().union(*[e.reads for e in self.expressions()])

    def buffers(self) -> list[str]:
        """All buffers, in the order in which they appear."""
        names = [e.data[0] for e in self.loads()] + [s.buffer for s in self.stores()] + [s.buffer for s in self.scatters]
        names += [t.buffer for t in self.totals() if t.buffer is not None]
        return list(dict.fromkeys(names))

    def numbers(self) -> list[int]:
        """The places of all numbers that each call brings, in the order in which they appear."""
        return list(dict.fromkeys(e.data for e in walk(self.expressions()) if e.kind == "number"))

    def __str__(self) -> str:
        return text(self)


def nest_of(schedule: Schedule, step: Step, stored: set[str]) -> Nest:
    """The loops of a step, which store some of its members."""
    assert step.domain is not None
    domain, forms = step.domain, schedule.forms
    depth = Depths(step)
    stages: list[Stage] = []

    def stage(n: int) -> Stage:
        while len(stages) <= n:
            stages.append(Stage())
        return stages[n]

    stage(0)
    for m in step.members.values():
        dtype = dtype_of(forms[m.name])
        if m.kind == "product":
            if m.name in stored:
                place = domain.place(forms[m.name].shape)
                assert place is not None
                expr = schedule.exprs.product(dtype)
                stage(0).stores.append(Store(m.name, schedule.address(m.name, place), expr, dtype))
            continue
        assert m.expr is not None
        if m.kind == "scatter":
            assert m.index is not None
            row = Scatter(m.name, m.index, m.expr, dtype)
            return Nest(domain, stages, "c", (m.node.line,), (m.node.op.name,), (row,))
        buffer = schedule.backs.get(m.name, m.name)
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
            store = Store(buffer, index, m.expr, dtype, late=m.name in schedule.backs)
            by_row = domain.cols != 1 and math.prod(forms[m.name].shape) == domain.rows
            target = stage(depth.of(m.expr))
            (target.before if by_row else target.stores).append(store)
    overwrite_last(stages)
    lines = tuple(dict.fromkeys(m.node.line for m in step.members.values() if m.node.line))
    ops = tuple(m.node.op.name for m in step.members.values())
    return Nest(domain, stages, vector_of(domain, step), lines, ops)


def overwrite_last(stages: list[Stage]) -> None:
    """What overwrites memory that the nest reads goes to the end: elements into the last loop, those of rows after it."""
    last = stages[-1]
    rows = [x for s in stages for x in s.before if x.late]
    for s in stages:
        s.before = [x for x in s.before if not x.late]
        if s is not last:
            last.stores += [x for x in s.stores if x.late]
            s.stores = [x for x in s.stores if not x.late]
    if rows:
        stages.append(Stage(before=rows))


class Depths:
    """In which stage something can be computed: after the totals it depends on."""

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


def vector_of(domain: Domain, step: Step) -> str:
    """The loop along which most elements stand one after the other."""
    if step.node is not None or any(m.kind in ("column", "down") for m in step.members.values()):
        return "c"
    if domain.cols == 1 and domain.rows > 1:
        return "r"
    return "r" if domain.rows > 1 and step.reads_across() else "c"


def choose_rows(schedule: Schedule, step: Step) -> None:
    """Loops without reductions: as few rows as leave plain addresses along the columns."""
    shape, size = step.shape, math.prod(step.shape)
    lengths = [math.prod(shape[k:]) for k in range(len(shape) + 1)]
    fitting = step.domain  # in which its members were found to fit
    while lengths:
        cols = lengths.pop(0)
        step.domain, step.cache = Domain(size // cols if cols else 0, cols), {}
        try:
            schedule.again(step)
        except UnfusableError:  # a member that reads another one is not seen to do so at the place where the loop is
            continue
        fitting = step.domain
        found = [n for m in step.members.values() if m.expr for e in walk([m.expr]) for n in breaks(e, step.domain)]
        if not found:
            break
        finer = math.gcd(cols, *found)
        if SHORTEST <= finer < cols and finer not in lengths:
            lengths = sorted({*lengths, finer}, reverse=True)
        if not lengths or lengths[0] < SHORTEST:
            break  # shorter rows would waste vectors: elements are gathered
    if step.domain is not fitting:
        step.domain, step.cache = fitting, {}
        schedule.again(step)
    step.decided = True


def breaks(e: Expr, domain: Domain) -> list[int]:
    """The lengths after which addresses do not go on in equal steps along the columns."""
    return [a.n for i in e.indices for a, _ in i.terms if not isinstance(a, (Var, Picked)) and depends(a, domain.c)]


# ---- printing


def text(nest: Nest) -> str:
    if nest.also:
        return text_of_several(nest)
    domain = nest.domain
    lines = [f"for r in range({domain.rows}):" + ("  # several at a time" if nest.vector == "r" else "")]
    for stage in nest.stages:
        lines += [f"    {t.name} {joined(t.op)} {t.expr}" for t in stage.downs]
        lines += [f"    {s.buffer}[{s.index}] = {s.expr}" for s in stage.before]
        if stage.loops:
            lines.append(f"    for c in range({domain.cols}):" + ("  # several at a time" if nest.vector == "c" else ""))
        lines += [f"        {t.name} {joined(t.op)} {t.expr}" for t in stage.totals]
        lines += [f"        {t.name}[c] {joined(t.op)} {t.expr}" for t in stage.columns]
        lines += [f"        {s.buffer}[{s.index}] = {s.expr}" + "  # past the caches" * s.past for s in stage.stores]
    if nest.scatters:
        lines.append(f"    for c in range({domain.cols}):")
        lines += [f"        {s.buffer}[{s.index}] += {s.expr}" for s in nest.scatters]
    return "\n".join(lines) + "\n"


def text_of_several(nest: Nest) -> str:
    """One loop for all, in the names of the first; before it, numbers of elements and what these names stand for in turn."""
    given = [", ".join([*x.buffers(), *[f"s{n}" for n in x.numbers()]]) for x in nest.all]
    rows = [f"    ({x.domain.cols}, {names})," for x, names in zip(nest.all, given, strict=True)]
    stores = [f"        {s.buffer}[{s.index}] = {s.expr}" for s in nest.all[0].stores()]
    loop = "    for c in range(n):  # several at a time"
    return "\n".join([f"for n, {given[0]} in (", *rows, "):", loop, *stores]) + "\n"


def joined(op: str) -> str:
    return {"sum": "+=", "prod": "*=", "amax": "max=", "amin": "min=", "all": "&=", "any": "|="}[op]
