"""Several kernels as one launch: programs with low numbers do the first, those after them the second, and so on.

    program = tl.program_id(0)
    if program < 96:
        matmul(program, x0, e4)
    else:
        matmul_gelu(program - 96, e7, x3, e8)

The kernels become functions that are given the number of a program, and are inlined. What they have in common (a buffer, a
number, or the whole text) is there once. Registers and shared memory are those of the greediest.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from functools import cache

from ..printing.kernel_text import Argument, Kernel, Printed

PROGRAM = "tl.program_id(0)"
LONGEST_NAME = 60


@dataclass(frozen=True)
class Source:
    """A module, taken apart: what is above its functions, and the text of each."""

    head: str
    functions: dict[str, str]


@cache
def taken_apart(source: str) -> Source:
    rows = source.splitlines()
    found: dict[str, str] = {}
    first = len(rows)
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            begin = min(d.lineno for d in node.decorator_list) - 1
            found[node.name] = "\n".join(rows[begin : node.end_lineno])
            first = min(first, begin)
    return Source("\n".join(rows[:first]).strip() + "\n", found)


def nameless(text: str) -> str:
    """A function's text without its docstring, its own names replaced by numbers: equal for functions that do the same. Names
    of settings, which stand before a = without a space, are nobody's own."""
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


def mergeable(printed: Printed) -> bool:
    """Whether a kernel gets to know where it is by the number of its program alone."""
    (kernel,) = printed.kernels
    text = taken_apart(printed.source).functions[kernel.name]
    others = ("program_id(1)", "program_id(2)", "num_programs", "\n    return", "\n        return")
    return (PROGRAM in text or kernel.grid == 1) and not any(word in text for word in others)


def merged(parts: list[Printed]) -> Printed:
    """One kernel for several, each printed for itself and with one kernel."""
    writer = Merger()
    for p in parts:
        writer.add(p)
    return writer.printed(parts)


class Merger:
    """Collects functions and arguments, and writes the kernel that calls them."""

    def __init__(self) -> None:
        self.heads: dict[str, None] = {}
        self.functions: dict[str, str] = {}  # of texts: the name that they have here
        self.texts: list[str] = []
        self.arguments: dict[tuple[str, str, int], Argument] = {}
        self.taken = {"program"}
        self.calls: list[tuple[str, int]] = []  # with the number of programs
        self.names: list[str] = []

    def add(self, part: Printed) -> None:
        (kernel,) = part.kernels
        source = taken_apart(part.source)
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
        """The name that a function, or a kernel as a function, has here."""
        if text not in self.functions:
            self.functions[text] = own = self.unique(name)
            self.texts.append(text.replace(f"def {name}(", f"def {own}(") if kernel is None else as_function(text, kernel, own))
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
        name = self.unique(together[:LONGEST_NAME].rstrip("_"))
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


def as_function(text: str, kernel: Kernel, name: str) -> str:
    """A kernel's text as a function that is given the number of its program."""
    before = f"def {kernel.name}({', '.join(a.name for a in kernel.arguments)}):"
    assert before in text, f"{kernel.name} has other arguments than it is printed with"
    given = ", ".join(["program", *[a.name for a in kernel.arguments]])
    text = text.replace(before, f"def {name}({given}):").replace(PROGRAM, "program")
    return "\n".join(row for row in text.splitlines() if row.strip() != "program = program")
