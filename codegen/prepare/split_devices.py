"""Segments whose tensors are partly on the CPU and partly on a GPU. Nothing goes from one to the other within a segment, so
they are two graphs, and become two programs that run one after the other: native code first, then kernels, which may still be
busy when the program returns.

If one of them cannot go on, the plain program runs in the place of both. So nothing on the CPU may be written by then: where a
segment writes there, all of it is a plain program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...eager.arrays.devices import CPU, device
from ...tracer.graph.ir import Graph, GraphError
from ...tracer.execute.reference_program import Program
from .device_placement import places


class ElsewhereError(Exception):
    """The plain program has to run."""


def apart(graph: Graph) -> tuple[Graph, Graph] | None:
    """The graph of what is on the CPU, and that of what is on a GPU; None if all of it is in one place, or on several GPUs."""
    found = places(graph)
    if CPU not in found or len(found) != 2:
        return None
    home, away = (part(graph, where) for where in (CPU, *(found - {CPU})))
    if len(home.nodes) + len(away.nodes) < len(graph.nodes):
        raise GraphError("an op has to do with tensors on several devices")
    if home.write_backs:
        raise GraphError("its tensors are on several devices, and some on the CPU are written")
    return home, away


def part(graph: Graph, where: device) -> Graph:
    """What is in one place."""

    def here(*names: str) -> bool:
        return all(graph.forms[name].where == where for name in names)

    return replace(
        graph,
        inputs=tuple(x for x in graph.inputs if here(x.name)),
        nodes=tuple(n for n in graph.nodes if here(*n.values(), *n.results)),
        outputs=tuple(o for o in graph.outputs if here(o.value)),
        write_backs=tuple(w for w in graph.write_backs if here(w.input.name)),
    )


def refusing(arrays: list[Any], scalars: list[Any]) -> None:
    """In the place of a plain program, where that is only a part of what has to run."""
    raise ElsewhereError


def in_turn(home: Program, away: Program, plain: Program) -> Callable[[list[Any], list[Any]], None]:
    """Both programs; the first was made with `refusing`, the second with the plain program of all."""

    def run(arrays: list[Any], scalars: list[Any]) -> None:
        try:
            home(arrays, scalars)
        except ElsewhereError:
            plain(arrays, scalars)
        else:
            away(arrays, scalars)

    return run
