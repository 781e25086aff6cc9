"""Flash attention, backward: gradients of queries, keys and values, with probabilities recomputed from log-sum-exp.

Some programs own a block of keys and loop over the queries that see it; the others own a block of queries and loop over the
keys that it sees. So each sum has one owner and is always accumulated in the same order. Both need each row's mean slope, the
dot product of the row's output and the output's gradient. If the forward output is not available, an earlier kernel computes
the means.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..printing.expr_printer import Scope
from ..printing.kernel_text import HEADER, Argument, Kernel, Printed, function
from ..printing.scalar_ops import TYPES, literal
from .blocks import begin_query_block, define_head_pointers, key_ranges
from .problem import (
    LOG2_E,
    AttentionConfig,
    AttentionTensor,
    BoundAttention,
    Rows,
    cast_to_operand,
    define_columns,
    define_head_indices,
    define_rows,
    define_scores,
    docstring_lines,
    dot_text,
    load_block,
    load_text,
    program_line,
    row_pointers,
    store_block,
    store_text,
)

MEAN, INFINITY = "mean", 'float("inf")'


def print_backward(problem: BoundAttention, config: AttentionConfig) -> Printed:
    source, kernels, scratch = HEADER, [], {}
    sloped = bool({"of_query", "of_key"} & set(problem.tensors))
    if sloped and "out" not in problem.tensors:
        problem, size = with_mean_buffer(problem)
        scratch[MEAN] = (problem.wide, size)
        lines, kernel = mean_kernel(problem, config)
        source += function(kernel.name, list(kernel.arguments), lines)
        kernels.append(kernel)
    lines, kernel = gradient_kernel(problem, config)
    source += function(kernel.name, list(kernel.arguments), lines)
    return Printed(source, [*kernels, kernel], scratch)


def with_mean_buffer(problem: BoundAttention) -> tuple[BoundAttention, int]:
    """Add a buffer of row means to the problem; also returns their number."""
    sizes, strides = (*problem.batch, problem.queries), []
    size = 1
    for n in reversed(sizes):
        strides.append(size)
        size *= n
    strides.reverse()
    tensor = AttentionTensor(MEAN, problem.wide, 0, tuple(strides[:-1]), strides[-1], 0)
    argument = Argument(MEAN, f"*{TYPES[problem.wide]}", buffer=MEAN)
    found = replace(problem, tensors={**problem.tensors, MEAN: tensor}, arguments=(*problem.arguments, argument))
    return found, size


def gradient_kernel(problem: BoundAttention, config: AttentionConfig) -> tuple[list[str], Kernel]:
    """Print one kernel: its first programs own blocks of keys, the others blocks of queries."""
    key_blocks, query_blocks = -(-problem.keys // config.held), -(-problem.queries // config.held)
    of_keys = key_blocks * math.prod(problem.key_batch) if {"of_key", "of_value"} & set(problem.tensors) else 0
    of_queries = query_blocks * math.prod(problem.batch) if "of_query" in problem.tensors else 0
    both = bool(of_keys and of_queries)
    scope = Scope(1)
    scope.add(program_line(problem))
    if of_keys:
        part = Scope(2 if both else 1)
        print_key_block(problem, part, config, key_blocks)
        scope.lines += [f"    if program < {of_keys}:"] * both + part.lines
    if of_queries:
        part = Scope(2 if both else 1)
        if both:
            part.add(f"program -= {of_keys}")
        print_query_block(problem, part, config, query_blocks)
        scope.lines += ["    else:"] * both + part.lines
    lines = [*docstring_lines(problem, "Flash attention, backward."), *scope.lines]
    kernel = Kernel("attention_backward", problem.arguments, of_keys + of_queries, config.warps, config.stages)
    return lines, kernel


# ---- a block of keys


def print_key_block(problem: BoundAttention, scope: Scope, config: AttentionConfig, blocks: int) -> None:
    heads = math.prod(problem.key_batch)
    block = "program" if heads == 1 else f"program % {blocks}" if blocks > 1 else "0"
    scope.add(f"first = ({block}) * {config.held}")
    if heads > 1:
        scope.add(f"head = program // {blocks}" if blocks > 1 else "head = program")
    place = define_head_indices(scope, problem.key_batch, "head")
    define_head_pointers(problem, scope, place, ("key", "value", "of_key", "of_value"))
    define_columns(problem, scope)
    keys = define_rows(scope, "seen", "first", config.held, problem.keys)
    sloped = "of_key" in problem.tensors
    scope.add(f"k = {load_block(problem, 'key', keys)}")
    if sloped:
        scope.add(f"v = {load_block(problem, 'value', keys)}")
        scope.add(f"slope_of_key = tl.full([{config.held}, {problem.padded}], 0.0, tl.{problem.wide})")
    if "of_value" in problem.tensors:
        scope.add(f"slope_of_value = tl.full([{config.held}, {problem.padded_value}], 0.0, tl.{problem.wide})")
    inner = scope
    if problem.group > 1:
        scope.add(f"for member in range(0, {problem.group}):")
        inner = Scope(scope.depth + 1)
        place = [*place[:-1], "member" if place[-1] == "0" else f"({place[-1]} * {problem.group} + member)"]
    define_head_pointers(problem, inner, place, ("query", "mask", "pull", "log_total", "out", MEAN))
    for start, stop, edge in query_ranges(problem, config):
        inner.add(f"for start in range({start}, {stop}, {config.step}):")
        body = Scope(inner.depth + 1)
        add_query_block(problem, body, config, keys, edge)
        inner.lines += body.lines
    if inner is not scope:
        scope.lines += inner.lines
    if sloped:
        scope.add(store_block(problem, "of_key", keys, f"(slope_of_key * {literal(problem.scale)})"))
    if "of_value" in problem.tensors:
        scope.add(store_block(problem, "of_value", keys, "slope_of_value"))


def query_ranges(problem: BoundAttention, config: AttentionConfig) -> list[tuple[str, str, bool]]:
    """Ranges of queries that see a block of keys: first those that see only a part of it, then the others."""
    if not problem.causal:
        return [("0", str(problem.queries), False)]
    reach = max(config.held, config.step)
    if problem.queries <= reach:
        return [("first", str(problem.queries), True)]
    end = f"tl.minimum(first + {reach}, {problem.queries})"
    return [("first", end, True), (f"first + {reach}", str(problem.queries), False)]


def add_query_block(problem: BoundAttention, scope: Scope, config: AttentionConfig, keys: Rows, edge: bool) -> None:
    """Accumulate a block of queries into the gradients of a block of keys. Out-of-range queries have probability 0."""
    rows = define_rows(scope, "row", "start", config.step, problem.queries)
    scope.add(f"q = {load_block(problem, 'query', rows)}")
    scope.add(f"logarithm = {log_total_text(problem, rows)}")
    define_scores(problem, scope, dot_text(problem, "k", "tl.trans(q)"), rows, Rows(keys.name), edge, turned=True)
    scope.add("p = tl.exp2(score - logarithm[None, :])")
    scope.add(f"pulled = {load_block(problem, 'pull', rows)}")
    if "of_value" in problem.tensors:
        scope.add(f"slope_of_value = {dot_text(problem, cast_to_operand(problem, 'p'), 'pulled', 'slope_of_value')}")
    if "of_key" in problem.tensors:
        define_mean(problem, scope, rows)
        scope.add(f"slope = p * ({dot_text(problem, 'v', 'tl.trans(pulled)')} - mean_slope[None, :])")
        scope.add(f"slope_of_key = {dot_text(problem, cast_to_operand(problem, 'slope'), 'q', 'slope_of_key')}")


def log_total_text(problem: BoundAttention, rows: Rows) -> str:
    return f"{load_text(row_pointers(problem, 'log_total', rows), rows.mask, INFINITY)} * {LOG2_E!r}"


def define_mean(problem: BoundAttention, scope: Scope, rows: Rows) -> None:
    if "out" in problem.tensors:
        wide = f".to(tl.{problem.wide})" if problem.wide != problem.dtype else ""
        scope.add(f"out_rows = {load_block(problem, 'out', rows)}")
        scope.add(f"mean_slope = tl.sum(pulled{wide} * out_rows{wide}, 1)")
    else:
        scope.add(f"mean_slope = {load_text(row_pointers(problem, MEAN, rows), rows.mask, '0.0')}")


# ---- a block of queries


def print_query_block(problem: BoundAttention, scope: Scope, config: AttentionConfig, blocks: int) -> None:
    rows = load_queries(problem, scope, config, blocks)
    define_mean(problem, scope, rows)
    scope.add(f"slope_of_query = tl.full([{config.held}, {problem.padded}], 0.0, tl.{problem.wide})")
    for start, stop, edge in key_ranges(problem, config):
        scope.add(f"for start in range({start}, {stop}, {config.step}):")
        inner = Scope(scope.depth + 1)
        define_probabilities(problem, inner, config, rows, edge)
        inner.add("slope = p * (gradient - mean_slope[:, None])")
        inner.add(f"slope_of_query = {dot_text(problem, cast_to_operand(problem, 'slope'), 'k', 'slope_of_query')}")
        scope.lines += inner.lines
    scope.add(store_block(problem, "of_query", rows, f"(slope_of_query * {literal(problem.scale)})"))


def load_queries(problem: BoundAttention, scope: Scope, config: AttentionConfig, blocks: int) -> Rows:
    rows = begin_query_block(problem, scope, config, blocks)
    scope.add(f"q = {load_block(problem, 'query', rows)}")
    scope.add(f"pulled = {load_block(problem, 'pull', rows)}")
    scope.add(f"logarithm = {log_total_text(problem, rows)}")
    return rows


def define_probabilities(problem: BoundAttention, scope: Scope, config: AttentionConfig, rows: Rows, edge: bool) -> None:
    """Define `p` and its `gradient` for a block of queries and a block of keys. Out-of-range keys are masked."""
    keys = define_rows(scope, "seen", "start", config.step, problem.keys, edge)
    scope.add(f"k = {load_block(problem, 'key', keys)}")
    define_scores(problem, scope, dot_text(problem, "q", "tl.trans(k)"), rows, keys, edge)
    scope.add("p = tl.exp2(score - logarithm[:, None])")
    scope.add(f"v = {load_block(problem, 'value', keys)}")
    scope.add(f"gradient = {dot_text(problem, 'pulled', 'tl.trans(v)')}")


def mean_kernel(problem: BoundAttention, config: AttentionConfig) -> tuple[list[str], Kernel]:
    """Print the kernel that computes each row's mean slope, for the gradient kernel after it."""
    blocks = -(-problem.queries // config.held)
    scope = Scope(1)
    scope.add(program_line(problem))
    rows = load_queries(problem, scope, config, blocks)
    scope.add(f"mean_slope = tl.full([{config.held}], 0.0, tl.{problem.wide})")
    for start, stop, edge in key_ranges(problem, config):
        scope.add(f"for start in range({start}, {stop}, {config.step}):")
        inner = Scope(2)
        define_probabilities(problem, inner, config, rows, edge)
        inner.add("mean_slope += tl.sum(p * gradient, 1)")
        scope.lines += inner.lines
    scope.add(store_text(row_pointers(problem, MEAN, rows), "mean_slope", rows.mask))
    lines = [*docstring_lines(problem, "Each query's mean slope, of all keys that it sees."), *scope.lines]
    kernel = Kernel("attention_means", problem.arguments, blocks * math.prod(problem.batch), config.warps, config.stages)
    return lines, kernel
