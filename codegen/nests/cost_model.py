"""Cost model: the least bytes that a kernel has to move, and its arithmetic.

Bytes are those of distinct elements: what a loop reads again counts once, as if caches were large enough. Indirect reads count
as the most that they can reach. A flop is one op that makes a float, whichever: a sum, a maximum, an `exp`. What is computed
again, in a later loop over the columns, counts again.
"""

from __future__ import annotations

import math
from typing import Any

from ...tracer.graph.ir import Form, Node
from ..ir.expr import Expr, walk
from ..ir.index import Index, depends_on
from ..schedule.prologue_fusion import multiply_adds
from ..schedule.step import Domain
from .kernels import Launch
from .loop_nest import Nest, Stage

FREE_OPS = {"cast", "where"}  # count as no arithmetic


# ---- bytes


def traffic(launch: Launch, forms: dict[str, Form]) -> tuple[dict[str, int], dict[str, int]]:
    """The bytes that are read and written, by buffer."""
    read, written = Footprint(forms), Footprint(forms)
    node, nest = launch.node, launch.nest
    if node is not None:
        for x in dict.fromkeys(node.values()):
            if x in launch.operands:
                buffer, offset, strides = launch.operands[x]
                read.add_view(buffer, offset, forms[x].shape, strides)
        for e in walk(launch.computed.values()):
            if e.kind == "load":
                buffer, index, _ = e.data
                read.add(buffer, forms[buffer].size, index.low, index.high, index.key)
        if nest is None:
            for x in node.results:
                written.add(x, forms[x].size, 0, forms[x].size - 1)
    for one in () if nest is None else nest.all:
        for e in one.loads():
            read.add_index(e.data[0], e.data[1], one.domain)
        for s in one.stores():
            written.add_index(s.buffer, s.index, one.domain)
    if nest is not None:
        for x in [s.buffer for s in nest.scatters] + [t.buffer for t in nest.totals() if t.buffer is not None]:
            written.add(x, forms[x].size, 0, forms[x].size - 1)
    return read.bytes(), written.bytes()


class Footprint:
    """The elements of buffers that a kernel touches: how many, and between which addresses."""

    def __init__(self, forms: dict[str, Form]) -> None:
        self.forms = forms
        self.seen: dict[str, dict[Any, tuple[int, int, int]]] = {}  # by buffer and way to address it

    def add(self, buffer: str, count: int, low: int, high: int, key: Any = None) -> None:
        self.seen.setdefault(buffer, {})[key] = (count, low, high)

    def add_index(self, buffer: str, index: Index, domain: Domain) -> None:
        loops = math.prod(v.size for v in (domain.r, domain.c) if any(depends_on(a, v) for a, _ in index.terms))
        values = math.prod(a.high - a.low + 1 for a, _ in index.terms)
        count = min(loops, values) if domain.rows * domain.cols else 0
        self.add(buffer, count, index.low, index.high, index.key)

    def add_view(self, buffer: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        steps = [(n, s) for n, s in zip(shape, strides, strict=True) if s]
        ends = [(n - 1) * s for n, s in steps]
        low, high = offset + sum(e for e in ends if e < 0), offset + sum(e for e in ends if e > 0)
        count = math.prod(n for n, _ in steps) if 0 not in shape else 0
        self.add(buffer, count, low, high, (offset, shape, strides))

    def bytes(self) -> dict[str, int]:
        """Bytes by buffer: at most the buffer's, and at most those between the first and the last element."""
        found = {}
        for buffer, ways in self.seen.items():
            span = max(high for _, _, high in ways.values()) - min(low for _, low, _ in ways.values()) + 1
            count = min(sum(n for n, _, _ in ways.values()), span, self.forms[buffer].size)
            found[buffer] = int(count * self.forms[buffer].itemsize)
        return found


# ---- arithmetic


def flops(launch: Launch, forms: dict[str, Form]) -> int | None:
    """The number of floats computed; None for opaque ops."""
    node, nest = launch.node, launch.nest
    if launch.kind == "opaque":
        return None
    if launch.kind == "scan":
        assert node is not None
        return sum(forms[x].size for x in node.values())
    found = 0 if nest is None else sum(map(nest_flops, nest.all))
    if node is not None:
        found += attention_flops(node, forms) if launch.kind == "attention" else 2 * multiply_adds(node, forms)
    return found


def nest_flops(nest: Nest) -> int:
    rows, size = nest.domain.rows, nest.domain.rows * nest.domain.cols
    once: dict[Expr, int] = {}  # expressions outside of the loops over columns, and how often each is computed
    found = 0
    for stage in nest.stages:
        found += size * sum("float" in t.dtype for t in (*stage.totals, *stage.columns))
        found += rows * sum("float" in t.dtype for t in stage.downs)
        for e in walk(stage_exprs(stage)):
            if e.kind != "op" or e.data[0] in FREE_OPS or "float" not in e.dtype:
                continue
            if e.depends(nest.domain.c) or any(x.kind == "matmul" for x in e.totals):
                found += size
            else:
                once[e] = rows if e.depends(nest.domain.r) or e.totals else 1
    return found + sum(once.values()) + size * len(nest.scatters)


def stage_exprs(stage: Stage) -> list[Expr]:
    rows = [*stage.before, *stage.stores]
    return [*[s.expr for s in rows], *[t.expr for t in (*stage.totals, *stage.columns, *stage.downs)]]


def attention_flops(node: Node, forms: dict[str, Form]) -> int:
    """Flops of the matmuls alone: two, and in the backward pass one more for each gradient."""
    backward = node.op.name == "attention_backward"
    query, key, value = (forms[x].shape for x in (node.operands[1:4] if backward else node.operands[:3]))
    queries, keys = query[-2], key[-2]
    pairs = sum(min(i + 1, keys) for i in range(queries)) if node.attrs["causal"] else queries * keys
    widths = [query[-1], value[-1]]
    if backward:
        widths += [w for w, need in zip((query[-1], query[-1], value[-1]), node.attrs["needs"], strict=True) if need]
    return int(2 * math.prod(query[:-2]) * pairs * sum(widths))
