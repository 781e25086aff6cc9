"""Names of graphs in the disk cache: texts that say all that a program depends on."""

from __future__ import annotations

import hashlib
import os
import sys
from functools import cache as once
from functools import lru_cache
from typing import Any

import numpy as np

from ...eager.core.op import Op
from ...tracer.graph.ir import Form, Graph, Operand
from ...tracer.trace.trace import Constant, Number
from . import disk_cache as cache


def name_of(graph: Graph, slots: int, target: str, *more: str) -> str | None:
    """The name of a graph's recipe for a kind of target, `llvm` or `triton`, and more that it depends on; None if the graph
    holds something that has no name, or ops of which only the user knows what they mean."""
    try:
        rows: list[str] = [str(slots), source(target), *more]
        rows += [f"{x.name} {x.slot} {form_text(graph.forms[x.name])}" for x in graph.inputs]
        if not all(map(is_known, {node.op for node in graph.nodes})):
            return None
        for node in graph.nodes:
            given = [operand_text(x) for x in node.operands]
            made = [f"{name} {form_text(graph.forms[name])}" for name in node.results]
            rows.append(f"{made} = {node.op.name}({given}, {setting_text(node.attrs)}, {node.several})")
        for o in graph.outputs:
            rows.append(f"{o.slot} {o.value} {setting_text([(op, attrs, i) for op, attrs, i in o.chain])}")
        rows += [f"{w.input.name} {w.value}" for w in graph.write_backs]
    except TypeError:
        return None
    return cache.key("program", *rows)


@once
def source(target: str) -> str:
    """The text of the generator itself, and of what says what ops mean: what they make may be another thing tomorrow."""
    here = os.path.dirname(__file__)
    meanings = [folder for folder, _, _ in os.walk(os.path.join(os.path.dirname(here), "eager"))]
    found = []
    for folder in (here, os.path.join(here, target), *sorted(meanings)):
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), "rb", buffering=0) as file:
                    found.append(file.read())
    return hashlib.sha256(b"".join(found)).hexdigest()  # at once: Python's lock is taken again after each of its calls


def is_known(op: Op) -> bool:
    """Whether that text says what an op means: it does not of the user's own ops, nor of rules that the user has added."""
    lower = sys.modules.get(f"{__package__}.lower")  # where there is none yet, nobody has added any
    rule = None if lower is None else lower.DEFINITIONS.get(op.name)
    library = __package__.partition(".")[0] + "."
    return all(part is None or part.__module__.startswith(library) for part in (op.body, op.expand, op.infer, rule))


@lru_cache(4096)  # how many forms there are: a graph has few, and NumPy takes long to name a dtype
def form_text(form: Form) -> str:
    return f"{form.dtype} {form.shape} {form.strides} {form.where}"


def operand_text(x: Operand) -> str:
    if isinstance(x, str):
        return x
    return f"s{x.place}:{x.type.__name__}" if isinstance(x, Number) else setting_text(x.value if isinstance(x, Constant) else x)


def setting_text(x: Any) -> str:
    """A setting as text that says all of it; TypeError for what has none."""
    if isinstance(x, np.ndarray):
        return f"array {x.dtype} {x.shape} {hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()}"
    if isinstance(x, Op) and is_known(x):
        return f"op {x.name}"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{k}: {setting_text(v)}" for k, v in x.items()) + "}"
    if isinstance(x, (tuple, list)):
        return f"{type(x).__name__}(" + ", ".join(map(setting_text, x)) + ")"
    if x is None or x is ... or isinstance(x, (bool, int, float, str, slice)) or type(x).__name__ in ("dtype", "device"):
        return repr(x)
    raise TypeError(type(x).__name__)
