"""A block of queries in flash attention's kernels: which it is, where its tensors are, and the keys that it sees."""

from __future__ import annotations

import math

from .problem import Attention, Config, Rows, begin, define_columns, define_rows, find_head
from ..printing.expr_printer import Scope


def begin_block(problem: Attention, scope: Scope, config: Config, blocks: int) -> Rows:
    """Which queries a program has. Of those that see keys before them only, the last have most to do: they are first."""
    block = "program" if math.prod(problem.batch) == 1 else f"program % {blocks}" if blocks > 1 else "0"
    head = "program" if blocks == 1 else f"program // {blocks}"
    scope.add(f"first = ({blocks - 1} - {block}) * {config.held}" if problem.causal else f"first = ({block}) * {config.held}")
    if math.prod(problem.batch) > 1:
        scope.add(f"head = {head}")
    place = find_head(scope, problem.batch, "head")
    find_tensors(problem, scope, place, ("query", "mask", "out", "log_total", "pull", "of_query", "mean"))
    shared = [*place[:-1], f"({place[-1]} // {problem.group})" if problem.group > 1 else place[-1]] if place else []
    find_tensors(problem, scope, shared, ("key", "value"))
    define_columns(problem, scope)
    return define_rows(scope, "row", "first", config.held, problem.queries)


def find_tensors(problem: Attention, scope: Scope, place: list[str], names: tuple[str, ...]) -> None:
    for name in names:
        if name in problem.tensors:
            begin(problem, scope, name, place)


def spans(problem: Attention, config: Config) -> list[tuple[str, str, bool]]:
    """The keys that a block of queries goes through: whole blocks that all of it sees, then those at the edge."""
    whole = problem.keys // config.step * config.step
    if not problem.causal:
        return [("0", str(whole), False)] * bool(whole) + [(str(whole), str(problem.keys), True)] * (whole < problem.keys)
    seen = "first" if config.held % config.step == 0 else f"first // {config.step} * {config.step}"
    inside, stop = f"tl.minimum({seen}, {whole})", f"tl.minimum(first + {config.held}, {problem.keys})"
    return [("0", inside, False), (inside, stop, True)] if problem.queries > config.held else [("0", stop, True)]
