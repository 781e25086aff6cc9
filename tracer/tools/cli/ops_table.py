"""`tapejit ops`: the op table as Markdown, the content of `docs/ops.md`.

tapejit ops > docs/ops.md
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from ....eager.core.op import OPS, Op

INTRODUCTION = """# Ops

All functions of the op table, printed by `tapejit ops > docs/ops.md`; a test fails when this page is older than the table. Each
op is defined in one place, with its kernel, its gradient and the calls that its tests are generated from.

- **name**: without a prefix it is `tj.name`, and a method of tensors if it is marked m; `F.` is `tj.nn.functional`.
- **m**: `x.name(...)`; **i**: also `x.name_(...)`, which writes into x; **g**: it has a gradient.
- **kind**: what the compiler makes of it. pointwise, reduce, movement and create become parts of fused loops; contraction and
  index become kernels that loops are fused into; composite is decomposed into other ops; scan is a kernel of its own; opaque
  is run by its eager kernel.
"""
PREFIXES = {"": "", "nn.functional": "F.", "Tensor": "Tensor."}


def page() -> str:
    """Render all op families, in the order of the table."""
    families: dict[str, list[Op]] = {}
    for op in OPS.values():
        families.setdefault(source_path(op), []).append(op)
    lines = [INTRODUCTION]
    for path, ops in sorted(families.items()):
        family = path.removeprefix("eager/ops/").removesuffix(".py")
        lines += [f"## {family}", "", f"`{path}`", "", "| name | | kind | meaning |", "|---|---|---|---|"]
        lines += [row(op) for op in sorted(ops, key=lambda op: shown_name(op).lower())]
        lines.append("")
    return "\n".join(lines) + f"{len(OPS)} functions, of {len(families)} families.\n"


def source_path(op: Op) -> str:
    """Source file of an op, relative to the package."""
    return plain(op).__module__.partition(".")[2].replace(".", "/") + ".py"


def plain(op: Op) -> Any:
    """Unwrap a function to the one in the source."""
    return inspect.unwrap(op.function) if op.function is not None else op.function


def shown_name(op: Op) -> str:
    space = op.namespaces[0]
    return f"{PREFIXES.get(space, space + '.')}{op.name}"


def row(op: Op) -> str:
    letters = "".join(letter for letter, is_so in marks(op) if is_so)
    return f"| `{shown_name(op)}({', '.join(arguments(op))})` | {letters} | {op.kind} | {meaning(op)} |"


def marks(op: Op) -> Iterator[tuple[str, bool]]:
    yield "m", op.method
    yield "i", op.inplace
    yield "g", any(sample.grad for sample in op.samples)


def arguments(op: Op) -> Iterator[str]:
    """Argument names; optional ones as `name=default`."""
    starred = False
    for p in inspect.signature(plain(op)).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            starred = True
            yield f"*{p.name}"
            continue
        if p.kind is p.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield p.name if p.default is p.empty else f"{p.name}={p.default!r}"


def meaning(op: Op) -> str:
    """First paragraph of an op's docstring, with bars escaped, since a bar would end the table cell."""
    return (inspect.getdoc(op.function) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
