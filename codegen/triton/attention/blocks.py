"""Query blocks in flash attention's kernels: program index, tensor pointers, and the range of keys that a block sees."""

from __future__ import annotations

import math

from ..printing.expr_printer import Scope
from .problem import (
    AttentionConfig,
    BoundAttention,
    Rows,
    define_columns,
    define_head_indices,
    define_head_pointer,
    define_rows,
)


def begin_query_block(problem: BoundAttention, scope: Scope, config: AttentionConfig, blocks: int) -> Rows:
    """Assign a block of queries to each program. With causal masking the last blocks have the most work, so they launch
    first."""
    block = "program" if math.prod(problem.batch) == 1 else f"program % {blocks}" if blocks > 1 else "0"
    head = "program" if blocks == 1 else f"program // {blocks}"
    scope.add(f"first = ({blocks - 1} - {block}) * {config.held}" if problem.causal else f"first = ({block}) * {config.held}")
    if math.prod(problem.batch) > 1:
        scope.add(f"head = {head}")
    place = define_head_indices(scope, problem.batch, "head")
    define_head_pointers(problem, scope, place, ("query", "mask", "out", "log_total", "pull", "of_query", "mean"))
    shared = [*place[:-1], f"({place[-1]} // {problem.group})" if problem.group > 1 else place[-1]] if place else []
    define_head_pointers(problem, scope, shared, ("key", "value"))
    define_columns(problem, scope)
    return define_rows(scope, "row", "first", config.held, problem.queries)


def define_head_pointers(problem: BoundAttention, scope: Scope, place: list[str], names: tuple[str, ...]) -> None:
    for name in names:
        if name in problem.tensors:
            define_head_pointer(problem, scope, name, place)


def key_ranges(problem: BoundAttention, config: AttentionConfig) -> list[tuple[str, str, bool]]:
    """Ranges of keys that a block of queries loops over: first the blocks that all of it sees, then the masked ones at the
    edge."""
    whole = problem.keys // config.step * config.step
    if not problem.causal:
        return [("0", str(whole), False)] * bool(whole) + [(str(whole), str(problem.keys), True)] * (whole < problem.keys)
    seen = "first" if config.held % config.step == 0 else f"first // {config.step} * {config.step}"
    inside, stop = f"tl.minimum({seen}, {whole})", f"tl.minimum(first + {config.held}, {problem.keys})"
    return [("0", inside, False), (inside, stop, True)] if problem.queries > config.held else [("0", stop, True)]
