"""Indices that come from memory: native programs look at them before they use them, and stop where one is out of bounds.

The tracer looks at most indices before it runs a program at all. Here programs are run without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F


def program(function: Any, *args: Any) -> tuple[Any, list[Any], list[Any]]:
    """The native program of a function, and arrays and numbers to run it on; integers are 0."""
    made = tj.compile(function, backend="llvm")
    for _ in range(4):
        made(*args)
    trace = made.traces[0]
    native = list(trace.programs.values())[-1].native
    rng = np.random.default_rng(0)
    arrays: list[Any] = [None] * len(trace.roots)
    for x in native.graph.inputs:
        form = native.graph.forms[x.name]
        arrays[x.slot] = rng.standard_normal(form.shape).astype(form.dtype)
        if form.dtype.kind != "f":
            arrays[x.slot][...] = 0
    numbers: list[Any] = [0] * trace.numbers
    for n in native.graph.numbers:
        numbers[n.place] = n.type(1)
    return native, arrays, numbers


def indices(native: Any, arrays: list[Any]) -> list[Any]:
    """The arrays of integers, in order."""
    return [arrays[x.slot] for x in native.graph.inputs if native.graph.forms[x.name].dtype.kind == "i"]


PICKS = {
    "embedding": (lambda i, w: F.embedding(i, w) * 2, 0),
    "index_select": (lambda i, w: tj.index_select(w, 0, i) + 1, 0),
    "index": (lambda i, w: w[i] + 1, 0),
    "take": (lambda i, w: tj.take(w, i) * 2, 0),
}


@pytest.mark.parametrize("bad", [5_000_000, -5_000_000])
@pytest.mark.parametrize("name", PICKS)
def test_what_is_picked_out_of_bounds(name: str, bad: int) -> None:
    function, _ = PICKS[name]
    native, arrays, numbers = program(function, tj.tensor([0, 1, 2]), tj.randn(5, 4))
    indices(native, arrays)[0][1] = bad
    with pytest.raises((IndexError, RuntimeError)):
        native.run(list(arrays), numbers)
    indices(native, arrays)[0][1] = 1
    native.run(list(arrays), numbers)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [7, 40_000])  # many are looked at by all threads
def test_nothing_is_written_when_it_stops(rows: int, threads: int) -> None:
    tj.manual_seed(0)
    table = tj.nn.Embedding(50, 32)
    scale = tj.nn.Parameter(tj.ones(32))
    optimizer = tj.optim.SGD([*table.parameters(), scale], lr=0.1)

    def step(i, j):
        loss = ((table(i) + table(j)) * scale).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    before = tj.get_num_threads()
    tj.set_num_threads(threads)
    try:
        native, arrays, numbers = program(step, *[tj.zeros(rows, 1, dtype=tj.int64) for _ in range(2)])
        written = [arrays[w.input.slot] for w in native.graph.write_backs]
        assert len(written) == 2
        for which in indices(native, arrays):
            old = [a.copy() for a in written]
            which[rows // 2] = 10_000_000
            for _ in range(20):
                with pytest.raises((IndexError, RuntimeError)):
                    native.run(list(arrays), numbers)
            assert all(np.array_equal(a, b) for a, b in zip(written, old, strict=True))
            which[rows // 2] = 49
            native.run(list(arrays), numbers)
            assert not any(np.array_equal(a, b) for a, b in zip(written, old, strict=True))
    finally:
        tj.set_num_threads(before)


def test_flags_share_memory_with_nothing() -> None:
    """Threads look at them at different times."""

    def function(i, w):
        y = (w @ w.T).exp()
        return (F.embedding(i, y) @ y).sin() @ y

    native, _, _ = program(function, tj.tensor([0, 1, 2]), tj.randn(6, 4))
    (flag,) = [x.check for x in native.launches if x.check]
    assert not any(native.arena.overlap(flag, b) for b in native.arena.offsets if b != flag)


@pytest.mark.parametrize(
    "function",
    [
        lambda i, w: tj.index_select(w, 1, i),
        lambda i, w: tj.index_select(w, 0, i).sum(0),
        lambda i, w: F.embedding(i, w).sum(0) + 1,
        lambda i, w: (w[i] * 2).sum(),
        lambda i, w: w[i].amax(1),
        lambda i, w: (w[:, i] + w[:, i]).sum(1, keepdim=True) * w,
    ],
)
def test_no_indices_at_all(function: Any) -> None:
    """Nothing may be read where an empty tensor has its memory, not even before the loops that would."""
    w = tj.randn(5, 5, requires_grad=True)
    i = tj.zeros(0, dtype=tj.int64)

    def step(i):
        w.grad = None
        found = function(i, w)
        (found * found).sum().backward()
        return found.detach(), w.grad

    made = tj.compile(step, backend="llvm")
    expected = step(i)
    for _ in range(4):
        for a, b in zip(made(i), expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
    native = list(made.traces[0].programs.values())[-1].native
    loads = [e.data[0] for x in native.launches if x.nest for e in x.nest.loads()]
    assert all(native.prepared.forms[name].size for name in loads)
