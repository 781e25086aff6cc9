"""The source of a function that is certain to be what runs: its file is compiled again, and has to give the same code."""

from __future__ import annotations
import __future__

import ast
import linecache
import threading
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType


class UnprovedError(Exception):
    """Why it cannot be told from its source what a function does."""


Definition = ast.FunctionDef | ast.Lambda
PARSING = threading.Lock()  # before Python 3.13, two threads that make trees at the same time may end with a SystemError
FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


def definition(code: CodeType) -> Definition:
    """The part of a file that a function is made from."""
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)
    if not lines:
        raise UnprovedError("its source is not at hand")
    nodes, codes = compiled("".join(lines), code.co_filename, code.co_flags & FUTURES)
    if not any(other == code for other in codes):
        raise UnprovedError("its source is not what runs")
    found = [n for n in nodes if first_line(n) == code.co_firstlineno and name_of(n) == code.co_name]
    if len(found) != 1:
        raise UnprovedError("there are several functions in one line")
    return found[0]


@lru_cache(8)
def compiled(text: str, name: str, flags: int) -> tuple[list[Definition], list[CodeType]]:
    """All functions of a file, as they are written and as code."""
    try:
        with PARSING:
            tree = ast.parse(text)
        code = compile(tree, name, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, SystemError) as reason:  # a notebook's cell may hold more than Python; see PARSING
        raise UnprovedError(f"its source cannot be read: {reason}") from None
    return [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Lambda))], list(inner(code))


def inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from inner(constant)


def first_line(node: Definition) -> int:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return min([node.lineno, *[d.lineno for d in decorators]])


def name_of(node: Definition) -> str:
    return node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
