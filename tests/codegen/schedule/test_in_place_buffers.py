"""Memory that is written while it is read: an element may be overwritten only when nobody needs what it was.

Loops go through elements several at a time, and threads share them. So what is read elsewhere than where it is written has to
be read before, whatever order the elements are in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
from tapejit.codegen.llvm import build as native_module
from tapejit.tracer.execute import tiering

SQUARE = ("transposed", "symmetric", "matmul", "matmul and itself", "diagonal")
N = 67  # more than a vector, and no multiple of one


def fresh(*shape: int) -> Any:
    return tj.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


VECTORS: dict[str, Callable[[Any], Any]] = {
    "flip": lambda c: c.add_(c.flip(0)),
    "copy of flip": lambda c: c.copy_(c.flip(0)),
    "roll": lambda c: c.copy_(c.roll(1)),
    "neighbour": lambda c: c[1:].add_(c[:-1]),
    "other neighbour": lambda c: c[:-1].mul_(c[1:]),
    "cat": lambda c: c.copy_(tj.cat([c[1:], c[:1]])),
    "where": lambda c: c.copy_(tj.where(c > 0, c.flip(0), c)),
    "pad": lambda c: c.add_(tj.nn.functional.pad(c[:-1], (1, 0))),
    "pick": lambda c: c.copy_(c[tj.arange(len(c) - 1, -1, -1)]),
    "one for all": lambda c: c.sub_(c[3]),
    "twice": lambda c: c.add_(c.flip(0)).mul_(c.roll(2)),
    "average": lambda c: c[1:-1].copy_((c[:-2] + c[2:]) / 2),
    "expression": lambda c: c.sub_(0.1 * (c.exp() + c.flip(0).tanh() * c)),
    "sum": lambda c: c.div_(c.abs().sum()),
    "scan": lambda c: c.add_(c.cumsum(0)),
}
MATRICES: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda b: b.copy_(b.t()),
    "symmetric": lambda b: b.add_(b.t()),
    "first row": lambda b: b.add_(b[0]),
    "first column": lambda b: b.mul_(b[:, :1]),
    "column sums": lambda b: b.sub_(b.sum(0)),
    "row and column": lambda b: b.sub_(b.mean(1, keepdim=True)).mul_(b.flip(1)),
    "matmul": lambda b: b.copy_(b @ b / 67),
    "matmul and itself": lambda b: b.add_((b @ b).tanh() + b.t()),
    "heat": lambda b: b[1:-1, 1:-1].add_(0.1 * (b[:-2, 1:-1] + b[2:, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:] - 4 * b[1:-1, 1:-1])),
    "rows below": lambda b: b[1:].add_(b[:-1]),
    "rows swapped": lambda b: b[:2].copy_(b[:2].flip(0)),
    "softmax": lambda b: b.copy_(b.softmax(0).flip(0)),
    "diagonal": lambda b: b.diagonal().copy_(b[0]),
}
CASES = [*[(k, f, (N,)) for k, f in VECTORS.items()], *[(k, f, (N, N)) for k, f in MATRICES.items()]]
LARGE = [(k, f, (40_001,)) for k, f in VECTORS.items()] + [(k, f, (261, 173)) for k, f in MATRICES.items() if k not in SQUARE]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("function", "shape"), [pytest.param(f, s, id=f"{k}-{s[0]}") for k, f, s in CASES + LARGE])
def test_what_is_overwritten_is_read_before(
    function: Any, shape: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_module, "MIN_PARALLEL_OPS", 0)
    monkeypatch.setattr(native_module, "MIN_THREAD_SPEEDUP", 0)
    monkeypatch.setattr(tiering, "MARGIN", float("inf"))  # whatever a busy machine measures
    before, (eager, compiled) = tj.get_num_threads(), (fresh(*shape), fresh(*shape))
    tj.set_num_threads(threads)
    try:
        made = tj.compile(function, backend="llvm")
        for _ in range(4):
            function(eager)
            made(compiled)
            scale = max(1.0, float(eager.abs().max()))
            np.testing.assert_allclose(compiled.numpy(), eager.numpy(), rtol=1e-4, atol=1e-5 * scale)
    finally:
        tj.set_num_threads(before)
