"""Find the source of a function, verified: its file is compiled again, and has to give the code that runs."""

from __future__ import annotations
import __future__

import ast
import linecache
import threading
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType


class UnprovedError(Exception):
    """The reason why the source of a function does not prove that it only touches tensors.

    `line` is the innermost statement of the user's that was being read ("file:line"), once it is known.
    """

    line: str | None = None


Definition = ast.FunctionDef | ast.Lambda
PARSE_LOCK = threading.Lock()  # before Python 3.13, two threads that parse at the same time may get a SystemError
FUTURE_FLAGS = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


def verified_definition(code: CodeType) -> Definition:
    """Return the syntax tree of a function; an `UnprovedError` if it is not certain to be what runs."""
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)
    if not lines:
        raise UnprovedError("its source is not available")
    nodes, codes = parse_and_compile("".join(lines), code.co_filename, code.co_flags & FUTURE_FLAGS)
    if not any(other == code for other in codes):
        raise UnprovedError("its source file is not what runs")
    found = [n for n in nodes if first_line(n) == code.co_firstlineno and name_of(n) == code.co_name]
    if len(found) != 1:
        raise UnprovedError("several functions of this name begin on one line")
    return found[0]


@lru_cache(8)
def parse_and_compile(text: str, name: str, flags: int) -> tuple[list[Definition], list[CodeType]]:
    """Parse and compile a file: all functions in it, as syntax trees and as code."""
    try:
        with PARSE_LOCK:
            tree = ast.parse(text)
        code = compile(tree, name, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, SystemError) as reason:  # a notebook's cell may hold more than Python; see PARSING
        raise UnprovedError(f"its source cannot be read: {reason}") from None
    return [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Lambda))], list(nested_code(code))


def nested_code(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from nested_code(constant)


def first_line(node: Definition) -> int:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return min([node.lineno, *[d.lineno for d in decorators]])


def name_of(node: Definition) -> str:
    return node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
