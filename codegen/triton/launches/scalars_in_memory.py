"""Loads per-call scalars from memory: a kernel's parameters are then equal at each call, so that its launch can be part of a
CUDA graph."""

from __future__ import annotations

import re
from dataclasses import replace

from ..printing.kernel_text import Argument, Kernel, Printed, Words, parse_source

KINDS = {"fp64": "*fp64", "i64": "*i64"}


def move_scalars_to_memory(printed: Printed) -> Printed:
    """Replace scalar parameters by loads. A scalar is the first word of a table of two, as tables begin at multiples of 16
    bytes."""
    source, kernels = printed.source, []
    tables: dict[str, Words] = dict(printed.tables)
    for kernel in printed.kernels:
        numbers = [a for a in kernel.arguments if not a.buffer]
        for a in numbers:
            tables[scalar_buffer(a)] = (a, 0)
        source = load_scalars_first(source, kernel, numbers) if numbers else source
        kernels.append(replace(kernel, arguments=tuple(a if a.buffer else scalar_pointer(a) for a in kernel.arguments)))
    return Printed(source, kernels, printed.scratch, tables)


def scalar_buffer(number: Argument) -> str:
    return f"number {number.number}"


def scalar_pointer(number: Argument) -> Argument:
    return Argument(f"{number.name}_at", KINDS[number.type], buffer=scalar_buffer(number))


def load_scalars_first(source: str, kernel: Kernel, numbers: list[Argument]) -> str:
    """Insert loads of the scalars at the start of the kernel."""
    own = next(x for x in parse_source(source).body if getattr(x, "name", "") == kernel.name)
    lines = source.split("\n")
    head = own.lineno - 1  # type: ignore[attr-defined]
    body = own.body  # type: ignore[attr-defined]
    documented = hasattr(body[0], "value") and isinstance(getattr(body[0].value, "value", None), str)
    after = body[0].end_lineno if documented else body[0].lineno - 1
    for a in numbers:
        lines[head] = re.sub(rf"\b{a.name}\b", f"{a.name}_at", lines[head])
    lines[after:after] = [f"    {a.name} = tl.load({a.name}_at)" for a in numbers]
    return "\n".join(lines)
