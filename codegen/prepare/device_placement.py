"""Place graphs: find the one device of a graph, and rewrite it as if it were on the CPU.

Loops do not depend on where memory is. So code is generated for graphs on the CPU, and only whoever runs it knows the device,
which is in `Graph.where`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...eager.arrays.deferred import form
from ...eager.arrays.devices import CPU, device
from ...tracer.graph.ir import Form, Graph, GraphError


def place(graph: Graph) -> Graph:
    """The graph as if it were on the CPU, with its device. GraphError if it is on several."""
    found = devices_of(graph)
    if len(found) > 1:
        raise GraphError(f"its tensors are on several devices: {', '.join(sorted(map(str, found)))}")
    (where,) = found or {CPU}
    return graph if where == CPU else on_cpu(graph, where)


def devices_of(graph: Graph) -> set[device]:
    names = [*[x.name for x in graph.inputs], *[name for node in graph.nodes for name in node.results]]
    return {graph.forms[name].where for name in names}


def on_cpu(graph: Graph, where: device) -> Graph:
    nodes = tuple(replace(n, attrs=with_device(n.attrs, CPU)) for n in graph.nodes)
    return replace(graph, nodes=nodes, forms={name: form_on_cpu(f) for name, f in graph.forms.items()}, where=where)


def form_on_cpu(f: Form) -> Form:
    return form(f.shape, f.dtype, f.strides, CPU)


def with_device(attrs: dict[str, Any], where: device) -> dict[str, Any]:
    """An op's attributes with every device replaced."""
    return {name: where if isinstance(x, device) else x for name, x in attrs.items()}
