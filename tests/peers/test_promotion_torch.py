"""Promotion against PyTorch, over every pair of dtypes and every kind of operand."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import tapejit as tj
import torch
from peers.common import NAMES, outcome

OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "result_type": lambda lib, a, b: lib.result_type(a, b),
    "add": lambda lib, a, b: a + b,
    "sub": lambda lib, a, b: a - b,
    "mul": lambda lib, a, b: a * b,
    "div": lambda lib, a, b: a / b,
    "floor_divide": lambda lib, a, b: a // b,
    "div trunc": lambda lib, a, b: lib.div(a, b, rounding_mode="trunc"),
    "remainder": lambda lib, a, b: a % b,
    "fmod": lambda lib, a, b: lib.fmod(a, b),
    "pow": lambda lib, a, b: a**b,
    "and": lambda lib, a, b: a & b,
    "shift": lambda lib, a, b: a << b,
    "eq": lambda lib, a, b: a == b,
    "maximum": lambda lib, a, b: lib.maximum(a, b),
    "atan2": lambda lib, a, b: lib.atan2(a, b),
    "hypot": lambda lib, a, b: lib.hypot(a, b),
    "xlogy": lambda lib, a, b: lib.xlogy(a, b),
    "copysign": lambda lib, a, b: lib.copysign(a, b),
    "where": lambda lib, a, b: lib.where(lib.tensor([True, False]), a, b),
    "cat": lambda lib, a, b: lib.cat([a, b]),
    "stack": lambda lib, a, b: lib.stack([a, b]),
    "clamp": lambda lib, a, b: lib.clamp(a, min=b),
    "lerp": lambda lib, a, b: None if a.dtype == lib.bool else lib.lerp(a, a, b),
    "logical_and": lambda lib, a, b: lib.logical_and(a, b),
    "isclose": lambda lib, a, b: lib.isclose(a, b),
    "matmul": lambda lib, a, b: a @ b,
    "in-place add": lambda lib, a, b: a.add_(b),
    "in-place div": lambda lib, a, b: a.div_(b),
    "in-place mul": lambda lib, a, b: operator.imul(a, b),
    "in-place pow": lambda lib, a, b: a.pow_(b),
    "in-place and": lambda lib, a, b: a.__iand__(b),
    "copy_": lambda lib, a, b: a.copy_(b),
    "fill": lambda lib, a, b: a.fill_(b),
    "masked_fill": lambda lib, a, b: a.masked_fill(a > 0, b),
    "setitem": lambda lib, a, b: (a.__setitem__(..., b), a)[1],
}
UNARY = """
abs all amax any argmax bitwise_not cumprod cumsum exp floor frac isnan logical_not max mean neg nonzero norm prod reciprocal
round sigmoid sign sort sqrt square std sum trunc var
"""
KINDS = ("tensor", "0-dim", "number")
NUMBERS = {"bool": True, "int64": 2, "float64": 1.5}


def operand(lib: Any, name: str, kind: str) -> Any:
    if kind == "number":
        return NUMBERS.get(name)
    return lib.ones(() if kind == "0-dim" else 2, dtype=getattr(lib, name))


def described(result: Any) -> Any:
    """Return what is compared: the dtype, or that it was refused."""
    if isinstance(result, (torch.Tensor, tj.Tensor)):
        result = result.dtype
    return "refused" if isinstance(result, type) else str(result).rpartition(".")[2]


@pytest.mark.parametrize("kinds", [k for k in itertools.product(KINDS, KINDS) if k != ("number", "number")], ids="-".join)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_pair(operation: str, kinds: tuple[str, str]) -> None:
    differing = []
    for a, b in itertools.product(NAMES, NAMES):
        if (kinds[0] == "number" and a not in NUMBERS) or (kinds[1] == "number" and b not in NUMBERS):
            continue

        def action(lib: Any, a: str = a, b: str = b) -> Any:
            return OPERATIONS[operation](lib, operand(lib, a, kinds[0]), operand(lib, b, kinds[1]))

        mine, theirs = described(outcome(action, tj)), described(outcome(action, torch))
        if mine != theirs and theirs != "refused":
            differing.append(f"{a} and {b}: {mine}, in PyTorch {theirs}")
    assert not differing, "\n".join(differing)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("function", UNARY.split())
def test_every_dtype(function: str, name: str) -> None:
    extra = (0,) if function in ("cumsum", "cumprod") else ()

    def action(lib: Any) -> Any:
        found = getattr(lib, function)(lib.ones(3, dtype=getattr(lib, name)), *extra)
        return found[0] if isinstance(found, tuple) else found

    theirs = described(outcome(action, torch))
    if theirs != "refused":
        assert described(outcome(action, tj)) == theirs


@pytest.mark.parametrize("data", [True, 1, 1.5, [1, 2], [1, 2.5], [True, 1], [], [[1.0], [2]], 2**40, -1])
def test_dtype_of_data(data: Any) -> None:
    assert described(tj.tensor(data)) == described(torch.tensor(data))


@pytest.mark.parametrize(
    "call", ["arange(3)", "arange(3.0)", "arange(0, 1, 0.5)", "full((2,), 1)", "full((2,), 1.5)", "full((2,), True)"]
)
@pytest.mark.parametrize("default", ["float32", "float64"])
def test_dtype_of_factories(call: str, default: str) -> None:
    results = []
    for lib in (tj, torch):
        before = lib.get_default_dtype()
        lib.set_default_dtype(getattr(lib, default))
        results.append(described(eval(f"lib.{call}")))
        lib.set_default_dtype(before)
    assert results[0] == results[1]
