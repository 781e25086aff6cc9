"""Ctrl-C while a native program runs: Python hears of it when the program is done, in the middle of what is done around it.

Then the step is over, with all that it leaves behind, before the interrupt goes on; and the function can be called again.
"""

from __future__ import annotations

import functools
import random
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from tapejit import nn
from tapejit.tracer.execute import tiering


class Side:
    """A model that is trained."""

    def __init__(self) -> None:
        tj.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.optimizer = tj.optim.Adam(self.model.parameters(), lr=0.01)

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def quiet(self, x: Any, y: Any) -> None:
        """Nothing is handed out."""
        self.step(x, y)
        self.optimizer.zero_grad()

    def everything(self) -> list[Any]:
        state = self.optimizer.state_dict()["state"]
        found = [x for p in self.model.parameters() for x in (p, p.grad)] + [x for s in state.values() for x in s.values()]
        return [np.asarray(x.detach().numpy() if isinstance(x, tj.Tensor) else x) for x in found if x is not None]

    def same_as(self, other: Side) -> bool:
        pairs = zip(self.everything(), other.everything(), strict=True)
        return all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)


X, Y = (tj.tensor(np.random.default_rng(i).standard_normal((20, n)).astype(np.float32)) for i, n in enumerate((6, 3)))


class StopError(Exception):
    """Raised by a handler of the user's."""


def sides(monkeypatch: Any, name: str, pure: bool) -> tuple[Side, Side, Any]:
    monkeypatch.setattr(tiering, "MARGIN", float("inf"))  # whatever a busy machine measures
    eager, side = Side(), Side()
    compiled = tj.compile(getattr(side, name), backend="llvm", pure=pure)
    for _ in range(9):
        getattr(eager, name)(X, Y)
        compiled(X, Y)
    assert side.same_as(eager)
    return eager, side, compiled


def program_of(compiled: Any) -> dict[str, Any]:
    """The names that the Python around the native program knows."""
    segments = compiled.traces[0].programs.values() if not compiled.skipped_calls else [compiled.skipped_calls[0].segment]
    (run,) = [s.run for s in segments if s.native is not None]
    found: dict[str, Any] = run.__globals__
    return found


@pytest.mark.parametrize("kind", [KeyboardInterrupt, StopError])
@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("name", ["step", "quiet"])
def test_a_step_that_is_done_is_done(monkeypatch: Any, name: str, pure: bool, kind: Any) -> None:
    """The signal comes while the program runs: Python's handler runs when that returns."""
    eager, side, compiled = sides(monkeypatch, name, pure)
    handled, space = [0], program_of(compiled)
    program = space["p0"]

    def handler(*_: Any) -> None:
        handled[0] += 1
        raise kind

    def interrupted(arrays: Any, scalars: Any) -> bool:
        program(arrays, scalars)
        handler()
        return True

    for _ in range(3):
        getattr(eager, name)(X, Y)
        space["p0"] = interrupted
        try:
            with pytest.raises(kind):
                compiled(X, Y)
        finally:
            space["p0"] = program
        assert side.same_as(eager)
        getattr(eager, name)(X, Y)
        compiled(X, Y)
        assert side.same_as(eager)
    assert handled[0] == 3


def test_an_error_of_the_program_itself_is_no_interrupt(monkeypatch: Any) -> None:
    _, side, compiled = sides(monkeypatch, "step", pure=True)
    space, before = program_of(compiled), side.everything()
    program, space["p0"] = space["p0"], functools.partial(space["p0"], [])  # which it refuses
    try:
        with pytest.raises(TypeError):
            compiled(X, Y)
    finally:
        space["p0"] = program
    assert all(np.array_equal(a, b) for a, b in zip(side.everything(), before, strict=True))
    compiled(X, Y)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="a timer that interrupts")
@pytest.mark.parametrize("pure", [False, True])
def test_at_any_time(monkeypatch: Any, pure: bool) -> None:
    """Wherever it comes, the function goes on from what is there."""
    _, side, compiled = sides(monkeypatch, "step", pure)
    armed, rng = [False], random.Random(0)

    def handler(*_: Any) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    def forever() -> None:
        while True:
            compiled(X, Y)

    def interrupt(function: Callable[[], None]) -> None:
        try:
            armed[0] = True
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0002, 0.003), 0.001)
            function()
        except KeyboardInterrupt:
            pass
        finally:
            armed[0] = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(150):
            interrupt(forever)
            twin = Side()
            twin.model.load_state_dict(side.model.state_dict())
            twin.optimizer.load_state_dict(side.optimizer.state_dict())
            found, expected = compiled(X, Y).item(), twin.step(X, Y).item()
            assert abs(found - expected) < 1e-5
            assert side.same_as(twin)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # one that is still on its way, which would end the process, is dropped
        signal.signal(signal.SIGALRM, before)
