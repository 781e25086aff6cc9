"""Where a graph's values are: all on one device, or no code is generated.

Loops do not care where memory is. So a graph is made as if it were on the CPU before anything else is done with it, and only
who runs it knows the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...eager.arrays.devices import CPU, device
from ...eager.arrays.deferred import form
from ...tracer.graph.ir import Form, Graph, GraphError


@dataclass(frozen=True)
class Placed:
    """A graph as if it were on the CPU, and where it is."""

    graph: Graph
    where: device


def placed(graph: Graph) -> Placed:
    """GraphError if a graph is in several places."""
    found = places(graph)
    if len(found) > 1:
        raise GraphError(f"its tensors are on several devices: {', '.join(sorted(map(str, found)))}")
    (where,) = found or {CPU}
    return Placed(graph if where == CPU else moved(graph), where)


def places(graph: Graph) -> set[device]:
    names = [*[x.name for x in graph.inputs], *[name for node in graph.nodes for name in node.results]]
    return {graph.forms[name].where for name in names}


def moved(graph: Graph) -> Graph:
    """The graph as if it were on the CPU."""
    nodes = tuple(replace(n, attrs=on(n.attrs, CPU)) for n in graph.nodes)
    return replace(graph, nodes=nodes, forms={name: at_home(f) for name, f in graph.forms.items()})


def at_home(f: Form) -> Form:
    return form(f.shape, f.dtype, f.strides, CPU)


def on(attrs: dict[str, Any], where: device) -> dict[str, Any]:
    """The settings of an op that is somewhere else."""
    return {name: where if isinstance(x, device) else x for name, x in attrs.items()}
