"""Kernel descriptions shared by all printers: arguments, names, docstrings, and the combination of partial totals."""

from __future__ import annotations

import ast
import functools
import warnings
from dataclasses import dataclass, field

from ...ir.expr import Expr, walk
from ...nests.loop_nest import Nest, Total
from . import scalar_ops as ops
from .expr_printer import MATMUL_BUFFER, Scope, identifier
from .scalar_ops import TYPES, accumulator
from .tiling import power_above

MATHS = f"{__package__}.device_functions"  # kernels import it; its text is part of their cache keys
HEADER = f"""import triton
import triton.language as tl
from triton.language.extra import libdevice

from {MATHS.rpartition(".")[0]} import {MATHS.rpartition(".")[2]} as maths
"""
MAX_NAME_CHARACTERS, MAX_COMMENT_CHARACTERS = 50, 120
PIECES = 32  # that are put together at a time


@dataclass(frozen=True)
class Argument:
    """Buffer, or a scalar that each call brings."""

    name: str  # in the kernel
    type: str  # Triton's, as "*fp32" or "fp64"
    buffer: str = ""
    number: int = -1


@dataclass(frozen=True)
class Kernel:
    """Kernel: one launch."""

    name: str
    arguments: tuple[Argument, ...]
    grid: int
    warps: int
    stages: int = 2  # pipeline stages of loops


Words = tuple[int | Argument, ...]  # words of a table: integers as they are, and arguments for addresses and scalars


@dataclass
class Printed:
    """Text of a nest's kernels, and their launch parameters.

    A table is a buffer of 64-bit words by which a kernel finds any number of buffers and numbers. It is written before the
    kernel is launched, and again when an address or a number in it is another one.
    """

    source: str
    kernels: list[Kernel]
    scratch: dict[str, tuple[str, int]] = field(default_factory=dict)  # buffers of their own: dtype and number of elements
    tables: dict[str, Words] = field(default_factory=dict)  # by buffer

    def __str__(self) -> str:
        return self.source


def dtypes_of(nest: Nest) -> dict[str, str]:
    """Dtypes of buffers in memory."""
    found = {e.data[0]: e.dtype for e in nest.loads()}
    found.update({s.buffer: s.dtype for s in nest.stores()})
    found.update({s.buffer: s.dtype for s in nest.scatters})
    found.update({t.buffer: t.dtype for t in nest.totals() if t.buffer is not None})
    matmuls = [e.dtype for e in walk(nest.expressions()) if e.kind == "matmul"]
    return found | ({MATMUL_BUFFER: matmuls[0]} if matmuls else {})


def arguments_of(nest: Nest) -> list[Argument]:
    """Buffers, in the order in which they appear, and numbers."""
    return arguments(dtypes_of(nest), nest.expressions())


def arguments(dtypes: dict[str, str], expressions: list[Expr]) -> list[Argument]:
    """Buffers of these dtypes, and the numbers of expressions."""
    names: dict[str, str] = {}
    for buffer in dtypes:
        name = identifier(buffer)
        while name in names.values():
            name += "_"
        names[buffer] = name
    found = [Argument(names[b], f"*{TYPES[dtype]}", buffer=b) for b, dtype in dtypes.items()]
    numbers = {e.data: e.dtype for e in walk(expressions) if e.kind == "number"}
    found += [Argument(f"number_{n}", "fp64" if numbers[n] == "float64" else "i64", number=n) for n in sorted(numbers)]
    return found


def kernel_name(nest: Nest) -> str:
    """Name a kernel after the user's ops."""
    found = identifier("_".join(dict.fromkeys(nest.ops)) or "kernel")
    return found if len(found) <= MAX_NAME_CHARACTERS else found[:MAX_NAME_CHARACTERS].rsplit("_", 1)[0]


def documentation(nest: Nest, what: str = "") -> list[str]:
    """Print a docstring: the source lines, and the loops."""
    rows = [what, *nest.lines, "", *str(nest).splitlines()] if what else [*nest.lines, "", *str(nest).splitlines()]
    rows = rows[1:] if rows and not rows[0] else rows
    short = [row if len(row) <= MAX_COMMENT_CHARACTERS else row[:MAX_COMMENT_CHARACTERS] + " ..." for row in rows]
    text = [row.replace("\\", "\\\\").replace('"""', "'''") for row in short]
    return ['    """' + text[0], *[f"    {row}".rstrip() for row in text[1:]], '    """']


def function(name: str, arguments: list[Argument], lines: list[str]) -> str:
    return "\n".join(["", "", "@triton.jit", f"def {name}({', '.join(a.name for a in arguments)}):", *lines, ""])


def bracketed(text: str) -> str:
    return f"({text})" if " " in text else text


def name_of(t: Total) -> str:
    return identifier(t.name)


def names_of(arguments: list[Argument]) -> dict[str, str]:
    """Names in the kernel, by buffer and by scalar."""
    return {a.buffer or f"number {a.number}": a.name for a in arguments}


def put_together(scope: Scope, t: Total, parts: str, pieces: int, width: int, at: str, block: int, mask: str) -> str:
    """Combine the totals of the pieces, always in the same order: memory holds `width` totals of the first piece, then those of
    the second, and so on. `at` is a block of places among them, masked by `mask`; it is empty if there is one place."""
    wide, block_p = accumulator(t.dtype), min(power_above(pieces), PIECES if at else 8 * PIECES)
    name = f"{name_of(t)}_sofar"
    shape = f"[{block_p}, {block}]" if at else f"[{block_p}]"
    scope.add(f"{name} = tl.full({shape}, {ops.literal(ops.identity(t.op, wide))}, {ops.type_of(wide)})")
    scope.add(f"for piece in range(0, {pieces}, {block_p}):")
    scope.depth += 1
    scope.add(f"p = piece + tl.arange(0, {block_p}){'[:, None]' if at else ''}")
    masks = [f"(p < {pieces})"] * bool(pieces % block_p) + [f"{mask}[None, :]"] * bool(mask)
    loaded = f"tl.load({parts} + p * {width}{f' + {at}[None, :]' if at else ''}"
    loaded += f", mask={' & '.join(masks)}, other=0)" if masks else ")"
    scope.add(f"part = {loaded}{' != 0' if wide == 'bool' else ''}")
    if pieces % block_p:
        scope.add(f"part = tl.where(p < {pieces}, part, {ops.number(ops.identity(t.op, wide), wide)})")
    scope.add(f"{name} = {ops.joined(t.op, wide, name, 'part')}")
    scope.depth -= 1
    return ops.reduced(t.op, wide, name, 0, False)


@functools.cache
def parse_source(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # the user's lines are in docstrings
        return ast.parse(source)
