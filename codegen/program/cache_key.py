"""Cache keys of programs: hashes of everything that a program depends on."""

from __future__ import annotations

import hashlib
import os
from functools import cache as once
from functools import lru_cache
from typing import Any

import numpy as np

from ...eager.core import library
from ...eager.core.library import hash_sources, is_library
from ...eager.core.op import Op
from ...tracer.graph.ir import Form, Graph, Operand
from ...tracer.trace.trace import Constant, Number
from ..lowering.definitions import DEFINITIONS
from . import disk_cache as cache

TARGETS = ("llvm", "triton")  # a program depends on one of these folders


def program_key(graph: Graph, slots: int, target: str, *more: str) -> str | None:
    """The name of a graph's executable for a kind of target, `llvm` or `triton`, and more that it depends on; None if the graph
    holds something that has no name, or ops of which only the user knows what they mean."""
    try:
        rows: list[str] = [str(slots), source_hash(target), *more]
        rows += [f"{x.name} {x.slot} {form_text(graph.forms[x.name])}" for x in graph.inputs]
        if not all(map(has_library_meaning, {node.op for node in graph.nodes})):
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
def source_hash(target: str) -> str:
    """A hash of the source of the generator and of the ops: an edit of either may change the code of a graph."""
    others = [name for name in TARGETS if name != target]
    return hash_sources(os.path.join(library.ROOT, "codegen"), skip=others) + hash_sources(os.path.join(library.ROOT, "eager"))


def has_library_meaning(op: Op) -> bool:
    """True if the library's source defines an op: not for the user's own ops, nor those with a user's rule."""
    parts = (op.body, op.expand, op.infer, DEFINITIONS.get(op.name))
    return all(part is None or is_library(part) for part in parts)


@lru_cache(4096)  # a graph has few forms, and NumPy takes long to name a dtype
def form_text(form: Form) -> str:
    return f"{form.dtype} {form.shape} {form.strides} {form.where}"


def operand_text(x: Operand) -> str:
    if isinstance(x, str):
        return x
    return f"s{x.place}:{x.type.__name__}" if isinstance(x, Number) else setting_text(x.value if isinstance(x, Constant) else x)


def setting_text(x: Any) -> str:
    """An attribute as text that determines it. TypeError for objects without one."""
    if isinstance(x, np.ndarray):
        return f"array {x.dtype} {x.shape} {hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()}"
    if isinstance(x, Op) and has_library_meaning(x):
        return f"op {x.name}"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{k}: {setting_text(v)}" for k, v in x.items()) + "}"
    if isinstance(x, (tuple, list)):
        return f"{type(x).__name__}(" + ", ".join(map(setting_text, x)) + ")"
    if x is None or x is ... or isinstance(x, (bool, int, float, str, slice)) or type(x).__name__ in ("dtype", "device"):
        return repr(x)
    raise TypeError(type(x).__name__)
