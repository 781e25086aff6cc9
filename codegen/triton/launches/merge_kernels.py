"""Merges several kernels into one launch: a range of program ids runs the first kernel, the next range the second, and so on.

    program = tl.program_id(0)
    if program < 96:
        matmul(program, x0, e4)
    else:
        matmul_gelu(program - 96, e7, x3, e8)

The kernels become inlined functions of a program id. Whatever they share (a buffer, a scalar, or the whole text) appears once.
Registers and shared memory are the maximum over the kernels.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from functools import cache

from ..printing.kernel_text import Argument, Kernel, Printed

PROGRAM = "tl.program_id(0)"
MAX_NAME_LENGTH = 60


@dataclass(frozen=True)
class SplitSource:
    """Module split into its header and the text of each function."""

    head: str
    functions: dict[str, str]


@cache
def split_source(source: str) -> SplitSource:
    rows = source.splitlines()
    found: dict[str, str] = {}
    first = len(rows)
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            begin = min(d.lineno for d in node.decorator_list) - 1
            found[node.name] = "\n".join(rows[begin : node.end_lineno])
            first = min(first, begin)
    return SplitSource("\n".join(rows[:first]).strip() + "\n", found)


def anonymize(text: str) -> str:
    """Normalise a function's text: without its docstring, and with its local names replaced by numbers, so that equal functions
    compare equal. Keyword names, which stand before a = without a space, are kept."""
    text = re.sub(r'"""(?:.|\n)*?"""', "", text, count=1)
    signature = re.match(r"(?:@.*\n)*def \w+\((.*)\):", text)
    assert signature is not None
    own = set(signature[1].split(", "))
    for row in re.finditer(r"^ +(?:for )?(\w+(?:, \w+)*) (?:in|[-+*/|&]?=) ", text, re.M):
        own.update(row[1].split(", "))
    places: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        name = found[0]
        return places.setdefault(name, f"v{len(places)}") if name in own else name

    return re.sub(r"(?<![\w.])[A-Za-z_]\w*(?![\w=])", number, text[signature.start(1) :])


def can_merge(printed: Printed) -> bool:
    """True if a kernel's position in the grid follows from program id 0 alone."""
    (kernel,) = printed.kernels
    text = split_source(printed.source).functions[kernel.name]
    others = ("program_id(1)", "program_id(2)", "num_programs", "\n    return", "\n        return")
    return (PROGRAM in text or kernel.grid == 1) and not any(word in text for word in others)


def merge_kernels(parts: list[Printed]) -> Printed:
    """Merge several modules with one kernel each into one kernel."""
    writer = Merger()
    for p in parts:
        writer.add(p)
    return writer.printed(parts)


class Merger:
    """Collects functions and arguments, and writes the kernel that calls them."""

    def __init__(self) -> None:
        self.heads: dict[str, None] = {}
        self.functions: dict[str, str] = {}  # name in the merged module, by text
        self.texts: list[str] = []
        self.arguments: dict[tuple[str, str, int], Argument] = {}
        self.taken = {"program"}
        self.calls: list[tuple[str, int]] = []  # with the number of programs
        self.names: list[str] = []

    def add(self, part: Printed) -> None:
        (kernel,) = part.kernels
        source = split_source(part.source)
        text = source.functions[kernel.name]
        self.heads.update(dict.fromkeys(row for row in source.head.splitlines() if row))
        for name, helper in source.functions.items():
            if name != kernel.name and re.search(rf"(?<![\w.]){name}\(", text):
                text = re.sub(rf"(?<![\w.]){name}\(", f"{self.function(helper, name)}(", text)
        function = self.function(text, kernel.name, kernel)
        given = ["{program}", *[self.argument(a).name for a in kernel.arguments]]
        self.calls.append((f"{function}({', '.join(given)})", kernel.grid))
        self.names.append(kernel.name)

    def function(self, text: str, name: str, kernel: Kernel | None = None) -> str:
        """Add a function, or a kernel as a function, and return its name in the merged module."""
        if text not in self.functions:
            self.functions[text] = own = self.unique(name)
            renamed = text.replace(f"def {name}(", f"def {own}(")
            self.texts.append(renamed if kernel is None else kernel_as_function(text, kernel, own))
        return self.functions[text]

    def unique(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def argument(self, a: Argument) -> Argument:
        key = (a.type, a.buffer, a.number)
        if key not in self.arguments:
            name = self.unique(f"number_{len(self.arguments)}" if not a.buffer else a.name)
            self.arguments[key] = replace(a, name=name)
        return self.arguments[key]

    def printed(self, parts: list[Printed]) -> Printed:
        names = dict.fromkeys(self.names)
        together = "_and_".join(names) if len(names) > 1 else f"{self.names[0]}_several"
        name = self.unique(together[:MAX_NAME_LENGTH].rstrip("_"))
        arguments = tuple(self.arguments.values())
        rows = ["@triton.jit", f"def {name}({', '.join(a.name for a in arguments)}):", *self.body()]
        source = "\n\n\n".join(["\n".join(self.heads), *self.texts, "\n".join(rows)]) + "\n"
        kernels = [k for p in parts for k in p.kernels]
        grid = sum(count for _, count in self.calls)
        kernel = Kernel(name, arguments, grid, max(k.warps for k in kernels), max(k.stages for k in kernels))
        scratch = {k: v for p in parts for k, v in p.scratch.items()}
        return Printed(source, [kernel], scratch, {k: v for p in parts for k, v in p.tables.items()})

    def body(self) -> list[str]:
        rows = [f'    """{len(self.calls)} kernels in one launch."""', f"    program = {PROGRAM}"]
        begin = 0
        for i, (call, count) in enumerate(self.calls):
            end, last = begin + count, i == len(self.calls) - 1
            rows.append("    else:" if last else f"    {'elif' if i else 'if'} program < {end}:")
            rows.append("        " + call.format(program=f"program - {begin}" if begin else "program"))
            begin = end
        return rows


def kernel_as_function(text: str, kernel: Kernel, name: str) -> str:
    """Rewrite a kernel as a function of its program id."""
    before = f"def {kernel.name}({', '.join(a.name for a in kernel.arguments)}):"
    assert before in text, f"{kernel.name} has other arguments than it is printed with"
    given = ", ".join(["program", *[a.name for a in kernel.arguments]])
    text = text.replace(before, f"def {name}({given}):").replace(PROGRAM, "program")
    return "\n".join(row for row in text.splitlines() if row.strip() != "program = program")
