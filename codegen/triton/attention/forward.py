"""Flash attention, forward, as Triton kernels; `backward.py` prints the launches of its gradients.

A program owns a block of queries of one head and loops over blocks of the keys that these see. For each query it keeps the
running maximum of the scores, the sum of exponentials of scores less that maximum, and the weighted sum of values; when a new
maximum turns up, both sums are rescaled. Scores are exponents of 2 inside. No queries x keys matrix is ever in memory.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ....tracer.graph.ir import Form, Node
from ...nests.kernels import ATTENTION, Launch
from ...nests.problems.attention import read_attention
from ...nests.problems.tensor_view import Layout
from ...prepare.primitive_graph import PrimitiveGraph
from ..printing.expr_printer import Scope
from ..printing.kernel_text import HEADER, Kernel, Printed, function
from .backward import print_backward
from .blocks import begin_query_block, key_ranges
from .problem import (
    LN_2,
    AttentionConfig,
    BoundAttention,
    Rows,
    bind_attention,
    cast_to_operand,
    define_rows,
    define_scores,
    docstring_lines,
    dot_text,
    is_covered,
    load_block,
    program_line,
    row_pointers,
    store_block,
    store_text,
)
from .tile_configs import candidate_configs


def print_attention(
    launch: Launch,
    forms: dict[str, Form],
    layout: Layout,
    target: str = "sm_90",
    precision: str = "ieee",
    config: AttentionConfig | None = None,
) -> Printed | None:
    """Print the kernels of an attention node; None if it is not covered. `layout` gives the strides of results, `precision` is
    that of float32 ("ieee", or "tf32" where less is allowed), and `config` one of `candidate_configs`, by default the best
    guess."""
    assert launch.node is not None
    problem = bind_attention(launch, forms, layout, precision)
    if problem is None:
        return None
    backward = launch.node.op.name == "attention_backward"
    chosen = config or candidate_configs(problem, backward, target)[0]
    return print_backward(problem, chosen) if backward else print_forward(problem, chosen)


def print_forward(problem: BoundAttention, config: AttentionConfig) -> Printed:
    blocks = -(-problem.queries // config.held)
    scope = Scope(1)
    scope.add(program_line(problem))
    rows = begin_query_block(problem, scope, config, blocks)
    scope.add(f"q = {load_block(problem, 'query', rows)}")
    scope.add(f'highest = tl.full([{config.held}], float("-inf"), tl.{problem.wide})')
    scope.add(f"total = tl.full([{config.held}], 0.0, tl.{problem.wide})")
    scope.add(f"found = tl.full([{config.held}, {problem.padded_value}], 0.0, tl.{problem.wide})")
    for start, stop, edge in key_ranges(problem, config):
        scope.add(f"for start in range({start}, {stop}, {config.step}):")
        inner = Scope(2)
        attend_to_keys(problem, inner, config, rows, edge)
        scope.lines += inner.lines
    store_results(problem, scope, rows)
    name = "attention"
    source = HEADER + function(name, list(problem.arguments), [*docstring_lines(problem, "Flash attention."), *scope.lines])
    kernel = Kernel(name, problem.arguments, blocks * math.prod(problem.batch), config.warps, config.stages)
    return Printed(source, [kernel])


def attend_to_keys(problem: BoundAttention, scope: Scope, config: AttentionConfig, rows: Rows, edge: bool) -> None:
    """Accumulate a block of keys and values into the online softmax of a block of queries."""
    keys = define_rows(scope, "seen", "start", config.step, problem.keys, edge)
    scope.add(f"k = {load_block(problem, 'key', keys)}")
    define_scores(problem, scope, dot_text(problem, "q", "tl.trans(k)"), rows, keys, edge)
    scope.add("top = tl.maximum(highest, tl.max(score, 1))")
    scope.add('shift = tl.where(top == float("-inf"), 0.0, top)')
    scope.add("p = tl.exp2(score - shift[:, None])")
    scope.add("factor = tl.exp2(highest - shift)")
    scope.add("total = total * factor + tl.sum(p, 1)")
    scope.add(f"v = {load_block(problem, 'value', keys)}")
    scope.add(f"found = {dot_text(problem, cast_to_operand(problem, 'p'), 'v', 'found * factor[:, None]')}")
    scope.add("highest = top")


def store_results(problem: BoundAttention, scope: Scope, rows: Rows) -> None:
    """Store the results. Rows with every key masked give 0, and their log-sum-exp is +inf."""
    masked = "mask" in problem.tensors
    if masked:
        scope.add('empty = highest == float("-inf")')
        scope.add("total = tl.where(empty, 1.0, total)")
    scope.add(store_block(problem, "out", rows, "(found / total[:, None])"))
    scope.add(f"logarithm = (highest + tl.log2(total)) * {LN_2!r}")
    if masked:
        scope.add('logarithm = tl.where(empty, float("inf"), logarithm)')
    scope.add(store_text(row_pointers(problem, "log_total", rows), "logarithm", rows.mask))


def keeps_halves(node: Node) -> bool:
    """True if a node takes half-precision operands as they are, without conversion to float32."""
    return node.op.name in ATTENTION


def pass_outputs_to_backward(work: PrimitiveGraph) -> PrimitiveGraph:
    """Pass the forward node's output to the backward node if both are in the graph: backward then needs one kernel, not two."""
    outs = {node.results[1]: node.results[0] for node in work.nodes if node.op.name == "attention"}

    def given(node: Node) -> Node:
        if node.op.name != "attention_backward" or node.operands[5] not in outs:
            return node
        if not is_covered(read_attention(node, {}, work.forms)):
            return node
        return replace(node, operands=(*node.operands, outs[node.operands[5]]))

    nodes = [given(node) for node in work.nodes]
    return work if all(a is b for a, b in zip(nodes, work.nodes, strict=True)) else replace(work, nodes=nodes)
