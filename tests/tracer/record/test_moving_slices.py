"""Slices and ranges that begin elsewhere at each call: `data[step]`, `x[i : i + 8]`. They are made by Python, not by programs.

The length of what is taken stays the same, so a function that does this has one path however many places there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tapejit as tj
import tapejit.nn.functional as F
from support.scripts import batch, state_of
from support.soundness_harness import both
from tapejit import nn

CALLS = 40

TAKEN: dict[str, Callable[[Any, int], Any]] = {
    "data[i]": lambda data, i: data[i] * 2,
    "data[-1 - i]": lambda data, i: data[-1 - i].exp(),
    "data[i, 2]": lambda data, i: data[i, 2] + 1,
    "data[:, i]": lambda data, i: data[:, i % 5] * 2,
    "data[i : i + 8]": lambda data, i: data[i : i + 8] * 2,
    "data[i : i + 8, 1:3]": lambda data, i: (data[i : i + 8, 1:3] * 2).sum(0),
    "data[i : i + 8 : 2]": lambda data, i: data[i : i + 8 : 2].sin(),
    "narrow": lambda data, i: data.narrow(0, i, 4) + 1,
    "select": lambda data, i: data.select(0, i) + 1,
    "two of them": lambda data, i: F.mse_loss(data[i : i + 8], data[i + 1 : i + 9]),
    "one of the other": lambda data, i: data[i : i + 8][i % 3] * 2,
    "arange": lambda data, i: tj.arange(i, i + 5) * data[0],
    "by a tensor": lambda data, i: data[tj.arange(i, i + 4)] + data[i],
}


@pytest.mark.parametrize("how", TAKEN)
def test_what_is_taken_from_data(how: str) -> None:
    def script(compile: Any, note: Any) -> None:
        data = batch(0, 60, 5)
        f = compile(lambda i: TAKEN[how](data, i))
        for i in range(CALLS):
            note(f(i))

    f = both(script, replayed=CALLS - 6, divergences=2)
    assert len(f.traces) <= 2


def test_a_training_step_on_batches_by_number() -> None:
    def script(compile: Any, note: Any) -> None:
        data, labels = batch(0, 60, 5), tj.arange(60) % 3
        model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
        opt = tj.optim.Adam(model.parameters())

        @compile
        def step(i: int) -> Any:
            loss = F.cross_entropy(model(data[i : i + 8]), labels[i : i + 8])
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss

        for i in range(CALLS):
            note(step(i), *state_of(model))

    f = both(script, replayed=CALLS - 6, divergences=2)
    assert len(f.traces) <= 2


def test_the_last_batch_is_shorter_and_places_beyond_the_end_are_errors() -> None:
    def script(compile: Any, note: Any) -> None:
        data = batch(0, 20, 5)

        @compile
        def f(i: int) -> Any:
            first = data[i]
            return first.sum() + data[i : i + 4].sum(0)

        for i in (*range(24), 3, 30, 4):
            try:
                note(f(i))
            except IndexError as error:
                note(str(error))

    both(script, replayed=10)


def test_data_that_the_function_writes() -> None:
    """What was written before it is in the slice, and what is written to the slice is in the data."""

    def script(compile: Any, note: Any) -> None:
        data = batch(0, 20, 5)

        @compile
        def f(i: int) -> Any:
            data.mul_(0.5)
            row = data[i]
            found = row * 2
            row.add_(1)
            data[i + 1] = found
            return found, data[i + 2] - data[i]

        for i in range(16):
            note(*f(i), data)

    both(script)


def test_slices_of_what_is_computed_have_a_history() -> None:
    """There are places where a few paths are better than a break; where there are many, the segment ends."""

    def script(compile: Any, note: Any) -> None:
        w = batch(1, 30, 5, requires_grad=True)

        @compile
        def f(x: Any, i: int) -> Any:
            w.grad = None
            y = (w * x)[i] * 2 + w[i]
            y.sum().backward()
            return y

        for i in range(60):
            note(f(batch(i, 30, 5), i % 30), w.grad)

    f = both(script, replayed=30)
    assert f.gave_up is None


def test_slices_that_stay_are_in_the_program() -> None:
    data = batch(0, 20, 5)
    f = tj.compile(lambda x: (x[1:4] * data[2]).sum())
    for i in range(6):
        f(batch(i, 20, 5))
    assert [e.op.name for e in f.traces[0].entries if e.op is not None] == ["slice", "slice", "mul", "sum"]


def test_data_shared_with_numpy() -> None:
    def script(compile: Any, note: Any) -> None:
        array = batch(0, 20, 5).numpy()
        data = tj.from_numpy(array)
        f = compile(lambda i: data[i : i + 3] * 2)
        for i in range(14):
            array[i] = i
            note(f(i))

    both(script)


def test_a_slice_that_is_returned() -> None:
    """It is a view, of the same memory, and knows it."""

    def script(compile: Any, note: Any) -> None:
        data = batch(0, 20, 5)
        f = compile(lambda i: (data[i : i + 3], data[i : i + 3] * 2))
        for i in range(14):
            view, twice = f(i)
            view.add_(1)
            note(view, twice, data, view._base is data)

    both(script)
