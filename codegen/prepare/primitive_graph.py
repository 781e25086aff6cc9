"""Data: a graph of primitive ops on one device, from which loops are made."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...tracer.graph.ir import Form, Input, Node, Output, WriteBack


@dataclass
class PrimitiveGraph:
    """Nodes in order, and the memory that each result goes to. Passes replace `nodes`; `forms` is shared and only grows."""

    inputs: tuple[Input, ...]
    nodes: list[Node]
    forms: dict[str, Form]
    outputs: list[tuple[Output, str]]  # with the value that is stored in its memory
    write_backs: list[tuple[WriteBack, str]]  # likewise, for inputs that the graph overwrites
    names: dict[str, str]  # values of the recorded graph that have another name here
    rematerialized: set[str] = field(default_factory=set)  # second copies of values: placed at their use, not at the first one
    stored: set[str] = field(default_factory=set)  # values to keep in memory however cheap they are to recompute
    decisions: list[str] = field(default_factory=list)

    @property
    def results(self) -> set[str]:
        """The values that become memory the caller can see."""
        return {v for _, v in self.outputs} | {v for _, v in self.write_backs}

    @property
    def external(self) -> set[str]:
        """The values that are inputs."""
        return {x.name for x in self.inputs}


def add_value(forms: dict[str, Form], name: str, form: Form) -> str:
    """Enter a new value under `name`, or under that with underscores added if it is taken; return its name."""
    while name in forms:
        name += "_"
    forms[name] = form
    return name
