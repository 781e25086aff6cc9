"""Flash attention as Triton kernels: launches of `attention`, and by way of `attention_backward.py` of its gradients.

A program has a block of queries of one head, and goes through the keys that these see, block after block. It keeps the highest
score so far of each query, the sum of the exponentials of scores less that, and what they find; when a higher score turns up,
what was added up so far is scaled down. Scores are powers of 2 inside. Nothing that is queries x keys large is in memory.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ....tracer.graph.ir import Form, Node
from ...nests.kernels import ATTENTION, Launch
from ...prepare.canonicalize import Prepared
from .backward import printed_backward
from .blocks import begin_block, spans
from .problem import (
    LN_2,
    Attention,
    Config,
    Layout,
    Rows,
    attention_of,
    covered,
    define_rows,
    documentation,
    dot,
    narrowed,
    per_row,
    program_line,
    read,
    scores,
    stored,
    write,
)
from .tile_configs import configurations
from ..printing.expr_printer import Scope
from ..printing.kernel_text import HEADER, Kernel, Printed, function


def printed_attention(
    launch: Launch,
    forms: dict[str, Form],
    layout: Layout,
    target: str = "sm_90",
    precision: str = "ieee",
    config: Config | None = None,
) -> Printed | None:
    """The kernels of an attention node; None if there are none for it. `layout` gives the strides of results, `precision` is
    that of float32 ("ieee", or "tf32" where it may be less), and `config` one of `configurations`, or the best guess."""
    assert launch.node is not None
    problem = attention_of(launch, forms, layout, precision)
    if problem is None:
        return None
    backward = launch.node.op.name == "attention_backward"
    chosen = config or configurations(problem, backward, target)[0]
    return printed_backward(problem, chosen) if backward else printed_forward(problem, chosen)


def printed_forward(problem: Attention, config: Config) -> Printed:
    blocks = -(-problem.queries // config.held)
    scope = Scope(1)
    scope.add(program_line(problem))
    rows = begin_block(problem, scope, config, blocks)
    scope.add(f"q = {read(problem, 'query', rows)}")
    scope.add(f'highest = tl.full([{config.held}], float("-inf"), tl.{problem.wide})')
    scope.add(f"total = tl.full([{config.held}], 0.0, tl.{problem.wide})")
    scope.add(f"found = tl.full([{config.held}, {problem.padded_value}], 0.0, tl.{problem.wide})")
    for start, stop, edge in spans(problem, config):
        scope.add(f"for start in range({start}, {stop}, {config.step}):")
        inner = Scope(2)
        keys_from(problem, inner, config, rows, edge)
        scope.lines += inner.lines
    finish(problem, scope, rows)
    name = "attention"
    source = HEADER + function(name, list(problem.arguments), [*documentation(problem, "Flash attention."), *scope.lines])
    kernel = Kernel(name, problem.arguments, blocks * math.prod(problem.batch), config.warps, config.stages)
    return Printed(source, [kernel])


def keys_from(problem: Attention, scope: Scope, config: Config, rows: Rows, edge: bool) -> None:
    """What a block of queries finds in a block of keys."""
    keys = define_rows(scope, "seen", "start", config.step, problem.keys, edge)
    scope.add(f"k = {read(problem, 'key', keys)}")
    scores(problem, scope, dot(problem, "q", "tl.trans(k)"), rows, keys, edge)
    scope.add("top = tl.maximum(highest, tl.max(score, 1))")
    scope.add('shift = tl.where(top == float("-inf"), 0.0, top)')
    scope.add("p = tl.exp2(score - shift[:, None])")
    scope.add("factor = tl.exp2(highest - shift)")
    scope.add("total = total * factor + tl.sum(p, 1)")
    scope.add(f"v = {read(problem, 'value', keys)}")
    scope.add(f"found = {dot(problem, narrowed(problem, 'p'), 'v', 'found * factor[:, None]')}")
    scope.add("highest = top")


def finish(problem: Attention, scope: Scope, rows: Rows) -> None:
    """Rows with every key masked find 0, and their log-sum-exp is +inf."""
    masked = "mask" in problem.tensors
    if masked:
        scope.add('empty = highest == float("-inf")')
        scope.add("total = tl.where(empty, 1.0, total)")
    scope.add(write(problem, "out", rows, "(found / total[:, None])"))
    scope.add(f"logarithm = (highest + tl.log2(total)) * {LN_2!r}")
    if masked:
        scope.add('logarithm = tl.where(empty, float("inf"), logarithm)')
    scope.add(stored(per_row(problem, "log_total", rows), "logarithm", rows.mask))


def in_halves(node: Node) -> bool:
    """Whether halves are not to be converted for a node."""
    return node.op.name in ATTENTION


def with_outs(work: Prepared) -> Prepared:
    """The graph with what the forward node found given to the backward node, if both are in it: one kernel is enough then."""
    outs = {node.results[1]: node.results[0] for node in work.nodes if node.op.name == "attention"}

    def given(node: Node) -> Node:
        if node.op.name != "attention_backward" or node.operands[5] not in outs or not covered(work.forms, *node.operands[1:5]):
            return node
        return replace(node, operands=(*node.operands, outs[node.operands[5]]))

    return replace(work, nodes=[given(node) for node in work.nodes])
