"""Flash attention, backward: gradients of queries, keys and values, with the probabilities made again from log-sum-exp.

Some programs have a block of keys, and go through the queries that see it; others have a block of queries, and go through the
keys that it sees. So each sum has one owner, and is always added up in the same order. Both need each row's mean slope, which
is the product of what the row found and of the gradient of that. Where what it found is not at hand, a kernel before makes the
means.
"""

from __future__ import annotations

import math
from dataclasses import replace

from .blocks import begin_block, find_tensors, spans
from .problem import (
    LOG2_E,
    Attention,
    Config,
    Rows,
    Tensor,
    define_columns,
    define_rows,
    documentation,
    dot,
    find_head,
    loaded,
    narrowed,
    per_row,
    program_line,
    read,
    scores,
    stored,
    write,
)
from ..printing.expr_printer import Scope
from ..printing.scalar_ops import TYPES, literal
from ..printing.kernel_text import HEADER, Argument, Kernel, Printed, function

MEAN, INFINITY = "mean", 'float("inf")'


def printed_backward(problem: Attention, config: Config) -> Printed:
    source, kernels, scratch = HEADER, [], {}
    sloped = bool({"of_query", "of_key"} & set(problem.tensors))
    if sloped and "out" not in problem.tensors:
        problem, size = with_means(problem)
        scratch[MEAN] = (problem.wide, size)
        lines, kernel = mean_kernel(problem, config)
        source += function(kernel.name, list(kernel.arguments), lines)
        kernels.append(kernel)
    lines, kernel = slope_kernel(problem, config)
    source += function(kernel.name, list(kernel.arguments), lines)
    return Printed(source, [*kernels, kernel], scratch)


def with_means(problem: Attention) -> tuple[Attention, int]:
    """The problem with a buffer of means, and how many these are."""
    sizes, strides = (*problem.batch, problem.queries), []
    size = 1
    for n in reversed(sizes):
        strides.append(size)
        size *= n
    strides.reverse()
    tensor = Tensor(MEAN, problem.wide, 0, tuple(strides[:-1]), strides[-1], 0)
    argument = Argument(MEAN, f"*{TYPES[problem.wide]}", buffer=MEAN)
    found = replace(problem, tensors={**problem.tensors, MEAN: tensor}, arguments=(*problem.arguments, argument))
    return found, size


