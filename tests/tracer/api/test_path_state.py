"""A path goes through the states of docs/lifecycle.md, in their order."""

from __future__ import annotations

from typing import Any

import tapejit as tj
from support.paths import ROOT
from tapejit import nn
from tapejit.tracer.api.path_state import PathState, path_state


def states(step: Any, calls: int, pure: bool = False) -> list[PathState]:
    """The states of the only path after each call, without repetitions."""
    f = tj.compile(step, pure=pure)
    found: list[PathState] = []
    for _ in range(calls):
        f(tj.ones(2, 3))
        (trace,) = f.traces or [f.candidate]
        if path_state(f, trace) not in found[-1:]:
            found.append(path_state(f, trace))
    return found


def training_step() -> Any:
    net = nn.Linear(3, 1)
    opt = tj.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return step


def test_a_step_that_is_skipped() -> None:
    expected = [PathState.RECORDED, PathState.CONFIRMED, PathState.REPLAYING, PathState.OBSERVED, PathState.SKIPPING]
    assert states(training_step(), 12) == expected
    assert states(training_step(), 12, pure=True) == [PathState.RECORDED, PathState.SKIPPING]


def test_a_step_that_needs_python() -> None:
    log: list[Any] = []
    step = training_step()
    found = states(lambda x: log.append(1) or step(x), 12)
    assert found[-1] is PathState.NEEDS_PYTHON and PathState.SKIPPING not in found


def test_the_page_has_these_states() -> None:
    page = (ROOT / "docs" / "lifecycle.md").read_text(encoding="utf-8")
    for state in PathState:
        assert f"| {state.value} | " in page
