"""Loop nests of a function as text, without compiling anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tapejit.codegen.llvm.build import NativeBuild
from tapejit.codegen.nests.kernels import Launch

from support import shadow


def built(function: Callable[..., Any], *args: Any) -> NativeBuild:
    """The largest segment of a function, as far as it goes without compiling anything."""
    graphs = shadow.recorded(function, *args, calls=6)
    return NativeBuild(max(graphs, key=lambda g: len(g.nodes)), 500)


def text(launches: list[Launch]) -> str:
    """The loops, with what comes before them, in names that do not change with how they were made."""
    rows = []
    for x in launches:
        if x.node is not None:
            rows.append(f"{x.node.op.name}({', '.join(x.node.values())})\n")
        rows.append(str(x.nest))
    found = "".join(rows)
    names: dict[str, str] = {}
    return re.sub(r"\b[ev]\d+(_[a-z]+)*\b", lambda m: names.setdefault(m[0], f"t{len(names)}"), found)