def slope_kernel(problem: Attention, config: Config) -> tuple[list[str], Kernel]:
    """One kernel with programs for blocks of keys, and after them for blocks of queries."""
    key_blocks, query_blocks = -(-problem.keys // config.held), -(-problem.queries // config.held)
    of_keys = key_blocks * math.prod(problem.key_batch) if {"of_key", "of_value"} & set(problem.tensors) else 0
    of_queries = query_blocks * math.prod(problem.batch) if "of_query" in problem.tensors else 0
    both = bool(of_keys and of_queries)
    scope = Scope(1)
    scope.add(program_line(problem))
    if of_keys:
        part = Scope(2 if both else 1)
        block_of_keys(problem, part, config, key_blocks)
        scope.lines += [f"    if program < {of_keys}:"] * both + part.lines
    if of_queries:
        part = Scope(2 if both else 1)
        if both:
            part.add(f"program -= {of_keys}")
        block_of_queries(problem, part, config, query_blocks)
        scope.lines += ["    else:"] * both + part.lines
    lines = [*documentation(problem, "Flash attention, backward."), *scope.lines]
    kernel = Kernel("attention_backward", problem.arguments, of_keys + of_queries, config.warps, config.stages)
    return lines, kernel


# ---- a block of keys


def block_of_keys(problem: Attention, scope: Scope, config: Config, blocks: int) -> None:
    heads = math.prod(problem.key_batch)
    block = "program" if heads == 1 else f"program % {blocks}" if blocks > 1 else "0"
    scope.add(f"first = ({block}) * {config.held}")
    if heads > 1:
        scope.add(f"head = program // {blocks}" if blocks > 1 else "head = program")
    place = find_head(scope, problem.key_batch, "head")
    find_tensors(problem, scope, place, ("key", "value", "of_key", "of_value"))
    define_columns(problem, scope)
    keys = define_rows(scope, "seen", "first", config.held, problem.keys)
    sloped = "of_key" in problem.tensors
    scope.add(f"k = {read(problem, 'key', keys)}")
    if sloped:
        scope.add(f"v = {read(problem, 'value', keys)}")
        scope.add(f"slope_of_key = tl.full([{config.held}, {problem.padded}], 0.0, tl.{problem.wide})")
    if "of_value" in problem.tensors:
        scope.add(f"slope_of_value = tl.full([{config.held}, {problem.padded_value}], 0.0, tl.{problem.wide})")
    inner = scope
    if problem.group > 1:
        scope.add(f"for member in range(0, {problem.group}):")
        inner = Scope(scope.depth + 1)
        place = [*place[:-1], "member" if place[-1] == "0" else f"({place[-1]} * {problem.group} + member)"]
    find_tensors(problem, inner, place, ("query", "mask", "pull", "log_total", "out", MEAN))
    for start, stop, edge in spans_of_queries(problem, config):
        inner.add(f"for start in range({start}, {stop}, {config.step}):")
        body = Scope(inner.depth + 1)
        queries_from(problem, body, config, keys, edge)
        inner.lines += body.lines
    if inner is not scope:
        scope.lines += inner.lines
    if sloped:
        scope.add(write(problem, "of_key", keys, f"(slope_of_key * {literal(problem.scale)})"))
    if "of_value" in problem.tensors:
        scope.add(write(problem, "of_value", keys, "slope_of_value"))


def spans_of_queries(problem: Attention, config: Config) -> list[tuple[str, str, bool]]:
    """The queries that see a block of keys: those that see a part of it, then the others."""
    if not problem.causal:
        return [("0", str(problem.queries), False)]
    reach = max(config.held, config.step)
    if problem.queries <= reach:
        return [("first", str(problem.queries), True)]
    end = f"tl.minimum(first + {reach}, {problem.queries})"
    return [("first", end, True), (f"first + {reach}", str(problem.queries), False)]


def queries_from(problem: Attention, scope: Scope, config: Config, keys: Rows, edge: bool) -> None:
    """What a block of queries adds to the gradients of a block of keys. Queries that are not there have probabilities of 0."""
    rows = define_rows(scope, "row", "start", config.step, problem.queries)
    scope.add(f"q = {read(problem, 'query', rows)}")
    scope.add(f"logarithm = {logarithms(problem, rows)}")
    scores(problem, scope, dot(problem, "k", "tl.trans(q)"), rows, Rows(keys.name), edge, turned=True)
    scope.add("p = tl.exp2(score - logarithm[None, :])")
    scope.add(f"pulled = {read(problem, 'pull', rows)}")
    if "of_value" in problem.tensors:
        scope.add(f"slope_of_value = {dot(problem, narrowed(problem, 'p'), 'pulled', 'slope_of_value')}")
    if "of_key" in problem.tensors:
        mean_of(problem, scope, rows)
        scope.add(f"slope = p * ({dot(problem, 'v', 'tl.trans(pulled)')} - mean_slope[None, :])")
        scope.add(f"slope_of_key = {dot(problem, narrowed(problem, 'slope'), 'q', 'slope_of_key')}")


def logarithms(problem: Attention, rows: Rows) -> str:
    return f"{loaded(per_row(problem, 'log_total', rows), rows.mask, INFINITY)} * {LOG2_E!r}"


def mean_of(problem: Attention, scope: Scope, rows: Rows) -> None:
    if "out" in problem.tensors:
        wide = f".to(tl.{problem.wide})" if problem.wide != problem.dtype else ""
        scope.add(f"out_rows = {read(problem, 'out', rows)}")
        scope.add(f"mean_slope = tl.sum(pulled{wide} * out_rows{wide}, 1)")
    else:
        scope.add(f"mean_slope = {loaded(per_row(problem, MEAN, rows), rows.mask, '0.0')}")


# ---- a block of queries


def block_of_queries(problem: Attention, scope: Scope, config: Config, blocks: int) -> None:
    rows = begin_queries(problem, scope, config, blocks)
    mean_of(problem, scope, rows)
    scope.add(f"slope_of_query = tl.full([{config.held}, {problem.padded}], 0.0, tl.{problem.wide})")
    for start, stop, edge in spans(problem, config):
        scope.add(f"for start in range({start}, {stop}, {config.step}):")
        inner = Scope(scope.depth + 1)
        probabilities_of(problem, inner, config, rows, edge)
        inner.add("slope = p * (gradient - mean_slope[:, None])")
        inner.add(f"slope_of_query = {dot(problem, narrowed(problem, 'slope'), 'k', 'slope_of_query')}")
        scope.lines += inner.lines
    scope.add(write(problem, "of_query", rows, f"(slope_of_query * {literal(problem.scale)})"))


def begin_queries(problem: Attention, scope: Scope, config: Config, blocks: int) -> Rows:
    rows = begin_block(problem, scope, config, blocks)
    scope.add(f"q = {read(problem, 'query', rows)}")
    scope.add(f"pulled = {read(problem, 'pull', rows)}")
    scope.add(f"logarithm = {logarithms(problem, rows)}")
    return rows


def probabilities_of(problem: Attention, scope: Scope, config: Config, rows: Rows, edge: bool) -> None:
    """`p` and its `gradient`, of a block of queries and one of keys. Keys that are not there are hidden."""
    keys = define_rows(scope, "seen", "start", config.step, problem.keys, edge)
    scope.add(f"k = {read(problem, 'key', keys)}")
    scores(problem, scope, dot(problem, "q", "tl.trans(k)"), rows, keys, edge)
    scope.add("p = tl.exp2(score - logarithm[:, None])")
    scope.add(f"v = {read(problem, 'value', keys)}")
    scope.add(f"gradient = {dot(problem, 'pulled', 'tl.trans(v)')}")


def mean_kernel(problem: Attention, config: Config) -> tuple[list[str], Kernel]:
    """Each row's mean slope, for the kernel after it."""
    blocks = -(-problem.queries // config.held)
    scope = Scope(1)
    scope.add(program_line(problem))
    rows = begin_queries(problem, scope, config, blocks)
    scope.add(f"mean_slope = tl.full([{config.held}], 0.0, tl.{problem.wide})")
    for start, stop, edge in spans(problem, config):
        scope.add(f"for start in range({start}, {stop}, {config.step}):")
        inner = Scope(2)
        probabilities_of(problem, inner, config, rows, edge)
        inner.add("mean_slope += tl.sum(p * gradient, 1)")
        scope.lines += inner.lines
    scope.add(stored(per_row(problem, MEAN, rows), "mean_slope", rows.mask))
    lines = [*documentation(problem, "Each query's mean slope, of all keys that it sees."), *scope.lines]
    kernel = Kernel("attention_means", problem.arguments, blocks * math.prod(problem.batch), config.warps, config.stages)
    return lines, kernel
